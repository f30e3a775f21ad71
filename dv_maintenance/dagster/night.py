"""A job that works through many tables in one window: one op, one Spark session, one materialization per table."""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

import math
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.internals import public
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.dagster.observed import observe_after
from dv_maintenance.dagster.resources import SparkParam, engine_of
from dv_maintenance.dagster.run_config import DRY_RUN
from dv_maintenance.service.night import NightTable, Window, by_policy, opened_at, work_through
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.units import epoch_millis

_SINCE = "waiting_since"


@public
def build_dv_night(
    tables: Iterable[TableSettings],
    *,
    window: Window | None,
    budget: int | None,
    name: str = "dv_night",
    tags: Mapping[str, str] | None = None,
    op_tags: Mapping[str, Any] | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> dg.JobDefinition:
    """A job that rewrites files of every table with ``optimize``, as far as window and budget allow.

    Each table gets a materialization of its ``optimize`` as soon as its work is done. One that has to wait gets an
    observation with the reason, so that it does not count as maintained. If a table fails, the others continue, and the
    run fails at the end. It also fails if somebody has to act: deadlines that the windows have no time for, tables that
    starve, a step that is too large for every window or was stopped. The job holds no slot of the tables' pools: of two
    runs that rewrite the same files, the commit lets one win.

    Parameters
    ----------
    budget
        milliseconds.
    tags
        of its runs.
    op_tags, retry_policy
        of its op.
    """
    watched = tuple(table for table in tables if "optimize" in table.jobs)

    @dg.op(
        name=f"{name}_op",
        tags=op_tags,
        retry_policy=retry_policy,
        description="Rewrites files of all tables in one window.",
    )
    def night(context: dg.OpExecutionContext, spark: SparkParam) -> None:
        failed, alerts = [], dict[str, None]()
        with in_dagster_terms(context), shown_in(context.log):
            waiting = {
                table.name: since for table in watched if (since := _waiting(context.instance, table)) is not None
            }
            started = lambda: engine_of(spark)  # noqa: E731
            graph = asset_graph(context)
            plan_of = partial(
                by_policy, downstream=lambda table, at: reads_downstream(context.instance, graph, table, at)
            )
            spent = _spent(context, opened_at(window, epoch_millis()))
            for found in work_through(
                watched, started, window=window, budget=budget, plan_of=plan_of, waiting=waiting, spent=spent
            ):
                _record(context, found)
                if found.outcome is not None and found.outcome.numbers.get("steps"):
                    observe_after(context, found.table)
                if found.outcome is not None:
                    alerts |= dict.fromkeys(found.outcome.lines.get("alerts", ()))
                if found.error is not None or (found.outcome is not None and found.outcome.problems):
                    failed.append(found)
        if failed or alerts:
            names = ", ".join(each.table.name for each in failed)
            said = [f"{len(failed)} of {len(watched)} tables failed: {names}"] if failed else []
            raise dg.Failure(
                "\n".join([*said, *alerts]),
                metadata={each.table.name: str(each.error or "see its problems") for each in failed},
                allow_retries=False,
            )

    @dg.job(name=name, executor_def=dg.in_process_executor, tags=tags)
    def job() -> None:
        night()

    return job


def _spent(context: dg.OpExecutionContext, opened: int | None) -> float:
    """Seconds that other runs of this job have taken since the window opened."""
    if opened is None:
        return 0.0
    since = datetime.fromtimestamp(opened / 1000, UTC)
    records = context.instance.get_run_records(dg.RunsFilter(job_name=context.job_name, created_after=since))
    return math.fsum(
        (record.end_time or time.time()) - record.start_time
        for record in records
        if record.start_time is not None and record.dagster_run.run_id != context.run_id
    )


def _waiting(instance: dg.DagsterInstance, table: TableSettings) -> int | None:
    """Since when a table has waited: what the last night recorded, if none of its work was done since. What an
    inspection recorded of partitions without work has no run.
    """
    found = instance.fetch_observations(naming.job_key(table, "optimize"), limit=10).records
    found = [each for each in found if each.asset_observation and DRY_RUN not in each.asset_observation.metadata]
    made = instance.get_latest_materialization_event(naming.job_key(table, "optimize"))
    if not found or found[0].asset_observation is None:
        return None
    if made is not None and made.run_id and made.timestamp > found[0].timestamp:
        return None
    since = found[0].asset_observation.metadata.get(_SINCE)
    return None if since is None or not isinstance(since.value, float) else int(since.value * 1000)


def _record(context: dg.OpExecutionContext, found: NightTable) -> None:
    key = naming.job_key(found.table, "optimize")
    if found.outcome is None:
        reason = dg.MetadataValue.md(str(found.error))
        context.log.error("%s: %s", found.table.name, found.error)
        context.log_event(dg.AssetObservation(key, metadata={"reason": reason}))
        return
    entries: dict[str, Any] = metadata.render(found.outcome)
    if found.outcome.numbers.get("steps") or found.waited_since is None:
        tags = {"dagster/data_version": str(found.outcome.numbers["version"])}
        context.log_event(dg.AssetMaterialization(key, metadata=entries, tags=tags))
        return
    entries[_SINCE] = dg.MetadataValue.timestamp(found.waited_since / 1000)
    context.log_event(dg.AssetObservation(key, metadata=entries))
