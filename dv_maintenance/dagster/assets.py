"""One table in Dagster: an observed asset for the table itself, and maintenance assets below it.

``<table>`` is an observable source asset. Its data version is the last version that changed what a query returns, so
maintenance triggers nothing downstream. ``optimize``, ``vacuum`` and ``manifest`` are one op each. It
holds a slot of the table's pool from the plan to the last commit, and runs a verb of ``dv_maintenance.service``. If the
table has ``partitions``, ``optimize`` is partitioned and works on the chosen ones; a run without partitions works on
the whole table.
"""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import dagster as dg
from packaging.version import Version

from dv_maintenance.dagster import metadata, naming, nodes, partitions
from dv_maintenance.dagster.backfills import keep_in_step
from dv_maintenance.dagster.checks import asked_of, check_specs, checked_after, evaluated
from dv_maintenance.dagster.collector import expect_definitions
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.internals import public
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.dagster.observed import data_version_of, observe_after, observed_before
from dv_maintenance.dagster.resources import engine_of
from dv_maintenance.dagster.run_config import DRY_RUN, ManifestRun, OptimizeRun, VacuumRun
from dv_maintenance.errors import UsageError
from dv_maintenance.service import verbs
from dv_maintenance.service.checks import PARTITIONS, Finding
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.partitions import describe, label
from dv_maintenance.service.tables_file import Job, TableSettings
from dv_maintenance.tables.registry import detect_on_disk, known_format
from dv_maintenance.units import format_duration

try:
    from dagster import FreshnessPolicy
except ImportError:  # dagster 1.11
    from dagster.preview.freshness import FreshnessPolicy

GROUP = "dv_maintenance"
# The resource that rewrites run on: a SparkResource, or another one with a `spark_session`.
_SPARK = frozenset({"spark"})
# Partitions that a run over the whole table records: up to half a minute with SQLite.
_MAX_RECORDED = 1000
# Dagster's tag of a run for one partition; a run over a range has none.
_PARTITION_TAG = "dagster/partition"
# Before 1.12.20 Dagster can't record a run of a partitioned asset without a partition: the run fails after its work.
_RECORDS_WHOLE_TABLE = Version(dg.__version__) >= Version("1.12.20")


@public
def build_dv_assets(
    tables: Iterable[TableSettings], *, group_name: str = GROUP, retry_policy: dg.RetryPolicy | None = None
) -> list[dg.AssetsDefinition]:
    """The assets of each table, one for itself and one for each of its ``jobs``. Opens no table: it need not exist yet.

    Needs a resource ``spark``. Ops of one table share a pool. The asset of a table has its checks. A table with
    ``observe: false`` gets none: the location has one of that key already; see ``build_dv_checks``.

    Parameters
    ----------
    group_name
        the group of tables without a ``group_name`` of their own.
    retry_policy
        of the ops that maintain them; by default transient errors alone are retried, three times.
    """
    tables = list(tables)
    expect_definitions(len(tables))
    with warnings.catch_warnings():
        # Of assets that are observed only.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return [asset for table in tables for asset in _assets(table, group_name, retry_policy)]


class _Shared(NamedTuple):
    """What the assets of one table share, made once: thousands of tables are loaded at a time."""

    group: str
    about: dict[str, Any]
    pool: str
    retries: dg.RetryPolicy | None


def _assets(table: TableSettings, group: str, retries: dg.RetryPolicy | None) -> Iterator[dg.AssetsDefinition]:
    shared = _Shared(table.group_name or group, _about(table), naming.pool(table), retries)
    if table.observe:
        yield _observed(table, shared)
    builders = {"optimize": _optimize, "vacuum": _vacuum, "manifest": _manifest}
    yield from (build(table, shared) for job, build in builders.items() if job in table.jobs)


def _kinds(table: TableSettings) -> set[str] | None:
    """The format that its settings name or, on local disk, its folder shows. No table elsewhere is looked at."""
    known = known_format(table.format) or (detect_on_disk(table.path) if table.path else None)
    return {known.kind} if known is not None and known.kind else None


def _observed(table: TableSettings, shared: _Shared) -> dg.AssetsDefinition:
    key = naming.table_key(table)
    spec = dg.AssetSpec(
        key,
        group_name=shared.group,
        description=f"The table {table.name}. Its data version is the last version that changed what a query returns.",
        owners=list(table.owners),
        tags=dict(table.tags),
        metadata=shared.about,
        kinds=_kinds(table),
        # By a run that only evaluates checks.
        skippable=True,
    )

    def observe(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult | dg.AssetCheckResult]:
        open_once = cache(lambda: verbs.opened(table))
        findings: list[Finding] = []
        asked = asked_of(context)
        # First, since they also tell about a table that can't be read.
        for finding, result in evaluated(context, table, asked, open_once):
            findings.append(finding)
            yield result
        if key not in context.selected_asset_keys:
            return
        with in_dagster_terms(context), shown_in(context.log):
            opened = open_once()
            snapshot = opened.snapshot()
            report = verbs.report_table(table, opened, snapshot, lambda: observed_before(context.instance, key))
            if table.partitions is not None:
                keep_in_step(context, table, opened, snapshot)
        findings += checked_after(context.op_execution_context, table, opened, asked)
        yield dg.ObserveResult(
            asset_key=key,
            metadata=metadata.of_table(report) | metadata.of_findings(findings),
            data_version=dg.DataVersion(data_version_of(context.instance, key, report.data_version)),
        )

    return nodes.observable(observe, name=naming.op_name(table, "observe"), spec=spec, checks=check_specs(table))


def _optimize(table: TableSettings, shared: _Shared) -> dg.AssetsDefinition:
    description = f"Rewrites files of {table.name} with too many deleted rows, and merges small ones."
    if table.partitions is not None:
        status = f"`{naming.table_key(table).to_user_string()}`, check `{PARTITIONS}`"
        description = (
            f"{description} {describe(table.partitions)} {partitions.observe_first(table)}\n\nA green partition was "
            f"optimized or had nothing to do at least once; which have work now, the table says: {status}."
        )

    def optimize(context: dg.AssetExecutionContext, spark: Any) -> Iterator[dg.MaterializeResult[None]]:
        config = OptimizeRun(**context.op_execution_context.op_config)
        keys = _chosen(context)
        if keys and _PARTITION_TAG not in context.run.tags:
            context.instance.add_run_tags(context.run.run_id, {partitions.PARTITIONS_TAG: label(keys)})
        with in_dagster_terms(context), shown_in(context.log):
            if table.partitions is not None and not keys and not _RECORDS_WHOLE_TABLE:
                raise UsageError(
                    f"Dagster {dg.__version__} has no runs of a partitioned asset on the whole table",
                    table=table.place,
                    next_step=" ".join(
                        ["choose partitions, or install dagster 1.12.20 or newer.", partitions.observe_first(table)]
                    ).rstrip(),
                )
            opened = verbs.opened(table)
            outcome = verbs.optimize(
                table,
                opened,
                lambda: engine_of(spark),
                keys,
                downstream=lambda now: reads_downstream(context.instance, asset_graph(context), table, now),
                changes=config.policy,
                request=verbs.RewriteRequest(purge=config.purge, missing_ok=config.missing_ok, dry_run=config.dry_run),
            )
        if config.dry_run:
            _planned(context, table, "optimize", outcome, keys)
            return
        observe_after(context.op_execution_context, table, opened)
        found = list(outcome.partitions.items())
        for key, of_key in found if keys else found[-_MAX_RECORDED:]:
            entries = metadata.of_partition(of_key)
            if keys:
                context.add_asset_metadata(entries, partition_key=key)
            else:
                # A run over the whole table has no partitions: without these, no partition would turn green.
                of_table, place = naming.job_key(table, "optimize"), partitions.as_key(table, key)
                context.log_event(dg.AssetMaterialization(of_table, partition=place, metadata=entries))
        yield dg.MaterializeResult(
            metadata=metadata.render(outcome),
            data_version=dg.DataVersion(str(outcome.numbers["version"])),
        )

    policy = partitions.backfill_policy(table)
    return _job(optimize, table, "optimize", shared, description, OptimizeRun, _SPARK, backfill_policy=policy)


def _chosen(context: dg.AssetExecutionContext) -> list[str]:
    """The Dagster partitions of this run; empty: the whole table."""
    return list(context.partition_keys) if context.has_partition_key or context.has_partition_key_range else []


def _vacuum(table: TableSettings, shared: _Shared) -> dg.AssetsDefinition:
    description = f"Deletes data and deletion vector files of {table.name} that no version inside the retention needs."

    def vacuum(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        config = VacuumRun(**context.op_execution_context.op_config)
        key = naming.table_key(table)
        with in_dagster_terms(context), shown_in(context.log):
            opened = verbs.opened(table)
            before = lambda: observed_before(context.instance, key)  # noqa: E731
            outcome, after = verbs.vacuum_by_policy(
                table,
                opened,
                before,
                config.guards(),
                allow_short_retention=config.allow_short_retention,
                dry_run=config.dry_run,
            )
        if config.dry_run:
            _planned(context, table, "vacuum", outcome)
            return
        observe_after(context.op_execution_context, table, opened, after)
        yield dg.MaterializeResult(metadata=metadata.render(outcome))

    return _job(vacuum, table, "vacuum", shared, description, VacuumRun)


def _manifest(table: TableSettings, shared: _Shared) -> dg.AssetsDefinition:
    description = (
        f"Manifests of {table.name} for readers without deletion vectors. Deletion vectors that the policy left alone "
        "are purged first."
    )

    def manifest(context: dg.AssetExecutionContext, spark: Any) -> Iterator[dg.MaterializeResult[None]]:
        config = ManifestRun(**context.op_execution_context.op_config)
        with in_dagster_terms(context), shown_in(context.log):
            opened = verbs.opened(table)
            outcome = verbs.manifest(opened, lambda: engine_of(spark), dry_run=config.dry_run)
        if config.dry_run:
            _planned(context, table, "manifest", outcome)
            return
        observe_after(context.op_execution_context, table, opened)
        yield dg.MaterializeResult(metadata=metadata.render(outcome))

    return _job(manifest, table, "manifest", shared, description, ManifestRun, _SPARK)


def _job(
    compute: nodes.Compute,
    table: TableSettings,
    job: Job,
    shared: _Shared,
    description: str,
    config: type[dg.Config],
    resources: frozenset[str] = frozenset(),
    backfill_policy: dg.BackfillPolicy | None = None,
) -> dg.AssetsDefinition:
    return nodes.materializable(
        compute,
        name=naming.op_name(table, job),
        spec=_spec(table, job, shared, description),
        pool=shared.pool,
        tags=table.op_tags,
        config=config,
        retry_policy=shared.retries,
        resources=resources,
        backfill_policy=backfill_policy,
    )


def _about(table: TableSettings) -> dict[str, Any]:
    """What an asset's page shows before anything happened."""
    within = table.policy.erase_within
    return {"dagster/uri": table.uri} | ({} if within is None else {"erase_within": format_duration(within)})


def _planned(
    context: dg.AssetExecutionContext, table: TableSettings, job: Job, outcome: Outcome, keys: Sequence[str] = ()
) -> None:
    """Show a dry run. Nothing was done, so the asset gets no materialization.

    Raises
    ------
    Failure : the run itself would be refused.
    """
    entries = metadata.render(outcome) | {DRY_RUN: True}
    partition = keys[0] if len(keys) == 1 else None
    context.log_event(dg.AssetObservation(naming.job_key(table, job), metadata=entries, partition=partition))
    if outcome.refused:
        raise dg.Failure(f"the run would be refused: {outcome.refused}", metadata=entries, allow_retries=False)


def _spec(table: TableSettings, job: Job, shared: _Shared, description: str) -> dg.AssetSpec:
    """Downstream of the table, or of its ``optimize``: vacuum deletes the files that it replaces, manifests list those
    that it writes.
    """
    after_optimize = job != "optimize" and "optimize" in table.jobs
    after = naming.job_key(table, "optimize") if after_optimize else naming.table_key(table)
    within = table.policy.checks.maintained_within
    return dg.AssetSpec(
        naming.job_key(table, job),
        deps=[after],
        group_name=shared.group,
        owners=list(table.owners),
        tags=dict(table.tags),
        description=description,
        kinds={"python" if job == "vacuum" else "spark"},
        metadata=shared.about,
        partitions_def=partitions.partitions_def(table) if job == "optimize" else None,
        # By a dry run.
        skippable=True,
        freshness_policy=None
        if within is None
        else FreshnessPolicy.time_window(fail_window=timedelta(milliseconds=within)),
    )
