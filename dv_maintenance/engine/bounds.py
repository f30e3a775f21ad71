"""Statistics of columns from their values, for formats whose own footers lack them or round them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.stats import Column, has_order, locate
from dv_maintenance.tables.work import ColumnStats

# Bytes: longer text has no bounds, as with Parquet's writer.
_LONGEST = 4096


class BoundsCollector:
    """Statistics of one file's leaf columns: :meth:`add` each written batch, then get the result from :meth:`found`.

    Raises
    ------
    UsageError : a column is not in the schema, or is a struct.
    """

    def __init__(self, schema: pa.Schema, columns: Iterable[tuple[str, ...]]) -> None:
        self._columns = [_Bounds(locate(schema, column)) for column in columns]

    def add(self, batch: pa.RecordBatch) -> None:
        for column in self._columns:
            column.add(batch)

    def found(self) -> tuple[ColumnStats, ...]:
        """The bounds of all batches added, with values in the form of ``StatsCollector``."""
        return tuple(column.found() for column in self._columns)


class _Bounds:
    def __init__(self, column: Column) -> None:
        self._column, self._type = column, column.type
        self._nulls = 0
        self._least: Any = None
        self._greatest: Any = None
        # A single value outside the order leaves the column without bounds: partial bounds would be wrong.
        self._known = has_order(column.type)

    def add(self, batch: pa.RecordBatch) -> None:
        array = self._column.pick(batch)
        self._nulls += array.null_count
        if not self._known or array.null_count == len(array):
            return
        if types.is_floating(self._type) and pc.any(pc.is_nan(array)).as_py():
            self._known = False
            return
        if types.is_date(self._type) or types.is_timestamp(self._type):
            array = array.view(pa.int32() if types.is_date32(self._type) else pa.int64())
        both = pc.min_max(array)
        least, greatest = both["min"].as_py(), both["max"].as_py()
        if isinstance(least, str) and max(len(least.encode()), len(greatest.encode())) > _LONGEST:
            self._known = False
            return
        self._least = least if self._least is None else min(self._least, least)
        self._greatest = greatest if self._greatest is None else max(self._greatest, greatest)

    def found(self) -> ColumnStats:
        if not self._known or self._least is None:
            return ColumnStats(self._column.name, self._nulls)
        return ColumnStats(self._column.name, self._nulls, _json(self._least, -0.0), _json(self._greatest, 0.0))


def _json(value: Any, zero: float) -> Any:
    """``zero``: which of the two zeros represents both, as readers may distinguish them."""
    if isinstance(value, float):
        # JSON has no infinity.
        return None if not math.isfinite(value) else value or zero
    return value if isinstance(value, str | bool | int) else f"{value:f}"
