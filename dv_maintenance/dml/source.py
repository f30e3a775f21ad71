"""The input rows of a change: the keys of a DELETE, the source of a MERGE.

This module reads them, and finds the files of the table that they can't affect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dml.names import quoted
from dv_maintenance.dml.prune import files_in_range
from dv_maintenance.dml.rows import live_rows, spark_errors
from dv_maintenance.dml.session_time import scan_tasks
from dv_maintenance.dml.text_files import TextFile, form_of, text_files
from dv_maintenance.errors import TableNotFoundError
from dv_maintenance.tables import open_table
from dv_maintenance.tables.capabilities import ComposedTable
from dv_maintenance.tables.rows import RowLevelTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.tables.model import Snapshot

# Up to this many integers are collected on the driver (8 bytes each) to be compared with each file's range.
_DRIVER_VALUES: Final = 20_000_000


def read_rows(
    session: SparkSession, path: str, options: Mapping[str, str] | None = None, *, folders: bool = True
) -> DataFrame | tuple[TextFile, ...]:
    """The rows of a file or folder, recognized by the ending of its name; or else of a table, through its deletion
    vectors; or else of a folder of files, recognized by their endings. CSV and JSON are returned as files: only the
    caller knows the types of their values.

    options : storage options for a table and for text; Spark itself reads Parquet.
    folders : names of folders in a Parquet dataset (``k=007``) are columns whose types Spark infers.
    """
    # A session started in another folder would resolve the path there.
    path = path if "://" in path else os.path.abspath(path)
    parquet = session.read.option("recursiveFileLookup", not folders)
    if not form_of(path):
        if path.lower().rstrip("/").endswith(".parquet"):
            return parquet.parquet(path)
        with suppress(TableNotFoundError):
            table = open_table(path, storage_options=options)
            snapshot = table.snapshot()
            names = snapshot.schema.names
            if isinstance(table, ComposedTable):
                tasks = table.read_tasks(snapshot)
            elif isinstance(table, RowLevelTable):
                tasks = scan_tasks(session, table, snapshot, names)
            else:
                tasks = table.scan_tasks(snapshot)
            live = live_rows(session, tasks, snapshot.schema, options)
            return live.rows.drop(live.file, live.row)
    return tuple(text_files(path, options)) or parquet.parquet(path)


class Values:
    """The values of columns of ``rows``. ``count``: the number of rows."""

    def __init__(self, rows: DataFrame, count: int) -> None:
        self._rows, self.count = rows, count
        self._known: dict[str, pa.Array] = {}

    def narrow(self, table: RowLevelTable, snapshot: Snapshot, columns: Mapping[str, str]) -> Snapshot:
        """The snapshot with only the files that may hold a matching value in each of the ``columns``.

        columns : column of the table -> column of the rows.
        """
        for name, of_rows in columns.items():
            values = self._of(of_rows, snapshot.schema.field(name).type)
            if values is not None:
                snapshot = files_in_range(table, snapshot, name, values)
        return snapshot

    def _of(self, column: str, kind: pa.DataType) -> pa.Array | None:
        """The values, sorted, in the table's type. Only minimum and maximum if all are too many, or do not help.
        ``None`` if the types differ: then only Spark can decide which values are equal.
        """
        comparable = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)
        if not comparable:
            return None
        if column not in self._known:
            values = self._collected(column, whole=pa.types.is_integer(kind)).drop_null()
            self._known[column] = values.take(pc.sort_indices(values))
        values = self._known[column]
        if pa.types.is_integer(kind) and pa.types.is_integer(values.type):
            half = 1 << kind.bit_width - 1
            fits = pc.and_(pc.greater_equal(values, -half), pc.less(values, half)) if kind.bit_width < 64 else None
            return (values if fits is None else values.filter(fits)).cast(kind)
        return values if values.type == kind else None

    def _collected(self, column: str, *, whole: bool) -> pa.Array:
        from pyspark.sql import functions as f

        picked = self._rows.select(f.col(quoted(column)).alias("value"))
        with spark_errors():
            if whole and self.count <= _DRIVER_VALUES:
                return pa.concat_arrays(picked.toArrow()["value"].chunks or [pa.array([], pa.int64())])
            ends = picked.agg(f.min("value").alias("least"), f.max("value").alias("greatest")).toArrow()
        return pa.concat_arrays([ends["least"].combine_chunks(), ends["greatest"].combine_chunks()])
