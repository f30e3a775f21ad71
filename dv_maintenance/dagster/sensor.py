"""The sensor: an evaluation of every table as Dagster's observations, check results and run requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.at_work import at_work
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.dagster.metadata import render
from dv_maintenance.dagster.observed import observed_before
from dv_maintenance.dagster.partitions import missing_partitions, partitions_def
from dv_maintenance.service.evaluation import Limits, evaluate
from dv_maintenance.service.observe import Observation, Observer
from dv_maintenance.service.reports.health import of_inspection
from dv_maintenance.service.settings import JOBS

if TYPE_CHECKING:
    from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

    from dv_maintenance.service.checks import Finding
    from dv_maintenance.service.due import RunRequest
    from dv_maintenance.service.reads import Reads
    from dv_maintenance.service.tables_file import Job, WatchedTable

__all__ = ["build_dv_sensor"]

# Dagster ends a tick after 60 seconds.
_BUDGET_SECONDS = 35.0
_PATIENCE_SECONDS = 10.0
# The daemon launches them one by one before the next tick.
_MAX_REQUESTS = 100
# Ops of custom jobs that rewrite or remove files.
_OPS = ("delete_rows", "purge_erased", "zorder", "restore", "engine_sql")


def build_dv_sensor(
    tables: Iterable[WatchedTable],
    *,
    name: str = "dv_accumulation",
    jobs: Iterable[Job] = JOBS,
    minimum_interval_seconds: int = 60,
    budget_seconds: float = _BUDGET_SECONDS,
    rewrites: bool = True,
    description: str = "Inspects new versions of the tables and requests the maintenance that is due.",
) -> dg.SensorDefinition:
    """One sensor for all these tables, stopped until a user starts it.

    A tick costs one probe per unchanged table. A table gets at most one run at a time, for the jobs that are due. It
    gets another one only at a new version, or after a failure, up to three times at one version. A vacuum has runs of
    its own, which come first and are counted separately: a rewrite that fails, or crashes the process, does not prevent
    vacuums.

    jobs : the jobs to watch for, among those of each table. A sensor for ``optimize`` also observes the tables and
        evaluates their check ``readable``; other sensors do neither.
    rewrites : ``False``: it requests no ``optimize``, which waits for the tables' window.
    """
    wanted = frozenset(jobs)
    chosen = (table.model_copy(update={"jobs": tuple(job for job in table.jobs if job in wanted)}) for table in tables)
    watched = tuple(table for table in chosen if table.jobs)
    observer = Observer(data_versions="optimize" in wanted)
    limits = Limits(budget_seconds, _PATIENCE_SECONDS, _MAX_REQUESTS)

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        asset_selection=dg.AssetSelection.assets(
            *(key for table in watched for key in naming.job_keys(table, table.jobs))
        ),
        description=description,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        dagster = _Dagster(context.instance, asset_graph(context))
        with shown_in(context.log):
            found = evaluate(watched, context.cursor, dagster, observer, limits)
        if found.requests and found.reason:
            context.log.info(found.reason)
        by_name = {table.name: table for table in watched}
        requests = found.requests if rewrites else _without_rewrites(found.requests)
        return dg.SensorResult(
            run_requests=[_run_request(by_name[request.table], request) for request in requests],
            asset_events=dagster.events,
            dynamic_partitions_requests=dagster.new_partitions,
            cursor=found.cursor.to_json(),
            skip_reason=None if requests else found.reason or "Rewrites wait for the window.",
        )

    return sensor


def _without_rewrites(requests: Iterable[RunRequest]) -> list[RunRequest]:
    rest = ((request, tuple(job for job in request.jobs if job != "optimize")) for request in requests)
    return [replace(request, jobs=jobs, partitions=None) for request, jobs in rest if jobs]


class _Dagster:
    """Answers the queries of an evaluation from a Dagster instance, and collects its events."""

    def __init__(self, instance: dg.DagsterInstance, graph: BaseAssetGraph[Any] | None = None) -> None:
        self.instance = instance
        self.graph = graph
        self.at_work = at_work(instance)
        self.events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
        self.new_partitions: list[dg.AddDynamicPartitionsRequest] = []

    def busy(self, table: WatchedTable) -> str | None:
        """Includes jobs that this sensor does not watch for, and custom jobs made of these ops."""
        assets = (naming.job_key(table, job).to_user_string() for job in JOBS)
        names = (*assets, *(naming.op_name(table, what) for what in (*JOBS, *_OPS)))
        return next((self.at_work[name] for name in names if name in self.at_work), None)

    def failed_runs(self, request: RunRequest) -> int:
        since = request.vacuum_checked
        created = datetime.fromtimestamp(since / 1000, UTC) if since else None
        failed = dg.RunsFilter(tags=_tags(request), statuses=[dg.DagsterRunStatus.FAILURE], created_after=created)
        return self.instance.get_runs_count(failed)

    def last_vacuum(self, table: WatchedTable) -> int | None:
        made = self.instance.get_latest_materialization_event(naming.job_key(table, "vacuum"))
        return None if made is None else int(made.timestamp * 1000)

    def last_observed(self, table: WatchedTable) -> tuple[int, int] | None:
        return observed_before(self.instance, naming.table_key(table))

    def downstream(self, table: WatchedTable, now: int) -> Reads | None:
        return reads_downstream(self.instance, self.graph, table, now)

    def partition_keys(self, table: WatchedTable) -> Sequence[str]:
        definition = partitions_def(table)
        return [] if definition is None else definition.get_partition_keys(dynamic_partitions_store=self.instance)

    def record(self, table: WatchedTable, observation: Observation) -> None:
        if observation.snapshot is not None:
            self.new_partitions += missing_partitions(table, observation.snapshot, self.instance)
        # With `observe: false` another asset reports the data version.
        tags = {"dagster/data_version": str(observation.data_version)} if table.observe else None
        entries = render(of_inspection(observation.inspection), reason="due")
        self.events.append(dg.AssetObservation(naming.table_key(table), metadata=entries, tags=tags))

    def check(self, table: WatchedTable, finding: Finding) -> None:
        severity = dg.AssetCheckSeverity.WARN if finding.severity == "warn" else dg.AssetCheckSeverity.ERROR
        self.events.append(
            dg.AssetCheckEvaluation(
                asset_key=naming.table_key(table),
                check_name=finding.check,
                passed=finding.severity is None,
                severity=severity,
                description=finding.reason,
                blocking=False,
            )
        )


def _run_request(table: WatchedTable, request: RunRequest) -> dg.RunRequest:
    ends = (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG)
    return dg.RunRequest(
        run_key=request.key,
        asset_selection=naming.job_keys(table, request.jobs),
        tags=_tags(request) | dict(zip(ends, request.partitions or (), strict=False)),
    )


def _tags(request: RunRequest) -> dict[str, str]:
    return {
        naming.TABLE_TAG: request.table,
        naming.VERSION_TAG: str(request.version),
        naming.JOBS_TAG: "+".join(request.jobs),
    }
