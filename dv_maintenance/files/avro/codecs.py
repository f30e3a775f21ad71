"""Codecs of Avro's blocks. ORC compresses its footers with some of them, and with Snappy and LZ4 as they are."""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.varint import read_varint
from dv_maintenance.resources import raise_if_refused

# The memory limit for unpacking xz: more than its highest level needs.
_MAX_DICTIONARY: Final = 128 << 20
_CHECKSUM: Final = 4  # bytes
# An LZ4 block does not state its unpacked size, but a frame of one block needs none. Its header (LZ4 Frame Format):
# magic number, version 1 with independent blocks, of at most 4 MiB, and their checksum.
_LZ4_FRAME: Final = b"\x04\x22\x4d\x18\x60\x70\x73"
_LZ4_END: Final = bytes(4)


def unpacked(block: bytes, codec: str, limit: int) -> bytes:
    """A block's bytes, at most ``limit`` of them. Raises DamagedTableError."""
    try:
        match codec:
            case "null":
                found = block
            case "deflate" | "bzip2" | "xz":
                unpacker = _unpacker(codec)
                found = unpacker.decompress(block, limit + 1)
                if not unpacker.eof and len(found) <= limit:
                    raise DamagedTableError(f"a block of {codec} is truncated")
            case "zstandard":
                with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
                    found = stream.read(limit + 1)
            case "snappy":
                found = _checked(_unsnapped(block[:-_CHECKSUM], limit), block[-_CHECKSUM:])
            case "snappy_raw":
                found = _unsnapped(block, limit)
            case "lz4_raw":
                frame = _LZ4_FRAME + len(block).to_bytes(4, "little") + block + _LZ4_END
                with pa.CompressedInputStream(pa.BufferReader(frame), "lz4") as stream:
                    found = stream.read(limit + 1)
            case other:
                raise DamagedTableError(
                    f"its blocks are compressed with {other!r}, which this release can't unpack",
                    next_step="let the table's engine write the file again, compressed with zstd",
                )
    except (zlib.error, lzma.LZMAError, pa.ArrowException, EOFError, OSError, MemoryError, ValueError) as error:
        if isinstance(error, DamagedTableError):
            raise
        raise_if_refused(error, "an Avro file")
        raise DamagedTableError(f"a block is not valid {codec}: {error}") from error
    if len(found) > limit:
        raise DamagedTableError("it unpacks to more than any known writer stores in a file")
    return found


def _unpacker(codec: str) -> Any:
    """A decompressor that works incrementally."""
    match codec:
        case "bzip2":
            return bz2.BZ2Decompressor()
        case "xz":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DICTIONARY)
    return zlib.decompressobj(-zlib.MAX_WBITS)


def _unsnapped(block: bytes, limit: int) -> bytes:
    """Snappy begins with the unpacked size, as a plain varint."""
    try:
        size, _ = read_varint(block, 0)
    except (IndexError, OverflowError):
        raise DamagedTableError("a snappy block does not state its size") from None
    if size > limit:
        raise DamagedTableError("it unpacks to more than any known writer stores in a file")
    return bytes(pa.decompress(block, decompressed_size=size, codec="snappy"))


def _checked(found: bytes, checksum: bytes) -> bytes:
    """In Avro, the CRC-32 of the unpacked bytes follows."""
    if struct.pack(">I", zlib.crc32(found)) != checksum:
        raise DamagedTableError("the CRC-32 of a snappy block is wrong")
    return found


def _deflated(block: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(block) + packer.flush()


def _snapped(block: bytes) -> bytes:
    return bytes(pa.compress(block, codec="snappy", asbytes=True)) + struct.pack(">I", zlib.crc32(block))


CODECS: Final = {
    "none": "null",
    "gzip": "deflate",
    "bzip2": "bzip2",
    "xz": "xz",
    "snappy": "snappy",
    "zstd": "zstandard",
}
"""Codecs by their names in engines."""

PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "null": bytes,
    "deflate": _deflated,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "snappy": _snapped,
    "zstandard": lambda block: bytes(pa.compress(block, codec="zstd", asbytes=True)),
}
