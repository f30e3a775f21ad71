"""Files left out by a condition: never one that holds a row it is true for, whoever wrote the statistics."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.conditions import COLUMNS, SCHEMA, holds, predicates, rows, sayable

from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.rows.skipping import StatsColumn, stats_bounds
from dv_maintenance.tables.predicate import (
    And,
    Compare,
    IsIn,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    Unknown,
    bind,
    may_be_true,
)
from dv_maintenance.testing.delta_builder import DeltaBuilder

# -- what a writer says about rows -------------------------------------------------------------------------------


def statistics(rows: list[dict[str, Any]], draw: Any) -> dict[str, Any]:
    """As one writer or another would have them: rows that are deleted since, other digits, parts left out."""
    lower: dict[str, Any] = {}
    upper: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name in COLUMNS:
        found = [row[name] for row in rows if row[name] is not None]
        nulls[name] = len(rows) - len(found)
        if name == "f":
            # Parquet's own statistics pass over NaN; and infinity has no place in JSON.
            found = [] if any(map(math.isinf, found)) else [value for value in found if not math.isnan(value)]
        if found:
            lower[name] = _spelt(name, min(found), -1, draw)
            upper[name] = _spelt(name, max(found), +1, draw)
    body = {"numRecords": len(rows), "minValues": lower, "maxValues": upper, "nullCount": nulls, "tightBounds": False}
    for part in (lower, upper, nulls):
        for name in draw(st.sets(st.sampled_from(sorted(COLUMNS)), max_size=2)):
            part.pop(name, None)
    for part in draw(st.sets(st.sampled_from(sorted(body)), max_size=1)):
        del body[part]
    return orjson.loads(orjson.dumps(body, default=lambda number: orjson.Fragment(f"{number:f}")))


def _spelt(name: str, value: Any, side: int, draw: Any) -> Any:
    if name == "s" and len(value) > 2:
        if side < 0:
            return value[:2]
        breaker = draw(st.sampled_from(["\x7f", "\ufffd", "\U0010ffff"]))
        # A writer that picks by code point is right; the one that knew only U+FFFD is not, and is about, too.
        return value[:2] + (breaker if breaker == "\ufffd" or breaker >= value[2] != "\U0010ffff" else value[2:])
    if name == "f":
        return draw(st.sampled_from([value, float(f"{np.float32(value)}") if abs(value) < 1e30 else value]))
    if name in {"at", "ntz"}:
        cut = value.replace(tzinfo=None, microsecond=value.microsecond // 1000 * 1000)
        return cut.isoformat(timespec="milliseconds") + ("Z" if name == "at" else "")
    return value.isoformat() if name == "day" else value


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])
@given(physical=rows(), deleted=st.sets(st.integers(0, 3)), predicate=predicates(), data=st.data())
def test_no_file_is_left_out_that_holds_a_row(
    physical: list[dict[str, Any]], deleted: set[int], predicate: Predicate, data: Any
) -> None:
    stats = statistics(physical, data.draw)
    bound = bind(predicate, SCHEMA)
    known = {(name,): stats_bounds(stats, StatsColumn((name,), (name,), type_)) for name, type_ in COLUMNS.items()}
    live = [row for at, row in enumerate(physical) if at not in deleted]
    if sayable(predicate):
        if any(holds(predicate, row) for row in live):
            assert may_be_true(bound, known.__getitem__), stats
    elif isinstance(predicate, Compare):
        assert bound == Unknown()


# -- what must be left out ---------------------------------------------------------------------------------------

STATS = {
    "numRecords": 10,
    "minValues": {
        "i": 10,
        "f": 1.5,
        "s": "apple",
        "day": "2026-01-10",
        "at": "2026-01-10T00:00:00.000Z",
        "ntz": "2026-01-10T00:00:00.000",
    },
    "maxValues": {
        "i": 20,
        "f": 2.5,
        "s": "grape",
        "day": "2026-01-20",
        "at": "2026-01-20T00:00:00.000Z",
        "ntz": "2026-01-20T00:00:00.000",
    },
    "nullCount": {"i": 0, "f": 0, "d": 10},
}
LATE = datetime(2026, 1, 20, 0, 0, 0, 2000)


@pytest.mark.parametrize(
    ("predicate", "maybe"),
    [
        (Compare(("i",), "=", 9), False),
        (Compare(("i",), "=", 10), True),
        (Compare(("I",), "<", 10), False),
        (Compare(("i",), "<=", 10), True),
        (Compare(("i",), ">", 20), False),
        (Compare(("i",), ">=", 20), True),
        (Compare(("i",), "=", None), False),
        (Compare(("i",), "=", 9.0), True),  # Spark compares doubles, which have fewer digits
        (Compare(("i",), "=", "9"), True),
        (Compare(("i",), "=", True), True),
        (Compare(("i",), "=", Decimal("9.5")), False),
        (Compare(("f",), "<", 1.0), False),
        (Compare(("f",), "=", 3.0), False),
        (Compare(("f",), ">", 3.0), True),  # NaN
        (Compare(("f",), "=", math.nan), True),
        (Compare(("d",), "=", Decimal("1.5")), False),  # all null
        (Compare(("s",), "=", "banana"), True),
        (Compare(("s",), ">", "grapf"), False),
        (Compare(("s",), "<", "apple"), False),
        (StartsWith(("s",), "app"), True),
        (StartsWith(("s",), "apa"), False),
        (StartsWith(("s",), "h"), False),
        (Compare(("day",), ">", date(2026, 1, 20)), False),
        (Compare(("day",), ">", datetime(2026, 1, 21)), True),
        (Compare(("at",), ">", LATE.replace(tzinfo=UTC)), False),
        (Compare(("at",), "=", LATE.replace(microsecond=999, tzinfo=UTC)), True),  # cut off
        (Compare(("at",), ">", LATE), True),  # of which zone?
        (Compare(("ntz",), ">", LATE), False),
        (IsNull(("i",)), False),
        (IsNull(("s",)), True),
        (Not(IsNull(("d",))), False),
        (Not(IsNull(("i",))), True),
        (IsIn(("i",), (1, 2, 30)), False),
        (IsIn(("i",), (1, 15)), True),
        (Not(IsIn(("i",), (1, None))), False),
        (Not(Compare(("i",), ">=", 10)), False),
        (And((Compare(("i",), ">", 5), Compare(("i",), "<", 10))), False),
        (Or((Compare(("i",), ">", 50), Compare(("i",), "<", 10))), False),
        (Or((Compare(("i",), ">", 50), Unknown())), True),
        (And((Compare(("i",), ">", 50), Unknown())), False),
        (Compare(("nobody",), "=", 1), True),
        (Or(()), False),
        (And(()), True),
    ],
    ids=str,
)
def test_what_bounds_rule_out_is_left_out(predicate: Predicate, maybe: bool) -> None:
    known = {(name,): stats_bounds(STATS, StatsColumn((name,), (name,), type_)) for name, type_ in COLUMNS.items()}
    assert may_be_true(bind(predicate, SCHEMA), known.__getitem__) == maybe


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {"minValues": 3, "maxValues": [], "nullCount": "x", "numRecords": "10"},
        {"minValues": {"i": "1", "s": 4, "day": "soon"}, "maxValues": {"i": 1.5, "at": "+12345-01-01T00:00:00Z"}},
        {"maxValues": {"f": "NaN", "d": "Infinity", "at": "2026-01-01T00:00:00", "ntz": "2026-01-01T00:00:00Z"}},
    ],
)
def test_what_is_no_statistic_is_unknown(stats: dict[str, Any]) -> None:
    for name, type_ in COLUMNS.items():
        known = stats_bounds(stats, StatsColumn((name,), (name,), type_))
        assert (known.lower, known.upper, known.values, known.nulls) == (None, None, True, True), name


@pytest.mark.parametrize(
    ("text", "off"), [("1850-01-01T00:01:01.000+00:53", 28), ("1850-01-01T00:01:01.000-00:01", -15)]
)
def test_offsets_without_their_seconds(text: str, off: int) -> None:
    """Spark wrote the local mean time of a zone so (delta-io/delta#5249); the moment is off by what it left out."""
    stats = {"minValues": {"at": text}, "maxValues": {"at": text}}
    known = stats_bounds(stats, StatsColumn(("at",), ("at",), COLUMNS["at"]))
    said = int(datetime.fromisoformat(text).timestamp()) - off
    assert known.lower <= said * 1_000_000 <= known.upper
    assert known.upper - known.lower <= 120_000_000


# -- tables ------------------------------------------------------------------------------------------------------


def kept(place: Path, predicate: Predicate) -> list[str]:
    table: Any = open_table(str(place))
    snapshot = table.snapshot()
    return sorted(snapshot.files.filter(table.may_match(snapshot, predicate))["partition"].to_pylist())


def test_partitions_and_statistics_together(tmp_path: Path) -> None:
    schema = pa.schema([("p", pa.string()), ("day", pa.date32()), ("i", pa.int64())])
    table = pa.table(
        {
            "p": ["a"] * 4 + ["b"] * 4 + [None] * 4,
            "day": [date(2026, 1, 1), date(2026, 1, 2)] * 6,
            "i": range(12),
        },
        schema,
    )
    builder = DeltaBuilder(str(tmp_path)).create(schema, partition_by=["p", "day"])
    builder.append(table)
    builder.delete(lambda rows: pc.equal(rows["i"], 4))
    first, second = "day=2026-01-01", "day=2026-01-02"
    day = Compare(("day",), "=", date(2026, 1, 2))
    assert kept(tmp_path, Compare(("p",), "=", "b")) == [f"p=b/{first}", f"p=b/{second}"]
    assert kept(tmp_path, And((IsNull(("p",)), day))) == [f"p=__HIVE_DEFAULT_PARTITION__/{second}"]
    assert kept(tmp_path, Not(Compare(("p",), "=", "b"))) == [f"p=a/{first}", f"p=a/{second}"]
    assert kept(tmp_path, And((day, Compare(("i",), ">", 6)))) == [
        f"p=__HIVE_DEFAULT_PARTITION__/{second}",
        f"p=b/{second}",
    ]
    assert kept(tmp_path, Or((Compare(("p",), "=", "a"), Compare(("i",), ">", 10)))) == [
        f"p=__HIVE_DEFAULT_PARTITION__/{second}",
        f"p=a/{first}",
        f"p=a/{second}",
    ]
    assert kept(tmp_path, Or(())) == []
    assert len(kept(tmp_path, Unknown())) == 6


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_found_by_their_physical_names(tmp_path: Path, mode: str) -> None:
    schema = pa.schema([("p", pa.int32()), ("i", pa.int64())])
    builder = DeltaBuilder(str(tmp_path)).create(
        schema, partition_by=["p"], properties={"delta.columnMapping.mode": mode}
    )
    builder.append(pa.table({"p": [1, 1, 2, 2], "i": [1, 2, 3, 4]}, schema))
    builder.checkpoint()
    assert kept(tmp_path, Compare(("p",), "=", 2)) == ["p=2"]
    assert kept(tmp_path, Compare(("i",), "<", 3)) == ["p=1"]
