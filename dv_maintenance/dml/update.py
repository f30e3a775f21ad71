"""UPDATE: deletion vectors delete the old rows, new files hold the changed ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.dml.assignments import assignments
from dv_maintenance.dml.carried import assigned, carried, check_assigned, check_rules, check_untouched, unseen
from dv_maintenance.dml.catalyst import check_condition, check_values, demanded_by, shape
from dv_maintenance.dml.condition import Condition
from dv_maintenance.dml.names import quoted
from dv_maintenance.dml.new_rows import TARGET_BYTES, held_to, scanned, spark_types
from dv_maintenance.dml.operation import DmlReport, Work, row_changes, row_level, run, session_of
from dv_maintenance.dml.prune import files_that_may_match
from dv_maintenance.dml.rows import live_rows, spark_errors
from dv_maintenance.dml.session_time import scan_tasks
from dv_maintenance.dml.shapes import shapes_in
from dv_maintenance.dml.write import write_changes
from dv_maintenance.errors import UsageError
from dv_maintenance.tables.predicate import bind
from dv_maintenance.tables.rows import row_id_name, unused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table


def update(
    table: Table,
    spark: SparkSession | SparkEngine,
    set: Mapping[str, str],
    condition: str | None = None,
    *,
    dry_run: bool = False,
    max_attempts: int = 3,
) -> DmlReport:
    """Set columns to SQL expressions over the old row, in the rows for which ``condition`` is true (all by default).

    dry_run : do everything, also compute and check the new rows, but write and commit nothing.

    Raises
    ------
    UsageError : nothing is set; Spark does not understand an expression; a column does not exist.
    RefusedError : a new row violates a constraint; a column can't be assigned to; the table allows no deletion vectors.
    ConflictError : other writers interfered in each of ``max_attempts`` attempts; nothing was changed.
    DamagedTableError, StorageError : a file that had to be read is damaged or unreadable.
    """
    target = row_level(table)
    if not set:
        raise UsageError("nothing is set", table=table.uri, next_step="name a column and its new value")

    def find(snapshot: Snapshot) -> Work:
        from pyspark.sql import functions as f

        started = time.perf_counter()
        rules, types = target.row_rules(snapshot), spark_types(snapshot.schema)
        values = assignments(snapshot, rules, set)
        parsed = Condition.parse("true" if condition is None else condition, snapshot.schema.names)
        moved = carried(snapshot.schema)
        check_rules(snapshot, rules, moved)
        hidden, texts = unseen(snapshot.schema, moved), [parsed.sql, *values.values()]
        check_assigned(snapshot, rules, hidden, values)
        check_untouched(snapshot, hidden, texts)
        session = session_of(spark)  # refusals by the log alone come first, before a session starts
        shapes = shapes_in(session, snapshot, texts, assigned(rules, moved, values))
        with spark_errors(snapshot.schema.names):
            named = pa.schema([snapshot.schema.field(name) for name in parsed.columns])
            matching = shapes.shown(shape(session, named)).where(parsed.sql)
            check_condition(matching, snapshot, parsed.sql, subqueries=rules.spark_rules)
            predicate = demanded_by(matching)
        chosen = files_that_may_match(target, snapshot, predicate)
        schema = scanned(snapshot.schema, rules)
        tasks = scan_tasks(session, target, chosen, schema.names)
        bound = bind(predicate, snapshot.schema)
        with spark_errors():
            live = live_rows(session, tasks, schema, table.storage.options, bound, carried=moved)
            rows = shapes.shown(live.rows, moved).where(parsed.sql)
            if not rules.spark_rules:
                check_values(rows, snapshot, values)
            in_spark = {name: f.col(quoted(moved.get(name, name))) for name in snapshot.schema.names}
            new = shapes.stored(rows, values, types, rules, in_spark)
            columns = [
                new.get(name, column.cast(types[name].dataType)).alias(name) for name, column in in_spark.items()
            ]
            action, old = (unused(name, schema.names) for name in ("_dvm_action", "_dvm_old"))
            before = f.struct(*[column.alias(name) for name, column in in_spark.items()]).alias(old)
            place = [f.lit("update").alias(action), f.col(live.file), f.col(live.row)]
            kept = [
                *([f.col(row_id_name(snapshot.schema))] if rules.row_ids else []),
                *([before] if rules.change_data else []),
            ]
            changed = rows.select(*place, *columns, *kept)
            changed = held_to(snapshot, rules, changed, types, f.lit(True))
        written = write_changes(
            changed,
            snapshot.schema,
            snapshot.partition_columns,
            target.row_write_tasks(snapshot, TARGET_BYTES),
            change_data=rules.change_data,
            options=table.storage.options,
            dry_run=dry_run,
        )
        count = sum(written.counts.values())
        millis = round((time.perf_counter() - started) * 1000)
        return Work(
            row_changes(table, tasks, written, dry_run=dry_run),
            lambda added: bool(files_that_may_match(target, added, predicate).files.num_rows),
            {} if condition is None else {"predicate": f"({condition})"},
            {"numUpdatedRows": count, "executionTimeMs": millis, "scanTimeMs": 0, "rewriteTimeMs": millis},
            updated=count,
        )

    return run(target, "UPDATE", find, max_attempts=max_attempts, dry_run=dry_run)
