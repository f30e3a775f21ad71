"""One table as Dagster sees it: the table itself, observed, and what keeps it in shape below it.

``<table>`` is an observable source asset. Its data version is the last version that changed what a query returns, so
maintenance wakes nobody downstream. ``<table>/dv/optimize``, ``dv/vacuum`` and ``dv/manifest`` are graph assets; their
ops call ``dv_maintenance.maintenance`` and decide nothing.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.resources import engine_of
from dv_maintenance.dagster.state import last_data_version
from dv_maintenance.maintenance.tables_file import Job, WatchedTable
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import Table

__all__ = ["GROUP", "build_dv_assets"]

GROUP = "dv_maintenance"
# The resource that rewrites run on: a SparkResource, or whatever else has a `spark_session`.
_SPARK = "spark"

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
    def observe() -> dg.ObserveResult:
        from dv_maintenance.maintenance.health import health

        with in_dagster_terms(retry_number=None):
            opened = _open(table)
            state = health(opened.snapshot())
            version = last_data_version(opened)
        return dg.ObserveResult(metadata=metadata.of_health(state), data_version=dg.DataVersion(str(version)))

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
        pool=naming.pool(table),
    )
    def plan(context: dg.OpExecutionContext) -> dict[str, Any]:
        from dv_maintenance.maintenance.plan import build_plan

        with in_dagster_terms(context.retry_number):
            return build_plan(_open(table).snapshot(), table.policy).to_json()

    @dg.op(
        name=naming.op_name(table, "optimize"),
        description="Runs the plan on Spark.",
        out=dg.Out(dg.Nothing),
        pool=naming.pool(table),
        required_resource_keys={_SPARK},
    )
    def optimize(context: dg.OpExecutionContext, plan: dict[str, Any]) -> dg.MaterializeResult[None]:
        from dv_maintenance.maintenance.apply import apply
        from dv_maintenance.maintenance.steps import MaintenancePlan

        with in_dagster_terms(context.retry_number):
            todo = MaintenancePlan.from_json(plan)
            report = apply(_open(table), engine_of(context.resources.spark), todo)
        return dg.MaterializeResult(
            metadata=metadata.of_plan(todo) | metadata.of_apply(report),
            data_version=dg.DataVersion(str(report.version_after)),
        )

    return _graph_asset(
        table,
        group,
        "optimize",
        lambda start: optimize(plan(start)),
        after=naming.table_key(table),
        description="Rewrites files whose deleted rows, or whose smallness, cost more than they are worth.",
    )


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
    )
    return decorate(compose)
