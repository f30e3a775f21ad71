"""Rows of tables that pyiceberg writes: format versions 1 and 2, every type, every transform, files without ids; and
rows that equality deletes name.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.rows.values_to_drop import ValuesToDrop
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.partition_values import value_of
from dv_maintenance.tables.predicate import Compare, IsNull, Predicate
from dv_maintenance.tables.work import ScanTask, SourceFile

pytest.importorskip("pyiceberg")

ROWS = pa.table(
    {
        "flag": [True, False, None],
        "i": pa.array([1, -1, None], pa.int32()),
        "l": pa.array([2**40, -(2**40), None], pa.int64()),
        "f": pa.array([1.5, -0.5, None], pa.float32()),
        "d": [1e300, -1.25, None],
        "dec": pa.array([Decimal("1.50"), Decimal("-0.05"), None], pa.decimal128(9, 2)),
        "day": [date(2026, 11, 20), date(1969, 12, 31), None],
        "at": pa.array([time(9, 30, 0, 5), time(0), None], pa.time64("us")),
        "ts": pa.array([datetime(2026, 11, 20, 9, 30), datetime(1969, 12, 31, 23, 0, 0, 5), None], pa.timestamp("us")),
        "tz": pa.array([datetime(2026, 11, 20, 9, 30), datetime(1969, 12, 31, 23), None], pa.timestamp("us", "UTC")),
        "s": ["a/b=c", "", None],
        "b": [b"\x00\xff", b"", None],
        "fx": pa.array([b"abc", b"def", None], pa.binary(3)),
        "many": [[1, None], [], None],
        "st": [{"x": 1, "y": "q"}, {"x": None, "y": None}, None],
    }
)
TRANSFORMS = [
    *[(name, "identity") for name in ("flag", "i", "l", "dec", "day", "at", "ts", "tz", "s", "b", "fx")],
    *[(name, "bucket[4]") for name in ("i", "l", "dec", "day", "s", "b")],
    *[(name, "truncate[2]") for name in ("i", "l", "dec", "s")],
    *[(name, period) for name in ("ts", "tz") for period in ("year", "month", "day", "hour")],
    *[("day", period) for period in ("year", "month", "day")],
    ("s", "void"),
]


def made(place: Path, version: int, rows: pa.Table = ROWS, partitions: list[tuple[str, str]] | None = None) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import parse_transform

    catalog = SqlCatalog("t", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    catalog.create_namespace_if_not_exists("n")
    table = catalog.create_table("n.t", rows.schema, properties={"format-version": str(version)})
    if partitions:
        with table.update_spec() as update:
            for number, (name, transform) in enumerate(partitions):
                update.add_field(name, parse_transform(transform), f"p{number}")
    return table


def rows_of(table: Any) -> pa.Table:
    schema, batches = read(open_table(table.metadata_location))
    return pa.Table.from_batches(batches, schema)


@pytest.mark.parametrize("version", [1, 2])
def test_every_type_of_old_tables(tmp_path: Path, version: int) -> None:
    table = made(tmp_path, version)
    table.append(ROWS)
    table.append(ROWS)
    found = rows_of(table)
    assert found.to_pylist() == ROWS.to_pylist() * 2
    snapshot = open_table(table.metadata_location).snapshot()
    assert health(snapshot).counts.live_rows == 6
    assert snapshot.hidden_columns.names == []


def test_version_1_is_compacted_and_vacuumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what its manifests have: no ages, and a block size."""
    table = made(tmp_path, 1, ROWS.select(["i", "s"]), [("s", "identity")])
    monkeypatch.setenv("PYICEBERG_CATALOG__T__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__T__URI", f"sqlite:///{tmp_path}/catalog.db")
    for _ in range(3):
        table.append(ROWS.select(["i", "s"]))
    opened = open_table("iceberg:t.n.t")
    before = opened.snapshot()
    report = maintain(opened, LocalEngine(), Policy(min_input_files=2))
    assert report.verified, report.problems
    assert len(opened.snapshot().files) < len(before.files)
    request = VacuumRequest(retention=0, allow_short_retention=True, guard=VacuumGuard(max_deleted_share=1.0))
    assert opened.vacuum(replace(request, now=opened.snapshot().timestamp + 1)).deleted
    table.refresh()
    assert len(table.snapshots()) == 1
    found = sorted(map(repr, table.scan().to_arrow().to_pylist()))
    assert found == sorted(map(repr, ROWS.select(["i", "s"]).to_pylist() * 3))
    table.append(ROWS.select(["i", "s"]))
    assert table.scan().to_arrow().num_rows == 4 * len(ROWS)


@pytest.mark.parametrize("name_and_transform", TRANSFORMS, ids="-".join)
def test_partitions(tmp_path: Path, name_and_transform: tuple[str, str]) -> None:
    """Rows come back whatever the transform, and each name of a partition has a value that can be read."""
    name, transform = name_and_transform
    table = made(tmp_path, 2, ROWS, [(name, transform)])
    table.append(ROWS)
    found = sorted(map(repr, rows_of(table).to_pylist()))
    assert found == sorted(map(repr, ROWS.to_pylist()))
    opened = open_table(table.metadata_location)
    snapshot = opened.snapshot()
    (field,) = snapshot.specs[-1].fields
    assert (field.source, field.transform) == (name, transform)
    for each in health(snapshot).partitions:
        assert list(each.partition) in ([], ["spec_id"], ["spec_id", "p0"])
        value_of(each.partition.get("p0"), field.kind(snapshot.schema))


def test_partitions_rule_files_out(tmp_path: Path) -> None:
    table = made(tmp_path, 2, ROWS, [("day", "month"), ("s", "truncate[2]")])
    table.append(ROWS)
    opened: Any = open_table(table.metadata_location)
    snapshot = opened.snapshot()
    assert snapshot.files.num_rows == 3
    conditions: list[tuple[Predicate, int]] = [
        (Compare(("day",), ">=", date(2026, 1, 1)), 1),
        (Compare(("day",), "<", date(1970, 1, 1)), 1),
        (Compare(("s",), "=", "a/b=c"), 1),
        (IsNull(("day",)), 1),
        (Compare(("i",), "=", 1), 1),  # by the bounds of the column
    ]
    for condition, kept in conditions:
        assert sum(opened.may_match(snapshot, condition).to_pylist()) == kept, condition


def test_an_evolved_specification(tmp_path: Path) -> None:
    from pyiceberg.transforms import DayTransform

    table = made(tmp_path, 2, ROWS, [("i", "identity")])
    table.append(ROWS)
    with table.update_spec() as update:
        update.remove_field("p0")
        update.add_field("ts", DayTransform(), "ts_day")
    table.append(ROWS)
    assert len(rows_of(table)) == 6
    names = set(open_table(table.metadata_location).snapshot().files["partition"].to_pylist())
    assert len(names) == 6
    assert len({name.partition("/")[0] for name in names}) == 2


def test_files_without_ids_are_read_by_the_name_mapping(tmp_path: Path) -> None:
    table = made(tmp_path, 2)
    pq.write_table(ROWS, tmp_path / "imported.parquet")
    table.add_files([f"file://{tmp_path}/imported.parquet"])
    assert rows_of(table).to_pylist() == ROWS.to_pylist()
    with table.update_schema() as update:
        update.rename_column("s", "renamed")
        update.add_column("fresh", table.schema().find_field("l").field_type)
    found = rows_of(table)
    assert found["renamed"].to_pylist() == ROWS["s"].to_pylist()
    assert found["fresh"].to_pylist() == [None] * 3
    with table.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(RefusedError, match="has no field ids"):
        rows_of(table)


# -- rows that are deleted by their values --------------------------------------------------------------------------

VALUES = pa.table({"a": pa.array([1, 1, None, 3], pa.int64()), "b": ["x", None, "y", "z"]})
SCHEMA = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())])


def values_in(tmp_path: Path, values: pa.Table) -> ValuesToDrop:
    path = tmp_path / "values.parquet"
    pq.write_table(values, path)
    source = SourceFile(FileKey("values"), f"file://{path}", path.stat().st_size, values.num_rows)
    task = ScanTask((source,), SCHEMA.empty_table().select(values.column_names).schema)
    return ValuesToDrop.load({"values": task.to_json(), "constants": {}}, Storage(str(tmp_path)))


def test_rows_are_compared_as_wholes_and_nulls_are_equal(tmp_path: Path) -> None:
    values = values_in(tmp_path, VALUES)
    rows = [(1, "x"), (1, "y"), (1, None), (None, "y"), (None, None), (3, "z"), (3, "x"), (4, "z")]
    columns = [pa.array([a for a, _ in rows], pa.int64()), pa.array([b for _, b in rows], pa.string())]
    assert values.among(columns).to_pylist() == [True, False, True, True, False, True, False, False]
    only_a = values_in(tmp_path, VALUES.select(["a"]))
    assert only_a.among(columns[:1]).to_pylist() == [True, True, True, True, True, True, True, False]
    assert values_in(tmp_path, VALUES.slice(0, 0)).among(columns).to_pylist() == [False] * 8
    assert values_in(tmp_path, VALUES.slice(0, 2).select(["a"])).among(
        [pa.array([None, 1], pa.int64())]
    ).to_pylist() == [
        False,
        True,
    ]
