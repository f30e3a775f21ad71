"""Which live files may hold a row that satisfies a condition, decided from the values of their partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dv_maintenance.files.arrays import bools, combined, numbers
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.model import parse_partition
from dv_maintenance.tables.predicate import Bounds, Column, Predicate, bind, may_be_true

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.rows.partitions import Partition
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

__all__ = ["may_match"]


def may_match(layout: Layout, snapshot: IcebergSnapshot, predicate: Predicate) -> pa.BooleanArray:
    """One value per row of ``snapshot.files``: ``False`` if no live row of the file can satisfy ``predicate``."""
    del layout
    bound = bind(predicate, snapshot.schema)
    possible = np.array([may_be_true(bound, _bounds(snapshot, each)) for each in snapshot.partitions] or [True], bool)
    return bools(possible[numbers(combined(snapshot.files["partition_code"]))])


def _bounds(snapshot: IcebergSnapshot, partition: Partition) -> Callable[[Column], Bounds]:
    values = parse_partition(partition.name)
    known: dict[Column, Bounds] = {
        (each.source,): each.bounds(values[each.name], snapshot.schema)
        for spec in snapshot.specs
        for each in spec.fields
        if spec.id == partition.spec_id and each.name in values and each.source in snapshot.schema.names
    }
    return lambda column: known.get(column, Bounds())
