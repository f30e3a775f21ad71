"""Values of columns and partitions in the binary form that bounds have.

Format: Iceberg specification, Appendix D, Binary single-value serialization.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types


def encoded(value: Any, kind: pa.DataType) -> bytes | None:
    """A value as manifests have it (days, microseconds, unscaled bytes); ``None`` for types that have no form here."""
    if types.is_boolean(kind):
        return b"\x01" if value else b"\x00"
    if types.is_int32(kind) or types.is_date(kind):
        return struct.pack("<i", value)
    if types.is_int64(kind) or types.is_timestamp(kind) or types.is_time(kind):
        return struct.pack("<q", value)
    if types.is_floating(kind):
        return struct.pack("<f" if types.is_float32(kind) else "<d", value)
    if types.is_string(kind):
        return value.encode() if isinstance(value, str) else None
    if types.is_decimal(kind):
        return unscaled(int.from_bytes(value, "big", signed=True) if isinstance(value, bytes) else value)
    return value if isinstance(value, bytes) else None


def of_json(value: Any, kind: pa.DataType) -> Any:
    """From the JSON of ``ColumnStats`` to what :func:`encoded` takes."""
    if value is not None and types.is_decimal(kind):
        return int(Decimal(value).scaleb(kind.scale).to_integral_value())
    return value


def unscaled(number: int) -> bytes:
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
