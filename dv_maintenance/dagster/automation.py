"""A job that maintains every table, and a schedule for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import dagster as dg

from dv_maintenance.dagster import naming

if TYPE_CHECKING:
    from dv_maintenance.maintenance.tables_file import Job, WatchedTable

__all__ = ["build_dv_job", "build_dv_schedule"]


def build_dv_job(tables: Iterable[WatchedTable], *, name: str = "dv_maintenance") -> Any:
    """Observe every table that has ``observe``, then do the ``jobs`` of each. One process: one Spark session a run.

    Without ``optimize`` of tables with ``partitions``: Dagster has no job over assets that are partitioned differently.
    """
    keys = [key for table in tables for key in _keys(table)]
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*keys),
        executor_def=dg.in_process_executor,
        description="Looks at every table, then optimizes, vacuums and writes manifests as their settings say.",
    )


def _keys(table: WatchedTable) -> list[dg.AssetKey]:
    together: list[Job] = [job for job in table.jobs if job != "optimize" or table.partitions is None]
    # Selecting the asset of somebody else would run it.
    return [*([naming.table_key(table)] if table.observe else []), *naming.job_keys(table, together)]


def build_dv_schedule(
    job: Any, *, name: str = "dv_daily", cron_schedule: str = "0 3 * * *", execution_timezone: str = "UTC"
) -> dg.ScheduleDefinition:
    """Runs what :func:`build_dv_job` made, every night; stopped until somebody starts it."""
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Nightly maintenance: vacuum has work when time has passed, whether anybody committed or not.",
    )
