"""Rows taken from columns of any chunks, and the positions of numbers among others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.files.arrays import combined, null_column, taken


@settings(max_examples=examples(20))
@given(st.lists(st.lists(st.none() | st.text(max_size=3), max_size=4), max_size=5), st.data())
def test_rows_are_taken_in_order(chunks: list[list[str | None]], data: st.DataObject) -> None:
    column = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks], pa.string())
    values = column.to_pylist()
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=8) if values else st.just([]))
    assert taken(column, np.array(rows, np.int64)).to_pylist() == [values[row] for row in rows]


def test_a_single_chunk_is_not_copied() -> None:
    chunk = pa.array([1, 2])
    assert combined(pa.chunked_array([chunk])).buffers()[1].address == chunk.buffers()[1].address


def test_a_column_of_nulls() -> None:
    for rows in (0, 1, 1 << 14, (1 << 14) + 1):
        column = null_column(rows, pa.string())
        assert (len(column), column.null_count) == (rows, rows)
