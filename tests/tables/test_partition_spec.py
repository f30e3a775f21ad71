"""Partition specifications: names of partitions, meanings of their values, and what these say about columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.tables.model import FILES_SCHEMA, Snapshot, parse_partition
from dv_maintenance.tables.partition_spec import (
    SPEC_ID,
    PartitionField,
    PartitionSpec,
    by_columns,
    fields_of,
    only,
    values_in,
)
from dv_maintenance.tables.partition_values import example_of, sql_type, value_of
from dv_maintenance.tables.predicate import Bounds, comparable

TYPES = {
    "t": pa.timestamp("us", "UTC"),
    "n": pa.timestamp("us"),
    "d": pa.date32(),
    "i": pa.int64(),
    "m": pa.decimal128(9, 2),
    "s": pa.string(),
    "f": pa.float64(),
    "b": pa.binary(),
}
SCHEMA = pa.schema(list(TYPES.items()))
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))


def human(transform: str, value: Any) -> str:
    """The text of a transform's value, as Iceberg's specification says. Written without the code under test."""
    name, _, width = transform.partition("[")
    if name in {"year", "month", "day", "hour"}:
        return value.strftime({"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}[name])
    if name == "truncate":
        size = int(width.rstrip("]"))
        if isinstance(value, str):
            return value[:size]
        unscaled = int(value.scaleb(2)) if isinstance(value, Decimal) else value
        low = unscaled - unscaled % size
        return str(Decimal(low).scaleb(-2)) if isinstance(value, Decimal) else str(low)
    return str(value)


def holds(bounds: Bounds, value: Any) -> bool:
    return bounds.values and not (
        (bounds.lower is not None and value < bounds.lower) or (bounds.upper is not None and value > bounds.upper)
    )


@settings(max_examples=examples(100))
@given(TIMES, st.sampled_from(["year", "month", "day", "hour"]), st.sampled_from(["t", "n", "d"]))
def test_a_value_lies_within_its_period(moment: datetime, transform: str, source: str) -> None:
    if (transform, source) == ("hour", "d"):
        return
    value: Any = moment.date() if source == "d" else moment.replace(tzinfo=UTC) if source == "t" else moment
    bounds = PartitionField("x", source, transform).bounds(human(transform, value), SCHEMA)
    assert holds(bounds, comparable(value, TYPES[source]))
    assert not bounds.nulls
    for away in (timedelta(days=-800), timedelta(days=400)):
        assert not holds(bounds, comparable(value + away, TYPES[source])), "it tells something"


@settings(max_examples=examples(100))
@given(
    st.one_of(
        st.tuples(st.just("i"), st.integers(-1000, 1000)),
        st.tuples(st.just("m"), st.decimals(-999, 999, places=2)),
        st.tuples(st.just("s"), st.text(st.characters(codec="utf-8"), max_size=5)),
    ),
    st.integers(1, 50),
)
def test_a_value_lies_within_its_truncation(case: tuple[str, Any], width: int) -> None:
    source, value = case
    transform = f"truncate[{width}]"
    bounds = PartitionField("x", source, transform).bounds(human(transform, value), SCHEMA)
    assert holds(bounds, comparable(value, TYPES[source])), bounds
    if source != "s":
        assert bounds.upper - bounds.lower < width


@pytest.mark.parametrize(("source", "transform"), [(s, t) for s in "tnd" for t in ("year", "month", "day", "hour")])
def test_times_before_1970_of_old_writers(source: str, transform: str) -> None:
    """Iceberg up to 0.10 rounded the numbers of their periods up (apache/iceberg#1680): Spark expects them there."""
    if (source, transform) == ("d", "hour"):
        return
    field, last = PartitionField("x", source, transform), -1 if source == "d" else -500_000
    first = human(transform, datetime(1970, 1, 1))
    # The day of a date was right.
    assert holds(field.bounds(first, SCHEMA), last) is ((source, transform) != ("d", "day"))
    after = {"year": "1971", "month": "1970-02", "day": "1970-01-02", "hour": "1970-01-01-01"}[transform]
    assert not holds(field.bounds(after, SCHEMA), comparable(datetime(1970, 1, 1).date(), TYPES["d"]))


def test_the_smallest_integers_are_in_the_range_that_wraps() -> None:
    """Their truncation is below what the type has, and comes out at its other end (apache/iceberg#9767)."""
    field, least = PartitionField("x", "i", "truncate[10000]"), -(1 << 63)
    assert holds(field.bounds(str(least - least % 10_000 + (1 << 64)), SCHEMA), least)
    assert not holds(field.bounds("9223372036854760000", SCHEMA), least)


@pytest.mark.parametrize(
    ("source", "transform", "text", "bounds"),
    [
        ("i", "identity", "7", Bounds(7, 7, nulls=False)),
        ("d", "identity", "1970-01-02", Bounds(1, 1, nulls=False)),
        ("t", "identity", "1970-01-01 00:00:01", Bounds(1_000_000, 1_000_000, nulls=False)),
        ("f", "identity", "NaN", Bounds(nulls=False, nans=True)),
        ("i", "identity", None, Bounds(values=False)),
        ("t", "day", None, Bounds(values=False)),
        # Nothing is known, but that it is not null.
        ("i", "bucket[16]", "3", Bounds(nulls=False, nans=True)),
        ("b", "identity", "AA==", Bounds(nulls=False, nans=True)),
        ("i", "identity", "seven", Bounds(nulls=False, nans=True)),
        ("i", "zorder", "3", Bounds(nulls=False, nans=True)),
    ],
)
def test_what_else_a_value_says(source: str, transform: str, text: str | None, bounds: Bounds) -> None:
    assert PartitionField("x", source, transform).bounds(text, SCHEMA) == bounds


@pytest.mark.parametrize(
    ("transform", "source", "same", "wrong", "name"),
    [
        ("day", "t", ["2026-11-20", "2026-11-20"], "2026-11-31", "DATE"),
        ("month", "t", ["2026-11", "+2026-11"], "2026-13", "MONTH"),
        ("year", "t", ["2026", "02026"], "26", "YEAR"),
        ("hour", "t", ["2026-11-20-09", "2026-11-20-9"], "2026-11-20-24", "HOUR"),
        ("bucket[16]", "s", ["3", "03"], "three", "INT"),
        ("truncate[10]", "i", ["10", "+10"], "ten", "BIGINT"),
        ("identity", "d", ["2026-11-01", "2026-11-1"], "2026-11", "DATE"),
    ],
)
def test_spellings_of_a_value(transform: str, source: str, same: list[str], wrong: str, name: str) -> None:
    kind = PartitionField("x", source, transform).kind(SCHEMA)
    assert len({value_of(text, kind) for text in same}) == 1
    assert sql_type(kind) == name
    value_of(example_of(kind), kind)
    with pytest.raises(ValueError):
        value_of(wrong, kind)


def test_names() -> None:
    (first,) = by_columns("day", "shop")
    second = PartitionSpec(
        3, (PartitionField("day", "day", "void"), PartitionField("shop_bucket", "shop", "bucket[4]"))
    )
    assert first.partition(["2026-11-20", None]) == "day=2026-11-20/shop=__HIVE_DEFAULT_PARTITION__"
    assert second.partition([None, "2"]) == "spec_id=3/shop_bucket=2"
    assert by_columns()[0].partition([]) == ""
    assert PartitionSpec(1, ()).partition([]) == "spec_id=1"
    assert parse_partition(second.partition([None, "2"])) == {SPEC_ID: "3", "shop_bucket": "2"}


def test_fields_of_several_specifications() -> None:
    specs = (
        PartitionSpec(0, (PartitionField("id_bucket", "i", "bucket[16]"), PartitionField("d", "d"))),
        PartitionSpec(1, (PartitionField("id_bucket", "i", "bucket[32]"), PartitionField("t_day", "t", "day"))),
    )
    fields = fields_of(specs)
    assert list(fields) == [SPEC_ID, "id_bucket", "d", "t_day"]
    assert [str(each) for each in fields_of(specs[1:]).values()] == ["id_bucket: bucket[32](i)", "t_day: day(t)"]
    # Bucket 3 of 16 and bucket 3 of 32 have nothing in common but their text.
    assert fields["id_bucket"].kind(SCHEMA) == pa.string()
    old, new = specs[0].partition(["3", "2026-11-20"]), specs[1].partition(["3", "2026-11-20"])
    assert only(specs, old) == {SPEC_ID: "0", "id_bucket": "3", "d": "2026-11-20"}
    assert only(specs, new) == {SPEC_ID: "1", "id_bucket": "3", "t_day": "2026-11-20"}
    assert only(specs[:1], old) == {"id_bucket": "3", "d": "2026-11-20"}
    assert values_in(parse_partition(old), ["id_bucket", SPEC_ID]) == ("3", "0")
    assert values_in(parse_partition(new), ["d"]) is None


def test_columns_that_are_constant_in_each_file() -> None:
    """DELETE may remove whole files by these, and no file can be ordered by one."""

    def constant(*specs: PartitionSpec) -> tuple[str, ...]:
        return Snapshot(
            table="t", format="m", version=0, timestamp=0, schema=SCHEMA, specs=specs, properties={},
            files=FILES_SCHEMA.empty_table(),
        ).partition_columns  # fmt: skip

    p, q = PartitionField("p", "p"), PartitionField("q", "q")
    assert constant(*by_columns("p", "q")) == ("p", "q")
    assert constant(PartitionSpec(0, (p,)), PartitionSpec(1, (q, p))) == ("p",)
    assert constant(PartitionSpec(0, (p,)), PartitionSpec(1, (PartitionField("p", "p", "bucket[4]"),))) == ()
    assert constant(PartitionSpec(0, ()), PartitionSpec(1, (p,))) == ()
