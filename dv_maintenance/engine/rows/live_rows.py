"""Batches of live rows with their positions in the file, and the masks that select them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.parquet.footer import batch_rows
from dv_maintenance.files.arrays import flags, int64s

# Rows whose mask is computed at once: for a single batch the calls would cost more than the bits, and the mask of a
# whole file has no bound.
_AT_ONCE = 1 << 20
# If one of so many rows is deleted, or more, the indexes of the remaining rows are computed once for all columns. If
# fewer are, each column is copied in runs.
_DENSE = 4


@dataclass(frozen=True, slots=True)
class LiveRows:
    """A batch of live rows.

    batch : the live ones of ``rows`` rows.
    first : physical position of the first of these rows.
    rows : number of rows, deleted ones included.
    live : mask of the rows that are in ``batch``; ``None``: all.
    known_positions : physical positions of the rows of ``batch``, if the reader knows them.
    """

    batch: pa.RecordBatch
    first: int
    rows: int
    live: pa.BooleanArray | None
    known_positions: pa.Int64Array | None = None

    def positions(self) -> pa.Int64Array:
        """The physical position in the file of each row of ``batch``."""
        if self.known_positions is not None:
            return self.known_positions
        positions = int64s(np.arange(self.first, self.first + self.rows))
        return positions if self.live is None else positions.filter(self.live)


def filter_live(batch: pa.RecordBatch, deleted: int, live: pa.BooleanArray) -> pa.RecordBatch:
    """The rows of ``batch`` for which ``live`` is true. ``deleted``: the number of the others."""
    columns = [_without_bitmap(column) for column in batch.columns]
    if deleted * _DENSE >= batch.num_rows:
        indexes = int64s(np.flatnonzero(flags(live)))
        columns = [pc.take(column, indexes, boundscheck=False) for column in columns]
    else:
        columns = [column.filter(live) for column in columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch of any size in pieces of bounded bytes; none of them is empty."""
    if not batch.num_rows:
        return
    step = batch_rows(batch.nbytes / batch.num_rows)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _without_bitmap(column: pa.Array) -> pa.Array:
    """The column without a validity bitmap that has no nulls. Parquet's reader makes one for every optional column, and
    to filter it takes Arrow as long as to filter the values of a number.
    """
    fixed = pa.types.is_primitive(column.type) or pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    if column.null_count or not fixed or column.buffers()[0] is None:
        return column
    buffers = [None, *column.buffers()[1:]]
    return pa.Array.from_buffers(column.type, len(column), buffers, null_count=0, offset=column.offset)


class KeepMasks:
    """``DeletionVector.keep_mask`` for consecutive short ranges."""

    def __init__(self, dv: DeletionVector) -> None:
        self._dv = dv
        self._start = self._stop = 0
        self._mask: pa.BooleanArray | None = None

    def __call__(self, start: int, stop: int) -> pa.BooleanArray:
        if self._mask is None or not self._start <= start <= stop <= self._stop:
            self._start, self._stop = start, max(stop, start + _AT_ONCE)
            self._mask = self._dv.keep_mask(self._start, self._stop)
        return self._mask.slice(start - self._start, stop - start)
