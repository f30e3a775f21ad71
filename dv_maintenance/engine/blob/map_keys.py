"""Keys of maps of blobs, whose bytes depend on their type.

Format: ``create_map_blob_key_serializer`` of pypaimon 2.1: little-endian numbers (dates in days, times in milliseconds,
decimals of up to 18 digits in eight bytes), decimals of more digits as big-endian bytes, one byte for a boolean, text
in UTF-8, bytes as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import DamagedTableError

_LONG: Final = 18  # digits
_EXACT: Final = Context(prec=40)


def map_keys(stored: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """The keys as an array of this type. Raises DamagedTableError: bytes are none of the type."""
    try:
        if types.is_date32(kind) or types.is_time32(kind):
            return pa.array([_number(each, 4) for each in stored], pa.int32()).cast(kind)
        return pa.array([_key(each, kind) for each in stored], kind)
    except (ValueError, pa.ArrowException) as error:
        raise DamagedTableError(f"a key in a map of blobs is damaged: {error}") from error


def _key(data: bytes, kind: pa.DataType) -> Any:
    if types.is_boolean(kind):
        return bool(_number(data, 1))
    if types.is_integer(kind):
        return _number(data, kind.bit_width // 8)
    if types.is_decimal(kind):
        unscaled = _number(data, 8) if kind.precision <= _LONG else int.from_bytes(data, "big", signed=True)
        return Decimal(unscaled).scaleb(-kind.scale, _EXACT)
    return data.decode() if types.is_string(kind) else data


def _number(data: bytes, width: int) -> int:
    if len(data) != width:
        raise ValueError(f"it has {len(data)} bytes, not {width}")
    return int.from_bytes(data, "little", signed=True)
