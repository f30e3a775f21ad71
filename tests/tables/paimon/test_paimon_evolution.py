"""Data-evolution tables: rows that several files hold together, and what deletion vectors and health are of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.binary_rows import encode_row
from support.blob_files import PLACEHOLDER, blob_file
from support.paimon_writer import DataFile, PaimonWriter
from test_paimon_scan import rows

from dv_maintenance.dml.delete import delete
from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.engine.rows.live_rows import LiveRows
from dv_maintenance.engine.rows.side_by_side import SideBySide, parts_of
from dv_maintenance.engine.scan import open_source
from dv_maintenance.engine.span import WHOLE, Span
from dv_maintenance.engine.splits import plan_splits, scan_split
from dv_maintenance.errors import DamagedTableError, RefusedError, UnsupportedFeatureError, VerificationError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.plan import purge_plan
from dv_maintenance.storage import Storage
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.paimon.rows import row_id_ranges
from dv_maintenance.tables.paimon.rows.row_id_ranges import live_ranges
from dv_maintenance.tables.paimon.rows.types import parse_type
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
from dv_maintenance.tables.paimon.table import PaimonTable
from dv_maintenance.tables.paimon.verbs.engine_sql import sources
from dv_maintenance.tables.predicate import Compare, Predicate
from dv_maintenance.tables.rows import DeletedRows, RowChanges
from dv_maintenance.tables.table import Replacement
from dv_maintenance.tables.work import RewriteBin, ScanTask

COLUMNS = {"id": "BIGINT", "a": "STRING", "b": "BIGINT"}
OPTIONS = {
    "bucket": "-1",
    "row-tracking.enabled": "true",
    "data-evolution.enabled": "true",
    "deletion-vectors.enabled": "true",
}


def evolving(path: Path, **more: Any) -> PaimonWriter:
    return PaimonWriter(path / "t", COLUMNS, options=OPTIONS, **more)


def opened(written: PaimonWriter) -> PaimonTable:
    return PaimonTable(Storage(str(written.path)))


def numbered(ids: Iterable[int]) -> list[dict[str, Any]]:
    return [{"id": each, "a": f"a{each}", "b": each * 10} for each in ids]


def put(
    written: PaimonWriter, values: list[dict[str, Any]], first: int, columns: list[str] | None = None, **entry: Any
) -> DataFile:
    """One more file of the rows from id ``first`` on, as old as its snapshot."""
    age = {"_MIN_SEQUENCE_NUMBER": written.version + 1, "_MAX_SEQUENCE_NUMBER": written.version + 1}
    return written.append(values, **{"_FIRST_ROW_ID": first, "_WRITE_COLS": columns, **age, **entry})


def test_vectors_that_no_file_has_are_not_written(tmp_path: Path) -> None:
    """Paimon's engine in Java reads none from Parquet files, not even nulls."""
    written = evolving(tmp_path)
    file = put(written, numbered(range(4)), 0)
    vectors: Any = {"type": "VECTOR", "element": "FLOAT", "length": 2}
    written.alter({**COLUMNS, "v": vectors})
    written.delete({file: [0]})
    assert purge(opened(written), LocalEngine()).verified
    (new,) = opened(written).snapshot().files["path"].to_pylist()
    assert pq.read_schema(written.path / new).names == list(COLUMNS)
    assert rows(written.path) == [{**each, "v": None} for each in numbered(range(1, 4))]


def test_a_column_is_in_the_newest_file_that_has_it(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    anchor = put(written, numbered(range(4)), 0)
    put(written, numbered(range(4, 6)), 4)
    put(written, [{"b": -each} for each in range(4)], 0, ["b"])
    put(written, [{"a": f"new{each}", "b": each * 100} for each in range(4)], 0, ["b", "a"])
    put(written, [{"b": each * 1000} for each in range(4)], 0, ["b"])
    written.delete({anchor: [1]})
    found = rows(written.path)
    assert [row for row in found if row["id"] < 4] == [
        {"id": each, "a": f"new{each}", "b": each * 1000} for each in (0, 2, 3)
    ]
    assert [row["b"] for row in rows(written.path, 4)][:4] == [0, 100, 200, 300]
    assert [row["b"] for row in rows(written.path, 3)][:4] == [0, -1, -2, -3]
    assert [row["b"] for row in rows(written.path, 1)] == [0, 10, 20, 30]
    for columns in (["b"], ["a"], ["id"], ["b", "id"], ["a", "b"], ["b", "a"]):
        assert rows(written.path, columns=columns) == [{name: row[name] for name in columns} for row in found]


def test_health_counts_rows_once_and_the_bytes_of_all_files(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    anchor = put(written, numbered(range(10)), 0)
    patch = put(written, [{"b": 1}] * 10, 0, ["b"])
    alone = put(written, numbered(range(10, 15)), 10)
    written.delete({anchor: [0, 1, 2]})
    table = opened(written)
    snapshot = table.snapshot()
    counts = health(snapshot).counts
    assert (counts.files, counts.physical_rows, counts.deleted_rows, counts.files_with_dv) == (2, 15, 3, 1)
    by_name = dict(zip(snapshot.files["file_name"].to_pylist(), snapshot.files["size"].to_pylist(), strict=True))
    assert by_name == {anchor.name: anchor.size + patch.size, alone.name: alone.size}
    assert any("sys.materialize_deletion_vectors" in note for note in snapshot.notes)
    # What has to be there is every file, with its own size.
    sizes = {source.uri.rsplit("/", 1)[-1]: source.size for source in sources(table.layout, iter([snapshot]))}
    assert sizes == {each.name: each.size for each in (anchor, patch, alone)}


def test_files_without_live_rows_are_removed(tmp_path: Path) -> None:
    """With all that have other columns of these rows, unless one of them has other rows as well."""
    written = evolving(tmp_path)
    anchors = [put(written, numbered(range(first, first + 4)), first) for first in range(0, 16, 4)]
    put(written, [{"b": 1}] * 4, 0, ["b"])
    put(written, [{"b": 2}] * 4, 8, ["b"])
    wide = written.data_file([{"b": 3}] * 8, _FIRST_ROW_ID=8, _WRITE_COLS=["b"], _FILE_NAME="data-1-0.vector.parquet")
    written.commit("APPEND", add=[wide])
    written.delete({anchors[0]: range(4), anchors[1]: [0], anchors[2]: range(4)})
    table = opened(written)
    before = sorted(row["id"] for row in rows(written.path, columns=["id", "a"]))
    plan = purge_plan(table.snapshot())
    removed = [(step.action, [each.path for each in step.inputs]) for step in plan.steps]
    assert removed == [(act, [f"bucket-0/{anchors[at].name}"]) for act, at in (("remove", 0), ("rewrite", 1))]
    assert [each.reason.partition(":")[0] for each in plan.left_alone if each.deleted_rows] == [
        "a file of blobs or vectors has rows of it and of others"
    ]
    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    assert len(table.snapshot().live.entries) == 5
    assert sorted(row["id"] for row in rows(written.path, columns=["id", "a"])) == before


def purged(written: PaimonWriter) -> list[tuple[int, int]]:
    """Purge, which changes no row and no id; the first id and the number of rows of each file."""
    before = with_ids(written)
    report = purge(opened(written), LocalEngine())
    assert report.verified, report.problems
    assert with_ids(written) == before
    files = opened(written).snapshot().files
    assert not any(files["deleted_rows"].to_pylist())
    return sorted(zip(files["first_row_id"].to_pylist(), files["physical_rows"].to_pylist(), strict=True))


def with_ids(written: PaimonWriter) -> dict[int, dict[str, Any]]:
    """The rows by their ids, which are the places in files."""
    table, found = opened(written), {}
    snapshot = table.snapshot()
    for task, first in zip(table.scan_tasks(snapshot), snapshot.files["first_row_id"].to_pylist(), strict=True):
        with open_source(task.sources[0], task, table.storage) as reader:
            for live in reader.live():
                found |= {
                    first + place: row
                    for place, row in zip(live.positions().to_pylist(), live.batch.to_pylist(), strict=True)
                }
    return found


def test_live_rows_keep_their_ids(tmp_path: Path) -> None:
    """Each range of ids without a gap becomes a file, as new as the newest of those that it replaces."""
    written = evolving(tmp_path)
    anchor = put(written, numbered(range(10)), 100)
    put(written, [{"b": -each} for each in range(10)], 100, ["b"])
    alone = put(written, numbered(range(10, 14)), 110)
    written.delete({anchor: [0, 3, 4, 8], alone: [3]})
    plan = purge_plan(opened(written).snapshot())
    assert sorted(step.expected.files_after for step in plan.steps) == [1, 3]
    assert any("rewrite into about 3 new files" in step.reason for step in plan.steps)
    assert purged(written) == [(101, 2), (105, 3), (109, 1), (110, 3)]
    files = opened(written).snapshot().files.to_pylist()
    assert {(row["write_cols"], row["max_sequence"], row["min_sequence"]) for row in files} == {
        (None, 2, 1),
        (None, 3, 3),
    }


def test_ranges_are_few_or_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = evolving(tmp_path)
    most, more = (put(written, numbered(range(40)), first) for first in (0, 40))
    written.delete({most: range(1, 19, 2), more: range(1, 21, 2)})
    plan = purge_plan(opened(written).snapshot())
    assert [(each.path, step.expected.files_after) for step in plan.steps for each in step.inputs] == [
        (f"bucket-0/{most.name}", 10)
    ]
    (left,) = (each for each in plan.left_alone if each.deleted_rows)
    assert "too many gaps between their row ids" in left.reason
    assert "engine-sql" in str(left.reason)
    monkeypatch.setattr(row_id_ranges, "_BYTES", more.size // 11)
    assert sorted(step.expected.files_after for step in purge_plan(opened(written).snapshot()).steps) == [10, 11]


def test_what_only_paimon_rewrites(tmp_path: Path) -> None:
    """With the reason, in the plan as well as for a purge of nothing else."""

    def reason(written: PaimonWriter, file: DataFile) -> str:
        written.delete({file: [1]})
        with pytest.raises(RefusedError) as caught:
            purge(opened(written), LocalEngine())
        return str(caught.value)

    before = evolving(tmp_path / "before")
    assert "no row ids" in reason(before, before.append(numbered(range(4))))
    csv = PaimonWriter(tmp_path / "csv", COLUMNS, options=OPTIONS | {"file.format": "csv"})
    assert "must be csv" in reason(csv, put(csv, numbered(range(4)), 0))
    codec = PaimonWriter(tmp_path / "codec", COLUMNS, options=OPTIONS | {"file.compression": "lzo"})
    assert "lzo" in reason(codec, put(codec, numbered(range(4)), 0))
    for kind, option in [("orc", {}), ("json.br", {}), ("json", {"json.line-delimiter": "|"})]:
        vectors = PaimonWriter(tmp_path / kind, COLUMNS, options=OPTIONS | option)
        file = put(vectors, numbered(range(4)), 0)
        put(vectors, [{"b": 1}] * 4, 0, ["b"], _FILE_NAME=f"data-1-0.vector.{kind}")
        assert "vectors of its rows are in other files, of a format that this tool does not" in reason(vectors, file)
    both = evolving(tmp_path / "both")
    file = put(both, numbered(range(4)), 0, ["id", "a", "b"])
    put(both, [{"b": 1}] * 4, 0, ["b"], _FILE_NAME="data-1-0.vector.parquet")
    assert "the column b is in files of its own, and in others of the same rows" in reason(both, file)
    cast = evolving(tmp_path / "cast")
    file = put(cast, numbered(range(4)), 0)
    cast.alter({**COLUMNS, "b": "STRING"})
    assert "would have to be cast" in reason(cast, file)


def rewritten(written: PaimonWriter) -> tuple[PaimonTable, PaimonSnapshot, Replacement]:
    """The only file of a table, rewritten but not committed."""
    table = opened(written)
    base = table.snapshot()
    (row,) = base.files.to_pylist()
    key = FileKey(row["path"], row["dv_id"])
    (task,) = table.rewrite_tasks(base, [RewriteBin("1", row["partition"], (key,))], 1 << 20)
    live = row["physical_rows"] - row["deleted_rows"]
    return table, base, Replacement("1", row["partition"], (key,), rewrite(task).outputs, (live,))


def test_a_column_changes_while_its_rows_move(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    anchor = put(written, numbered(range(4)), 0)
    written.delete({anchor: [1]})
    table, base, replacement = rewritten(written)
    outputs = replacement.outputs
    assert [output.rows for output in outputs] == [1, 2]
    for wrong in (outputs[::-1], outputs[:1]):
        with pytest.raises(VerificationError):
            table.commit(base, [replace(replacement, outputs=wrong, kept=())], operation={})
    put(written, [{"b": -1}] * 4, 0, ["b"])
    outcome = table.commit(base, [replacement], operation={})
    assert outcome.version is None
    assert "changed columns" in outcome.reason
    assert [row["b"] for row in rows(written.path)] == [-1] * 3


def test_rows_that_go_while_others_move(tmp_path: Path) -> None:
    """They stay deleted, in the new files that have them."""
    written = evolving(tmp_path)
    anchor = put(written, numbered(range(8)), 0)
    written.delete({anchor: [1]})
    table, base, replacement = rewritten(written)
    delete(table, LocalEngine(), "id IN (0, 5)")
    left = with_ids(written)
    outcome = table.commit(base, [replacement], operation={})
    assert outcome.version is not None
    assert with_ids(written) == left
    assert [(row["first_row_id"], row["deleted_rows"]) for row in table.snapshot().files.to_pylist()] == [(2, 1)]


def test_a_file_that_comes_while_others_of_its_rows_go(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    anchor, alone = (put(written, numbered(range(first, first + 4)), first) for first in (0, 4))
    written.delete({anchor: range(4)})
    table = opened(written)
    base = table.snapshot()
    (row,) = (row for row in base.files.to_pylist() if row["dv_id"])
    put(written, [{"b": 1}] * 4, 0, ["b"])
    replacement = Replacement("1", row["partition"], (FileKey(row["path"], row["dv_id"]),))
    assert table.commit(base, [replacement], operation={}).version == written.version + 1
    assert table.snapshot().live.entries["file_name"].to_pylist() == [alone.name]
    assert [row["id"] for row in rows(written.path)] == [4, 5, 6, 7]


def test_a_delete_is_of_the_columns_that_it_read(tmp_path: Path) -> None:
    """Another writer changes a column of the file in the meantime, which leaves its deletion vector as it is."""
    written = evolving(tmp_path)
    anchor = put(written, numbered(range(4)), 0)
    put(written, numbered(range(4, 8)), 4)
    table = opened(written)
    base = table.snapshot()
    key = FileKey(f"bucket-0/{anchor.name}")
    changes = RowChanges((DeletedRows(key, DeletionVector.from_positions([1]), rows=4),))
    put(written, [{"b": 1}] * 4, 4, ["b"])
    done = table.commit_changes(base, changes, operation={}, reads=lambda _: False, dry_run=True)
    assert not done.conflict, "of another file"
    put(written, [{"b": 2}] * 4, 0, ["b"])
    done = table.commit_changes(base, changes, operation={}, reads=lambda _: False)
    assert "changed columns of rows" in done.conflict
    assert [row["id"] for row in rows(written.path)] == list(range(8))
    delete(table, LocalEngine(), "b = 2")
    assert len(table.snapshot().live.entries) == 4, "all of its rows are deleted, and its files wait for a purge"
    assert [row["id"] for row in rows(written.path)] == [4, 5, 6, 7]


def test_the_anchor_is_the_oldest_file_and_no_other_has_a_deletion_vector(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    anchor = put(written, numbered(range(4)), 0)
    patch = put(written, [{"b": 1}] * 4, 0, ["b"])
    written.delete({anchor: [0], patch: [1, 2]})
    snapshot = opened(written).snapshot()
    assert [dv.data_file for dv in snapshot.dangling] == [patch.name]
    assert [row["id"] for row in rows(written.path)] == [1, 2, 3]
    # Of two that are as old as each other, that with the lesser name.
    both = evolving(tmp_path / "both")
    first = both.data_file(
        [{"a": "x"}], _FIRST_ROW_ID=0, _WRITE_COLS=["a"], _MIN_SEQUENCE_NUMBER=1, _MAX_SEQUENCE_NUMBER=1
    )
    second = both.data_file(
        [{"id": 1, "b": 2}], _FIRST_ROW_ID=0, _WRITE_COLS=["id", "b"], _MIN_SEQUENCE_NUMBER=1, _MAX_SEQUENCE_NUMBER=1
    )
    both.commit("APPEND", add=[second, first])
    assert opened(both).snapshot().files["file_name"].to_pylist() == [min(first.name, second.name)]
    assert rows(both.path) == [{"id": 1, "a": "x", "b": 2}]


def test_age_follows_sequence_numbers_not_names(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    newer = written.data_file([{"b": 2}], _FIRST_ROW_ID=0, _WRITE_COLS=["b"], _MAX_SEQUENCE_NUMBER=2)
    older = written.data_file(numbered([1]), _FIRST_ROW_ID=0, _MAX_SEQUENCE_NUMBER=1)
    written.commit("APPEND", add=[newer, older])
    assert newer.name < older.name
    assert rows(written.path) == [{"id": 1, "a": "a1", "b": 2}]
    assert opened(written).snapshot().files["file_name"].to_pylist() == [older.name]


def test_columns_that_came_later(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    put(written, numbered(range(3)), 0)
    written.alter({**COLUMNS, "c": "INT", "d": "STRING"})
    put(written, [{"c": each} for each in range(3)], 0, ["c"])
    put(written, [{"id": 9, "a": "nine", "b": 9, "c": 9, "d": "nine"}], 3)
    # A name changes: columns are the same by their ids.
    written.alter({"id": "BIGINT", "aa": "STRING", "b": "BIGINT", "c": "BIGINT", "d": "STRING"}, {"aa": "a"})
    put(written, [{"aa": "renamed"}] * 3, 0, ["aa"])
    assert rows(written.path) == [
        *({"id": each, "aa": "renamed", "b": each * 10, "c": each, "d": None} for each in range(3)),
        {"id": 9, "aa": "nine", "b": 9, "c": 9, "d": "nine"},
    ]
    assert rows(written.path, columns=["d"]) == [{"d": None}] * 3 + [{"d": "nine"}]
    assert rows(written.path, columns=["c", "d"])[0] == {"c": 0, "d": None}


def test_partitions_and_rows_before_there_were_ids(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", {**COLUMNS, "p": "STRING"}, ["p"], options=OPTIONS)
    age = {"_MIN_SEQUENCE_NUMBER": 1, "_MAX_SEQUENCE_NUMBER": 1}
    written.append([{**row, "p": "x"} for row in numbered(range(2))], ("x",), _FIRST_ROW_ID=0, **age)
    written.append([{**row, "p": "y"} for row in numbered(range(2, 4))], ("y",), _FIRST_ROW_ID=2, **age)
    written.append([{**row, "p": "y"} for row in numbered(range(4, 6))], ("y",))
    age = {"_MIN_SEQUENCE_NUMBER": 4, "_MAX_SEQUENCE_NUMBER": 4}
    written.append([{"b": 7}, {"b": 8}], ("x",), _FIRST_ROW_ID=0, _WRITE_COLS=["b"], **age)
    assert [(row["id"], row["b"], row["p"]) for row in rows(written.path)] == [
        *((0, 7, "x"), (1, 8, "x"), (2, 20, "y"), (3, 30, "y"), (4, 40, "y"), (5, 50, "y"))
    ]
    assert rows(written.path, columns=["p"])[0] == {"p": "x"}
    # Nothing is opened for a partition's value.
    table = opened(written)
    assert table.scan_tasks(table.snapshot(), ["b", "p"])[0].sources[0].format != "parts"


def blobs(written: PaimonWriter, first: int, *values: object, age: int = 1, **entry: Any) -> DataFile:
    """A file of blobs, which is not added yet."""
    name = f"data-blob-{first}-{age}.blob"
    data = blob_file(values)
    written.put(f"bucket-0/{name}", data)
    told = {"_FIRST_ROW_ID": first, "_WRITE_COLS": ["pic"], "_MIN_SEQUENCE_NUMBER": age, "_MAX_SEQUENCE_NUMBER": age}
    return DataFile(name, len(values), size=len(data), entry=tuple({**told, **entry}.items()))


def with_blobs(path: Path, **options: str) -> PaimonWriter:
    return PaimonWriter(path / "t", {**COLUMNS, "pic": "BLOB"}, options=OPTIONS | options)


def test_maps_of_blobs_with_null_keys(tmp_path: Path) -> None:
    """Arrow has no such maps."""
    kind = {"type": "MAP", "key": "INT", "value": "BLOB"}
    written = PaimonWriter(tmp_path / "t", {**COLUMNS, "pic": kind}, options=OPTIONS)
    # One entry: a key of four bytes or none, and a blob of one byte; then two lists of lengths and their lengths.
    head, sizes = b"BCBM\1\1\0\0\0", b"\1\0\0\0" * 2
    there, null = head + b"\7\0\0\0x\x08\x02" + sizes, head + b"x\x01\x02" + sizes
    written.commit("APPEND", add=[plain_file(written, range(2)), blobs(written, 0, there, None)])
    assert [row["pic"] for row in rows(written.path)] == [[(7, b"x")], None]
    written.commit("APPEND", add=[blobs(written, 0, null, PLACEHOLDER, age=2)])
    with pytest.raises(RefusedError, match="a map of blobs has a null key"):
        rows(written.path)


def plain_file(written: PaimonWriter, ids: range) -> DataFile:
    age = {"_MIN_SEQUENCE_NUMBER": 1, "_MAX_SEQUENCE_NUMBER": 1}
    return written.data_file(numbered(ids), _FIRST_ROW_ID=ids[0], _WRITE_COLS=["id", "a", "b"], **age)


def pictures(written: PaimonWriter) -> dict[int, bytes | None]:
    return {row["id"]: row["pic"] for row in rows(written.path, columns=["pic", "id"])}


def test_blobs_in_files_of_their_own(tmp_path: Path) -> None:
    written = with_blobs(tmp_path)
    anchor = plain_file(written, range(4))
    written.commit("APPEND", add=[blobs(written, 2, b"", b"three"), anchor, blobs(written, 0, b"zero", None)])
    written.delete({anchor: [2]})
    later = plain_file(written, range(4, 6))
    newest = blobs(written, 4, b"four", b"five")
    written.commit("APPEND", add=[newest, later])
    snapshot = opened(written).snapshot()
    assert snapshot.files.select(["physical_rows", "size"]).to_pylist() == [
        {
            "physical_rows": 4,
            "size": anchor.size + sum(f.stat().st_size for f in written.path.rglob("*-1.blob")) - newest.size,
        },
        {"physical_rows": 2, "size": later.size + newest.size},
    ]
    found = {0: b"zero", 1: None, 3: b"three", 4: b"four", 5: b"five"}
    assert pictures(written) == found
    assert {row["pic"] for row in rows(written.path, columns=["pic"])} == {*found.values()}
    newer = blobs(written, 0, PLACEHOLDER, b"one", b"two", PLACEHOLDER, age=5)
    written.commit("APPEND", add=[newer])
    assert pictures(written) == found | {1: b"one"}
    written.commit("APPEND", add=[blobs(written, 4, None, age=6)])
    found |= {1: b"one", 4: None}
    assert pictures(written) == found
    assert purged(written) == [(0, 2), (3, 1), (4, 2)]
    assert pictures(written) == found
    live = opened(written).snapshot().live.entries["file_name"].to_pylist()
    assert newest.name in live, "its rows are all live"
    assert newer.name not in live
    assert sum(name.endswith(".blob") for name in live) == 6, live


def test_damaged_blobs_are_found(tmp_path: Path) -> None:
    written = with_blobs(tmp_path)
    anchor, file = plain_file(written, range(4)), blobs(written, 0, *[b"x" * 50] * 4)
    written.commit("APPEND", add=[anchor, file])
    written.delete({anchor: [1]})
    place = written.path / "bucket-0" / file.name
    data = place.read_bytes()
    assert len(pictures(written)) == 3
    place.write_bytes(data[:60] + b"y" + data[61:])
    with pytest.raises(DamagedTableError, match=r"0-1\.blob is damaged: the checksum of a blob is wrong"):
        pictures(written)
    for damaged in (data[:-1], data[:-6] + b"\xff" + data[-5:], blob_file([b"x"])):
        place.write_bytes(damaged)
        with pytest.raises(DamagedTableError, match=r"0-1\.blob"):
            pictures(written)
        with pytest.raises(DamagedTableError, match=r"0-1\.blob is damaged"):
            purge(opened(written), LocalEngine())
        assert {each.name for each in place.parent.iterdir() if each.suffix == ".blob"} == {file.name}
    place.unlink()
    with pytest.raises(DamagedTableError, match="does not exist"):
        pictures(written)


def test_files_of_blobs_that_do_not_fit(tmp_path: Path) -> None:
    def refused(name: str, **more: Any) -> str:
        written = with_blobs(tmp_path / name)
        values = [b"x"] * more.pop("count", 4)
        file = blobs(written, 0, *values, **more)
        written.commit("APPEND", add=[plain_file(written, range(4)), blobs(written, 1, b"y"), file])
        with pytest.raises(UnsupportedFeatureError) as caught:
            pictures(written)
        return caught.value.message

    assert "has rows of" in refused("twice")
    assert "neither is newer" in refused("again", count=2)
    assert "has rows beyond those of" in refused("beyond", count=5, age=2)
    beside = with_blobs(tmp_path / "beside")
    beside.commit("APPEND", add=[beside.data_file(numbered(range(4)), _FIRST_ROW_ID=0)])
    with pytest.raises(UnsupportedFeatureError, match="holds the column pic of blobs beside others"):
        pictures(beside)
    video = with_blobs(tmp_path / "video")
    file = blobs(video, 0, b"x")
    video.commit("APPEND", add=[plain_file(video, range(1)), replace(file, name=file.name.replace(".blob", ".video"))])
    with pytest.raises(UnsupportedFeatureError, match="holds a video"):
        pictures(video)


def test_blobs_that_change_while_rows_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is lost, with the new files of blobs; rows that others delete stay deleted."""
    written = with_blobs(tmp_path)
    anchor = plain_file(written, range(4))
    written.commit("APPEND", add=[anchor, blobs(written, 0, b"0", b"1", b"2", b"3")])
    written.delete({anchor: [1]})
    table, base, replacement = rewritten(written)
    written.commit("APPEND", add=[blobs(written, 2, b"new", age=5)])
    outcome = table.commit(base, [replacement], operation={})
    assert (outcome.version, "changed columns" in outcome.reason) == (None, True)
    assert len(list(written.path.glob("bucket-0/*.blob"))) == 2
    # After the first attempt has written its files.
    table, base, replacement = rewritten(written)
    original, newer = Storage.open_output, [blobs(written, 2, b"newer", age=6)]

    def open_output(self: Storage, path: str) -> Any:
        if newer:
            written.commit("APPEND", add=[newer.pop()])
        return original(self, path)

    monkeypatch.setattr(Storage, "open_output", open_output)
    assert table.commit(base, [replacement], operation={}).version is None
    assert len(list(written.path.glob("bucket-0/*.blob"))) == 3
    table, base, replacement = rewritten(written)
    delete(table, LocalEngine(), "id = 0")
    outcome = table.commit(base, [replacement], operation={})
    assert outcome.version is not None
    assert pictures(written) == {2: b"newer", 3: b"3"}


@pytest.mark.parametrize(
    ("first", "count", "columns", "why"),
    [
        (0, 3, ["b"], "ids 0 to 2, and another file has only some"),
        (2, 4, ["b"], "ids 2 to 5, and another file has only some"),
        (1, 2, ["b"], "ids 1 to 2, and another file has only some"),
    ],
)
def test_ranges_that_overlap_are_damage(tmp_path: Path, first: int, count: int, columns: list[str], why: str) -> None:
    written = evolving(tmp_path)
    put(written, numbered(range(4)), 0)
    put(written, [{"b": 1}] * count, first, columns)
    with pytest.raises(DamagedTableError, match=why) as caught:
        opened(written).snapshot()
    assert caught.value.version == 2


def test_other_damage_and_what_is_not_known(tmp_path: Path) -> None:
    lone = evolving(tmp_path / "lone")
    lone.commit("APPEND", add=[DataFile("x.blob", 2, entry=(("_FIRST_ROW_ID", 0),))])
    with pytest.raises(
        DamagedTableError, match=r"x\.blob belongs to rows from id 0 on, but no data file has these rows"
    ):
        opened(lone).snapshot()

    tie = evolving(tmp_path / "tie")
    put(tie, numbered(range(2)), 0)
    for value in (1, 2):
        put(tie, [{"b": value}] * 2, 0, ["b"], _MAX_SEQUENCE_NUMBER=5)
    with pytest.raises(UnsupportedFeatureError, match="both have the column b, and neither is newer"):
        rows(tie.path)
    assert len(rows(tie.path, columns=["id"])) == 2

    unknown = evolving(tmp_path / "unknown")
    put(unknown, numbered(range(2)), 0)
    file = unknown.data_file([{"b": 1}] * 2, _FIRST_ROW_ID=0, _WRITE_COLS=["b"], _MAX_SEQUENCE_NUMBER=9)
    entry = tuple((key, ["b", "b.part"] if key == "_WRITE_COLS" else value) for key, value in file.entry)
    unknown.commit("APPEND", add=[DataFile(file.name, file.rows, size=file.size, entry=entry)])
    with pytest.raises(UnsupportedFeatureError, match=r"holds 'b.part', which is not a column"):
        rows(unknown.path)

    short = evolving(tmp_path / "short")
    put(short, numbered(range(4)), 0)
    file = put(short, [{"b": 1}] * 4, 0, ["b"])
    pq.write_table(pa.table({"b": pa.array([1, 2, 3], pa.int64())}), short.path / "bucket-0" / file.name)
    with pytest.raises(DamagedTableError, match=f"{file.name} has 3 rows, but the table's log says 4"):
        rows(short.path)


def test_statistics_of_an_anchor_say_nothing_of_newer_columns(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    bounds = {"_VALUE_STATS_COLS": ["b"], "_VALUE_STATS": stats(0, 30)}
    put(written, numbered(range(4)), 0, None, **bounds)
    put(written, numbered(range(4)), 4, None, **bounds)
    put(written, [{"b": 1000}] * 4, 0, ["b"])
    table = opened(written)
    snapshot = table.snapshot()
    where = Compare(("b",), ">", 500)
    assert table.may_match(snapshot, where).to_pylist() == [True, False]
    # Without a list of their own, statistics are of the columns that were written.
    partly = evolving(tmp_path / "partly")
    put(partly, [{"b": each * 10} for each in range(4)], 0, ["b"], _VALUE_STATS=stats(0, 30))
    table = opened(partly)
    assert table.may_match(table.snapshot(), where).to_pylist() == [False]
    assert table.may_match(table.snapshot(), Compare(("b",), "=", 20)).to_pylist() == [True]


def stats(least: int, greatest: int) -> dict[str, Any]:
    rows = {
        key: encode_row([value], [parse_type("BIGINT")])
        for key, value in (("_MIN_VALUES", least), ("_MAX_VALUES", greatest))
    }
    return {**rows, "_NULL_COUNTS": [0]}


def test_tasks_are_serializable_and_never_split(tmp_path: Path) -> None:
    written = evolving(tmp_path)
    anchor = put(written, numbered(range(50)), 0, None, write=partial(pq.write_table, row_group_size=7))
    put(written, [{"b": -each} for each in range(50)], 0, ["b"], write=partial(pq.write_table, row_group_size=11))
    written.delete({anchor: range(0, 50, 3)})
    table = opened(written)
    (task,) = table.scan_tasks(table.snapshot())
    assert len(parts_of(task.sources[0])) == 2
    assert ScanTask.from_json(json.loads(json.dumps(task.to_json()))) == task
    splits = plan_splits([task], 1)
    assert len(splits) == 1
    got = [row for split in splits for batch in scan_split(split) for row in batch.to_pylist()]
    assert got == [{"id": each, "a": f"a{each}", "b": -each} for each in range(50) if each % 3]
    with open_source(task.sources[0], task, table.storage) as reader:
        assert (reader.rows, reader.purged) == (50, 17)
        assert reader.size == sum(part.size for part in parts_of(task.sources[0]))
        places = [place for live in reader.live() for place in live.positions().to_pylist()]
        assert list(reader.batches(Span(1))) == []
    assert places == [each for each in range(50) if each % 3]


# -- any layout of the files --------------------------------------------------------------------------------------


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_rows_come_together_whatever_the_files_are_cut_into(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Row groups, formats and ages at random, against rows in a dictionary."""
    written = evolving(tmp_path_factory.mktemp("any"))
    count = data.draw(st.integers(1, 40))
    expected = numbered(range(count))
    columns: Mapping[str, Any] = {"a": st.text("xy", max_size=3) | st.none(), "b": st.integers(-9, 9) | st.none()}

    def cut() -> dict[str, Any]:
        if data.draw(st.sampled_from(["parquet", "parquet", "orc"])) == "orc":
            from pyarrow import orc

            return {"suffix": ".orc", "write": lambda table, path: orc.write_table(table, str(path))}
        return {"write": partial(pq.write_table, row_group_size=data.draw(st.integers(1, 50)))}

    anchor = put(written, expected, 0, None, **cut())
    for _ in range(data.draw(st.integers(0, 4))):
        names = data.draw(st.sampled_from([["a"], ["b"], ["a", "b"]]))
        values = [{name: data.draw(columns[name]) for name in names} for _ in range(count)]
        put(written, values, 0, names, **cut())
        expected = [{**old, **new} for old, new in zip(expected, values, strict=True)]
    deleted = data.draw(st.sets(st.integers(0, count - 1)))
    if deleted:
        written.delete({anchor: deleted})
    wanted = data.draw(st.lists(st.sampled_from(["id", "a", "b"]), min_size=1, max_size=3, unique=True))
    left = [{name: row[name] for name in wanted} for at, row in enumerate(expected) if at not in deleted]
    assert rows(written.path, columns=wanted) == left
    snapshot = opened(written).snapshot()
    counts = health(snapshot).counts
    assert (counts.files, counts.physical_rows, counts.deleted_rows) == (1, count, len(deleted))
    ranges = live_ranges(DeletionVector.from_positions(deleted), count)
    if deleted and len(ranges) <= 10:
        assert purged(written) == [(start, stop - start) for start, stop in ranges]
        assert rows(written.path, columns=wanted) == left


def test_parts_of_different_lengths_are_damage() -> None:
    """However a reader of one part comes to give other rows than that of another."""

    class Part:
        rows, purged, size = 9, 0, 1

        def __init__(self, name: str, *batches: int) -> None:
            self.name, self.counts = name, batches

        def batches(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[pa.RecordBatch]:
            return (live.batch for live in self.live(span, predicate))

        def live(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[LiveRows]:
            assert (span, predicate) == (WHOLE, None), "no part may skip rows by itself"
            first = 0
            for count in self.counts:
                batch = pa.record_batch({self.name: pa.nulls(count, pa.int64())})
                yield LiveRows(batch, first, count, None)
                first += count

    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])

    def lengths(*parts: Part) -> list[int]:
        return [batch.num_rows for batch in SideBySide("file:///anchor", parts, schema).batches()]

    assert lengths(Part("a", 4, 5), Part("b", 3, 3, 3)) == [3, 1, 2, 3]
    assert lengths(Part("a"), Part("b")) == []
    for parts in [(Part("a", 4), Part("b", 3)), (Part("a", 4), Part("b", 4, 1)), (Part("a"), Part("b", 2))]:
        with pytest.raises(DamagedTableError, match="anchor together have different numbers of rows"):
            lengths(*parts)
