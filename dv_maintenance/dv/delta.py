"""Delta's deletion vectors: bitmaps after a magic number, alone, inline or many to a file.

Protocol: Deletion Vector Format. A bitmap is ``int32 LE magic`` and, after the portable magic, a 64-bit roaring bitmap.
A file is one version byte and then, per DV, ``int32 BE size, bitmap, int32 BE CRC-32 of the bitmap``; nothing but the
descriptors in the log says where in the file the DVs are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from dv_maintenance.dv import roaring, z85
from dv_maintenance.dv.descriptor import EMPTY, MAX_SIZE, DvDescriptor, dv_file_path
from dv_maintenance.dv.framing import FRAME, framed, unframed
from dv_maintenance.dv.vector import DeletionVector
from dv_maintenance.errors import DamagedDeletionVectorError

if TYPE_CHECKING:
    from dv_maintenance.dv.reference import DvRef, Fetch


PORTABLE_MAGIC = 1681511377
NATIVE_MAGIC = 1681511376
FILE_VERSION = 1
MAX_POSITION = (2**31 - 2) << 32 | 0x80000000
"""The largest row position that the format's Java readers can represent."""

_TARGET_SIZE = 2 * 1024 * 1024
# A DV that begins this near to the start of its file is fetched together with the version byte.
_HEAD = 64 * 1024
# A descriptor that claims more than this must first be backed by a file of that size.
_PROBE_ABOVE = 4 * 1024 * 1024


# -- bitmaps ------------------------------------------------------------------------------------------------------


def serialize(dv: DeletionVector) -> bytes:
    """The portable form, run-optimised.

    Raises
    ------
    ValueError : a position above MAX_POSITION.
    """
    if dv and dv.max() > MAX_POSITION:
        raise ValueError(f"position {dv.max()} is above the format's largest, {MAX_POSITION}")
    return struct.pack("<i", PORTABLE_MAGIC) + dv.to_portable()


def deserialize(data: bytes) -> DeletionVector:
    """The set in a bitmap, in the portable or the legacy native layout. The bytes are validated.

    Raises
    ------
    DamagedDeletionVectorError : with the reason.
    """
    if len(data) < 4:
        raise DamagedDeletionVectorError(f"truncated: {len(data)} bytes are too few for the magic number")
    (magic,) = struct.unpack_from("<i", data)
    if magic == PORTABLE_MAGIC:
        return DeletionVector.from_portable(data[4:])
    if magic == NATIVE_MAGIC:
        return DeletionVector.from_portable(_portable_of_native(data))
    raise DamagedDeletionVectorError(f"unknown magic number {magic}")


def _portable_of_native(data: bytes) -> bytes:
    """Legacy layout: ``int32 count``, then per bitmap ``int32 length`` and a 32-bit bitmap; all little-endian."""
    count = _int32(data, 4)
    if not 0 <= count * 4 <= len(data) - 8:
        raise DamagedDeletionVectorError(f"{count} bitmaps cannot fit into {len(data)} bytes")
    parts = [struct.pack("<Q", count)]
    at = 8
    for key in range(count):
        length = _int32(data, at)
        at += 4
        if roaring.bitmap_end(data, at) != at + length:
            raise DamagedDeletionVectorError(f"bitmap {key} does not have the recorded length of {length} bytes")
        parts += [struct.pack("<I", key), data[at : at + length]]
        at += length
    if at != len(data):
        raise DamagedDeletionVectorError(f"{len(data) - at} bytes are left after the last bitmap")
    return b"".join(parts)


def _int32(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise DamagedDeletionVectorError(f"truncated: {len(data)} bytes, at least {at + 4} needed")
    return int(struct.unpack_from("<i", data, at)[0])


# -- reading ------------------------------------------------------------------------------------------------------


def read(ref: DvRef, fetch: Fetch) -> DeletionVector:
    """The DV at ``ref``: ``inline`` text, or ``size`` bytes of bitmap after the size word at ``offset`` of ``uri``.

    An absent offset is 0, where only a file without a version byte could have a DV.

    Raises
    ------
    DamagedDeletionVectorError : with the reason only; ``dv_codecs.load`` adds the place.
    """
    if not 0 <= ref.size <= MAX_SIZE:
        raise DamagedDeletionVectorError(f"the descriptor's size {ref.size} is outside 0..{MAX_SIZE}")
    if ref.uri is None:
        return _from_inline(ref.inline or "", ref.size)
    offset = ref.offset or 0
    if not 0 <= offset <= MAX_SIZE:
        raise DamagedDeletionVectorError(f"the descriptor's offset {offset} is outside 0..{MAX_SIZE}")
    end = offset + ref.size + FRAME
    if ref.size > _PROBE_ABOVE and not fetch(ref.uri, end - 1, 1):
        raise DamagedDeletionVectorError(f"truncated: the file ends before byte {end}")
    start = 0 if offset <= _HEAD else offset
    data = fetch(ref.uri, start, end - start)
    if start < offset and data and data[0] != FILE_VERSION:
        raise DamagedDeletionVectorError(f"the file's format version is {data[0]}, not {FILE_VERSION}")
    return deserialize(unframed(data[offset - start :], ref.size, "the descriptor"))


def _from_inline(text: str, size: int) -> DeletionVector:
    if not text and not size:
        return DeletionVector.empty()
    data = z85.decode(text)
    if not 0 <= len(data) - size < 4:  # padded to whole groups of four bytes
        raise DamagedDeletionVectorError(f"the text holds {len(data)} bytes, the descriptor says {size}")
    return deserialize(data[:size])


# -- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedFile:
    """The bytes of one DV file, to be written at ``path`` (relative to the table's root), and its descriptors."""

    uuid: UUID
    prefix: str
    data: bytes
    descriptors: tuple[DvDescriptor, ...]

    @property
    def path(self) -> str:
        return dv_file_path(self.prefix, self.uuid)


def inline(dv: DeletionVector) -> DvDescriptor:
    """A descriptor that carries the DV itself; ``EMPTY`` for none. Meant for small ones.

    Raises
    ------
    ValueError : a position above MAX_POSITION.
    """
    if not dv:
        return EMPTY
    data = serialize(dv)
    return DvDescriptor("i", z85.encode(data + bytes(-len(data) % 4)), None, len(data), dv.cardinality)


def pack(dvs: Iterable[DeletionVector], *, target_size: int = _TARGET_SIZE, prefix: str = "") -> list[PackedFile]:
    """DVs as files of up to ``target_size`` bytes (a larger DV gets its own file), descriptors in the DVs' order.

    ``prefix``: folder of the files below the table's root.

    Raises
    ------
    ValueError : a DV is empty (the protocol stores none of those), too large for a file of less than 2^31 bytes, or
        has a position above MAX_POSITION; or the target is not a valid file size.
    """
    if not 0 < target_size <= MAX_SIZE:
        raise ValueError(f"target size {target_size} is outside 1..{MAX_SIZE}")
    files: list[PackedFile] = []
    frames: list[tuple[DeletionVector, bytes]] = []
    filled = 1
    for dv in dvs:
        if not dv:
            raise ValueError("an empty deletion vector is never stored")
        frame = _frame(dv)
        if frames and filled + len(frame) > target_size:
            files.append(_packed(frames, prefix))
            frames, filled = [], 1
        frames.append((dv, frame))
        filled += len(frame)
    if frames:
        files.append(_packed(frames, prefix))
    return files


def _frame(dv: DeletionVector) -> bytes:
    bitmap = serialize(dv)
    if 1 + len(bitmap) + FRAME > MAX_SIZE:
        raise ValueError(f"a deletion vector of {len(bitmap)} bytes does not fit into a file of less than 2^31")
    return b"".join(framed(bitmap))


def _packed(frames: list[tuple[DeletionVector, bytes]], prefix: str) -> PackedFile:
    uuid = uuid4()
    name = prefix + z85.encode(uuid.bytes)
    descriptors, offset = [], 1
    for dv, frame in frames:
        descriptors.append(DvDescriptor("u", name, offset, len(frame) - FRAME, dv.cardinality))
        offset += len(frame)
    data = b"".join([bytes([FILE_VERSION]), *(frame for _, frame in frames)])
    return PackedFile(uuid, prefix, data, tuple(descriptors))
