"""Rows of Arrow as records of Avro blocks, encoded column by column.

Format: Apache Avro 1.11, binary encoding. A record is its fields one after the other, without anything between them. So
each column becomes arrays of byte strings, one for each row, and Arrow joins them row by row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.files.arrays import flags, numbers
from dv_maintenance.files.avro.schema import Rebuilt
from dv_maintenance.files.varint import MAX_BYTES

_Pieces = list[pa.Array]
"""Byte strings that form the values when they are joined row by row. Null is nothing."""

_BYTES: Final = pa.large_binary()
_WIDE: Final = 16
_SEVEN: Final = np.uint64(7)
_LOW: Final = np.uint64(0x7F)


def encoded_records(schema: Rebuilt, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """The rows as records, without nulls, with the offset 0. Columns belong to the fields of ``schema`` by their order.

    schema : of a record, see ``schema.parse_schema``.

    Raises
    ------
    ValueError : a value does not fit the schema, such as a null where the schema has no union.
    """
    return _joined(_fields(schema, batch.columns), batch.num_rows)


def _fields(schema: Rebuilt, columns: Iterable[pa.Array]) -> _Pieces:
    pairs = zip(schema["fields"], columns, strict=True)
    return [piece for field, column in pairs for piece in _pieces(field["type"], column)]


def _joined(pieces: _Pieces, rows: int) -> pa.LargeBinaryArray:
    if not rows or not pieces:
        return _byte_strings(np.zeros(rows, np.int64), b"")
    separator = pa.scalar(b"", _BYTES)
    return pc.binary_join_element_wise(*pieces, separator, null_handling="replace", null_replacement=b"")


def _pieces(schema: Rebuilt, array: pa.Array) -> _Pieces:
    if schema["type"] == "union":
        return _union(schema["branches"], array)
    if array.null_count:
        raise ValueError("a value is null that must not be")
    match schema["type"]:
        case "record":
            return _fields(schema, array.flatten())
        case "array" | "map":
            return _collection(schema, array)
        case "int" | "long":
            return [_varints(_integers(array))]
        case "float" | "double":
            return [_fixed(array, array.type.bit_width // 8)]
        case "boolean":
            return [_byte_strings(np.ones(len(array), np.int64), flags(array).view(np.uint8))]
        case "fixed" if types.is_decimal(array.type):
            return [_whole(_big_endian(array)[:, _WIDE - schema["size"] :])]
        case "fixed":
            return [_fixed(array, schema["size"])]
        case "bytes" if types.is_decimal(array.type):
            return _decimals(array)
        case "string" | "bytes":
            return [_varints(_integers(pc.binary_length(array))), array.cast(pa.binary()).cast(_BYTES)]
    raise ValueError(f"values of type {schema['type']} are not written")


def _union(branches: list[Rebuilt], array: pa.Array) -> _Pieces:
    kinds = [each["type"] for each in branches]
    if len(kinds) != 2 or kinds.count("null") != 1:
        raise ValueError("only unions with null are written")
    null = kinds.index("null")
    if not array.null_count:
        branch: Any = np.full(len(array), 2 * (1 - null), np.uint8)
        return [_whole(branch[:, None]), *_pieces(branches[1 - null], array)]
    present = flags(array.is_valid())
    branch = np.where(present, 2 * (1 - null), 2 * null).astype(np.uint8)
    found = _pieces(branches[1 - null], array.drop_null())
    valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    places = pa.py_buffer(np.cumsum(present) - 1)
    where = pa.Array.from_buffers(pa.int64(), len(array), [valid, places])
    return [_whole(branch[:, None]), *(each.take(where) for each in found)]


def _collection(schema: Rebuilt, array: pa.Array) -> _Pieces:
    """One block with all items, unless there are none, and a block of no items."""
    ends = numbers(array.offsets).astype(np.int64)
    first, stop = int(ends[0]), int(ends[-1])
    if types.is_map(array.type):
        key, item = array.keys[first:stop], array.items[first:stop]
        if schema["type"] == "map":
            pieces = [*_pieces({"type": "string"}, key), *_pieces(schema["values"], item)]
        else:
            pieces = _fields(schema["items"], (key, item))
    else:
        pieces = _pieces(schema["items"], array.values[first:stop])
    items = _joined(pieces, stop - first)
    _, offsets, data = items.buffers()
    grouped = np.frombuffer(offsets, np.int64)[ends - first]
    counts = np.diff(ends)
    last = np.zeros(int(np.count_nonzero(counts)), np.uint8)
    return [
        _varints(counts),
        pa.Array.from_buffers(_BYTES, len(array), [None, pa.py_buffer(grouped), data]),
        _byte_strings((counts > 0).astype(np.int64), last),
    ]


# -- plain values -------------------------------------------------------------------------------------------------


def _integers(array: pa.Array) -> Any:
    if types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return numbers(array.cast(pa.int64()))


def _varints(values: Any) -> pa.LargeBinaryArray:
    """Numbers of 64 bits as zigzag varints."""
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    sizes = np.ones(len(values), np.int64)
    columns = [left & _LOW]
    for _ in range(1, MAX_BYTES):
        left = left >> _SEVEN
        more = left > 0
        if not more.any():
            break
        columns[-1] |= more.astype(np.uint64) << _SEVEN
        sizes += more
        columns.append(left & _LOW)
    if len(columns) == 1:
        return _byte_strings(sizes, columns[0].astype(np.uint8))
    table = np.stack(columns, axis=1).astype(np.uint8)
    return _byte_strings(sizes, table[np.arange(len(columns)) < sizes[:, None]])


def _fixed(array: pa.Array, width: int) -> pa.LargeBinaryArray:
    """Little-endian numbers, and bytes of this width."""
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    return _whole(data[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width))


def _big_endian(array: pa.Array) -> Any:
    """The unscaled numbers of decimals, 16 bytes of each."""
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8).reshape(-1, _WIDE)
    return data[array.offset : array.offset + len(array), ::-1]


def _decimals(array: pa.Array) -> _Pieces:
    """As few bytes as hold the number and its sign, as Java writes them."""
    data = _big_endian(array)
    sign = np.where(data[:, 0] > 0x7F, 0xFF, 0).astype(np.uint8)
    # A byte goes if it is the sign, and so is the highest bit of the next one.
    same = (data[:, :-1] == sign[:, None]) & ((data[:, 1:] ^ sign[:, None]) < 0x80)
    gone = np.logical_and.accumulate(same, axis=1).sum(axis=1)
    kept = data[np.arange(_WIDE) >= gone[:, None]]
    return [_varints(_WIDE - gone), _byte_strings(_WIDE - gone, kept)]


def _whole(table: Any) -> pa.LargeBinaryArray:
    """Rows of bytes."""
    rows, width = table.shape
    return _byte_strings(np.full(rows, width, np.int64), np.ascontiguousarray(table))


def _byte_strings(sizes: Any, data: Any) -> pa.LargeBinaryArray:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return pa.Array.from_buffers(_BYTES, len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
