"""History: what each snapshot did to files, deletion vectors and rows; golden tables and written ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.paimon_writer import NEW, OLD, DataFile, PaimonWriter

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import HistoryEntry, OldestDv
from dv_maintenance.tables.table import Table

PK = {"id": "BIGINT NOT NULL", "v": "STRING"}


def entries_of(table: Table) -> list[tuple[Any, ...]]:
    """Oldest first: kind, files added and removed, DVs added and removed, rows that these deleted, if rows changed."""
    return [_short(entry) for entry in table.history()[::-1]]


def _short(entry: HistoryEntry) -> tuple[Any, ...]:
    files, vectors = (entry.files_added, entry.files_removed), (entry.dvs_added, entry.dvs_removed)
    return (entry.operation, *files, *vectors, entry.rows_deleted_by_dvs, entry.data_changed)


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": first + index, "v": "x"} for index in range(count)]


# -- golden -------------------------------------------------------------------------------------------------------


def test_append_table_of_an_old_writer(golden: Path) -> None:
    table = open_table(str(golden / "paimon" / "append_dv_compacted" / "table"))
    # Writers before 1.0 call a DELETE that only writes deletion vectors a COMPACT.
    assert entries_of(table) == [
        *[("APPEND", 1, 0, 0, 0, 0, True)] * 6,
        ("COMPACT", 0, 0, 6, 0, 150, True),
        ("COMPACT", 1, 6, 0, 6, 0, False),
    ]
    changes = table.changes_since(0)
    assert (changes.version, changes.data_version) == (8, 7)
    assert [change.data_changed for change in changes.commits] == [True] * 7 + [False]
    assert table.changes_since(7).data_version is None
    assert table.oldest_dv(table.snapshot()) is None


def test_primary_key_table(golden: Path) -> None:
    # Rows are seen when compaction takes them off level 0, and not before.
    assert entries_of(open_table(str(golden / "paimon" / "pk_dv_compacted" / "table"))) == [
        ("APPEND", 1, 0, 0, 0, 0, False),
        ("COMPACT", 1, 1, 0, 0, 0, True),
        ("APPEND", 1, 0, 0, 0, 0, False),
        ("COMPACT", 1, 1, 1, 0, 27, True),
        ("COMPACT", 1, 2, 0, 1, 0, False),
    ]


def test_newer_writer(golden: Path) -> None:
    table = open_table(str(golden / "paimon" / "append_dv_dangling_entry" / "table"))
    assert entries_of(table)[3:] == [
        ("OVERWRITE", 0, 0, 2, 0, 6, True),
        ("OVERWRITE", 0, 0, 1, 0, 1, True),
        ("OVERWRITE", 1, 3, 0, 2, 0, True),
    ]
    (newest,) = table.history(1)
    assert newest.engine == "python-2.1.0-3a5ffe7870697e2c2605e63413fb5ac5800aae7e"
    assert newest.metrics == {"total_records": 24, "delta_records": -6}
    assert newest.parameters["commit_identifier"] == 2**63 - 1


def test_rows_deleted_add_up(golden: Path) -> None:
    for name, deleted in [("append_dv", 155), ("append_dv_part", 144), ("append_dv_v2", 84), ("pk_dv_part", 42)]:
        table = open_table(str(golden / "paimon" / name / "table"))
        assert sum(entry.rows_deleted_by_dvs for entry in table.history()) == deleted


def test_a_history_that_has_expired(golden: Path) -> None:
    table = open_table(str(golden / "paimon" / "append_dv_expired" / "table"))
    (only,) = table.history()
    # What a commit without files did is no longer known, so it counts as a change.
    assert (only.version, only.dvs_added, only.data_changed) == (6, 0, True)
    changes = table.changes_since(0)
    assert (changes.data_version, [change.version for change in changes.commits]) == (6, [6])
    assert changes == table.changes_since(-1).__class__(0, 6, 6, changes.commits)
    oldest = table.oldest_dv(table.snapshot())
    assert oldest == OldestDv(only.timestamp, exact=False)


# -- written ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[OLD, NEW])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> PaimonWriter:
    return PaimonWriter(tmp_path / "t", writer=request.param)


def test_a_rewritten_index_file_does_not_change_its_other_dvs(written: PaimonWriter) -> None:
    first, second = written.append(rows_of(0, 10)), written.append(rows_of(10, 10))
    written.delete({first: [1]})
    written.delete({second: [2, 3]})
    written.delete({first: [1, 4]})
    written.delete({})
    assert entries_of(open_table(str(written.path)))[2:] == [
        ("OVERWRITE", 0, 0, 1, 0, 1, True),
        ("OVERWRITE", 0, 0, 1, 0, 2, True),
        ("OVERWRITE", 0, 0, 1, 1, 1, True),
        ("OVERWRITE", 0, 0, 0, 0, 0, False),
    ]


def test_a_compaction_that_leaves_other_dvs_alone_changes_nothing(written: PaimonWriter) -> None:
    first, second = written.append(rows_of(0, 10)), written.append(rows_of(10, 10))
    written.delete({first: [1], second: [2]})
    output = written.data_file(rows_of(0, 9))
    written.dvs.pop(first.key)
    written.write_index()
    written.commit("COMPACT", add=[output], delete=[first])
    # And one that gives a file more deletes is none.
    written.delete({second: [3]}, "COMPACT")
    assert entries_of(open_table(str(written.path)))[3:] == [
        ("COMPACT", 1, 1, 0, 1, 0, False),
        ("COMPACT", 0, 0, 1, 1, 1, True),
    ]


def test_when_the_oldest_dv_came(written: PaimonWriter) -> None:
    first, second = written.append(rows_of(0, 10)), written.append(rows_of(10, 10))
    table = open_table(str(written.path))
    assert table.oldest_dv(table.snapshot()) is None
    written.delete({first: [1]})
    since = written.now
    written.append(rows_of(20, 5))
    written.append(rows_of(30, 5))
    snapshot = table.snapshot()
    assert table.oldest_dv(snapshot) == OldestDv(since, exact=True)
    assert table.oldest_dv(snapshot, limit=1) == OldestDv(since + 1000, exact=False)
    gone = [written.path / "snapshot" / f"snapshot-{version}" for version in (4, 2)]
    for path, exact in zip(gone, (True, False), strict=True):
        path.unlink()
        assert table.oldest_dv(snapshot) == OldestDv(since, exact=exact)
    # The delete writes the first file's deletion vector into another index file: it is as old as it was.
    written.delete({second: [1]})
    assert table.oldest_dv(table.snapshot()) == OldestDv(since, exact=False)
    written.commit("COMPACT", delete=[first])
    assert table.oldest_dv(table.snapshot()) == OldestDv(written.now - 1000, exact=True)


def test_kinds(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t")
    file = written.append(rows_of(0, 5))
    written.commit("ANALYZE", statistics="stat-1")
    written.commit("OVERWRITE", delete=[file])
    written.commit("FROM_THE_FUTURE", add=[file])
    assert [entry[-1] for entry in entries_of(open_table(str(written.path)))] == [True, False, True, True]


def test_statistics_change_nothing_even_without_a_predecessor(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t")
    written.append(rows_of(0, 5))
    written.commit("ANALYZE", statistics="stat-1")
    (written.path / "snapshot" / "snapshot-1").unlink()
    table = open_table(str(written.path))
    assert [entry.data_changed for entry in table.history()] == [False]
    assert [change.data_changed for change in table.changes_since(0).commits] == [False]


def test_what_is_merged_on_read_is_the_same_after_a_compaction(tmp_path: Path) -> None:
    options = {"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}
    written = PaimonWriter(tmp_path / "t", PK, primary_keys=["id"], options=options)
    old, low = DataFile("data-1.parquet", 5, level=5), DataFile("data-2.parquet", 1)
    written.commit("APPEND", add=[old, low])
    written.dvs[old.key] = _dv(1)
    written.write_index()
    written.commit("COMPACT", add=[DataFile("data-2.parquet", 1, level=4)], delete=[low])
    assert [entry[-1] for entry in entries_of(open_table(str(written.path)))] == [True, False]


def test_primary_keys_without_deletion_vectors_are_merged_on_read(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", PK, primary_keys=["id"], options={})
    low, high = DataFile("data-1.parquet", 5), DataFile("data-1.parquet", 5, level=3)
    written.commit("APPEND", add=[low])
    written.commit("COMPACT", add=[high], delete=[low])
    assert [entry[-1] for entry in entries_of(open_table(str(written.path)))] == [True, False]


def test_a_level_that_changes_is_no_file_that_leaves(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", PK, primary_keys=["id"])
    middle, high = DataFile("data-1.parquet", 5, level=2), DataFile("data-1.parquet", 5, level=5)
    written.commit("COMPACT", add=[middle])
    written.dvs[middle.key] = _dv(1)
    written.write_index()
    written.commit("COMPACT", add=[high], delete=[middle])
    history = entries_of(open_table(str(written.path)))
    assert history[1] == ("COMPACT", 1, 1, 1, 0, 1, True)


def _dv(*positions: int) -> Any:
    return DeletionVector.from_positions(positions)


def test_limits_and_versions(written: PaimonWriter) -> None:
    for first in range(3):
        written.append(rows_of(first, 1))
    table = open_table(str(written.path))
    assert [entry.version for entry in table.history(2)] == [3, 2]
    assert table.history(0) == []
    with pytest.raises(UsageError, match="limit"):
        table.history(-1)
    for version in (4, -2):
        with pytest.raises(UsageError, match=f"no snapshot {version}"):
            table.changes_since(version)
    assert table.changes_since(3).commits == ()
    # A rollback leaves a snapshot that the table had, and that a watcher may have seen.
    (written.path / "snapshot" / "snapshot-3").unlink()
    with pytest.raises(UsageError, match="rolled back"):
        table.changes_since(3)


def test_damage_is_named(written: PaimonWriter) -> None:
    written.append(rows_of(0, 1))
    written.append(rows_of(1, 1))
    written.change("snapshot/snapshot-1", deltaManifestList="gone")
    with pytest.raises(DamagedTableError, match="manifest/gone: it does not exist") as caught:
        open_table(str(written.path)).history()
    assert caught.value.version == 1


def test_a_dv_that_can_no_longer_be_counted(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", writer=OLD)
    file = written.append(rows_of(0, 10))
    written.delete({file: [1]})
    written.delete({file: [2]})
    (first, _) = sorted((written.path / "index").iterdir())
    first.unlink()
    assert entries_of(open_table(str(written.path)))[1:] == [
        ("OVERWRITE", 0, 0, 1, 0, 0, True),
        ("OVERWRITE", 0, 0, 1, 1, 2, True),
    ]
