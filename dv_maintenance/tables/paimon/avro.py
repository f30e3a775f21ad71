"""Avro container files whose bytes need not be trusted, as records of the fields that are wanted.

Format: Apache Avro 1.11, object container files. Every file carries the schema it was written with, and that is what it
is read by: Paimon's manifests have gained fields with nearly every release. Framing and decompression are done here
with bounds, and the schema is rebuilt from what is known to be harmless, before fastavro sees any of it: it would go
on for ever over an array of 2^60 values that take no bytes, and has no limit to what a block may unpack to.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, RefusedError

__all__ = ["Wanted", "read_records"]

Wanted = Mapping[str, "Wanted | None"]
"""Names of the fields to read; ``None`` for all of a field, else those of the record (or of the array's records) in it.
What the file does not have is not in the records either.
"""

Record = dict[str, Any]

_MAGIC: Final = b"Obj\x01"
_SYNC: Final = 16
# Of one file, unpacked. Manifests are rolled at 8 MB; one of this size would hold millions of entries.
_MAX_BYTES: Final = 1 << 30
# What unpacking xz may take, at its highest level and then some.
_MAX_DICTIONARY: Final = 128 << 20
# The newest writers need about 60.
_MAX_NODES: Final = 4000
_MAX_DEPTH: Final = 32
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def read_records(data: bytes, wanted: Wanted) -> Iterator[Record]:
    """The records of a file, each with those of the ``wanted`` fields that its writer knew.

    Memory is bounded by what ``data`` unpacks to, and that is bounded, too.

    Raises
    ------
    DamagedTableError : with the reason; the caller adds which file it is.
    RefusedError : fastavro is not installed.
    """
    fastavro = _fastavro()
    cursor = _Cursor(data)
    if cursor.take(4) != _MAGIC:
        raise DamagedTableError("it is no Avro file: the magic number is missing")
    metadata = _metadata(cursor)
    sync = cursor.take(_SYNC)
    writer = _Schema().rebuilt(_parsed(metadata.get("avro.schema", b"")), 0)
    if writer["type"] != "record" or _least_bytes(writer) < 1:
        raise DamagedTableError("its records are none of Paimon's")
    reader = _projected(writer, wanted)
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    blocks = [_header(writer, sync)]
    left = _MAX_BYTES
    while not cursor.at_end():
        count, size = cursor.long(), cursor.long()
        if count < 0 or size < 0:
            raise DamagedTableError(f"a block of {count} records has {size} bytes")
        block = _unpacked(cursor.take(size), codec, left)
        left -= len(block)
        if cursor.take(_SYNC) != sync:
            raise DamagedTableError("a block does not end with the file's sync marker")
        # Every record takes at least one byte.
        if count > len(block):
            raise DamagedTableError(f"{count} records cannot fit into a block of {len(block)} bytes")
        if count:
            blocks += [_long(count), _long(len(block)), block, sync]
    try:
        yield from fastavro.reader(io.BytesIO(b"".join(blocks)), reader_schema=reader)
    # fastavro reports damage by whatever it stumbled over.
    except (
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
        fastavro.read.SchemaResolutionError,
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
    ) as error:
        raise DamagedTableError(f"its records cannot be read: {type(error).__name__}: {error}") from error


def _fastavro() -> Any:
    try:
        import fastavro
        import fastavro.read
        import fastavro.schema
    except ImportError as error:
        raise RefusedError(
            f"Paimon's manifests are Avro files, and fastavro is not there to read them ({error})",
            next_step="install dv-maintenance[paimon]",
        ) from error
    return fastavro


# -- framing ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cursor:
    """Goes through bytes from the start. Raises DamagedTableError where they end too soon."""

    data: bytes
    at: int = 0

    def at_end(self) -> bool:
        return self.at >= len(self.data)

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self.data) - self.at:
            raise DamagedTableError(f"truncated: {count} bytes wanted at {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def long(self) -> int:
        """A zigzag varint of at most 64 bits."""
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise DamagedTableError(f"a number at {self.at} is longer than 64 bits")
        return (value >> 1) ^ -(value & 1)


def _metadata(cursor: _Cursor) -> dict[str, bytes]:
    """The map of a file's header."""
    found: dict[str, bytes] = {}
    while count := cursor.long():
        if count < 0:
            count = -count
            cursor.long()  # bytes of this part of the map
        for _ in range(count):
            key = cursor.take(cursor.long()).decode("utf-8", "replace")
            found[key] = cursor.take(cursor.long())
    return found


def _header(schema: Record, sync: bytes) -> bytes:
    pairs = {b"avro.schema": json.dumps(_spelled(schema)).encode(), b"avro.codec": b"null"}
    parts = [_MAGIC, _long(len(pairs))]
    for key, value in pairs.items():
        parts += [_long(len(key)), key, _long(len(value)), value]
    return b"".join([*parts, _long(0), sync])


def _long(value: int) -> bytes:
    """A number that is not negative as a zigzag varint."""
    value <<= 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _unpacked(block: bytes, codec: str, limit: int) -> bytes:
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
                    f"its blocks are compressed with {other!r}, which can't be unpacked here",
                    next_step="set manifest.compression to zstd and let Paimon write the manifests again",
                )
    except (zlib.error, lzma.LZMAError, pa.ArrowException, EOFError, OSError, MemoryError, ValueError) as error:
        if isinstance(error, DamagedTableError):
            raise
        raise DamagedTableError(f"a block is no {codec}: {error}") from error
    if len(found) > limit:
        raise DamagedTableError(f"it unpacks to more than {_MAX_BYTES} bytes, which no manifest has")
    return found


def _unpacker(codec: str) -> Any:
    """What unpacks a part at a time."""
    match codec:
        case "bzip2":
            return bz2.BZ2Decompressor()
        case "xz":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DICTIONARY)
    return zlib.decompressobj(-zlib.MAX_WBITS)


def _unsnapped(block: bytes, limit: int) -> bytes:
    """Snappy, then the CRC-32 of what it unpacks to. The size is what snappy begins with, as a plain varint."""
    body, checksum = block[:-4], block[-4:]
    size = shift = 0
    for byte in body[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > limit:
        raise DamagedTableError(f"it unpacks to more than {_MAX_BYTES} bytes, which no manifest has")
    found = bytes(pa.decompress(body, decompressed_size=size, codec="snappy"))
    if struct.pack(">I", zlib.crc32(found)) != checksum:
        raise DamagedTableError("the CRC-32 of a snappy block is wrong")
    return found


# -- schemas ------------------------------------------------------------------------------------------------------


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedTableError("its schema is no JSON") from None


@dataclass(slots=True)
class _Schema:
    """Rebuilds a schema from the parts of it that matter: no names that refer to each other (each record gets one of
    its own), no logical types, nothing that is endless.
    """

    names: dict[str, Any] = field(default_factory=dict)
    nodes: int = 0

    def rebuilt(self, schema: Any, depth: int) -> Record:
        self.nodes += 1
        if self.nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise DamagedTableError("its schema is larger or deeper than any of Paimon's")
        if isinstance(schema, list):
            branches = [self.rebuilt(each, depth + 1) for each in schema]
            if any(each["type"] == "union" for each in branches) or not branches:
                raise DamagedTableError("its schema has a union right in a union, or an empty one")
            return {"type": "union", "branches": branches}
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return {"type": schema}
            if schema not in self.names:
                raise DamagedTableError(f"its schema uses the type {schema!r} and does not say what it is")
            # Once more in full. One that refers to itself goes too deep.
            return self.rebuilt(self.names[schema], depth + 1)
        if not isinstance(schema, dict):
            raise DamagedTableError("its schema is none of Avro's")
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            return self.rebuilt(kind, depth + 1)
        if isinstance(name := schema.get("name"), str):
            self.names[name] = schema
            if isinstance(space := schema.get("namespace"), str):
                self.names[f"{space}.{name}"] = schema
        match kind:
            case "record":
                return self._record(schema, depth)
            case "array" | "map":
                inner = "items" if kind == "array" else "values"
                items = self.rebuilt(schema.get(inner), depth + 1)
                if _least_bytes(items) < 1:
                    raise DamagedTableError(f"its schema has an {kind} of values that take no bytes")
                return {"type": kind, inner: items}
            case "fixed" if isinstance(size := schema.get("size"), int) and 0 < size < 1 << 20:
                return {"type": "fixed", "name": f"t{self.nodes}", "size": size}
            case str() if kind in _PRIMITIVES or kind in self.names:
                return self.rebuilt(kind, depth + 1)
        raise DamagedTableError(f"its schema has a type {kind!r}, which Paimon does not use")

    def _record(self, schema: Record, depth: int) -> Record:
        name = f"t{self.nodes}"
        found: list[Record] = []
        fields = schema.get("fields")
        for each in fields if isinstance(fields, list) else [None]:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise DamagedTableError("its schema has a record whose fields have no names")
            found.append({"name": each["name"], "type": self.rebuilt(each.get("type"), depth + 1)})
        if len({each["name"] for each in found}) < len(found):
            raise DamagedTableError("its schema has a record with two fields of one name")
        return {"type": "record", "name": name, "fields": found}


def _least_bytes(schema: Record) -> int:
    """The fewest bytes that a value takes, counted up to 1."""
    if schema["type"] == "record":
        return max((_least_bytes(each["type"]) for each in schema["fields"]), default=0)
    return 0 if schema["type"] == "null" else 1


def _projected(schema: Record, wanted: Wanted | None) -> Any:
    """The part of a rebuilt schema that holds the ``wanted`` fields."""
    if wanted is None:
        return _spelled(schema)
    match schema["type"]:
        case "union":
            return [_projected(each, wanted) for each in schema["branches"]]
        case "array":
            return {"type": "array", "items": _projected(schema["items"], wanted)}
        case "record":
            fields = [
                {"name": each["name"], "type": _projected(each["type"], wanted[each["name"]])}
                for each in schema["fields"]
                if each["name"] in wanted
            ]
            return {"type": "record", "name": schema["name"], "fields": fields}
    return _spelled(schema)


def _spelled(schema: Record) -> Any:
    """A rebuilt schema as Avro spells it."""
    match schema["type"]:
        case "union":
            return [_spelled(each) for each in schema["branches"]]
        case "record":
            fields = [{"name": each["name"], "type": _spelled(each["type"])} for each in schema["fields"]]
            return {**schema, "fields": fields}
        case "array":
            return {"type": "array", "items": _spelled(schema["items"])}
        case "map":
            return {"type": "map", "values": _spelled(schema["values"])}
        case "fixed":
            return schema
    return schema["type"]
