"""Paimon's deletion vectors: many per index file, in one of two encodings, which differ in their magic numbers.

Format: deletion vector index file of Paimon's table specification. A file is one version byte, the same for both
encodings, and then per DV ``int32 BE size, magic and bitmap, int32 BE CRC-32 of magic and bitmap``; ``size`` counts
magic and bitmap. The index manifest says where in the file each DV is, and how long.

- 32-bit: magic 1581511376, big-endian; one portable 32-bit roaring bitmap. The manifest's length is ``size``.
- 64-bit: magic 1681511377, little-endian; a portable 64-bit roaring bitmap. The manifest's length is that of all of
  it, ``size + 8``.

Paimon's own readers skip the checksum; here it is verified.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from dv_maintenance.dv import roaring
from dv_maintenance.dv.framing import FRAME, framed, unframed
from dv_maintenance.dv.vector import DeletionVector
from dv_maintenance.errors import DamagedDeletionVectorError

if TYPE_CHECKING:
    from dv_maintenance.dv.reference import DvRef, Fetch

CODEC: Final = "paimon"
"""Name of the codec, as a ``DvRef`` gives it."""

ENCODINGS: Final = (32, 64)
"""Bits of a position. A table writes 64 where ``deletion-vectors.bitmap64`` is set."""

MAX_POSITION: Final = {32: 2**31 - 1, 64: (2**31 - 2) << 32 | 0x80000000}
"""The largest position that the format's Java readers can represent, by encoding."""

FILE_VERSION: Final = 1
EMPTY_FILE: Final = bytes([FILE_VERSION])
"""The index file of a bucket without DVs."""

_MAGIC_32: Final = struct.pack(">i", 1581511376)
_MAGIC_64: Final = struct.pack("<i", 1681511377)
# The header before the only bucket of a 64-bit bitmap: number of buckets, and its key.
_ONE_BUCKET: Final = struct.pack("<QI", 1, 0)

_MAX_SIZE: Final = 2**31 - 1
_TARGET_SIZE: Final = 2 * 1024 * 1024
# A DV that begins this near to the start of its file is fetched together with the version byte.
_HEAD: Final = 64 * 1024
# A manifest that claims more than this must first be backed by a file of that size.
_PROBE_ABOVE: Final = 4 * 1024 * 1024


# -- bitmaps ------------------------------------------------------------------------------------------------------


def encode(dv: DeletionVector, bits: int = 32) -> bytes:
    """Magic and bitmap, run-optimised. ``bits``: one of ENCODINGS.

    Raises
    ------
    ValueError : nothing is deleted (such a DV is never stored), or a position is above MAX_POSITION.
    """
    return b"".join(_encoded(dv, bits))


def _encoded(dv: DeletionVector, bits: int) -> tuple[bytes, memoryview]:
    """Magic, and the bitmap. It is not copied, as it may have hundreds of megabytes."""
    if not dv:
        raise ValueError("an empty deletion vector is never stored")
    if (last := dv.max()) > MAX_POSITION[bits]:
        raise ValueError(f"position {last} is above the largest of the {bits}-bit encoding, {MAX_POSITION[bits]}")
    portable = memoryview(dv.to_portable())
    return (_MAGIC_64, portable) if bits == 64 else (_MAGIC_32, portable[len(_ONE_BUCKET) :])


def decode(data: bytes) -> DeletionVector:
    """The set in magic and bitmap, in either encoding. The bytes are validated.

    Raises
    ------
    DamagedDeletionVectorError : with the reason.
    """
    if len(data) < 4:
        raise DamagedDeletionVectorError(f"truncated: {len(data)} bytes are too few for the magic number")
    if data[:4] == _MAGIC_64:
        return DeletionVector.from_portable(data[4:])
    if data[:4] != _MAGIC_32:
        raise DamagedDeletionVectorError(f"unknown magic number {data[:4].hex()}")
    roaring.check_bitmap(memoryview(data)[4:])
    dv = DeletionVector(BitMap64.deserialize(_ONE_BUCKET + data[4:]))
    if dv and dv.max() > MAX_POSITION[32]:
        raise DamagedDeletionVectorError(f"position {dv.max()} is above the encoding's largest, {MAX_POSITION[32]}")
    return dv


# -- reading ------------------------------------------------------------------------------------------------------


def read(ref: DvRef, fetch: Fetch) -> DeletionVector:
    """The DV at ``ref``: its ``offset`` in the index file ``uri`` and its ``size``, both as the manifest has them.

    Raises
    ------
    DamagedDeletionVectorError : with the reason only; ``dv_codecs.load`` adds the place.
    """
    if ref.uri is None:
        raise DamagedDeletionVectorError("Paimon's deletion vectors are never inline")
    offset = _checked(ref.offset or 0, ref.size)
    # Only the magic number decides which length it is: 8 bytes too many do no harm.
    end = offset + ref.size + FRAME
    if ref.size > _PROBE_ABOVE and not fetch(ref.uri, offset + ref.size - 1, 1):
        raise DamagedDeletionVectorError(f"truncated: the file ends before byte {offset + ref.size}")
    start = 0 if offset <= _HEAD else offset
    data = fetch(ref.uri, start, end - start)
    if start < offset:
        _check_version(data)
    return _from_frame(data[offset - start :], ref.size)


def decode_at(data: bytes, offset: int, length: int) -> DeletionVector:
    """One DV of ``data``, a whole index file. Raises as :func:`read`."""
    _check_version(data)
    _checked(offset, length)
    return _from_frame(data[offset : offset + length + FRAME], length)


def _check_version(data: bytes) -> None:
    if data and data[0] != FILE_VERSION:
        raise DamagedDeletionVectorError(f"the file's format version is {data[0]}, not {FILE_VERSION}")


def _checked(offset: int, length: int) -> int:
    if not 1 <= offset <= _MAX_SIZE:
        raise DamagedDeletionVectorError(f"the manifest's offset {offset} is outside 1..{_MAX_SIZE}")
    if not 0 <= length <= _MAX_SIZE:
        raise DamagedDeletionVectorError(f"the manifest's length {length} is outside 0..{_MAX_SIZE}")
    return offset


def _from_frame(frame: bytes, length: int) -> DeletionVector:
    if len(frame) < 8:
        raise DamagedDeletionVectorError(f"truncated: {len(frame)} bytes left in the file, at least 8 needed")
    magic = frame[4:8]
    if magic not in {_MAGIC_32, _MAGIC_64}:
        raise DamagedDeletionVectorError(f"unknown magic number {magic.hex()}")
    declared = length - FRAME if magic == _MAGIC_64 else length
    return decode(unframed(frame, declared, "the manifest"))


# -- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """The place of a DV in its file, as in ``_DELETIONS_VECTORS_RANGES`` of the index manifest."""

    offset: int
    length: int
    cardinality: int


@dataclass(frozen=True, slots=True)
class IndexFile:
    """The bytes of an index file, and the places of its DVs in order."""

    data: bytes
    ranges: tuple[Range, ...]


def pack(dvs: Iterable[DeletionVector], bits: int = 32, *, target_size: int = _TARGET_SIZE) -> list[IndexFile]:
    """DVs as index files of up to ``target_size`` bytes (a larger DV gets its own file), in the DVs' order. Where a
    bucket may have only one file, give a target of 2^31 - 1.

    Raises
    ------
    ValueError : as :func:`encode`; a DV too large for a file of less than 2^31 bytes; no size of a file.
    """
    if not 0 < target_size <= _MAX_SIZE:
        raise ValueError(f"target size {target_size} is outside 1..{_MAX_SIZE}")
    files: list[IndexFile] = []
    parts, ranges, filled = list[bytes | memoryview]([EMPTY_FILE]), list[Range](), 1
    for dv in dvs:
        magic, bitmap = _encoded(dv, bits)
        size = len(magic) + len(bitmap)
        whole = size + FRAME
        if 1 + whole > _MAX_SIZE:
            raise ValueError(f"a deletion vector of {size} bytes does not fit into a file of less than 2^31")
        if ranges and filled + whole > target_size:
            files.append(IndexFile(b"".join(parts), tuple(ranges)))
            parts, ranges, filled = [EMPTY_FILE], [], 1
        parts += framed(magic, bitmap)
        ranges.append(Range(filled, whole if bits == 64 else size, dv.cardinality))
        filled += whole
    if ranges:
        files.append(IndexFile(b"".join(parts), tuple(ranges)))
    return files
