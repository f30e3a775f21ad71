"""Conditions on rows, as far as they help to leave out files: can any row within certain bounds fulfil a condition.

The algebra is small on purpose. What a caller can't say in it is ``Unknown``, which may be anything; a value that does
not fit its column makes ``Unknown`` of a part, too. So the answer is never wrong, only sometimes "maybe" where it could
be "no".

SQL's logic has three values, and ``NOT`` turns true into false but leaves null alone. Therefore two questions are asked
of each part: may it be true for some row, may it be false for some row. ``NOT`` swaps the answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

import pyarrow as pa
from pyarrow import types

__all__ = [
    "And",
    "Bounds",
    "Column",
    "Compare",
    "IsIn",
    "IsNull",
    "Not",
    "Operator",
    "Or",
    "Predicate",
    "StartsWith",
    "Unknown",
    "bind",
    "columns_of",
    "comparable",
    "may_be_true",
]

Column = tuple[str, ...]
"""A path of field names under which users know them; more than one for a field of a struct."""

Operator = Literal["=", "<", "<=", ">", ">="]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Compare:
    """``column op value``; null where the column or the value is."""

    column: Column
    op: Operator
    value: Any


@dataclass(frozen=True, slots=True)
class IsIn:
    """``column IN (values)``; a null among them makes null what would be false."""

    column: Column
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """``column IS NULL``: never null itself."""

    column: Column


@dataclass(frozen=True, slots=True)
class StartsWith:
    """``column LIKE 'prefix%'``."""

    column: Column
    prefix: str


@dataclass(frozen=True, slots=True)
class And:
    """All of ``parts``; true without any."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of ``parts``; false without any."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True where ``part`` is false, null where it is null."""

    part: Predicate


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition that can't be said here."""


Predicate = Compare | IsIn | IsNull | StartsWith | And | Or | Not | Unknown


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is known of one column in one file. Each value lies between ``lower`` and ``upper``, both of them included
    and ``comparable``; ``None`` means no bound. ``values``, ``nulls``, ``nans``: whether there may be values that are
    not null, nulls, and NaNs, which to Spark are greater than every number.
    """

    lower: Any = None
    upper: Any = None
    values: bool = True
    nulls: bool = True
    nans: bool = False


def bind(predicate: Predicate, schema: pa.Schema, opaque: Callable[[pa.Field], bool] = lambda _: False) -> Predicate:
    """The same condition on the columns of ``schema``: names as they are spelt there (case does not matter where that
    leaves no doubt), values as ``comparable`` gives them. What does not fit becomes ``Unknown``: columns that are not
    there or inside of a list or map, values of another type, fields that are ``opaque`` because their values do not
    compare as those of their Arrow type.
    """

    def bound(part: Predicate) -> Predicate:
        match part:
            case And(parts) | Or(parts):
                return type(part)(tuple(map(bound, parts)))
            case Not(inner):
                return Not(bound(inner))
            case Unknown():
                return part
        found = _resolve(part.column, schema, opaque)
        if found is None:
            return Unknown()
        column, type_ = found
        try:
            match part:
                case Compare(_, _, value):
                    return replace(part, column=column, value=comparable(value, type_))
                case IsIn(_, values):
                    return IsIn(column, tuple(comparable(value, type_) for value in values))
                case IsNull():
                    return IsNull(column)
                case StartsWith(_, prefix):
                    return StartsWith(column, prefix) if types.is_string(type_) else Unknown()
        except (TypeError, ValueError, OverflowError):
            return Unknown()

    return bound(predicate)


def columns_of(predicate: Predicate) -> Iterator[Column]:
    """The columns that a condition speaks of, repeated as often as it does."""
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from columns_of(part)
        case Not(part):
            yield from columns_of(part)
        case Unknown():
            return
        case _:
            yield predicate.column


def may_be_true(predicate: Predicate, bounds: Callable[[Column], Bounds]) -> bool:
    """Whether a bound ``predicate`` may be true for a row within ``bounds``."""
    return _possible(predicate, bounds)[0]


def comparable(value: Any, type: pa.DataType) -> Any:
    """A value as values of its column compare with each other in Python: dates as days and timestamps as microseconds
    since the epoch, floats as floats, decimals and integers as they are; ``None`` for null.

    Raises
    ------
    TypeError, ValueError, OverflowError : it is not a value of that type, or one that Spark would compare in another
        way (a double with an integer or decimal column, which loses digits; a timestamp with a date; NaN, infinities).
    """
    if value is None:
        return None
    if types.is_boolean(type):
        return _of(value, bool)
    if types.is_integer(type) or types.is_decimal(type):
        return _finite(_of(value, int, Decimal))
    if types.is_floating(type):
        return float(_finite(_of(value, int, float, Decimal)))
    if types.is_string(type) or types.is_binary(type):
        return _of(value, str if types.is_string(type) else bytes)
    if types.is_date(type):
        return (_of(value, date) - _EPOCH.date()).days
    if types.is_timestamp(type):
        moment = _of(value, datetime)
        if (moment.tzinfo is None) != (type.tz is None):
            raise TypeError(value)
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
    raise TypeError(type)


def _of(value: Any, *classes: type) -> Any:
    # By class, not isinstance: a bool is an int to Python, and a datetime a date.
    if value.__class__ not in classes:
        raise TypeError(value)
    return value


def _finite(value: Any) -> Any:
    if not math.isfinite(value):
        raise ValueError(value)
    return value


def _resolve(
    column: Column, schema: pa.Schema, opaque: Callable[[pa.Field], bool]
) -> tuple[Column, pa.DataType] | None:
    """The column as the schema spells it, and its type."""
    level: list[pa.Field] = list(schema)
    path: list[str] = []
    type_: pa.DataType | None = None
    for name in column:
        hits = [field for field in level if field.name == name] or [
            field for field in level if field.name.lower() == name.lower()
        ]
        if len(hits) != 1 or opaque(hits[0]):
            return None
        type_ = hits[0].type
        path.append(hits[0].name)
        level = list(type_) if types.is_struct(type_) else []
    return None if type_ is None else (tuple(path), type_)


def _possible(predicate: Predicate, bounds: Callable[[Column], Bounds]) -> tuple[bool, bool]:
    """Whether it may be true, and whether it may be false."""
    match predicate:
        case And(parts):
            answers = [_possible(part, bounds) for part in parts]
            return all(true for true, _ in answers), any(false for _, false in answers)
        case Or(parts):
            answers = [_possible(part, bounds) for part in parts]
            return any(true for true, _ in answers), all(false for _, false in answers)
        case Not(part):
            true, false = _possible(part, bounds)
            return false, true
        case IsNull(column):
            within = bounds(column)
            return within.nulls, within.values
        case Compare(column, operator, value):
            within = bounds(column)
            if value is None or not within.values:
                return False, False
            return _COMPARE[operator](within, value), _COMPARE[_NEGATED[operator]](within, value)
        case IsIn(column, values):
            within = bounds(column)
            if not within.values:
                # Whether null is among nothing is null to some versions of Spark and false to others.
                return False, not values
            some = [value for value in values if value is not None]
            true = any(_may_equal(within, value) for value in some)
            return true, len(some) == len(values) and all(_may_differ(within, value) for value in some)
        case StartsWith(column, prefix):
            within = bounds(column)
            return within.values and _may_start(within, prefix), within.values and not _all_start(within, prefix)
        case Unknown():
            return True, True


def _may_be_below(within: Bounds, value: Any) -> bool:
    return within.lower is None or bool(within.lower < value)


def _may_be_above(within: Bounds, value: Any) -> bool:
    return within.nans or within.upper is None or bool(within.upper > value)


def _may_equal(within: Bounds, value: Any) -> bool:
    return (within.lower is None or within.lower <= value) and (within.upper is None or within.upper >= value)


def _may_differ(within: Bounds, value: Any) -> bool:
    return _may_be_below(within, value) or _may_be_above(within, value)


def _may_start(within: Bounds, prefix: str) -> bool:
    above = within.lower is None or within.lower[: len(prefix)] <= prefix
    return above and (within.upper is None or within.upper >= prefix)


def _all_start(within: Bounds, prefix: str) -> bool:
    return all(bound is not None and bound.startswith(prefix) for bound in (within.lower, within.upper))


_COMPARE: Final[dict[str, Callable[[Bounds, Any], bool]]] = {
    "=": _may_equal,
    "!=": _may_differ,
    "<": _may_be_below,
    "<=": lambda within, value: _may_be_below(within, value) or _may_equal(within, value),
    ">": _may_be_above,
    ">=": lambda within, value: _may_be_above(within, value) or _may_equal(within, value),
}
_NEGATED: Final = {"=": "!=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
