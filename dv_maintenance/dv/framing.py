"""The frame around a bitmap in a file: the same in Delta, Paimon and Iceberg's Puffin files.

``int32 BE size, magic and bitmap, int32 BE CRC-32 of magic and bitmap``; ``size`` counts magic and bitmap.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from dv_maintenance.errors import DamagedDeletionVectorError

FRAME: Final = 8
"""Bytes around magic and bitmap: size and checksum."""


def framed(*parts: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
    """The parts of a frame, to be joined: ``parts`` are magic and bitmap, which are not copied."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return struct.pack(">i", sum(map(len, parts))), *parts, struct.pack(">I", checksum)


def unframed(frame: bytes, size: int, says: str) -> bytes:
    """Magic and bitmap of the frame at the beginning of ``frame``. ``size``: their bytes according to ``says``.

    Raises
    ------
    DamagedDeletionVectorError : with the reason.
    """
    if len(frame) >= 4:
        (stored,) = struct.unpack_from(">i", frame)
        if stored != size:
            raise DamagedDeletionVectorError(f"the file says {stored} bytes, {says} {size}")
    if len(frame) < size + FRAME:
        raise DamagedDeletionVectorError(f"truncated: {len(frame)} bytes left in the file, {size + FRAME} needed")
    body = frame[4 : 4 + size]
    (expected,) = struct.unpack_from(">I", frame, 4 + size)
    found = zlib.crc32(body)
    if found != expected:
        raise DamagedDeletionVectorError(f"CRC-32 is {found:08x}, the file says {expected:08x}")
    return body
