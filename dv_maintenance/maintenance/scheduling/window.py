"""The hours in which maintenance may run, and how long it may work in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from dv_maintenance.config import Duration
from dv_maintenance.units import DAY

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Night:
    """One opening of the window. ``opens``, ``closes``: epoch milliseconds. ``seconds``: how long the run may work."""

    opens: int
    closes: int
    seconds: float


def _time_of_day(value: Any) -> Any:
    # YAML 1.1 reads an unquoted 22:30 as a number to base 60: the minutes of the day.
    if isinstance(value, int) and not isinstance(value, bool) and 60 <= value < 24 * 60:
        return f"{value // 60:02}:{value % 60:02}"
    return value


def _valid_time(text: str) -> str:
    if not re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d", text):
        raise ValueError('not a time of day; write for example "01:00"')
    return text.zfill(5)


def valid_zone(name: str) -> str:
    """The name of a time zone. Raises ValueError."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError("not a time zone; write for example Europe/Berlin") from error
    return name


class Window(BaseModel):
    """The hours of a day in which a run may work.

    The length is elapsed time: on the day that the clocks change, the window is as long as on any other. A start that
    is skipped that day is later by the skipped time; of a start that comes twice, the first one counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: Annotated[
        str, BeforeValidator(_time_of_day, json_schema_input_type=str | int), AfterValidator(_valid_time)
    ] = Field(description='Time of day in the time zone, such as "01:00".')
    length: Duration = Field(gt=0, le=DAY, description="How long it is open, such as 1h; at most a day.")
    timezone: Annotated[str, AfterValidator(valid_zone)] = "UTC"
    days: tuple[Day, ...] = Field(default=DAYS, min_length=1, description="The days on which it opens: mon to sun.")

    def openings(self, now: int) -> Iterator[tuple[int, int]]:
        """The windows that close after ``now``, without end: opening and closing, epoch milliseconds."""
        zone = ZoneInfo(self.timezone)
        day = datetime.fromtimestamp(now / 1000, zone).date() - timedelta(days=2)
        while True:
            day += timedelta(days=1)
            if DAYS[day.weekday()] in self.days:
                opens = self._opens(day, zone)
                if opens + self.length > now:
                    yield opens, opens + self.length

    def opens_next(self, now: int) -> int:
        """When the window opens next, epoch milliseconds; ``now`` at the very opening."""
        return next(opens for opens, _ in self.openings(now) if opens >= now)

    def seconds_left(self, now: int) -> float:
        """How long the window is still open; 0 while it is closed."""
        opens, closes = next(self.openings(now))
        return (closes - now) / 1000 if opens <= now else 0.0

    @property
    def cron(self) -> str:
        """The openings as a cron expression in ``timezone``."""
        hour, minute = map(int, self.start.split(":"))
        days = "*" if set(self.days) == set(DAYS) else ",".join(self.days)
        return f"{minute} {hour} * * {days}"

    def _opens(self, day: date, zone: ZoneInfo) -> int:
        local = datetime.combine(day, time.fromisoformat(self.start), zone)
        return int(local.astimezone(UTC).timestamp()) * 1000


ALWAYS: Final = Window.model_validate({"start": "00:00", "length": "24h"})
"""The window of a budget without one: the day in UTC."""


def seconds_left(window: Window | None, budget: int | None, now: int, spent: float = 0.0) -> float:
    """How long a run may work from ``now`` on: until the window closes, and until the budget is used up.

    budget : milliseconds of elapsed time that runs may work in one window, all tables together, or in one day (UTC)
        without a window. Waiting, planning and starting Spark count as well as rewriting: it is what the run occupies.
    spent : seconds of the budget that earlier runs of this window have used.
    """
    left = (window or ALWAYS).seconds_left(now)
    return left if budget is None else max(min(left, budget / 1000 - spent), 0.0)


def opened_at(window: Window | None, now: int) -> int | None:
    """When the window that is open at ``now`` opened, epoch milliseconds; ``None`` while it is closed."""
    opens, _ = next((window or ALWAYS).openings(now))
    return opens if opens <= now else None


def coming_nights(window: Window | None, budget: int | None, now: int, count: int) -> Sequence[Night]:
    """The next windows that open after ``now``."""
    later = (each for each in (window or ALWAYS).openings(now) if each[0] > now)
    nights = []
    for opens, closes in islice(later, count):
        length = (closes - opens) / 1000
        nights.append(Night(opens, closes, length if budget is None else min(length, budget / 1000)))
    return nights
