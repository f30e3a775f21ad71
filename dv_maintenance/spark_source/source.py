"""The data source itself: PySpark asks for a schema, then for splits on the driver, then for batches in its workers.

The version is chosen once, when ``load`` asks for the schema, and is part of the pickled source: whatever is committed
afterwards, a DataFrame reads the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dv_maintenance.errors import DvMaintenanceError, UsageError
from dv_maintenance.spark_source.options import ReadOptions
from dv_maintenance.spark_source.types import as_sent, nullable, spark_schema
from dv_maintenance.tables.columns import selected

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from dv_maintenance.engine.splits import ScanSplit
    from dv_maintenance.tables.capabilities import QueryableTable
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.predicate import Predicate

CAN_PUSH_FILTERS: Final = hasattr(spark, "Filter")
"""From PySpark 4.1 on."""

# With this set, a Python worker that fails sends Spark its message without a traceback (PySpark 4.1).
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


@dataclass(frozen=True)
class Split(InputPartition):
    """The input of one Spark task. ``schema``: the columns as they are sent to Spark."""

    scan: ScanSplit
    schema: pa.Schema
    predicate: Predicate | None


class DvDeltaReader(DataSourceReader):
    """Small, because it is sent to every task; ``partitions`` looks up the files."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._predicate: Predicate | None = None

    def partitions(self) -> list[InputPartition]:
        with _plain_errors():
            return list(self._splits())

    def _splits(self) -> Iterator[Split]:
        from dv_maintenance.engine.splits import plan_splits
        from dv_maintenance.spark_source.local_times import in_zone
        from dv_maintenance.tables.predicate import bind

        table, snapshot = _open(self._options)
        _check_schema(selected(self._options.columns, snapshot), self._schema, snapshot)
        predicate = self._predicate
        if predicate is not None:
            snapshot = replace(snapshot, files=snapshot.files.filter(table.may_match(snapshot, predicate)))
            predicate = bind(predicate, snapshot.schema)
        tasks = in_zone(table, snapshot, table.scan_tasks(snapshot, self._options.columns), self._options)
        if not tasks:
            return
        schema, sent = nullable(tasks[0].schema), as_sent(tasks[0].schema)
        tasks = [replace(task, schema=schema) for task in tasks]
        for split in plan_splits(tasks, self._options.split_bytes):
            yield Split(split, sent, predicate)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        from dv_maintenance.dml.spark_types import for_spark
        from dv_maintenance.engine.splits import scan_split

        # Without any split PySpark still reads one partition of its own.
        if not isinstance(partition, Split):
            return
        with _plain_errors():
            for batch in scan_split(partition.scan, self._options.storage_options, partition.predicate):
                yield for_spark(batch, partition.schema)


class DvDeltaFilteringReader(DvDeltaReader):
    """Skips files and rows by filters. Spark applies each filter again: not all of them can be evaluated completely
    here, and a second evaluation costs little on the remaining rows.
    """

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802
        from dv_maintenance.spark_source.filters import predicate_of

        self._predicate = predicate_of(filters)
        return filters


class DvDeltaSource(DataSource):
    """``dv_delta`` without push-down of filters."""

    _reader: type[DvDeltaReader] = DvDeltaReader

    @classmethod
    def name(cls) -> str:
        return "dv_delta"

    def schema(self) -> StructType:
        with _plain_errors():
            options = ReadOptions.parse(self.options)
            _, snapshot = _open(options)
            self._version = snapshot.version
            return spark_schema(selected(options.columns, snapshot))

    def reader(self, schema: StructType) -> DvDeltaReader:
        with _plain_errors():
            options = ReadOptions.parse(self.options)
            version: int | None = getattr(self, "_version", None)
            if version is None:
                # The user gave the schema, so the table has not been opened yet.
                version = _open(options)[1].version
            pinned = replace(options, version=version, timestamp=None, columns=tuple(schema.names))
            return self._reader(pinned, schema)


class DvDeltaFilteringSource(DvDeltaSource):
    """``dv_delta`` with push-down of filters."""

    _reader = DvDeltaFilteringReader


def _open(options: ReadOptions) -> tuple[QueryableTable, Snapshot]:
    """The table and the version that the options select.

    Raises
    ------
    UsageError : no such version, or a time outside the table's history.
    The errors of opening a table.
    """
    from dv_maintenance.tables import open_table
    from dv_maintenance.tables.capabilities import QueryableTable

    table = open_table(options.path, storage_options=options.storage_options)
    if not isinstance(table, QueryableTable):
        raise UsageError(f"tables of the format {table.format} can't be read this way", table=table.uri)
    snapshot = table.snapshot(options.version)
    if options.timestamp is None:
        return table, snapshot
    version = table.version_at(snapshot, options.timestamp)
    if version == snapshot.version and snapshot.timestamp < options.timestamp:
        # As in Delta: the table's state at a future time is unknown.
        raise UsageError(
            "timestampAsOf is after the newest version",
            table=table.uri,
            version=version,
            next_step=f"leave it out, or give versionAsOf {version}",
        )
    return table, snapshot if version == snapshot.version else table.snapshot(version)


def _check_schema(schema: pa.Schema, wanted: StructType, snapshot: Snapshot) -> None:
    """A schema given by the user may select columns, but not change their types."""
    for field, own in zip(wanted.fields, spark_schema(schema).fields, strict=True):
        if field.dataType.simpleString() != own.dataType.simpleString():
            raise UsageError(
                f"column {field.name!r} is {own.dataType.simpleString()}, not {field.dataType.simpleString()}",
                at=snapshot,
                next_step="leave the schema out, or give the table's types",
            )


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors raised on purpose reach the user as their text. The Python worker that raises one ends with it."""
    try:
        yield
    except DvMaintenanceError:
        os.environ[_HIDE_TRACEBACK] = "1"
        raise
