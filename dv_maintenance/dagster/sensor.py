"""The sensor: looks at every table, observes those that changed, and asks for the maintenance that is due."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.metadata import of_look
from dv_maintenance.dagster.state import SensorState, last_data_version
from dv_maintenance.errors import DvMaintenanceError, UsageError

if TYPE_CHECKING:
    from dv_maintenance.maintenance.tables_file import Job, WatchedTable
    from dv_maintenance.maintenance.watch import Look

__all__ = ["build_dv_sensor"]

# Dagster ends a tick after 60 seconds; what has not been looked at by then comes first in the next one.
_BUDGET_SECONDS = 40.0
_MAX_FAILED_RUNS = 3
_JOBS: tuple[Job, ...] = ("optimize", "vacuum", "manifest")
_ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def build_dv_sensor(
    tables: Iterable[WatchedTable],
    *,
    name: str = "dv_accumulation",
    minimum_interval_seconds: int = 60,
    budget_seconds: float = _BUDGET_SECONDS,
) -> dg.SensorDefinition:
    """One sensor for all these tables, stopped until somebody starts it.

    A tick costs one probe per table that did not change. A table gets at most one run at a time, for the jobs that are
    due, and another only when it has a new version, or after a failure: three times at the same version.
    """
    watched = tuple(tables)

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        asset_selection=dg.AssetSelection.assets(
            *(key for table in watched for key in naming.job_keys(table, table.jobs))
        ),
        description="Looks at the tables' logs for deletion vectors that pile up, and requests the maintenance due.",
    )
    def dv_accumulation(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _Tick(context, watched, budget_seconds).result()

    return dv_accumulation


class _Tick:
    """One evaluation. Collects as it goes from table to table."""

    def __init__(self, context: dg.SensorEvaluationContext, tables: Sequence[WatchedTable], budget: float) -> None:
        self.context = context
        self.budget = budget
        self.state = self._read_cursor()
        names = [table.name for table in tables]
        first = names.index(self.state.first) if self.state.first in names else 0
        self.tables = [*tables[first:], *tables[:first]]
        self.looks = {name: look for name, look in self.state.looks.items() if name in names}
        self.data_versions = {name: each for name, each in self.state.data_versions.items() if name in names}
        self.events: list[dg.AssetObservation] = []
        self.requests: list[dg.RunRequest] = []
        self.notes: list[str] = []

    def result(self) -> dg.SensorResult:
        deadline = time.monotonic() + self.budget
        first = None
        at_work = _at_work(self.context.instance)
        for number, table in enumerate(self.tables):
            if number and time.monotonic() > deadline:
                first = table.name
                self.notes.append(f"{len(self.tables) - number} tables left for the next tick, from {first} on")
                break
            look = self._look(table)
            if look.due and look.error is None:
                self._request(table, look, at_work)
        return dg.SensorResult(
            run_requests=self.requests,
            asset_events=self.events,
            cursor=SensorState(self.looks, self.data_versions, first).to_json(),
            skip_reason=None if self.requests else "; ".join(self.notes) or "nothing is due",
        )

    def _read_cursor(self) -> SensorState:
        try:
            return SensorState.from_json(self.context.cursor)
        except UsageError as error:
            self.context.log.warning("the cursor was edited or damaged, starting anew: %s", error)
            return SensorState()

    def _look(self, table: WatchedTable) -> Look:
        """Look, remember, and observe what is new. A table without an answer keeps its place in the cursor."""
        from dv_maintenance.maintenance.tables_file import WatchConfig
        from dv_maintenance.maintenance.watch import look

        last = self.looks.get(table.name)
        _, looks = look(WatchConfig(tables=(table,)), {} if last is None else {table.name: last})
        found = looks[table.name]
        try:
            if found.changed:
                self._observe(table, found, last)
        except (DvMaintenanceError, OSError) as error:
            # Not remembered: the next tick sees the change again.
            self._complain(table, str(error))
            return last or found
        if found.error is not None:
            self._complain(table, found.error)
        self.looks[table.name] = found
        return found

    def _observe(self, table: WatchedTable, found: Look, last: Look | None) -> None:
        from dv_maintenance.tables import open_table

        known = self.data_versions.get(table.name)
        since = (last.version, known) if last is not None and last.version is not None and known is not None else None
        version = last_data_version(open_table(table.path, table.format, table.storage_options), since)
        self.data_versions[table.name] = version
        self.events.append(
            dg.AssetObservation(
                naming.table_key(table), metadata=of_look(found), tags={"dagster/data_version": str(version)}
            )
        )

    def _request(self, table: WatchedTable, look: Look, at_work: Sequence[tuple[str, set[str]]]) -> None:
        nodes = {key.to_python_identifier() for key in naming.job_keys(table, _JOBS)}
        busy = next((run_id for run_id, others in at_work if nodes & others), None)
        if busy is not None:
            self.notes.append(f"{table.name}: {' and '.join(look.due)} due, run {busy[:8]} is at work on it")
            return
        tags = {naming.TABLE_TAG: table.name, naming.VERSION_TAG: str(look.version)}
        failed = self.context.instance.get_runs_count(dg.RunsFilter(tags=tags, statuses=[dg.DagsterRunStatus.FAILURE]))
        if failed >= _MAX_FAILED_RUNS:
            self.notes.append(
                f"{table.name}: {failed} runs failed at version {look.version}, waiting for a new version"
            )
            return
        # Dagster never starts a second run of the same key: a failed run must change it, and so must time for vacuum,
        # which may become due again without a new version.
        checked = look.vacuum_checked if "vacuum" in look.due else 0
        self.requests.append(
            dg.RunRequest(
                run_key=f"{table.name}:{look.version}:{'+'.join(look.due)}:{checked}:{failed}",
                asset_selection=naming.job_keys(table, look.due),
                tags=tags,
            )
        )

    def _complain(self, table: WatchedTable, error: str) -> None:
        self.context.log.warning("%s: %s", table.name, error)
        self.notes.append(f"{table.name}: {error}")


def _at_work(instance: dg.DagsterInstance) -> list[tuple[str, set[str]]]:
    """(run id, node names of its assets) of each run that has not ended, whoever launched it. A run of a whole job
    names no assets; its job's snapshot does.
    """
    found = []
    for run in instance.get_runs(dg.RunsFilter(statuses=_ACTIVE)):
        nodes = {key.to_python_identifier() for key in run.asset_selection or ()}
        if not nodes and run.job_snapshot_id is not None:
            invocations = instance.get_job_snapshot(run.job_snapshot_id).dep_structure_snapshot.node_invocation_snaps
            nodes = {invocation.node_name for invocation in invocations}
        found.append((run.run_id, nodes))
    return found
