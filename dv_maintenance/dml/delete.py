"""DELETE: by a condition in Spark SQL, or by a table of keys. Deletion vectors delete rows; no data file is written.

Deleting all rows, or those of whole partitions, removes files without opening them. Otherwise only files that may hold
matching rows are read, and only the columns that the condition names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dml.caching import again_if_lost
from dv_maintenance.dml.catalyst import check_condition, demanded_by, shape
from dv_maintenance.dml.condition import Condition
from dv_maintenance.dml.in_process import all_positions_here, columns_in, predicate_here, true_for
from dv_maintenance.dml.keys import KeyColumn, Keys, keys_of_files, keys_of_rows
from dv_maintenance.dml.names import alike, quoted
from dv_maintenance.dml.operation import DmlReport, Work, deleted_rows, row_level, run, session_of
from dv_maintenance.dml.padding import as_in_catalog, char_length
from dv_maintenance.dml.prune import files_that_may_match
from dv_maintenance.dml.rows import live_rows, positions, some_column, spark_errors
from dv_maintenance.dml.session_time import scan_tasks
from dv_maintenance.dml.shapes import Shapes, shapes_in
from dv_maintenance.dml.source import Values, read_rows
from dv_maintenance.dml.spark_types import for_spark, spark_schema, value_type
from dv_maintenance.engine.rows.values import scalar_of
from dv_maintenance.engine.spark.arrow_table import rows_of
from dv_maintenance.errors import UsageError
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.predicate import bind
from dv_maintenance.tables.rows import DeletedRows, RowChanges, unused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.rows import RowLevelTable
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import ScanTask

# Up to this many keys are sent to every worker; beyond it Spark sorts both sides.
_BROADCAST_KEYS: Final = 4_000_000


def delete(
    table: Table,
    engine: SparkSession | Engine,
    condition: str | None = None,
    *,
    keys: DataFrame | str | None = None,
    on: Sequence[str] = (),
    dry_run: bool = False,
    max_attempts: int = 3,
) -> DmlReport:
    """Delete rows by a condition or by keys; without either, all rows.

    condition : deletes the rows for which it is true.
    keys : a DataFrame, or the path of a table, or of a Parquet, CSV or JSON file or folder. Deletes the rows whose
        values in the columns ``on`` equal those of a key; a null equals nothing.
    engine : a session, or an engine that provides one; used only if files have to be opened or the condition has to be
        analyzed. ``LocalEngine`` and ``AutoEngine`` evaluate conditions in this process, see ``dml.in_process``.

    Raises
    ------
    UsageError : both a condition and keys are given; Spark does not understand the condition; a column does not exist;
        the engine has no Spark, and keys or the condition need it.
    RefusedError : rows of a file have to be deleted but the table allows no deletion vectors; or the table may not be
        changed.
    ConflictError : other writers interfered in each of ``max_attempts`` attempts; nothing was changed.
    DamagedTableError, StorageError : a file that had to be read is damaged or unreadable.
    """
    target = row_level(table)
    if (keys is None) != (not on) or (keys is not None and condition is not None):
        problem = (
            "both a condition and keys are given" if condition is not None else "keys and their columns belong together"
        )
        raise UsageError(problem, table=table.uri, next_step="give either a condition, or keys and their columns")
    if keys is not None:
        erase = _Keys(target, engine, keys, tuple(on))
        try:
            find = again_if_lost(erase.find, erase.release)
            return run(target, "DELETE", find, max_attempts=max_attempts, dry_run=dry_run)
        finally:
            erase.release()
    matching = _Matching(target, engine, condition)
    return run(target, "DELETE", matching.find, max_attempts=max_attempts, dry_run=dry_run)


class _Matching:
    """The rows for which a condition is true."""

    def __init__(self, table: RowLevelTable, engine: SparkSession | Engine, sql: str | None) -> None:
        self._table, self._engine, self._sql = table, engine, sql

    def find(self, snapshot: Snapshot) -> Work:
        started = time.perf_counter()
        if self._sql is None:
            return _work(_whole(snapshot), _any, started, [])
        conditions = [f"({self._sql})"]
        here = predicate_here(self._engine, self._table, snapshot, self._sql)
        if here is not None:
            narrowed = self._narrowing(snapshot, here)
            return _work(self._rows_here(snapshot, here), lambda added: _any(narrowed(added)), started, conditions)
        condition = Condition.parse(self._sql, snapshot.schema.names)
        session = session_of(self._engine)
        schema = pa.schema([snapshot.schema.field(name) for name in condition.columns])
        by_partition = condition.only_about(snapshot.partition_columns)
        shapes = shapes_in(session, snapshot, [self._sql])
        with spark_errors(snapshot.schema.names):
            rows = shapes.shown(shape(session, schema)).where(self._sql)
            subqueries = self._table.row_rules(snapshot).spark_rules
            if check_condition(rows, snapshot, self._sql, subqueries=subqueries) and by_partition:
                return _work(_whole(self._partitions(session, snapshot)), self._touches(session), started, conditions)
            predicate = demanded_by(rows)
        chosen = files_that_may_match(self._table, snapshot, predicate)

        def may_match(added: Snapshot) -> bool:
            return _any(files_that_may_match(self._table, added, predicate))

        return _work(self._rows(session, chosen, condition, predicate, shapes), may_match, started, conditions)

    def _touches(self, session: SparkSession) -> Callable[[Snapshot], bool]:
        return lambda added: _any(self._partitions(session, added))

    def _partitions(self, session: SparkSession, snapshot: Snapshot) -> Snapshot:
        """The snapshot with only the partitions for which the condition is true."""
        return _in_partitions(snapshot, _matching_partitions(session, self._table, snapshot, self._sql or "true"))

    def _rows(
        self, session: SparkSession, chosen: Snapshot, condition: Condition, predicate: Predicate, shapes: Shapes
    ) -> tuple[DeletedRows, ...]:
        # A condition that names no column (EXISTS (SELECT 1), rand() < 0.5) needs one to count the rows.
        names = condition.columns or some_column(chosen.schema)
        tasks = scan_tasks(session, self._table, chosen, names)
        schema = pa.schema([chosen.schema.field(name) for name in names])
        bound = bind(predicate, schema)
        with spark_errors():
            live = live_rows(session, tasks, shapes.bytes_in(schema), self._table.storage.options, bound)
            matching = shapes.shown(live.rows).where(condition.sql)
        found = positions(matching, live.file, live.row)[0] if tasks else {}
        return deleted_rows(self._table, tasks, found)

    def _rows_here(self, snapshot: Snapshot, predicate: Predicate) -> tuple[DeletedRows, ...]:
        named = columns_in(predicate, snapshot.schema).names
        chosen = self._narrowing(snapshot, predicate)(snapshot)
        if {*named} <= {*snapshot.partition_columns}:
            return _whole(chosen)
        tasks = self._table.scan_tasks(chosen, named)
        return deleted_rows(self._table, tasks, all_positions_here(tasks, predicate, self._table.storage.options))

    def _narrowing(self, snapshot: Snapshot, predicate: Predicate) -> Callable[[Snapshot], Snapshot]:
        """Keeps the files that may hold matching rows; if partitions decide, those that hold no others."""
        named = columns_in(predicate, snapshot.schema).names
        if not {*named} <= {*snapshot.partition_columns}:
            return lambda given: files_that_may_match(self._table, given, predicate)

        def narrowed(given: Snapshot) -> Snapshot:
            some = _one_of_each_partition(given)
            rows, partition = _partition_rows(some, self._table.scan_tasks(some, named), named)
            return _in_partitions(given, true_for(rows, predicate).column(partition).to_pylist())

        return narrowed


class _Keys:
    """The rows that a table of keys names."""

    def __init__(
        self, table: RowLevelTable, engine: SparkSession | Engine, keys: DataFrame | str, on: tuple[str, ...]
    ) -> None:
        self._table, self._on = table, on
        self._engine = engine
        self._source = keys
        self._columns: list[KeyColumn] = []
        self._keys: Keys | None = None

    def release(self) -> None:
        if self._keys is not None:
            self._keys.cached.unpersist()
            self._keys = None

    def find(self, snapshot: Snapshot) -> Work:
        from pyspark.sql import functions as f

        started = time.perf_counter()
        columns = _key_columns(snapshot, self._on)
        session = session_of(self._engine)
        keys = self._of(session, columns)
        names = [column.name for column in columns]
        few = keys.counts.distinct <= _BROADCAST_KEYS
        ranged = {column.name: f"key{at}" for at, column in enumerate(columns) if column.char is None}
        chosen = self._values.narrow(self._table, snapshot, ranged)
        tasks = scan_tasks(session, self._table, chosen, names)
        schema = pa.schema([chosen.schema.field(name) for name in names])
        with spark_errors():
            live = live_rows(session, tasks, schema, self._table.storage.options)
            values = [f.col(quoted(column.name)) for column in columns]
            values = [
                value if column.char is None else f.rtrim(value) for value, column in zip(values, columns, strict=True)
            ]
            rows = live.rows.select(
                live.file, live.row, *[value.alias(f"value{at}") for at, value in enumerate(values)]
            )
            wanted = keys.rows.withColumn("number", f.monotonically_increasing_id())
            same = [f.col(f"value{at}") == f.col(f"key{at}") for at in range(len(columns))]
            matched = rows.join(f.broadcast(wanted) if few else wanted, same)
        found, hit = positions(matched, live.file, live.row, "number") if tasks and keys.counts.distinct else ({}, 0)
        work = _work(
            deleted_rows(self._table, tasks, found),
            lambda added: _any(self._values.narrow(self._table, added, ranged)),
            started,
            [f"(keys in ({', '.join(names)}))"],
        )
        return replace(work, keys=replace(keys.counts, unmatched=keys.counts.distinct - hit))

    def _of(self, session: SparkSession, columns: list[KeyColumn]) -> Keys:
        """The keys in these columns' types, which a concurrent writer may have changed."""
        if self._keys is None or columns != self._columns:
            self.release()
            options = self._table.storage.options
            source: Any = self._source
            if isinstance(source, str):
                with spark_errors():
                    source = read_rows(session, source, options, folders=False)
            if isinstance(source, tuple):
                self._keys = keys_of_files(session, source, columns, options)
            else:
                self._keys = keys_of_rows(source, columns)
            self._columns = columns
            self._values = Values(self._keys.rows, self._keys.counts.distinct)
        return self._keys


def _key_columns(snapshot: Snapshot, on: Sequence[str]) -> list[KeyColumn]:
    """Raises UsageError: a column does not exist, or is named twice."""
    columns: list[KeyColumn] = []
    for name in on:
        found = alike(name, snapshot.schema.names)
        if len(found) != 1 or found[0] in [column.name for column in columns]:
            problem = f"column {name!r} is named twice" if found else f"no column {name!r} in the table"
            raise UsageError(
                problem,
                at=snapshot,
                next_step=f"choose from {', '.join(snapshot.schema.names)}",
            )
        of_table = snapshot.schema.field(found[0])
        columns.append(KeyColumn(of_table.name, value_type(of_table), char_length(of_table)))
    return columns


def _any(snapshot: Snapshot) -> bool:
    return bool(snapshot.files.num_rows)


def _work(deleted: tuple[DeletedRows, ...], reads: Any, started: float, predicate: list[str]) -> Work:
    millis = round((time.perf_counter() - started) * 1000)
    metrics = {"executionTimeMs": millis, "scanTimeMs": millis, "rewriteTimeMs": 0}
    return Work(RowChanges(deleted), reads, {"predicate": predicate}, metrics)


def _whole(snapshot: Snapshot) -> tuple[DeletedRows, ...]:
    """All files, without opening them."""
    names = zip(snapshot.files["path"].to_pylist(), snapshot.files["dv_id"].to_pylist(), strict=True)
    return tuple(DeletedRows(FileKey(path, dv)) for path, dv in names)


def _matching_partitions(session: SparkSession, table: RowLevelTable, snapshot: Snapshot, sql: str) -> list[str]:
    """Names of the partitions for which the condition is true. Spark evaluates it on one row per partition."""
    from pyspark.sql.pandas.types import from_arrow_schema

    some = _one_of_each_partition(snapshot)
    columns = snapshot.partition_columns
    given, partition = _partition_rows(some, scan_tasks(session, table, some, columns), columns)
    known = spark_schema(given.schema)
    rows = for_spark(given, known)
    types = from_arrow_schema(known, prefer_timestamp_ntz=True)
    with spark_errors():
        partitions = as_in_catalog(rows_of(session, pa.Table.from_batches([rows]), types), given.schema)
        return [row[0] for row in partitions.where(sql).select(partition).collect()]


def _one_of_each_partition(snapshot: Snapshot) -> Snapshot:
    names = snapshot.files["partition"].combine_chunks().cast(pa.string())
    return replace(snapshot, files=snapshot.files.take(pc.index_in(names.unique(), value_set=names)))


def _partition_rows(
    snapshot: Snapshot, tasks: Sequence[ScanTask], columns: Sequence[str]
) -> tuple[pa.RecordBatch, str]:
    """For each file of the snapshot a row with the values of these partition columns, and then its partition; and the
    name of that column.
    """
    partition = unused("_dvm_partition", columns)
    schema = pa.schema([snapshot.schema.field(name) for name in columns])
    values = [
        pa.concat_arrays([_constant(task, field) for task in tasks] or [pa.nulls(0, field.type)]) for field in schema
    ]
    names = snapshot.files["partition"].combine_chunks().cast(pa.string())
    full = schema.append(pa.field(partition, pa.string()))
    return pa.RecordBatch.from_arrays([*values, names], schema=full), partition


def _constant(task: ScanTask, field: pa.Field) -> pa.Array:
    (source,) = task.sources
    return pa.repeat(scalar_of(source.constants.get(field.name), field.type, field.name), 1)


def _in_partitions(snapshot: Snapshot, names: list[str]) -> Snapshot:
    kept = pc.is_in(snapshot.files["partition"].cast(pa.string()), pa.array(names, pa.string()))
    return replace(snapshot, files=snapshot.files.filter(kept))
