"""Codecs of Avro's blocks. ORC compresses its footers with some of them."""

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
                found = _unsnapped(block, limit)
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
    """Snappy, followed by the CRC-32 of the unpacked bytes. Snappy begins with the unpacked size, as a plain varint."""
    body, checksum = block[:-4], block[-4:]
    try:
        size, _ = read_varint(body, 0)
    except (IndexError, OverflowError):
        raise DamagedTableError("a snappy block does not state its size") from None
    if size > limit:
        raise DamagedTableError("it unpacks to more than any known writer stores in a file")
    found = bytes(pa.decompress(body, decompressed_size=size, codec="snappy"))
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
