"""Bounds of columns in manifests: no file with a matching row is left out, and files without one are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.releases import golden_params
from test_golden_iceberg import of_kind

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.scan import scan
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables import open_table
from dv_maintenance.tables.iceberg.rows.bounds import _value
from dv_maintenance.tables.iceberg.snapshot import load_snapshot
from dv_maintenance.tables.predicate import Compare, IsIn, IsNull, Predicate, StartsWith
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

COLUMNS = {
    "i": pa.int32(),
    "l": pa.int64(),
    "f": pa.float64(),
    "dec": pa.decimal128(9, 2),
    "day": pa.date32(),
    "ts": pa.timestamp("us"),
    "tz": pa.timestamp("us", "UTC"),
    "s": pa.string(),
    "flag": pa.bool_(),
}


def rows(step: int) -> pa.Table:
    """Ten rows, each column beyond those of smaller steps."""
    numbers = range(step * 10, step * 10 + 10)
    columns: dict[str, list[Any]] = {
        "i": [-1000 + number for number in numbers],
        "l": [-(2**40) + number for number in numbers],
        "f": [number / 4 for number in numbers],
        "dec": [Decimal(-500 + number) / 100 for number in numbers],
        "day": [date(1969, 12, 1 + step * 10 + at) for at in range(10)],
        "ts": [datetime(1969, 12, 31, 23, step, at) for at in range(10)],
        "tz": [datetime(1969, 12, 31, 23, step, at) for at in range(10)],
        "s": [f"{'é' * 20}{number:03}" if step else f"a{number}" for number in numbers],
        "flag": [bool(step)] * 10,
    }
    return pa.table({name: pa.array(columns[name], kind) for name, kind in COLUMNS.items()})


@pytest.fixture
def two_files(tmp_path: Path) -> Any:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("t", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", rows(0).schema)
    for step in range(2):
        table.append(rows(step))
    return open_table(table.metadata_location)


@pytest.mark.parametrize("name", list(COLUMNS))
def test_files_without_a_match_are_left_out(two_files: Any, name: str) -> None:
    snapshot = two_files.snapshot()
    for step in range(2):
        for value in set(rows(step)[name].to_pylist()):
            kept = two_files.may_match(snapshot, Compare((name,), "=", value)).to_pylist()
            assert sum(kept) == 1, value
    assert not any(two_files.may_match(snapshot, IsNull((name,))).to_pylist())
    least, greatest = (pc.min_max(pa.concat_arrays(rows(step)[name].chunks)).as_py() for step in range(2))
    beyond = Compare((name,), ">", greatest["max"])
    if name != "f":  # a NaN, which no count excludes
        # Text is cut off after 16 characters, and times may be cut to milliseconds.
        assert sum(two_files.may_match(snapshot, beyond).to_pylist()) == int(name in {"s", "ts", "tz"})
    assert not any(two_files.may_match(snapshot, Compare((name,), "<", least["min"])).to_pylist())
    found = two_files.column_bounds(snapshot, [name])[name]
    assert found.nulls.to_pylist() == [0, 0]
    ordered = sorted(zip(found.minimum.to_pylist(), found.maximum.to_pylist(), strict=True))
    if name == "f":
        assert [each for _, each in ordered] == [None, None]
    elif name != "s":
        cut = timedelta(microseconds=999) if name in {"ts", "tz"} else 0
        assert ordered == [(each["min"], each["max"] + cut if cut else each["max"]) for each in (least, greatest)]


def conditions(name: str, column: pa.ChunkedArray) -> Iterator[Predicate]:
    values = [each for each in pc.unique(column).to_pylist() if each is not None and each == each][:8]
    yield IsNull((name,))
    for value in values:
        yield from (Compare((name,), operator, value) for operator in ("=", "<=", ">="))
        if isinstance(value, str):
            yield StartsWith((name,), value[:2])
    yield IsIn((name,), tuple(values))


def holds(condition: Predicate, column: pa.ChunkedArray) -> bool:
    match condition:
        case IsNull():
            return bool(column.null_count)
        case IsIn(_, values):
            return any(each in values for each in column.to_pylist() if each is not None)
        case StartsWith(_, prefix):
            return any(each.startswith(prefix) for each in column.to_pylist() if each is not None)
        case Compare(_, operator, value):
            tests: dict[str, Callable[[Any], bool]] = {
                "=": lambda each: each == value,
                "<=": lambda each: each <= value,
                # To Spark, NaN is greater than every number.
                ">=": lambda each: each >= value or each != each,
            }
            return any(tests[operator](each) for each in column.to_pylist() if each is not None)
    raise AssertionError(condition)


@pytest.mark.parametrize("name", golden_params(of_kind("rows", "odd")))
def test_no_file_of_a_golden_table_is_left_out_that_holds_a_row(laid: Callable[[str], Path], name: str) -> None:
    table: Any = open_table(str(laid(name)))
    snapshot = table.snapshot()
    tasks = table.scan_tasks(snapshot)
    by_file: dict[str, list[pa.RecordBatch]] = {}
    for task in tasks:
        by_file.setdefault(task.sources[0].key.path, []).extend(scan(task))
    paths = snapshot.files["path"].to_pylist()
    for field in snapshot.schema:
        columns = {
            path: pa.chunked_array([batch[field.name] for batch in batches], field.type)
            for path, batches in by_file.items()
        }
        if pa.types.is_nested(field.type) or not columns:
            continue
        whole = pa.chunked_array([chunk for each in columns.values() for chunk in each.chunks], field.type)
        for condition in conditions(field.name, whole):
            kept = dict(zip(paths, table.may_match(snapshot, condition).to_pylist(), strict=True))
            for path, column in columns.items():
                assert kept[path] or not holds(condition, column), (path, condition)


@pytest.mark.parametrize(
    ("data", "kind", "value"),
    [
        (struct.pack("<i", -5), pa.int64(), -5),  # from before it was long
        (struct.pack("<q", -5), pa.int32(), None),
        (struct.pack("<i", 3), pa.timestamp("us"), None),  # from before it was a timestamp
        (struct.pack("<i", 3), pa.date32(), 3),
        (struct.pack("<f", 1.5), pa.float64(), 1.5),
        (struct.pack("<d", float("nan")), pa.float64(), None),
        (struct.pack("<d", float("inf")), pa.float64(), None),
        (b"\xff", pa.decimal128(38, 2), Decimal("-0.01")),
        ((10**37 + 1).to_bytes(16, "big"), pa.decimal128(38, 2), Decimal("100000000000000000000000000000000000.01")),
        (b"", pa.decimal128(38, 2), None),
        (b"\xc3", pa.string(), None),
        (b"", pa.string(), ""),
        (b"", pa.bool_(), None),
        ("text", pa.string(), None),
        (None, pa.int32(), None),
    ],
)
def test_a_bound_of_another_form_is_unknown(data: Any, kind: pa.DataType, value: Any) -> None:
    assert _value(data, kind) == value


def millis(moment: datetime) -> bytes:
    return struct.pack("<q", (moment - datetime(1970, 1, 1)) // timedelta(milliseconds=1) * 1000)


MOMENT = datetime(2026, 8, 10, 20, 4, 53, 80758)


@pytest.mark.parametrize(
    ("condition", "figures"),
    [
        # UniForm copied greatest values that Delta cuts to milliseconds (https://github.com/delta-io/delta/issues/7444).
        (Compare(("ts",), "=", MOMENT), {"125": {2: millis(MOMENT)}, "128": {2: millis(MOMENT)}}),
        (Compare(("ts",), ">", MOMENT.replace(microsecond=80757)), {"128": {2: millis(MOMENT)}}),
        # Bounds in the wrong order (https://github.com/ClickHouse/ClickHouse/issues/116499).
        (Compare(("id",), "<", 5), {"125": {1: struct.pack("<q", 9)}, "128": {1: struct.pack("<q", 0)}}),
        # The nulls of all files of a commit, of which this one has one row (ClickHouse, before pull request 112414).
        (Compare(("id",), "=", 3), {"110": {1: 2}}),
        (Compare(("id",), "=", 3), {"110": {1: 1}, "125": {1: struct.pack("<q", 3)}}),
    ],
    ids=["cut", "beyond the cut", "inverted", "more nulls than rows", "nulls and a bound"],
)
def test_figures_that_known_writers_get_wrong_leave_out_no_file(
    tmp_path: Path, condition: Predicate, figures: dict[str, dict[int, Any]]
) -> None:
    builder = IcebergBuilder(tmp_path)
    builder.create({"id": "long", "ts": "timestamp"})
    builder.append(pa.table({"id": [3], "ts": pa.array([MOMENT], pa.timestamp("us"))}))
    (only,) = load_snapshot(builder.layout).files.to_pylist()
    pairs = {"110": ("121", "122"), "125": ("126", "127"), "128": ("129", "130")}
    stored = {
        name: [{pairs[name][0]: key, pairs[name][1]: value} for key, value in of_column.items()]
        for name, of_column in figures.items()
    }
    entry = {"134": 0, "100": only["path"], "101": "PARQUET", "102": {}, "103": 1, "104": only["size"]}
    builder.commit("overwrite", removed={only["path"]})
    builder.commit("append", added=[entry | stored])
    table: Any = open_table(str(tmp_path))
    assert table.may_match(table.snapshot(), condition).to_pylist() == [True]


def test_a_delete_opens_only_files_that_may_match(laid_copy: Callable[[str], Path]) -> None:
    place = laid_copy("schema_evolved")
    table: Any = open_table(str(place))
    snapshot = table.snapshot()
    ids = snapshot.schema.names[0]
    found = {task.sources[0].key.path: [*scan(task)] for task in table.scan_tasks(snapshot)}
    path, value = next(
        (path, value)
        for path, batches in found.items()
        for batch in batches
        for value in batch[ids].to_pylist()
        if sum(table.may_match(snapshot, Compare((ids,), "=", value)).to_pylist()) == 1
    )
    others = [place / name for name in (table.path_of(each) for each in found if each != path)]
    assert others
    for each in others:
        each.write_bytes(b"nobody opens this")
    assert delete(table, LocalEngine(), f"{ids} = {value}").rows_deleted
    with pytest.raises(DamagedTableError):
        delete(table, LocalEngine(), f"{ids} >= {value} OR {ids} <= {value}")
