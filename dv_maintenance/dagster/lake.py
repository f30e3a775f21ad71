"""One asset that shows the state of all tables, the worst first, and decides when to refresh it."""

# Without `from __future__ import annotations`: Dagster reads the annotations of assets.

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.assets import GROUP
from dv_maintenance.dagster.costs import costs_by_month
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.lake import rank, scan
from dv_maintenance.service.metrics import LastRun, exposition, publish
from dv_maintenance.service.reports.lake import of_lake
from dv_maintenance.service.tables_file import TableSettings

__all__ = ["build_dv_lake_report", "refresh"]

# The page shows a table in full.
_SHOWN: Final = 200
_COSTS_SINCE: Final = timedelta(days=366)
_STATE_TAG: Final = "dv/lake_state"
_REPORT_TAG: Final = "dv/lake_report"


def build_dv_lake_report(
    tables: Iterable[TableSettings],
    *,
    name: str = "dv_lake_report",
    group_name: str = GROUP,
    metrics: str | None = None,
) -> dg.AssetsDefinition:
    """An asset that lists all tables, the worst first, with totals that can be plotted. It reads only logs, and a table
    that can't be read is a row with its error. :func:`build_dv_sensor` refreshes it (``report``); so may any schedule.

    name : key of the asset, its parts separated by slashes.
    metrics : where to put metrics for Prometheus: a file that ends in ``.prom``, or the URL of a push gateway.
    """
    watched = tuple(tables)
    spec = dg.AssetSpec(
        dg.AssetKey(name.split("/")),
        deps=[naming.table_key(table) for table in watched],
        group_name=group_name,
        description=f"All {len(watched):,} tables, worst first: deletion vectors, files, bytes to remove, due work.",
        kinds={"python"},
    )

    @dg.multi_asset(name=f"{name.replace('/', '__')}_scan", specs=[spec])
    def report(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with in_dagster_terms(context), shown_in(context.log):
            found = rank(scan(watched))
            if metrics is not None:
                publish(exposition(found, runs=_last_runs(context.instance, watched)), metrics)
            outcome = of_lake(found, limit=_SHOWN)
        entries = metadata.render(outcome, names={})
        costs = costs_by_month(context.instance, watched, datetime.now(UTC) - _COSTS_SINCE)
        if costs:
            entries["costs_by_month"] = metadata.table_of([asdict(each) for each in costs[:_SHOWN]])
        picture = entries.pop("deleted_ratio_by_partition", None)
        return dg.MaterializeResult(
            metadata=entries if picture is None else entries | {"deleted_ratio_by_table": picture}
        )

    return report


def _last_runs(instance: dg.DagsterInstance, tables: Iterable[TableSettings]) -> Iterator[LastRun]:
    """The last run of each table that ended, of those that were started for one table."""
    ended = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
    for table in tables:
        last = instance.get_run_records(dg.RunsFilter(tags={naming.TABLE_TAG: table.name}, statuses=ended), limit=1)
        for record in last:
            if record.start_time is not None and record.end_time is not None:
                run = record.dagster_run
                jobs = run.tags.get(naming.JOBS_TAG, run.job_name)
                yield LastRun(table.name, jobs, record.end_time - record.start_time, run.is_success)


def refresh(
    instance: dg.DagsterInstance,
    report: dg.AssetsDefinition,
    tables: Mapping[str, TableState],
    every_seconds: float,
    now: float | None = None,
) -> dg.RunRequest | None:
    """A run of the report, if the tables have changed since its last run and that began long enough ago.

    tables : what the sensor knows of each.
    every_seconds : the least time between two runs.
    now : seconds since the epoch.
    """
    now = time.time() if now is None else now
    known = sorted(
        (name, state.inspection.version, state.inspection.due, state.readable) for name, state in tables.items()
    )
    state = sha256(repr(known).encode()).hexdigest()[:32]
    key = report.key.to_user_string()
    last = instance.get_run_records(dg.RunsFilter(tags={_REPORT_TAG: key}), limit=1)
    if last:
        same = last[0].dagster_run.tags.get(_STATE_TAG) == state
        if same or now - last[0].create_timestamp.timestamp() < every_seconds:
            return None
    return dg.RunRequest(
        # The tables may return to a state that they had before.
        run_key=f"{key}:{state}:{int(now)}",
        asset_selection=[report.key],
        tags={_REPORT_TAG: key, _STATE_TAG: state},
    )
