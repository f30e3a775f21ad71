"""A job that maintains every table, and a schedule for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.service.settings import JOBS

if TYPE_CHECKING:
    from dv_maintenance.service.tables_file import Job, WatchedTable

__all__ = ["build_dv_job", "build_dv_schedule"]

_DESCRIPTION = "Looks at every table, then does its jobs (optimize, vacuum, manifest) as its settings say."


def build_dv_job(tables: Iterable[WatchedTable], *, name: str = "dv_maintenance", jobs: Iterable[Job] = JOBS) -> Any:
    """Observe every table that has ``observe``, then do its own of the ``jobs``. One process: one Spark session a run.
    Without ``optimize`` nothing is observed.

    Without ``optimize`` of tables with ``partitions``: Dagster has no job over assets that are partitioned differently.
    """
    wanted = frozenset(jobs)
    keys = [key for table in tables for key in _keys(table, wanted)]
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*keys),
        executor_def=dg.in_process_executor,
        description=_DESCRIPTION
        if "optimize" in wanted
        else f"Of every table that has it: {', '.join(sorted(wanted))}.",
    )


def _keys(table: WatchedTable, jobs: frozenset[Job]) -> list[dg.AssetKey]:
    chosen = [job for job in table.jobs if job in jobs]
    together = [job for job in chosen if job != "optimize" or table.partitions is None]
    # Selecting the asset of somebody else would run it.
    observed = table.observe and "optimize" in jobs
    return [*([naming.table_key(table)] if observed else []), *naming.job_keys(table, together)]


def build_dv_schedule(
    job: Any, *, name: str = "dv_daily", cron_schedule: str = "0 3 * * *", execution_timezone: str = "UTC"
) -> dg.ScheduleDefinition:
    """A nightly schedule for the job of :func:`build_dv_job`; stopped until a user starts it."""
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Nightly maintenance: vacuum has work when time has passed, whether anybody committed or not.",
    )
