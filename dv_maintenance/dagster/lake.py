"""One asset that shows the state of all tables, the worst first, and decides when to refresh it."""

# Without `from __future__ import annotations`: Dagster reads the annotations of assets.

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

import dagster as dg

from dv_maintenance.dagster import metadata, naming
from dv_maintenance.dagster.assets import GROUP
from dv_maintenance.dagster.costs import costs_by_month
from dv_maintenance.dagster.errors import in_dagster_terms
from dv_maintenance.dagster.internals import AssetCheckExecutionRecord, public
from dv_maintenance.dagster.logs import shown_in
from dv_maintenance.service.checks import FSCK, Finding, Severity, check_names
from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.lake import LakeTable, as_checked, rank, scan
from dv_maintenance.service.metrics import LastRun, exposition, publish
from dv_maintenance.service.reports.lake import of_lake
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.service.text import bullets, shortened
from dv_maintenance.units import count

# The page shows a table in full.
_SHOWN: Final = 200
_LISTED: Final = 50
_SAID: Final = 300
# Tables whose checks one query asks for.
_AT_ONCE: Final = 100
_COSTS_SINCE: Final = timedelta(days=366)
_STATE_TAG: Final = "dv/lake_state"
_REPORT_TAG: Final = "dv/lake_report"


@public
def build_dv_lake_report(
    tables: Iterable[TableSettings],
    *,
    name: str = "dv_lake_report",
    group_name: str = GROUP,
    owners: Iterable[str] = (),
    tags: Mapping[str, str] | None = None,
    metrics: str | None = None,
) -> dg.AssetsDefinition:
    """An asset that lists all tables, the worst first, with totals to plot, and the checks that failed last.
    It reads only logs, and a table that can't be read is a row with its error. ``build_dv_sensor`` refreshes it
    (``report``); so may any schedule.

    Parameters
    ----------
    name
        key of the asset, its parts separated by slashes.
    metrics
        where to put metrics for Prometheus: a file that ends in ``.prom``, or the URL of a push gateway.
    """
    watched = tuple(tables)
    spec = dg.AssetSpec(
        dg.AssetKey(name.split("/")),
        deps=[naming.table_key(table) for table in watched],
        group_name=group_name,
        owners=list(owners),
        tags=dict(tags or {}),
        description=f"{count(len(watched), 'table')}, worst first: deletion vectors, files, bytes to remove, due work.",
        kinds={"python"},
    )

    @dg.multi_asset(name=f"{name.replace('/', '__')}_scan", specs=[spec])
    def report(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
        with in_dagster_terms(context), shown_in(context.log):
            failing = _failing_checks(context.instance, watched)
            found = rank(_as_checked(each, failing.get(each.name, ())) for each in scan(watched))
            if metrics is not None:
                publish(exposition(found, runs=_last_runs(context.instance, watched)), metrics)
            names = {name: [each.check for each in findings] for name, findings in failing.items()}
            outcome = of_lake(found, limit=_SHOWN, stored=True, failing=names)
        entries = metadata.render(outcome, names={})
        if failing:
            entries["failing"] = dg.MetadataValue.md(_listed(watched, failing))
        costs = costs_by_month(context.instance, watched, datetime.now(UTC) - _COSTS_SINCE)
        if costs:
            entries["costs_by_month"] = metadata.table_of([asdict(each) for each in costs[:_SHOWN]])
        picture = entries.pop("deleted_ratio_by_partition", None)
        return dg.MaterializeResult(
            metadata=entries if picture is None else entries | {"deleted_ratio_by_table": picture}
        )

    return report


def _failing_checks(instance: dg.DagsterInstance, tables: Sequence[TableSettings]) -> dict[str, list[Finding]]:
    """The checks of each table whose last result is a failure."""
    by_key = {naming.table_key(table): table.name for table in tables}
    found: dict[str, list[Finding]] = {}
    for at in range(0, len(tables), _AT_ONCE):
        keys = [
            dg.AssetCheckKey(naming.table_key(table), name)
            for table in tables[at : at + _AT_ONCE]
            for name in (*check_names(table), FSCK)
        ]
        records = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
        for key in keys:
            finding = _finding(records.get(key))
            if finding is not None:
                found.setdefault(by_key[key.asset_key], []).append(finding)
    return found


def _finding(record: AssetCheckExecutionRecord | None) -> Finding | None:
    """What a failed check found; ``None`` if it passed, or was not evaluated."""
    event = None if record is None or record.event is None else record.event.dagster_event
    found = None if event is None else event.event_specific_data
    if not isinstance(found, dg.AssetCheckEvaluation) or found.passed:
        return None
    numbers = {name: entry.value for name, entry in found.metadata.items()}
    severity: Severity = "error" if found.severity is dg.AssetCheckSeverity.ERROR else "warn"
    return Finding(found.check_name, severity, found.description or "", numbers)


def _as_checked(row: LakeTable, findings: Iterable[Finding]) -> LakeTable:
    for finding in findings:
        row = as_checked(row, finding)
    return row


def _listed(tables: Iterable[TableSettings], failing: Mapping[str, Sequence[Finding]]) -> str:
    """Each table with failing checks, errors first, with a link to the page of its checks."""
    named = [(table, failing[table.name]) for table in tables if table.name in failing]
    named.sort(key=lambda each: all(finding.severity == "warn" for finding in each[1]))
    lines = []
    for table, findings in named[:_LISTED]:
        said = "; ".join(f"**{finding.check}**: {shortened(finding.reason, _SAID)}" for finding in findings)
        lines.append(f"[{naming.table_key(table).to_user_string()}]({naming.page(table, 'checks')}): {said}")
    lines += [f"and {count(len(named) - _LISTED, 'more table')}"] if len(named) > _LISTED else []
    return bullets(lines)


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
