"""Backfills of the partitions that have work now: a job that launches one for each table with ``partitions``."""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import dagster as dg

from dv_maintenance.dagster import metadata, naming, partitions
from dv_maintenance.dagster.active_runs import active_runs, working_on
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.dagster.internals import PartitionBackfill, make_new_backfill_id, public
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.service import verbs
from dv_maintenance.service.checks import due_plan
from dv_maintenance.service.partitions import due_keys
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.tables.table import Table
from dv_maintenance.units import count

_Context = dg.OpExecutionContext | dg.AssetExecutionContext
# Partitions without work that one inspection of a table records: up to half a minute with SQLite.
_MAX_RECORDED = 1000


@public
def build_dv_backfills(
    tables: Iterable[TableSettings], *, name: str = "dv_backfills", tags: Mapping[str, str] | None = None
) -> dg.JobDefinition:
    """A job that launches a backfill of ``optimize`` for each table with ``partitions``, over exactly those that have
    work under the policy now. It needs no Spark, and launches none for a table that another run or backfill works on.
    Its config names the tables; by default all.

    If a table fails, the others continue, and the run fails at the end.

    Parameters
    ----------
    tags
        of its runs.
    """
    chosen = {table.name: table for table in tables if table.partitions is not None and "optimize" in table.jobs}

    @dg.op(
        name=f"{name}_op",
        config_schema={"tables": dg.Field([str], default_value=list(chosen))},
        description="Launches a backfill for each table whose partitions have work.",
    )
    def backfills(context: dg.OpExecutionContext) -> None:
        names = context.op_config["tables"]
        unknown = [each for each in names if each not in chosen]
        if unknown:
            raise dg.Failure(
                f"no tables with partitions: {', '.join(unknown)}. There are {', '.join(chosen)}", allow_retries=False
            )
        failed: dict[str, str] = {}
        rows = []
        for table in (chosen[each] for each in names):
            try:
                with shown_in(context.log):
                    said = _backfill(context, table)
                context.log.info("%s: %s", table.name, said)
            except (DvMaintenanceError, OSError) as error:
                said = failed[table.name] = str(error)
                context.log.error("%s: %s", table.name, said)  # noqa: TRY400 (no traceback for what the error explains)
            rows.append({"table": table.name, "backfill": said})
        context.add_output_metadata({"backfills": metadata.table_of(rows)})
        if failed:
            what = f"{len(failed)} of {count(len(rows), 'table')} failed: {', '.join(failed)}"
            raise dg.Failure(what, metadata=failed, allow_retries=False)

    @dg.job(
        name=name,
        executor_def=dg.in_process_executor,
        tags=tags,
        description="Backfills the partitions that have work now, and no others. Each backfill starts runs of its own.",
    )
    def job() -> None:
        backfills()

    return job


def _backfill(context: dg.OpExecutionContext, table: TableSettings) -> str:
    """Launch it if there is work, and say what was done."""
    opened = verbs.opened(table)
    due = keep_in_step(context, table, opened, opened.snapshot())
    if due is None:
        return f"{working_on(table, active_runs(context.instance)) or 'a run'} is working on it"
    definition, graph = partitions.partitions_def(table), asset_graph(context)
    assert definition is not None
    known = definition.get_partition_keys(dynamic_partitions_store=context.instance)
    keys = [key for key in known if key in due]
    outside = "" if due <= set(keys) else "; files in no partition have work, too: a run over the whole table does it"
    if not keys or graph is None:
        return f"no partition has work{outside}"
    backfill = PartitionBackfill.from_asset_partitions(
        backfill_id=make_new_backfill_id(),
        asset_graph=graph,
        partition_names=keys,
        asset_selection=[naming.job_key(table, "optimize")],
        backfill_timestamp=time.time(),
        tags=dict(table.run_tags),
        dynamic_partitions_store=context.instance,
        all_partitions=False,
        title=f"{table.name}: {count(len(keys), 'partition')} with work",
        description=None,
        run_config=None,
    )
    context.instance.add_backfill(backfill)
    return f"backfill {backfill.backfill_id} of {count(len(keys), 'partition')}{outside}"


def keep_in_step(
    context: _Context, table: TableSettings, opened: Table, snapshot: Snapshot
) -> AbstractSet[str | None] | None:
    """Dagster's partitions, and what it knows of those without work, as a tick of the sensor does it. The keys of the
    partitions with work; ``None`` while something else works on the table.
    """
    instance = context.instance
    for new in partitions.missing_partitions(table, snapshot, instance):
        instance.add_dynamic_partitions(new.partitions_def_name, list(new.partition_keys))
    working = working_on(table, active_runs(instance))
    if working is not None and working.id != context.run.run_id:
        return None
    for gone in partitions.gone_partitions(table, snapshot, instance):
        for key in gone.partition_keys:
            instance.delete_dynamic_partition(gone.partitions_def_name, key)
    plan = due_plan(table, opened, snapshot, lambda now: reads_downstream(instance, asset_graph(context), table, now))
    due = frozenset[str | None]() if plan is None else due_keys(table, snapshot, plan)
    for event in partitions.nothing_to_do(table, snapshot, due, instance, _MAX_RECORDED):
        instance.report_runless_asset_event(event)
    return due
