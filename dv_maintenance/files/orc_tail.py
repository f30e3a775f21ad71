"""What the end of an ORC file says that Arrow does not report: where its stripes begin, the time zones in which they
were written, and which columns have nulls.

Format: ORC v1 specification. A file ends with its footer, a postscript with the length of the footer, and one byte
for the length of the postscript; a stripe ends with its own footer. Footers are compressed in chunks.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.avro.codecs import unpacked
from dv_maintenance.files.protobuf import BYTES, VARINT, Message, Shape, parse
from dv_maintenance.files.varint import varint

_POSTSCRIPT: Final[Shape] = {1: VARINT, 2: VARINT, 3: VARINT}
_FOOTER: Final[Shape] = {3: BYTES, 7: BYTES}
_STATISTICS: Final[Shape] = {10: VARINT}
_STRIPE: Final[Shape] = {1: VARINT, 2: VARINT, 3: VARINT, 4: VARINT}
_STRIPE_FOOTER: Final[Shape] = {3: BYTES}
# All but LZO (3).
_CODECS: Final = {0: "null", 1: "deflate", 2: "snappy_raw", 4: "lz4_raw", 5: "zstandard"}
_MAGIC: Final = b"\x82\xf4\x03\x03ORC"
# Of the footer: its field 8, rowIndexStride, is 0. Of fields that occur twice, the last one counts.
_NO_STRIDE: Final = b"\x40\x00"
_MAX_FOOTER: Final = 64 << 20
_MAX_CHUNK: Final = 8 << 20


def writer_zones(file: pa.NativeFile) -> frozenset[str] | None:
    """The time zones of the stripes, ``""`` for a stripe without one; ``None`` if the codec is not supported here.

    Raises
    ------
    DamagedTableError : this is not an ORC file. The error does not name the file.
    """
    found = _stripes(file)
    if found is None:
        return None
    codec, stripes = found
    size, zones = file.size(), set()
    for stripe in stripes:
        own = _at(file, stripe.uint(1) + stripe.uint(2) + stripe.uint(3), stripe.uint(4), size)
        zones.add(parse(_unpacked(own, codec), _STRIPE_FOOTER).text(3))
    return frozenset(zones)


def stripe_offsets(file: pa.NativeFile) -> list[int] | None:
    """Where the stripes begin. Otherwise as :func:`writer_zones`."""
    found = _stripes(file)
    return None if found is None else [stripe.uint(1) for stripe in found[1]]


def columns_with_nulls(file: pa.NativeFile) -> frozenset[int] | None:
    """The ids of columns, nested ones included, that have nulls according to the file's statistics. Otherwise as
    :func:`writer_zones`.
    """
    found = _footer(file)
    if found is None:
        return None
    columns = enumerate(found[1].each(7))
    return frozenset(number for number, each in columns if parse(each, _STATISTICS).uint(10))


def without_row_indexes(end: bytes) -> bytes:
    """The end of a new ORC file, from its footer on or earlier, whose readers then skip no groups of rows.

    They ignore the indexes that stripes have of their rows: the footer says that there are none (ORC v1 specification,
    File Footer). That is appended, so that any codec will do.

    Raises
    ------
    DamagedTableError : this is not the end of an ORC file.
    """
    postscript = end[-1 - end[-1] : -1] if end else b""
    if not postscript.endswith(_MAGIC):
        raise DamagedTableError("the end of an ORC file has no magic number")
    known = parse(postscript, _POSTSCRIPT)
    # A chunk is marked as not compressed by the lowest bit of its header.
    more = (len(_NO_STRIDE) << 1 | 1).to_bytes(3, "little") + _NO_STRIDE if known.uint(2) else _NO_STRIDE
    length = b"\x08" + varint(known.uint(1) + len(more))
    postscript = postscript.removesuffix(_MAGIC) + length + _MAGIC  # the magic number must be last
    return end[: -1 - end[-1]] + more + postscript + bytes([len(postscript)])


def _stripes(file: pa.NativeFile) -> tuple[str, list[Message]] | None:
    """The codec of footers, and what the file's footer says of each stripe; ``None`` for an unsupported codec."""
    found = _footer(file)
    return None if found is None else (found[0], [parse(body, _STRIPE) for body in found[1].each(3)])


def _footer(file: pa.NativeFile) -> tuple[str, Message] | None:
    """The codec of footers, and the file's footer; ``None`` for an unsupported codec."""
    size = file.size()
    (length,) = _at(file, size - 1, 1, size)
    postscript = parse(_at(file, size - 1 - length, length, size), _POSTSCRIPT)
    codec = _CODECS.get(postscript.uint(2))
    if codec is None:
        return None
    footer_length = postscript.uint(1)
    return codec, parse(_unpacked(_at(file, size - 1 - length - footer_length, footer_length, size), codec), _FOOTER)


def _at(file: pa.NativeFile, start: int, length: int, size: int) -> bytes:
    if start < 0 or start + length > size or length > _MAX_FOOTER:
        raise DamagedTableError(f"{length} bytes wanted at {start} of {size}")
    file.seek(start)
    found = bytes(file.read(length))
    if len(found) != length:
        raise DamagedTableError(f"truncated: {len(found)} of {length} bytes at {start}")
    return found


def _unpacked(data: bytes, codec: str) -> bytes:
    """Unpack chunks. Each has a header of 3 bytes: its length, shifted by a bit that marks an uncompressed chunk."""
    if codec == "null":
        return data
    parts: list[bytes] = []
    at = total = 0
    while at < len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        chunk = data[at + 3 : at + 3 + (header >> 1)]
        if len(data) < at + 3 or len(chunk) != header >> 1:
            raise DamagedTableError("a chunk of a footer is truncated")
        parts.append(chunk if header & 1 else unpacked(chunk, codec, _MAX_CHUNK))
        total += len(parts[-1])
        if total > _MAX_FOOTER:
            raise DamagedTableError(f"a footer unpacks to more than {_MAX_FOOTER} bytes")
        at += 3 + len(chunk)
    return b"".join(parts)
