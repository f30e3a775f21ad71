"""History and changes, read from commits alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.raw_log import PROTOCOL, Action, RawLog, add, dv, metadata, remove

from dv_maintenance.errors import DamagedTableError, TableNotFoundError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.history import changes_since, history, oldest_dv
from dv_maintenance.tables.model import Change, OldestDv


def info(operation: str, **more: object) -> Action:
    return {"commitInfo": {"timestamp": 1, "operation": operation, **more}}


@pytest.fixture
def log(tmp_path: Path) -> RawLog:
    log = RawLog(tmp_path)
    log.commit(0, info("CREATE TABLE"), PROTOCOL, metadata(), at=1000)
    log.commit(1, info("WRITE"), add("a"), add("b"), at=2000)
    log.commit(
        2, info("DELETE"), remove("a"), add("a", dv(rows=3)), add("b", dv(rows=2, offset=9)), remove("b"), at=3000
    )
    log.commit(3, info("DELETE"), remove("a", dv(rows=3)), add("a", dv("x" * 20, rows=5)), at=4000)
    log.commit(
        4,
        info(
            "OPTIMIZE",
            operationParameters={"predicate": "[]"},
            operationMetrics={"numAddedFiles": "1"},
            engineInfo="an engine",
            inCommitTimestamp=4444,
        ),
        remove("a", dv("x" * 20, rows=5), dataChange=False),
        add("c", dataChange=False),
        at=5000,
    )
    log.commit(5, info("VACUUM END"), at=6000)
    log.commit(6, info("SET TBLPROPERTIES"), metadata(delta__appendOnly="true"), at=7000)
    return log


def test_newest_first_with_dv_numbers(log: RawLog) -> None:
    entries = history(log.storage)
    assert [entry.version for entry in entries] == [6, 5, 4, 3, 2, 1, 0]
    counted = [
        (one.files_added, one.files_removed, one.dvs_added, one.dvs_removed, one.rows_deleted_by_dvs) for one in entries
    ]
    assert counted == [(0,) * 5, (0,) * 5, (1, 1, 0, 1, 0), (1, 1, 1, 1, 2), (2, 2, 2, 0, 5), (2, 0, 0, 0, 0), (0,) * 5]
    assert [one.data_changed for one in entries] == [False, False, False, True, True, True, True]
    optimize = entries[2]
    assert (optimize.operation, optimize.engine, optimize.timestamp) == ("OPTIMIZE", "an engine", 4444)
    assert (optimize.parameters, optimize.metrics) == ({"predicate": "[]"}, {"numAddedFiles": "1"})
    assert (entries[0].engine, entries[0].parameters, entries[0].timestamp) == (None, {}, 7000)


def test_limit(log: RawLog) -> None:
    assert [entry.version for entry in history(log.storage, 2)] == [6, 5]
    assert history(log.storage, 0) == []
    with pytest.raises(UsageError):
        history(log.storage, -1)


def test_changes_after_a_version(log: RawLog) -> None:
    changes = changes_since(log.storage, 3)
    assert (changes.since, changes.version, changes.data_version) == (3, 6, None)
    assert changes.commits == (
        Change(4, 4444, "OPTIMIZE", False),
        Change(5, 6000, "VACUUM END", False),
        Change(6, 7000, "SET TBLPROPERTIES", False),
    )
    assert changes_since(log.storage, 1).data_version == 3
    assert changes_since(log.storage, 6).commits == ()
    assert changes_since(log.storage, 6).data_version is None


def test_changes_read_only_new_commits(log: RawLog) -> None:
    for version in range(4):
        log.put(f"{version:020d}.json", "damaged")
    assert len(changes_since(log.storage, 3).commits) == 3
    with pytest.raises(DamagedTableError, match=r"00000000000000000003\.json"):
        changes_since(log.storage, 2)


def test_commits_that_were_cleaned_up_count_as_changes(log: RawLog) -> None:
    log.parquet("00000000000000000004.checkpoint.parquet", PROTOCOL, metadata())
    for version in range(5):
        (log.log / f"{version:020d}.json").unlink()
    changes = changes_since(log.storage, 1)
    assert [change.version for change in changes.commits] == [5, 6]
    assert changes.data_version == 4


@pytest.mark.parametrize(
    ("actions", "changed"),
    [
        ([info("ADD COLUMNS"), metadata()], True),
        ([metadata()], True),
        ([info("UPGRADE PROTOCOL"), PROTOCOL], False),
        ([PROTOCOL], False),
        ([info("WRITE"), {"add": {"path": "x"}}], True),
        ([{"txn": {"appId": "a", "version": 1}}], False),
        ([info("SET TBLPROPERTIES"), metadata(), add("x")], True),
    ],
)
def test_what_counts_as_a_change_of_data(log: RawLog, actions: list[Action], changed: bool) -> None:
    log.commit(7, *actions)
    assert changes_since(log.storage, 6).commits[0].data_changed is changed


def test_a_version_the_table_does_not_have(log: RawLog) -> None:
    with pytest.raises(UsageError, match="newest version is 6"):
        changes_since(log.storage, 9)


def test_odd_commit_infos(log: RawLog) -> None:
    log.commit(
        7,
        {"commitInfo": {"operation": 5, "operationParameters": [], "engineInfo": {}, "inCommitTimestamp": "x"}},
        at=8000,
    )
    log.commit(8, {"commitInfo": "text"}, {"add": []}, at=9000)
    first, second = history(log.storage, 2)
    assert (first.operation, second.operation, second.engine, second.parameters) == ("UNKNOWN", "UNKNOWN", None, {})
    assert (first.timestamp, second.timestamp, first.files_added) == (9000, 8000, 1)


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        history(Storage(str(tmp_path)))


def test_golden_history(golden: Path) -> None:
    entries = history(Storage(str(golden / "delta" / "table-with-dv-large")))
    assert [entry.version for entry in entries] == [4, 3, 2, 1, 0]
    assert sum(entry.rows_deleted_by_dvs for entry in entries) >= 11


# -- the oldest DV ------------------------------------------------------------------------------------------------

FIRST, SECOND = dv("x" * 20, rows=1), dv("y" * 20, rows=2)
DELETE, DELETE_MORE = (remove("a"), add("a", FIRST)), (remove("a", FIRST), add("a", SECOND))


@pytest.mark.parametrize(
    ("commits", "found"),
    [
        ([[add("a")], DELETE, DELETE_MORE], 2),
        ([[add("a")], DELETE, [add("b")], [remove("b"), add("b", dv("z" * 20))], DELETE_MORE], 2),
        # Purged, then written and deleted from again: nothing of the old file counts.
        ([[add("a")], DELETE, [remove("a", FIRST), add("b")], [remove("b"), add("b", FIRST)]], 4),
        # New statistics: the file is added again, with its DV, and nothing is removed.
        ([[add("a")], DELETE, [add("b")], [add("a", FIRST)]], 2),
        # A restore to version 2, after the file was removed: its rows were deleted at version 2.
        ([[add("a")], DELETE, [remove("a", FIRST)], [add("a", FIRST)]], 2),
        # A restore to version 1, by a writer that names no removal, and another delete.
        ([[add("a")], DELETE, [add("a")], DELETE], 4),
        ([[add("a")], DELETE, [remove("a", FIRST), add("a")], [add("a", SECOND)]], 4),
        # A file that arrived with its DV: a clone, or one that was converted.
        ([[add("b")], [add("a", FIRST)], DELETE_MORE], 2),
        # A DV whose file is gone by now.
        ([[add("a"), add("b")], [remove("b"), add("b", FIRST)], [remove("b", FIRST)], DELETE], 4),
    ],
)
def test_the_oldest_dv(tmp_path: Path, commits: list[list[Action]], found: int) -> None:
    log = RawLog(tmp_path)
    log.commit(0, PROTOCOL, metadata(), at=1000)
    for version, actions in enumerate(commits, 1):
        log.commit(version, *actions, at=1000 * version)
    snapshot = load_snapshot(log.storage)
    assert oldest_dv(log.storage, snapshot, 100) == OldestDv(1000 * found, exact=True)
    if found < len(commits):
        short = oldest_dv(log.storage, snapshot, len(commits) - found)
        assert short is not None
        assert short.timestamp > 1000 * found
        assert not short.exact
