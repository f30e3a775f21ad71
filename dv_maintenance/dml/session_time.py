"""Partition values that depend on the session: delta-spark reads timestamps without a zone in the session's zone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dml.rows import spark_errors
from dv_maintenance.engine.spark.arrow_table import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import RowLevelTable
    from dv_maintenance.tables.work import ScanTask


def scan_tasks(
    session: SparkSession, table: RowLevelTable, snapshot: Snapshot, columns: Sequence[str]
) -> list[ScanTask]:
    """As ``Table.scan_tasks``, with partition values as in the session. Spark itself parses the texts, because Python
    has other rules for times long ago.
    """
    tasks = table.scan_tasks(snapshot, columns)
    for column, texts in table.local_times(snapshot, columns).items():
        instants = _instants(session, pc.unique(texts).drop_null())
        tasks = [
            task if text is None else _with_constant(task, column, instants[text])
            for task, text in zip(tasks, texts.to_pylist(), strict=True)
        ]
    return tasks


def _with_constant(task: ScanTask, column: str, value: int | None) -> ScanTask:
    (source,) = task.sources
    return replace(task, sources=(replace(source, constants={**source.constants, column: value}),))


def _instants(session: SparkSession, texts: pa.Array) -> Mapping[str, int | None]:
    """Microseconds since the epoch; ``None`` for text that Spark does not read as a time."""
    from pyspark.sql import functions as f

    with spark_errors():
        rows = rows_of(session, pa.table({"text": texts}))
        found = rows.select("text", f.expr("unix_micros(TRY_CAST(text AS TIMESTAMP_LTZ)) AS micros")).collect()
    return {row.text: row.micros for row in found}
