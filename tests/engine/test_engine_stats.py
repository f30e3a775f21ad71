"""Statistics of new files against values computed from the rows."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.engine.parquet.special_floats import SpecialFloats
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.engine.stats import StatsCollector
from dv_maintenance.errors import UsageError
from dv_maintenance.tables.work import ColumnStats

EPOCH = dt.datetime(1970, 1, 1)


def collect(table: pa.Table, *columns: tuple[str, ...], group_rows: int = 3) -> list[ColumnStats]:
    sink = pa.BufferOutputStream()
    collector = StatsCollector(table.schema, columns)
    odd = SpecialFloats(table.schema)
    with pq.ParquetWriter(sink, table.schema, store_schema=False, store_decimal_as_integer=True) as file:
        for start in range(0, table.num_rows, group_rows):
            [batch] = table.slice(start, group_rows).combine_chunks().to_batches()
            file.write_batch(batch)
            collector.add(batch)
            odd.add(batch)
    return list(collector.fold(pq.read_metadata(pa.BufferReader(sink.getvalue())), odd.nan, odd.negative_zero))


def micros(when: dt.datetime) -> int:
    return (when.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda unscaled: Decimal(unscaled).scaleb(-scale))


def abs_zero(value: float) -> float:
    """Without the sign of a zero: see ``test_a_negative_zero_is_not_told_for_a_zero``."""
    return value + 0.0


# Arrow type, values, and their JSON form.
ORDERED: dict[str, tuple[Any, st.SearchStrategy[Any], Any]] = {
    "i8": (pa.int8(), st.integers(-128, 127), int),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1), int),
    "bool": (pa.bool_(), st.booleans(), bool),
    "f64": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False).map(abs_zero), float),
    "f32": (pa.float32(), st.floats(allow_nan=False, allow_infinity=False, width=32).map(abs_zero), float),
    "d9": (pa.decimal128(9, 2), decimals(9, 2), lambda value: format(value, "f")),
    "d18": (pa.decimal128(18, 0), decimals(18, 0), lambda value: format(value, "f")),
    "d38": (pa.decimal128(28, 27), decimals(28, 27), lambda value: format(value, "f")),
    "date": (pa.date32(), st.dates(), lambda value: (value - EPOCH.date()).days),
    "ts": (pa.timestamp("us", tz="UTC"), st.datetimes(), micros),
    "ntz": (pa.timestamp("us"), st.datetimes(), micros),
    "text": (pa.string(), st.text(max_size=5), str),
}


@pytest.mark.parametrize("kind", ORDERED)
@settings(max_examples=examples(15))
@given(data=st.data())
def test_bounds_are_the_least_and_greatest_value(kind: str, data: st.DataObject) -> None:
    stored, some, json_of = ORDERED[kind]
    values = data.draw(st.lists(st.none() | some, min_size=1, max_size=10))
    [stats] = collect(pa.table({"a": pa.array(values, stored)}), ("a",))
    order = (lambda value: value.encode()) if kind == "text" else None
    present = sorted((value for value in values if value is not None), key=order)
    assert stats.null_count == values.count(None)
    assert stats.minimum == (json_of(present[0]) if present else None)
    assert stats.maximum == (json_of(present[-1]) if present else None)
    assert json.loads(json.dumps(stats.minimum)) == stats.minimum


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                "x": st.none() | st.integers(-5, 5),
                "deep": st.none()
                | st.fixed_dictionaries({"y": st.none() | st.floats(allow_infinity=False).map(abs_zero)}),
                "l": st.none() | st.lists(st.none() | st.integers(0, 3), max_size=2),
                "m": st.none() | st.lists(st.tuples(st.just("k"), st.none()), max_size=2),
            }
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_leaf_of_a_null_struct_is_null(rows: list[Any]) -> None:
    struct = pa.struct(
        [
            ("x", pa.int64()),
            ("deep", pa.struct([("y", pa.float64())])),
            ("l", pa.list_(pa.int64())),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    table = pa.table({"before": [[1, 2, 3]] * len(rows), "s": pa.array(rows, struct)})
    x, y, items, map_, before = collect(
        table, ("s", "x"), ("s", "deep", "y"), ("s", "l"), ("s", "m"), ("before",), group_rows=5
    )
    some = [row or {"x": None, "deep": None, "l": None, "m": None} for row in rows]
    xs = [row["x"] for row in some]
    ys = [(row["deep"] or {"y": None})["y"] for row in some]
    present = [value for value in xs if value is not None]
    assert (x.null_count, x.minimum) == (xs.count(None), min(present, default=None))
    numbers = [value for value in ys if value is not None]
    nan = any(math.isnan(value) for value in numbers)
    assert y.null_count == ys.count(None)
    assert (y.minimum, y.maximum) == ((None, None) if nan or not numbers else (min(numbers), max(numbers)))
    assert items == ColumnStats(("s", "l"), [row["l"] for row in some].count(None))
    assert map_ == ColumnStats(("s", "m"), [row["m"] for row in some].count(None))
    assert before == ColumnStats(("before",), 0)


@pytest.mark.parametrize(
    ("values", "type", "bounds"),
    [
        ([1.0, math.nan], pa.float64(), (None, None)),
        ([math.nan], pa.float32(), (None, None)),
        # NaN in one row group only.
        ([1.0, 2.0, 3.0, math.nan, 5.0], pa.float64(), (None, None)),
        ([1.0, math.inf], pa.float64(), (1.0, None)),
        ([-math.inf, 1.0], pa.float64(), (None, 1.0)),
        ([b"a"], pa.binary(), (None, None)),
        ([None, None], pa.string(), (None, None)),
        # One row group with nulls only does not hide the others.
        ([None, None, None, 4], pa.int64(), (4, 4)),
        # So long that the writer keeps no bound of it.
        (["a", "b", "c", "x" * 10_000], pa.string(), (None, None)),
        (["x" * 1000], pa.string(), ("x" * 1000, "x" * 1000)),
    ],
    ids=["NaN", "only NaN", "NaN later", "inf", "-inf", "binary", "null", "null first", "too long", "long"],
)
def test_no_bound_rather_than_a_wrong_one(values: Any, type: Any, bounds: Any) -> None:
    [stats] = collect(pa.table({"a": pa.array(values, type)}), ("a",))
    assert (stats.minimum, stats.maximum) == bounds
    assert stats.null_count == values.count(None)


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ([-0.0, None], (None, None)),
        ([0.0, -0.0], (None, None)),
        ([-1.0, -0.0], (None, None)),
        ([-1.0, -0.0, 1.0], (-1.0, 1.0)),
        ([0.0, 1.0], (0.0, 1.0)),
    ],
    ids=str,
)
def test_a_negative_zero_is_not_told_for_a_zero(values: list[float | None], bounds: Any) -> None:
    """MIN and MAX are answered from statistics, and a footer does not tell the two zeros apart."""
    [stats] = collect(pa.table({"a": values}), ("a",))
    assert (stats.minimum, stats.maximum) == bounds


def test_text_that_is_no_utf8_has_no_bounds() -> None:
    broken = pa.array([b"\xff"]).cast(pa.string(), safe=False)
    [stats] = collect(pa.table({"a": broken}), ("a",))
    assert stats == ColumnStats(("a",), 0)


def test_dots_in_names_lead_to_their_own_column() -> None:
    table = pa.table({"a": [{"b": 1}], "a.b": [2]})
    first, second = collect(table, ("a", "b"), ("a.b",))
    assert (first.minimum, second.minimum) == (1, 2)


@pytest.mark.parametrize("column", [("gone",), ("s",), ("s", "gone"), ("i", "x"), ()], ids=str)
def test_what_is_no_leaf_has_no_statistics(column: tuple[str, ...]) -> None:
    schema = pa.schema([("s", pa.struct([("x", pa.int64())])), ("i", pa.int64())])
    with pytest.raises(UsageError, match="statistics are requested for"):
        StatsCollector(schema, [column])


def test_each_file_has_its_own(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.engine.parquet.footer.MAX_BATCH_ROWS", 1000)
    table = pa.table({"id": range(10_000), "f": [math.nan] + [1.0] * 9999})
    task = lake.task([lake.write(table)], table.schema, target_bytes=10_000, stats_columns=(("id",), ("f",)))
    outputs = rewrite(task).outputs
    assert len(outputs) > 2
    for output in outputs:
        ids = lake.read(output.uri)["id"].to_pylist()
        assert output.stats[0] == ColumnStats(("id",), 0, ids[0], ids[-1])
        assert output.stats[1].minimum == (None if ids[0] == 0 else 1.0)
