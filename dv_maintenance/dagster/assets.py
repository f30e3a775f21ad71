"""One table as Dagster sees it: the table itself, observed, and what keeps it in shape below it.

``<table>`` is an observable source asset. Its data version is the last version that changed what a query returns, so
maintenance wakes nobody downstream. ``<table>/dv/optimize``, ``dv/vacuum`` and ``dv/manifest`` are one op each, in the
table's pool from the plan to the last commit; they call ``dv_maintenance.maintenance`` and decide nothing. Where the
table says which ``partitions`` may be chosen, ``dv/optimize`` has them, and works on the chosen ones; a run that names
none works on the whole table.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

import warnings
from collections.abc import Iterable, Iterator
from datetime import timedelta

import dagster as dg
from packaging.version import Version

from dv_maintenance.dagster import metadata, naming, partitions
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.observed import observed_before
from dv_maintenance.dagster.resources import engine_of
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.maintenance.tables_file import Job, WatchedTable
from dv_maintenance.service.data_version import last_data_version
from dv_maintenance.service.partitions import by_key, chosen_policy, describe, label
from dv_maintenance.service.progress import progress_log
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.tables.registry import known_format
from dv_maintenance.tables.table import Table

try:
    from dagster import FreshnessPolicy
except ImportError:  # dagster 1.11
    from dagster.preview.freshness import FreshnessPolicy

__all__ = ["GROUP", "build_dv_assets"]

GROUP = "dv_maintenance"
# What Dagster's page calls a format.
# The resource that rewrites run on: a SparkResource, or whatever else has a `spark_session`.
_SPARK = "spark"
# Dagster's tag of a run for one partition; a run over a range has none.
_PARTITION_TAG = "dagster/partition"
# Before 1.12.20 Dagster can't record that a partitioned asset was made for no partition: the run fails, its work done.
_RECORDS_WHOLE_TABLE = Version(dg.__version__) >= Version("1.12.20")


def build_dv_assets(tables: Iterable[WatchedTable], *, group_name: str = GROUP) -> list[dg.AssetsDefinition]:
    """The assets of each table, one for itself and one for each of its ``jobs``. Opens none of them: a table need not
    exist yet.

    Needs a resource ``spark``. Ops of one table share a pool. A table with ``observe: false`` gets no asset of its own:
    the location has one of that key already.
    """
    with warnings.catch_warnings():
        # `multi_observable_source_asset`: unlike its older sibling it takes specs, with owners.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return [asset for table in tables for asset in _assets(table, group_name)]


def _assets(table: WatchedTable, group: str) -> Iterator[dg.AssetsDefinition]:
    if table.observe:
        yield _observed(table, group)
    builders = {"optimize": _optimize, "vacuum": _vacuum, "manifest": _manifest}
    yield from (build(table, group) for job, build in builders.items() if job in table.jobs)


def _open(table: WatchedTable) -> Table:
    return open_table(table.path, table.format, table.storage_options)


def _kinds(format: str | None) -> set[str] | None:
    known = known_format(format)
    return {known.kind} if known is not None and known.kind else None


def _observed(table: WatchedTable, group: str) -> dg.AssetsDefinition:
    key = naming.table_key(table)
    spec = dg.AssetSpec(
        key,
        group_name=group,
        description="The table. Its data version is the last version that changed what a query returns.",
        metadata={"dagster/uri": table.path},
        # Of a table that nobody has looked at yet the format is not known unless it was given.
        kinds=_kinds(table.format),
    )

    def observe(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        from dv_maintenance.maintenance.health import health

        with in_dagster_terms(context.retry_number):
            opened = _open(table)
            snapshot = opened.snapshot()
            state = health(snapshot)
            version = last_data_version(opened, observed_before(context.instance, key))
            missing = partitions.missing_partitions(table, snapshot, context.instance)
        for request in missing:
            context.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        yield dg.ObserveResult(
            asset_key=key,
            metadata=metadata.of_health(state) | metadata.of_schema(snapshot),
            data_version=dg.DataVersion(str(version)),
        )

    made: dg.AssetsDefinition = dg.multi_observable_source_asset(name=naming.op_name(table, "observe"), specs=[spec])(
        observe
    )
    return made


def _optimize(table: WatchedTable, group: str) -> dg.AssetsDefinition:
    description = "Rewrites files whose deleted rows, or whose smallness, cost more than they are worth."
    if table.partitions is not None:
        description = f"{description} {describe(table.partitions)}"

    @dg.multi_asset(
        name=naming.op_name(table, "optimize"),
        specs=[_spec(table, "optimize", group, description)],
        pool=naming.pool(table),
        required_resource_keys={_SPARK},
        backfill_policy=partitions.backfill_policy(table),
    )
    def optimize(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        from dv_maintenance.maintenance.execution.apply import apply
        from dv_maintenance.maintenance.health import health

        keys = _chosen(context)
        if keys and _PARTITION_TAG not in context.run.tags:
            context.instance.add_run_tags(context.run.run_id, {partitions.PARTITIONS_TAG: label(keys)})
        with in_dagster_terms(context.retry_number):
            opened = _open(table)
            plan = _plan(context, table, opened.snapshot(), keys)
            report = None
            if plan is not None:
                engine = engine_of(context.resources.spark)
                report = apply(opened, engine, plan, on_progress=progress_log(context.log))
            after = health(opened.snapshot())
            steps = report.steps if report else ()
            per_key = by_key(table.partitions, keys, steps, after) if table.partitions is not None else {}
        for key, (done, now) in per_key.items():
            context.add_asset_metadata(metadata.of_partition(done, now), partition_key=key)
        return dg.MaterializeResult(
            metadata=metadata.of_run(plan, report, after, per_partition=bool(keys)),
            data_version=dg.DataVersion(str(after.version)),
        )

    return optimize


def _plan(
    context: dg.AssetExecutionContext, table: WatchedTable, snapshot: Snapshot, keys: list[str]
) -> MaintenancePlan | None:
    """What the run will do, said in its log first. ``None``: no live file is in the chosen partitions."""
    from dv_maintenance.maintenance.planning.explain import explain
    from dv_maintenance.maintenance.planning.plan import build_plan

    if table.partitions is not None and not keys and not _RECORDS_WHOLE_TABLE:
        raise UsageError(
            f"Dagster {dg.__version__} has no runs of a partitioned asset on the whole table",
            table=table.path,
            next_step="choose partitions, or install dagster 1.12.20 or newer",
        )
    policy = chosen_policy(table, snapshot, keys) if keys else table.policy
    if policy is None:
        context.log.info("nothing to do: no live file is in the chosen partitions")
        return None
    plan = build_plan(snapshot, policy)
    context.log.info(explain(plan))
    return plan


def _chosen(context: dg.AssetExecutionContext) -> list[str]:
    """The Dagster partitions of this run; empty: the whole table."""
    return list(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else []


def _vacuum(table: WatchedTable, group: str) -> dg.AssetsDefinition:
    description = "Deletes data and deletion vector files that no version inside the retention needs."

    @dg.multi_asset(
        name=naming.op_name(table, "vacuum"),
        specs=[_spec(table, "vacuum", group, description)],
        pool=naming.pool(table),
    )
    def vacuum(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        from dv_maintenance.maintenance.vacuum import vacuum as run

        with in_dagster_terms(context.retry_number):
            opened = _open(table)
            known = _data_version(context, table, opened)
            report = run(opened, retention=table.policy.retention, clones=table.policy.clones, guard=table.policy.guard)
            if known is not None and report.version_files:
                # Of versions that are gone nobody can tell any more whether they changed data.
                _observe_at(context, table, opened.snapshot(), known)
        return dg.MaterializeResult(metadata=metadata.of_vacuum(report))

    return vacuum


def _data_version(context: dg.AssetExecutionContext, table: WatchedTable, opened: Table) -> tuple[int, int] | None:
    """The newest version, and the data version that goes with it or, of a table that is written to, with a newer one;
    ``None``: it is for somebody else to say.
    """
    if not table.observe:
        return None
    version = opened.version()
    return version, last_data_version(opened, observed_before(context.instance, naming.table_key(table)))


def _observe_at(
    context: dg.AssetExecutionContext, table: WatchedTable, snapshot: Snapshot, known: tuple[int, int]
) -> None:
    """``known``: of :func:`_data_version`. Whoever looks next goes on from there, however new the snapshot is."""
    from dv_maintenance.maintenance.health import health

    told = metadata.of_health(health(snapshot)) | metadata.of_schema(snapshot) | {"version": known[0]}
    tags = {"dagster/data_version": str(known[1])}
    context.log_event(dg.AssetObservation(naming.table_key(table), metadata=told, tags=tags))


def _manifest(table: WatchedTable, group: str) -> dg.AssetsDefinition:
    description = (
        "Manifests for readers that know no deletion vectors. Those that the policy left alone are purged first."
    )

    @dg.multi_asset(
        name=naming.op_name(table, "manifest"),
        specs=[_spec(table, "manifest", group, description)],
        pool=naming.pool(table),
        required_resource_keys={_SPARK},
    )
    def manifest(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        from dv_maintenance.maintenance.manifest import write_manifests

        with in_dagster_terms(context.retry_number):
            report = write_manifests(_open(table), engine_of(context.resources.spark), purge_first=True)
        return dg.MaterializeResult(metadata=metadata.of_manifest(report))

    return manifest


def _spec(table: WatchedTable, job: Job, group: str, description: str) -> dg.AssetSpec:
    """Downstream of the table, behind ``optimize`` where the table has that job: files that it takes out of use are
    vacuum's business, and manifests are written of what it leaves.
    """
    behind_optimize = job != "optimize" and "optimize" in table.jobs
    after = naming.job_key(table, "optimize") if behind_optimize else naming.table_key(table)
    within = table.policy.checks.maintained_within
    return dg.AssetSpec(
        naming.job_key(table, job),
        deps=[after],
        group_name=group,
        description=description,
        kinds={"python" if job == "vacuum" else "spark"},
        metadata={"dagster/uri": table.path},
        partitions_def=partitions.partitions_def(table) if job == "optimize" else None,
        freshness_policy=None
        if within is None
        else FreshnessPolicy.time_window(fail_window=timedelta(milliseconds=within)),
    )
