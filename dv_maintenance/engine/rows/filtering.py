"""Rows of a batch that fulfil a condition, if Arrow compares as Spark does."""

from __future__ import annotations

from base64 import b64encode
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.rows.values import scalar_of
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.predicate import (
    And,
    Compare,
    IsIn,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
)

_OPERATIONS: Final = {
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class NotHereError(Exception):
    """A condition that Arrow can't evaluate, or would evaluate differently from Spark."""


def keep_matching(batch: pa.RecordBatch, predicate: Predicate) -> pa.RecordBatch:
    """The batch without rows for which a bound ``predicate`` is not true, as far as that can be decided here.

    The parts of a conjunction are decided one by one. Comparisons of floats are left to the caller, as Arrow compares
    NaN by other rules.
    """
    for part in predicate.parts if isinstance(predicate, And) else (predicate,):
        try:
            mask = evaluate(batch, part)
        except NotHereError:
            continue
        batch = batch.filter(mask)
    return batch


def evaluate(batch: pa.RecordBatch, predicate: Predicate) -> pa.BooleanArray:
    """A bound ``predicate``: true, false or null for each row, as Spark evaluates it.

    Raises
    ------
    NotHereError : Arrow can't evaluate it, or would do so differently. This depends on the columns' types alone.
    """
    match predicate:
        case And(parts) | Or(parts):
            combine = pc.and_kleene if isinstance(predicate, And) else pc.or_kleene
            result = pa.repeat(pa.scalar(isinstance(predicate, And)), batch.num_rows)
            for part in parts:
                result = combine(result, evaluate(batch, part))
            return result
        case Not(part):
            return pc.invert(evaluate(batch, part))
        case IsNull(column):
            return _values(batch, column).is_null()
        case Compare(column, operator, value) if value is not None:
            values = _values(batch, column)
            return _OPERATIONS[operator](values, _scalar(value, values.type))
        case IsIn(column, wanted) if wanted and None not in wanted:
            values = _values(batch, column)
            among = pa.concat_arrays([pa.repeat(_scalar(value, values.type), 1) for value in wanted])
            return pc.if_else(values.is_valid(), pc.is_in(values, value_set=among), pa.nulls(1, pa.bool_())[0])
        case StartsWith(column, prefix):
            return pc.starts_with(_values(batch, column), pattern=prefix)
    raise NotHereError


def _values(batch: pa.RecordBatch, column: tuple[str, ...]) -> pa.Array:
    if len(column) != 1 or batch.schema.names.count(column[0]) != 1:
        raise NotHereError
    return batch.column(column[0])


def _scalar(value: Any, type_: pa.DataType) -> pa.Scalar:
    """The Arrow scalar of a value in the form of ``predicate.comparable``."""
    if types.is_floating(type_):
        raise NotHereError
    if types.is_decimal(type_):
        value = f"{Decimal(value):f}"
    elif isinstance(value, bytes):
        value = b64encode(value).decode()
    try:
        return scalar_of(value, type_, "of a condition")
    except (DamagedTableError, pa.ArrowInvalid):
        raise NotHereError from None
