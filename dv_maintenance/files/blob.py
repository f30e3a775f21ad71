"""Blob files of Paimon: the values of one column, row by row, and an index of their lengths at the end.

Format: ``BlobFileFormat`` of Paimon's Java, version 1, which its documentation describes. A record is a magic number,
the value, the length of the whole record, and the CRC-32 of all before; numbers are little-endian. The index has the
length of each record, or a negative number where a row has none. It is a sequence of differences, in zigzag and varint
encoding. Its own length and the version are the last five bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files.varint import MAX_BYTES, varint, zigzag

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    Longs = npt.NDArray[np.int64]

NULL: Final = -1
PLACEHOLDER: Final = -2
"""The value is that of an older file."""

_MAGIC: Final = (1481511375).to_bytes(4, "little")
_VERSION: Final = 1
_FOOTER: Final = 5
_AROUND: Final = 16  # bytes of a record besides its value
_BITS: Final = 7
_CHUNK: Final = 16 << 20
# Of arrays and maps: the magic number, the version and how many parts there are.
_HEADER: Final = struct.Struct("<IBI")
_ARRAY, _MAP = 1094861634, 0x4D424342


def read_lengths(size: int, read: Callable[[int, int], bytes]) -> Longs:
    """The index of a file: for each row the length of its record, NULL or PLACEHOLDER.

    read : the bytes from a position on, and how many.

    Raises
    ------
    DamagedTableError : the index is damaged.
    UnsupportedFeatureError : the file has another version.
    """
    footer = read(size - _FOOTER, _FOOTER) if size >= _FOOTER else b""
    if len(footer) != _FOOTER:
        raise DamagedTableError("it has no index")
    if footer[4] != _VERSION:
        raise UnsupportedFeatureError(
            f"a file of blobs has format version {footer[4]}; this release reads only version {_VERSION}",
            features=(f"blob version {footer[4]}",),
            next_step="use a newer release of this tool, or Paimon itself",
        )
    length = int.from_bytes(footer[:4], "little")
    body = size - _FOOTER - length
    data = read(body, length) if body >= 0 and length else b""
    if len(data) != length:
        raise DamagedTableError("its index is longer than the file")
    lengths = delta_varints(data)
    stored = lengths[lengths >= 0]
    if (lengths < PLACEHOLDER).any() or (stored < _AROUND).any() or int(stored.sum()) != body:
        raise DamagedTableError("its index does not fit its records")
    return lengths


def cut(file: pa.NativeFile, rows: range, of: int, sink: Any) -> None:
    """Write the records of some rows as a file of their own, as they are, with what stands for null and for the value
    of an older file.

    of : how many rows the file has.

    Raises
    ------
    DamagedTableError, UnsupportedFeatureError : as :func:`read_lengths`, or it has another number of rows.
    """
    lengths = read_lengths(file.size(), lambda at, count: file.read_at(count, at))
    if len(lengths) != of:
        raise DamagedTableError(f"it has {len(lengths)} rows, not {of}")
    kept = lengths[rows.start : rows.stop]
    begin = int(offsets(lengths)[rows.start])
    copy_bytes(file, range(begin, begin + int(kept[kept > 0].sum())), sink)
    sink.write(index_of(kept.tolist()))


def copy_bytes(file: pa.NativeFile, wanted: range, sink: Any) -> None:
    """Write some bytes of a file. Raises DamagedTableError: it ends before them."""
    for at in range(wanted.start, wanted.stop, _CHUNK):
        data = file.read_at(min(_CHUNK, wanted.stop - at), at)
        if len(data) < min(_CHUNK, wanted.stop - at):
            raise DamagedTableError("it is shorter than its index says")
        sink.write(data)


def delta_varints(data: bytes) -> Longs:
    """The numbers of a sequence of differences, zigzag numbers of 7 bits a byte, the lowest first. Raises
    DamagedTableError.
    """
    return np.cumsum(_numbers(data))


def delta_varint_bytes(numbers: Sequence[int]) -> bytes:
    """Undoes :func:`delta_varints`."""
    return b"".join(varint(zigzag(after - before)) for before, after in pairwise([0, *numbers]))


def _numbers(data: bytes) -> Longs:
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 1 << _BITS)
    if not len(octets):
        return np.zeros(0, np.int64)
    if not len(ends) or ends[-1] != len(octets) - 1:
        raise DamagedTableError("its index ends within a number")
    starts = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(len(octets)) - np.repeat(starts, ends - starts + 1)
    if places.max() >= MAX_BYTES:
        raise DamagedTableError("its index has a number of more than 64 bits")
    parts = (octets & 0x7F).astype(np.uint64) << (places * _BITS).astype(np.uint64)
    signed = np.add.reduceat(parts, starts)
    return (signed >> np.uint64(1)).astype(np.int64) ^ -(signed & np.uint64(1)).astype(np.int64)


def offsets(lengths: Longs) -> Longs:
    """Where each record begins. A row without one has the place where it would be."""
    stored = np.maximum(lengths, 0)
    return np.cumsum(stored) - stored


def value(record: Any) -> bytes:
    """The value of a record. Raises DamagedTableError: the record is damaged."""
    end = len(record) - 4
    whole = bytes(record[:4]) == _MAGIC and int.from_bytes(record[end - 8 : end], "little") == len(record)
    if not whole or int.from_bytes(record[end:], "little") != zlib.crc32(record[:end]):
        raise DamagedTableError("the checksum of a blob is wrong")
    return bytes(record[4 : end - 8])


def elements(value: bytes) -> list[bytes | None]:
    """The blobs of an array. Raises DamagedTableError, UnsupportedFeatureError.

    Format: a magic number, the version, the number of blobs, the blobs, their lengths as a sequence of differences, and
    the length of that.
    """
    count, rest = _count_of(value, _ARRAY)
    (lengths,), data = _lengths_of(rest, 1, count)
    return _split(data, lengths)


def entries(value: bytes) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and blobs of a map. The format is that of arrays, with all keys before all blobs. Raises as
    :func:`elements`.
    """
    count, rest = _count_of(value, _MAP)
    (keys, blobs), data = _lengths_of(rest, 2, count)
    parts = _split(data, [*keys, *blobs])
    return list(zip(parts[:count], parts[count:], strict=True))


def _count_of(value: bytes, magic: int) -> tuple[int, bytes]:
    """How many parts an array or map has, and what follows."""
    if len(value) < _HEADER.size or _HEADER.unpack_from(value)[0] != magic:
        raise DamagedTableError("a blob is not the array or map that the table's schema says")
    _, version, count = _HEADER.unpack_from(value)
    if version != 1:
        raise UnsupportedFeatureError(
            f"an array or map of blobs has format version {version}; this release reads only version 1",
            features=(f"blob array version {version}",),
            next_step="use a newer release of this tool, or Paimon itself",
        )
    return count, value[_HEADER.size :]


def _lengths_of(data: bytes, kinds: int, count: int) -> tuple[list[list[int]], bytes]:
    """The lists of lengths at the end, and what is before."""
    at = len(data) - 4 * kinds
    sizes = [int.from_bytes(data[at + 4 * each : at + 4 * each + 4], "little") for each in range(kinds)]
    begin = at - sum(sizes)
    if begin < 0:
        raise DamagedTableError("the lengths in an array or map of blobs are damaged")
    found, start = [], begin
    for size in sizes:
        found.append(delta_varints(data[start : start + size]).tolist())
        start += size
    stored = sum(length for lengths in found for length in lengths if length > 0)
    if any(len(lengths) != count or min(lengths, default=0) < NULL for lengths in found) or stored != begin:
        raise DamagedTableError("the lengths in an array or map of blobs do not fit")
    return found, data[:begin]


def _split(data: bytes, lengths: Sequence[int]) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    for length in lengths:
        found.append(None if length == NULL else data[at : at + length])
        at += max(length, 0)
    return found


def index_of(lengths: Sequence[int]) -> bytes:
    """The bytes after the records of a file.

    >>> index_of([20, NULL, 20]).hex()
    '28292a0300000001'
    """
    found = delta_varint_bytes(lengths)
    return found + len(found).to_bytes(4, "little") + bytes([_VERSION])
