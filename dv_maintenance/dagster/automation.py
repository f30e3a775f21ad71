"""A job that maintains every table, a schedule for it, and jobs whose run config is filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.internals import public
from dv_maintenance.service.checks import FSCK
from dv_maintenance.service.settings import JOBS

if TYPE_CHECKING:
    from dv_maintenance.dagster.internals import BaseAssetGraph
    from dv_maintenance.service.tables_file import Job, TableSettings

_MOST_IN_A_PRESET = 100
_DESCRIPTION = "Observes every table, then runs its jobs (optimize, vacuum, manifest) by its settings."


@public
def build_dv_job(
    tables: Iterable[TableSettings],
    *,
    name: str = "dv_maintenance",
    jobs: Iterable[Job] = JOBS,
    tags: Mapping[str, str] | None = None,
) -> Any:
    """A job that observes every table with ``observe``, then runs those of ``jobs`` that the table has. It runs in one
    process with one Spark session. Without ``optimize`` in ``jobs`` nothing is observed. The check ``fsck`` is not part
    of it.

    It excludes ``optimize`` of tables with ``partitions``: a Dagster job can't cover assets with different partitions.

    Parameters
    ----------
    tags
        of its runs.
    """
    wanted = frozenset(jobs)
    keys = [key for table in tables for key in _keys(table, wanted)]
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(*keys) - _FsckChecks(),
        tags=tags,
        executor_def=dg.in_process_executor,
        description=_DESCRIPTION
        if "optimize" in wanted
        else f"Runs for every table that has the job: {', '.join(sorted(wanted))}.",
    )


@public
def build_dv_presets(
    tables: Iterable[TableSettings], *, name: str = "dv_maintenance", tags: Mapping[str, str] | None = None
) -> list[Any]:
    """Two jobs for Dagster's launchpad, which opens with their run config: ``<name>_plan`` changes nothing and shows
    what ``optimize`` would do, ``<name>_purge`` purges every deletion vector. Tables can be taken out there, and
    settings changed. None for more than a hundred tables, whose config would be too long to read, nor for tables with
    ``partitions``.
    """
    chosen = [table for table in tables if "optimize" in table.jobs and table.partitions is None]
    presets = (
        ("plan", {"dry_run": True}, "Plans the rewrites of every table, and changes nothing."),
        ("purge", {"purge": True}, "Purges every deletion vector of every table, whatever the policies' thresholds."),
    )
    return [
        dg.define_asset_job(
            f"{name}_{what}",
            selection=dg.AssetSelection.assets(*(naming.job_key(table, "optimize") for table in chosen)),
            tags=tags,
            config={"ops": {naming.op_name(table, "optimize"): {"config": config} for table in chosen}},
            executor_def=dg.in_process_executor,
            description=description,
        )
        for what, config, description in presets
        if 0 < len(chosen) <= _MOST_IN_A_PRESET
    ]


@public
def build_dv_fsck_job(
    tables: Iterable[TableSettings], *, name: str = "dv_fsck", tags: Mapping[str, str] | None = None
) -> Any:
    """A job that runs the check ``fsck`` of every table, one after the other. It needs no Spark and repairs nothing."""
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.checks(*(dg.AssetCheckKey(naming.table_key(table), FSCK) for table in tables)),
        tags=tags,
        executor_def=dg.in_process_executor,
        description="Reads every data file's footer and every deletion vector of all tables.",
    )


class _FsckChecks(dg.AssetSelection):
    """Every check ``fsck``. Dagster's own selections name checks, and fail in a location without them."""

    def resolve_inner(self, asset_graph: BaseAssetGraph[Any], allow_missing: bool) -> AbstractSet[dg.AssetKey]:
        del asset_graph, allow_missing
        return frozenset()

    def resolve_checks_inner(
        self, asset_graph: BaseAssetGraph[Any], allow_missing: bool
    ) -> AbstractSet[dg.AssetCheckKey]:
        del allow_missing
        return {key for key in asset_graph.asset_check_keys if key.name == FSCK}


def _keys(table: TableSettings, jobs: frozenset[Job]) -> list[dg.AssetKey]:
    chosen = [job for job in table.jobs if job in jobs]
    together = [job for job in chosen if job != "optimize" or table.partitions is None]
    # With `observe: false` the asset is another's: selecting it would run it.
    observed = table.observe and "optimize" in jobs
    return [*([naming.table_key(table)] if observed else []), *naming.job_keys(table, together)]


@public
def build_dv_schedule(
    job: Any,
    *,
    name: str = "dv_daily",
    cron_schedule: str = "0 3 * * *",
    execution_timezone: str = "UTC",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """A nightly schedule for the job of ``build_dv_job``; by default stopped until a user starts it."""
    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
        description="Scheduled maintenance. Files expire with time, so a vacuum may have work without new commits.",
    )
