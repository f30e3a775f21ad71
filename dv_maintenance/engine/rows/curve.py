"""Places of rows on a space-filling curve: rows with similar values in several columns get similar places.

Each column's values become ranks among quantiles, so that skew and unit do not matter. The ranks are a point, and the
result is its place on the Hilbert curve: neighbours on it differ by one in one column, so a file of consecutive rows
spans less of each column than on a Z-curve, which jumps. For one column the result is its own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    """``boundaries``: for each column the values at which its rank increases, ascending; none if all are equal."""

    boundaries: tuple[pa.Array, ...]

    @classmethod
    def of_sample(cls, sample: pa.Table) -> Self:
        """From a sample of the rows, by quantiles of each column."""
        bits = _bits(sample.num_columns)
        return cls(tuple(_quantiles(column.combine_chunks(), 1 << bits) for column in sample.columns))

    def places(self, columns: Sequence[pa.Array]) -> _Numbers:
        """The place of each row. Nulls are first in each column, then NaN."""
        # Within a plane, the curve has no order: a column of one value would spoil that of the others.
        ranked = [each for each in zip(columns, self.boundaries, strict=True) if len(each[1])]
        if not ranked:
            return np.zeros(len(columns[0]), np.uint64)
        bits = _bits(len(ranked))
        # Ranks use all bits: a column with few values has as much weight as one with many.
        point = [
            ((_ranks(column, boundaries) << bits) // (len(boundaries) + 1)).astype(np.uint16)
            for column, boundaries in ranked
        ]
        return _interleaved(_on_hilbert(point, bits), bits)


def _on_hilbert(point: list[_Numbers], bits: int) -> list[_Numbers]:
    """The place of each point on the Hilbert curve, its bits dealt out to as many numbers as the point has coordinates
    (Skilling 2004, "Programming the Hilbert curve", ``AxestoTranspose``). Changes ``point``.

    point : a coordinate of all points each, as uint16 below ``1 << bits``.
    """
    first, last = point[0], point[-1]
    for bit in reversed(range(1, bits)):
        below = (1 << bit) - 1
        for coordinate in point:
            # All ones where the bit is set.
            is_set = -((coordinate >> bit) & 1)
            swapped = (first ^ coordinate) & below & ~is_set
            first ^= (below & is_set) | swapped
            if coordinate is not first:
                coordinate ^= swapped
    for before, coordinate in pairwise(point):
        coordinate ^= before
    turned = np.zeros_like(last)
    for bit in reversed(range(1, bits)):
        turned ^= -((last >> bit) & 1) & ((1 << bit) - 1)
    for coordinate in point:
        coordinate ^= turned
    return point


def _interleaved(parts: Sequence[_Numbers], bits: int) -> _Numbers:
    """One number of the bits of all, the highest bits first, of the first part before those of the others."""
    places = np.zeros(len(parts[0]), np.uint64)
    for at, part in enumerate(parts):
        for bit in range(bits):
            to = bit * len(parts) + len(parts) - 1 - at
            places |= ((part >> bit) & 1).astype(np.uint64) << np.uint64(to)
    return places


def _bits(columns: int) -> int:
    return min(_MAX_BITS, _WORD // columns)


def _quantiles(values: pa.Array, count: int) -> pa.Array:
    """All but the first, which no value is below."""
    order = _order(values)
    at = np.unique(np.arange(count) * len(values) // count)
    return pc.unique(values.take(arrow_numbers(order[at])))[1:] if len(values) else values


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
