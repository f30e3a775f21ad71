"""The row count of a Lance data file, from its footer.

Format: Lance's file.proto and file2.proto. The last 8 bytes are two ``uint16`` of version and ``LANC``. Before these,
files of version 0.1 and 0.2 have the position of a metadata message with the offsets of the batches. Later files have a
descriptor with the number of rows in their first global buffer. All numbers are little-endian.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Final

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.protobuf import BYTES, INTS, VARINT, Shape, parse
from dv_maintenance.storage import Storage

MAGIC: Final = b"LANC"
"""The last bytes of every file in Lance's own formats."""

_VERSION: Final = struct.Struct("<HH4s")
_OLD: Final = struct.Struct("<Q8s")
_NEW: Final = struct.Struct("<QQQQII8s")  # columns, their table, global buffers, their table, counts of both, version
_ENTRY: Final = struct.Struct("<QQ")  # position, size
_METADATA: Final[Shape] = {2: INTS}
_DESCRIPTOR: Final[Shape] = {2: VARINT}
# ColumnMetadata, its pages, their encodings, and these as messages of any type
_COLUMN: Final[Shape] = {1: BYTES, 2: BYTES}
_PAGE: Final[Shape] = {4: BYTES}
_ENCODING: Final[Shape] = {2: BYTES}
_DIRECT: Final[Shape] = {1: BYTES}
_ANY: Final[Shape] = {1: BYTES}
_NAME: Final = re.compile(rb"[\x20-\x7e]*")
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


def check_names(storage: Storage, path: str) -> None:
    """Check the names of a data file's encodings. Lance quotes an unknown one in its error. If it has a zero byte, the
    process ends when the error is passed on through Arrow's C stream interface. Anything else is left to Lance.

    Raises
    ------
    DamagedTableError : names the file.
    """
    try:
        size = storage.head(path).size
        part, (major, minor, end) = _opened(storage, path, size)
        found = [] if (major, minor) < (2, 0) or len(end) < _NEW.size else list(_names(part, end))
    except (DamagedTableError, FileNotFoundError, struct.error):
        return
    if any(not _NAME.fullmatch(name) for name in found):
        raise DamagedTableError(
            f"data file {path}: the name of an encoding is no text",
            table=storage.uri,
            next_step="restore the file from a backup, or an older version of the table",
        )


def _names(part: Callable[[int, int], bytes], end: bytes) -> Iterator[bytes]:
    _, _, table, _, _, columns, _ = _NEW.unpack(end[-_NEW.size :])
    entries = part(table, columns * _ENTRY.size)
    for at in range(0, len(entries), _ENTRY.size):
        column = parse(part(*_ENTRY.unpack_from(entries, at)), _COLUMN)
        encodings = [*column.each(1), *(each for page in column.each(2) for each in parse(page, _PAGE).each(4))]
        for encoding in encodings:
            for direct in parse(encoding, _ENCODING).each(2):
                yield parse(parse(direct, _DIRECT).data(1), _ANY).data(1)


def _opened(storage: Storage, path: str, size: int) -> tuple[Callable[[int, int], bytes], tuple[int, int, bytes]]:
    """A function that reads parts of the file, its version, and its end."""
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

    return part, (major, minor, end)


def _count(storage: Storage, path: str, size: int) -> int:
    part, (major, minor, end) = _opened(storage, path, size)
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
