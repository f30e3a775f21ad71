"""What deadlines demand of the coming nights, and which of them can be met.

The check is the demand bound of earliest-deadline-first (EDF) scheduling: for every deadline, the work that is due by
then must fit into the windows until then (Baruah, Rosier, Howell 1990). It is necessary for every schedule. Where it
fails, the rule of Moore and Hodgson (1968) finds the largest number of items that are in time.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dv_maintenance.maintenance.scheduling.items import Reserve, WorkItem
from dv_maintenance.maintenance.scheduling.window import Night


@dataclass(frozen=True, slots=True)
class Due:
    """An item with a deadline. ``seconds``: with its share of starting the table. ``room``: seconds of windows until
    the deadline. ``nights``: their number.
    """

    item: WorkItem
    seconds: float
    room: float
    nights: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What deadlines need of each night until the tightest of them.

    needed : seconds a night.
    available : seconds a night.
    by : that deadline, epoch milliseconds; ``None`` if nothing has a deadline.
    late : items that can't all be in time, those to be given up.
    overdue : of these, items that no window could do any more.
    """

    needed: float = 0.0
    available: float = 0.0
    by: int | None = None
    late: tuple[WorkItem, ...] = ()
    overdue: int = 0

    @property
    def feasible(self) -> bool:
        """Whether every deadline can be met."""
        return not self.late

    @property
    def sentence(self) -> str:
        """The same in words."""
        if self.by is None and not self.late:
            return "No deadlines ahead."
        found = []
        if self.by is not None:
            found.append(
                f"Deadlines until {day(self.by)} need {minutes(self.needed)} a night, "
                f"the window has {minutes(self.available)}."
            )
        if self.late:
            tables = len({each.table for each in self.late})
            found.append(f"{_steps(len(self.late))} of {tables} table{'s' * (tables != 1)} will be late")
            found[-1] += f", {self.overdue} of them past their deadline already." if self.overdue else "."
        return " ".join(found)


def demand_ahead(
    items: Sequence[WorkItem],
    nights: Sequence[Night],
    *,
    start_seconds: float = 0.0,
    reserve: Reserve | None = None,
) -> Demand:
    """Check every deadline ahead against the windows until then.

    items : those without a deadline are ignored; they need not be worth their cost yet.
    nights : tonight and the coming windows, in order. Deadlines after the last of them are not checked.
    start_seconds : duration of opening one more table, counted once per table.
    """
    due = dues(items, nights, start_seconds=start_seconds, reserve=reserve or Reserve())
    needed, available, by, total, tightest = 0.0, nights[0].seconds if nights else 0.0, None, 0.0, -1.0
    for each in due:
        total += each.seconds
        if each.nights and total > tightest * each.room:
            tightest = total / each.room if each.room else float("inf")
            needed, available, by = total / each.nights, each.room / each.nights, each.item.deadline
    late = tuple(each.item for each in in_time(due)[1])
    rooms = {each.item: each.nights for each in due}
    return Demand(needed, available, by, late, sum(not rooms[each] for each in late))


def dues(
    items: Sequence[WorkItem],
    nights: Sequence[Night],
    *,
    start_seconds: float,
    reserve: Reserve,
    deadlines: Mapping[WorkItem, int] | None = None,
) -> list[Due]:
    """The items with deadlines in the order of these. ``deadlines``: others than the items' own."""
    of = {each: each.deadline for each in items if each.deadline is not None} if deadlines is None else deadlines
    found, opened, room, count = [], set[str](), 0.0, 0
    for item in sorted(of, key=lambda each: (of[each], each.table, each.id)):
        while count < len(nights) and nights[count].closes <= of[item]:
            room += nights[count].seconds
            count += 1
        if nights and of[item] > nights[-1].closes:
            break
        seconds = item.seconds * reserve.expected + (0 if item.table in opened else start_seconds)
        opened.add(item.table)
        found.append(Due(item, seconds, room, count))
    return found


def in_time(due: Sequence[Due]) -> tuple[list[Due], list[Due]]:
    """The largest set of items that are in time, in order of deadlines, and the others: the rule of Moore and Hodgson.

    Whenever the work until a deadline exceeds the room until then, the longest item is given up.
    """
    total, kept, dropped = 0.0, list[tuple[float, int]](), set[int]()
    for number, each in enumerate(due):
        heapq.heappush(kept, (-each.seconds, number))
        total += each.seconds
        while total > each.room + 1e-9:
            longest, at = heapq.heappop(kept)
            total += longest
            dropped.add(at)
    return [each for at, each in enumerate(due) if at not in dropped], [due[at] for at in sorted(dropped)]


def minutes(seconds: float) -> str:
    """A duration for people: ``26 min``, ``45 s``."""
    return f"{seconds / 60:.0f} min" if seconds >= 119.5 else f"{seconds:.0f} s"


def day(millis: int) -> str:
    """A day for people: ``14 Dec``."""
    return f"{datetime.fromtimestamp(millis / 1000, UTC):%-d %b}"


def _steps(number: int) -> str:
    return f"{number} step{'s' * (number != 1)}"
