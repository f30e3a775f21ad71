"""Rows of primary-key tables: those that a batch reader sees without merging, and which tables that is refused for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.paimon_writer import DataFile, PaimonWriter

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table

DVS = {"bucket": "1", "deletion-vectors.enabled": "true"}


def keyed(path: Path, **options: str) -> PaimonWriter:
    columns = {"id": "INT NOT NULL", "v": "STRING"}
    return PaimonWriter(path / "t", columns, primary_keys=["id"], options={**DVS, **options})


def add(
    table: PaimonWriter, ids: list[int], kinds: list[int | None] | None = None, level: int = 5, **entry: Any
) -> DataFile:
    found = [0] * len(ids) if kinds is None else kinds
    taken = sum(kind in (1, 3) for kind in found)
    rows = [{"id": each, "v": f"v{each}"} for each in ids]
    return table.append(rows, kinds=found, level=level, **{"_DELETE_ROW_COUNT": taken, **entry})


def ids(table: PaimonWriter, version: int | None = None) -> list[int]:
    _, batches = read(open_table(str(table.path)), version, ["id"])
    return [each for batch in batches for each in batch.column("id").to_pylist()]


@pytest.mark.parametrize("thin", ["false", "true"])
def test_retractions_are_not_rows(tmp_path: Path, thin: str) -> None:
    table = keyed(tmp_path, **{"data-file.thin-mode": thin})
    add(table, [1, 2, 3])
    file = add(table, [10, 11, 12, 13, 14, 15], [0, 3, 2, 1, 0, 2])
    assert ids(table) == [1, 2, 3, 10, 12, 14, 15]
    table.delete({file: [0, 1, 5]}, kind="COMPACT")
    assert ids(table) == [1, 2, 3, 12, 14]
    _, batches = read(open_table(str(table.path)))
    assert [row for batch in batches for row in batch.to_pylist()][-1] == {"id": 14, "v": "v14"}
    # All of a file's rows are gone, by their kinds or by a vector.
    add(table, [20, 21], [3, 3])
    assert ids(table) == [1, 2, 3, 12, 14]


def test_level_0_is_not_seen(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    add(table, [1])
    add(table, [2], level=0)
    assert ids(table) == [1]
    waiting, last = open_table(str(table.path)).snapshot().warnings
    assert "waiting for compaction" in waiting
    assert last == "none of its newest 2 snapshots is a compaction"
    table.commit("COMPACT")
    table.commit("APPEND")
    _, last = open_table(str(table.path)).snapshot().warnings
    assert last == "the last compaction was snapshot 3 of 2023-11-14T22:13:23Z, 1 before the newest one"
    # Snapshots before the newest one may be gone, or damaged: that is for who asks for them.
    (table.path / "snapshot" / "snapshot-3").write_bytes(b"{")
    (table.path / "snapshot" / "snapshot-2").unlink()
    _, last = open_table(str(table.path)).snapshot().warnings
    assert last == "none of its newest 2 snapshots is a compaction"


def test_row_kinds_are_read_only_if_retractions_are_possible(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    # What the manifest promises holds: no kind is read. Old writers do not say.
    add(table, [1, 2], [0, 3], _DELETE_ROW_COUNT=0)
    add(table, [3, 4], [0, 3], _DELETE_ROW_COUNT=None)
    found = open_table(str(table.path))
    tasks = found.scan_tasks(found.snapshot())
    assert ["only" not in task.sources[0].details for task in tasks] == [True, False]
    assert ids(table) == [1, 2, 3]


@pytest.mark.parametrize("kind", [4, -1, None])
def test_an_invalid_row_kind(tmp_path: Path, kind: int | None) -> None:
    table = keyed(tmp_path)
    add(table, [1, 2], [3, kind])
    with pytest.raises(DamagedTableError, match="_VALUE_KIND"):
        ids(table)


def test_a_file_without_kinds(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    table.append([{"id": 1, "v": "x"}], level=5, _DELETE_ROW_COUNT=None)
    with pytest.raises(DamagedTableError, match="_VALUE_KIND"):
        ids(table)


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update", "aggregation", "first-row"])
def test_merge_engines(tmp_path: Path, engine: str) -> None:
    """With deletion vectors every file above level 0 has whole rows; with first-row it has them without, too."""
    table = keyed(tmp_path, **{"merge-engine": engine})
    file = add(table, [1, 2])
    table.delete({file: [0]})
    assert ids(table) == [2]
    without = keyed(tmp_path / "b", **{"merge-engine": engine, "deletion-vectors.enabled": "false"})
    add(without, [1, 2])
    add(without, [3], level=0)
    if engine == "first-row":
        assert ids(without) == [1, 2]
    else:
        with pytest.raises(RefusedError, match="merged on read"):
            ids(without)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"deletion-vectors.merge-on-read": "true"}, "level 0 is merged on read"),
        ({"deletion-vectors.enabled": "false"}, "without deletion vectors, the files"),
        ({"chain-table.enabled": "true"}, "chain-table"),
    ],
)
def test_what_would_have_to_be_merged(tmp_path: Path, options: dict[str, str], why: str) -> None:
    table = keyed(tmp_path, **options)
    add(table, [1])
    with pytest.raises(RefusedError, match=why) as caught:
        ids(table)
    assert caught.value.next_step


def test_rows_without_a_bucket_that_are_merged(tmp_path: Path) -> None:
    """Of a table with postponed buckets, and only while there are some."""
    table = keyed(tmp_path, **{"postpone.merge-on-read": "true", "bucket": "-2"})
    add(table, [1, 2])
    assert ids(table) == [1, 2]
    add(table, [2, 3], bucket=-2, level=0)
    with pytest.raises(RefusedError, match="no bucket yet are merged on read"):
        ids(table)
    table.options = {**table.options, "bucket": "1"}
    table.write_schema()
    assert ids(table) == [1, 2]


def test_retractions_beside_another_level(tmp_path: Path) -> None:
    """Without a deletion vector that names what they retract."""
    table = keyed(tmp_path)
    add(table, [1, 2])
    add(table, [3, 4], [0, 3])
    assert ids(table) == [1, 2, 3]
    add(table, [2, 3], [3, 0], level=4)
    with pytest.raises(RefusedError, match="only retract others, so its files are merged on read"):
        ids(table)
    (reason,) = open_table(str(table.path)).snapshot().barred() or ("",)
    assert not reason, "no file has a deletion vector"


@pytest.mark.parametrize("first", ["true", "false"])
def test_deletion_vectors_that_come_or_go_later(tmp_path: Path, first: str) -> None:
    """Older snapshots would be read by the options of now: where those of then say something else, by neither."""
    table = keyed(tmp_path, **{"deletion-vectors.enabled": first})
    add(table, [1])
    table.options = {**table.options, "deletion-vectors.enabled": "false" if first == "true" else "true"}
    table.write_schema()
    with pytest.raises(RefusedError, match="merged on read"):
        ids(table, 1)


def test_partitions_of_keyed_tables(tmp_path: Path) -> None:
    columns = {"p": "STRING NOT NULL", "id": "INT NOT NULL"}
    table = PaimonWriter(tmp_path / "t", columns, ["p"], ["p", "id"], options=DVS)
    for p in ("a", "b"):
        table.append([{"p": p, "id": 1}, {"p": p, "id": 2}], (p,), kinds=[0, 3], level=5, _DELETE_ROW_COUNT=1)
    _, batches = read(open_table(str(table.path)))
    assert pa.Table.from_batches(list(batches)).to_pylist() == [{"p": "a", "id": 1}, {"p": "b", "id": 1}]
