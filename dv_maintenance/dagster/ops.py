"""Ops for jobs of one's own: delete rows, order files, restore, checkpoint, the engine's own SQL.

Each is made for one watched table, holds a slot of that table's pool as its assets do, and takes what to do from the
run's config; path and storage options stay in the code location. Its output is the report as the command line prints it
with ``--json``, its metadata say the reason first, and an observation shows the table's page how the table is then.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import dagster as dg
from pydantic import Field

from dv_maintenance.config import parse_instant
from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.observed import observed_before
from dv_maintenance.dagster.resources import engine_of
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.tables_file import WatchedTable
from dv_maintenance.service.data_version import last_data_version
from dv_maintenance.service.progress import progress_log
from dv_maintenance.tables import open_table
from dv_maintenance.tables.table import Table

if TYPE_CHECKING:
    from dv_maintenance.dml.operation import DmlReport
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan

__all__ = [
    "Checkpoint",
    "DeleteRows",
    "Done",
    "EngineSql",
    "Restore",
    "Zorder",
    "applied",
    "checkpoint_op",
    "delete_rows_op",
    "engine_sql_op",
    "restore_op",
    "run",
    "settings_of",
    "zorder_op",
]

_SPARK: Final = "spark"
_DRY_RUN: Final = "Only find out and say what would change."


class DeleteRows(dg.Config):
    """Which rows to delete: those of a condition, or those of a table of keys."""

    where: str | None = Field(default=None, description="A condition in Spark SQL; 'true' for every row.")
    keys: str | None = Field(
        default=None, description="Where the keys are: a table, or Parquet, CSV or JSON. Goes with 'on'."
    )
    on: list[str] = Field(default=[], description="The columns that the keys are for, called the same in both.")
    dry_run: bool = Field(default=False, description="Only count the rows.")


class Zorder(dg.Config):
    """By which columns to order, and where."""

    columns: list[str] = Field(description="Order rows by these, along a Z-curve; by one column it is a plain sort.")
    partitions: list[str] = Field(default=[], description="Only there, as k=v/k=v; the whole table without any.")
    target_file_size: str | None = Field(default=None, description="Such as 256MiB, instead of the table's own.")
    dry_run: bool = Field(default=False, description="Only make the plan.")


class Restore(dg.Config):
    """Which version to bring back: one of the two."""

    version: int | None = Field(default=None, description="That version.")
    timestamp: str | None = Field(default=None, description="The newest version at that time: ISO 8601 with a zone.")
    dry_run: bool = Field(default=False, description=_DRY_RUN)


class Checkpoint(dg.Config):
    """Whether to clean the log up as well."""

    clean_log: bool = Field(default=False, description="Delete what is out of the table's log retention.")
    dry_run: bool = Field(default=False, description=_DRY_RUN)


class EngineSql(dg.Config):
    """What the table's own engine is to run."""

    job: Literal["optimize", "purge", "vacuum"] = Field(description="What to run on the whole table.")
    catalog: str | None = Field(
        default=None, description="The session's catalog that has a Paimon table, or catalog.database.table."
    )


_ConfigT = TypeVar("_ConfigT", bound=dg.Config)


@dataclass(frozen=True, slots=True)
class Done:
    """``report``: the op's output. ``reason``: what happened, in a sentence. ``more``: metadata behind the report's own
    numbers. ``problems``: what reading the result back found wrong.
    """

    report: Mapping[str, Any]
    reason: str
    more: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


_Work = Callable[[dg.OpExecutionContext, Table, _ConfigT], Done]


def delete_rows_op(table: WatchedTable) -> dg.OpDefinition:
    """DELETE by a condition or by keys; config: :class:`DeleteRows`. Needs Spark. The rows' bytes stay in the files
    until a purge and a vacuum: see :func:`build_erasure_job`.
    """
    return _op(table, "delete_rows", DeleteRows, _delete_rows, "Deletes rows, by deletion vectors.")


def zorder_op(table: WatchedTable) -> dg.OpDefinition:
    """Orders the table's files; config: :class:`Zorder`."""
    return _op(table, "zorder", Zorder, _zorder, "Orders files by columns, so that filters on them skip more.")


def restore_op(table: WatchedTable) -> dg.OpDefinition:
    """Makes an older version the newest; config: :class:`Restore`. Moves no data, needs no Spark."""
    return _op(table, "restore", Restore, _restore, "Makes an older version the newest again.", spark=False)


def checkpoint_op(table: WatchedTable) -> dg.OpDefinition:
    """Sums the log up, and cleans it up; config: :class:`Checkpoint`. Needs no Spark."""
    return _op(table, "checkpoint", Checkpoint, _checkpoint, "Sums the log up for its readers.", spark=False)


def engine_sql_op(table: WatchedTable) -> dg.OpDefinition:
    """Maintenance by the table's own engine in Spark, for tables that are refused here; config: :class:`EngineSql`."""
    return _op(table, "engine_sql", EngineSql, _engine_sql, "Maintenance by the table's engine, checked by our reader.")


# -- what all of them share ----------------------------------------------------------------------------------------


def _op(
    table: WatchedTable,
    what: str,
    config: type[_ConfigT],
    work: _Work[_ConfigT],
    description: str,
    *,
    spark: bool = True,
) -> dg.OpDefinition:
    settings = settings_of(table, what, description, config.to_config_schema(), spark=spark)

    @dg.op(**settings, ins={"after": dg.In(dg.Nothing, description="What has to be done before, if anything.")})
    def op(context: dg.OpExecutionContext) -> dict[str, Any]:
        return run(context, table, lambda opened: work(context, opened, config(**context.op_config)))

    return op


def settings_of(table: WatchedTable, what: str, description: str, config: Any, *, spark: bool) -> dict[str, Any]:
    return {
        "name": naming.op_name(table, what),
        "description": description,
        "config_schema": config,
        "out": dg.Out(dict, description="The report, as the command line prints it with --json."),
        "pool": naming.pool(table),
        "tags": {naming.TABLE_TAG: table.name},
        "required_resource_keys": {_SPARK} if spark else set(),
    }


def run(context: dg.OpExecutionContext, table: WatchedTable, work: Callable[[Table], Done]) -> dict[str, Any]:
    """Do the work, and tell of it: the log, the op's metadata, the table's page."""
    from dv_maintenance.maintenance.health import health

    with in_dagster_terms(context.retry_number):
        opened = open_table(table.path, table.format, table.storage_options)
        done = work(opened)
        snapshot = opened.snapshot()
        before = observed_before(context.instance, naming.table_key(table))
        tags = {"dagster/data_version": str(last_data_version(opened, before))} if table.observe else None
    context.log.info(done.reason)
    told = metadata.of_report(done.reason, done.report) | dict(done.more)
    context.add_output_metadata(told)
    context.log_event(
        dg.AssetObservation(
            naming.table_key(table),
            metadata={"reason": told["reason"], **metadata.of_health(health(snapshot)), **metadata.of_schema(snapshot)},
            tags=tags,
        )
    )
    if done.problems:
        raise dg.Failure(f"not verified: {'; '.join(done.problems)}", metadata=told, allow_retries=False)
    return dict(done.report)


def _spark_engine(context: dg.OpExecutionContext, table: Table, why: str) -> "SparkEngine":
    from dv_maintenance.engine.spark import SparkEngine

    engine = engine_of(context.resources.spark)
    if not isinstance(engine, SparkEngine):
        raise UsageError(
            f"the {engine.name} engine {why}", table=table.uri, next_step="give the job a spark resource with Spark"
        )
    return engine


# -- the work of each ----------------------------------------------------------------------------------------------


def _delete_rows(context: dg.OpExecutionContext, table: Table, config: DeleteRows) -> Done:
    from dv_maintenance.dml.delete import delete

    if (config.where is None) == (config.keys is None):
        raise UsageError(
            "say which rows: 'where' or 'keys', not both", table=table.uri, next_step="to delete every row: where: true"
        )
    spark = _spark_engine(context, table, "does not know what a condition means")
    context.log.info("looking for the rows to delete")
    report = delete(table, spark, config.where, keys=config.keys, on=config.on, dry_run=config.dry_run)
    retried = bool(context.retry_number) or context.run.parent_run_id is not None
    keys = {} if report.keys is None else {f"keys_{name}": count for name, count in asdict(report.keys).items()}
    return Done({**report.to_json(), "retried": retried}, _told(report), keys)


def _told(report: "DmlReport") -> str:
    keys = "" if report.keys is None else f" {report.keys.told().capitalize()}."
    if report.dry_run:
        return f"{_rows(report.rows_deleted)} would be deleted; nothing was changed.{keys}"
    if report.version_after == report.version_before:
        return f"There are no such rows.{keys}"
    return (
        f"{_rows(report.rows_deleted)} deleted: {report.files_removed:,} files went whole, {report.dvs_added:,} got a "
        f"deletion vector. The rows' bytes are there until a purge and a vacuum.{keys}"
    )


def _rows(count: int | None) -> str:
    return "all rows of some files, which nobody had counted," if count is None else f"{count:,} rows"


def _zorder(context: dg.OpExecutionContext, table: Table, config: Zorder) -> Done:
    from dv_maintenance.maintenance.planning.explain import explain
    from dv_maintenance.maintenance.zorder import plan_zorder

    size = config.target_file_size
    plan = plan_zorder(table, table.snapshot(), config.columns, config.partitions, target_size=size)
    if not config.dry_run:
        return applied(context, table, plan)
    context.log.info(explain(plan))
    return Done(plan.to_json(), "Only planned; nothing was changed.", _of_plan(plan))


def _of_plan(plan: "MaintenancePlan") -> dict[str, Any]:
    """Without its reason: that comes first, and is about what came of the plan."""
    return {name: value for name, value in metadata.of_plan(plan).items() if name != "reason"}


def applied(context: dg.OpExecutionContext, table: Table, plan: "MaintenancePlan") -> Done:
    from dv_maintenance.maintenance.execution.apply import apply
    from dv_maintenance.maintenance.planning.explain import explain

    context.log.info(explain(plan))
    report = apply(table, engine_of(context.resources.spark), plan, on_progress=progress_log(context.log))
    steps = report.steps
    reason = "There was nothing to do."
    if steps:
        out, new, purged = (
            sum(getattr(step, name) for step in steps) for name in ("files_removed", "files_added", "rows_purged")
        )
        reason = f"{out:,} files were written anew as {new:,}, without their {purged:,} deleted rows."
    return Done(report.to_json(), reason, {**metadata.of_work(steps), **_of_plan(plan)}, report.problems)


def _restore(context: dg.OpExecutionContext, table: Table, config: Restore) -> Done:
    from dv_maintenance.maintenance.restore import restore

    del context
    timestamp = None if config.timestamp is None else _instant(table, config.timestamp)
    report = restore(table, version=config.version, timestamp=timestamp, dry_run=config.dry_run)
    result = report.result
    if result.dry_run:
        reason = f"Version {result.restored:,} would come back; nothing was changed."
    elif result.version_after == result.version_before:
        reason = f"The table is as in version {result.restored:,} already."
    else:
        reason = (
            f"Version {result.restored:,} is back: {result.files_restored:,} files came in, "
            f"{result.files_removed:,} went out."
        )
    return Done(report.to_json(), reason, problems=report.problems)


def _instant(table: Table, text: str) -> int:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise UsageError(f"timestamp: {error}", table=table.uri) from None


def _checkpoint(context: dg.OpExecutionContext, table: Table, config: Checkpoint) -> Done:
    from dv_maintenance.maintenance.checkpoint import checkpoint

    del context
    report = checkpoint(table, clean_log=config.clean_log, dry_run=config.dry_run)
    result = report.result
    if result.dry_run:
        reason = f"{result.log_files_expired:,} log files would go; nothing was changed."
    else:
        wrote = "was written" if result.written else "was there already"
        reason = f"The checkpoint of version {result.version:,} {wrote}; {result.log_files_deleted:,} log files went."
    cutoff = {} if result.cutoff is None else {"cutoff": dg.MetadataValue.timestamp(result.cutoff / 1000)}
    return Done(report.to_json(), reason, cutoff)


def _engine_sql(context: dg.OpExecutionContext, table: Table, config: EngineSql) -> Done:
    from dv_maintenance.maintenance.engine_sql import engine_sql

    spark = _spark_engine(context, table, "has no SQL")
    report = engine_sql(table, lambda: spark.session, config.job, catalog=config.catalog)
    reason = (
        f"The table's engine ran its {config.job}: version {report.version_before:,} became "
        f"{report.version_after:,}, checked by {report.by}."
    )
    return Done(report.to_json(), reason, problems=report.problems)
