"""The sensor: looks at every table, observes those that changed, and asks for the maintenance that is due."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.at_work import at_work
from dv_maintenance.dagster.metadata import of_inspection
from dv_maintenance.dagster.observed import observed_before
from dv_maintenance.dagster.partitions import missing_partitions, range_of
from dv_maintenance.errors import DvMaintenanceError, RetryableError, UsageError, redacted
from dv_maintenance.maintenance.checks import READABLE
from dv_maintenance.service.budget import NotReached, within_budget
from dv_maintenance.service.cursor import Cursor, TableState
from dv_maintenance.service.inspection import Inspection
from dv_maintenance.service.observe import Observation, Observer

if TYPE_CHECKING:
    from dv_maintenance.maintenance.tables_file import Job, WatchedTable

__all__ = ["build_dv_sensor"]

# Dagster ends a tick after 60 seconds. What has not been looked at after the budget comes first in the next tick; looks
# that are under way get the patience on top.
_BUDGET_SECONDS = 35.0
_PATIENCE_SECONDS = 10.0
# The daemon launches them one after the other before it turns to the next tick.
_MAX_REQUESTS = 100
_MAX_FAILED_RUNS = 3
_SHOWN_NOTES = 20
_JOBS: tuple[Job, ...] = ("optimize", "vacuum", "manifest")
# Ops that people put into jobs of their own and that rewrite files or take them out.
_OPS = ("delete_rows", "purge_erased", "zorder", "restore", "engine_sql")


def build_dv_sensor(
    tables: Iterable[WatchedTable],
    *,
    name: str = "dv_accumulation",
    jobs: Iterable[Job] = _JOBS,
    minimum_interval_seconds: int = 60,
    budget_seconds: float = _BUDGET_SECONDS,
    description: str = "Looks at the tables' versions for work that piles up, and requests what is due.",
) -> dg.SensorDefinition:
    """One sensor for all these tables, stopped until somebody starts it.

    A tick costs one probe per table that did not change. A table gets at most one run at a time, for the jobs that are
    due, and another only when it has a new version, or after a failure: three times at the same version. A vacuum has
    runs of its own, which go first, and are counted on their own: a rewrite that fails, or takes the process with it,
    keeps no disk from being cleaned up. ``jobs``: those to look for, of the tables' own. A sensor that looks for
    ``optimize`` also observes the tables and evaluates their check ``readable``; one that does not leaves both to
    another sensor.
    """
    wanted = frozenset(jobs)
    chosen = (table.model_copy(update={"jobs": tuple(job for job in table.jobs if job in wanted)}) for table in tables)
    watched = tuple(table for table in chosen if table.jobs)
    looker = Observer(data_versions="optimize" in wanted)

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=dg.DefaultSensorStatus.STOPPED,
        asset_selection=dg.AssetSelection.assets(
            *(key for table in watched for key in naming.job_keys(table, table.jobs))
        ),
        description=description,
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _Tick(context, watched, looker, budget_seconds).result()

    return evaluate


class _Tick:
    """One evaluation. Collects as it goes from table to table."""

    def __init__(
        self, context: dg.SensorEvaluationContext, tables: Sequence[WatchedTable], looker: Observer, budget: float
    ) -> None:
        self.context = context
        self.looker = looker
        self.budget = budget
        state = self._read_cursor()
        names = [table.name for table in tables]
        first = names.index(state.first) if state.first in names else 0
        self.tables = [*tables[first:], *tables[:first]]
        known = frozenset(names)
        self.seen = {name: seen for name, seen in state.tables.items() if name in known}
        self.at_work = at_work(context.instance)
        self.left: list[str] = []
        self.waiting: list[str] = []
        self.events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
        self.requests: list[dg.RunRequest] = []
        self.new_partitions: list[dg.AddDynamicPartitionsRequest] = []
        self.notes: list[str] = []

    def result(self) -> dg.SensorResult:
        def look(table: WatchedTable) -> Observation:
            def before() -> tuple[int, int] | None:
                return observed_before(self.context.instance, naming.table_key(table)) if table.observe else None

            return self.looker.observe(
                table, self.seen.get(table.name), busy=self._busy(table) is not None, observed=before
            )

        for table, found in within_budget(self.tables, look, budget=self.budget, patience=_PATIENCE_SECONDS):
            if isinstance(found, NotReached):
                self.left.append(table.name)
            elif isinstance(found, BaseException):
                self._complain(table, found)
            else:
                try:
                    self._take_in(table, found)
                except Exception as error:  # noqa: BLE001 (whatever one table is up to, the others get their turn)
                    self._complain(table, error)
        return self._sum_up()

    def _read_cursor(self) -> Cursor:
        try:
            return Cursor.from_json(self.context.cursor)
        except UsageError as error:
            self.context.log.warning("the cursor was edited or damaged, starting anew: %s", error)
            return Cursor()

    def _busy(self, table: WatchedTable) -> str | None:
        """Whatever is at work on any of the table's maintenance, also on jobs that this sensor does not look for, or
        that somebody made of our ops.
        """
        assets = (naming.job_key(table, job).to_user_string() for job in _JOBS)
        names = (*assets, *(naming.op_name(table, what) for what in (*_JOBS, *_OPS)))
        return next((self.at_work[name] for name in names if name in self.at_work), None)

    def _take_in(self, table: WatchedTable, found: Observation) -> None:
        last, look = self.seen.get(table.name), found.inspection
        if self.looker.data_versions and found.snapshot is not None:
            self.new_partitions += missing_partitions(table, found.snapshot, self.context.instance)
        seen = TableState(look, found.data_version, last.readable if last is not None else None)
        if self.looker.data_versions:
            if look.changed:
                # Of an asset that somebody else makes, the data version is for them to say.
                tags = {"dagster/data_version": str(found.data_version)} if table.observe else None
                self.events.append(
                    dg.AssetObservation(naming.table_key(table), metadata=of_inspection(look), tags=tags)
                )
            if not seen.readable:
                self.events.append(_readable(table, None, "The table's newest version can be read."))
                seen = replace(seen, readable=True)
        self.seen[table.name] = seen
        if look.due:
            self._request(table, found)

    def _request(self, table: WatchedTable, found: Observation) -> None:
        look, busy = found.inspection, self._busy(table)
        if busy is not None:
            self.notes.append(f"{table.name}: {' and '.join(look.due)} due, {busy} is at work on it")
            return
        if "vacuum" in look.due and self._vacuumed(table, look):
            # Not every format has a new version to show for it.
            look = replace(look, due=tuple(job for job in look.due if job != "vacuum"))
            self.seen[table.name] = replace(self.seen[table.name], inspection=look)
        for jobs in _runs_of(look.due):
            tags = {
                naming.TABLE_TAG: table.name,
                naming.VERSION_TAG: str(look.version),
                naming.JOBS_TAG: "+".join(jobs),
            }
            # Time makes a vacuum due once more, without a new version.
            checked = look.vacuum_checked or 0 if "vacuum" in jobs else 0
            failed = self._failed(tags, checked)
            if failed >= _MAX_FAILED_RUNS:
                waiting = "the next look for expired files" if checked else "a new version"
                what = f"{failed} runs failed at version {look.version} ({' and '.join(jobs)})"
                self.notes.append(f"{table.name}: {what}, waiting for {waiting}")
                continue
            if len(self.requests) >= _MAX_REQUESTS:
                self.waiting.append(table.name)
                return
            keys = found.due_keys if "optimize" in jobs else frozenset()
            chosen = range_of(table, keys, self.context.instance) if keys else None
            # Dagster never starts a second run of the same key: a failed run must change it, and so must time.
            parts = [table.name, look.version, tags[naming.JOBS_TAG], checked, failed]
            self.requests.append(
                dg.RunRequest(
                    run_key=":".join(map(str, parts if chosen is None else [*parts, chosen.start, chosen.end])),
                    asset_selection=naming.job_keys(table, jobs),
                    tags=tags if chosen is None else tags | _range_tags(chosen),
                )
            )
            return

    def _failed(self, tags: Mapping[str, str], since: int) -> int:
        """Runs with these tags that failed, at any time or since a moment in epoch milliseconds."""
        created = datetime.fromtimestamp(since / 1000, UTC) if since else None
        failed = dg.RunsFilter(tags=tags, statuses=[dg.DagsterRunStatus.FAILURE], created_after=created)
        return self.context.instance.get_runs_count(failed)

    def _vacuumed(self, table: WatchedTable, look: Inspection) -> bool:
        """Whether it was since expired files were last looked for."""
        made = self.context.instance.get_latest_materialization_event(naming.job_key(table, "vacuum"))
        return made is not None and made.timestamp * 1000 > (look.vacuum_checked or 0)

    def _complain(self, table: WatchedTable, error: BaseException) -> None:
        """What the last look found stays as it was, so that the next one sees every change since."""
        if isinstance(error, DvMaintenanceError | OSError):
            text = str(error)
            self.context.log.warning("%s: %s", table.name, text)
        else:
            text = f"{type(error).__name__}, an error in dv_maintenance: the log of this tick has it in full"
            trace = redacted("".join(traceback.format_exception(error)))
            self.context.log.error("%s: the look failed\n%s", table.name, trace)
        self.notes.append(f"{table.name}: {text}")
        last = self.seen.get(table.name, TableState(Inspection(table.name)))
        if self.looker.data_versions and last.readable is not False:
            self.events.append(_readable(table, error, text))
            self.seen[table.name] = replace(last, readable=False)

    def _sum_up(self) -> dg.SensorResult:
        # A table whose turn to be looked at has not come goes before one whose run has to wait.
        first = next(iter([*self.left, *self.waiting]), None)
        if self.left:
            self.notes.insert(0, f"{len(self.left)} tables left for the next tick, from {first} on")
        if self.waiting:
            self.notes.insert(0, f"{len(self.waiting)} runs left for the next tick, from {self.waiting[0]} on")
        more = len(self.notes) - _SHOWN_NOTES
        text = "; ".join(self.notes[:_SHOWN_NOTES] + ([f"and {more} more"] if more > 0 else []))
        if self.requests and text:
            self.context.log.info(text)
        return dg.SensorResult(
            run_requests=self.requests,
            asset_events=self.events,
            dynamic_partitions_requests=self.new_partitions,
            cursor=Cursor(self.seen, first).to_json(),
            skip_reason=None if self.requests else text or f"nothing is due in {len(self.tables)} tables",
        )


def _readable(table: WatchedTable, error: BaseException | None, description: str) -> dg.AssetCheckEvaluation:
    # Storage that is away for a moment says nothing about the table.
    severity = dg.AssetCheckSeverity.WARN if isinstance(error, RetryableError) else dg.AssetCheckSeverity.ERROR
    return dg.AssetCheckEvaluation(
        asset_key=naming.table_key(table),
        check_name=READABLE,
        passed=error is None,
        severity=severity,
        description=description,
        blocking=False,
    )


def _runs_of(due: Sequence[Job]) -> list[tuple[Job, ...]]:
    """The runs that what is due takes, in their order."""
    first: tuple[Job, ...] = tuple(job for job in due if job == "vacuum")
    rest: tuple[Job, ...] = tuple(job for job in due if job != "vacuum")
    return [jobs for jobs in (first, rest) if jobs]


def _range_tags(chosen: dg.PartitionKeyRange) -> dict[str, str]:
    return {ASSET_PARTITION_RANGE_START_TAG: chosen.start, ASSET_PARTITION_RANGE_END_TAG: chosen.end}
