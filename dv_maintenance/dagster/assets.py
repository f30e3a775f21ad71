"""One table as Dagster sees it: the table itself, observed, and what keeps it in shape below it.

``<table>`` is an observable source asset. Its data version is the last version that changed what a query returns, so
maintenance wakes nobody downstream. ``<table>/dv/optimize``, ``dv/vacuum`` and ``dv/manifest`` are graph assets; their
ops call ``dv_maintenance.maintenance`` and decide nothing. Where the table says which ``partitions`` may be chosen,
``dv/optimize`` has them, and works on the chosen ones; a run that names none works on the whole table.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg
from packaging.version import Version

from dv_maintenance.dagster import metadata, naming, partitions
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.resources import engine_of
from dv_maintenance.dagster.state import last_data_version
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.tables_file import Job, WatchedTable
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import Table

__all__ = ["GROUP", "build_dv_assets"]

GROUP = "dv_maintenance"
# The resource that rewrites run on: a SparkResource, or whatever else has a `spark_session`.
_SPARK = "spark"
# Dagster's tag of a run for one partition; a run over a range has none.
_PARTITION_TAG = "dagster/partition"
# Before 1.13 Dagster can't record that a partitioned asset was made for no partition: the run fails, its work done.
_RECORDS_WHOLE_TABLE = Version(dg.__version__) >= Version("1.13")

Asset = dg.AssetsDefinition | dg.SourceAsset


def build_dv_assets(tables: Iterable[WatchedTable], *, group_name: str = GROUP) -> list[Asset]:
    """The assets of each table. Opens none of them: a table need not exist yet.

    Needs a resource ``spark``. Ops of one table share a pool.
    """
    return [asset for table in tables for asset in _assets(table, group_name)]


def _assets(table: WatchedTable, group: str) -> list[Asset]:
    return [_observed(table, group), _optimize(table, group), _vacuum(table, group), _manifest(table, group)]


def _open(table: WatchedTable) -> Table:
    return open_table(table.path, table.format, table.storage_options)


def _observed(table: WatchedTable, group: str) -> Asset:
    def observe(context: dg.AssetExecutionContext) -> dg.ObserveResult:
        from dv_maintenance.maintenance.health import health

        with in_dagster_terms(retry_number=None):
            opened = _open(table)
            snapshot = opened.snapshot()
            state = health(snapshot)
            version = last_data_version(opened)
            missing = partitions.missing_partitions(table, snapshot, context.instance)
        for request in missing:
            context.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        return dg.ObserveResult(
            metadata=metadata.of_health(state) | metadata.of_schema(snapshot),
            data_version=dg.DataVersion(str(version)),
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        decorate = dg.observable_source_asset(
            key=naming.table_key(table),
            group_name=group,
            description="The table. Its data version is the last version that changed what a query returns.",
            metadata={"dagster/uri": table.path},
            tags={"dagster/kind/deltalake": ""} if table.format in {None, "delta"} else None,
        )
        return decorate(observe)


def _optimize(table: WatchedTable, group: str) -> Asset:
    @dg.op(
        name=naming.op_name(table, "plan"),
        description="Plans from the table's log, without Spark.",
        ins={"table": dg.In(dg.Nothing)},
        out=dg.Out(description="The plan; null where no live file is in the chosen partitions."),
        pool=naming.pool(table),
    )
    def plan(context: dg.AssetExecutionContext) -> dict[str, Any] | None:
        from dv_maintenance.maintenance.plan import build_plan

        keys = _chosen(context)
        if keys and _PARTITION_TAG not in context.run.tags:
            context.instance.add_run_tags(context.run.run_id, {partitions.PARTITIONS_TAG: partitions.label(keys)})
        with in_dagster_terms(context.retry_number):
            if table.partitions is not None and not keys and not _RECORDS_WHOLE_TABLE:
                raise UsageError(
                    f"Dagster {dg.__version__} has no runs of a partitioned asset on the whole table",
                    table=table.path,
                    next_step="choose partitions, or install dagster 1.13 or newer",
                )
            snapshot = _open(table).snapshot()
            policy = partitions.chosen_policy(table, snapshot, keys) if keys else table.policy
            if policy is None:
                context.log.info("nothing to do: no live file is in the chosen partitions")
                return None
            todo = build_plan(snapshot, policy)
        context.add_output_metadata(metadata.of_plan(todo))
        return todo.to_json()

    @dg.op(
        name=naming.op_name(table, "optimize"),
        description="Runs the plan on Spark.",
        out=dg.Out(dg.Nothing),
        pool=naming.pool(table),
        required_resource_keys={_SPARK},
    )
    def optimize(context: dg.AssetExecutionContext, plan: dict[str, Any] | None) -> dg.MaterializeResult[None]:
        from dv_maintenance.maintenance.apply import apply
        from dv_maintenance.maintenance.health import health
        from dv_maintenance.maintenance.steps import MaintenancePlan

        keys = _chosen(context)
        with in_dagster_terms(context.retry_number):
            opened = _open(table)
            todo = None if plan is None else MaintenancePlan.from_json(plan)
            report = None if todo is None else apply(opened, engine_of(context.resources.spark), todo)
            after = health(opened.snapshot())
            per_key = partitions.of_partitions(table, keys, report, after)
        for key, entries in per_key.items():
            context.add_asset_metadata(entries, partition_key=key)
        return dg.MaterializeResult(
            metadata=metadata.of_run(todo, report, after, per_partition=bool(keys)),
            data_version=dg.DataVersion(str(after.version)),
        )

    description = "Rewrites files whose deleted rows, or whose smallness, cost more than they are worth."
    return _graph_asset(
        table,
        group,
        "optimize",
        lambda start: optimize(plan(start)),
        after=naming.table_key(table),
        description=description
        if table.partitions is None
        else f"{description} {partitions.describe(table.partitions)}",
        partitions_def=partitions.partitions_def(table),
        backfill_policy=partitions.backfill_policy(table),
    )


def _chosen(context: dg.AssetExecutionContext) -> list[str]:
    """The Dagster partitions of this run; empty: the whole table."""
    return list(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else []


def _vacuum(table: WatchedTable, group: str) -> Asset:
    @dg.op(
        name=naming.op_name(table, "vacuum"),
        description="Deletes files that no version inside the retention needs.",
        ins={"optimized": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        pool=naming.pool(table),
    )
    def vacuum(context: dg.OpExecutionContext) -> dg.MaterializeResult[None]:
        from dv_maintenance.maintenance.vacuum import vacuum as run

        with in_dagster_terms(context.retry_number):
            report = run(_open(table), retention=table.policy.retention)
        return dg.MaterializeResult(metadata=metadata.of_vacuum(report))

    return _graph_asset(
        table,
        group,
        "vacuum",
        vacuum,
        after=naming.job_key(table, "optimize"),
        description="Deletes data and deletion vector files that no version inside the retention needs.",
    )


def _manifest(table: WatchedTable, group: str) -> Asset:
    @dg.op(
        name=naming.op_name(table, "manifest"),
        description="Writes symlink manifests; deletion vectors that the policy left alone are purged for it.",
        ins={"optimized": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        pool=naming.pool(table),
        required_resource_keys={_SPARK},
    )
    def manifest(context: dg.OpExecutionContext) -> dg.MaterializeResult[None]:
        from dv_maintenance.maintenance.manifest import write_manifests

        with in_dagster_terms(context.retry_number):
            report = write_manifests(_open(table), engine_of(context.resources.spark), purge_first=True)
        return dg.MaterializeResult(metadata=metadata.of_manifest(report))

    return _graph_asset(
        table,
        group,
        "manifest",
        manifest,
        after=naming.job_key(table, "optimize"),
        description="Manifests for readers that know no deletion vectors.",
    )


def _graph_asset(
    table: WatchedTable,
    group: str,
    job: Job,
    body: Callable[[Any], Any],
    *,
    after: dg.AssetKey,
    description: str,
    partitions_def: dg.PartitionsDefinition | None = None,
    backfill_policy: dg.BackfillPolicy | None = None,
) -> dg.AssetsDefinition:
    """A graph asset over ops, downstream of ``after`` without reading it."""

    def compose(start: Any) -> Any:
        return body(start)

    decorate = dg.graph_asset(
        key=naming.job_key(table, job),
        ins={"start": dg.AssetIn(key=after, dagster_type=dg.Nothing)},
        group_name=group,
        description=description,
        kinds={"spark"} if job != "vacuum" else {"python"},
        metadata={"dagster/uri": table.path},
        partitions_def=partitions_def,
        backfill_policy=backfill_policy,
    )
    return decorate(compose)
