"""Rewrite tasks for an engine: which data files to rewrite, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import strings
from dv_maintenance.tables.bins import taken
from dv_maintenance.tables.paimon.commit.value_stats import stats_columns
from dv_maintenance.tables.paimon.log.schema import Schema, read_schema
from dv_maintenance.tables.paimon.rows import keyed, lineage
from dv_maintenance.tables.paimon.rows.formats import arrow_fields, check_instants, codec_of, format_of
from dv_maintenance.tables.paimon.rows.lineage import with_lineage
from dv_maintenance.tables.paimon.rows.tasks import COLUMNS, field_in, instants, source_of, unpadded
from dv_maintenance.tables.paimon.rows.types import holds
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
    kind, codec = format_of(snapshot), codec_of(snapshot, compression)
    stats = stats_columns(with_lineage(snapshot.table_schema, snapshot.options))
    schemas = {snapshot.table_schema.id: snapshot.table_schema}
    found = _sources(layout, snapshot, bins, schemas)
    live = {source.key: (row["partition"], (row, source)) for row, source in found}
    tasks = []
    for wanted in bins:
        rows, sources = zip(*taken(live, wanted, snapshot), strict=True)
        check_instants(snapshot, (source.format for source in sources))
        schema = _schema(snapshot, [schemas[row["schema_id"]] for row in rows])
        if keyed_table := snapshot.options.primary_key:
            if len(sources) > 1:
                raise refused(snapshot, "rewrite", "only Paimon can merge the rows of a primary-key table")
            source, schema = keyed.as_stored(snapshot, layout.storage, sources[0])
            sources, stats = (source,), stats_columns(schemas[rows[0]["schema_id"]])
        folder = rows[0]["path"].rpartition("/")[0]
        layout.storage.check_target(f"{folder}/new")
        task = RewriteTask(
            id=wanted.id,
            scan=ScanTask(sources, schema),
            output_uri=layout.storage.uri_of(folder),
            target_bytes=keyed.ONE_FILE if keyed_table else target_bytes,
            compression=codec,
            stats_columns=stats,
            order_by=tuple((name,) for name in wanted.order_by),
            file_name=f"data-{{uuid}}-0.{kind}",
            format=kind,
            # Paimon skips row groups by unsigned bounds, but compares the bytes of rows as signed. So a filter may
            # select rows of a row group that its bounds would skip. A purge may remove the only row that prevents this.
            bytes_have_order=False,
        )
        tasks.append(task)
    return tasks


def _schema(snapshot: PaimonSnapshot, stored: Sequence[Schema]) -> pa.Schema:
    """The columns of the newest schema. Metadata about timestamps is set only if it holds for all files of the task."""
    known = [instants(each) for each in stored]
    return pa.schema(arrow_fields(snapshot), known[0] if all(known) else None)


def _sources(
    layout: Layout, snapshot: PaimonSnapshot, bins: Sequence[RewriteBin], schemas: dict[int, Schema]
) -> Iterator[tuple[dict[str, Any], SourceFile]]:
    """The files that the bins name. Only these become Python objects, since a table may have many more.

    schemas : known schemas by id; missing ones are added.
    """
    paths = strings(sorted({key.path for wanted in bins for key in wanted.inputs}))
    chosen = snapshot.files.filter(pc.is_in(snapshot.files["path"], value_set=paths))
    shapes: dict[int, pa.Schema | None] = {}
    options = snapshot.options
    # A new ORC file may as well have the blanks of the old one, as long as its readers strip them.
    pads = format_of(snapshot) == "orc"
    stripped = [each for each in snapshot.table_schema.fields if not (pads and holds(each.type, "CHAR"))]
    for row in chosen.select([*COLUMNS, *lineage.COLUMNS, "partition"]).to_pylist():
        schema_id = row["schema_id"]
        if schema_id not in shapes:
            if schema_id not in schemas:
                schemas[schema_id] = read_schema(layout, schema_id)
            newest, stored = (with_lineage(each, options) for each in (snapshot.table_schema, schemas[schema_id]))
            shapes[schema_id] = _shape(newest, stored)
        source = source_of(layout, snapshot, row)
        source = unpadded(source, schemas[schema_id], stripped)
        yield row, replace(source, schema=shapes[schema_id], row_defaults=lineage.row_defaults(row, options))


def _shape(newest: Schema, stored: Schema) -> pa.Schema | None:
    """The newest columns, with their names in files of the schema ``stored``; ``None`` if the schemas are the same."""
    return None if stored.id == newest.id else pa.schema([field_in(each, stored) for each in newest.fields])
