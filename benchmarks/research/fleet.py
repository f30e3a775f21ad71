"""Many synthetic tables that share one nightly window, to compare rules that choose the work of a night.

A table is its files: size, share of deleted rows, when the first of them was deleted, and what readers have paid. The
kinds are those that maintenance meets: change data that touches every file, lists of erased users (uniform, and with
favourites), late data that corrects the newest files, large tables of which a few are deleted and read often, and
archives that hardly anybody reads. Everything comes from a seed. Times are days, durations seconds of CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dv_maintenance.maintenance.meter.measure import DAY, Floats
from dv_maintenance.maintenance.meter.prices import Prices
from dv_maintenance.maintenance.planning.facts import Ints
from dv_maintenance.maintenance.scheduling.allocate import allocate
from dv_maintenance.maintenance.scheduling.items import Reserve, WorkItem
from dv_maintenance.maintenance.scheduling.window import Night

__all__ = ["RULES", "FleetTable", "Result", "by_allocation", "by_benefit", "by_deadline", "fleet", "run"]

_GB: Final = 1e9
# Days before the first night in which rows were deleted and nothing was maintained.
_BEFORE: Final = 15
# erase_within 30 d, without a retention of 7 d and the vacuum's day.
_LIFE: Final = 22
_PRICES: Final = Prices()
_STEP: Final = 4
_SLOW: Final = 20.0


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of table.

    files : fewest and most.
    gigabytes : of a file, smallest and largest.
    touched : share of the files that a day's deletes touch.
    share : share of a touched file's rows.
    reads : a day.
    skew : 0: every file alike; larger: the newest ones are touched more.
    """

    name: str
    files: tuple[int, int]
    gigabytes: tuple[float, float]
    touched: float
    share: float
    reads: float
    skew: float


_KINDS: Final = (
    _Kind("change data", (6, 20), (0.05, 0.3), 1.0, 0.02, 60, 0.0),
    _Kind("erasure, uniform", (30, 90), (0.1, 0.5), 0.12, 0.0005, 6, 0.0),
    _Kind("erasure, favourites", (30, 90), (0.1, 0.5), 0.10, 0.001, 12, 2.0),
    _Kind("late data", (20, 60), (0.1, 0.4), 0.15, 0.03, 20, 6.0),
    _Kind("large and read often", (60, 150), (0.2, 0.5), 0.04, 0.02, 40, 1.0),
    _Kind("archive", (40, 120), (0.2, 0.5), 0.02, 0.001, 0.2, 0.0),
)


@dataclass(slots=True, eq=False)
class FleetTable:
    """One table; one entry per file in each column.

    first : day of the oldest deleted row, infinite without one.
    paid : by readers since the last rewrite.
    ripe : day since which ``paid`` exceeds the cost of a rewrite, infinite before that.
    served : day of the last work.
    """

    name: str
    kind: _Kind
    size: Floats
    weight: Floats
    dead: Floats
    first: Floats
    paid: Floats
    ripe: Floats
    served: float = -np.inf
    hungry: int = 0

    @property
    def cost(self) -> Floats:
        """Of rewriting each file."""
        return (_PRICES.decode * self.size + _PRICES.encode * self.size * (1 - self.dead)) / _GB

    def live(self, day: int, random: np.random.Generator) -> float:
        """A day of deletes and reads. Returns what the reads cost because of deleted rows."""
        hit = np.flatnonzero(random.random(len(self.size)) < self.weight)
        self.dead[hit] += (0.95 - self.dead[hit]) * self.kind.share * random.uniform(0.5, 1.5, len(hit))
        self.first[hit] = np.minimum(self.first[hit], day)
        overhead = _PRICES.decode * self.size / _GB * (self.dead + _PRICES.dv * (self.dead > 0))
        paid = overhead * random.poisson(self.kind.reads)
        # A deletion vector's own step counts since its last change only.
        self.paid += paid
        self.paid[hit] -= np.minimum(
            self.paid[hit], (_PRICES.dv * _PRICES.decode * self.size * self.kind.reads)[hit] / _GB
        )
        self.ripe = np.where(self.paid >= self.cost, np.minimum(self.ripe, day), np.inf)
        return float(paid.sum())

    def rewrite(self, files: Ints, day: float) -> None:
        self.size[files] *= 1 - self.dead[files]
        self.dead[files] = self.paid[files] = 0.0
        self.first[files] = self.ripe[files] = np.inf
        self.served = day


def fleet(number: int, seed: int) -> tuple[list[FleetTable], np.random.Generator]:
    """``number`` tables as they are before the first night: 15 days of deletes and reads, nothing maintained."""
    random = np.random.default_rng(seed)
    tables = []
    for at in range(number):
        kind = _KINDS[at % len(_KINDS)]
        files = int(random.integers(*kind.files))
        place = np.arange(files) / files
        weight = np.exp(kind.skew * place)
        weight = np.minimum(kind.touched * weight / weight.mean(), 1.0)
        size = random.uniform(*kind.gigabytes, files) * _GB
        zero, never = np.zeros(files), np.full(files, np.inf)
        tables.append(FleetTable(f"t{at:03}", kind, size, weight, zero, never, zero.copy(), never.copy()))
    for day in range(-_BEFORE, 0):
        for table in tables:
            table.live(day, random)
    return tables, random


@dataclass(frozen=True, slots=True)
class Step:
    """An item and the files that it rewrites."""

    item: WorkItem
    table: FleetTable
    files: Ints


def _steps(table: FleetTable, files: Ints, label: str) -> list[Step]:
    found = []
    cost, paid = table.cost, table.paid
    for at in range(0, len(files), _STEP):
        some = files[at : at + _STEP]
        first = float(table.first[some].min())
        since = float(np.minimum(table.ripe[some].min(), 1e6))
        item = WorkItem(
            table.name,
            f"{label}{at}",
            float(cost[some].sum()),
            float(paid[some].sum()),
            float(cost[some].sum()),
            None if np.isinf(first) else int((first + _LIFE) * DAY),
            int(since * DAY),
            len(some),
        )
        found.append(Step(item, table, some))
    return found


def plan_by_meter(tables: Sequence[FleetTable]) -> list[Step]:
    """Ripe files, best first; and every other file with deleted rows, for its deadline."""
    found = []
    for table in tables:
        ripe = np.flatnonzero(np.isfinite(table.ripe))
        ripe = ripe[np.argsort(-(table.paid / table.cost)[ripe], kind="stable")]
        rest = np.flatnonzero(np.isinf(table.ripe) & np.isfinite(table.first))
        rest = rest[np.argsort(table.first[rest], kind="stable")]
        found += _steps(table, ripe, "ripe ") + _steps(table, rest, "rest ")
    return found


def plan_by_ratio(tables: Sequence[FleetTable]) -> list[Step]:
    """Files with more than 5 % of their rows deleted, most first."""
    found = []
    for table in tables:
        over = np.flatnonzero(table.dead > 0.05)
        found += _steps(table, over[np.argsort(-table.dead[over], kind="stable")], "ratio ")
    return found


@dataclass(slots=True)
class Result:
    """What a rule has done.

    used : seconds of each night.
    lost : seconds of steps that were stopped at the window's end.
    starved : tables that had ripe work for seven nights in a row and got nothing.
    late : tables with a file whose deadline passed.
    late_files : such files, each counted once per missed deadline.
    runs : tables opened.
    reading, rewriting : seconds of CPU.
    infeasible_on : the first night with an alert that deadlines can't be met; ``None``: none.
    alert : of that night.
    """

    used: list[float] = field(default_factory=list)
    lost: float = 0.0
    starved: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    late_files: int = 0
    runs: int = 0
    reading: float = 0.0
    rewriting: float = 0.0
    infeasible_on: int | None = None
    alert: str = ""

    def over(self, budget: float) -> int:
        """Nights over budget."""
        return sum(each > budget for each in self.used)


class Clock:
    """The work of one night: what steps really take, and what is left. Shared by the rules."""

    def __init__(self, budget: float, day: int, result: Result, random: np.random.Generator, slow: float = 0.0) -> None:
        self.left, self.day, self.result, self.random, self.slow = budget, day, result, random, slow
        self.tables: set[str] = set()
        self.finished: list[tuple[float, float]] = []
        self.done: set[WorkItem] = set()
        self.budget = budget

    def estimate(self, step: Step) -> float:
        return step.item.seconds + (0.0 if step.item.table in self.tables else _PRICES.shared_start)

    def work(self, step: Step, *, stopped: bool = False) -> None:
        """Do a step; it takes 0.75 to 1.35 of its estimate, and a slow one 20 times as long. ``stopped``: the window's
        end stops it, and it is lost.
        """
        estimate = self.estimate(step)
        actual = estimate * float(np.clip(self.random.lognormal(0.0, 0.1), 0.75, 1.35))
        if self.slow and self.random.random() < self.slow:
            actual *= _SLOW
        self.result.runs += step.item.table not in self.tables
        self.tables.add(step.item.table)
        if stopped and actual > self.left:
            self.result.lost += self.left
            self.result.rewriting += self.left
            self.left = 0.0
            return
        self.left -= actual
        self.result.rewriting += actual
        self.finished.append((estimate, actual))
        self.done.add(step.item)
        step.table.rewrite(step.files, self.day)


Rule = Callable[[Sequence[FleetTable], Clock], None]


def by_allocation(tables: Sequence[FleetTable], clock: Clock) -> None:
    """``allocate``, again after its choice is done while time is left. No step starts that may not finish; one that is
    slower than everything before it is stopped.
    """
    steps = {each.item: each for each in plan_by_meter(tables)}
    served = {each.name: int(each.served * DAY) for each in tables if np.isfinite(each.served)}
    coming = [Night(int((clock.day + n) * DAY), int((clock.day + n) * DAY), clock.budget) for n in range(1, 31)]
    for turn in range(5):
        found = allocate(
            [each for each in steps if each not in clock.done],
            now=clock.day * DAY,
            seconds=clock.left,
            coming=coming,
            start_seconds=_PRICES.shared_start,
            reserve=Reserve.learnt(clock.finished),
            served=served,
        )
        if not turn and found.demand.late and clock.result.infeasible_on is None:
            clock.result.infeasible_on, clock.result.alert = clock.day, found.alerts[0]
        if not found.chosen:
            return
        for choice in found.chosen:
            step = steps[choice.item]
            if clock.estimate(step) * Reserve.learnt(clock.finished).worst <= clock.left:
                clock.work(step, stopped=True)


def by_benefit(tables: Sequence[FleetTable], clock: Clock) -> None:
    """The rule before the window: files above the ratio, most deleted bytes first, stopped at the window's end."""
    steps = plan_by_ratio(tables)
    gain = {each.item: float((each.table.dead * each.table.size)[each.files].sum()) for each in steps}
    for step in sorted(steps, key=lambda each: -gain[each.item]):
        if clock.left > 0:
            clock.work(step, stopped=True)


def by_deadline(tables: Sequence[FleetTable], clock: Clock) -> None:
    """Earliest deadline first over all files with deleted rows, stopped at the window's end."""
    steps = plan_by_meter(tables)
    for step in sorted(steps, key=lambda each: (each.item.deadline or 0, each.item.table, each.item.id)):
        if clock.left > 0:
            clock.work(step, stopped=True)


RULES: Final[dict[str, Rule]] = {
    "by benefit, stopped at the end": by_benefit,
    "earliest deadline first": by_deadline,
    "allocate": by_allocation,
}


def run(rule: Rule, *, tables: int, nights: int, budget: float, seed: int = 7, slow: float = 0.0) -> Result:
    """Let a rule choose the work of each night. ``slow``: the share of steps that take far longer than estimated."""
    every, random = fleet(tables, seed)
    noise = np.random.default_rng(seed + 1)
    result = Result()
    for day in range(nights):
        for table in every:
            result.reading += table.live(day, random)
        clock = Clock(budget, day, result, noise, slow)
        rule(every, clock)
        result.used.append(budget - clock.left)
        for table in every:
            _judge(table, day, table.name in {each.table for each in clock.done}, result)
    return result


def _judge(table: FleetTable, day: int, served: bool, result: Result) -> None:
    hungry = bool(np.isfinite(table.ripe).any())
    table.hungry = table.hungry + 1 if hungry and not served else 0
    if table.hungry >= 7:
        result.starved.add(table.name)
    missed = np.flatnonzero((table.first + _LIFE >= day) & (table.first + _LIFE < day + 1))
    if len(missed):
        result.late.add(table.name)
        result.late_files += len(missed)
