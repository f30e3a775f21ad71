"""Avro container files, written like another one: manifests have gained fields with nearly every release, and a table's
own say which of them its readers know.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from dv_maintenance.tables.paimon.avro import MAGIC, SYNC, Record, header_of, library, long_bytes
from dv_maintenance.tables.paimon.avro_schema import parse_schema

__all__ = ["PACKERS", "Template", "block_bytes", "header_bytes", "template_of", "write_records"]


@dataclass(frozen=True, slots=True)
class Template:
    """How a file is written: the JSON of its schema, and its codec as Avro calls it."""

    schema: str
    codec: str = "zstandard"

    def fields(self, *path: str) -> dict[str, Any]:
        """The types of a record's fields by name, ``path`` leading through fields to the record."""
        found = _record_in(json.loads(self.schema))
        for name in path:
            found = _record_in(next(each["type"] for each in found["fields"] if each["name"] == name))
        return {each["name"]: each["type"] for each in found["fields"]}


def _record_in(schema: Any) -> Any:
    """The record in a union, an array, or a union of arrays."""
    while not (isinstance(schema, dict) and schema.get("type") == "record"):
        schema = next(each for each in schema if each != "null") if isinstance(schema, list) else schema["items"]
    return schema


def template_of(data: bytes) -> Template:
    """How a file was written, that the next one of its kind is written the same way.

    Raises
    ------
    DamagedTableError : with the reason; the caller adds which file it is.
    """
    metadata = header_of(data)
    schema = metadata.get("avro.schema", b"")
    parse_schema(schema)
    return Template(schema.decode(), metadata.get("avro.codec", b"null").decode("utf-8", "replace"))


def write_records(template: Template, records: Sequence[Record]) -> bytes:
    """A container file. Fields that a record lacks are null, or their default.

    Raises
    ------
    ValueError : a record does not fit the schema.
    RefusedError : fastavro is not installed.
    """
    fastavro = library()
    codec = template.codec if template.codec in PACKERS else "zstandard"
    schema = fastavro.parse_schema(json.loads(template.schema))
    sync = os.urandom(SYNC)
    parts = [header_bytes(template.schema, codec, sync)]
    for start in range(0, len(records), _BLOCK_RECORDS):
        block = io.BytesIO()
        some = records[start : start + _BLOCK_RECORDS]
        for record in some:
            fastavro.schemaless_writer(block, schema, record)
        parts.append(block_bytes(block.getvalue(), len(some), codec, sync))
    return b"".join(parts)


def header_bytes(schema: str, codec: str, sync: bytes) -> bytes:
    """What a file begins with: ``sync`` are 16 random bytes, which every block ends with."""
    pairs = {b"avro.schema": schema.encode(), b"avro.codec": codec.encode()}
    parts = [MAGIC, long_bytes(len(pairs))]
    for key, value in pairs.items():
        parts += [long_bytes(len(key)), key, long_bytes(len(value)), value]
    return b"".join([*parts, long_bytes(0), sync])


def block_bytes(encoded: bytes, records: int, codec: str, sync: bytes) -> bytes:
    """A block of so many records; ``codec``: one of PACKERS."""
    packed = PACKERS[codec](encoded)
    return b"".join([long_bytes(records), long_bytes(len(packed)), packed, sync])


_BLOCK_RECORDS: Final = 1000


def _deflated(block: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(block) + packer.flush()


def _snapped(block: bytes) -> bytes:
    return bytes(pa.compress(block, codec="snappy", asbytes=True)) + struct.pack(">I", zlib.crc32(block))


PACKERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "null": bytes,
    "deflate": _deflated,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "snappy": _snapped,
    "zstandard": lambda block: bytes(pa.compress(block, codec="zstd", asbytes=True)),
}
