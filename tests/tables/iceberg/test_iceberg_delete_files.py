"""Delete files that other writers left: equality deletes, and position deletes of format version 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.iceberg_edits import edit

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, RefusedError, UnsupportedFeatureError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.iceberg.snapshot import load_snapshot
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

DATA, POSITIONS, EQUALITY = 0, 1, 2
PARTITION = "1000"  # the id of the partition field


def rows(place: Path, columns: list[str] | None = None) -> list[tuple[Any, ...]]:
    _, batches = read(open_table(str(place)), None, columns=columns)
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> IcebergBuilder:
    """Partitioned by ``p``. Paths of files need not say so."""
    builder = IcebergBuilder(tmp_path / "t")
    builder.create({"id": "long", "p": "string"}, ["p"])
    return builder


def file(table: IcebergBuilder, rows: pa.Table, partition: str, content: int, **more: Any) -> dict[str, Any]:
    """The fields of ``data_file`` of a new file with these rows."""
    path = f"data/{uuid4()}.parquet"
    with table.storage.open_output(path) as sink:
        pq.write_table(rows, sink)
    size, place = table.storage.head(path).size, f"{table.location}/{path}"
    return {
        "134": content,
        "100": place,
        "101": "PARQUET",
        "102": {PARTITION: partition},
        "103": rows.num_rows,
        "104": size,
        **more,
    }


def test_equality_deletes_compare_a_partition_column_that_files_lack(table: IcebergBuilder, tmp_path: Path) -> None:
    """Files of Hive tables that were imported lack it. Its value comes from the manifest, as in any other scan."""
    schema = load_snapshot(table.layout).table_schema.arrow
    ids = pa.table({"id": [1, 2, 3]}).cast(pa.schema([schema.field("id")]))
    table.commit("append", added=[file(table, ids, p, DATA) for p in ("a", "b")])
    gone = pa.table({"id": [1, 2], "p": ["a", "b"]}).cast(schema)
    table.commit("delete", deletes=[file(table, gone, "a", EQUALITY, **{"135": [1, 2]})])
    left = [(1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "b")]
    assert rows(tmp_path / "t") == left
    assert rows(tmp_path / "t", ["id"]) == [(1,), (2,), (2,), (3,), (3,)]
    report = purge(open_table(str(tmp_path / "t")), LocalEngine())
    assert report.verified, report.problems
    assert rows(tmp_path / "t") == left
    assert not load_snapshot(table.layout).deletes.equality


def positions(table: IcebergBuilder, files: list[str], partition: str) -> dict[str, Any]:
    """A delete file with the first row of each of ``files``."""
    fields = {"file_path": (pa.string(), 2147483546), "pos": (pa.int64(), 2147483545)}
    schema = pa.schema(
        [pa.field(name, kind, False, {"PARQUET:field_id": str(number)}) for name, (kind, number) in fields.items()]
    )
    return file(table, pa.table({"file_path": files, "pos": [0] * len(files)}, schema), partition, POSITIONS)


def test_position_deletes_of_another_partition(table: IcebergBuilder, tmp_path: Path) -> None:
    """DuckDB wrote such after a change of the specification (duckdb/duckdb-iceberg#1274). Iceberg's own readers go by
    the path if a file names only one data file, and refuse it; else by the partition, and ignore it.
    """
    for p in ("a", "a", "b"):
        table.append(pa.table({"id": [1, 2], "p": [p, p]}), [p])
    first, second, other = sorted(load_snapshot(table.layout).files["path"].to_pylist())
    table.commit("delete", deletes=[positions(table, [first, second, other], "a")])
    assert rows(tmp_path / "t") == [(1, "b"), (2, "a"), (2, "a"), (2, "b")]
    table.commit("delete", deletes=[positions(table, [other], "a")])
    with pytest.raises(DamagedTableError, match=r"the partition of the delete file .* is not that of the data file"):
        rows(tmp_path / "t")


@pytest.mark.parametrize("field", ["sequence-number", "last-sequence-number"])
def test_rows_that_came_after_a_delete_stay_without_the_numbers_of_snapshots(
    table: IcebergBuilder, tmp_path: Path, field: str
) -> None:
    """A new file must not be older than the equality deletes that were applied to its rows, whatever the snapshots say.
    One of a table from format version 1 does not state its number.
    """
    schema = load_snapshot(table.layout).table_schema.arrow
    for number in (1, 2):
        table.commit("append", added=[file(table, pa.table({"id": [number], "p": ["a"]}).cast(schema), "a", DATA)])
    gone = pa.table({"id": [1], "p": ["a"]}).cast(schema)
    table.commit("delete", deletes=[file(table, gone, "a", EQUALITY, **{"135": [1, 2]})])
    table.commit("append", added=[file(table, pa.table({"id": [1, 3], "p": ["a", "a"]}).cast(schema), "a", DATA)])
    table.delete(lambda rows: pc.equal(rows["id"], 3))
    newest = max((tmp_path / "t/metadata").glob("v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))
    body = json.loads(newest.read_text())
    if field == "sequence-number":
        for snapshot in body["snapshots"]:
            del snapshot[field]
    else:
        body[field] = 1
    newest.write_text(json.dumps(body))
    assert rows(tmp_path / "t") == [(1, "a"), (2, "a")]
    assert purge(open_table(str(tmp_path / "t")), LocalEngine()).verified
    assert rows(tmp_path / "t") == [(1, "a"), (2, "a")]
    after = json.loads(
        max(newest.parent.glob("v*.json"), key=lambda path: int(path.name[1:].split(".")[0])).read_text()
    )
    assert after["last-sequence-number"] == after["snapshots"][-1]["sequence-number"] > 5


def number(at: int, name: str, kind: Any) -> dict[str, Any]:
    """A field of a schema."""
    return {"id": at, "name": name, "type": kind, "required": False}


@pytest.mark.parametrize("dropped", ["", "all", "a"])
def test_equality_deletes_compare_fields_in_structs(tmp_path: Path, dropped: str) -> None:
    """Also two of one struct. Columns that were dropped still count."""
    inner = {"type": "struct", "fields": [number(5, "x", "int"), number(6, "y", "string")]}
    struct = {"type": "struct", "fields": [number(3, "a", "double"), number(4, "in", inner)]}
    table = IcebergBuilder(tmp_path / "t")
    table.create({"id": "int", "s": struct})
    schema = load_snapshot(table.layout).table_schema.arrow
    values = [
        {"a": 1.0, "in": {"x": 1, "y": "b"}},
        {"a": 1.0, "in": {"x": 2, "y": "b"}},
        {"a": 1.0, "in": {"x": 2, "y": "c"}},
        {"a": None, "in": None},
        None,
        {"a": 2.0, "in": {"x": None, "y": "c"}},
        {"a": 9.0, "in": {"x": 1, "y": "d"}},
    ]
    stored = pa.table({"id": range(len(values)), "s": values}, schema)
    table.commit("append", added=[file(table, stored, "", DATA, **{"102": {}})])
    table.commit("delete", deletes=[file(table, stored.take([1, 6]), "", EQUALITY, **{"102": {}, "135": [5, 6]})])
    if dropped:

        def evolve(body: dict[str, Any]) -> None:
            left = [number(1, "id", "int")]
            if dropped == "a":
                left.append(number(2, "renamed", {"type": "struct", "fields": [number(4, "in", inner)]}))
            body["schemas"].append({"type": "struct", "schema-id": 1, "fields": left})
            body["current-schema-id"] = 1

        edit(tmp_path / "t", evolve)
    assert rows(tmp_path / "t", ["id"]) == [(0,), (2,), (3,), (4,), (5,)]
    report = purge(open_table(str(tmp_path / "t")), LocalEngine())
    assert report.verified, report.problems
    assert rows(tmp_path / "t", ["id"]) == [(0,), (2,), (3,), (4,), (5,)]
    assert not load_snapshot(table.layout).deletes.equality
    if not dropped:
        table.commit("delete", deletes=[file(table, stored.take([4]), "", EQUALITY, **{"102": {}, "135": [6]})])
        with pytest.raises(RefusedError, match=r"where s.in.y is null: engines differ"):
            rows(tmp_path / "t")


@pytest.mark.parametrize("kind", ["double", {"type": "list", "element-id": 3, "element": "int"}])
def test_equality_deletes_that_the_specification_forbids(tmp_path: Path, kind: Any) -> None:
    table = IcebergBuilder(tmp_path / "t")
    table.create({"id": "int", "v": kind})
    stored = load_snapshot(table.layout).table_schema.arrow.empty_table()
    table.commit("append", added=[file(table, stored, "", DATA, **{"102": {}})])
    table.commit("delete", deletes=[file(table, stored, "", EQUALITY, **{"102": {}, "135": [2]})])
    with pytest.raises(UnsupportedFeatureError, match=r"compare column v; Iceberg's specification forbids"):
        rows(tmp_path / "t")
