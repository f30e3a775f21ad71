"""Format, compression and columns of new data files, from the table's properties.

Format: Iceberg specification, Appendix A (Parquet, ORC). Iceberg finds the columns of an ORC file by attributes of
their types, which Arrow's writer takes from the metadata of fields. Avro: see ``avro_schema``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.tables.iceberg.log.types import children, without_unknown
from dv_maintenance.tables.iceberg.rows.avro_schema import avro_schema, clashes
from dv_maintenance.tables.model import logical_type

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

FORMAT: Final = "write.format.default"
DELETES_FORMAT: Final = "write.delete.format.default"
"""Properties with the formats of new files, and of position delete files."""

WRITTEN: Final = ("parquet", "orc", "avro")
"""Formats of new files."""
_CODEC: Final = {each: f"write.{each}.compression-codec" for each in WRITTEN}
_DEFAULT: Final = {"parquet": "zstd", "orc": "zlib", "avro": "gzip"}
CODECS: Final = {"orc": ("lz4", "none", "snappy", "zlib", "zstd"), "avro": ("gzip", "none", "snappy", "zstd")}
"""Compressions of new files, for formats in which not every one is written."""
# Two names for one, as in Java's writers.
_SAME: Final = {"uncompressed": "none", "lz4_raw": "lz4"}
# Readers know it, and no library writes it here. Any other compression is as right.
_UNWRITTEN: Final = ("orc", "lzo")
_TITLES: Final = {"orc": "ORC", "avro": "Avro"}
_VECTORIZED: Final = "read.orc.vectorization.enabled"
_FIELD_ID: Final = b"PARQUET:field_id"


def format_of(snapshot: IcebergSnapshot) -> str:
    """The table's format for new files, in lower case. It may be one that is not written here."""
    return snapshot.properties.get(FORMAT, "parquet").strip().lower()


def codec_of(snapshot: IcebergSnapshot, wanted: str | None = None) -> str:
    """The compression of new files. ``wanted``: unless the table's property names one."""
    kind = format_of(snapshot)
    name = (_stated(snapshot) or wanted or _DEFAULT[kind]).strip().lower()
    return _DEFAULT[kind] if (kind, name) == _UNWRITTEN else _SAME.get(name, name)


def other_codec(snapshot: IcebergSnapshot) -> str:
    """That new files have another compression than the table's property names; "" if they have that."""
    kind, stated = format_of(snapshot), _stated(snapshot) or ""
    if (kind, stated.strip().lower()) != _UNWRITTEN:
        return ""
    return f"new files are compressed with {_DEFAULT[kind]}, as no library writes {stated} here ({_CODEC[kind]})"


def states_codec(snapshot: IcebergSnapshot) -> bool:
    """Whether the table's property names the compression."""
    return _stated(snapshot) is not None


def _stated(snapshot: IcebergSnapshot) -> str | None:
    return snapshot.properties.get(_CODEC[format_of(snapshot)])


def delete_format_of(snapshot: IcebergSnapshot) -> str:
    """As :func:`format_of`, for position delete files."""
    return snapshot.properties.get(DELETES_FORMAT, format_of(snapshot)).strip().lower()


def delete_codec_of(snapshot: IcebergSnapshot) -> str:
    """As :func:`codec_of`, for position delete files."""
    kind, stated = delete_format_of(snapshot), snapshot.properties
    name = stated.get(f"write.delete.{kind}.compression-codec") or stated.get(_CODEC[kind]) or _DEFAULT[kind]
    return _SAME.get(name.strip().lower(), name.strip().lower())


def file_schema(snapshot: IcebergSnapshot, schema: pa.Schema) -> pa.Schema:
    """The columns of a table as its new files store them, with what their readers find them by."""
    known = {"orc": orc_schema, "avro": avro_schema}.get(format_of(snapshot))
    return schema if known is None else known(schema)


def orc_schema(schema: pa.Schema) -> pa.Schema:
    """The columns as ORC files store them."""
    return pa.schema([_with_attributes(each) for each in schema], schema.metadata)


def _with_attributes(field: pa.Field) -> pa.Field:
    """The field with the attributes that Iceberg's Java writer gives an ORC type (``ORCSchemaUtil``)."""
    kind, logical = field.type, logical_type(field)
    metadata = {
        **field.metadata,
        b"iceberg.id": field.metadata[_FIELD_ID],
        b"iceberg.required": b"false" if field.nullable else b"true",
    }
    if types.is_struct(kind):
        kind = pa.struct([_with_attributes(each) for each in kind])
    elif types.is_map(kind):
        kind = pa.map_(_with_attributes(kind.key_field), _with_attributes(kind.item_field))
    elif types.is_list(kind):
        kind = pa.list_(_with_attributes(kind.value_field))
    elif types.is_int64(kind) or types.is_time(kind):
        metadata[b"iceberg.long-type"] = b"TIME" if types.is_time(kind) else b"LONG"
    elif types.is_timestamp(kind):
        metadata[b"iceberg.timestamp-unit"] = b"NANOS" if kind.unit == "ns" else b"MICROS"
    elif types.is_fixed_size_binary(kind):
        metadata[b"iceberg.binary-type"] = b"UUID" if logical == "uuid" else b"FIXED"
        if logical != "uuid":
            metadata[b"iceberg.length"] = str(kind.byte_width).encode()
    elif types.is_binary(kind):
        metadata[b"iceberg.binary-type"] = b"BINARY"
    return field.with_type(kind).with_metadata(metadata)


def why_not_written(snapshot: IcebergSnapshot) -> Iterator[str]:
    """Why new files can't have the table's rows."""
    kind = format_of(snapshot)
    if kind not in WRITTEN:
        yield f"new files of the table must be {kind}, but this tool writes only Parquet, ORC and Avro ({FORMAT})"
        return
    if kind in CODECS and codec_of(snapshot) not in CODECS[kind]:
        yield (
            f"new files of the table must have the compression {codec_of(snapshot)}, but this tool writes "
            f"{_TITLES[kind]} only with {', '.join(CODECS[kind])} ({_CODEC[kind]})"
        )
    vectorized = snapshot.properties.get(_VECTORIZED, "false").strip().lower() == "true"
    if kind == "orc" and vectorized and snapshot.metadata.format_version > 2:
        # Iceberg 1.12 gives all rows of a file the same id then; its own compactions suffer from it, too.
        yield f"Spark would misread the row ids in new ORC files, as {_VECTORIZED} is true"
    if kind == "avro" and (name := next(clashes([*snapshot.table_schema.arrow]), "")):
        yield f"in Avro files the name {name} would be that of another column, as they have only letters and digits"
    for column in snapshot.table_schema.arrow:
        if what := next(_unwritten(column), None) or _not_in(kind, column):
            yield f"the column {column.name} holds {what}, which this tool does not write"


def _unwritten(field: Any) -> Iterator[str]:
    """What a column has that new files can't hold."""
    kind = field.type
    if types.is_nested(kind) and without_unknown(field) is None:
        yield "lists, maps or structs of an unknown type"
    for each in () if logical_type(field) else children(kind):
        yield from _unwritten(each)


def _not_in(kind: str, field: pa.Field) -> str:
    """What a column has that files of this format can't hold, or that Spark does not read from them."""
    logical = {logical_type(each) for each in _all(field)}
    if kind != "parquet" and "geo" in logical:
        return "shapes in files other than Parquet"
    if kind == "orc" and "variant" in logical:
        return "variants in ORC files"
    return ""


def _all(field: pa.Field) -> Iterator[pa.Field]:
    yield field
    for each in children(field.type):
        yield from _all(each)
