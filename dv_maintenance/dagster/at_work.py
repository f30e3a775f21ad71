"""The runs that work on each asset, however they were started: sensor, schedule, page, GraphQL, backfill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, WILL_RETRY_TAG

from dv_maintenance.dagster import naming
from dv_maintenance.service.settings import JOBS

if TYPE_CHECKING:
    from dv_maintenance.service.tables_file import TableSettings

__all__ = ["at_work", "working_on"]

# Ops of custom jobs that rewrite or remove files.
_OPS = ("delete_rows", "purge_erased", "zorder", "restore", "engine_sql")

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


def at_work(instance: dg.DagsterInstance) -> dict[str, str]:
    """The active run (``run 1a2b3c4d``) by asset key (``AssetKey.to_user_string()``); for a run of a whole job, by op
    name.
    """
    found = {key: f"backfill {backfill}" for backfill, key in _backfills(instance)}
    return found | {name: f"run {run[:8]}" for run, name in _runs(instance)}


def working_on(table: TableSettings, found: Mapping[str, str]) -> str | None:
    """The run or backfill of :func:`at_work` that maintains a table."""
    if not found:
        return None  # a tick asks for each of its tables
    assets = (naming.job_key(table, job).to_user_string() for job in JOBS)
    names = (*assets, *(naming.op_name(table, what) for what in (*JOBS, *_OPS)))
    return next((found[name] for name in names if name in found), None)


def _runs(instance: dg.DagsterInstance) -> Iterator[tuple[str, str]]:
    """A run of a whole job names no assets; its job's snapshot has a node for each."""
    nodes_of_job: dict[str, list[str]] = {}
    for run in (*instance.get_runs(dg.RunsFilter(statuses=_RUNS)), *_about_to_be_retried(instance)):
        names = [key.to_user_string() for key in run.asset_selection or ()]
        job = run.job_snapshot_id
        if not names and job is not None:
            if job not in nodes_of_job:
                structure = instance.get_job_snapshot(job).dep_structure_snapshot
                nodes_of_job[job] = [invocation.node_name for invocation in structure.node_invocation_snaps]
            names = nodes_of_job[job]
        for name in names:
            yield run.run_id, name


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
