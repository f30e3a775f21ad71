"""Rewrite tasks for an engine: which data files to rewrite, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import flags, strings
from dv_maintenance.remedies import run
from dv_maintenance.tables.bins import taken
from dv_maintenance.tables.paimon.commit.value_stats import stats_columns
from dv_maintenance.tables.paimon.log.schema import Schema, read_schema
from dv_maintenance.tables.paimon.rows import keyed, lineage, lines, row_id_ranges
from dv_maintenance.tables.paimon.rows.evolution import parts_with
from dv_maintenance.tables.paimon.rows.files import folder_of
from dv_maintenance.tables.paimon.rows.formats import (
    arrow_fields,
    check_values,
    codec_of,
    file_metadata,
    format_of,
    why_not_written,
    written_schema,
)
from dv_maintenance.tables.paimon.rows.lineage import with_lineage
from dv_maintenance.tables.paimon.rows.tasks import (
    COLUMNS,
    Scan,
    field_in,
    instants,
    source_of,
    stored_source,
    unpadded,
)
from dv_maintenance.tables.paimon.rows.types import Field, holds
from dv_maintenance.tables.paimon.writable import refused
from dv_maintenance.tables.work import RewriteBin, RewriteTask, ScanTask, SourceFile

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.layout import Layout
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot


def rewrite_tasks(
    layout: Layout,
    snapshot: PaimonSnapshot,
    bins: Sequence[RewriteBin],
    target_bytes: int,
    compression: str | None = None,
) -> list[RewriteTask]:
    """One task per bin, with its id. New files have the columns of the newest schema, including partition columns.

    compression : of the new files, unless the table's option names one.

    Raises
    ------
    UsageError : a bin names a file twice, a file that is not live in the snapshot, or a file of another partition.
    RefusedError : the table or the policy asks for a compression that this package can't write; a file can't be read;
        timestamps would change in files of the table's format; or the folder of a bucket is a link.
    UnsupportedFeatureError : a column had another type when a file was written, and its values would have to be cast.
    """
    keyed_table = snapshot.options.primary_key
    # Only these files become Python objects, since a table may have many more.
    paths = sorted({key.path for wanted in bins for key in wanted.inputs})
    sources_of = _Sources(layout, snapshot, parts_with(snapshot.parts, paths))
    chosen = _rows(snapshot.files.filter(pc.is_in(snapshot.files["path"], value_set=strings(paths))))
    found = ((row, sources_of.of(row)) for row in chosen)
    live = {source.key: (row["partition"], (row, source)) for row, source in found}
    tasks = []
    for wanted in bins:
        rows, sources = zip(*taken(live, wanted, snapshot), strict=True)
        kind, written = format_of(snapshot), [sources_of.schemas[row["schema_id"]] for row in rows]
        suffix, codec = None, None
        file_rows: tuple[int, ...] = ()
        if any(source.format in lines.FORMATS for source in sources):
            if len({(row["schema_id"], lines.suffix_of(row["path"])) for row in rows}) > 1:
                raise refused(snapshot, "rewrite", "files of lines are merged only with others of their kind")
            if wanted.order_by:
                raise refused(snapshot, "rewrite", "files of lines are not ordered here")
            kind, schema, suffix, codec = sources[0].format, lines.LINES, lines.suffix_of(rows[0]["path"]), "none"
        elif keyed_table:
            if len(sources) > 1:
                raise refused(snapshot, "rewrite", "only Paimon can merge the rows of a primary-key table")
            kind = sources[0].format
            source, schema = keyed.as_stored(snapshot, layout.storage, sources[0], written[0])
            if kind == "orc":
                schema = schema.with_metadata(instants(written[0]))
                # Where Arrow can't write a value, a file would end, and pyorc write the next one.
                file_rows = (rows[0]["physical_rows"] - rows[0]["deleted_rows"],)
            sources, stats = (source,), stats_columns(written[0])
        else:
            check_values(snapshot, [name for source in sources for name in row_id_ranges.formats_of(source)])
            columns = sources_of.written(rows[0])
            schema, stats = _schema(snapshot, columns.fields, written), stats_columns(columns)
        if snapshot.options.data_evolution:
            file_rows = row_id_ranges.file_rows(snapshot, sources)
        # Not that of the first file, which may be outside the table.
        partition = snapshot.partitions[rows[0]["partition_code"]]
        folder = f"{folder_of(partition, snapshot.options.data_folder)}bucket-{rows[0]['bucket']}"
        layout.storage.check_target(f"{folder}/new")
        task = RewriteTask(
            id=wanted.id,
            scan=ScanTask(sources, schema),
            output_uri=layout.storage.uri_of(folder),
            target_bytes=keyed.ONE_FILE if keyed_table or suffix else target_bytes,
            file_rows=file_rows,
            compression=codec or codec_of(snapshot, compression, kind=kind),
            stats_columns=() if suffix else stats,
            order_by=tuple((name,) for name in wanted.order_by),
            file_name=f"data-{{uuid}}-0{suffix or f'.{kind}'}",
            format=kind,
            # Paimon skips row groups by unsigned bounds, but compares the bytes of rows as signed. So a filter may
            # select rows of a row group that its bounds would skip. A purge may remove the only row that prevents this.
            bytes_have_order=False,
            int96_nanoseconds=True,
        )
        tasks.append(task)
    return tasks


def _schema(snapshot: PaimonSnapshot, fields: Sequence[Field], stored: Sequence[Schema]) -> pa.Schema:
    """The columns of the newest schema. Metadata about timestamps is set only if it holds for all files of the task."""
    known = [instants(each) for each in stored]
    metadata = (known[0] if all(known) else None) or {}
    return pa.schema(arrow_fields(snapshot, fields), {**metadata, **file_metadata(snapshot, fields)})


def barred(layout: Layout, snapshot: PaimonSnapshot) -> dict[str, Any]:
    """See ``Snapshot.barred``: of the files of an append table. Reads the schemas of older files.

    A file without live rows has no reason: it is removed without being read.
    """
    files, sources = snapshot.files, _Sources(layout, snapshot, snapshot.parts)
    # Of two parts, where lines are compressed.
    suffixes = pc.replace_substring_regex(files["file_name"], r"^.*?((\.[^.-]+){1,2})$", r"\1")
    kinds = suffixes.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    pairs = files["schema_id"].to_numpy() * (kinds.max(initial=0) + 1) + kinds
    codes, first, of = np.unique(pairs, return_index=True, return_inverse=True)
    full = flags(pc.equal(files["deleted_rows"], files["physical_rows"]))
    found: dict[str, Any] = {}
    for code, row in zip(range(len(codes)), _rows(files.take(first)), strict=True):
        if (why := _why_not(snapshot, sources, row)) is not None:
            reason = f"{why}: only Paimon rewrites it, {run('engine-sql', f'{snapshot.table} purge')}"
            found[reason] = found.get(reason, False) | ((of == code) & ~full)
    return {reason: mask for reason, mask in found.items() if mask.any()}


def _why_not(snapshot: PaimonSnapshot, sources: _Sources, row: Mapping[str, Any]) -> str | None:
    if lines.is_of_lines(row["path"]):
        return lines.why_not(snapshot, row["path"])
    try:
        check_values(snapshot, [sources.of(row).format])
    except RefusedError as error:
        return error.message
    return next(why_not_written(snapshot), None) if format_of(snapshot) in lines.KINDS else None


def _rows(files: pa.Table) -> list[dict[str, Any]]:
    return files.select([*COLUMNS, *lineage.COLUMNS, "partition", "bucket"]).to_pylist()  # type: ignore[no-any-return]


class _Sources:
    """Files to rewrite, with the newest columns under their names in each file."""

    def __init__(self, layout: Layout, snapshot: PaimonSnapshot, parts: pa.Table) -> None:
        self._layout, self._snapshot = layout, snapshot
        self.schemas = {snapshot.table_schema.id: snapshot.table_schema}
        self._shapes: dict[int, pa.Schema | None] = {}
        self._scan = Scan(layout, snapshot, (), parts, moving=True)
        # A new ORC file may as well have the blanks of the old one, as long as its readers strip them.
        pads = format_of(snapshot) == "orc"
        self._stripped = [each for each in snapshot.table_schema.fields if not (pads and holds(each.type, "CHAR"))]

    def written(self, row: Mapping[str, Any]) -> Schema:
        """The columns of new files with the rows of a file."""
        if not self._snapshot.options.data_evolution:
            return written_schema(self._snapshot)
        return replace(self._snapshot.table_schema, fields=self._scan.written(row))

    def of(self, row: Mapping[str, Any]) -> SourceFile:
        """The file of a row of :func:`_rows`. Raises RefusedError: it can't be read as the newest schema."""
        snapshot, schema_id = self._snapshot, row["schema_id"]
        options = snapshot.options
        if schema_id not in self.schemas:
            self.schemas[schema_id] = read_schema(self._layout, schema_id)
        if lines.is_of_lines(row["path"]) and not (options.primary_key or options.data_evolution):
            return lines.as_lines(snapshot, stored_source(self._layout, snapshot, row))
        source = source_of(self._layout, snapshot, row)
        if options.primary_key:
            return source  # it is copied as it is
        if options.data_evolution:
            return row_id_ranges.group_of(self._scan, row)
        if schema_id not in self._shapes:
            newest, stored = (with_lineage(each, options) for each in (snapshot.table_schema, self.schemas[schema_id]))
            self._shapes[schema_id] = _shape(newest, stored)
        source = unpadded(source, self.schemas[schema_id], self._stripped)
        return replace(source, schema=self._shapes[schema_id], row_defaults=lineage.row_defaults(row, options))


def _shape(newest: Schema, stored: Schema) -> pa.Schema | None:
    """The newest columns, with their names in files of the schema ``stored``; ``None`` if the schemas are the same."""
    return None if stored.id == newest.id else pa.schema([field_in(each, stored) for each in newest.fields])
