"""Vacuum of real tables: what goes, what stays, what the log says, and what happens when something breaks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.raw_log import HOUR, NOW, SIZE, Action, LogWriter, add, encoded, remove
from support.readers import READERS, with_delta_spark

from dv_maintenance.errors import RefusedError, StorageError, UnsupportedFeatureError, UsageError
from dv_maintenance.storage import RawName, Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint
from dv_maintenance.tables.delta.log.replay import tombstones
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.delta.vacuum.retention import interval_millis
from dv_maintenance.tables.delta.vacuum.run import vacuum
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.reports import VacuumReport
from dv_maintenance.tables.sweep import delete_batch
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WEEK = 168 * HOUR
OLD = NOW - 2 * WEEK


@pytest.fixture
def table(tmp_path: Path) -> LogWriter:
    """A file that is live, one inside the retention, an expired one with its DV, and an orphan."""
    table = LogWriter(tmp_path / "t", at=OLD)
    live, recent, past, dv = table.data(OLD), table.data(OLD), table.data(OLD), table.dv(OLD)
    table.append(add(live), add(recent), add(past, dv), at=OLD)
    table.append(remove(past, dv, at=OLD + HOUR), at=OLD + HOUR)
    table.append(remove(recent, at=NOW - HOUR), at=NOW - HOUR)
    table.data(OLD, "orphans/deep")
    return table


def paths(result: VacuumReport) -> set[str]:
    return {file.path for file in result.expired.files}


def commit_info(table: LogWriter, version: int) -> Any:
    return next(action["commitInfo"] for action in read_commit(table.storage, version) if "commitInfo" in action)


def parameters(info: Any) -> Any:
    """Written as JSON or as strings of JSON: both are met in logs."""
    found = info["operationParameters"]
    return {key: json.loads(value) if isinstance(value, str) else value for key, value in found.items()}


# -- the log -----------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_a_real_one_deletes_and_touches_nothing(table: LogWriter) -> None:
    before = {file: file.stat().st_mtime_ns for file in table.path.rglob("*")}
    dry = vacuum(table.storage, VacuumRequest(dry_run=True, now=NOW))
    assert {file: file.stat().st_mtime_ns for file in table.path.rglob("*")} == before
    assert (dry.dry_run, dry.deleted, dry.version_after) == (True, 0, dry.version_before)
    files = table.files()
    real = vacuum(table.storage, VacuumRequest(now=NOW))
    assert paths(real) == paths(dry) == files - table.files()
    assert real.deleted == len(paths(real)) == 3
    assert sorted(file.kind for file in real.expired.files) == ["data", "data", "dv"]
    assert not (table.path / "orphans").exists(), "folders that became empty go as well"


def test_start_and_end_are_in_the_log(table: LogWriter) -> None:
    base = table.version
    result = vacuum(table.storage, VacuumRequest(now=NOW))
    assert (result.version_before, result.version_after) == (base, base + 2)
    start, end = commit_info(table, base + 1), commit_info(table, base + 2)
    assert (start["operation"], end["operation"]) == ("VACUUM START", "VACUUM END")
    assert parameters(start) == {"retentionCheckEnabled": True, "defaultRetentionMillis": WEEK}
    assert start["operationMetrics"] == {"numFilesToDelete": "3", "sizeOfDataToDelete": str(3 * SIZE)}
    assert end["operationParameters"] == {"status": "COMPLETED"}
    assert end["operationMetrics"] == {"numDeletedFiles": "3", "numVacuumedDirectories": "2"}


def test_nothing_to_delete_leaves_the_log_alone(table: LogWriter) -> None:
    vacuum(table.storage, VacuumRequest(now=NOW))
    again = vacuum(table.storage, VacuumRequest(now=NOW))
    assert (again.deleted, again.version_after) == (0, again.version_before)
    assert again.version_before == open_table(str(table.path)).version()


def test_in_commit_timestamps_are_kept_up(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "t", min_versions=(3, 7), at=OLD)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}
    log = table.path / f"_delta_log/{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    actions[0]["commitInfo"]["inCommitTimestamp"] = OLD
    actions[1]["protocol"] = protocol
    actions[2]["metaData"]["configuration"] = {"delta.enableInCommitTimestamps": "true"}
    log.write_text("\n".join(map(json.dumps, actions)))
    table.data(OLD)
    result = vacuum(table.storage, VacuumRequest(now=NOW))
    assert result.deleted == 1
    first = read_commit(table.storage, result.version_after)[0]
    assert first["commitInfo"]["inCommitTimestamp"] > OLD


# -- retention ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("interval 7 days", 168),
        ("168 hours", 168),
        ("INTERVAL 1 WEEK 2 DAYS", 216),
        ("interval 1 week", 168),
        ("  interval  90  minutes ", 1.5),
        ("interval 3600000 milliseconds", 1),
        ("interval 0 hours", 0),
    ],
)
def test_intervals(text: str, hours: float) -> None:
    assert interval_millis(text) == hours * HOUR


@pytest.mark.parametrize(
    "text",
    ["", "interval", "7", "7d", "7 lightyears", "1 month", "-7 days", "1 day and more", "1day", "1.5 days", "١ day"],
)
def test_other_texts_are_no_intervals(text: str) -> None:
    with pytest.raises(ValueError, match="interval"):
        interval_millis(text)


def test_the_tables_own_retention_counts(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "t", configuration={"delta.deletedFileRetentionDuration": "interval 2 days"})
    orphan = table.data(NOW - 49 * HOUR)
    table.data(NOW - 47 * HOUR)
    result = vacuum(table.storage, VacuumRequest(now=NOW))
    assert (paths(result), result.expired.cutoff, result.expired.retention) == ({orphan}, NOW - 48 * HOUR, 48 * HOUR)


def test_a_retention_that_makes_no_sense_is_refused_before_anything_happens(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "t", configuration={"delta.deletedFileRetentionDuration": "1 month"})
    with pytest.raises(RefusedError, match="1 month"):
        vacuum(table.storage, VacuumRequest(now=NOW))
    with pytest.raises(RefusedError, match="1 month"):
        vacuum(table.storage, VacuumRequest(retention=WEEK, now=NOW))


def test_a_retention_below_the_tables_own_needs_an_explicit_word(table: LogWriter) -> None:
    before = table.files()
    with pytest.raises(RefusedError, match=r"6d is shorter than the table's own 7d") as error:
        vacuum(table.storage, VacuumRequest(retention=144 * HOUR, now=NOW))
    assert error.value.exit_code == 3
    assert error.value.next_step
    with pytest.raises(UsageError, match="negative"):
        vacuum(table.storage, VacuumRequest(retention=-1, allow_short_retention=True, now=NOW))
    assert table.files() == before
    result = vacuum(table.storage, VacuumRequest(retention=0, allow_short_retention=True, now=NOW))
    assert len(table.files()) == 1
    start = parameters(commit_info(table, result.version_before + 1))
    assert (start["retentionCheckEnabled"], start["specifiedRetentionMillis"]) == (False, 0)


def test_a_longer_retention_counts_where_checkpoints_go_by_the_tables_own(table: LogWriter) -> None:
    table.settle(NOW)
    write_checkpoint(table.storage, load_snapshot(table.storage), now=NOW)
    assert tombstones(table.storage, load_snapshot(table.storage)).num_rows == 1, "one was dropped"
    files = table.files()
    for path in files:
        os.utime(table.path / path, (OLD / 1000 - 1, OLD / 1000 - 1))
    vacuum(table.storage, VacuumRequest(retention=2 * WEEK, now=NOW))
    assert {path for path in files - table.files() if not path.startswith("orphans/")} == set()

    (table.path / f"_delta_log/{0:020d}.json").unlink()
    os.utime(table.path / f"_delta_log/{1:020d}.json", (NOW / 1000, NOW / 1000))
    with pytest.raises(RefusedError, match="does not go back"):
        vacuum(table.storage, VacuumRequest(retention=2 * WEEK, now=NOW))
    assert vacuum(table.storage, VacuumRequest(retention=WEEK, now=NOW)).deleted == 2


# -- lite --------------------------------------------------------------------------------------------------------


def test_lite_takes_what_commits_removed_and_never_lists(table: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "walk", lambda *args, **kwargs: pytest.fail("listed the table"))
    files = table.files()
    result = vacuum(table.storage, VacuumRequest(lite=True, now=NOW))
    assert files - table.files() == paths(result)
    assert sorted(file.kind for file in result.expired.files) == ["data", "dv"]
    assert any(path.startswith("orphans/") for path in table.files())


def test_lite_never_deletes_the_data_of_a_replaced_dv(tmp_path: Path) -> None:
    table = LogWriter(tmp_path / "t", at=OLD)
    path, old, new = table.data(OLD, "p=a b"), table.dv(OLD, prefix="x"), table.dv(OLD)
    raw = encoded(path)
    table.append(add(raw, old), at=OLD)
    table.append(remove(f"./{raw}", at=OLD), remove(raw, old, at=OLD), add(raw, new), at=OLD)
    assert paths(vacuum(table.storage, VacuumRequest(lite=True, now=NOW))) == {table.dv_path(old)}
    assert table.files() == {path, table.dv_path(new)}


def test_lite_goes_on_where_the_last_vacuum_stopped(table: LogWriter) -> None:
    vacuum(table.storage, VacuumRequest(now=NOW))
    log = table.path / "_delta_log"
    assert json.loads((log / "_last_vacuum_info").read_text()) == {"latestCommitVersionOutsideOfRetentionWindow": 2}
    table.settle(NOW)
    assert not vacuum(table.storage, VacuumRequest(lite=True, now=NOW)).expired.files
    result = vacuum(table.storage, VacuumRequest(lite=True, now=NOW + WEEK))
    assert result.deleted == 1
    assert len(table.files()) == 1


def test_lite_refuses_when_commits_that_nobody_covered_are_gone(table: LogWriter) -> None:
    write_checkpoint(table.storage, load_snapshot(table.storage), now=NOW)
    (table.path / f"_delta_log/{0:020d}.json").unlink()
    with pytest.raises(RefusedError, match="no longer in the log") as error:
        vacuum(table.storage, VacuumRequest(lite=True, now=NOW))
    assert "full vacuum" in (error.value.next_step or "")
    vacuum(table.storage, VacuumRequest(now=NOW))
    table.settle(NOW)
    assert vacuum(table.storage, VacuumRequest(lite=True, now=NOW + WEEK)).deleted == 1, "a full vacuum clears the way"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"latestCommitVersionOutsideOfRetentionWindow":null}', "\x00"])
def test_a_damaged_watermark_counts_as_none(table: LogWriter, content: str) -> None:
    (table.path / "_delta_log/_last_vacuum_info").write_text(content)
    assert vacuum(table.storage, VacuumRequest(lite=True, now=NOW)).deleted == 2


@pytest.mark.parametrize(
    "raw", ["../precious.parquet", "%2E%2E/precious.parquet", "{outside}", "file:{outside}", "a/../../precious.parquet"]
)
@pytest.mark.parametrize("lite", [False, True])
def test_no_log_makes_a_vacuum_delete_outside_the_table(table: LogWriter, raw: str, lite: bool) -> None:
    outside = table.path.parent / "precious.parquet"
    outside.write_text("x")
    os.utime(outside, (OLD / 1000, OLD / 1000))
    raw = raw.replace("{outside}", str(outside))
    table.append(add(raw), at=OLD)
    table.append(remove(raw, at=OLD), at=OLD)
    vacuum(table.storage, VacuumRequest(lite=lite, retention=0, allow_short_retention=True, now=NOW))
    assert outside.exists()


@pytest.mark.parametrize("lite", [False, True])
def test_links_are_left_alone(table: LogWriter, lite: bool) -> None:
    outside = table.path.parent / "elsewhere"
    outside.mkdir()
    target = outside / f"part-{uuid4()}.parquet"
    target.write_text("x")
    os.utime(target, (OLD / 1000, OLD / 1000))
    links = {table.path / "link.parquet": target, table.path / f"folder-{uuid4()}": outside}
    for link, end in links.items():
        link.symlink_to(end)
        os.utime(link, (OLD / 1000, OLD / 1000), follow_symlinks=False)
    table.append(remove("link.parquet", at=OLD), at=OLD)
    vacuum(table.storage, VacuumRequest(lite=lite, retention=0, allow_short_retention=True, now=NOW))
    assert target.exists()
    assert all(link.is_symlink() for link in links)


@pytest.mark.parametrize("lite", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_what_lies_beyond_a_link_is_left_alone(table: LogWriter, lite: bool, inside: bool) -> None:
    """Not for its own sake: ``link/x`` may be the live file of another path, or of another table."""
    place = table.path / "live" if inside else table.path.parent / "elsewhere"
    place.mkdir()
    (table.path / "link").symlink_to(place)
    name = table.data(OLD, "link")
    others = table.data(OLD)
    table.append(add(name), add(others), at=OLD)
    if inside:
        table.append(add(f"live/{name.rpartition('/')[2]}"), at=OLD)
    table.append(remove(name, at=OLD), remove(others, at=OLD), at=OLD)
    result = vacuum(table.storage, VacuumRequest(lite=lite, retention=0, allow_short_retention=True, now=NOW))
    gone = {file.path for file in result.expired.files}
    assert (others in gone, name in gone, (table.path / others).exists()) == (True, False, False)
    assert (table.path / name).exists()
    assert (table.path / "link").is_symlink()


# -- what breaks -------------------------------------------------------------------------------------------------


def test_what_killed_writers_left_staged_in_the_log_goes_with_the_retention(table: LogWriter) -> None:
    old = {f"_delta_log/{1:020}.json#1", f"_delta_log/{2:020}.checkpoint.parquet#12", "_delta_log/_last_checkpoint#3"}
    stay = {
        f"_delta_log/{3:020}.json#1": NOW - HOUR,
        "_delta_log/notes#1": OLD,
        f"_delta_log/{4:020}.json.bak": OLD,
        f"_delta_log/_sidecars/{uuid4()}.parquet": OLD,
        f"inner/_delta_log/{1:020}.json#1": OLD,
        f"_other/{1:020}.json#1": OLD,
    }
    for path, at in {**dict.fromkeys(old, OLD), **stay}.items():
        file = Path(table.storage.local(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half a")
        os.utime(file, (at / 1000, at / 1000))
    result = vacuum(table.storage, VacuumRequest(now=NOW))
    assert {file.path: file.kind for file in result.expired.files if file.path in old} == dict.fromkeys(old, "other")
    assert not any(Path(table.storage.local(path)).exists() for path in old)
    assert all(Path(table.storage.local(path)).exists() for path in stay)


def test_a_file_that_came_back_meanwhile_is_not_deleted(table: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process restores an expired file between the plan and the deletion."""
    (past,) = [
        path
        for path in paths(vacuum(table.storage, VacuumRequest(dry_run=True, lite=True, now=NOW)))
        if path.endswith("parquet")
    ]

    def restore_then_commit(storage: Storage, operation: str, *args: Any) -> int:
        version = commit_info_only(storage, operation, *args)
        if operation == "VACUUM START":
            table.version = version
            table.append(add(past), at=NOW, operation="RESTORE")
        return version

    monkeypatch.setattr("dv_maintenance.tables.delta.vacuum.run.commit_info_only", restore_then_commit)
    result = vacuum(table.storage, VacuumRequest(now=NOW))
    assert past in table.files()
    assert past not in paths(result)
    assert result.deleted == 2


def prolong(table: LogWriter) -> None:
    metadata = next(action for action in read_commit(table.storage, 0) if "metaData" in action)
    metadata["metaData"]["configuration"]["delta.deletedFileRetentionDuration"] = "interval 3 weeks"
    table.version = open_table(str(table.path)).version()
    table.append(metadata, at=NOW)


def test_a_retention_that_was_prolonged_meanwhile_counts(table: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def prolonged(storage: Storage, operation: str, *args: Any) -> int:
        version = commit_info_only(storage, operation, *args)
        if operation == "VACUUM START":
            prolong(table)
        return version

    monkeypatch.setattr("dv_maintenance.tables.delta.vacuum.run.commit_info_only", prolonged)
    files = table.files()
    assert vacuum(table.storage, VacuumRequest(now=NOW)).deleted == 0
    assert table.files() == files


def test_a_prolonged_retention_counts_for_every_batch_after_it(
    table: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted(storage: Storage, paths: list[str]) -> tuple[int, StorageError | None]:
        if len(gone) == 0:
            prolong(table)
        gone.extend(paths)
        return delete_batch(storage, paths)

    gone: list[str] = []
    monkeypatch.setattr("dv_maintenance.tables.vacuum.BATCH", 1)
    monkeypatch.setattr("dv_maintenance.tables.vacuum.delete_batch", deleted)
    result = vacuum(table.storage, VacuumRequest(now=NOW))
    assert (result.deleted, gone[1:]) == (1, [])
    assert sum(path.endswith((".parquet", ".bin")) for path in table.files()) == 4


def test_a_file_that_cannot_be_deleted_stops_no_other_and_fails_the_run(
    table: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = next(
        path for path in paths(vacuum(table.storage, VacuumRequest(dry_run=True, now=NOW))) if path.endswith(".bin")
    )
    monkeypatch.setattr(os, "unlink", refusing(os.unlink, stubborn))
    with pytest.raises(StorageError) as error:
        vacuum(table.storage, VacuumRequest(now=NOW))
    assert error.value.done == "2 of 3 expired files deleted"
    assert not error.value.to_json()["retryable"], "EPERM does not pass"
    end = commit_info(table, open_table(str(table.path)).version())
    assert end["operationParameters"] == {"status": "FAILED"}
    assert end["operationMetrics"]["numDeletedFiles"] == "2"
    assert not (table.path / "_delta_log/_last_vacuum_info").exists(), "a failed vacuum covers nothing"

    monkeypatch.undo()
    assert vacuum(table.storage, VacuumRequest(now=NOW)).deleted == 1, "the next run goes on with what is left"


def refusing(unlink: Callable[[str], None], name: str) -> Callable[[str], None]:
    def call(path: str) -> None:
        if path.endswith(name):
            raise PermissionError(1, "Operation not permitted")
        unlink(path)

    return call


def test_when_nothing_can_be_deleted_not_everything_is_tried(table: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        table.data(OLD)
    monkeypatch.setattr("dv_maintenance.tables.vacuum.BATCH", 4)
    tried: set[str] = set()

    def refuse(path: str) -> None:
        tried.add(path)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StorageError) as error:
        vacuum(table.storage, VacuumRequest(now=NOW))
    assert len(tried) == 4
    assert error.value.done == "0 of 23 expired files deleted"

    monkeypatch.undo()
    monkeypatch.setattr("dv_maintenance.tables.vacuum.BATCH", 4)
    first = vacuum(table.storage, VacuumRequest(dry_run=True, now=NOW)).expired.files[0].path
    monkeypatch.setattr(os, "unlink", refusing(os.unlink, first))
    with pytest.raises(StorageError, match="EPERM") as error:
        vacuum(table.storage, VacuumRequest(now=NOW))
    assert error.value.done == "22 of 23 expired files deleted"


def test_object_storage(table: LogWriter) -> None:
    """Listed with sizes and times, no folders, deleted in parallel."""
    table.data(OLD, "_hidden")
    table.data(OLD, "inner")
    table.touch("inner/_delta_log/00000000000000000000.json", OLD)
    stored = Storage("memory:///t")
    for file in filter(Path.is_file, table.path.rglob("*")):
        stored.put(file.relative_to(table.path).as_posix(), file.read_bytes())
    now = max(info.modified for info in stored.walk()) + 1
    files = {info.path for info in stored.walk()}

    def call(**more: Any) -> VacuumReport:
        return vacuum(stored, VacuumRequest(retention=0, allow_short_retention=True, **more))

    lite = call(lite=True, now=now)
    assert sorted(file.kind for file in lite.expired.files) == ["data", "data", "dv"]
    assert {file.size for file in lite.expired.files} == {SIZE}
    assert [path.split("/")[0] for path in paths(call(now=now))] == ["orphans"]
    left = {info.path for info in stored.walk() if not info.path.startswith("_delta_log/")}
    assert len(files & left) == 4, "the live file, and what is hidden or of another table"


def test_a_table_of_unknown_features_is_not_touched(table: LogWriter) -> None:
    features = ["deletionVectors", "fromTheFuture"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": features,
    }
    table.append({"protocol": protocol}, at=NOW)
    before = table.files()
    with pytest.raises(UnsupportedFeatureError, match="fromTheFuture"):
        vacuum(table.storage, VacuumRequest(now=NOW))
    assert (table.files(), open_table(str(table.path)).version()) == (before, table.version)


def test_partition_folders_are_known_by_their_physical_names(tmp_path: Path) -> None:
    """A renamed column keeps its folders' name, which may start with an underscore."""
    fields = [
        {
            "name": name,
            "type": "string",
            "nullable": True,
            "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical},
        }
        for number, (name, physical) in enumerate([("id", "id"), ("day", "_day")], 1)
    ]
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    table = LogWriter(tmp_path / "t", schema=fields, partitions=("day",), configuration=configuration)
    orphan, hidden = table.data(OLD, "_day=1"), table.data(OLD, "_other=1")
    assert paths(vacuum(table.storage, VacuumRequest(now=NOW))) == {orphan}
    assert table.files() == {hidden}


# -- histories against a model -----------------------------------------------------------------------------------


class History:
    """A table and, kept beside it in the plainest way, which files each of its versions needs."""

    def __init__(self, log: LogWriter) -> None:
        self.log = log
        self.at = log.started
        self.live: dict[str, Action | None] = {}  # raw path -> DV
        self.gone: list[tuple[str, Action | None]] = []
        self.versions: list[tuple[int, set[str]]] = [(self.at, set())]  # time, files needed
        self.named: set[str] = set()  # files that commits removed, and change data

    def commit(self, *actions: Action) -> None:
        self.log.append(*actions, at=self.at)
        self.versions.append((self.at, {path for raw, dv in self.live.items() for path in self.files_of(raw, dv)}))

    def add(self, raw: str, dv: Action | None = None) -> Action:
        self.live[raw] = dv
        return add(raw, dv, partitionValues={"p": "x"})

    def remove(self, raw: str) -> Action:
        dv = self.live.pop(raw)
        self.gone.append((raw, dv))
        self.named |= self.files_of(raw, dv)
        return remove(raw, dv, at=self.at)

    def files_of(self, raw: str, dv: Action | None) -> set[str]:
        path = self.log.dv_path(dv) if dv else None
        return {os.path.normpath(self.log.storage.path_of(RawName(raw)))} | ({path} if path else set())

    def needed_since(self, cutoff: int) -> set[str]:
        """Files of every version that was the newest one at some moment from the cutoff on."""
        ends = [at for at, _ in self.versions[1:]] + [cutoff]
        return {path for (_, files), end in zip(self.versions, ends, strict=True) if end >= cutoff for path in files}

    def vacuum(self, retention: int, lite: bool) -> None:
        before = {path: os.stat(self.log.path / path).st_mtime_ns // 1_000_000 for path in self.log.files()}
        asked = VacuumRequest(retention=retention, allow_short_retention=True, lite=lite, now=self.at)
        dry, real = vacuum(self.log.storage, replace(asked, dry_run=True)), vacuum(self.log.storage, asked)
        assert dry.expired.files == real.expired.files
        self.log.settle(self.at)
        self.versions += [(self.at, self.versions[-1][1])] * (real.version_after - real.version_before)

        cutoff = self.at - retention
        needed = self.needed_since(cutoff)
        goes = {path for path, modified in before.items() if modified < cutoff and path not in needed}
        if lite:
            goes &= self.named
        assert before.keys() - self.log.files() == goes


@settings(max_examples=examples(15))
@given(data=st.data())
def test_no_history_loses_a_file_that_a_version_inside_the_retention_needs(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """... and everything else goes."""
    log = LogWriter(tmp_path_factory.mktemp("h") / "t", partitions=("p",))
    history = History(log)

    def some(items: list[Any]) -> list[Any]:
        return data.draw(st.lists(st.sampled_from(items), min_size=1, unique_by=str)) if items else []

    def append() -> None:
        spell = data.draw(st.sampled_from([encoded, log.storage.uri_of, lambda path: f"./{encoded(path)}"]))
        folders = data.draw(st.lists(st.sampled_from(["", "p=x", "p=a b%c", "p=é"]), min_size=1, max_size=3))
        history.commit(*[history.add(spell(log.data(history.at, folder))) for folder in folders])

    def delete() -> None:
        """New DVs for some files, packed into one DV file or each in its own."""
        kind, prefix = data.draw(st.sampled_from([("u", ""), ("u", "ab"), ("p", ""), ("p", "ab"), ("i", "")]))
        shared = uuid4() if data.draw(st.booleans()) else None
        actions = []
        for number, raw in enumerate(some(list(history.live))):
            dv = log.dv(history.at, kind, prefix, shared, offset=1 + 40 * number)
            actions += [history.remove(raw), history.add(raw, dv)]
        history.commit(*actions)

    def purge() -> None:
        removed = [history.remove(raw) for raw in some(list(history.live))]
        history.commit(*removed, history.add(log.data(history.at)))

    def restore() -> None:
        there = log.files()
        old = {raw: dv for raw, dv in history.gone if raw not in history.live and history.files_of(raw, dv) <= there}
        history.commit(*[history.add(raw, old[raw]) for raw in some(list(old))])

    def change() -> None:
        path = log.data(history.at, "_change_data")
        history.named.add(path)
        history.commit({"cdc": {"path": path, "partitionValues": {}, "size": 1, "dataChange": False}})

    def crash() -> None:
        """A writer that never came to commit."""
        log.data(history.at)
        log.dv(history.at)

    def clean() -> None:
        history.vacuum(data.draw(st.sampled_from([1, 48, 168, 300])) * HOUR, lite=data.draw(st.booleans()))

    append()
    for step in data.draw(
        st.lists(st.sampled_from([append, delete, purge, restore, change, crash, clean]), min_size=4, max_size=12)
    ):
        history.at += data.draw(st.sampled_from([1, HOUR, 47 * HOUR, 100 * HOUR]))
        step()
    history.at += data.draw(st.sampled_from([HOUR, 100 * HOUR]))
    history.vacuum(24 * HOUR, lite=True)
    history.vacuum(24 * HOUR, lite=False)


# -- other readers and writers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["basic-dv-no-checkpoint", "made-prefix-dv", "made-inline-dv", "cdf-table-with-cdc-and-dvs"]
)
@pytest.mark.parametrize("lite", [False, True])
def test_no_reader_misses_anything(golden_copy: Callable[[str], Path], name: str, lite: bool) -> None:
    """Where other vacuums delete live DV files, or none at all."""
    path = golden_copy(f"delta/{name}")
    reader = READERS["deltalake"]
    before = reader(path).num_rows
    result = open_table(str(path)).vacuum(
        VacuumRequest(retention=0, allow_short_retention=True, lite=lite, now=NOW + 10**12)
    )
    assert reader(path).num_rows == before
    if name == "cdf-table-with-cdc-and-dvs":
        assert {file.kind for file in result.expired.files} == {"data", "dv", "change"}


@pytest.mark.deep
def test_delta_spark_reads_on_travels_and_vacuums_on(delta_spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    sql = delta_spark.sql
    builder = DeltaBuilder(str(path)).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(60)}))
    for modulo in (2, 3, 5):
        builder.delete(lambda batch, by=modulo: pa.array([n % by == 0 for n in batch["id"].to_pylist()]))

    def ids(version: int | None = None) -> set[int]:
        return set(with_delta_spark(delta_spark, path, version)["id"].to_pylist())

    table = open_table(str(path))
    times = {entry.version: entry.timestamp for entry in table.history()}
    now = times[4] + 10_000
    # Version 3 is the newest one at the cutoff: it and later versions stay readable.
    table.vacuum(VacuumRequest(retention=now - times[3], allow_short_retention=True, now=now))
    assert ids(3) == {n for n in range(60) if n % 2 and n % 3}

    result = table.vacuum(VacuumRequest(retention=0, allow_short_retention=True, now=now))
    assert {file.kind for file in result.expired.files} == {"dv"}
    assert len([file for file in table.storage.walk() if file.path.endswith(".bin")]) == 1
    newest = sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()
    assert newest is not None
    assert (newest["version"], newest["operation"]) == (result.version_after, "VACUUM END")
    assert int(newest["operationMetrics"]["numDeletedFiles"]) == result.deleted > 0

    # Its own lite vacuum starts from our watermark, which it must be able to read.
    delta_spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        sql(f"VACUUM delta.`{path}` LITE RETAIN 0 HOURS")
    finally:
        delta_spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert ids() == {n for n in range(60) if n % 2 and n % 3 and n % 5}
