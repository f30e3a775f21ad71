"""Columns of the log as Arrow arrays: maps, statistics, and views into strings; see ``files.arrays`` for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from dv_maintenance.files.arrays import flags, int32s, strings, valid_bits


def maps(values: Sequence[dict[str, str | None] | None]) -> pa.MapArray:
    """map<string, string>. Raises TypeError on anything that is not such a map."""
    if not {dict, NoneType}.issuperset(map(type, values)):
        raise TypeError("not an object")
    if len(values) > _FEW:
        # Files of one partition have the same values.
        codes: dict[tuple[tuple[str, str | None], ...] | None, int] = {}
        pairs = [None if value is None else tuple(value.items()) for value in values]
        rows = int32s([codes.setdefault(each, len(codes)) for each in pairs])
        if len(codes) < len(values) // 2:
            return _maps([None if each is None else dict(each) for each in codes]).take(rows)
    return _maps(values)


def _maps(values: Sequence[dict[str, str | None] | None]) -> pa.MapArray:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) if value else 0 for value in values], out=offsets[1:])
    keys = strings([key for value in values if value for key in value])
    items = strings([item for value in values if value for item in value.values()])
    pairs = pa.StructArray.from_arrays(
        [keys, items], fields=[pa.field("key", pa.string(), False), pa.field("value", pa.string())]
    )
    return pa.MapArray.from_buffers(
        pa.map_(pa.string(), pa.string()), len(values), [valid_bits(values), pa.py_buffer(offsets)], children=[pairs]
    )


_FEW = 100

# -- numRecords of statistics ------------------------------------------------------------------------------------

_PREFIX = b'{"numRecords":'
_WORD = 8
_DIGITS = 2 * _WORD  # the number and its terminator must lie in the two words after the prefix


def num_records(stats: pa.StringArray) -> pa.Int64Array:
    """``numRecords`` of each JSON statistics string; null if the string has none.

    Statistics nearly always begin with this field, so all strings are read at once, eight characters at a time. Only
    the rest are parsed as JSON.
    """
    rows = len(stats)
    starts, ends, data = string_layout(stats)
    value = np.zeros(rows, np.int64)
    known = np.zeros(rows, bool)
    words = unaligned_words(data)
    fast = np.flatnonzero((ends - starts > len(_PREFIX)) & (starts + len(_PREFIX) + _DIGITS <= len(data)))
    if len(fast):
        at = starts[fast]
        first, second = np.frombuffer(_PREFIX[:_WORD] + _PREFIX[-_WORD:], "<u8")
        match = (words[at] == first) & (words[at + len(_PREFIX) - _WORD] == second)
        if not match.all():
            fast, at = fast[match], at[match]
        room = ends[fast] - at - len(_PREFIX)
        value[fast], known[fast] = _leading_number(words[at + len(_PREFIX)], words[at + len(_PREFIX) + _WORD], room)
    left = np.flatnonzero(~known & (ends > starts))
    for row, text in zip(left.tolist(), stats.take(int32s(left)).to_pylist(), strict=True):
        count = _parse_num_records(text)
        if count is not None:
            value[row], known[row] = count, True
    valid = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), rows, [valid, pa.py_buffer(value)])


def _leading_number(first: Any, second: Any, room: Any) -> tuple[Any, Any]:
    """The decimal number at the start of each 16 characters, and whether it is valid JSON: no leading zeros, and
    followed by a comma or brace. ``room``: how many characters belong to the same string; the next one follows them.
    """
    value = np.zeros(len(first), np.int64)
    ended = np.zeros(len(first), bool)
    going = np.ones(len(first), bool)
    for place in range(_DIGITS):
        word = first if place < _WORD else second
        char = (word >> np.uint64(8 * (place % _WORD))).astype(np.uint8)
        if place:
            ended |= going & (place < room) & ((char == ord(",")) | (char == ord("}")))
        digit = char - np.uint8(ord("0"))  # wraps around below "0"
        going &= digit <= 9
        if not going.any():
            break
        if place == 1:
            going &= value > 0
        value = np.where(going, value * 10 + digit, value)
    return value, ended


def _parse_num_records(text: str | None) -> int | None:
    try:
        count = orjson.loads(text or "null")["numRecords"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None
    return count if type(count) is int and 0 <= count < 1 << 63 else None


def string_layout(array: pa.StringArray) -> tuple[Any, Any, Any]:
    """Starts and ends of the strings in their bytes, as NumPy views; a null is an empty string."""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets or bytes(4), np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    starts, ends = bounds[:-1], bounds[1:]
    if array.null_count:
        ends = np.where(flags(array.is_valid()), ends, starts)
    return starts, ends, np.frombuffer(data or b"", np.uint8)


def unaligned_words(data: Any) -> Any:
    """The eight bytes from each position on, little-endian, without a copy."""
    return np.ndarray((max(len(data) - _WORD + 1, 0),), "<u8", data.data if len(data) >= _WORD else b"", strides=(1,))
