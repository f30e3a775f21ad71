"""The row count of a Lance data file, from its footer.

Format: Lance's file.proto and file2.proto. The last 8 bytes are two ``uint16`` of version and ``LANC``. Before these,
files of version 0.1 and 0.2 have the position of a metadata message with the offsets of the batches. Later files have a
descriptor with the number of rows in their first global buffer. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from typing import Final

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.protobuf import INTS, VARINT, Shape, parse
from dv_maintenance.storage import Storage

__all__ = ["MAGIC", "count_rows"]

MAGIC: Final = b"LANC"
"""The last bytes of every file in Lance's own formats."""

_VERSION: Final = struct.Struct("<HH4s")
_OLD: Final = struct.Struct("<Q8s")
_NEW: Final = struct.Struct("<QQQQII8s")  # columns, their table, global buffers, their table, counts of both, version
_ENTRY: Final = struct.Struct("<QQ")  # position, size
_METADATA: Final[Shape] = {2: INTS}
_DESCRIPTOR: Final[Shape] = {2: VARINT}
# Most footers, with the schema in them, are smaller.
_READ: Final = 64 * 1024
_MAX_PART: Final = 256 * 1024 * 1024


def count_rows(storage: Storage, path: str, size: int | None = None) -> int:
    """Rows of a data file, deleted ones included. One read of its end, rarely a second one, and one more request if its
    ``size`` is unknown.

    Raises
    ------
    DamagedTableError : the file is damaged or missing; names it.
    """
    try:
        return _count(storage, path, storage.head(path).size if size is None else size)
    except FileNotFoundError:
        reason = "the file does not exist"
    except DamagedTableError as damage:
        reason = damage.message
    raise DamagedTableError(
        f"data file {path}: {reason}",
        table=storage.uri,
        next_step="restore the file from a backup, or an older version of the table",
    )


def _count(storage: Storage, path: str, size: int) -> int:
    start = max(0, size - _READ)
    end = storage.get_range(path, start, size - start)
    if len(end) < size - start or len(end) < _OLD.size:
        raise DamagedTableError(f"truncated: it should have {size} bytes")
    major, minor, magic = _VERSION.unpack(end[-_VERSION.size :])
    if magic != MAGIC:
        raise DamagedTableError("it does not end with the magic number LANC: truncated, or not a Lance file")

    def part(position: int, length: int) -> bytes:
        if position + length > size or length > _MAX_PART:
            raise DamagedTableError(f"its footer names {length} bytes from byte {position} on, but the file has {size}")
        if position >= start:
            return end[position - start : position - start + length]
        data = storage.get_range(path, position, length)
        if len(data) < length:
            raise DamagedTableError(f"truncated: it should have {size} bytes")
        return data

    if (major, minor) in {(0, 0), (0, 1), (0, 2)}:
        (position, _) = _OLD.unpack(end[-_OLD.size :])
        (length,) = struct.unpack("<I", part(position, 4))
        offsets = parse(part(position + 4, length), _METADATA).ints(2)
        if offsets and (offsets[0] != 0 or sorted(offsets) != offsets):
            raise DamagedTableError("the offsets of its batches are not ascending from 0")
        return offsets[-1] if offsets else 0
    if len(end) < _NEW.size:
        raise DamagedTableError(f"truncated: {size} bytes are too few for a footer")
    _, _, _, table, buffers, _, _ = _NEW.unpack(end[-_NEW.size :])
    if not buffers:
        raise DamagedTableError("it does not describe itself: no global buffer")
    return parse(part(*_ENTRY.unpack(part(table, _ENTRY.size))), _DESCRIPTOR).uint(2)
