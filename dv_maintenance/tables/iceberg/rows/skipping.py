"""Which live files may hold a row that satisfies a condition, by partitions first, then by bounds of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from dv_maintenance.files.arrays import bools, combined, numbers
from dv_maintenance.tables.bounds import both
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.rows.bounds import partition_bounds, stored_bounds, stored_columns
from dv_maintenance.tables.predicate import Bounds, Column, Predicate, bind, columns_of, may_be_true

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

_UNBOUNDED: Final = Bounds(nans=True)


def may_match(layout: Layout, snapshot: IcebergSnapshot, predicate: Predicate) -> pa.BooleanArray:
    """One value per row of ``snapshot.files``: ``False`` if no live row of the file can satisfy ``predicate``. Reads
    the manifests of files that their partitions do not rule out.

    Raises
    ------
    DamagedTableError, StorageError : a manifest is damaged or cannot be read.
    """
    bound = bind(predicate, snapshot.schema)
    by_partition = partition_bounds(snapshot) or [{}]
    possible = np.array([_may_be_true(bound, each) for each in by_partition], bool)
    codes = numbers(combined(snapshot.files["partition_code"]))
    kept = possible[codes]
    left = np.flatnonzero(kept)
    stored = stored_columns(snapshot, sorted(set(columns_of(bound))))
    for row, of_file in zip(left.tolist(), stored_bounds(layout, snapshot, left, stored), strict=True):
        of_partition = by_partition[codes[row]]
        known = {column: both(bounds, of_partition.get(column)) for column, bounds in of_file.items()}
        kept[row] = _may_be_true(bound, {**of_partition, **known})
    return bools(kept)


def _may_be_true(predicate: Predicate, known: Mapping[Column, Bounds]) -> bool:
    return may_be_true(predicate, lambda column: known.get(column, _UNBOUNDED))
