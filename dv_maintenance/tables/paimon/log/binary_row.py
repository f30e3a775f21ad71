"""Decode and encode rows in Paimon's binary form: partitions, keys and statistics in manifests.

Format: BinaryRow of Paimon's data structures. In a manifest, the number of fields (4 bytes, big-endian) precedes the
row. The row begins with a header of whole 8-byte words: one byte for the kind of row, then a null bit per field. A slot
of 8 bytes per field follows, little-endian. It holds the value, or the value's place in the row as
``offset << 32 | length``. Text and bytes of up to 7 bytes are in their slot; its last byte is then ``0x80 | length``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.paimon.rows.types import DataType

_WORD: Final = 8
_LAYOUTS: Final = {
    "BOOLEAN": "<?",
    "TINYINT": "<b",
    "SMALLINT": "<h",
    "INT": "<i",
    "DATE": "<i",
    "TIME": "<i",
    "BIGINT": "<q",
    "FLOAT": "<f",
    "DOUBLE": "<d",
}
_TEXT: Final = frozenset({"CHAR", "VARCHAR"})
_BYTES: Final = frozenset({"BINARY", "VARBINARY"})
_TIMES: Final = frozenset({"TIMESTAMP", "TIMESTAMP_LTZ"})
# Up to these precisions, the slot itself holds a decimal's unscaled value or a timestamp's milliseconds.
_COMPACT_DIGITS: Final = 18
_COMPACT_FRACTION: Final = 3
_MAX_DECIMAL_BYTES: Final = 16
_NANOS_PER_MILLI: Final = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A timestamp.

    millis : milliseconds since the epoch.
    nanos : nanoseconds within the millisecond.
    """

    millis: int
    nanos: int = 0


def decode_row(data: bytes, types: Sequence[DataType], *, only: Sequence[int] | None = None) -> tuple[Any, ...]:
    """Decode a row to ``None``, bool, int, float, str, bytes, Decimal or Moment. Dates are days since the epoch, times
    are milliseconds of the day. The bytes are validated.

    only : positions of the requested fields; by default all.

    Raises
    ------
    DamagedTableError : the bytes are not a row of these types.
    """
    if len(data) < 4:
        raise DamagedTableError(f"a row of {len(data)} bytes is truncated")
    (arity,) = struct.unpack_from(">i", data)
    if arity != len(types):
        raise DamagedTableError(f"a row has {arity} fields, not {len(types)}")
    row = data[4:]
    header = (arity + 63 + 8) // 64 * _WORD
    if len(row) < header + _WORD * arity:
        raise DamagedTableError(f"a row of {arity} fields is truncated: {len(row)} bytes")
    wanted = range(arity) if only is None else only
    return tuple(_value(row, types[index], header + _WORD * index, index) for index in wanted)


def _value(row: bytes, type: DataType, slot: int, index: int) -> Any:
    if row[(index + 8) // 8] >> (index % 8) & 1:
        return None
    if layout := _LAYOUTS.get(type.root):
        return struct.unpack_from(layout, row, slot)[0]
    if type.root in _TEXT:
        try:
            return _varying(row, slot).decode()
        except UnicodeDecodeError:
            raise DamagedTableError("a text in a row is not UTF-8") from None
    if type.root in _BYTES:
        return _varying(row, slot)
    if type.root == "DECIMAL":
        return _decimal(row, type, slot)
    if type.root in _TIMES:
        return _moment(row, type, slot)
    raise DamagedTableError(f"a row of keys has a field of the unsupported type {type.root}")


def _varying(row: bytes, slot: int) -> bytes:
    last = row[slot + 7]
    if last & 0x80:
        length = last & 0x7F
        if length > 7:
            raise DamagedTableError(f"{length} bytes cannot be in a row's slot")
        return row[slot : slot + length]
    return _part(row, slot)


def _part(row: bytes, slot: int) -> bytes:
    length, offset = struct.unpack_from("<II", row, slot)
    if offset + length > len(row):
        raise DamagedTableError(f"a value of a row ends at byte {offset + length} of {len(row)}")
    return row[offset : offset + length]


def _decimal(row: bytes, type: DataType, slot: int) -> Decimal:
    if type.precision <= _COMPACT_DIGITS:
        (unscaled,) = struct.unpack_from("<q", row, slot)
    else:
        part = _part(row, slot)
        if not 0 < len(part) <= _MAX_DECIMAL_BYTES:
            raise DamagedTableError(f"a decimal of a row has {len(part)} bytes")
        unscaled = int.from_bytes(part, "big", signed=True)
    if abs(unscaled) >= 10**type.precision:
        raise DamagedTableError(f"a decimal of a row has more than {type.precision} digits")
    # Exact, whatever the precision of the thread's context.
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -type.scale))


def _moment(row: bytes, type: DataType, slot: int) -> Moment:
    if type.precision <= _COMPACT_FRACTION:
        return Moment(struct.unpack_from("<q", row, slot)[0])
    nanos, offset = struct.unpack_from("<II", row, slot)
    if offset + _WORD > len(row) or nanos >= _NANOS_PER_MILLI:
        raise DamagedTableError("a timestamp lies outside its row, or has more nanoseconds than a millisecond")
    return Moment(struct.unpack_from("<q", row, offset)[0], nanos)


# -- writing ------------------------------------------------------------------------------------------------------


def encode_row(values: Sequence[Any], types: Sequence[DataType]) -> bytes:
    """Encode ``values``, in the types that :func:`decode_row` returns. The number of fields precedes the row.

    Raises
    ------
    ValueError : a value does not fit its type, or a row of keys or statistics can't hold that type.
    """
    header = bytearray((len(types) + 63 + 8) // 64 * _WORD)
    slots = bytearray(_WORD * len(types))
    tail = bytearray()

    def place(data: bytes) -> int:
        """Append ``data`` after the slots, padded to whole words. Returns its offset in the row."""
        at = len(header) + len(slots) + len(tail)
        tail.extend(data + bytes(-len(data) % _WORD))
        return at

    for index, (value, kind) in enumerate(zip(values, types, strict=True)):
        if value is None:
            header[(index + 8) // 8] |= 1 << index % 8
            # A null has a variable part as well, since a writer may later set the value in place.
            slots[_WORD * index : _WORD * (index + 1)] = _null_slot(kind, place)
            continue
        try:
            slots[_WORD * index : _WORD * (index + 1)] = _slot(value, kind, place)
        except (struct.error, OverflowError, AttributeError, TypeError) as error:
            raise ValueError(f"{value!r} is not a {kind.root}: {error}") from None
    return struct.pack(">i", len(types)) + bytes(header + slots + tail)


def _null_slot(type: DataType, place: Callable[[bytes], int]) -> bytes:
    if type.root == "DECIMAL" and type.precision > _COMPACT_DIGITS:
        return struct.pack("<II", 0, place(bytes(_MAX_DECIMAL_BYTES)))
    if type.root in _TIMES and type.precision > _COMPACT_FRACTION:
        return struct.pack("<II", 0, place(bytes(_WORD)))
    return bytes(_WORD)


def _slot(value: Any, type: DataType, place: Callable[[bytes], int]) -> bytes:
    if layout := _LAYOUTS.get(type.root):
        return struct.pack(layout, value).ljust(_WORD, b"\0")
    if type.root in _TEXT or type.root in _BYTES:
        data: bytes = value.encode() if type.root in _TEXT else value
        if len(data) <= _WORD - 1:
            return data.ljust(_WORD - 1, b"\0") + bytes([0x80 | len(data)])
        return struct.pack("<II", len(data), place(data))
    if type.root == "DECIMAL":
        return _decimal_slot(value, type, place)
    if type.root in _TIMES:
        if type.precision <= _COMPACT_FRACTION:
            return struct.pack("<q", value.millis)
        return struct.pack("<II", value.nanos, place(struct.pack("<q", value.millis)))
    raise ValueError(f"a row of keys can't hold the type {type.root}")


def _decimal_slot(value: Decimal, type: DataType, place: Callable[[bytes], int]) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent < -type.scale:
        raise ValueError(f"{value} has more than {type.scale} digits after the point")
    unscaled = int("".join(map(str, digits))) * 10 ** (exponent + type.scale) * (-1 if sign else 1)
    if abs(unscaled) >= 10**type.precision:
        raise ValueError(f"{value} has more than {type.precision} digits")
    if type.precision <= _COMPACT_DIGITS:
        return struct.pack("<q", unscaled)
    data = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    # Room for the largest value, since one of Paimon's writers may change the value in place.
    return struct.pack("<II", len(data), place(data.ljust(_MAX_DECIMAL_BYTES, b"\0")))
