"""Arrow arrays from Python and NumPy values and back, without pandas.

``pyarrow.array`` and ``to_numpy`` import pandas wherever it is installed, which costs more time than reading the log of
a small table. These functions work on buffers, and check types, since the values come from an untrusted log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa

_NULLS = 1 << 14


def strings(values: Sequence[str | None]) -> pa.StringArray:
    """Raises TypeError if a value is neither a string nor ``None``."""
    if not {str, NoneType}.issuperset(map(type, values)):
        raise TypeError("not a string")
    text = [value or "" for value in values]
    joined = "".join(text)
    data = joined.encode()
    # If all text is ASCII, as nearly always, characters are bytes.
    lengths = map(len, text if len(data) == len(joined) else map(str.encode, text))
    offsets = np.zeros(len(text) + 1, np.int32)
    np.cumsum(np.fromiter(lengths, np.int64, len(text)), out=offsets[1:])
    return pa.StringArray.from_buffers(len(text), pa.py_buffer(offsets), pa.py_buffer(data), valid_bits(values))


def int64s(values: Sequence[int | None] | np.ndarray[Any, np.dtype[Any]]) -> pa.Int64Array:
    """Raises TypeError if a value is not an integer, OverflowError if it does not fit."""
    if isinstance(values, np.ndarray):
        data = np.ascontiguousarray(values, np.int64)
        return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])
    if not {int, NoneType}.issuperset(map(type, values)):
        raise TypeError("not an integer")
    data = np.array([value or 0 for value in values], np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [valid_bits(values), pa.py_buffer(data)])


def integer(value: int | None) -> pa.Int64Scalar:
    return int64s([value])[0]


def text(value: str) -> pa.StringScalar:
    return strings([value])[0]


def int32s(values: Any) -> pa.Int32Array:
    """From a NumPy array."""
    data = np.ascontiguousarray(values, np.int32)
    return pa.Array.from_buffers(pa.int32(), len(data), [None, pa.py_buffer(data)])


def bools(values: Any) -> pa.BooleanArray:
    """From a NumPy array of booleans."""
    packed = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(packed)])


def combined(column: pa.ChunkedArray) -> pa.Array:
    """``combine_chunks``, which imports pandas for a column without chunks, and copies a single one."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)


def taken(column: pa.ChunkedArray, rows: Any) -> pa.Array:
    """The rows of these positions, a NumPy array, in its order. Arrow's own ``take`` copies all of a column of several
    chunks first; this reads what it takes.
    """
    if column.num_chunks < 2:
        return combined(column).take(int64s(rows))
    begins = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])
    chunk_of = np.searchsorted(begins, rows, side="right") - 1
    # The sorted rows of a chunk are neighbours.
    order = np.argsort(chunk_of, kind="stable") if (np.diff(chunk_of) < 0).any() else None
    ordered = rows if order is None else rows[order]
    edges = np.searchsorted(chunk_of if order is None else chunk_of[order], np.arange(column.num_chunks + 1))
    parts = [
        column.chunk(at).take(int64s(ordered[edges[at] : edges[at + 1]] - begins[at]))
        for at in np.flatnonzero(np.diff(edges)).tolist()
    ]
    if not parts:
        return pa.nulls(0, column.type)
    found = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    if order is None:
        return found
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return found.take(int64s(back))


def valid_bits(values: Sequence[object]) -> pa.Buffer | None:
    """The validity bitmap of values; ``None`` if none of them is null."""
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


def null_column(rows: int, type: pa.DataType) -> pa.ChunkedArray:
    """Nothing but nulls, in the memory of one chunk that all such columns share."""
    chunk = _nulls(type)
    full, rest = divmod(rows, _NULLS)
    return pa.chunked_array([*([chunk] * full), *([chunk.slice(0, rest)] if rest or not full else [])], type)


@cache
def _nulls(type: pa.DataType) -> pa.Array:
    return pa.nulls(_NULLS, type)


def numbers(array: pa.Array) -> Any:
    """A NumPy view of an Arrow integer array; what lies under a null is unspecified."""
    width = array.type.bit_width // 8
    data = np.frombuffer(array.buffers()[1] or b"", f"i{width}")
    return data[array.offset : array.offset + len(array)]


def flags(array: pa.BooleanArray | pa.ChunkedArray) -> Any:
    """A NumPy mask of Arrow booleans; what lies under a null is unspecified."""
    if isinstance(array, pa.ChunkedArray):
        return np.concatenate([flags(chunk) for chunk in array.chunks] or [np.zeros(0, bool)])
    start, bits = array.offset, np.frombuffer(array.buffers()[1] or b"", np.uint8)
    first, stop = start // 8, -(-(start + len(array)) // 8)
    return np.unpackbits(bits[first:stop], bitorder="little")[start % 8 :][: len(array)].view(bool)
