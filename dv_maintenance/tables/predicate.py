"""Conditions on rows, for file skipping: whether any row within given bounds can satisfy a condition.

The algebra is small on purpose. A condition that it can't express is ``Unknown``, which may be true or false; a value
that does not fit its column turns its part into ``Unknown``, too. So the answer is never wrong, but sometimes "maybe"
instead of "no".

SQL's logic has three values: ``NOT`` swaps true and false and keeps null. Each part therefore answers two questions:
can it be true for some row, and can it be false for some row? ``NOT`` swaps the answers.
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

Column = tuple[str, ...]
"""A path of field names as users know them; more than one name for a field of a struct."""

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
    """``column IN (values)``; if the values contain a null, the result is null instead of false."""

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
    """All of ``parts``; true if there are none."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of ``parts``; false if there are none."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True where ``part`` is false, null where it is null."""

    part: Predicate


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition that this algebra can't express."""


Predicate = Compare | IsIn | IsNull | StartsWith | And | Or | Not | Unknown


@dataclass(frozen=True, slots=True)
class Bounds:
    """The known bounds of one column in one file. Of a writer's figures that contradict each other, none is believed:
    bounds in the wrong order are dropped, and a column with a bound has values.

    lower : inclusive lower bound of every value, as ``comparable`` gives it; ``None``: no bound.
    upper : inclusive upper bound of every value, as ``comparable`` gives it; ``None``: no bound.
    values : whether the file may hold values that are not null.
    nulls : whether it may hold nulls.
    nans : whether it may hold NaNs, which Spark orders after every number.
    """

    lower: Any = None
    upper: Any = None
    values: bool = True
    nulls: bool = True
    nans: bool = False

    def __post_init__(self) -> None:
        bounded = self.lower is not None, self.upper is not None
        if any(bounded) and not self.values:
            object.__setattr__(self, "values", True)
        if all(bounded) and self.lower > self.upper:
            object.__setattr__(self, "lower", None)
            object.__setattr__(self, "upper", None)


def exactly(value: Any) -> Bounds:
    """The bounds of a column that holds only this ``comparable`` value, or a float's NaN."""
    if value is None:
        return Bounds(values=False)
    if value != value:
        return Bounds(nulls=False, nans=True)
    return Bounds(value, value, nulls=False)


def bind(predicate: Predicate, schema: pa.Schema, opaque: Callable[[pa.Field], bool] = lambda _: False) -> Predicate:
    """The same condition on the columns of ``schema``, with the schema's spelling of names and ``comparable`` values.

    The case of names does not matter if the match is unambiguous. A part becomes ``Unknown`` if its column is missing
    or inside a list or map, if a value has another type, or if the field is ``opaque``: its values do not compare as
    those of its Arrow type do.
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
    """The columns that a condition mentions, with repetitions."""
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
    """A Python value that compares as the values of its column do: dates as days and timestamps as microseconds since
    the epoch, floats as floats, decimals and integers as they are; ``None`` for null.

    Raises
    ------
    TypeError, ValueError, OverflowError : the value is not of that type, or Spark would compare it differently (a
        double with an integer or decimal column, which loses digits; a timestamp with a date; NaN, infinities).
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
                # `NULL IN ()` is null in some versions of Spark and false in others.
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
