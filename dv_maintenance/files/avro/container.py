"""Avro container files: read as records of the wanted fields, from untrusted bytes.

Format: Apache Avro 1.11, object container files. Every file has the schema with which it was written, and is read by
it: manifests have gained fields with nearly every release of Paimon. Framing and decompression are done here with
bounds, and the schema is rebuilt from its harmless parts, before fastavro gets it: fastavro would never finish an array
of 2^60 values that take no bytes, and does not limit the unpacked size of a block.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, BinaryIO, Final

from dv_maintenance.errors import DamagedTableError, MissingSoftwareError
from dv_maintenance.files.avro.codecs import unpacked
from dv_maintenance.files.avro.columns import Block, Columns, decode
from dv_maintenance.files.avro.schema import Rebuilt, Wanted, parse_schema, projected, record_of, spelled
from dv_maintenance.files.varint import MAX_BYTES, read_varint, unzigzag, varint, zigzag

Record = dict[str, Any]
_Frozen = Any
"""``Wanted`` that can be hashed."""

MAGIC: Final = b"Obj\x01"
SYNC: Final = 16
# Limits of the unpacked size of one file, in bytes and as a multiple of its own size. The names in manifests are
# random, and do not compress well. As Python objects records need far more.
_MAX_BYTES: Final = 1 << 30
_MAX_RATIO: Final = 64
_SMALL: Final = 4 << 20
# The limit of one block of a data file, packed or not: writers end a block after about 64 KiB, plus its last record.
_MAX_BLOCK: Final = 256 << 20


def read_records(data: bytes, wanted: Wanted | None, *, by_id: bool = False) -> Iterator[Record]:
    """The records of a file, each with those of the ``wanted`` fields that the file has; ``None``: all fields.
    ``by_id``: see ``schema.parse_schema``.

    Memory is bounded by the unpacked size of ``data``, which is bounded by its size.

    Raises
    ------
    DamagedTableError : has the reason; the caller adds the file's name.
    MissingSoftwareError : fastavro is not installed.
    """
    fastavro = library()
    text, blocks = _split(data)
    with _records(fastavro):
        writer, reader = _schemas(text, by_id, _frozen(wanted))
        for count, block in blocks:
            stream = io.BytesIO(block)
            for _ in range(count):
                yield _checked(fastavro.schemaless_reader(stream, writer, reader))
            if stream.tell() != len(block):
                raise DamagedTableError(f"a block of {len(block)} bytes has records of {stream.tell()}")


def read_columns(
    data: bytes, wanted: Wanted, first: Mapping[str, Collection[int]], *, by_id: bool = False
) -> Columns | None:
    """The records by columns, which is many times faster; ``None`` if only :func:`read_records` can read the file, or
    find its fault. ``first``: see ``columns.decode``; ``by_id``: see ``schema.parse_schema``.

    Raises
    ------
    DamagedTableError : the file can't be split into blocks.
    """
    return decode(*_blocks(data, by_id), wanted, first)


def _blocks(data: bytes, by_id: bool = False) -> tuple[Rebuilt, list[Block]]:
    """A file's schema and its blocks, unpacked."""
    text, blocks = _split(data)
    return _parsed(text, by_id), blocks


def _split(data: bytes) -> tuple[bytes, list[Block]]:
    """A file's schema, as it spells it, and its blocks, unpacked."""
    cursor = _Cursor(data)
    if cursor.take(4) != MAGIC:
        raise DamagedTableError("it is not an Avro file: the magic number is missing")
    metadata = _metadata(cursor)
    sync = cursor.take(SYNC)
    text = metadata.get("avro.schema", b"")
    _parsed(text, False)
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    found: list[Block] = []
    left = min(_MAX_BYTES, _SMALL + _MAX_RATIO * len(data))
    while not cursor.at_end():
        block = _block(cursor, codec, sync, left)
        left -= len(block[1])
        if block[0]:
            found.append(block)
    return text, found


def _frozen(wanted: Wanted | None) -> _Frozen:
    return None if wanted is None else tuple((name, _frozen(below)) for name, below in wanted.items())


def _thawed(wanted: _Frozen) -> Wanted | None:
    return None if wanted is None else {name: _thawed(below) for name, below in wanted}


@lru_cache(maxsize=64)
def _schemas(text: bytes, by_id: bool, wanted: _Frozen) -> tuple[Any, Any]:
    """Writer's and reader's schema, parsed for fastavro."""
    fastavro = library()
    writer = _parsed(text, by_id)
    part = _part(writer, _thawed(wanted))
    return fastavro.parse_schema(spelled(writer)), None if part is None else fastavro.parse_schema(part)


class AvroFile:
    """A data file, read block by block: memory is bounded by a block. ``schema``: of its records; ``text``: as the file
    spells it; ``metadata``: of its header; ``codec``: of its blocks.

    Raises
    ------
    DamagedTableError, MissingSoftwareError : as :func:`read_records`.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._fastavro = library()
        self._cursor = _FileCursor(file, size)
        if self._cursor.take(4) != MAGIC:
            raise DamagedTableError("it is not an Avro file: the magic number is missing")
        self.metadata = _metadata(self._cursor)
        self._sync = self._cursor.take(SYNC)
        self.text: bytes = self.metadata.get("avro.schema", b"")
        self._writer = parse_schema(self.text)
        self.schema: Rebuilt = record_of(self._writer)
        self.codec = self.metadata.get("avro.codec", b"null").decode("utf-8", "replace")

    def blocks(self, wanted: Wanted) -> Iterator[list[Record]]:
        """The records of each block, with the ``wanted`` fields. Can be iterated once. Raises as the class."""
        stream = _Stream(self._pieces())
        with _records(self._fastavro):
            for block in self._fastavro.block_reader(stream, reader_schema=_part(self._writer, wanted)):
                yield [_checked(record) for record in block]

    def encoded(self, rows: range, of: int) -> Iterator[Block]:
        """The bytes of some records, block by block, and how many each block has. Instead of :meth:`blocks`.

        of : how many records the file has.

        Raises
        ------
        DamagedTableError : the file is damaged, or has another number of records.
        """
        first = 0
        while not self._cursor.at_end():
            count, data = _block(self._cursor, self.codec, self._sync, _MAX_BLOCK)
            start, stop = max(rows.start - first, 0), min(rows.stop - first, count)
            first += count
            if start < stop:
                yield stop - start, data if stop - start == count else self._within(data, range(start, stop))
        if first != of:
            raise DamagedTableError(f"it has {first} rows, not {of}")

    def _within(self, data: bytes, records: range) -> bytes:
        """The bytes of some records of a block. Records are read to find where they end."""
        writer = self._fastavro.parse_schema(spelled(self._writer))
        stream = io.BytesIO(data)
        begin = 0
        with _records(self._fastavro):
            for record in range(records.stop):
                if record == records.start:
                    begin = stream.tell()
                _checked(self._fastavro.schemaless_reader(stream, writer, None))
        return data[begin : stream.tell()]

    def count(self) -> int:
        """The number of records by the headers of the blocks, each checked for its end, not unpacked. Instead of
        :meth:`blocks`. Raises DamagedTableError.
        """
        records = 0
        while not self._cursor.at_end():
            count, size = self._cursor.long(), self._cursor.long()
            if count < 0 or size < 0:
                raise DamagedTableError(f"a block of {count} records has {size} bytes")
            self._cursor.take(size)
            if self._cursor.take(SYNC) != self._sync:
                raise DamagedTableError("a block does not end with the file's sync marker")
            records += count
        return records

    def _pieces(self) -> Iterator[bytes]:
        yield header_bytes(json.dumps(spelled(self._writer)), "null", self._sync)
        while not self._cursor.at_end():
            block = _block(self._cursor, self.codec, self._sync, _MAX_BLOCK)
            yield _framed(block, self._sync) if block[0] else b""


class _Stream:
    """The input of fastavro: consecutive pieces, each fetched only when it is needed."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")
        self._position = 0

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        parts: list[memoryview] = []
        while size > 0:
            if not self._left:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._left = memoryview(piece)
            parts.append(self._left[:size])
            size -= len(parts[-1])
            self._position += len(parts[-1])
            self._left = self._left[len(parts[-1]) :]
        return b"".join(parts)


@contextmanager
def _records(fastavro: Any) -> Iterator[None]:
    """Context for the decoding of records: fastavro reports damage by many kinds of exceptions."""
    try:
        yield
    except DamagedTableError:
        raise
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


def _part(schema: Rebuilt, wanted: Wanted | None) -> Any:
    """The reader's schema; ``None`` for all fields: fastavro takes twice as long if it must compare two schemas."""
    part = None if wanted is None else projected(schema, wanted)
    return None if part == spelled(schema) else part


def _checked(record: Record | None) -> Record:
    if record is None:
        raise DamagedTableError("one of its records is null")
    return record


def writer_schema(data: bytes) -> Rebuilt:
    """The schema that a file was written with. Raises DamagedTableError as :func:`read_records`."""
    return _parsed(header_of(data).get("avro.schema", b""), False)


@lru_cache(maxsize=64)
def _parsed(schema: bytes, by_id: bool) -> Rebuilt:
    """Most manifests of a table have the same schema."""
    return parse_schema(schema, by_id=by_id)


def header_of(data: bytes) -> dict[str, bytes]:
    """The metadata in a file's header. Raises DamagedTableError if it is not an Avro file."""
    cursor = _Cursor(data)
    if cursor.take(4) != MAGIC:
        raise DamagedTableError("it is not an Avro file: the magic number is missing")
    return _metadata(cursor)


def library() -> Any:
    """The module fastavro. Raises MissingSoftwareError if it is not installed."""
    try:
        import fastavro
        import fastavro.read
        import fastavro.schema
    except ImportError as error:
        raise MissingSoftwareError(
            f"the table's manifests are Avro files, and fastavro, which reads them, is not installed ({error})",
            next_step="install dv-maintenance[paimon] or dv-maintenance[iceberg]",
        ) from error
    return fastavro


# -- framing ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cursor:
    """Reads bytes from the start. Raises DamagedTableError if they end too early."""

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
        found = self.take(1)
        while found[-1] > 0x7F:
            if len(found) == MAX_BYTES:
                raise DamagedTableError(f"a number at {self.at} is longer than 64 bits")
            found += self.take(1)
        return unzigzag(read_varint(found, 0)[0])


class _FileCursor(_Cursor):
    """The same over a file, which is read incrementally."""

    __slots__ = ("file", "size")

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(b"")
        self.file, self.size = file, size

    def at_end(self) -> bool:
        return self.at >= self.size

    def take(self, count: int) -> bytes:
        if not 0 <= count <= min(self.size - self.at, _MAX_BLOCK):
            raise DamagedTableError(f"truncated, or too much at once: {count} bytes wanted at {self.at} of {self.size}")
        found = self.file.read(count)
        self.at += count
        if len(found) != count:
            raise DamagedTableError(f"truncated: {count} bytes wanted before {self.at} of {self.size}")
        return found


def _framed(block: Block, sync: bytes) -> bytes:
    """The block as it is in an Avro file without compression."""
    count, data = block
    return b"".join([varint(zigzag(count)), varint(zigzag(len(data))), data, sync])


def _block(cursor: _Cursor, codec: str, sync: bytes, limit: int) -> Block:
    """The next block, unpacked."""
    count, size = cursor.long(), cursor.long()
    if count < 0 or size < 0:
        raise DamagedTableError(f"a block of {count} records has {size} bytes")
    block = unpacked(cursor.take(size), codec, limit)
    if cursor.take(SYNC) != sync:
        raise DamagedTableError("a block does not end with the file's sync marker")
    # Every record takes at least one byte.
    if count > len(block):
        raise DamagedTableError(f"{count} records cannot fit into a block of {len(block)} bytes")
    return count, block


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


def header_bytes(schema: str, codec: str, sync: bytes, more: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
    """The header of a file. ``sync``: 16 random bytes that end every block; ``more``: further metadata."""
    pairs = {b"avro.schema": schema.encode(), b"avro.codec": codec.encode()}
    pairs |= {key.encode(): value for key, value in more.items()}
    parts = [MAGIC, varint(zigzag(len(pairs)))]
    for key, value in pairs.items():
        parts += [varint(zigzag(len(key))), key, varint(zigzag(len(value))), value]
    return b"".join([*parts, varint(zigzag(0)), sync])
