"""Deletes carried over a rewrite, against a rewrite of plain lists."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.carry import Source, carry_over


@st.composite
def rewrites(draw: Any) -> tuple[list[tuple[int, set[int], set[int] | None]], list[int]]:
    """Files as (rows, deleted when read, deleted by now or gone), and the rows of each new file."""
    files = []
    for rows in draw(st.lists(st.integers(0, 40), min_size=1, max_size=5)):
        positions = st.sets(st.integers(0, rows - 1)) if rows else st.just(set[int]())
        older = draw(positions)
        files.append((rows, older, draw(st.none() | positions.map(older.__or__))))
    kept = sum(rows - len(older) for rows, older, _ in files)
    cuts = sorted(draw(st.lists(st.integers(0, kept), max_size=4)))
    return files, [stop - start for start, stop in zip([0, *cuts], [*cuts, kept], strict=True)]


@given(rewrites())
def test_what_is_deleted_stays_deleted_and_nothing_else(case: Any) -> None:
    files, outputs = case
    written = [(file, row) for file, (rows, older, _) in enumerate(files) for row in range(rows) if row not in older]
    sources = [
        Source(
            rows - len(older),
            DeletionVector.from_positions(sorted(older)),
            None if newer is None else DeletionVector.from_positions(sorted(newer)),
        )
        for rows, older, newer in files
    ]
    left, start = [], 0
    for rows, dv in zip(outputs, carry_over(sources, outputs), strict=True):
        assert not dv or dv.max() < rows
        left += [written[start + row] for row in range(rows) if row not in dv]
        start += rows
    assert left == [
        (file, row)
        for file, (rows, _, newer) in enumerate(files)
        for row in range(rows)
        if newer is not None and row not in newer
    ]


def test_a_large_file_that_is_gone_costs_no_list_of_its_rows() -> None:
    none = DeletionVector.empty()
    (first, second) = carry_over([Source(1 << 34, none, None), Source(5, none, none)], [1 << 34, 5])
    assert (first.cardinality, second.cardinality) == (1 << 34, 0)


@pytest.mark.parametrize(
    ("sources", "outputs", "problem"),
    [
        ([(5, [1], [2])], [5], "have been restored"),
        ([(5, [], [])], [4], "more than the 4 rows"),
        ([(5, [], [])], [4, 2], "kept 5 rows, the new files have 6"),
        ([(5, [], [5])], [5], "row 5 of 5"),
    ],
)
def test_what_does_not_add_up(
    sources: list[tuple[int, list[int], list[int]]], outputs: list[int], problem: str
) -> None:
    of = DeletionVector.from_positions
    with pytest.raises(ValueError, match=problem):
        carry_over([Source(kept, of(older), of(newer)) for kept, older, newer in sources], outputs)
