"""An inspection that builds on an earlier one decides like one that reads the whole log, or says that it can't."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.raw_log import PROTOCOL, Action, RawLog, add, dv, metadata, remove

from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.tables.model import SINCE
from dv_maintenance.testing.incremental import check_advanced

MB = 1 << 20
_FIELDS = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", "p")]


def own_metadata(**configuration: str) -> Action:
    return metadata({"type": "struct", "fields": _FIELDS}, ("p",), **configuration)


class Log:
    """A log without data files, and what is live in it: DV and size by path."""

    def __init__(self, folder: Path) -> None:
        self.raw = RawLog(folder)
        self.folder = self.raw.log
        self.storage = self.raw.storage
        self.table = DeltaTable(self.storage)
        self.version = -1
        self.clock = 1_700_000_000
        self.live: dict[str, Action | None] = {}
        self.names = 0
        self.commit(PROTOCOL, own_metadata())

    def commit(self, *actions: Action, version: int | None = None) -> None:
        self.version += version is None
        path = self.folder / f"{self.version if version is None else version:020d}.json"
        path.write_text("\n".join(json.dumps(action) for action in actions) + "\n")
        self.clock += 60
        os.utime(path, (self.clock, self.clock))

    def add(self, path: str, descriptor: Action | None) -> Action:
        number = sum(path.encode())
        return add(
            path,
            descriptor,
            size=(1 + number % 300) * MB,
            partitionValues={"p": str(number % 3)},
            modificationTime=1_700_000_000_000 + number,
            stats=json.dumps({"numRecords": 100}),
        )

    def files(self, *paths: str) -> None:
        self.commit(*(self.add(path, None) for path in paths))
        self.live |= dict.fromkeys(paths)

    def new_files(self, count: int) -> None:
        self.names += count
        self.files(*(f"p=1/f{number}.parquet" for number in range(self.names - count, self.names)))

    def delete(self, path: str, rows: int) -> None:
        """Rows of a file: another DV, or the first one."""
        new = dv(rows=rows, offset=self.version + 1)
        self.commit(remove(path, self.live[path]), self.add(path, new))
        self.live[path] = new

    def drop(self, path: str) -> None:
        self.commit(remove(path, self.live.pop(path)))

    def checkpoint(self) -> None:
        write_checkpoint(self.storage, load_snapshot(self.storage), now=self.clock * 1000)

    def checkpoints(self) -> list[int]:
        return [int(each.name[:20]) for each in self.folder.glob("*.checkpoint.parquet")]

    def clean_up(self, below: int) -> None:
        for path in self.folder.glob("*.json"):
            if int(path.name[:20]) < below:
                path.unlink()

    def replace(self, *actions: Action) -> None:
        """Another newest commit."""
        self.commit(*actions, version=self.version)
        self.read_again()

    def truncate(self) -> None:
        (self.folder / f"{self.version:020d}.json").unlink()
        self.version -= 1
        self.read_again()

    def read_again(self) -> None:
        rows = load_snapshot(self.storage).files.select(["path", "dv"]).to_pylist()
        names = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")
        self.live = {row["path"]: row["dv"] and dict(zip(names, row["dv"].values(), strict=True)) for row in rows}

    def advanced(self, kept: DeltaSnapshot) -> DeltaSnapshot | None:
        return self.table.advanced(kept, self.table.version())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path)
    log.new_files(20)
    log.delete("p=1/f3.parquet", 10)
    return log


def test_ordinary_commits_are_followed(log: Log) -> None:
    kept = load_snapshot(log.storage)
    log.new_files(3)
    log.delete("p=1/f3.parquet", 20)
    log.delete("p=1/f21.parquet", 5)
    log.drop("p=1/f4.parquet")
    log.files("p=1/f4.parquet")  # restored
    log.commit({"txn": {"appId": "stream", "version": 4}})
    log.commit({"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}})
    found = log.advanced(kept)
    assert found is not None
    assert found.transactions["stream"].version == 4
    assert check_advanced(log.table, kept).derived.keys() >= {"facts", "prints"}
    # What was advanced can be advanced: until the columns have many pieces, and are copied.
    for at in range(5, 15):
        log.delete(f"p=1/f{at}.parquet", at)
        found = check_advanced(log.table, found)
    assert log.advanced(found) is found


def test_no_snapshot_keeps_all_earlier_ones(log: Log) -> None:
    found: DeltaSnapshot | None = load_snapshot(log.storage)
    for at in range(5, 9):
        log.delete(f"p=1/f{at}.parquet", at)
        assert found is not None
        found = log.advanced(found)
    assert found is not None
    assert SINCE not in found.derived[SINCE].derived
    check_advanced(log.table, found)


def test_a_checkpoint_that_agrees_is_followed(log: Log) -> None:
    kept = load_snapshot(log.storage)
    log.new_files(2)
    log.checkpoint()
    log.new_files(1)
    log.clean_up(log.version - 1)
    found = log.advanced(kept)
    assert found is None  # the commit that was kept last is gone
    kept = load_snapshot(log.storage)
    log.delete("p=1/f7.parquet", 5)
    log.commit({"txn": {"appId": "stream", "version": 4}})
    log.checkpoint()
    log.new_files(1)
    assert log.advanced(kept) is not None
    check_advanced(log.table, kept)


def other_metadata(log: Log) -> None:
    log.commit(own_metadata(delta__targetFileSize="1mb"))


def other_protocol(log: Log) -> None:
    log.commit({"protocol": {**PROTOCOL["protocol"], "writerFeatures": ["deletionVectors", "appendOnly"]}})


def rewritten(log: Log) -> None:
    """Another history from the kept version on."""
    log.replace(log.add("other", None))


def truncated(log: Log) -> None:
    log.truncate()


def gap(log: Log) -> None:
    log.new_files(1)
    log.new_files(1)
    (log.folder / f"{log.version - 1:020d}.json").unlink()


def live_twice(log: Log) -> None:
    log.commit(log.add("p=1/f3.parquet", dv(rows=50, offset=9)))


def without_size(log: Log) -> None:
    body = log.add("new", None)
    del body["add"]["size"]
    log.commit(body)


def another_checkpoint(log: Log) -> None:
    """A checkpoint that says something else than the commits."""
    log.new_files(1)
    log.checkpoint()
    log.commit(log.add("instead", None), log.add("more", None), version=log.version)


def rewritten_checkpoint(log: Log) -> None:
    log.new_files(1)
    (path,) = log.folder.glob("*.checkpoint.parquet")
    os.utime(path, (log.clock, log.clock))


def checkpoint_before_the_kept_version(log: Log) -> None:
    path = log.folder / f"{log.version:020d}.json"
    aside = path.rename(path.with_suffix(".aside"))
    log.checkpoint()
    aside.rename(path)


def wrong_checksum_file(log: Log) -> None:
    log.new_files(1)
    (log.folder / f"{log.version:020d}.crc").write_text(json.dumps({"numFiles": 3, "tableSizeBytes": 1}))


@pytest.mark.parametrize(
    "change",
    [
        other_metadata,
        other_protocol,
        rewritten,
        truncated,
        gap,
        live_twice,
        without_size,
        another_checkpoint,
        checkpoint_before_the_kept_version,
        wrong_checksum_file,
    ],
)
def test_in_doubt_the_whole_log_is_read(log: Log, change: object) -> None:
    kept = load_snapshot(log.storage)
    assert callable(change)
    change(log)
    assert log.advanced(kept) is None


def test_a_checkpoint_with_another_time_is_another_one(log: Log) -> None:
    log.checkpoint()
    log.new_files(1)
    kept = load_snapshot(log.storage)
    assert log.advanced(kept) is kept
    rewritten_checkpoint(log)
    assert log.advanced(kept) is None


def test_a_checkpoint_forgets_transactions(log: Log) -> None:
    """Those whose time is over (delta.setTransactionRetentionDuration): readers of the checkpoint do not know them."""
    log.commit({"txn": {"appId": "old", "version": 1, "lastUpdated": 5}})
    kept = load_snapshot(log.storage)
    assert "old" in kept.transactions
    log.new_files(1)
    held = [log.add(path, descriptor) for path, descriptor in log.live.items()]
    log.raw.parquet(f"{log.version:020d}.checkpoint.parquet", PROTOCOL, own_metadata(), *held)
    found = log.advanced(kept)
    assert found is not None
    assert not found.transactions
    check_advanced(log.table, kept)


def test_a_snapshot_with_warnings_is_not_built_on(log: Log) -> None:
    wrong_checksum_file(log)
    kept = load_snapshot(log.storage)
    log.new_files(1)
    assert kept.warnings
    assert log.advanced(kept) is None


_NAMES = "files delete delete drop restore txn domain checkpoint cleanup rewrite truncate metadata look look look"
OPERATIONS = st.lists(st.tuples(st.sampled_from(_NAMES.split()), st.integers(0, 1000)), max_size=30)


@settings(max_examples=examples(12), deadline=None)
@given(operations=OPERATIONS)
def test_any_history_is_followed_or_read_again(operations: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder))
        dropped: list[str] = []
        kept = None
        for operation, number in operations:
            paths = sorted(log.live)
            path = paths[number % len(paths)] if paths else None
            if operation == "files":
                log.new_files(1 + number % 5)
            elif operation == "delete" and path:
                log.delete(path, 1 + number % 100)
            elif operation == "drop" and path:
                log.drop(path)
                dropped.append(path)
            elif operation == "restore" and dropped:
                log.files(dropped.pop(number % len(dropped)))
            elif operation == "txn":
                log.commit({"txn": {"appId": f"app{number % 3}", "version": number}})
            elif operation == "domain":
                body = {"domain": f"d{number % 2}", "configuration": str(number), "removed": number % 3 == 0}
                log.commit({"domainMetadata": body})
            elif operation == "checkpoint":
                log.checkpoint()
            elif operation == "cleanup" and log.checkpoints():
                log.clean_up(max(log.checkpoints()) + number % 2)
            elif operation == "rewrite" and log.version and not log.checkpoints():
                log.replace(log.add(f"other{number}", None))
            elif operation == "truncate" and log.version and not log.checkpoints():
                log.truncate()
                dropped.clear()
            elif operation == "metadata":
                log.commit(own_metadata(delta__targetFileSize=f"{1 + number}mb"))
            elif operation == "look":
                kept = check_advanced(log.table, kept)
        check_advanced(log.table, kept)
