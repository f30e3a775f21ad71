"""Format and compression of new data files, from the table's options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.paimon.features import check_nanoseconds
from dv_maintenance.tables.paimon.rows.avro_schema import odd_names, records_of
from dv_maintenance.tables.paimon.rows.lineage import with_lineage
from dv_maintenance.tables.paimon.rows.types import DataType, Field, arrow_field, arrow_type, holds, parts_of
from dv_maintenance.tables.work import AVRO_SCHEMA

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.log.schema import Schema
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot

# Values of ``file.format`` in which new files can be written.
_WRITTEN: Final = ("parquet", "orc", "avro")
_MICROS: Final = 6
_LEGACY: Final = "orc.timestamp-ltz.legacy.type"
_COMPRESSION: Final = "file.compression"
# By file format: value of the option -> the engine's name. Paimon's own writer of the format takes each of the values.
_CODECS: Final = {
    "parquet": {
        "none": "none",
        "uncompressed": "none",
        "snappy": "snappy",
        "gzip": "gzip",
        "brotli": "brotli",
        "zstd": "zstd",
        "lz4": "lz4",
    },
    "orc": {"none": "none", "zlib": "zlib", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"},
    # Avro's own names, but for zstd.
    "avro": {
        "null": "none",
        "deflate": "gzip",
        "snappy": "snappy",
        "bzip2": "bzip2",
        "xz": "xz",
        "zstandard": "zstd",
        "zstd": "zstd",
    },
}
# Readers know it, and no library writes it here. Any other compression is as right.
_NOT_HERE: Final = ("orc", "lzo")
# How the policy calls the others.
_OF_POLICY: Final = {"avro": {"none": "null", "gzip": "deflate"}}
_IDS: Final = (2**31 - 1) // 4
_DEPTHS: Final = 1024


def format_of(snapshot: PaimonSnapshot) -> str:
    """The table's format for new files, in lower case. It may be one that is not written here."""
    return snapshot.properties.get("file.format", "parquet").strip().lower()


def written_schema(snapshot: PaimonSnapshot) -> Schema:
    """The columns of new files. With data evolution, a file has those of ``Scan.written``, and blobs may be in files of
    their own.
    """
    schema = snapshot.table_schema
    if snapshot.options.data_evolution:
        return replace(schema, fields=tuple(each for each in schema.fields if not holds(each.type, "BLOB")))
    return with_lineage(schema, snapshot.options)


def written_columns(snapshot: PaimonSnapshot, schema: Schema) -> list[str] | None:
    """What the manifest says of the columns of a new file; ``None``: it has those of the table."""
    return None if schema == snapshot.table_schema else [each.name for each in schema.fields]


def arrow_fields(snapshot: PaimonSnapshot, fields: Sequence[Field]) -> list[pa.Field]:
    """The columns of new files. Those of ORC files carry their ids as ``paimon.id``."""
    return [identified(each) if format_of(snapshot) == "orc" else arrow_field(each) for each in fields]


def file_metadata(snapshot: PaimonSnapshot, fields: Sequence[Field]) -> dict[bytes, bytes]:
    """Metadata of the schema of tasks that write new files of these columns."""
    if format_of(snapshot) != "avro":
        return {}
    return {AVRO_SCHEMA: records_of(fields).encode()}


def identified(field: Field) -> pa.Field:
    """A column of an ORC file, with its id."""
    arrow = _with_id(field.name, _identified_type(field.type, field.id), field.id)
    return arrow.with_nullable(field.type.nullable)


def _identified_type(type: DataType, id: int, depth: int = 1) -> pa.DataType:
    """A type with ids for elements, keys and values, derived from the column's id (SpecialFields of Paimon's Java)."""
    if type.root == "ROW":
        return pa.struct([identified(each) for each in type.parts])
    above, below = _IDS + id * _DEPTHS + depth, _IDS - id * _DEPTHS - depth
    if type.root == "ARRAY":
        element = type.parts[0].type
        return pa.list_(_with_id("element", _identified_type(element, id, depth + 1), above))
    if type.root in {"MAP", "MULTISET"}:
        key = _with_id("key", _identified_type(type.parts[0].type, id, depth + 1), below).with_nullable(False)
        item = _identified_type(type.parts[1].type, id, depth + 1) if type.root == "MAP" else pa.int32()
        return pa.map_(key, _with_id("value", item, above))
    return arrow_type(type)


def _with_id(name: str, type: pa.DataType, id: int) -> pa.Field:
    return pa.field(name, type, metadata={"paimon.id": str(id)})


def why_not_written(snapshot: PaimonSnapshot, kind: str | None = None) -> Iterator[str]:
    """Why new files can't have the table's rows: columns of a type that is not written, and the format.

    kind : the format, by default the table's.
    """
    kind = kind or format_of(snapshot)
    for column in written_schema(snapshot).fields:
        if what := next(filter(None, (_unwritten(each, kind) for each in parts_of(column.type))), None):
            yield f"the column {column.name} holds {what}, which this tool does not write"
    if kind not in _WRITTEN:
        yield f"new files of the table must be {kind}, but this tool writes only Parquet, ORC and Avro (file.format)"
    # Files of tables with a key are copied with the names that they have.
    written = () if snapshot.options.primary_key else written_schema(snapshot).fields
    if kind == "avro" and (name := next(odd_names(written), "")):
        yield f"the name of {name!r} can't be in Avro files, which take letters, digits and underscores"


def _unwritten(type: DataType, kind: str) -> str | None:
    if type.root == "VARIANT" and kind != "parquet":
        return "variants in files other than Parquet"
    if type.root.startswith("TIMESTAMP") and type.precision > _MICROS and kind == "avro":
        return "nanoseconds"
    return "blobs" if type.root == "BLOB" else None


def codec_of(snapshot: PaimonSnapshot, wanted: str | None = None, *, kind: str | None = None) -> str:
    """The compression of new files, by its name in engines: the table's option, else ``wanted``, else zstd, the default
    of Paimon's own writers. ``kind``: their format, by default the table's.

    Raises
    ------
    RefusedError : files with this compression can't be written, or can't be read back.
    """
    kind = kind or format_of(snapshot)
    wanted = _OF_POLICY.get(kind, {}).get(wanted or "zstd", wanted)
    requested = snapshot.properties.get(_COMPRESSION, wanted or "zstd").strip().lower()
    known = _CODECS[kind]
    policy = wanted is not None and _COMPRESSION not in snapshot.properties
    who, what = ("the policy", "the policy's compression") if policy else ("the table", _COMPRESSION)
    if (kind, requested) == _NOT_HERE and not policy:
        return "zstd"
    if requested not in known:
        raise RefusedError(
            f"{who} requests the compression {requested!r}, which this release can't write to {kind} files",
            at=snapshot,
            next_step=f"set {what} to one of {', '.join(sorted(known))}",
        )
    return known[requested]


def other_codec(snapshot: PaimonSnapshot) -> str:
    """That new files have another compression than the table's option names; "" if they have that."""
    requested = snapshot.properties.get(_COMPRESSION, "").strip().lower()
    if (format_of(snapshot), requested) != _NOT_HERE:
        return ""
    return f"new files are compressed with {codec_of(snapshot)}, as no library writes {requested} here ({_COMPRESSION})"


def check_values(snapshot: PaimonSnapshot, sources: Sequence[str]) -> None:
    """Refuse to move rows if values would change: nanoseconds of Avro files, which have none, and see check_instants.

    sources : formats of the files to rewrite.

    Raises
    ------
    RefusedError : the message names the columns.
    """
    for name in sorted(set(sources)):
        check_nanoseconds(written_schema(snapshot), name, snapshot.table, snapshot.version)
    check_instants(snapshot, sources)


def check_instants(snapshot: PaimonSnapshot, sources: Iterable[str]) -> None:
    """Refuse to move timestamps with a local time zone from files of other formats into ORC files, if Paimon shifts
    timestamps by the time zone of its JVM in ORC files only.

    sources : formats of the files to rewrite.

    Raises
    ------
    RefusedError : the message names the column.
    """
    if format_of(snapshot) != "orc" or snapshot.properties.get(_LEGACY, "true").strip().lower() == "false":
        return
    column = _column(snapshot, "TIMESTAMP_LTZ")
    others = sorted(set(sources) - {"orc"})
    if column and others:
        raise RefusedError(
            f"column {column} holds timestamps with a local time zone in files of the format {', '.join(others)}: in "
            f"ORC files Paimon would shift them by the time zone of its JVM ({_LEGACY})",
            at=snapshot,
            next_step="set the table's file.format to that of its files, or let Paimon compact the table",
        )


def _column(snapshot: PaimonSnapshot, *roots: str) -> str | None:
    """The first column whose type is, or contains, one of ``roots``."""
    fields = snapshot.table_schema.fields
    return next((each.name for each in fields if any(part.root in roots for part in parts_of(each.type))), None)
