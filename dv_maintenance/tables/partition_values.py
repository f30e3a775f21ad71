"""Values of partitions as text: what a text means, given the type of its column.

The names of partitions hold text (``model.partition_name``). People write the same value in different ways, and mistype
it. For all formats, this module decides which texts are the same value, and which are none.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from datetime import date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Final, Literal, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

Kind: TypeAlias = 'pa.DataType | Literal["year", "month", "hour"]'
"""A type; or a period of time, such as ``2026-11``, whose value is its number counted from the first one of 1970."""

_DATE: Final = re.compile(r"([+-]?\d{4,6})-(\d{1,2})-(\d{1,2})")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?")
_MOMENT: Final = re.compile(rf"({_DATE.pattern})(?:[T ]({_CLOCK.pattern}))? ?(Z|[+-]\d{{2}}:?\d{{2}})?", re.IGNORECASE)
_INTEGER: Final = re.compile(r"[+-]?\d+")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?|nan", re.IGNORECASE)
# The Gregorian calendar repeats after 400 years. Spark's years reach beyond Python's.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_SECOND: Final = 1_000_000_000
# Python's own context has 28 digits, a DECIMAL up to 38.
_EXACT: Final = Context(prec=76)

_SQL: Final = {
    pa.bool_(): ("BOOLEAN", "true"),
    pa.int8(): ("TINYINT", "7"),
    pa.int16(): ("SMALLINT", "7"),
    pa.int32(): ("INT", "7"),
    pa.int64(): ("BIGINT", "7"),
    pa.float32(): ("FLOAT", "0.5"),
    pa.float64(): ("DOUBLE", "0.5"),
    pa.date32(): ("DATE", "2026-11-20"),
}


_PERIODS: Final = {
    "year": (re.compile(r"([+-]?\d{4,6})"), "2026"),
    "month": (re.compile(r"([+-]?\d{4,6})-(\d{1,2})"), "2026-11"),
    "hour": (re.compile(rf"{_DATE.pattern}-(\d{{1,2}})"), "2026-11-20-09"),
}


def value_of(text: str | None, type: Kind) -> Hashable:
    """A key that is equal for all texts of one value; ``None`` for null. Values of a type in their order, timestamps in
    nanoseconds and dates in days since 1970.

    Timestamps without a zone are taken as UTC.

    Raises
    ------
    ValueError : the text is not a value of the type.
    """
    if text is None or (not isinstance(type, str) and pt.is_null(type)):
        return None
    if isinstance(type, str):
        return _period(text, type)
    if pt.is_boolean(type):
        return {"true": True, "false": False}[_matched(r"(?i:true|false)", text)[0].lower()]
    if pt.is_integer(type):
        value = int(_matched(_INTEGER, text)[0])
        return value if -(1 << type.bit_width - 1) <= value < 1 << type.bit_width - 1 else _fail(text)
    if pt.is_floating(type):
        number = float(_matched(_NUMBER, text)[0])
        return "NaN" if number != number else number
    if pt.is_decimal(type):
        return _decimal(text, type)
    if pt.is_date(type):
        return _days(_matched(_DATE, text))
    if pt.is_time(type):
        return _nanos(_matched(_CLOCK, text))
    if pt.is_timestamp(type):
        return _instant(text)
    return text


def sql_type(type: Kind) -> str:
    """The type as SQL names it."""
    if isinstance(type, str):
        return type.upper()
    if pt.is_decimal(type):
        return f"DECIMAL({type.precision},{type.scale})"
    if pt.is_timestamp(type):
        return "TIMESTAMP" if type.tz else "TIMESTAMP_NTZ"
    if pt.is_time(type):
        return "TIME"
    if pt.is_binary(type) or pt.is_large_binary(type):
        return "BINARY"
    return _SQL[type][0] if type in _SQL else "STRING"


def example_of(type: Kind) -> str:
    """A text that is a value of the type."""
    if isinstance(type, str):
        return _PERIODS[type][1]
    if pt.is_timestamp(type):
        return "2026-11-20 09:30:00" + ("Z" if type.tz else "")
    if pt.is_time(type):
        return "09:30:00"
    if pt.is_decimal(type):
        return f"{Decimal(5).scaleb(-type.scale):f}" if type.scale else "5"
    return _SQL[type][1] if type in _SQL else "text"


def _decimal(text: str, type: pa.DataType) -> Decimal:
    try:
        value = Decimal(text)
        exact = value.quantize(Decimal(1).scaleb(-type.scale), context=_EXACT) if value.is_finite() else None
    except InvalidOperation:
        raise ValueError(text) from None
    if exact is None or exact != value or value.adjusted() >= type.precision - type.scale:
        return _fail(text)
    return exact


def _period(text: str, unit: str) -> int:
    parts = [int(part) for part in _matched(_PERIODS[unit][0], text).groups()]
    if unit == "year":
        return parts[0] - 1970
    if unit == "month":
        return (parts[0] - 1970) * 12 + parts[1] - 1 if 1 <= parts[1] <= 12 else _fail(text)
    return days_of(*parts[:3]) * 24 + parts[3] if parts[3] <= 23 else _fail(text)


def _days(found: re.Match[str]) -> int:
    return days_of(*map(int, found.groups()[:3]))


def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01. Raises ValueError."""
    cycles = (year - 2000) // _CYCLE_YEARS
    moved = date(year - cycles * _CYCLE_YEARS, month, day)
    return (moved - date(1970, 1, 1)).days + cycles * _CYCLE_DAYS


def _nanos(found: re.Match[str]) -> int:
    """Nanoseconds since midnight."""
    hour, minute, second, fraction = found.groups()[:4]
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        return _fail(found[0])
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    return seconds * _SECOND + int((fraction or "0").ljust(9, "0"))


def _instant(text: str) -> int:
    """Nanoseconds since 1970."""
    found = _matched(_MOMENT, text)
    day, clock, zone = found[1], found[5], found[10]
    nanos = _days(_matched(_DATE, day)) * 86_400 * _SECOND
    if clock:
        nanos += _nanos(_matched(_CLOCK, clock))
    if zone and zone.upper() != "Z":
        offset = datetime.strptime(zone, "%z").utcoffset() or timedelta()
        nanos -= round(offset.total_seconds()) * _SECOND
    return nanos


def _matched(pattern: re.Pattern[str] | str, text: str) -> re.Match[str]:
    return re.fullmatch(pattern, text) or _fail(text)


def _fail(text: str) -> NoReturn:
    raise ValueError(text)
