"""One run that works through many tables within a window and a budget, on one engine.

Each table is planned first. The steps of all tables then compete for the time; see ``scheduling.allocate``. They run a
slice at a time: after each slice the time left is measured, and nothing starts that may not finish. A step that is
slower than everything before it is stopped in time for a commit, and is not committed. A table that fails does not stop
the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final

from dv_maintenance.engine import slots_of
from dv_maintenance.engine.pool import stopped_at
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.execution.apply import StoppedError, apply
from dv_maintenance.maintenance.execution.batches import work_of
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.meter.decide import is_due
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.maintenance.scheduling.allocate import Allocation, allocate
from dv_maintenance.maintenance.scheduling.demand import minutes
from dv_maintenance.maintenance.scheduling.items import Reserve, WorkItem
from dv_maintenance.maintenance.scheduling.window import Window, coming_nights, opened_at, seconds_left
from dv_maintenance.remedies import run
from dv_maintenance.service.inspection import reads_now
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.reports.work import KEPT_SHOWN, of_run
from dv_maintenance.service.verbs.state import opened
from dv_maintenance.units import DAY, count, epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.maintenance.execution.report import ApplyReport
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep
    from dv_maintenance.maintenance.reads.model import Reads
    from dv_maintenance.service.engines import EngineOf
    from dv_maintenance.service.tables_file import TableSettings
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import RewriteResult, RewriteTask

__all__ = [
    "NightTable",
    "PlanOf",
    "Window",
    "by_policy",
    "opened_at",
    "work_through",
]

_log = logging.getLogger(__name__)

_NIGHTS: Final = 60
# What is kept free at the end for the last commit: this share of the time, at most so many seconds; and this factor of
# the slowest one so far.
_COMMIT_SHARE: Final = 0.02
_COMMIT_SECONDS: Final = 60.0
_COMMIT_WORST: Final = 1.5
# A slice takes this share of the time left, so that estimates are corrected early, or all of a table's steps.
_SLICE: Final = 1 / 3

PlanOf = Callable[["TableSettings", "Table", "Snapshot", int], "MaintenancePlan"]
"""Plans a table at a snapshot for a time, epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class NightTable:
    """What became of a table.

    outcome : with the reason; ``None`` if it failed.
    waited_since : epoch milliseconds, if work that readers have paid for, or that a deadline needs, is left for another
        night; ``None`` if everything due was done, or nothing was.
    """

    table: TableSettings
    outcome: Outcome | None
    error: DvMaintenanceError | None = None
    waited_since: int | None = None


def by_policy(
    watched: TableSettings,
    table: Table,
    snapshot: Snapshot,
    now: int,
    *,
    downstream: Callable[[TableSettings, int], Reads | None] = lambda _table, _now: None,
) -> MaintenancePlan:
    """The plan by the table's policy and its reads, with the start that a shared session has.

    downstream : returns the reads of a table by downstream assets, if an orchestrator knows them.
    """
    # Of a time to come, reads are known as far as now.
    until = min(now, epoch_millis())
    reads, warnings = reads_now(watched, lambda at: downstream(watched, at))(until)
    if until == now:
        for warning in warnings:
            _log.warning("%s: %s", watched.name, warning)
    return decide_for(
        table,
        snapshot,
        watched.policy,
        reads=reads,
        now=now,
        start=watched.policy.prices.shared_start,
        listed=KEPT_SHOWN,
    )


def work_through(
    tables: Sequence[TableSettings],
    engine: EngineOf,
    *,
    window: Window | None,
    budget: int | None,
    now: Callable[[], int] = epoch_millis,
    plan_of: PlanOf = by_policy,
    waiting: Mapping[str, int] | None = None,
    spent: float = 0.0,
) -> Iterator[NightTable]:
    """Each table, as soon as its part of the run is over.

    window, budget : see ``scheduling.window``; the budget is in milliseconds. While the window is closed, every table
        waits.
    now : the time, epoch milliseconds.
    waiting : since when tables have waited for their turn, epoch milliseconds, if an earlier run knows.
    spent : seconds of the budget that earlier runs of this window have used.
    """
    began = now()
    night = _Night({}, [], window, budget, now, began, spent)
    for each in tables:
        try:
            planned = _plan(each, plan_of, began, (waiting or {}).get(each.name, began))
        except DvMaintenanceError as error:
            night.settled.append(NightTable(each, None, error))
            continue
        if planned.steps:
            night.planned[each.name] = planned
        else:
            night.settled.append(_result(planned))
    yield from night.settled
    yield from night.work(engine)


@dataclass(slots=True)
class _Planned:
    """A table of this night. ``waits``: the reason why a step did not run, by step."""

    watched: TableSettings
    table: Table
    plan: MaintenancePlan
    steps: dict[str, PlanStep]
    due: bool
    since: int
    reports: list[ApplyReport] = field(default_factory=list)
    waits: dict[str, str] = field(default_factory=dict)
    problem: DvMaintenanceError | None = None
    alerts: tuple[str, ...] = ()

    def stopped(self, part: Sequence[WorkItem], seconds: float) -> None:
        """Those of these steps that are not done were stopped at the end of the time: they wait."""
        estimated = sum(each.seconds for each in part)
        for each in part:
            if each.id in self.steps:
                self.waits[each.id] = (
                    f"Stopped when the time was up, and not committed: after {minutes(seconds)}, estimated "
                    f"{minutes(estimated)}."
                )

    def items(self, slots: int, longest: float) -> list[WorkItem]:
        found = []
        wanted = {step.id for step in self.plan.steps} if self.due else set()
        for step in self.steps.values():
            work = work_of(step)
            # Several steps share the slots; one alone does not. A step that no window has time for is to be named.
            seconds = work if work > longest else work / slots
            metered = step.metered
            paid, cost = (work, work) if metered is None else (metered.paid, metered.cost)
            found.append(
                WorkItem(
                    self.watched.name,
                    step.id,
                    seconds,
                    paid if step.id in wanted else min(paid, cost * 0.99),
                    cost,
                    None if metered is None else metered.purge_by,
                    self.since,
                    len(step.inputs),
                )
            )
        return found

    def result(self) -> NightTable:
        if self.problem is not None:
            return NightTable(self.watched, None, self.problem)
        report = _merged(self.reports)
        after = health(self.table.snapshot())
        outcome = of_run(self.plan, report, after, per_partition=False) if report else Outcome("")
        waits = list(dict.fromkeys(self.waits.values()))
        kept = self.due and any(step.id in self.waits for step in self.plan.steps)
        if report is None:
            reason = waits[0] if waits else "Nothing to do: no optimize is due."
        elif waits:
            reason = f"{outcome.reason} {count(len(self.waits), 'step')} left for another night. {waits[0]}"
        else:
            reason = outcome.reason
        lines = {**outcome.lines, **({"waiting": tuple(waits)} if waits else {})}
        lines |= {"alerts": self.alerts} if self.alerts else {}
        numbers = {**outcome.numbers, "version": after.version, "steps_waiting": len(self.waits)}
        return NightTable(
            self.watched,
            replace(outcome, reason=reason, numbers=numbers, lines=lines),
            waited_since=self.since if kept else None,
        )


def _result(planned: _Planned) -> NightTable:
    try:
        return planned.result()
    except DvMaintenanceError as error:
        return NightTable(planned.watched, None, error)


def _plan(watched: TableSettings, plan_of: PlanOf, now: int, since: int) -> _Planned:
    table = opened(watched)
    snapshot = table.snapshot()
    table.check_writable(snapshot, "rewrite")
    plan = plan_of(watched, table, snapshot, now)
    due = is_due(plan, now)
    steps = [step for step in plan.steps if due or (step.metered and step.metered.purge_by)]
    if watched.policy.erase_within is not None:
        # What deadlines will need of the coming nights.
        taken = {each.path for step in plan.steps for each in step.inputs}
        later = plan_of(watched, table, snapshot, now + _NIGHTS * DAY)
        steps += [
            replace(step, id=f"later-{step.id}")
            for step in later.steps
            if step.metered and step.metered.purge_by and not any(each.path in taken for each in step.inputs)
        ]
    return _Planned(watched, table, plan, {step.id: step for step in steps}, due, since)


@dataclass(slots=True)
class _Night:
    """The tables of a night, planned.

    settled : the tables that need no work, or failed.
    began : when planning began, epoch milliseconds.
    """

    planned: dict[str, _Planned]
    settled: list[NightTable]
    window: Window | None
    budget: int | None
    now: Callable[[], int]
    began: int
    spent: float
    finished: list[tuple[float, float]] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    @property
    def start(self) -> float:
        """Seconds of opening one more table."""
        return max(table.watched.policy.prices.shared_start for table in self.planned.values())

    def left(self) -> float:
        """Seconds for work, the last commit not included."""
        if self.stopped:
            return 0.0
        whole = seconds_left(self.window, self.budget, self.began, self.spent)
        reserve = max([min(whole * _COMMIT_SHARE, _COMMIT_SECONDS), *(_COMMIT_WORST * each for each in self.commits)])
        return whole - (self.now() - self.began) / 1000 - reserve

    def work(self, engine_of: EngineOf) -> Iterator[NightTable]:
        """The other tables, each as soon as its part of the run is over.

        engine_of : called if there is work, and time for it.
        """
        if self.planned:
            yield from self._run(engine_of() if self.left() > 0 else None)

    def _run(self, engine: Engine | None) -> Iterator[NightTable]:
        # Spark starts now: no step is charged with that.
        getattr(engine, "session", None)
        slots = (slots_of(engine) if engine else None) or 1
        ended: set[str] = set()
        while True:
            allocation = self._allocate(slots)
            for each in allocation.alerts:
                _log.warning("%s", each)
            done = False
            for name in dict.fromkeys(choice.item.table for choice in allocation.chosen):
                items = [each.item for each in allocation.chosen if each.item.table == name]
                done |= engine is not None and self._work(engine, name, items)
            if not done:
                break
            for name in [name for name in self.planned if name not in ended]:
                if not self.planned[name].steps:
                    ended.add(name)
                    yield _result(self.planned[name])
        for waiting in allocation.waiting:
            self.planned[waiting.item.table].waits.setdefault(waiting.item.id, waiting.reason)
        for choice in allocation.chosen:
            self.planned[choice.item.table].waits.setdefault(choice.item.id, "Waited: the time left was too short.")
        for name in [name for name in self.planned if name not in ended]:
            self.planned[name].alerts = (*allocation.alerts, *self.stopped)
            yield _result(self.planned[name])

    def _allocate(self, slots: int) -> Allocation:
        at = self.now()
        coming = coming_nights(self.window, self.budget, at, _NIGHTS)
        longest = max(each.seconds for each in coming)
        items = [each for table in self.planned.values() for each in table.items(slots, longest)]
        return allocate(
            items,
            now=at,
            seconds=max(self.left(), 0.0),
            coming=coming,
            start_seconds=self.start,
            reserve=Reserve.learnt(self.finished),
        )

    def _work(self, engine: Engine, name: str, items: Sequence[WorkItem]) -> bool:
        """Run the steps of a table in slices while there is time. Returns whether anything was run."""
        planned, waiting, done = self.planned[name], list(items), False
        while waiting:
            start = 0.0 if planned.reports else self.start
            part = _slice(waiting, self.left(), Reserve.learnt(self.finished).worst, start)
            if not part:
                break
            began = self.now()
            try:
                self._apply(engine, planned, [planned.steps[each.id] for each in part])
            except StoppedError as stop:
                planned.reports += [stop.report] if stop.report.steps else []
                for step in stop.report.steps:
                    planned.steps.pop(step.id, None)
                seconds = (self.now() - began) / 1000
                planned.stopped(part, seconds)
                estimated = minutes(sum(each.seconds for each in part))
                self.stopped.append(
                    f"{name}: steps estimated at {estimated} were stopped after {minutes(seconds)}, when the time was "
                    f"up. Lengthen window or budget, or run {run('apply')} for this table at another time."
                )
                _log.warning("%s", self.stopped[-1])
                return True
            except DvMaintenanceError as error:
                if planned.reports:
                    before = sum(len(each.steps) for each in planned.reports)
                    earlier = (
                        f"{count(before, 'step')} committed before, up to version {planned.reports[-1].version_after}"
                    )
                    error.done = "; ".join(part for part in (earlier, error.done) if part)
                _log.warning("%s: %s", name, error)
                planned.problem, planned.steps = error, {}
                return True
            self.finished.append((start + sum(each.seconds for each in part), (self.now() - began) / 1000))
            for each in part:
                del planned.steps[each.id]
            waiting, done = waiting[len(part) :], True
        return done

    def _apply(self, engine: Engine, planned: _Planned, steps: Sequence[PlanStep]) -> None:
        timed = _Timed(engine)
        with stopped_at(time.monotonic() + self.left()):
            report = apply(planned.table, timed, replace(planned.plan, steps=tuple(steps)))
        self.commits.append(timed.since())
        planned.reports.append(report)


class _Timed:
    """An engine that knows how long ago it was done."""

    name: ClassVar[str] = "timed"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.done = time.monotonic()

    @property
    def slots(self) -> int | None:
        return slots_of(self.engine)

    def run(
        self,
        tasks: Sequence[RewriteTask],
        *,
        storage_options: Mapping[str, str] | None = None,
        on_done: Callable[[RewriteResult], None] | None = None,
    ) -> list[RewriteResult]:
        try:
            return self.engine.run(tasks, storage_options=storage_options, on_done=on_done)
        finally:
            self.done = time.monotonic()

    def since(self) -> float:
        """Seconds: what the commit and reading it back took."""
        return time.monotonic() - self.done

    def close(self) -> None:
        self.engine.close()


def _slice(items: Sequence[WorkItem], left: float, worst: float, start: float) -> list[WorkItem]:
    """The next steps to run together: at most a share of the time left, but at least one if it fits."""
    part: list[WorkItem] = []
    total = start * worst
    for each in items:
        total += each.seconds * worst
        if total > (left * _SLICE if part else left):
            break
        part.append(each)
    return part


def _merged(reports: Sequence[ApplyReport]) -> ApplyReport | None:
    """The slices of a table as one report."""
    if not reports:
        return None
    return replace(
        reports[0],
        version_after=reports[-1].version_after,
        steps=tuple(step for each in reports for step in each.steps),
        verified=all(each.verified for each in reports),
        problems=tuple(dict.fromkeys(problem for each in reports for problem in each.problems)),
    )
