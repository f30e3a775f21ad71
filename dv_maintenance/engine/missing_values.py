"""Rows without a value in a NOT NULL column, found by reading as little as possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.engine.parquet.reader import SourceReader
from dv_maintenance.engine.rows.required import Required
from dv_maintenance.engine.scan import open_source
from dv_maintenance.storage import Storage

if TYPE_CHECKING:
    from dv_maintenance.tables.work import ScanTask


def check_values(task: ScanTask, storage_options: Mapping[str, str] | None = None) -> None:
    """Read the NOT NULL columns of a task, from sources whose footers do not prove that no value is missing.

    Raises
    ------
    MissingValueError : a live row has no value in one of these columns.

    The errors of ``scan.scan`` pass through.
    """
    required = Required.of(task.schema)
    if required is None:
        return
    fields = [task.schema.field(name) for name in required.names]
    task = replace(task, schema=pa.schema(fields, task.schema.metadata))
    for source in task.sources:
        with open_source(source, task, Storage(source.uri, storage_options)) as reader:
            if not (isinstance(reader, SourceReader) and reader.filled()):
                for _ in reader.batches():
                    pass
