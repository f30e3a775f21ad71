"""One evaluation of many tables: inspect them within a time budget, and decide which runs to request."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from dv_maintenance.errors import DvMaintenanceError, UsageError, redacted
from dv_maintenance.maintenance.checks import unreadable
from dv_maintenance.service.budget import NotReached, within_budget
from dv_maintenance.service.checks import PARTITIONS
from dv_maintenance.service.cursor import Cursor, TableState
from dv_maintenance.service.decision import AT_ONCE, Attempts, Decision, Facts, decide
from dv_maintenance.service.due import RunRequest, runs_of
from dv_maintenance.service.inspection import Inspection
from dv_maintenance.service.partitions import GRID_COLUMNS
from dv_maintenance.service.ranges import widest_range
from dv_maintenance.units import count, epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.service.checks import Finding
    from dv_maintenance.service.observe import Observation, Observer
    from dv_maintenance.service.reads import Reads
    from dv_maintenance.service.tables_file import TableSettings
    from dv_maintenance.tables.table import Probe

_log = logging.getLogger(__name__)

_SHOWN_NOTES = 20


class Orchestrator(Protocol):
    """What only an orchestrator knows, and the place where it records findings. Any method may raise: that table then
    counts as unreadable, and the others are still evaluated.
    """

    def busy(self, table: TableSettings) -> str | None:
        """The run that works on the table, such as ``run 1a2b3c4d``, however started. Also called from threads."""

    def attempts(self, request: RunRequest) -> Attempts:
        """Runs of this table, version, jobs and settings that have ended, since ``vacuum_checked``."""

    def last_vacuum(self, table: TableSettings) -> int | None:
        """When the last vacuum ended, epoch milliseconds."""

    def last_observed(self, table: TableSettings) -> tuple[int, int] | None:
        """Version and data version of the newest observation. Called from threads."""

    def downstream(self, table: TableSettings, now: int) -> Reads | None:
        """The reads of the table by its downstream assets; ``None`` if they are unknown. Called from threads. ``now``:
        epoch milliseconds.
        """

    def partition_keys(self, table: TableSettings) -> Sequence[str]:
        """Every partition key of the table that the orchestrator knows, in its order."""

    def record(self, table: TableSettings, observation: Observation) -> None:
        """Record a new version of the table."""

    def check(self, table: TableSettings, finding: Finding) -> None:
        """Record the current result of the check of that name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one evaluation.

    ``budget`` : seconds; tables that were not inspected by then come first next time.
    ``patience`` : additional seconds for inspections already started.
    ``requests`` : the maximum number of runs to request.
    ``failed_runs`` : so many runs of the same work at the same version follow each other at once; see ``decision``.
    """

    budget: float
    patience: float
    requests: int
    failed_runs: int = AT_ONCE


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The runs to request, at most one per table. ``reason``: further remarks, or why there are no runs. ``decisions``
    and ``errors``: by table; what an inspection that failed had met.
    """

    requests: tuple[RunRequest, ...]
    reason: str
    cursor: Cursor
    decisions: Mapping[str, Decision]
    errors: Mapping[str, BaseException]


def evaluate(
    tables: Sequence[TableSettings],
    cursor: str | None,
    orchestrator: Orchestrator,
    observer: Observer,
    limits: Limits,
) -> Evaluation:
    """Inspect the tables, and request runs for those with due work.

    A table that did not change costs one probe. A table gets at most one run at a time, for the jobs that are due, and
    another only when it has a new version, or after one that ended without effect: see :func:`decision.decide`. A table
    that can't be inspected does not stop the others.

    cursor : JSON of the last evaluation's cursor; a damaged one is ignored.
    """
    return _Evaluation(tables, _read(cursor), orchestrator, observer, limits).run()


def _read(cursor: str | None) -> Cursor:
    try:
        return Cursor.from_json(cursor)
    except UsageError as error:
        _log.warning("the cursor was edited or damaged, starting over: %s", error)
        return Cursor()


class _Evaluation:
    """Collects requests and notes from table to table."""

    def __init__(
        self,
        tables: Sequence[TableSettings],
        cursor: Cursor,
        orchestrator: Orchestrator,
        observer: Observer,
        limits: Limits,
    ) -> None:
        names = [table.name for table in tables]
        first = names.index(cursor.first) if cursor.first in names else 0
        self.tables = [*tables[first:], *tables[:first]]
        known = frozenset(names)
        self.states = {name: state for name, state in cursor.tables.items() if name in known}
        self.orchestrator = orchestrator
        self.observer = observer
        self.limits = limits
        self.left: list[str] = []
        self.waiting: list[str] = []
        self.requests: list[RunRequest] = []
        self.notes: list[str] = []
        self.decisions: dict[str, Decision] = {}
        self.errors: dict[str, BaseException] = {}

    def run(self) -> Evaluation:
        limits = self.limits
        observed = within_budget(
            self.tables, self._probe, self._observe, budget=limits.budget, patience=limits.patience
        )
        for table, found in observed:
            if isinstance(found, NotReached):
                self.left.append(table.name)
            elif isinstance(found, BaseException):
                self._report_error(table, found)
            else:
                try:
                    self._process(table, found)
                except Exception as error:  # noqa: BLE001 (whatever is wrong with one table, the others get their turn)
                    self._report_error(table, error)
        return self._summary()

    def _probe(self, table: TableSettings) -> Probe:
        return self.observer.probe(table, self.states.get(table.name))

    def _observe(self, table: TableSettings, newest: Probe) -> Observation:
        return self.observer.observe(
            table,
            self.states.get(table.name),
            newest,
            busy=self.orchestrator.busy(table) is not None,
            observed=lambda: self.orchestrator.last_observed(table) if table.observe else None,
            downstream=lambda now: self.orchestrator.downstream(table, now),
        )

    def _process(self, table: TableSettings, found: Observation) -> None:
        last = self.states.get(table.name, TableState(Inspection(table.name)))
        if found.inspection.another:
            # Nothing of the last one holds. Its data versions would look like those of the old table.
            last = TableState(Inspection(table.name), lineage=_lineage(found.inspection.stamp))
        state = replace(last, inspection=found.inspection, data_version=found.data_version)
        if self.observer.data_versions:
            if found.inspection.changed:
                self.orchestrator.record(table, replace(found, lineage=state.lineage))
            # Damage is said once: until the files are back, each inspection finds them missing.
            if found.readable is not None and (found.inspection.changed or last.readable is not (not found.damaged)):
                self.orchestrator.check(table, found.readable)
        if found.damaged:
            state = replace(state, readable_since=0)
        elif found.readable is not None and not state.readable:
            # The cursor stays small: only a table that could not be read has a time of its own.
            state = replace(state, readable_since=1 if state.readable is None else epoch_millis())
        if found.findings is not None:
            for finding in found.findings:
                self.orchestrator.check(table, finding)
            if any(each.check != PARTITIONS for each in found.findings):
                until = min((each.until for each in found.findings if each.until is not None), default=None)
                state = replace(state, checked_until=until)
        self.states[table.name] = state
        if found.inspection.due:
            self._request(table, found)

    def _request(self, table: TableSettings, found: Observation) -> None:
        inspection = found.inspection
        vacuumed = self.orchestrator.last_vacuum(table) if "vacuum" in inspection.due else None
        # What became of runs for the table before is of no interest.
        lineage = self.states[table.name].lineage
        runs = [replace(run, settings=run.settings + lineage) for run in runs_of(inspection, vacuumed)]
        if "vacuum" in inspection.due and not any("vacuum" in run.jobs for run in runs):
            due = tuple(job for job in inspection.due if job != "vacuum")
            self.states[table.name] = replace(self.states[table.name], inspection=replace(inspection, due=due))
        decision = self.decisions[table.name] = self._decision(table, runs, found.readable)
        run = decision.requested
        if run is None:
            if decision.reason:
                self.notes.append(f"{table.name}: {decision.reason}")
            return
        if len(self.requests) >= self.limits.requests:
            self.waiting.append(table.name)
            return
        if "optimize" in run.jobs and found.due_keys:
            run = replace(run, partitions=self._range(table, found.due_keys))
        self.requests.append(run)
        _log.info(
            "%s: requesting a run of %s at version %s%s",
            table.name,
            " and ".join(run.jobs),
            run.version,
            f" ({decision.reason})" if decision.reason else "",
        )

    def _decision(self, table: TableSettings, runs: Sequence[RunRequest], answer: Finding | None) -> Decision:
        """``answer``: of the check ``readable``, if it was asked just now."""
        busy = self.orchestrator.busy(table) if runs else None
        # What became of earlier runs is asked of the orchestrator's storage, and decides nothing beside another run.
        attempts = {} if busy is not None else {run.key: self.orchestrator.attempts(run) for run in runs}
        if answer is None and any(each.damage for each in attempts.values()):
            # Files can go missing without a commit, after the last inspection of them.
            answer = self.observer.readable(table)
            if answer is not None and answer.severity == "error":
                self.orchestrator.check(table, answer)
                self.states[table.name] = replace(self.states[table.name], readable_since=0)
        facts = Facts(
            busy,
            lambda run: attempts[run.key],
            answer.reason if answer is not None and answer.severity == "error" else None,
            self.states[table.name].readable_since,
        )
        return decide(runs, facts, epoch_millis(), self.limits.failed_runs)

    def _range(self, table: TableSettings, due: frozenset[str | None]) -> tuple[str, str] | None:
        columns = () if table.partitions is None else table.partitions.columns
        return widest_range(
            self.orchestrator.partition_keys(table), due, len(columns) if len(columns) <= GRID_COLUMNS else 1
        )

    def _report_error(self, table: TableSettings, error: BaseException) -> None:
        """The result of the last inspection is kept, so that the next one sees every change since."""
        self.errors[table.name] = error
        if isinstance(error, DvMaintenanceError | OSError):
            text = str(error)
            _log.warning("%s: %s", table.name, text)
        else:
            text = f"{type(error).__name__}, an error in dv_maintenance: see the log of this tick"
            trace = redacted("".join(traceback.format_exception(error)))
            _log.error("%s: the inspection failed\n%s", table.name, trace)
        self.notes.append(f"{table.name}: {text}")
        last = self.states.get(table.name, TableState(Inspection(table.name)))
        if self.observer.data_versions and last.readable is not False:
            self.orchestrator.check(table, unreadable(error, text))
            self.states[table.name] = replace(last, readable_since=0)

    def _summary(self) -> Evaluation:
        # A table that was not inspected yet precedes one whose run has to wait.
        first = next(iter([*self.left, *self.waiting]), None)
        if self.left:
            self.notes.insert(0, f"{count(len(self.left), 'table')} left for the next tick, from {first} on")
        if self.waiting:
            self.notes.insert(0, f"{count(len(self.waiting), 'run')} left for the next tick, from {self.waiting[0]} on")
        more = len(self.notes) - _SHOWN_NOTES
        text = "; ".join(self.notes[:_SHOWN_NOTES] + ([f"and {more} more"] if more > 0 else []))
        if not self.requests and not text:
            text = f"nothing is due in {count(len(self.tables), 'table')}"
        return Evaluation(tuple(self.requests), text, Cursor(self.states, first), self.decisions, self.errors)


def _lineage(stamp: str) -> str:
    return sha256(stamp.encode()).hexdigest()[:8]
