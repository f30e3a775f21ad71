"""The files of a table that an operation has to read, by partition values and statistics (data skipping)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.rows import RowLevelTable

# True if a file may hold matching rows.
_Mask = Any


def files_that_may_match(table: RowLevelTable, snapshot: Snapshot, predicate: Predicate) -> Snapshot:
    """The snapshot with only the files in which the condition may be true."""
    return replace(snapshot, files=snapshot.files.filter(table.may_match(snapshot, predicate)))


def files_in_range(table: RowLevelTable, snapshot: Snapshot, column: str, values: pa.Array) -> Snapshot:
    """The snapshot with only the files that may hold one of ``values`` in ``column``.

    ``values``: sorted, without nulls, of the column's type (any order of magnitude: the work per file is logarithmic).
    """
    bounds = table.column_bounds(snapshot, [column]).get(column)
    if bounds is None:
        return snapshot
    if not len(values):
        return _only(snapshot, np.zeros(snapshot.files.num_rows, bool))
    low, high = values[0], values[-1]
    mask = _true(pc.less_equal(bounds.minimum, high)) & _true(pc.greater_equal(bounds.maximum, low))
    if pa.types.is_integer(values.type):
        # A file matches if the first value at or above its minimum is not above its maximum.
        numbers = values.to_numpy(zero_copy_only=False)
        least = pc.fill_null(bounds.minimum, low).to_numpy()
        at = np.searchsorted(numbers, least)
        found = pa.array(numbers[np.minimum(at, len(numbers) - 1)], values.type)
        mask &= (at < len(numbers)) & _true(pc.greater_equal(bounds.maximum.combine_chunks(), found))
    return _only(snapshot, mask)


def _only(snapshot: Snapshot, mask: _Mask) -> Snapshot:
    return replace(snapshot, files=snapshot.files.filter(pa.array(mask, pa.bool_())))


def _true(mask: pa.ChunkedArray) -> _Mask:
    """Unknown counts as true."""
    return np.asarray(pc.fill_null(mask, True).to_numpy(zero_copy_only=False), bool)
