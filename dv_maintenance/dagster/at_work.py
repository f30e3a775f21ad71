"""Who is at work on which asset, however the work was started: sensor, schedule, page, GraphQL, backfill."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus

__all__ = ["at_work"]

_RUNS = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
# A backfill has more runs to come while it is in one of these; not every Dagster has the last one.
_BACKFILLS = [status for status in BulkActionStatus if status.name in {"REQUESTED", "CANCELING", "FAILING"}]


def at_work(instance: dg.DagsterInstance) -> dict[str, str]:
    """Who is at work (``run 1a2b3c4d``), by asset key (``AssetKey.to_user_string()``), or by op name where the run is
    one of a whole job.
    """
    found = {key: f"backfill {backfill}" for backfill, key in _backfills(instance)}
    return found | {name: f"run {run[:8]}" for run, name in _runs(instance)}


def _runs(instance: dg.DagsterInstance) -> Iterator[tuple[str, str]]:
    """A run of a whole job names no assets; its job's snapshot has a node for each."""
    nodes_of_job: dict[str, list[str]] = {}
    for run in instance.get_runs(dg.RunsFilter(statuses=_RUNS)):
        names = [key.to_user_string() for key in run.asset_selection or ()]
        job = run.job_snapshot_id
        if not names and job is not None:
            if job not in nodes_of_job:
                structure = instance.get_job_snapshot(job).dep_structure_snapshot
                nodes_of_job[job] = [invocation.node_name for invocation in structure.node_invocation_snaps]
            names = nodes_of_job[job]
        for name in names:
            yield run.run_id, name


def _backfills(instance: dg.DagsterInstance) -> Iterator[tuple[str, str]]:
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=_BACKFILLS)):
        for key in backfill.asset_selection or ():
            yield backfill.backfill_id, key.to_user_string()
