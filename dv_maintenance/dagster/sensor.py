"""The sensor: an evaluation of every table as Dagster's observations, check results and run requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.active_runs import active_runs, defined_elsewhere, said_of, working_on
from dv_maintenance.dagster.checks import check_evaluation
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.dagster.internals import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    MAX_RUNTIME_SECONDS_TAG,
    public,
)
from dv_maintenance.dagster.lake import refresh
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.dagster.metadata import of_findings, render
from dv_maintenance.dagster.observed import data_version_tag, observed_before
from dv_maintenance.dagster.partitions import gone_partitions, missing_partitions, nothing_to_do, partitions_def
from dv_maintenance.service.decision import Attempts
from dv_maintenance.service.due import key_of, together, without_rewrites
from dv_maintenance.service.evaluation import Limits, evaluate
from dv_maintenance.service.observe import Observation, Observer
from dv_maintenance.service.reports.health import of_inspection
from dv_maintenance.service.settings import JOBS

if TYPE_CHECKING:
    from dv_maintenance.dagster.internals import BaseAssetGraph
    from dv_maintenance.service.checks import Finding
    from dv_maintenance.service.due import RunRequest
    from dv_maintenance.service.reads import Reads
    from dv_maintenance.service.tables_file import Job, TableSettings

# Dagster ends a tick after 60 seconds.
_BUDGET_SECONDS = 35.0
_PATIENCE_SECONDS = 10.0
# The daemon launches them one by one before the next tick.
_MAX_REQUESTS = 100
# Dagster's default launcher does not notice that a host is gone: a run stays "started" until somebody ends it. With run
# monitoring on, this does, after a day.
_MAX_RUNTIME = {MAX_RUNTIME_SECONDS_TAG: "86400"}
# A run that ended, and what that means for the work that is still due.
_HOW = {
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "was canceled",
    dg.DagsterRunStatus.SUCCESS: "succeeded, but left it due",
}
_ENDED = list(_HOW)
# Partitions of a table that turn out to have no work. The daemon stores what a tick found, one event after the other.
_MAX_RECORDED = 100


@public
def build_dv_sensor(
    tables: Iterable[TableSettings],
    *,
    name: str = "dv_accumulation",
    jobs: Iterable[Job] = JOBS,
    minimum_interval_seconds: int = 60,
    budget_seconds: float = _BUDGET_SECONDS,
    rewrites: bool = True,
    report: dg.AssetsDefinition | None = None,
    report_every_seconds: float = 3600,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str = "Inspects new versions of the tables and requests the maintenance that is due.",
) -> dg.SensorDefinition:
    """One sensor for all these tables, by default stopped until a user starts it.

    A tick costs one probe per unchanged table. A table gets at most one run at a time, for the jobs that are due. It
    gets another one only at a new version, under other settings, or after a failure, up to three times. After an error
    that would recur it gets none. Vacuums run separately, come first and are counted separately: a rewrite that fails,
    or crashes the process, does not prevent them. Vacuums that are due in the same tick share runs of up to fifty
    tables each, with one materialization per table. A table that fails in a shared run stops no other, and gets its own
    run the next time.

    Parameters
    ----------
    jobs
        the jobs to watch for, among those of each table. A sensor for ``optimize`` also observes the tables and
        evaluates their checks, as far as the log alone answers them; other sensors do neither.
    rewrites
        ``False``: it requests no ``optimize``, which waits for the tables' window.
    report
        of ``build_dv_lake_report``; a run of it is requested when tables changed since the last one.
    report_every_seconds
        the least time between two runs of the report.
    """
    wanted = frozenset(jobs)
    chosen = (table.model_copy(update={"jobs": tuple(job for job in table.jobs if job in wanted)}) for table in tables)
    watched = tuple(table for table in chosen if table.jobs)
    observer = Observer(data_versions="optimize" in wanted, checks="optimize" in wanted)
    limits = Limits(budget_seconds, _PATIENCE_SECONDS, _MAX_REQUESTS)

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        asset_selection=dg.AssetSelection.assets(
            *(key for table in watched for key in naming.job_keys(table, table.jobs)),
            *(() if report is None else (report.key,)),
        ),
        description=description,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        dagster = _Dagster(context.instance, asset_graph(context))
        with shown_in(context.log):
            found = evaluate(watched, context.cursor, dagster, observer, limits)
        if found.requests and found.reason:
            context.log.info(found.reason)
        requests = found.requests if rewrites else without_rewrites(found.requests)
        by_name = {table.name: table for table in watched}
        groups = _together(requests, by_name)
        in_one_process = _in_one_process(context.repository_def) if any(len(group) > 1 for group in groups) else {}
        requested = [by_name[request.table] for request in requests]
        for name, other in defined_elsewhere(requested, dagster.instance, dagster.graph).items():
            context.log.warning(
                "%s: %s maintains %s, too. They take turns, but work may be done twice, under two policies: keep "
                "one of the definitions",
                name,
                other,
                by_name[name].place,
            )
        runs = [_run_request([by_name[request.table] for request in group], group, in_one_process) for group in groups]
        again = None
        if report is not None:
            again = refresh(context.instance, report, found.cursor.tables, report_every_seconds)
        return dg.SensorResult(
            run_requests=runs if again is None else [*runs, again],
            asset_events=dagster.events,
            dynamic_partitions_requests=dagster.partitions,
            cursor=found.cursor.to_json(),
            skip_reason=None if requests or again else found.reason or "Rewrites wait for the window.",
        )

    return sensor


class _Dagster:
    """Answers the queries of an evaluation from a Dagster instance, and collects its events."""

    def __init__(self, instance: dg.DagsterInstance, graph: BaseAssetGraph[Any] | None = None) -> None:
        self.instance = instance
        self.graph = graph
        self.active = active_runs(instance)
        self.events: list[dg.AssetObservation | dg.AssetCheckEvaluation | dg.AssetMaterialization] = []
        self.partitions: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []

    def busy(self, table: TableSettings) -> str | None:
        """Includes jobs that this sensor does not watch for, and custom jobs made of these ops."""
        found = working_on(table, self.active)
        return None if found is None else said_of(found, self.instance)

    def attempts(self, request: RunRequest) -> Attempts:
        """Whatever has become of them: Dagster starts no second run under the key of one that it knows."""
        since = request.vacuum_checked
        created = datetime.fromtimestamp(since / 1000, UTC) if since else None
        filters = [dg.RunsFilter(tags=_tags(request), statuses=_ENDED, created_after=created)]
        if since:
            # Its key has the time of the search; without one it was never part of a shared run.
            tags = {naming.work_tag(request.key): request.table}
            filters.append(dg.RunsFilter(tags=tags, statuses=_ENDED))
        count = sum(self.instance.get_runs_count(each) for each in filters)
        if not count:
            return Attempts()
        records = [record for each in filters for record in self.instance.get_run_records(each, limit=1)]
        ended = {record.end_time or record.update_timestamp.timestamp(): record.dagster_run for record in records}
        last = ended[max(ended)]
        return Attempts(
            count,
            int(max(ended) * 1000),
            f"{_HOW[last.status]} (run {last.run_id[:8]})",
            refusal=last.tags.get(naming.REFUSED_TAG),
            restorable=naming.RESTORABLE_TAG in last.tags,
            damage=last.tags.get(naming.DAMAGE_TAG) is not None,
            idle=last.status == dg.DagsterRunStatus.SUCCESS,
        )

    def last_vacuum(self, table: TableSettings) -> int | None:
        made = self.instance.get_latest_materialization_event(naming.job_key(table, "vacuum"))
        return None if made is None else int(made.timestamp * 1000)

    def last_observed(self, table: TableSettings) -> tuple[int, int] | None:
        return observed_before(self.instance, naming.table_key(table))

    def downstream(self, table: TableSettings, now: int) -> Reads | None:
        return reads_downstream(self.instance, self.graph, table, now)

    def partition_keys(self, table: TableSettings) -> Sequence[str]:
        definition = partitions_def(table)
        return [] if definition is None else definition.get_partition_keys(dynamic_partitions_store=self.instance)

    def record(self, table: TableSettings, observation: Observation) -> None:
        snapshot = observation.snapshot
        if snapshot is not None:
            self.partitions += missing_partitions(table, snapshot, self.instance)
            if self.busy(table) is None:
                self.partitions += gone_partitions(table, snapshot, self.instance)
                # A run records what it did after its commit: this would be newer, and the page would show it instead.
                self.events += nothing_to_do(table, snapshot, observation.due_keys, self.instance, _MAX_RECORDED)
        # With `observe: false` another asset reports the data version.
        tags = data_version_tag(observation.data_version, observation.lineage) if table.observe else None
        entries = render(of_inspection(observation.inspection), reason="due") | of_findings(observation.findings or ())
        self.events.append(dg.AssetObservation(naming.table_key(table), metadata=entries, tags=tags))

    def check(self, table: TableSettings, finding: Finding) -> None:
        self.events.append(check_evaluation(table, finding))


def _together(requests: Iterable[RunRequest], tables: Mapping[str, TableSettings]) -> list[tuple[RunRequest, ...]]:
    """A run has one set of tags: tables with other ``run_tags`` share none."""
    alike: dict[frozenset[tuple[str, str]], list[RunRequest]] = {}
    for request in requests:
        alike.setdefault(frozenset(tables[request.table].run_tags.items()), []).append(request)
    return [group for same in alike.values() for group in together(same)]


def _run_request(
    tables: Sequence[TableSettings], group: Sequence[RunRequest], in_one_process: Mapping[str, Any]
) -> dg.RunRequest:
    """One run for these requests, each for the table at its place."""
    ends = (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG)
    first = group[0]
    shared = len(group) > 1
    tags = _tags(first) | {naming.LOCATION_TAG: naming.location(tables[0])}
    tags |= dict(zip(ends, first.partitions or (), strict=False))
    if shared:
        tags = {naming.work_tag(request.key): request.table for request in group}
        tags |= {naming.SHARED_TAG: str(len(group)), naming.JOBS_TAG: "vacuum"}
    return dg.RunRequest(
        run_key=key_of(group),
        run_config=dict(in_one_process) if shared else None,
        asset_selection=[
            key for table, request in zip(tables, group, strict=True) for key in naming.job_keys(table, request.jobs)
        ],
        tags={**_MAX_RUNTIME, **tables[0].run_tags, **tags},
    )


def _in_one_process(repository: dg.RepositoryDefinition | None) -> Mapping[str, Any]:
    """The run config that keeps all steps of a run in its process, with Dagster's default executor. It would start a
    process for each of the tables. The config of another executor is its owner's.
    """
    if repository is None:
        return {}
    executor = repository.get_implicit_global_asset_job_def().executor_def
    if executor is not dg.multi_or_in_process_executor:
        return {}
    return {"execution": {"config": {"in_process": {}}}}


def _tags(request: RunRequest) -> dict[str, str]:
    return {
        naming.TABLE_TAG: request.table,
        naming.VERSION_TAG: str(request.version),
        naming.JOBS_TAG: "+".join(request.jobs),
        naming.SETTINGS_TAG: request.settings,
    }
