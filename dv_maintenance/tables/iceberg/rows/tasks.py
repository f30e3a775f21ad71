"""Scan tasks for an engine: which files to read, and which rows to skip.

Columns are found by field id. A file keeps the schema that it was written with: columns that it lacks have the value of
an identity partition, their initial default, or null. Row ids follow from the file's first one where they are not
stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.dv import iceberg
from dv_maintenance.errors import DamagedTableError, RefusedError, UnsupportedFeatureError
from dv_maintenance.tables.columns import check_columns
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.types import LAST_UPDATED, LINEAGE, ROW_ID
from dv_maintenance.tables.iceberg.rows.files import EqualityDelete
from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
from dv_maintenance.tables.model import FileKey, logical_type
from dv_maintenance.tables.rows import row_id_name
from dv_maintenance.tables.work import EXACT_INSTANTS, NAMES, DvRef, RowDefault, ScanTask, SourceFile

COLUMNS: Final = [
    "path",
    "size",
    "record_count",
    "deleted_rows",
    "dv_id",
    "dv_file",
    "dv_offset",
    "dv_length",
    "format",
    "partition_code",
    "data_sequence",
    "first_row_id",
    "equality_deletes",
]
_LINEAGE_IDS: Final = tuple(LINEAGE.field(name).metadata[b"PARQUET:field_id"] for name in (ROW_ID, LAST_UPDATED))
_FORMATS: Final = ("parquet", "orc", "avro")
_BATCH: Final = 65_536  # rows that become Python objects at once
_NAME_MAPPING: Final = "schema.name-mapping.default"


def scan_tasks(layout: Layout, snapshot: IcebergSnapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
    """One task per row of ``snapshot.files``, in the same order.

    Raises
    ------
    UsageError : a column does not exist, or is named twice.
    RefusedError : a file has a format that is unknown here, or equality deletes compare what can't be compared here.
    """
    schema = _selected(snapshot, columns)
    equality = Equality(layout, snapshot)
    sources = (full_source(layout, snapshot, row, schema, equality) for row in rows_of(snapshot.files))
    return [ScanTask((source,), schema, "id") for source in sources]


def full_source(
    layout: Layout, snapshot: IcebergSnapshot, row: Mapping[str, Any], schema: pa.Schema, equality: Equality
) -> SourceFile:
    """As :func:`source_of`, with the equality deletes that apply to the file."""
    source = source_of(layout, snapshot, row, schema)
    if not row["equality_deletes"]:
        return source
    known = snapshot.partitions[row["partition_code"]].constants
    without = [{"values": each.to_json(), "constants": _constants(each.schema, known)} for each in equality.of(row)]
    return replace(source, details={**source.details, "without": without})


def rows_of(files: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in files.select(COLUMNS).to_batches(max_chunksize=_BATCH):
        yield from batch.to_pylist()


def _selected(snapshot: IcebergSnapshot, columns: Sequence[str] | None) -> pa.Schema:
    hidden = LINEAGE if snapshot.hidden_columns.names else pa.schema([])
    by_name = {each.name: each for each in (*hidden, *snapshot.table_schema.arrow)}
    own_id = row_id_name(snapshot.schema)
    if columns is not None and own_id in columns and hidden.names:
        by_name[own_id] = hidden.field(ROW_ID).with_name(own_id)
    names = snapshot.schema.names if columns is None else columns
    check_columns(names, by_name, snapshot)
    return pa.schema([by_name[name] for name in names], scan_metadata(snapshot))


def scan_metadata(snapshot: IcebergSnapshot) -> dict[bytes, bytes]:
    """Metadata of the schemas of scans: how columns of files without ids are called; instants in ORC files are in
    UTC.
    """
    return {EXACT_INSTANTS: b"exact", NAMES: json.dumps(name_mapping(snapshot)).encode()}


def name_mapping(snapshot: IcebergSnapshot) -> dict[str, list[str]]:
    """Names of fields by field id, for files without ids (specification: Column Projection). Raises
    DamagedTableError.
    """
    text = snapshot.properties.get(_NAME_MAPPING)
    found: dict[str, list[str]] = {}

    def add(fields: Any) -> None:
        for each in fields or ():
            if "field-id" in each:
                found[str(int(each["field-id"]))] = [str(name) for name in each["names"]]
            add(each.get("fields"))

    try:
        add(json.loads(text) if text else None)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise DamagedTableError(
            f"the table property {_NAME_MAPPING} is not a name mapping",
            at=snapshot,
            next_step="correct the property with the table's engine",
        ) from None
    return found


def source_of(layout: Layout, snapshot: IcebergSnapshot, row: Mapping[str, Any], schema: pa.Schema) -> SourceFile:
    """The file of a row of ``snapshot.files``, with COLUMNS. ``schema``: of the scan. Raises RefusedError for formats
    that are unknown here.
    """
    if row["format"] not in _FORMATS:
        raise RefusedError(
            f"{row['path']} is a file in the format {row['format']}; this release reads Parquet, ORC and Avro",
            table=layout.uri,
            version=snapshot.version,
            next_step="read the table with its own engine",
        )
    constants = _constants(schema, snapshot.partitions[row["partition_code"]].constants)
    defaults = {}
    if row["first_row_id"] is not None:
        starts = RowDefault(row["first_row_id"], counts=True), RowDefault(row["data_sequence"])
        by_id = dict(zip(_LINEAGE_IDS, starts, strict=True))
        ids = {each.name: each.metadata[b"PARQUET:field_id"] for each in schema}
        defaults = {name: by_id[number] for name, number in ids.items() if number in by_id}
    plain = stored_source(layout, snapshot, row)
    return SourceFile(
        plain.key,
        plain.uri,
        plain.size,
        plain.rows,
        plain.dv,
        constants,
        defaults,
        format=plain.format,
        spark_keys=False,
    )


def _constants(schema: pa.Schema, known: Mapping[int, Any]) -> dict[str, Any]:
    """The values of the columns that all rows of a partition share. ``known``: by field id."""
    return {
        each.name: known[number]
        for each in schema
        if (number := int(each.metadata[b"PARQUET:field_id"])) in known and not types.is_nested(each.type)
    }


def stored_source(layout: Layout, snapshot: IcebergSnapshot, row: Mapping[str, Any]) -> SourceFile:
    """The file of a row of ``snapshot.files``, even if this package can't read its format."""
    return SourceFile(
        key=FileKey(row["path"], row["dv_id"]),
        uri=layout.storage.uri_of(layout.path(row["path"])),
        size=row["size"],
        rows=row["record_count"],
        dv=_dv(layout, snapshot, row),
        format=row["format"],
        spark_keys=False,
    )


def _dv(layout: Layout, snapshot: IcebergSnapshot, row: Mapping[str, Any]) -> DvRef | None:
    if row["dv_file"] is not None:
        uri = layout.storage.uri_of(layout.path(row["dv_file"]))
        return DvRef(iceberg.CODEC, row["deleted_rows"], row["dv_length"], uri, row["dv_offset"])
    positions = snapshot.positions.get(row["path"])
    if positions is None:
        return None
    text, size = iceberg.inline(positions)
    return DvRef(iceberg.CODEC, positions.cardinality, size, inline=text)


# -- equality deletes -----------------------------------------------------------------------------------------------


class Equality:
    """The tasks that read the equality deletes of a snapshot, made once for each file of them."""

    def __init__(self, layout: Layout, snapshot: IcebergSnapshot) -> None:
        self._layout, self._snapshot = layout, snapshot
        self._tasks: dict[str, ScanTask] = {}

    def of(self, row: Mapping[str, Any]) -> list[ScanTask]:
        """One task for all delete files that apply to a data file and compare the same columns."""
        groups: dict[tuple[int, ...], list[SourceFile]] = {}
        for each in self._snapshot.deletes.equality:
            if each.sequence > row["data_sequence"] and each.partition_code in {None, row["partition_code"]}:
                groups.setdefault(each.fields, []).append(self._source(each))
        return [ScanTask(tuple(sources), self._schema(fields), "id") for fields, sources in groups.items()]

    def _source(self, delete: EqualityDelete) -> SourceFile:
        if delete.format not in _FORMATS:
            raise RefusedError(
                f"{delete.path} is an equality delete file in the format {delete.format}, which can't be read here",
                table=self._layout.uri,
                version=self._snapshot.version,
                next_step="read the table with its own engine",
            )
        uri = self._layout.storage.uri_of(self._layout.path(delete.path))
        return SourceFile(FileKey(delete.path), uri, delete.size, delete.rows, format=delete.format, spark_keys=False)

    def _schema(self, numbers: tuple[int, ...]) -> pa.Schema:
        """The compared columns. One that was dropped has the type of the newest schema that had it."""
        schemas = sorted(self._snapshot.metadata.schemas.values(), key=lambda each: each.id, reverse=True)
        fields = []
        for number in numbers:
            found = (each.path_to(number) for each in (self._snapshot.table_schema, *schemas))
            field = next((each for each in found if each is not None), None)
            if field is None or not _is_comparable(field, str(number).encode()):
                name = f"the column with field id {number}" if field is None else f"column {field.name}"
                raise UnsupportedFeatureError(
                    f"equality deletes compare {name}; Iceberg's specification forbids floats, lists and maps",
                    features=("equality deletes by floats, lists, maps or unknown columns",),
                    table=self._layout.uri,
                    version=self._snapshot.version,
                    next_step="read the table with the engine that wrote it",
                )
            fields.append(field.with_nullable(True))
        return pa.schema(fields, scan_metadata(self._snapshot))


def _is_comparable(field: pa.Field, number: bytes) -> bool:
    """Specification, Equality Delete Files: they compare what an identifier may be, also nulls, also in null structs.

    field : the way to the field with this id, see ``Schema.path_to``.
    """
    if field.metadata[b"PARQUET:field_id"] != number:
        return _is_comparable(field.type.field(0), number)
    return not (types.is_nested(field.type) or types.is_floating(field.type) or logical_type(field) == "geo")
