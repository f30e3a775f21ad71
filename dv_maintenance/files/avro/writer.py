"""Avro container files, written like an existing one: manifests have gained fields with nearly every release, and those
of a table show which fields its readers know.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dv_maintenance.files.avro.codecs import PACKERS
from dv_maintenance.files.avro.container import SYNC, Record, header_bytes, header_of, library
from dv_maintenance.files.avro.schema import parse_schema, spelled
from dv_maintenance.files.varint import varint, zigzag


@dataclass(frozen=True, slots=True)
class Template:
    """How a file is written.

    schema : JSON.
    codec : Avro's name for it.
    header : what else the header has, by key.
    by_id : whether records have their fields by the ids of ``schema``, see ``schema.parse_schema``.
    """

    schema: str
    codec: str = "zstandard"
    header: tuple[tuple[str, bytes], ...] = ()
    by_id: bool = False

    def fields(self, *path: str) -> dict[str, Any]:
        """The types of a record's fields by name or id. ``path``: names or ids of fields that lead to the record."""
        found = _record_in(_spelled_by_id(self.schema) if self.by_id else json.loads(self.schema))
        for name in path:
            found = _record_in(next(each["type"] for each in found["fields"] if each["name"] == name))
        return {each["name"]: each["type"] for each in found["fields"]}


def _record_in(schema: Any) -> Any:
    """The record in a union, an array, or a union of arrays."""
    while not (isinstance(schema, dict) and schema.get("type") == "record"):
        schema = next(each for each in schema if each != "null") if isinstance(schema, list) else schema["items"]
    return schema


def template_of(data: bytes, *, by_id: bool = False) -> Template:
    """How a file was written, so that the next one of its kind is written the same way.

    by_id : see ``Template``; such a file keeps all of its header.

    Raises
    ------
    DamagedTableError : has the reason; the caller adds the file's name.
    """
    metadata = header_of(data)
    schema = metadata.get("avro.schema", b"")
    parse_schema(schema)
    header = tuple((key, value) for key, value in metadata.items() if by_id and not key.startswith("avro."))
    return Template(schema.decode(), metadata.get("avro.codec", b"null").decode("utf-8", "replace"), header, by_id)


def write_records(template: Template, records: Sequence[Record]) -> bytes:
    """A container file. Fields that a record lacks are null, or have their default.

    Raises
    ------
    ValueError : a record does not fit the schema.
    RefusedError : fastavro is not installed.
    """
    fastavro = library()
    codec = template.codec if template.codec in PACKERS else "zstandard"
    schema = _by_id(template.schema) if template.by_id else fastavro.parse_schema(json.loads(template.schema))
    sync = os.urandom(SYNC)
    parts = [header_bytes(template.schema, codec, sync, dict(template.header))]
    for start in range(0, len(records), _BLOCK_RECORDS):
        block = io.BytesIO()
        some = records[start : start + _BLOCK_RECORDS]
        for record in some:
            fastavro.schemaless_writer(block, schema, record)
        parts.append(block_bytes(block.getvalue(), len(some), codec, sync))
    return b"".join(parts)


@lru_cache(maxsize=16)
def _spelled_by_id(schema: str) -> Any:
    return spelled(parse_schema(schema.encode(), by_id=True))


@lru_cache(maxsize=16)
def _by_id(schema: str) -> Any:
    """Names are not part of encoded records, nor are logical types: values are those that ``read_records`` returns."""
    return library().parse_schema(_spelled_by_id(schema))


def block_bytes(encoded: bytes, records: int, codec: str, sync: bytes) -> bytes:
    """A block with this number of records. ``codec``: one of PACKERS."""
    packed = PACKERS[codec](encoded)
    return b"".join([varint(zigzag(records)), varint(zigzag(len(packed))), packed, sync])


_BLOCK_RECORDS: Final = 1000
