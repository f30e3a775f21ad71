"""Rows in Paimon's binary form, written for tests after the format's description."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from dv_maintenance.tables.paimon.log.binary_row import Moment
from dv_maintenance.tables.paimon.rows.types import DataType

LAYOUTS = {
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


def encode_row(values: Sequence[Any], types: Sequence[DataType]) -> bytes:
    header = bytearray((len(types) + 63 + 8) // 64 * 8)
    slots = bytearray(8 * len(types))
    start = len(header) + len(slots)
    tail = bytearray()

    def place(data: bytes) -> int:
        at = start + len(tail)
        tail.extend(data + bytes(-len(data) % 8))
        return at

    for index, (value, kind) in enumerate(zip(values, types, strict=True)):
        at = 8 * index
        if value is None:
            header[(index + 8) // 8] |= 1 << (index + 8) % 8
        elif kind.root in LAYOUTS:
            struct.pack_into(LAYOUTS[kind.root], slots, at, value)
        elif isinstance(value, str | bytes):
            data = value.encode() if isinstance(value, str) else value
            if len(data) <= 7:
                slots[at : at + 8] = data + bytes(7 - len(data)) + bytes([0x80 | len(data)])
            else:
                struct.pack_into("<II", slots, at, len(data), place(data))
        elif isinstance(value, Decimal):
            unscaled = int(value.scaleb(kind.scale).to_integral_exact()) if kind.precision <= 18 else big(value, kind)
            if kind.precision <= 18:
                struct.pack_into("<q", slots, at, unscaled)
            else:
                data = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
                struct.pack_into("<II", slots, at, len(data), place(data))
        elif isinstance(value, Moment):
            if kind.precision <= 3:
                struct.pack_into("<q", slots, at, value.millis)
            else:
                struct.pack_into("<II", slots, at, value.nanos, place(struct.pack("<q", value.millis)))
        else:
            raise TypeError(value)
    return struct.pack(">i", len(types)) + bytes(header + slots + tail)


def big(value: Decimal, type: DataType) -> int:
    sign, digits, exponent = value.as_tuple()
    assert exponent == -type.scale
    return int("".join(map(str, digits))) * (-1 if sign else 1)
