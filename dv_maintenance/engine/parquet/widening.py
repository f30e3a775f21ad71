"""Which leaf types of a Parquet file may be read as which type of the table, and how.

A widening loses nothing: integers and decimals grow, float becomes double, a date becomes its midnight (protocol: Type
Widening). Other conversions only change the representation of a value: dictionaries, large and view layouts, time
units, text without its annotation, INT96 and other timestamps that lack the flag of adjustment to UTC.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types

Convert = Callable[[pa.Array], pa.Array]

# Decimal digits that hold every value of an integer type (protocol: Type Widening).
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_PARQUET_INT32_BITS = 32


def same(array: pa.Array) -> pa.Array:
    return array


def widening(source: pa.DataType, target: pa.DataType) -> Convert | None:
    """The conversion of arrays of ``source`` to arrays of ``target``; ``None`` if there is none.

    The returned function raises ``pa.ArrowInvalid`` for a value that does not fit (such as 300 in a column of bytes).
    """
    if source == target:
        return same
    if types.is_dictionary(source):
        inner = widening(source.value_type, target)
        return None if inner is None else lambda array: inner(array.dictionary_decode())
    if types.is_null(source) or types.is_null(target):
        return lambda array: pa.nulls(len(array), target)
    if types.is_timestamp(source) and types.is_timestamp(target):
        # The flag of UTC never changes the stored number: Delta's and Paimon's writers have omitted it (INT96 has
        # none). Units are converted; a value that a coarser unit can't hold is an error, and is not rounded.
        return lambda array: array.cast(pa.timestamp(target.unit, source.tz)).view(target)
    if _text(source) and _text(target):
        # Unchecked, as the bytes do not change: other writers do store other encodings in strings.
        return lambda array: array.cast(target, safe=False)
    if types.is_int32(source) and types.is_time32(target) and target.unit == "ms":
        return lambda array: array.view(target)  # ORC has no times: milliseconds of the day
    if types.is_int64(source) and types.is_time64(target) and target.unit == "us":
        return lambda array: array.view(target)  # or microseconds
    if types.is_binary(source) and types.is_fixed_size_binary(target):
        return lambda array: array.cast(target)  # ORC has no fixed length either; another one is an error
    if _may_grow(source, target):
        return lambda array: array.cast(target)
    return None


def _may_grow(source: pa.DataType, target: pa.DataType) -> bool:
    if types.is_integer(source):
        if types.is_integer(target):
            # Parquet has no byte or short: a file may store one as a plain INT32, with values that must then fit.
            fits = (
                _bits(source) < _bits(target) if types.is_unsigned_integer(source) else _bits(source) <= _bits(target)
            )
            return fits or max(_bits(source), _bits(target)) <= _PARQUET_INT32_BITS
        if types.is_decimal(target):
            return bool(target.precision - target.scale >= _DIGITS[_bits(source)])
        return bool(types.is_float64(target)) and _bits(source) <= _PARQUET_INT32_BITS
    if types.is_decimal(source) and types.is_decimal(target):
        more_scale = target.scale - source.scale
        return bool(more_scale >= 0 and target.precision - source.precision >= more_scale)
    if types.is_floating(source) and types.is_floating(target):
        return _bits(source) < _bits(target)
    if types.is_date(source):
        return bool(types.is_date(target) or (types.is_timestamp(target) and target.tz is None))
    if types.is_fixed_size_binary(source):
        return bool(types.is_binary(target) or types.is_large_binary(target))
    return bool(types.is_time(source) and types.is_time(target))


def _bits(type: pa.DataType) -> int:
    return int(type.bit_width)


def _text(type: pa.DataType) -> bool:
    """Parquet BYTE_ARRAY in any of Arrow's layouts, annotated as text or not."""
    return bool(
        types.is_binary(type)
        or types.is_large_binary(type)
        or types.is_binary_view(type)
        or types.is_string(type)
        or types.is_large_string(type)
        or types.is_string_view(type)
    )
