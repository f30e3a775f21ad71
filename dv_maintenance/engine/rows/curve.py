"""Places of rows on a space-filling curve (Z-order): rows with similar values in several columns get similar places.

Each column's values become ranks among quantiles, so that skew and unit do not matter, and the bits of the ranks are
interleaved (Morton 1966). For one column the result is its own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MAX_BITS = 12  # per column: 4096 quantiles
_WORD = 64

_Numbers = Any
"""NumPy array of uint64."""


@dataclass(frozen=True, slots=True)
class Curve:
    """``boundaries``: for each column the values at which its rank increases, ascending."""

    boundaries: tuple[pa.Array, ...]

    @classmethod
    def of_sample(cls, sample: pa.Table) -> Self:
        """From a sample of the rows, by quantiles of each column."""
        bits = _bits(sample.num_columns)
        return cls(tuple(_quantiles(column.combine_chunks(), 1 << bits) for column in sample.columns))

    def places(self, columns: Sequence[pa.Array]) -> _Numbers:
        """The place of each row. Nulls are first, then NaN."""
        bits, count = _bits(len(columns)), len(columns)
        places = np.zeros(len(columns[0]), np.uint64)
        for at, (column, boundaries) in enumerate(zip(columns, self.boundaries, strict=True)):
            # Ranks use all bits: a column with few values has as much weight as one with many.
            ranks = (_ranks(column, boundaries) << bits) // (len(boundaries) + 1)
            for bit in range(bits):
                places |= ((ranks >> bit) & 1).astype(np.uint64) << np.uint64(bit * count + count - 1 - at)
        return places


def _bits(columns: int) -> int:
    return min(_MAX_BITS, _WORD // columns)


def _quantiles(values: pa.Array, count: int) -> pa.Array:
    order = _order(values)
    at = np.unique(np.arange(1, count) * len(values) // count)
    return pc.unique(values.take(arrow_numbers(order[at]))) if len(values) else values


def _ranks(values: pa.Array, boundaries: pa.Array) -> _Numbers:
    """The number of boundaries at or below each value, for any type that Arrow sorts."""
    first = len(boundaries)
    order = _order(pa.concat_arrays([boundaries, values]))
    passed = np.cumsum(order < first)
    ranks = np.empty(first + len(values), np.int64)
    ranks[order] = passed
    return ranks[first:]


def _order(values: pa.Array) -> _Numbers:
    """Indexes in ascending order, stable."""
    return pc.array_sort_indices(values, null_placement="at_start").to_numpy().astype(np.int64)


def arrow_numbers(numbers: _Numbers) -> pa.Array:
    """64-bit integers of NumPy without pa.array(), which would import pandas."""
    kind = pa.uint64() if numbers.dtype == np.uint64 else pa.int64()
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])
