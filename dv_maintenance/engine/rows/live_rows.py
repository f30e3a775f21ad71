"""Batches of live rows that know where in their file they are from, and the masks that make them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.parquet.footer import batch_rows

__all__ = ["KeepMasks", "LiveRows", "pieces", "without"]

# Rows whose mask is worked out at once: for a single batch the calls would cost more than the bits, and the mask of a
# whole file has no bound.
_AT_ONCE = 1 << 20
# From one deleted row in so many on, the places of rows that stay are listed once for all columns. Below it each
# column is copied in runs.
_OFTEN = 4


@dataclass(frozen=True, slots=True)
class LiveRows:
    """``batch``: of the ``rows`` rows from physical position ``first`` on those for which ``kept`` is true (``None``:
    all). ``places``: their positions, where whoever read them knew.
    """

    batch: pa.RecordBatch
    first: int
    rows: int
    kept: pa.BooleanArray | None
    places: pa.Int64Array | None = None

    def positions(self) -> pa.Int64Array:
        """Of each row of ``batch``, its physical position in the file."""
        if self.places is not None:
            return self.places
        counted = pa.py_buffer(np.arange(self.first, self.first + self.rows, dtype=np.int64))
        positions = pa.Array.from_buffers(pa.int64(), self.rows, [None, counted])
        return positions if self.kept is None else positions.filter(self.kept)


def without(batch: pa.RecordBatch, deleted: int, kept: pa.BooleanArray) -> pa.RecordBatch:
    """The rows of ``batch`` for which ``kept`` is true: all but ``deleted`` ones."""
    columns = [_without_bitmap(column) for column in batch.columns]
    if deleted * _OFTEN >= batch.num_rows:
        places = _places(kept)
        columns = [pc.take(column, places, boundscheck=False) for column in columns]
    else:
        columns = [column.filter(kept) for column in columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Of bounded bytes, from a reader that does not keep to any; none of them empty."""
    if not batch.num_rows:
        return
    step = batch_rows(batch.nbytes / batch.num_rows)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _places(kept: pa.BooleanArray) -> pa.Int64Array:
    """Where ``kept``, which has no nulls, is true."""
    start, bits = kept.offset, np.frombuffer(kept.buffers()[1], np.uint8)
    first, stop = start // 8, -(-(start + len(kept)) // 8)
    mask = np.unpackbits(bits[first:stop], bitorder="little")[start % 8 :][: len(kept)]
    places = np.flatnonzero(mask.view(bool))
    return pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places)])


def _without_bitmap(column: pa.Array) -> pa.Array:
    """Parquet's reader says of each value of an optional column that it is there, also where none is missing; Arrow
    would filter that too, which takes as long as the values of a number.
    """
    fixed = pa.types.is_primitive(column.type) or pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    if column.null_count or not fixed or column.buffers()[0] is None:
        return column
    buffers = [None, *column.buffers()[1:]]
    return pa.Array.from_buffers(column.type, len(column), buffers, null_count=0, offset=column.offset)


class KeepMasks:
    """``DeletionVector.keep_mask`` for one short stretch after the other."""

    def __init__(self, dv: DeletionVector) -> None:
        self._dv = dv
        self._start = self._stop = 0
        self._mask: pa.BooleanArray | None = None

    def __call__(self, start: int, stop: int) -> pa.BooleanArray:
        if self._mask is None or not self._start <= start <= stop <= self._stop:
            self._start, self._stop = start, max(stop, start + _AT_ONCE)
            self._mask = self._dv.keep_mask(self._start, self._stop)
        return self._mask.slice(start - self._start, stop - start)
