"""Ops for custom jobs: delete rows, order files, restore, checkpoint, the engine's own SQL.

Each is made for one watched table and holds a slot of its pool, as the table's assets do. The run's config says what to
do; path and storage options stay in the code location. Its output is the report that the command line prints with
``--json``, its metadata begin with the reason, and an observation on the table's page shows the state afterwards.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

import dagster as dg
from pydantic import Field

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.internals import public
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.dagster.observed import observe_after
from dv_maintenance.dagster.resources import SparkParam, engine_of
from dv_maintenance.engine import Engine
from dv_maintenance.service import verbs
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables.table import Table

_DRY_RUN: Final = "Only report what would change."


class DeleteRows(dg.Config):
    """Which rows to delete: by a condition, or by a table of keys."""

    where: str | None = Field(default=None, description="A condition in Spark SQL; 'true' for every row.")
    keys: str | None = Field(
        default=None, description="Where the keys are: a table, or Parquet, CSV or JSON. Needs 'on'."
    )
    on: list[str] = Field(default=[], description="The key columns, named alike in both.")
    dry_run: bool = Field(default=False, description="Only count the rows.")


class Zorder(dg.Config):
    """By which columns to order, and where."""

    columns: list[str] = Field(description="The columns of the curve; one column is a plain sort.")
    partitions: list[str] = Field(default=[], description="Only these, as k=v/k=v; by default the whole table.")
    missing_ok: bool = Field(default=False, description="Accept partitions that no live file has.")
    target_file_size: str | None = Field(default=None, description="Overrides the table's own, such as 256MiB.")
    dry_run: bool = Field(default=False, description="Only make the plan.")


class Cluster(dg.Config):
    """What to cluster by the table's own columns."""

    full: bool = Field(default=False, description="Also files that were clustered by other columns.")
    target_file_size: str | None = Field(default=None, description="Overrides the table's own, such as 256MiB.")
    dry_run: bool = Field(default=False, description="Only make the plan.")


class Restore(dg.Config):
    """Which version to restore: give one of ``version`` and ``timestamp``."""

    version: int | None = Field(default=None, description="That version.")
    timestamp: str | None = Field(default=None, description="The newest version at that time: ISO 8601 with a zone.")
    dry_run: bool = Field(default=False, description=_DRY_RUN)
    vacuums_over: list[int] = Field(
        default=[], description="Versions at which vacuums began that were killed before their VACUUM END."
    )


class Checkpoint(dg.Config):
    """Whether to clean the log as well."""

    clean_log: bool = Field(default=False, description="Delete log files older than the table's log retention.")
    dry_run: bool = Field(default=False, description=_DRY_RUN)


class EngineSql(dg.Config):
    """What the table's own engine runs."""

    job: Literal["optimize", "purge", "vacuum"] = Field(description="What to run on the whole table.")
    catalog: str | None = Field(
        default=None, description="The session's catalog that has a Paimon table, or catalog.database.table."
    )


_ConfigT = TypeVar("_ConfigT", bound=dg.Config)


# From the context, the table, the run's config, and the engine if the work needs one.
_Work = Callable[[dg.OpExecutionContext, Table, _ConfigT, Callable[[], Engine]], Outcome]


@public
def delete_rows_op(table: TableSettings) -> dg.OpDefinition:
    """DELETE by a condition or by keys; config: ``DeleteRows``. Needs Spark. The rows' bytes remain in the files
    until a purge and a vacuum: see ``build_erasure_job``.
    """
    return _op(table, "delete_rows", DeleteRows, _delete_rows, "Deletes rows, by deletion vectors.")


@public
def zorder_op(table: TableSettings) -> dg.OpDefinition:
    """Orders the table's files; config: ``Zorder``."""
    return _op(table, "zorder", Zorder, _zorder, "Orders files by columns, so that filters on them skip more.")


@public
def cluster_op(table: TableSettings) -> dg.OpDefinition:
    """Clusters what is not clustered yet, by the table's own columns; config: ``Cluster``."""
    return _op(table, "cluster", Cluster, _cluster, "Clusters files by the table's own columns.")


@public
def restore_op(table: TableSettings) -> dg.OpDefinition:
    """Makes an older version the newest; config: ``Restore``. Moves no data, needs no Spark."""
    return _op(table, "restore", Restore, _restore, "Makes an older version the newest.", spark=False)


@public
def checkpoint_op(table: TableSettings) -> dg.OpDefinition:
    """Writes a checkpoint of the log, and cleans the log; config: ``Checkpoint``. Needs no Spark."""
    return _op(table, "checkpoint", Checkpoint, _checkpoint, "Writes a checkpoint of the log.", spark=False)


@public
def engine_sql_op(table: TableSettings) -> dg.OpDefinition:
    """Maintenance by the table's own engine in Spark, for tables that are refused here; config: ``EngineSql``."""
    return _op(
        table, "engine_sql", EngineSql, _engine_sql, "Maintenance by the table's engine, checked by another reader."
    )


# -- what all of them share ----------------------------------------------------------------------------------------


def _op(
    table: TableSettings,
    what: str,
    config: type[_ConfigT],
    work: _Work[_ConfigT],
    description: str,
    *,
    spark: bool = True,
) -> dg.OpDefinition:
    settings = settings_of(table, what, description, config.to_config_schema())
    settings["ins"] = {"after": dg.In(dg.Nothing, description="Ops that run before, if any.")}

    def done(context: dg.OpExecutionContext, resource: Any) -> dict[str, Any]:
        engine = lambda: engine_of(resource)  # noqa: E731
        return run(context, table, lambda opened: work(context, opened, config(**context.op_config), engine))

    def on_spark(context: dg.OpExecutionContext, spark: SparkParam) -> dict[str, Any]:
        return done(context, spark)

    def by_itself(context: dg.OpExecutionContext) -> dict[str, Any]:
        return done(context, None)

    made: dg.OpDefinition = dg.op(**settings)(on_spark if spark else by_itself)
    return made


def settings_of(table: TableSettings, what: str, description: str, config: Any) -> dict[str, Any]:
    return {
        "name": naming.op_name(table, what),
        "description": description,
        "config_schema": config,
        "out": dg.Out(dict, description="The report that the command line prints with --json."),
        "pool": naming.pool(table),
        "tags": {**table.op_tags, naming.TABLE_TAG: table.name},
    }


def run(context: dg.OpExecutionContext, table: TableSettings, work: Callable[[Table], Outcome]) -> dict[str, Any]:
    """Do the work, and show its outcome in the log, the op's metadata and the table's page."""
    with in_dagster_terms(context), shown_in(context.log):
        opened = verbs.opened(table)
        outcome = work(opened)
    context.log.info(outcome.reason)
    entries = metadata.render(outcome, names={})
    context.add_output_metadata(entries)
    observe_after(context, table, opened, more={"reason": entries["reason"]})
    if outcome.problems:
        raise dg.Failure(f"not verified: {'; '.join(outcome.problems)}", metadata=entries, allow_retries=False)
    return dict(outcome.report)


# -- the work of each ----------------------------------------------------------------------------------------------


def _delete_rows(
    context: dg.OpExecutionContext, table: Table, config: DeleteRows, engine: Callable[[], Engine]
) -> Outcome:
    outcome = verbs.delete_rows(
        table,
        engine,
        where=config.where,
        keys=config.keys,
        on=config.on,
        dry_run=config.dry_run,
    )
    # An earlier attempt of this run may have committed.
    retried = bool(context.retry_number) or context.run.parent_run_id is not None
    return replace(outcome, report={**outcome.report, "retried": retried})


def _zorder(context: dg.OpExecutionContext, table: Table, config: Zorder, engine: Callable[[], Engine]) -> Outcome:
    del context
    request = verbs.RewriteRequest(
        partitions=tuple(config.partitions),
        missing_ok=config.missing_ok,
        order_by=tuple(config.columns),
        target_file_size=config.target_file_size,
        dry_run=config.dry_run,
    )
    return verbs.rewrite(table, engine, request)


def _cluster(context: dg.OpExecutionContext, table: Table, config: Cluster, engine: Callable[[], Engine]) -> Outcome:
    del context
    request = verbs.RewriteRequest(
        cluster=True, recluster=config.full, target_file_size=config.target_file_size, dry_run=config.dry_run
    )
    return verbs.rewrite(table, engine, request)


def _restore(context: dg.OpExecutionContext, table: Table, config: Restore, engine: Callable[[], Engine]) -> Outcome:
    del context, engine
    return verbs.restore(
        table,
        version=config.version,
        timestamp=config.timestamp,
        dry_run=config.dry_run,
        vacuums_over=config.vacuums_over,
    )


def _checkpoint(
    context: dg.OpExecutionContext, table: Table, config: Checkpoint, engine: Callable[[], Engine]
) -> Outcome:
    del context, engine
    return verbs.checkpoint(table, clean_log=config.clean_log, dry_run=config.dry_run)


def _engine_sql(
    context: dg.OpExecutionContext, table: Table, config: EngineSql, engine: Callable[[], Engine]
) -> Outcome:
    del context
    return verbs.engine_sql(table, engine, config.job, catalog=config.catalog)
