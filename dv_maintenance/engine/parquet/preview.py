"""What a rewrite task will do with the row groups of its sources, from footers and deletion vectors alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dv_maintenance.engine.parquet.footer import compressed_bytes
from dv_maintenance.engine.parquet.reader import SourceReader
from dv_maintenance.engine.parquet.writer import ParquetFiles
from dv_maintenance.engine.scan import open_source
from dv_maintenance.engine.writer import as_optional
from dv_maintenance.storage import Storage
from dv_maintenance.tables.work import RewriteTask

__all__ = ["Preview", "preview"]


@dataclass(frozen=True, slots=True)
class Preview:
    """Row groups of all sources. ``copied``: those that are copied; ``bytes_copied``: their compressed bytes."""

    groups: int
    copied: int
    bytes_copied: int


def preview(task: RewriteTask, storage_options: Mapping[str, str] | None = None) -> Preview | None:
    """``None`` if a source is not a Parquet file. Opens every source, and reads no rows.

    It expects that one layout fits all sources, as it does unless several writers took turns: then fewer are copied.

    Raises
    ------
    As ``rewrite`` before it reads rows.
    """
    if task.format != "parquet" or any(source.format != "parquet" or source.fragment for source in task.scan.sources):
        return None
    storage = Storage(task.output_uri, storage_options)
    schema = as_optional(task.scan.schema)
    scan = replace(task.scan, schema=schema)
    files = ParquetFiles(task, schema.remove_metadata(), storage)
    groups = copied = size = 0
    for source in scan.sources:
        with open_source(source, scan, storage) as reader:
            if not isinstance(reader, SourceReader):
                return None
            groups += reader.footer.num_row_groups
            copies = files.examine(source, reader)
            for number in copies.numbers if copies is not None else ():
                group = reader.footer.row_group(number)
                copied, size = copied + 1, size + compressed_bytes(group, range(group.num_columns))
    return Preview(groups, copied, size)
