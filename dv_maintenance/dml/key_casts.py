"""Exact conversions of values to another type, for the keys of an erasure list.

A cast that rounds, trims or guesses can merge two people: ``'007'`` is not the number 7, and the DOUBLE
9007199254740992 may have been either of two account numbers. A value that the type can't hold exactly is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.dml import uuids
from dv_maintenance.dml.spark_types import VARIANT, value_type

Converter = Callable[[Any], Any]
"""Returns the exact value in a column's type; raises one of INEXACT if there is none. Not for nulls."""
INEXACT: Final = (ValueError, ArithmeticError)

_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]*")
_WHOLE_TEXT: Final = r"^(?:0|-?[1-9][0-9]*)$"
_DECIMAL: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_FLOAT: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_BYTES: Final = re.compile(r"[Xx]'((?:[0-9A-Fa-f]{2})*)'")
_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
# Significant digits that distinguish any two floats, by width in bits (IEEE 754).
_DIGITS: Final = {16: 5, 32: 9, 64: 17}
# Below these numbers, by width, every whole number is exactly a float.
_WHOLE_FLOATS: Final = {16: 1 << 11, 32: 1 << 24, 64: 1 << 53}
_FLOATS: Final = {16: np.float16, 32: np.float32, 64: np.float64}
_LONGEST: Final = 1200  # characters of a number: more than the longest exact expansion of a DOUBLE has
_EXACT: Final = Context(prec=_LONGEST + 100)
_MICROS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


class Number(str):
    """A number in JSON, in its original spelling."""

    __slots__ = ()


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without the parts that only affect storage."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.date32() if types.is_date64(kind) else kind


def from_text(kind: pa.DataType, length: int | None = None) -> Converter | None:
    """The converter of text in the form of ``kind``'s values; ``None`` for types without a text form.

    length : of a CHAR.

    For a timestamp without a zone the converter returns a datetime without one.
    """
    kind = plain(kind)
    if types.is_string(kind):
        return _string if length is None else _char(length)
    if types.is_integer(kind):
        return lambda text: _in_range(int(_matched(_WHOLE, text)), kind)
    if types.is_decimal(kind):
        return lambda text: _decimal(_number(_matched(_DECIMAL, text)), kind)
    if types.is_floating(kind):
        return lambda text: _NOT_FINITE[text] if text in _NOT_FINITE else _float(_matched(_FLOAT, text), kind)
    if types.is_boolean(kind):
        return _boolean
    if types.is_date(kind):
        return lambda text: date.fromisoformat(_matched(_DATE, text))
    if types.is_timestamp(kind):
        return lambda text: _timestamp(text, kind)
    if kind == uuids.KIND:
        return uuids.canonical
    return _bytes if types.is_binary(kind) else None


def in_bulk(kind: pa.DataType, values: Sequence[Any], length: int | None = None) -> pa.Array | None:
    """The conversion of :func:`from_text` for text, nulls and Numbers, all at once, for the most common types of keys.
    ``None``: convert one by one, as the type is not among them or a value may have no exact counterpart.
    """
    try:
        if types.is_string(kind) and length is None:
            return None if any(isinstance(value, Number) for value in values) else pa.array(values, kind)
        if types.is_signed_integer(kind):
            texts = pa.array(values, pa.string())
            whole = pc.all(pc.match_substring_regex(texts, _WHOLE_TEXT), skip_nulls=True, min_count=0)
            return texts.cast(kind) if whole.as_py() else None
    except (ValueError, TypeError):  # Arrow's are of these kinds
        pass
    return None


def from_json(kind: pa.DataType, length: int | None = None) -> Converter | None:
    """The converter of a JSON value: text as by ``from_text``, a Number only for numeric columns, true and false only
    for BOOLEAN columns, arrays and objects only for nested ones.
    """
    kind = plain(kind)
    if kind.num_fields:
        return _nested(kind)
    text = from_text(kind, length)
    if text is None:
        return None
    numeric = types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind)

    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            return _if(types.is_boolean(kind), value)
        if isinstance(value, Number):
            return text(_if(numeric, value))
        return text(_if(isinstance(value, str), value))

    return convert


def _nested(kind: pa.DataType) -> Converter | None:
    """The converter of objects to structs (every name must be a field) and maps, and of arrays to lists."""
    keys = from_text(value_type(kind.key_field)) if types.is_map(kind) else _string
    inner = [kind.item_field] if types.is_map(kind) else [kind.field(at) for at in range(kind.num_fields)]
    converters = [from_json(value_type(field)) for field in inner]
    if keys is None or None in converters or kind == VARIANT:
        return None

    def part(at: int, value: Any) -> Any:
        converter = converters[at]
        if value is None or converter is None:
            return None
        exact = converter(value)
        # Only a column's own values become instants in the session's zone.
        without = isinstance(exact, datetime) and exact.tzinfo is None and inner[at].type.tz is not None
        return _if(not without, exact)

    def convert(value: Any) -> Any:
        if types.is_struct(kind):
            names = [field.name for field in inner]
            _if(isinstance(value, dict) and {*value} <= {*names}, value)
            return {name: part(at, value.get(name)) for at, name in enumerate(names)}
        if types.is_map(kind):
            return [(keys(key), part(0, each)) for key, each in _if(isinstance(value, dict), value).items()]
        return [part(0, each) for each in _if(isinstance(value, list), value)]

    return convert


def as_text(value: Any) -> str:
    """A JSON value as text: text unchanged, everything else in JSON's spelling."""
    if isinstance(value, str):
        return _string(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def from_typed(source: pa.DataType, kind: pa.DataType, length: int | None = None) -> Converter | None:
    """The converter of values of another type; ``None`` if the types have no exact value in common."""
    source, kind = plain(source), plain(kind)
    if types.is_string(source):
        return from_text(kind, length)
    if types.is_null(source) or source == kind:
        return lambda value: value
    if types.is_binary(source) and kind == uuids.KIND:
        return lambda value: str(UUID(bytes=value))
    exact = types.is_integer(source) or types.is_decimal(source)
    if exact and types.is_integer(kind):
        return lambda value: _in_range(_whole(value), kind)
    if exact and types.is_decimal(kind):
        return lambda value: _decimal(Decimal(value), kind)
    if types.is_integer(source) and types.is_floating(kind):
        return lambda value: float(_if(abs(value) <= _WHOLE_FLOATS[kind.bit_width], value))
    if types.is_decimal(source) and types.is_floating(kind):
        return lambda value: _float(str(value), kind)
    if types.is_floating(source):
        return _from_float(source, kind)
    return None


def _from_float(source: pa.DataType, kind: pa.DataType) -> Converter | None:
    # From the limit on, it may be another whole number, rounded.
    limit = _WHOLE_FLOATS[source.bit_width]
    if types.is_integer(kind):
        return lambda value: _in_range(_whole(_if(abs(value) < limit, value)), kind)
    if types.is_decimal(kind):
        return lambda value: _decimal(Decimal(_whole(_if(abs(value) < limit, value))), kind)
    if types.is_floating(kind):
        return lambda value: value if value != value else _if(float(_narrowed(value, kind)) == value, value)
    return None


def _if(holds: bool, value: Any) -> Any:
    if not holds:
        raise ValueError
    return value


def _matched(form: re.Pattern[str], text: str) -> str:
    return str(_if(len(text) <= _LONGEST and form.fullmatch(text) is not None, text))


def _string(text: str) -> str:
    if not text.isascii():
        text.encode()  # half a surrogate pair, from JSON: UnicodeEncodeError is a ValueError
    return text


def _char(length: int) -> Converter:
    """Ignores trailing spaces: Spark pads both sides of a comparison with a CHAR."""

    def convert(text: str) -> str:
        value = _string(text).rstrip(" ")
        return str(_if(len(value) <= length, value))

    return convert


def _in_range(value: int, kind: pa.DataType) -> int:
    signed = types.is_signed_integer(kind)
    least, top = (-1 << kind.bit_width - 1, 1 << kind.bit_width - 1) if signed else (0, 1 << kind.bit_width)
    return int(_if(least <= value < top, value))


def _whole(value: Any) -> int:
    return int(_if(value == int(value), value))


def _number(text: str) -> Decimal:
    value = Decimal(text)
    _if(bool(value) or not text.startswith("-"), text)
    return value


def _decimal(value: Decimal, kind: pa.DataType) -> Decimal:
    scaled = value.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    return Decimal(_if(scaled == value and len(scaled.as_tuple().digits) <= kind.precision, scaled))


def _narrowed(value: float, kind: pa.DataType) -> Any:
    with np.errstate(over="ignore"):
        return _FLOATS[kind.bit_width](value)


def _float(text: str, kind: pa.DataType) -> float:
    """The float if ``text`` is its shortest decimal number, or has at least as many digits as distinguish any two
    floats, correctly rounded (C's ``%.17g``).
    """
    value = _narrowed(float(text), kind)
    exact, wanted = float(value), Decimal(text)
    _if(math.isfinite(exact), exact)
    if wanted != Decimal(str(value)):
        digits = max(len(wanted.as_tuple().digits), _DIGITS[kind.bit_width])
        _if(Context(prec=digits).create_decimal(Decimal(exact)) == wanted, exact)
    return exact


def _boolean(text: str) -> bool:
    return bool(_if(text in ("true", "false"), text) == "true")


def _timestamp(text: str, kind: pa.DataType) -> datetime:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError
    day, time, fraction, zone = found.groups()
    nanos = int((fraction or "").ljust(9, "0"))
    micros = nanos // 1000
    _if(nanos % 1000 == 0 and micros % _MICROS[kind.unit] == 0, text)
    value = datetime.fromisoformat(f"{day}T{time}") + timedelta(microseconds=micros)
    if zone is None:
        return value
    _if(kind.tz is not None, text)
    return (value.replace(tzinfo=_offset(zone))).astimezone(UTC)


def _offset(text: str) -> timezone:
    if text == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[4:])
    _if(int(text[4:]) < 60 and minutes <= 18 * 60, text)
    return timezone(timedelta(minutes=-minutes if text.startswith("-") else minutes))


def _bytes(text: str) -> bytes:
    found = _BYTES.fullmatch(text)
    if found is None:
        raise ValueError
    return bytes.fromhex(found[1])
