"""Single values from the JSON forms of tasks (see ``SourceFile.constants``) to Arrow.

Built from buffers throughout: ``pa.scalar`` and ``pa.array`` of Python values import pandas wherever it is installed,
which would cost every worker 0.8 s.
"""

from __future__ import annotations

import base64
import struct
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import DamagedTableError, RefusedError

_EXACT = Context(prec=76, traps=[InvalidOperation, Inexact])
# The types in which Arrow stores dates and times.
_PHYSICAL = {32: pa.int32(), 64: pa.int64()}


def scalar_of(value: Any, type: pa.DataType, column: str) -> pa.Scalar:
    """The Arrow scalar of a JSON value; ``column`` is for the error.

    Raises
    ------
    DamagedTableError : if the value is not one of ``type``.
    RefusedError : if it is a timestamp that ``type`` can't hold.
    """
    try:
        array = pa.nulls(1, type) if value is None else _array(value, type)
    except (ValueError, TypeError, struct.error, OverflowError, DecimalException) as error:
        if types.is_timestamp(type) and isinstance(value, int):
            raise RefusedError(
                f"the table gives column {column} a timestamp with nanoseconds before 1677 or after 2262, for which "
                "Arrow has no type",
                next_step="leave the column out, or read the table with its own engine",
            ) from error
        raise DamagedTableError(
            f"the table gives column {column} the value {value!r}, which is not a {type}",
            next_step="repair the partition value in the table's log",
        ) from error
    return array[0]


def _array(value: Any, type: pa.DataType) -> pa.Array:
    """An array of this one value."""
    if types.is_boolean(type):
        return _fixed(type, struct.pack("?", _expect(value, bool)))
    if types.is_integer(type) or types.is_temporal(type):
        if isinstance(value, bool):
            raise TypeError(value)
        whole = _fixed(pa.int64(), struct.pack("<q", _expect(value, int)))
        if types.is_temporal(type):
            return whole.cast(_PHYSICAL[type.bit_width]).view(type)
        return whole.cast(type)
    if types.is_floating(type):
        return _fixed(pa.float64(), struct.pack("<d", float(value))).cast(type, safe=False)
    if types.is_decimal128(type):
        return _fixed(type, _unscaled(_expect(value, str), type).to_bytes(16, "little", signed=True))
    if types.is_binary(type):
        return _varying(type, base64.b64decode(_expect(value, str), validate=True))
    if types.is_fixed_size_binary(type):
        data = base64.b64decode(_expect(value, str), validate=True)
        if len(data) != type.byte_width:
            raise ValueError(value)
        return _fixed(type, data)
    if types.is_string(type):
        return _varying(type, _expect(value, str).encode())
    raise TypeError(type)


def _fixed(type: pa.DataType, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(type, 1, [None, pa.py_buffer(data)])


def _varying(type: pa.DataType, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(type, 1, [None, pa.py_buffer(struct.pack("<ii", 0, len(data))), pa.py_buffer(data)])


def _unscaled(text: str, type: pa.DataType) -> int:
    unscaled = int(_EXACT.scaleb(Decimal(text), type.scale).to_integral_exact(context=_EXACT))
    if abs(unscaled) >= 10**type.precision:
        raise ValueError(text)
    return unscaled


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value
