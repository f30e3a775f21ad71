"""Random rows of every type that compares, conditions on them, and what Spark says of them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from dv_maintenance.tables.predicate import (
    And,
    Compare,
    IsIn,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
)

EPOCH = datetime(1970, 1, 1)
COLUMNS: dict[str, pa.DataType] = {
    "i": pa.int64(),
    "f": pa.float64(),
    "d": pa.decimal128(20, 2),
    "s": pa.string(),
    "day": pa.date32(),
    "at": pa.timestamp("us", tz="UTC"),
    "ntz": pa.timestamp("us"),
}
SCHEMA = pa.schema(list(COLUMNS.items()))

# Few values, close to each other, so that bounds are met; next to them what writers stumble over.
_small = st.integers(-3, 3)
_text = st.text(st.sampled_from("ab\x7f\ud7ff\ufffd\U0001f600\U0010ffff"), max_size=4)
_moment = st.builds(lambda n, us: EPOCH + timedelta(milliseconds=n, microseconds=us), _small, st.integers(0, 999))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": _small | st.sampled_from([2**53, 2**53 + 1, -(2**63)]),
    "f": _small.map(float) | st.sampled_from([0.1, float(np.float32(0.1)), -0.0, 1e300]),
    "d": st.builds(lambda n: Decimal(n) / 100, st.integers(-3, 3))
    | st.sampled_from([Decimal("123456789012345678.90"), Decimal("123456789012345678.91")]),
    "s": _text,
    "day": st.builds(lambda n: date(1970, 1, 1) + timedelta(days=n), _small),
    "at": _moment.map(lambda moment: moment.replace(tzinfo=UTC)),
    "ntz": _moment,
}
names = st.sampled_from(sorted(COLUMNS))


@st.composite
def rows(draw: Any) -> list[dict[str, Any]]:
    def value(name: str) -> Any:
        special = st.sampled_from([math.nan, math.inf, -math.inf]) if name == "f" else st.none()
        return draw(st.one_of(st.none(), VALUES[name], special))

    return [{name: value(name) for name in COLUMNS} for _ in range(draw(st.integers(0, 4)))]


def predicates() -> st.SearchStrategy[Predicate]:
    def leaf(name: str) -> st.SearchStrategy[Predicate]:
        value = st.none() | VALUES[name]
        return st.one_of(
            st.builds(Compare, st.just((name,)), st.sampled_from(["=", "<", "<=", ">", ">="]), value),
            st.builds(IsIn, st.just((name,)), st.lists(value, max_size=3).map(tuple)),
            st.just(IsNull((name,))),
            st.builds(StartsWith, st.just(("s",)), _text),
            st.just(Compare((name,), "=", object())),
        )

    return st.recursive(
        names.flatmap(leaf),
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.lists(inner, max_size=3).map(tuple).flatmap(lambda parts: st.sampled_from([And(parts), Or(parts)])),
        ),
        max_leaves=5,
    )


def holds(predicate: Predicate, row: dict[str, Any]) -> bool | None:
    """SQL's answer, with NaN as Spark has it."""
    match predicate:
        case And(parts):
            answers = [holds(part, row) for part in parts]
            return False if False in answers else None if None in answers else True
        case Or(parts):
            answers = [holds(part, row) for part in parts]
            return True if True in answers else None if None in answers else False
        case Not(part):
            answer = holds(part, row)
            return None if answer is None else not answer
        case IsNull((name,)):
            return row[name] is None
        case IsIn((name,), values):
            return holds(Or(tuple(Compare((name,), "=", value) for value in values)), row)
        case StartsWith((name,), prefix):
            return None if row[name] is None else row[name].startswith(prefix)
        case Compare((name,), operator, value):
            mine = row[name]
            if mine is None or value is None:
                return None
            if mine != mine:
                mine = math.inf
                value = 0.0
            return {
                "=": mine == value,
                "<": mine < value,
                "<=": mine <= value,
                ">": mine > value,
                ">=": mine >= value,
            }[operator]
    raise AssertionError(predicate)


def sayable(predicate: Predicate) -> bool:
    match predicate:
        case And(parts) | Or(parts):
            return all(map(sayable, parts))
        case Not(part):
            return sayable(part)
        case Compare(_, _, value):
            return type(value) is not object
    return True
