"""Bounds that contradict themselves rule nothing out, in every format."""

from __future__ import annotations

import pytest

from dv_maintenance.tables.bounds import both
from dv_maintenance.tables.predicate import Bounds, Compare, IsNull, Not, exactly, may_be_true


@pytest.mark.parametrize(
    "found",
    [
        Bounds(9, 0),  # https://github.com/ClickHouse/ClickHouse/issues/116499
        Bounds(9, 0, values=False),
        Bounds(5, 5, values=False),  # https://github.com/ClickHouse/ClickHouse/pull/112414
        Bounds(None, 5, values=False),
        both(Bounds(5, 5), exactly(7)),
        both(Bounds(5, 5), exactly(None)),
    ],
    ids=str,
)
def test_contradictions_rule_nothing_out(found: Bounds) -> None:
    for condition in (Compare(("i",), "=", 5), Not(IsNull(("i",)))):
        assert may_be_true(condition, lambda _: found)


def test_the_rest_is_believed() -> None:
    inverted = Bounds(9, 0, nulls=False)
    assert not may_be_true(IsNull(("i",)), lambda _: inverted)
    assert not may_be_true(Compare(("i",), "=", 4), lambda _: Bounds(5, 5, values=False))
