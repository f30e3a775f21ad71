"""Scan tasks for an engine: which files to read, and which rows to skip.

The rows of an append table are the rows of its files, minus those that deletion vectors name. The same holds for a
primary-key table whose files a batch reader does not merge. Its files also have a column with the kind of each row, and
retractions are skipped. In a data-evolution table, several files may hold different columns of the same rows.

A data file has the columns of the schema that it was written with, under their names at that time. Columns of two
schemas are the same if their ids are equal. Older files do not contain field ids, so a column is found by its name in
the file's schema.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from dv_maintenance.dv import paimon
from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.tables.columns import check_columns
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.paimon.features import (
    as_stored,
    check_nanoseconds,
    check_rows_readable,
)
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.schema import Schema, read_schema
from dv_maintenance.tables.paimon.rows import keyed, line_values, lines, vectors
from dv_maintenance.tables.paimon.rows.casts import same_values
from dv_maintenance.tables.paimon.rows.evolution import (
    PARTS_OF,
    blob_files,
    check_blobs,
    holders,
    vector_files,
    written_fields,
)
from dv_maintenance.tables.paimon.rows.types import Field, arrow_field, holds, spelled
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
from dv_maintenance.tables.work import EXACT_INSTANTS, DvRef, ScanTask, SourceFile

COLUMNS: Final = [
    "path",
    "size",
    "physical_rows",
    "deleted_rows",
    "dv_id",
    "dv_file",
    "dv_offset",
    "dv_length",
    "schema_id",
    "partition_code",
    "retractions",
    "first_row_id",
    "write_cols",
]
# Kinds of rows: +I and +U, -U and -D.
ADDED: Final = frozenset({0, 2})
TAKEN: Final = frozenset({1, 3})
_FORMATS: Final = ("parquet", "orc", "avro")
_BATCH: Final = 65_536  # rows that become Python objects at once
_SOURCE: Final = b"dvm:source"
_LEAVE_OUT: Final = Remedy("leave it out with {}, or let Paimon compact the table", (setting("columns"),))


def only(kinds: frozenset[int]) -> dict[str, Any]:
    """``SourceFile.details`` to read only the rows of these kinds."""
    return {"only": {"column": "_VALUE_KIND", "kept": sorted(kinds), "dropped": sorted((ADDED | TAKEN) - kinds)}}


def scan_tasks(layout: Layout, snapshot: PaimonSnapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
    """One task per row of ``snapshot.files``, in the same order, with partition values as constants.

    Raises
    ------
    UsageError : a column does not exist, or is named twice.
    RefusedError : rows must be merged or otherwise derived, or a file has another format. The message has the reason.
    """
    wanted = _selected(snapshot, columns)
    check_opened(snapshot)
    keyed.check_read_one_by_one(snapshot)
    chosen = replace(snapshot.table_schema, fields=wanted)
    # Paimon reads an older snapshot with the current options. The options of that time show whether this is right.
    for options in (snapshot.properties, chosen.options):
        check_rows_readable(replace(chosen, options=options), layout.uri, snapshot.version)
    scan = Scan(layout, snapshot, wanted, snapshot.parts)
    return [scan.task(row) for row in _rows(snapshot)]


def check_opened(snapshot: PaimonSnapshot) -> None:
    """Refuse the newest snapshot if the table's options make Paimon's readers open something else.

    Raises
    ------
    RefusedError : the message names the options.
    """
    if snapshot.elsewhere:
        named = ", ".join(f"{name}={value}" for name, value in snapshot.elsewhere.items())
        raise RefusedError(
            f"Paimon's readers do not open the newest snapshot, but what the table's options name ({named})",
            at=snapshot,
            next_step="name the snapshot to read, or take the options from the table and give them to its readers",
        )


class Scan:
    """Makes the tasks of one scan.

    parts : path of an anchor -> the files that hold its rows, as rows of ``snapshot.parts``.
    schemas : those read so far, by their ids.
    moving : whether bytes are only moved, also those that describe where blobs are.
    """

    def __init__(
        self,
        layout: Layout,
        snapshot: PaimonSnapshot,
        wanted: tuple[Field, ...],
        parts: pa.Table,
        *,
        moving: bool = False,
    ) -> None:
        self._layout, self._snapshot, self._wanted, self._moving = layout, snapshot, wanted, moving
        self.parts: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for part in parts.to_pylist():
            self.parts[part[PARTS_OF]].append(part)
        self.schemas = {snapshot.table_schema.id: snapshot.table_schema}
        self._shapes: dict[int, pa.Schema] = {}
        self._formats: set[str] = set()

    def task(self, row: Mapping[str, Any]) -> ScanTask:
        """The task of a row of ``snapshot.files``. Raises as :func:`scan_tasks`."""
        path = row["path"]
        return self._side_by_side(row, self.parts[path]) if path in self.parts else self._plain(row)

    def written(self, row: Mapping[str, Any]) -> tuple[Field, ...]:
        """The columns of new files with the rows of one of ``snapshot.files``, see ``evolution.written_fields``."""
        group = self.parts.get(row["path"], [{**row, "file_name": row["path"].rpartition("/")[2]}])
        return written_fields(group, self._schema, self._snapshot.table_schema.fields)

    def of(self, wanted: tuple[Field, ...]) -> Scan:
        """The same, for other columns."""
        found = Scan(self._layout, self._snapshot, wanted, self._snapshot.parts.slice(0, 0), moving=self._moving)
        found.parts, found.schemas = self.parts, self.schemas
        return found

    def _plain(self, row: Mapping[str, Any]) -> ScanTask:
        source, schema_id = self._source(row), row["schema_id"]
        self._check_blobs(row, self._schema(schema_id), self._wanted)
        if schema_id not in self._shapes:
            self._shapes[schema_id] = _shape(self._wanted, self._schema(schema_id))
        return ScanTask((source,), self._shapes[schema_id])

    def _check_blobs(self, row: Mapping[str, Any], stored: Schema, fields: Sequence[Field]) -> None:
        """See ``check_blobs``. Descriptions may be what readers want."""
        if not self._moving:
            wanted = as_stored(self._snapshot.table_schema.options)
            check_blobs(row, stored, [each for each in fields if each.name not in wanted])

    def _side_by_side(self, anchor: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> ScanTask:
        """A task for files that hold the same rows; the anchor's DV applies to each of them."""
        constants = self._snapshot.partitions[anchor["partition_code"]].constants
        whole = stored_source(self._layout, self._snapshot, anchor)
        blobs = blob_files(parts, self._schema, self._wanted)
        stacks = vector_files(parts, self._schema, self._wanted)
        apart = {*blobs, *(field.id for fields, _ in stacks for field in fields)}
        beside = [each for each in self._wanted if each.id not in apart]
        read = []
        for row, stored, fields in holders(parts, self._schema, beside, constants):
            self._check_blobs(row, stored, fields)
            if fields or not apart:
                read.append(replace(self._source(row), key=whole.key, dv=whole.dv, schema=_shape(fields, stored)))
        read += [self._blobs(whole, anchor, each, blobs[each.id]) for each in self._wanted if each.id in blobs]
        read += [self._stacked(whole, fields, files) for fields, files in stacks]
        if len(read) == 1:
            return ScanTask((replace(read[0], schema=None),), read[0].schema)
        schema = pa.schema([arrow_field(each) for each in self._wanted])
        details = {"parts": [each.to_json() for each in read]}
        size = sum(each.size for each in read)
        return ScanTask((replace(whole, size=size, format="parts", details=details),), schema)

    def _blobs(
        self, whole: SourceFile, anchor: Mapping[str, Any], field: Field, files: Sequence[Mapping[str, Any]]
    ) -> SourceFile:
        """The files that hold a column of blobs, as one source."""
        pieces = [
            {
                "uri": self._layout.storage.uri_of(row["path"]),
                "size": row["size"],
                "first": row["first_row_id"] - anchor["first_row_id"],
                "rows": row["physical_rows"],
            }
            for row in files
        ]
        size = sum(row["size"] for row in files)
        schema = pa.schema([arrow_field(field)])
        uri = pieces[0]["uri"]
        return replace(whole, uri=uri, size=size, format="blobs", schema=schema, details={"pieces": pieces})

    def _stacked(self, whole: SourceFile, fields: Sequence[Field], files: Sequence[Mapping[str, Any]]) -> SourceFile:
        """Files that hold some columns of one range of the rows after the other, as one source."""
        parts = [self._of_vectors({**row, "dv_id": None}, fields) for row in files]
        details = {"files": [each.to_json() for each in parts]}
        schema = pa.schema([arrow_field(each) for each in fields])
        size = sum(each.size for each in parts)
        return replace(whole, uri=parts[0].uri, size=size, format="stacked", schema=schema, details=details)

    def _of_vectors(self, row: Mapping[str, Any], fields: Sequence[Field]) -> SourceFile:
        stored = self._schema(row["schema_id"])
        if vectors.has_its_own_reader(row["path"]):
            source = stored_source(self._layout, self._snapshot, row)
            source = vectors.as_vectors(self._snapshot, source, stored, fields)
        else:
            source = self._source(row)
        return replace(source, schema=_shape(fields, stored))

    def _schema(self, schema_id: int) -> Schema:
        if schema_id not in self.schemas:
            self.schemas[schema_id] = read_schema(self._layout, schema_id)
        return self.schemas[schema_id]

    def _source(self, row: Mapping[str, Any]) -> SourceFile:
        options = self._snapshot.options
        if lines.is_of_lines(row["path"]) and not (options.primary_key or options.data_evolution):
            source = stored_source(self._layout, self._snapshot, row)
            return line_values.as_rows(self._snapshot, source, self._schema(row["schema_id"]))
        source = source_of(self._layout, self._snapshot, row)
        if source.format not in self._formats:
            chosen = replace(self._snapshot.table_schema, fields=self._wanted)
            check_nanoseconds(chosen, source.format, self._layout.uri, self._snapshot.version)
            self._formats.add(source.format)
        return unpadded(source, self._schema(row["schema_id"]), self._wanted)


def _shape(fields: Sequence[Field], stored: Schema) -> pa.Schema:
    return pa.schema([field_in(each, stored) for each in fields], instants(stored))


def _selected(snapshot: PaimonSnapshot, columns: Sequence[str] | None) -> tuple[Field, ...]:
    by_name = {each.name: each for each in snapshot.table_schema.fields}
    names = list(by_name) if columns is None else columns
    check_columns(names, by_name, snapshot)
    return tuple(by_name[name] for name in names)


def instants(stored: Schema) -> dict[bytes, bytes] | None:
    """Metadata about timestamps in ORC files of the schema ``stored``; ``None`` under Paimon's legacy rule."""
    legacy = stored.options.get("orc.timestamp-ltz.legacy.type", "true").strip().lower() != "false"
    return None if legacy else {EXACT_INSTANTS: b"exact"}


def field_in(field: Field, stored: Schema) -> pa.Field:
    """The Arrow field of a column, with its name in files of the schema ``stored``.

    Raises
    ------
    UnsupportedFeatureError : the column had another type in that schema, so values would have to be cast.
    """
    old = next((each for each in stored.fields if each.id == field.id), None)
    return _named(field, old)


def _named(field: Field, old: Field | None) -> pa.Field:
    arrow = arrow_field(field)
    if old is None:
        # No file of that schema has the column. This name, made from the column's id, can't be that of another column.
        return _found_as(arrow, f"\0{field.id}")
    if field.type.root == "ROW" and old.type.root == "ROW":
        olds = {each.id: each for each in old.type.parts}
        if not any(each.id in olds for each in field.type.parts):
            return _named(field, None)  # Paimon reads null, not a row of nulls.
        children = [_named(each, olds.get(each.id)) for each in field.type.parts]
        arrow = pa.field(field.name, pa.struct(children), nullable=field.type.nullable)
    elif field.type != old.type and (holds(field.type, "ROW") or holds(old.type, "ROW")):
        raise UnsupportedFeatureError(
            f"column {field.name} holds rows in arrays or maps, and these changed after some files were written",
            features=("evolved rows in arrays or maps",),
            next_step=_LEAVE_OUT,
        )
    elif not same_values(old.type, field.type):
        raise UnsupportedFeatureError(
            f"column {field.name} was {spelled(old.type)} when some files were written, and is {spelled(field.type)} "
            "now: its values would have to be cast as Paimon does",
            features=("columns that changed to another type",),
            next_step=_LEAVE_OUT,
        )
    return _found_as(arrow, old.name)


def _found_as(field: pa.Field, name: str) -> pa.Field:
    return field.with_metadata({**(field.metadata or {}), _SOURCE: name.encode()})


def unpadded(source: SourceFile, stored: Schema, wanted: Sequence[Field]) -> SourceFile:
    """The file with the places of CHAR that ORC pads with blanks, and that Paimon's readers strip of them."""
    if source.format != "orc":
        return source
    ids = {each.id for each in wanted}
    padded = [path for each in stored.fields if each.id in ids for path in _padded(each)]
    return replace(source, details={**source.details, **({"padded": padded} if padded else {})})


def _padded(field: Field) -> Iterator[list[str]]:
    """The places of CHAR in a column, as ``engine.orc.padding`` has them."""
    if field.type.root == "CHAR":
        yield [field.name]
    for part in field.type.parts:
        inner = replace(part, name="key") if field.type.root == "MULTISET" else part
        yield from ([field.name, *path] for path in _padded(inner))


def _rows(snapshot: PaimonSnapshot) -> Iterator[dict[str, Any]]:
    for batch in snapshot.files.select(COLUMNS).to_batches(max_chunksize=_BATCH):
        yield from batch.to_pylist()


def source_of(layout: Layout, snapshot: PaimonSnapshot, row: Mapping[str, Any]) -> SourceFile:
    """The file of a row of ``snapshot.files``. The row needs COLUMNS. Raises RefusedError for other formats."""
    path = row["path"]
    # The extension decides, because file.format may have changed since the file was written.
    if path.rsplit(".", 1)[-1].lower() not in _FORMATS:
        raise RefusedError(
            f"{path} is not a Parquet, ORC or Avro file, nor one of lines in an append table; this release reads "
            "no other format",
            table=layout.uri,
            version=snapshot.version,
            next_step="read the table with Paimon itself, or let it compact the table into Parquet files",
        )
    return stored_source(layout, snapshot, row)


def stored_source(layout: Layout, snapshot: PaimonSnapshot, row: Mapping[str, Any]) -> SourceFile:
    """The file of a row of ``snapshot.files``, even if this package can't read its format."""
    path = row["path"]
    dv = None
    if row["dv_id"] is not None:
        uri = layout.storage.uri_of(row["dv_file"])
        dv = DvRef(paimon.CODEC, row["deleted_rows"], row["dv_length"], uri, row["dv_offset"])
    return SourceFile(
        key=FileKey(path, row["dv_id"]),
        uri=layout.storage.uri_of(path),
        size=row["size"],
        rows=row["physical_rows"],
        dv=dv,
        constants=snapshot.partitions[row["partition_code"]].constants,
        format=path.rsplit(".", 1)[-1].lower(),
        # Without retractions, row kinds need no check. Old writers did not count retractions (null).
        details=only(ADDED) if snapshot.options.primary_key and row["retractions"] != 0 else {},
        spark_keys=False,
    )
