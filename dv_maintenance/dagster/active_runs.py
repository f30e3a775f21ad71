"""The runs that work on each asset, however they were started: sensor, schedule, page, GraphQL, backfill."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.internals import AUTO_RETRY_RUN_ID_TAG, WILL_RETRY_TAG, BulkActionsFilter, BulkActionStatus
from dv_maintenance.service.settings import JOBS
from dv_maintenance.units import format_duration

if TYPE_CHECKING:
    from dv_maintenance.dagster.internals import BaseAssetGraph
    from dv_maintenance.service.tables_file import TableSettings

# Ops of custom jobs that rewrite or remove files.
_OPS = ("delete_rows", "purge_erased", "zorder", "cluster", "restore", "engine_sql")

_RUNS = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
# In these states a backfill will start more runs; not every version of Dagster has the last one.
_BACKFILLS = [status for status in BulkActionStatus if status.name in {"REQUESTED", "CANCELING", "FAILING"}]

# The daemon restarts a run within seconds of its end, or never: it can miss one that it inspects too early, whose tag
# still says that it will be restarted.
_RETRIED_WITHIN = timedelta(seconds=30)
# A run logs its progress; in a rewrite of one large file it may be silent for a while.
_SILENT: Final = 1800.0
_RECENT: Final = 20  # runs


@dataclass(frozen=True, slots=True)
class Working:
    """A run or a backfill that is active. ``since``: from when on a process should be at work for it, epoch seconds;
    ``None``: not yet.
    """

    id: str
    kind: str = "run"
    since: float | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.id[:8] if self.kind == 'run' else self.id}"


def active_runs(instance: dg.DagsterInstance) -> dict[str, Working]:
    """What works on each asset key (``AssetKey.to_user_string()``), on each op of a run of a whole job, and on each
    location of a table (``naming.location``) for which a sensor requested a run.
    """
    found = {key: Working(backfill, "backfill") for backfill, key in _backfills(instance)}
    return found | dict(_runs(instance))


def working_on(table: TableSettings, found: Mapping[str, Working]) -> Working | None:
    """The run or backfill of :func:`active_runs` that maintains a table, under this name or another one."""
    if not found:
        return None  # a tick asks for each of its tables
    assets = (naming.job_key(table, job).to_user_string() for job in JOBS)
    names = (*assets, *(naming.op_name(table, what) for what in (*JOBS, *_OPS)), naming.location(table))
    return next((found[name] for name in names if name in found), None)


def defined_elsewhere(
    tables: Iterable[TableSettings], instance: dg.DagsterInstance, graph: BaseAssetGraph[Any] | None
) -> dict[str, str]:
    """Who else maintains the location of a table, by the table's name: another component of this code location, or
    another code location, as far as its sensor requested a run within the last day. One query for all tables.
    """
    at: dict[str, list[TableSettings]] = defaultdict(list)
    for table in tables:
        at[naming.location(table)].append(table)
    found: dict[str, str] = {}
    own = {table.name: {*naming.job_keys(table, JOBS)} for each in at.values() for table in each}
    for node in graph.asset_nodes if graph is not None else ():
        for table in (table for pool in node.pools or () for table in at.get(pool, ())):
            if node.key not in own[table.name]:
                found.setdefault(table.name, f"the asset {node.key.to_user_string()}")
    left = [location for location, each in at.items() if any(table.name not in found for table in each)]
    if not left:
        return found
    recent = dg.RunsFilter(tags={naming.LOCATION_TAG: left}, created_after=datetime.now(UTC) - timedelta(days=1))
    for record in instance.get_run_records(recent, limit=_RECENT * len(left)):
        run = record.dagster_run
        for table in at[run.tags[naming.LOCATION_TAG]]:
            if _of_another(run, table):
                found.setdefault(table.name, f"the table {run.tags[naming.TABLE_TAG]} (run {run.run_id[:8]})")
    return found


def _of_another(run: dg.DagsterRun, table: TableSettings) -> bool:
    return run.tags.get(naming.TABLE_TAG, table.name) != table.name


def said_of(working: Working, instance: dg.DagsterInstance) -> str:
    """The run in words. One that has been silent for long may be dead: Dagster's default launcher does not notice that
    a host crashed, and nothing starts again until somebody ends the run.
    """
    # A tick says this of each of its tables: most runs are too young to have been silent for long.
    if working.since is None or time.time() - working.since < _SILENT:
        return str(working)
    records = instance.get_records_for_run(working.id, limit=1, ascending=False).records
    silent = time.time() - records[0].event_log_entry.timestamp if records else 0.0
    if silent < _SILENT:
        return str(working)
    since = format_duration(int(silent) * 1000)
    return (
        f"{working}, which has logged nothing for {since} (if its process is gone, terminate the run in the page with "
        '"Force termination immediately"; run_monitoring.max_runtime_seconds does so by itself),'
    )


def _runs(instance: dg.DagsterInstance) -> Iterator[tuple[str, Working]]:
    """A run of a whole job names no assets; its job's snapshot has a node for each."""
    nodes_of_job: dict[str, list[str]] = {}
    active = [(each.dagster_run, _since(each)) for each in instance.get_run_records(dg.RunsFilter(statuses=_RUNS))]
    for run, since in (*active, *((run, None) for run in _about_to_be_retried(instance))):
        names = [key.to_user_string() for key in run.asset_selection or ()]
        job = run.job_snapshot_id
        if not names and job is not None:
            if job not in nodes_of_job:
                structure = instance.get_job_snapshot(job).dep_structure_snapshot
                nodes_of_job[job] = [invocation.node_name for invocation in structure.node_invocation_snaps]
            names = nodes_of_job[job]
        working = Working(run.run_id, since=since)
        for name in (*names, *filter(None, [run.tags.get(naming.LOCATION_TAG)])):
            yield name, working


def _since(record: dg.RunRecord) -> float | None:
    if record.dagster_run.status != dg.DagsterRunStatus.STARTED:
        return None
    return record.start_time or record.create_timestamp.timestamp()


def _about_to_be_retried(instance: dg.DagsterInstance) -> Iterator[dg.DagsterRun]:
    """Failed runs that ``run_retries`` is about to restart: another run now would be a duplicate."""
    since = datetime.now(UTC) - _RETRIED_WITHIN
    failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], tags={WILL_RETRY_TAG: "true"}, updated_after=since)
    for run in instance.get_runs(failed):
        if AUTO_RETRY_RUN_ID_TAG not in run.tags:
            yield run


def _backfills(instance: dg.DagsterInstance) -> Iterator[tuple[str, str]]:
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=_BACKFILLS)):
        for key in backfill.asset_selection or ():
            yield backfill.backfill_id, key.to_user_string()
