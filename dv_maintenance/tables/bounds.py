"""Bounds of a column in each file, as Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.files.arrays import bools, int64s, strings
from dv_maintenance.tables.predicate import Bounds
from dv_maintenance.tables.rows import ColumnBounds


def both(one: Bounds | None, other: Bounds | None) -> Bounds:
    """What two sources together say; ``None``: nothing."""
    one, other = one or Bounds(nans=True), other or Bounds(nans=True)
    lower = [each for each in (one.lower, other.lower) if each is not None]
    upper = [each for each in (one.upper, other.upper) if each is not None]
    return Bounds(
        max(lower, default=None),
        min(upper, default=None),
        values=one.values and other.values,
        nulls=one.nulls and other.nulls,
        nans=one.nans and other.nans,
    )


def table_of(known: Sequence[Bounds], type_: pa.DataType) -> pa.Table:
    """Bounds of one column, a row for each file: ``minimum``, ``maximum``, ``all_null``, ``none_null``."""
    return pa.table(
        {
            "minimum": _array([each.lower for each in known], type_, "ROUND_FLOOR"),
            # To Spark, NaN is greater than any number, and no writer records which files have NaN.
            "maximum": _array([None if each.nans else each.upper for each in known], type_, "ROUND_CEILING"),
            "all_null": bools(np.array([not each.values for each in known], bool)),
            "none_null": bools(np.array([not each.nulls for each in known], bool)),
        }
    )


def columns_of(known: pa.Table, physical_rows: pa.ChunkedArray) -> ColumnBounds:
    """Of a table of :func:`table_of`, and the rows of each file."""
    zero, unknown = pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())
    some = pc.if_else(known["none_null"], zero, unknown)
    nulls = pc.if_else(known["all_null"], physical_rows, some)
    return ColumnBounds(known["minimum"], known["maximum"], nulls)


def _array(values: Sequence[Any], type_: pa.DataType, rounding: str) -> pa.Array:
    """An array of values in the form of ``predicate.comparable``. A value that the type cannot hold is not a bound.
    Floats become doubles, because rounding to a float32 could move a bound inside the range that it must cover.
    """
    if types.is_string(type_):
        return strings(values)
    if types.is_integer(type_) or types.is_date(type_):
        least, greatest = -(1 << type_.bit_width - 1), (1 << type_.bit_width - 1) - 1
        fitting = int64s([value if value is not None and least <= value <= greatest else None for value in values])
        return fitting.cast(pa.int32()).view(type_) if types.is_date(type_) else fitting.cast(type_)
    if types.is_timestamp(type_):
        return int64s(values).view(type_)
    if types.is_decimal(type_):
        return pa.array([_rounded(value, type_, rounding) for value in values], type_)
    return pa.array(values, pa.float64() if types.is_floating(type_) else type_)


def _rounded(value: Decimal | int | None, type_: pa.DataType, rounding: str) -> Decimal | None:
    if value is None:
        return None
    try:
        return Context(type_.precision, rounding).quantize(Decimal(value), Decimal(1).scaleb(-type_.scale))
    except InvalidOperation:  # more digits than the type has
        return None
