"""Rewrite tasks for an engine: which data files to rewrite, and how.

New files have the current columns, with initial defaults and identity partition values written, and both columns of row
lineage: ids of rows must survive every move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import strings
from dv_maintenance.tables.bins import taken
from dv_maintenance.tables.iceberg.commit.metrics import stats_columns
from dv_maintenance.tables.iceberg.log.types import LINEAGE, without_unknown
from dv_maintenance.tables.iceberg.rows.formats import codec_of, file_schema, format_of, states_codec
from dv_maintenance.tables.iceberg.rows.tasks import COLUMNS, Equality, full_source, scan_metadata
from dv_maintenance.tables.model import has_variant
from dv_maintenance.tables.shredded import as_stored
from dv_maintenance.tables.work import RewriteBin, RewriteTask, ScanTask

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
    from dv_maintenance.tables.work import SourceFile

_SHREDS: Final = "write.parquet.shred-variants"


def rewrite_tasks(
    layout: Layout,
    snapshot: IcebergSnapshot,
    bins: Sequence[RewriteBin],
    target_bytes: int,
    compression: str | None = None,
) -> list[RewriteTask]:
    """One task per bin, with its id.

    compression : of the new files, unless the table's property names one.

    Raises
    ------
    UsageError : a bin names a file twice, a file that is not live in the snapshot, or a file of another partition.
    RefusedError : a file can't be read, or the folder of new files is a link.
    """
    lineage = LINEAGE if snapshot.metadata.format_version > 2 else ()
    columns = filter(None, map(without_unknown, snapshot.table_schema.arrow))
    schema = file_schema(snapshot, pa.schema([*columns, *lineage], scan_metadata(snapshot)))
    paths = strings(sorted({key.path for wanted in bins for key in wanted.inputs}))
    chosen = snapshot.files.filter(pc.is_in(snapshot.files["path"], value_set=paths))
    equality, stats, kind = Equality(layout, snapshot), stats_columns(snapshot), format_of(snapshot)
    live = {}
    for row in chosen.select([*COLUMNS, "partition"]).to_pylist():
        source = full_source(layout, snapshot, row, schema, equality)
        live[source.key] = (row["partition"], source)
    tasks = []
    for wanted in bins:
        sources = tuple(taken(live, wanted, snapshot))
        folder = layout.path(output_folder(layout, snapshot, sources[0].key.path))
        layout.storage.check_target(f"{folder}/new")
        task = RewriteTask(
            id=wanted.id,
            scan=ScanTask(sources, _as_shredded(layout, snapshot, schema, sources), "id"),
            output_uri=layout.storage.uri_of(folder),
            target_bytes=target_bytes,
            compression=codec_of(snapshot, compression),
            stats_columns=stats,
            order_by=tuple((name,) for name in wanted.order_by),
            file_name=f"{{task}}-{{uuid}}{{codec}}.{kind}",
            format=kind,
            compression_required=states_codec(snapshot) or compression is not None,
        )
        tasks.append(task)
    return tasks


def _as_shredded(
    layout: Layout, snapshot: IcebergSnapshot, schema: pa.Schema, sources: Sequence[SourceFile]
) -> pa.Schema:
    """If the table wants variants shredded, those of new files are shredded as in the sources. They have nothing
    shredded if the sources differ, or have types that Arrow would store in another way.
    """
    wanted = snapshot.properties.get(_SHREDS, "false").strip().lower() == "true"
    if (
        not wanted
        or format_of(snapshot) != "parquet"
        or not any(map(has_variant, schema))
        or any(source.format != "parquet" for source in sources)
    ):
        return schema
    try:
        first, *others = as_stored(layout.storage, schema, sources)
    except RefusedError:
        return schema
    return first if all(each == first for each in others) else schema


def output_folder(layout: Layout, snapshot: IcebergSnapshot, path: str) -> str:
    """The folder of the new file that replaces the data file ``path``, both as the table spells them: the same one, or
    that of new files if that file is outside the table's location.
    """
    inside = "://" not in layout.path(path)
    return path.rpartition("/")[0] if inside else layout.data_folder(snapshot.metadata)
