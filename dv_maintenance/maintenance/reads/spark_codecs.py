"""Lines of Spark's event logs, whichever of Spark's codecs compressed them (``org.apache.spark.io.CompressionCodec``).

Logs are someone else's files: a line of any length is skipped in bounded memory, and a damaged block ends one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.files.varint import read_varint

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK: Final = 1 << 22
# The plan of a query that generated code wrote takes megabytes as text.
_LONGEST: Final = 1 << 26
_LARGEST_BLOCK: Final = 1 << 26

# Text of a line, or ``None`` if it is too long, and the offset of the next line in the decompressed file.
Line = tuple[bytes | None, int]


class DamagedLogError(Exception):
    """The rest of a file can't be decompressed."""


def lines(file: pa.NativeFile, codec: str, offset: int) -> Iterator[Line]:
    """Complete lines from an offset in the decompressed file. The last line of a log that is being written has no end
    yet and is left for the next time.

    codec : ``""`` or a key of ``CODECS``.

    Raises
    ------
    DamagedLogError : the file ends within a block, or is damaged; every line before that was returned.
    """
    if codec:
        chunks = _skip(CODECS[codec](file), offset)
    else:
        file.seek(offset)
        chunks = _chunks(file)
    rest: list[bytes] = []
    length, too_long = 0, False
    for chunk in chunks:
        *ended, last = chunk.split(b"\n")
        for part in ended:
            size = length + len(part) + 1
            offset += size
            yield (None if too_long or size > _LONGEST else b"".join([*rest, part])), offset
            rest, length, too_long = [], 0, False
        length += len(last)
        too_long = length > _LONGEST
        rest = [] if too_long else [*rest, last]


def _chunks(file: Any) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _skip(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[size:]
        size = max(0, size - len(chunk))


def _zstd(file: pa.NativeFile) -> Iterator[bytes]:
    import pyarrow as pa

    try:
        yield from _chunks(pa.CompressedInputStream(file, "zstd"))
    except OSError as error:
        raise DamagedLogError from error


def _lz4(file: pa.NativeFile) -> Iterator[bytes]:
    """Blocks of ``net.jpountz.lz4.LZ4BlockOutputStream``: magic, method, sizes and a checksum, little-endian."""
    while head := file.read(21):
        if len(head) < 21 or not head.startswith(b"LZ4Block"):
            raise DamagedLogError
        stored, size = int.from_bytes(head[9:13], "little"), int.from_bytes(head[13:17], "little")
        yield _block("lz4_raw" if head[8] & 0xF0 == 0x20 else "", file.read(_plausible(stored)), stored, size)


def _snappy(file: pa.NativeFile) -> Iterator[bytes]:
    """Blocks of ``org.xerial.snappy.SnappyOutputStream``: a header of 16 bytes, then sizes, big-endian. A log that was
    appended to has the header again.
    """
    magic = b"\x82SNAPPY\x00"
    while head := file.read(4):
        if magic.startswith(head):
            if file.read(12)[:4] != magic[4:]:
                raise DamagedLogError
            continue
        stored = _plausible(int.from_bytes(head, "big"))
        block = file.read(stored)
        try:
            size, _ = read_varint(block, 0)
        except (OverflowError, IndexError) as error:
            raise DamagedLogError from error
        yield _block("snappy", block, stored, size)


def _block(codec: str, block: bytes, stored: int, size: int) -> bytes:
    import pyarrow as pa

    if len(block) < stored:
        raise DamagedLogError
    if not codec:
        return block
    try:
        return bytes(pa.Codec(codec).decompress(block, _plausible(size))) if size else b""
    except (OSError, ValueError) as error:
        raise DamagedLogError from error


def _plausible(size: int) -> int:
    if size > _LARGEST_BLOCK:
        raise DamagedLogError
    return size


CODECS: Final[dict[str, Callable[[Any], Iterator[bytes]]]] = {"zstd": _zstd, "lz4": _lz4, "snappy": _snappy}
