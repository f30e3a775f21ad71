"""What each commit of a Delta log did to the live files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.raw_log import PROTOCOL, Action, RawLog, add, dv, metadata, remove

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.log.commit_info import ENGINE
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.tables.file_log import FileLog
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.file_logs import check_windows

DAY = 86_400_000


def info(operation: str, **more: object) -> Action:
    return {"commitInfo": {"timestamp": 1, "operation": operation, **more}}


def stamped(at: int) -> Action:
    return info("WRITE", inCommitTimestamp=at)


def file_log(log: RawLog, since: int = 0, version: int | None = None) -> FileLog:
    table = DeltaTable(log.storage)
    return table.file_log(table.snapshot(version), since)


def rows(log: FileLog) -> list[tuple[Any, ...]]:
    """Version, + or -, path, DV, partition, size, rows, deleted rows."""
    columns = [column.to_pylist() for column in log.changes.columns]
    return [
        (log.commits[commit].version, "+" if added else "-", *rest)
        for commit, added, *rest in zip(*columns, strict=True)
    ]


@pytest.fixture
def log(tmp_path: Path) -> RawLog:
    return RawLog(tmp_path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Versions of the commits that are read from here on."""
    get, versions = Storage.get, list[int]()

    def watched(storage: Storage, path: str) -> bytes:
        if path.endswith(".json"):
            versions.append(int(Path(path).stem))
        return get(storage, path)

    monkeypatch.setattr(Storage, "get", watched)
    return versions


def test_what_commits_say(log: RawLog) -> None:
    log.start(add("a"), add("b", rows=None))
    log.commit(1, info("DELETE", engineInfo="dv-maintenance/0.1"), remove("a"), add("a", dv(rows=3)), at=DAY)
    log.commit(2, info("DELETE", engineInfo=ENGINE), add("a", dv(rows=4, offset=9)), remove("a", dv(rows=3), size=100))
    compaction = [
        remove("a", dv(rows=4, offset=9), dataChange=False, stats=json.dumps({"numRecords": 10})),
        add("c", rows=6, dataChange=False),
    ]
    log.commit(3, info("OPTIMIZE", engineInfo="dv-maintenances/1"), *compaction)
    found = file_log(log)
    assert rows(found) == [
        (0, "+", "a", None, "", 100, 10, 0),
        (0, "+", "b", None, "", 100, None, 0),
        (1, "-", "a", None, "", None, None, 0),
        (1, "+", "a", "u0123456789abcdefghij@1", "", 100, 10, 3),
        (2, "-", "a", "u0123456789abcdefghij@1", "", 100, None, 3),
        (2, "+", "a", "u0123456789abcdefghij@9", "", 100, 10, 4),
        (3, "-", "a", "u0123456789abcdefghij@9", "", None, 10, 4),
        (3, "+", "c", None, "", 100, 6, 0),
    ]
    said = [(one.version, one.operation, one.data_changed, one.ours) for one in found.commits]
    assert said == [
        (0, "UNKNOWN", True, False),
        (1, "DELETE", True, True),
        (2, "DELETE", True, True),
        (3, "OPTIMIZE", False, False),
    ]
    assert found.commits[1].timestamp == DAY
    check_windows(DeltaTable(log.storage), range(4))


def test_files_that_are_added_again_were_there(log: RawLog) -> None:
    """With statistics or tags: such a commit is no birth of its files."""
    log.start(add("a", rows=None, dataChange=False), add("b", dv()))
    log.commit(1, add("a", dataChange=False), add("b", dv(), tags={"x": "y"}, dataChange=False))
    log.commit(2, add("c", dataChange=False), remove("a", dataChange=False))
    assert rows(file_log(log))[2:] == [
        (1, "-", "a", None, "", 100, None, 0),
        (1, "-", "b", "u0123456789abcdefghij@1", "", 100, None, 1),
        (1, "+", "a", None, "", 100, 10, 0),
        (1, "+", "b", "u0123456789abcdefghij@1", "", 100, 10, 1),
        (2, "-", "a", None, "", None, None, 0),
        (2, "+", "c", None, "", 100, 10, 0),
    ]
    check_windows(DeltaTable(log.storage), range(3))


def test_only_commits_of_the_time_are_read(log: RawLog, read: list[int]) -> None:
    log.commit(0, PROTOCOL, metadata(), at=1000)
    for version in range(1, 200):
        log.commit(version, add(f"f{version}"), at=1000 * (version + 1))
    table = DeltaTable(log.storage)
    snapshot = table.snapshot()
    read.clear()
    found = table.file_log(snapshot, 100_001)
    assert read == [*range(136, 200), *range(100, 136)]
    assert ([one.version for one in found.commits], found.base) == ([*range(100, 200)], 99)
    assert found.complete
    assert found.changes["path"].to_pylist() == [f"f{version}" for version in range(100, 200)]


@pytest.mark.parametrize(
    ("modified", "more"),
    [
        # Written just after their time: one older commit proves that it is older.
        (lambda version: 1000 * version + 5, [99]),
        # Clocks differ.
        (lambda version: 1000 * version - 1500, [99]),
        (lambda version: 1000 * version + 1500, [99]),
        # Copied, or restored from a backup, today: from the newest on.
        (lambda _: 10**9, [99]),
        # No times at all.
        (lambda _: 0, [99]),
    ],
)
def test_in_commit_timestamps_decide(log: RawLog, read: list[int], modified: Any, more: list[int]) -> None:
    properties = {"delta__enableInCommitTimestamps": "true"}
    feature = {"protocol": {**PROTOCOL["protocol"], "writerFeatures": ["deletionVectors", "inCommitTimestamp"]}}
    log.commit(0, stamped(1), feature, metadata(**properties), at=modified(0))
    for version in range(1, 120):
        log.commit(version, stamped(1000 * version), add(f"f{version}"), at=modified(version))
    table = DeltaTable(log.storage)
    snapshot = table.snapshot()
    read.clear()
    found = table.file_log(snapshot, 100_000)
    assert sorted(set(read) & set(range(100, 120))) == [*range(100, 120)]
    assert len(read) == len(set(read)) <= 64
    assert set(more) <= set(read)
    assert [one.timestamp for one in found.commits] == [1000 * version for version in range(100, 120)]
    assert (found.base, found.complete) == (99, True)
    assert found.changes["path"].to_pylist() == [f"f{version}" for version in range(100, 120)]


def partitioned(name: str, **configuration: str) -> Action:
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {
            "name": name,
            "type": "string",
            "nullable": True,
            "metadata": {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "col-1"},
        },
    ]
    mode = {"delta__columnMapping__mode": "name", **configuration}
    fields[0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-0"}
    return metadata({"type": "struct", "fields": fields}, (name,), **mode)


def test_each_commit_has_the_partitions_of_its_version(log: RawLog) -> None:
    of_x, null = {"partitionValues": {"col-1": "x y"}}, {"partitionValues": {"col-1": None}}
    log.commit(0, PROTOCOL, partitioned("old"), at=1000)
    log.commit(1, add("a", **of_x), add("b", **null), at=2000)
    log.commit(2, remove("b"), remove("c", partitionValues={}), remove("d", **null), at=3000)
    log.commit(3, partitioned("new"), add("e", **of_x), at=4000)
    log.commit(4, remove("a", **of_x), at=5000)
    partitions = [row[2:5:2] for row in rows(file_log(log, 3000))]
    assert partitions == [
        ("b", None),
        ("c", None),
        ("d", "old=__HIVE_DEFAULT_PARTITION__"),
        ("e", "new=x y"),
        ("a", "new=x y"),
    ]
    # Before the rename, that name is in a commit that is older than the log asked for.
    assert rows(file_log(log, 2000, version=2))[0][2:5:2] == ("a", "old=x y")
    # The same with the first commits gone, and their checkpoint.
    for version in (0, 1, 2):
        (log.log / f"{version:020d}.json").unlink()
    log.parquet(f"{3:020d}.checkpoint.parquet", PROTOCOL, partitioned("new"), add("a", **of_x), add("e", **of_x))
    found = file_log(log)
    assert (found.base, found.complete) == (None, False)
    assert [row[2:5:2] for row in rows(found)] == [("e", "new=x y"), ("a", "new=x y")]


def test_commits_whose_partition_names_are_unknown_are_left_out(log: RawLog) -> None:
    of_x = {"partitionValues": {"col-1": "x"}}
    log.commit(7, add("a", **of_x), at=1000)
    log.commit(8, partitioned("new"), at=2000)
    log.commit(9, add("b", **of_x), at=3000)
    log.parquet(f"{9:020d}.checkpoint.parquet", PROTOCOL, partitioned("new"), add("a", **of_x), add("b", **of_x))
    found = file_log(log)
    assert ([one.version for one in found.commits], found.base, found.complete) == ([8, 9], None, False)
    assert [row[2] for row in rows(found)] == ["b"]
    assert file_log(log, 2000).complete


def test_a_log_that_was_cleaned_up(log: RawLog) -> None:
    checkpoint = [PROTOCOL, metadata(), add("a"), add("b")]
    log.commit(5, add("b"), at=5000)
    log.parquet(f"{5:020d}.checkpoint.parquet", *checkpoint)
    log.commit(6, add("c"), at=6000)
    for since, versions, base, complete in [
        (0, [5, 6], None, False),
        (5000, [5, 6], None, False),
        (5001, [6], 5, True),
        (7000, [], 6, True),
    ]:
        found = file_log(log, since)
        assert ([one.version for one in found.commits], found.base, found.complete) == (versions, base, complete)
    check_windows(DeltaTable(log.storage), [5, 6])
    # A checkpoint whose commit is gone is a base, and has no log of its own.
    (log.log / f"{5:020d}.json").unlink()
    found = file_log(log)
    assert ([one.version for one in found.commits], found.base, found.complete) == ([6], 5, False)
    alone = file_log(log, version=5)
    assert (alone.commits, alone.base, alone.complete) == ((), 5, False)


def test_commits_before_a_gap_are_left_out(log: RawLog) -> None:
    log.start(add("a"))
    log.commit(2, add("c"), at=2000)
    log.parquet(f"{2:020d}.checkpoint.parquet", PROTOCOL, metadata(), add("a"), add("b"), add("c"))
    log.commit(3, add("d"), at=3000)
    found = file_log(log)
    assert ([one.version for one in found.commits], found.base, found.complete) == ([2, 3], None, False)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("{", "not JSON"),
        ({"add": {"partitionValues": {}, "size": 1}}, "add has no path"),
        (add("x", size=None), "data file x has no size"),
        (add("x", size="1"), "add.size has the wrong type"),
        (add("x", partitionValues=[]), "add.partitionValues has the wrong type"),
        (remove("x", {"storageType": 5}), "remove is malformed"),
        (remove("f2"), "both adds and removes f2"),
    ],
)
def test_a_damaged_commit_is_named(log: RawLog, action: Any, message: str) -> None:
    log.start()
    for version in range(1, 5):
        log.commit(version, add(f"f{version}"))
    snapshot = DeltaTable(log.storage).snapshot()
    if isinstance(action, str):
        log.put(f"{2:020d}.json", action)
    else:
        log.commit(2, add("f2"), action)
    with pytest.raises(DamagedTableError, match=message) as error:
        DeltaTable(log.storage).file_log(snapshot, 0)
    assert (error.value.table, error.value.version) == (log.storage.uri, 2)


def test_a_damaged_partition_value_is_named(log: RawLog) -> None:
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("id", "p")]
    log.commit(0, PROTOCOL, metadata({"type": "struct", "fields": fields}, ("p",)))
    log.commit(1, add("a", partitionValues={"p": "1"}))
    log.commit(2, add("b", partitionValues={"p": "one"}))
    log.commit(3, remove("b"))
    with pytest.raises(DamagedTableError, match="'one' is not a partition value") as error:
        file_log(log)
    assert error.value.version == 2


def test_restores_overwrites_and_purges(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    builder = DeltaBuilder(place)
    table = DeltaTable(Storage(place))
    builder.create(pa.schema([("id", pa.int64()), ("p", pa.string())]), partition_by=["p"])
    for part in "aab":
        builder.append(pa.table({"id": [1, 2, 3], "p": [part] * 3}))
    builder.delete(lambda batch: pa.compute.equal(batch["id"], 1))
    builder.delete(lambda batch: pa.compute.less(batch["id"], 3))
    purge(table, LocalEngine())
    restore(table, version=4)
    maintain(table, LocalEngine())
    # An overwrite.
    live = [file["path"] for file in table.snapshot().files.to_pylist()]
    builder.append(pa.table({"id": [7], "p": ["c"]}))
    builder.commit([remove(path) for path in live])
    restore(table, version=2)
    builder.checkpoint()
    builder.delete(lambda batch: pa.compute.equal(batch["p"], "a"))
    newest = table.version()
    check_windows(table, range(newest + 1))
    log = table.file_log(table.snapshot(), 0)
    assert [one.operation for one in log.commits if one.ours] == ["REORG", "RESTORE", "OPTIMIZE", "RESTORE"]
