"""Which work runs in a night that has no time for everything.

1. **Mandatory**: as much work in the order of deadlines as must be done tonight, so that what is left still fits into
   the coming windows, with two of them to spare (:func:`must_run`). If the deadlines can't all be met, those that can
   (:func:`~.demand.in_time`).
2. **Fair**: a table whose work waits has a turn, which is like a deadline: ``FAIR`` windows after it began to wait.
3. **Paid**: what readers have paid most for in relation to its cost, while there is time. What is late comes first.

No table starves in a feasible setting. Let ``D(k)`` be the work with deadlines (or turns) up to the ``k``-th, and
``C(k)`` the room of the windows until then, and let the setting be feasible: ``D(k) <= C(k)`` for each ``k``. Let
``c`` be the room of tonight. Steps 1 and 2 run a prefix of ``max(D(k) - (C(k) - c))`` seconds, which is at most ``c``.
It therefore fits into tonight, and afterwards the work up to each ``k`` is at most ``C(k) - c``, the room that is left:
the setting is still feasible. In the last window before a deadline that room is 0, so all work until then is done. By
induction none is missed, and a table waits for ``FAIR`` windows at most. The argument has two limits. A step is not
cut, so a night is not filled to its last second; hence a coming window counts without the longest step. And work that
arrives later must leave the setting feasible; that is what the windows to spare are for, which ``FAIR`` has as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dv_maintenance.maintenance.scheduling.demand import Demand, Due, day, demand_ahead, dues, in_time, minutes
from dv_maintenance.maintenance.scheduling.items import Reserve, WorkItem
from dv_maintenance.maintenance.scheduling.window import Night
from dv_maintenance.remedies import run
from dv_maintenance.units import first_few

# Windows between the last one that must do mandatory work and its deadline.
MARGIN: Final = 2
# A table gets its turn by the last of so many windows.
FAIR: Final = 5

Why = Literal["deadline", "late", "fair", "paid"]


@dataclass(frozen=True, slots=True)
class Choice:
    """An item that runs, and why."""

    item: WorkItem
    why: Why


@dataclass(frozen=True, slots=True)
class Waiting:
    """An item that does not run tonight, with the reason in a sentence."""

    item: WorkItem
    reason: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """What runs tonight, in order; all items of a table stand together.

    demand : of all deadlines that the given nights reach.
    feasible : every deadline can be met, no table has to wait longer than ``FAIR`` windows, no step is too large.
    alerts : what somebody has to act on, one sentence each.
    """

    chosen: tuple[Choice, ...]
    waiting: tuple[Waiting, ...]
    demand: Demand
    feasible: bool
    alerts: tuple[str, ...]


def allocate(
    items: Sequence[WorkItem],
    *,
    now: int,
    seconds: float,
    coming: Sequence[Night],
    start_seconds: float = 0.0,
    reserve: Reserve | None = None,
    served: Mapping[str, int] | None = None,
) -> Allocation:
    """Choose the work of tonight.

    now : epoch milliseconds.
    seconds : that are left tonight. No item is chosen that may not finish in them.
    coming : the windows after tonight, at least ``FAIR`` of them; deadlines after the last one are not checked.
    start_seconds : duration of opening one more table.
    reserve : ``None``: nothing has finished yet.
    served : when each table last got work done, epoch milliseconds; its wait begins then, or when its work became due
        if that was later.
    """
    reserve = reserve or Reserve()
    tonight = Night(now, now + math.ceil(seconds * 1000), seconds)
    nights = [tonight, *coming]
    longest = max(each.seconds for each in nights)
    possible, large = _too_large(items, longest, start_seconds, reserve)
    demand = demand_ahead(possible, nights, start_seconds=start_seconds, reserve=reserve)
    late = set(demand.late)
    with_deadlines = dues(
        [each for each in possible if each not in late], nights, start_seconds=start_seconds, reserve=reserve
    )
    night = _Tonight(seconds, start_seconds, reserve)
    night.take(must_run(with_deadlines, nights), "deadline")

    turns = _turns(possible, night, served or {}, nights)
    all_due = dues(
        possible, nights, start_seconds=start_seconds, reserve=reserve, deadlines=_both(with_deadlines, turns)
    )
    in_turn, too_late = in_time(all_due)
    starving = {each.item.table for each in too_late if each.item in turns}
    for each in must_run(in_turn, nights, margin=0):
        night.take([each], "fair" if each in turns else "deadline")

    night.take(sorted(late, key=lambda each: (each.seconds, each.table, each.id)), "late")
    night.take(_by_benefit(possible), "paid")

    waiting = [Waiting(each, _why_not(each, night, late, coming)) for each in possible if each not in night.taken]
    waiting += [Waiting(each, _above(each, longest)) for each in large]
    alerts = [demand.sentence] if late else []
    if starving and not late:
        alerts.append(
            f"The windows are too short for all tables: {len(starving)} "
            f"will wait for {FAIR + MARGIN} or more, {_names(starving)}."
        )
    alerts += [f"{each.table}, step {each.id}: {_above(each, longest)}" for each in large]
    return Allocation(night.chosen(), tuple(waiting), demand, not (late or starving or large), tuple(alerts))


def must_run(due: Sequence[Due], nights: Sequence[Night], margin: int = MARGIN) -> list[WorkItem]:
    """The shortest prefix in the order of deadlines after which the rest fits into the windows after tonight.

    margin : windows before each deadline that are not counted on.
    """
    rooms, room = [0.0], 0.0
    longest = max((each.seconds for each in due), default=0.0)
    for night in nights[1:]:
        room += max(night.seconds - longest, night.seconds / 2)
        rooms.append(room)
    total, needed = 0.0, 0.0
    for each in due:
        total += each.seconds
        needed = max(needed, total - rooms[max(each.nights - 1 - margin, 0)])
    prefix, done = [], 0.0
    for each in due:
        if done >= needed - 1e-9:
            break
        prefix.append(each.item)
        done += each.seconds
    return prefix


class _Tonight:
    """Fills the time of tonight. An item is taken if it fits even at its worst, after those before it as usual."""

    def __init__(self, seconds: float, start: float, reserve: Reserve) -> None:
        self.left, self.start, self.reserve = seconds, start, reserve
        self.taken: dict[WorkItem, Why] = {}
        self.opened: set[str] = set()

    def take(self, items: Iterable[WorkItem], why: Why) -> None:
        for item in items:
            start = 0.0 if item.table in self.opened else self.start
            if item in self.taken or (item.seconds + start) * self.reserve.worst > self.left:
                continue
            self.taken[item] = why
            self.opened.add(item.table)
            self.left -= (item.seconds + start) * self.reserve.expected

    def chosen(self) -> tuple[Choice, ...]:
        """In the order in which they were taken, each table's together, so that it is opened once."""
        tables: dict[str, list[Choice]] = {}
        for item, why in self.taken.items():
            tables.setdefault(item.table, []).append(Choice(item, why))
        return tuple(choice for choices in tables.values() for choice in choices)


def _turns(
    items: Sequence[WorkItem], night: _Tonight, served: Mapping[str, int], nights: Sequence[Night]
) -> dict[WorkItem, int]:
    """For each table with paid work of which nothing is taken yet: one item of it, and when its turn must have come.

    The wait is counted in windows, so that a window that opens on Sundays only is not late on Monday.
    """
    waits: dict[str, tuple[int, WorkItem]] = {}
    for item in items:
        if not item.ripe or item.table in night.opened:
            continue
        since = max(item.since, served.get(item.table, item.since))
        first, best = waits.get(item.table, (since, item))
        waits[item.table] = (min(since, first), max(item, best, key=_ratio))
    now = nights[0].opens
    apart = (nights[-1].opens - now) / (len(nights) - 1) if len(nights) > 1 else math.inf
    turns = {}
    for since, item in waits.values():
        left = FAIR - int(max(now - since, 0) / apart)
        turns[item] = nights[min(max(left, 0), len(nights) - 1)].closes
    return turns


def _both(deadlines: Sequence[Due], turns: Mapping[WorkItem, int]) -> dict[WorkItem, int]:
    hard = {each.item: each.item.deadline for each in deadlines if each.item.deadline is not None}
    return {**hard, **{item: min(at, hard.get(item, at)) for item, at in turns.items()}}


def _by_benefit(items: Sequence[WorkItem]) -> list[WorkItem]:
    """What is paid for, the highest ratio of paid to cost first."""
    ripe = [each for each in items if each.ripe]
    return sorted(ripe, key=lambda each: (-_ratio(each), each.since, each.table, each.id))


def _ratio(item: WorkItem) -> float:
    return item.paid / item.cost if item.cost else math.inf


def _too_large(
    items: Sequence[WorkItem], longest: float, start_seconds: float, reserve: Reserve
) -> tuple[list[WorkItem], list[WorkItem]]:
    """The items that a window can do, and those that none can."""
    large, possible = list[WorkItem](), list[WorkItem]()
    for each in items:
        (large if (each.seconds + start_seconds) * reserve.worst > longest else possible).append(each)
    return possible, large


def _why_not(item: WorkItem, night: _Tonight, late: set[WorkItem], coming: Sequence[Night]) -> str:
    if not item.ripe and item not in late:
        share = item.paid / item.cost
        by = f"; it must be done by {day(item.deadline)}" if item.deadline is not None else ""
        return f"Kept: readers have paid {share:.1f} of its cost so far{by}."
    again = f"; the window opens again on {day(coming[0].opens)}" if coming else ""
    will = " It will be late." if item in late else ""
    needs = minutes(item.seconds * night.reserve.worst)
    return f"Waited: it may need {needs}, {minutes(night.left)} were left after more urgent work{again}.{will}"


def _above(item: WorkItem, longest: float) -> str:
    return (
        f"Too large for the window: it may take {minutes(item.seconds)} or more, the longest window has "
        f"{minutes(longest)}. Lengthen window or budget, or run {run('apply')} for this table at another time."
    )


def _names(tables: Iterable[str]) -> str:
    return first_few(sorted(tables), 3)
