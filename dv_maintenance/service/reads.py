"""How often a table is read: which sources are known, which one decides, and what contradicts a declared rate."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.reads import Reads, contradiction
from dv_maintenance.maintenance.reads.spark_events import spark_reads
from dv_maintenance.maintenance.reads.state import SparkReads
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.units import DAY, count, minute_of

__all__ = ["DOWNSTREAM_DAYS", "EventLogs", "Materialization", "Reads", "downstream_reads", "reads_of"]

DOWNSTREAM_DAYS: Final = 30
"""How far back materializations of downstream assets are looked up."""
# Many tables of one inspection share their event logs.
_FRESH: Final = 60_000
# A sensor's tick has 35 seconds. The next inspection continues.
_SECONDS: Final = 10.0
# An event log that ends earlier than this is said: perhaps it is written elsewhere now.
_STALE: Final = 3 * DAY
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Materialization:
    """Of an asset, at a time in epoch milliseconds. ``run``: empty if it was only reported to the orchestrator."""

    asset: str
    run: str
    time: int


def downstream_reads(made: Iterable[Materialization]) -> Reads | None:
    """Each run of a downstream asset reads the table once, however many partitions it materializes; ``None`` without
    any. The observation begins with the first.

        made : materializations of the assets that depend on the table directly, without its own maintenance, of the
            last ``DOWNSTREAM_DAYS``.
    """
    first: dict[tuple[str, str], int] = {}
    for each in made:
        key = (each.asset, each.run or str(each.time))
        first[key] = min(each.time, first.get(key, each.time))
    if not first:
        return None
    times = np.array(list(first.values()), np.int64)
    return Reads.observed("downstream assets", times, int(times.min()) - 1, int(times.max()))


@dataclass(slots=True)
class EventLogs:
    """Event logs that many tables share: a folder is inspected once a minute, by one thread at a time."""

    _known: dict[Any, tuple[int, SparkReads]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, table: TableSettings, now: int) -> tuple[Reads | None, tuple[str, ...]]:
        """What the event logs in the table's settings show, and warnings; ``None`` without logs, or if these do not
        name the table. Raises as ``spark_reads``.
        """
        settings = table.reads
        if settings is None or settings.spark_events is None:
            return None, ()
        key = (settings, tuple(sorted(table.storage_options.items())))
        with self._lock:
            when, found = self._known.get(key, (0, None))
            if found is None or not 0 <= now - when < _FRESH:
                options = table.storage_options
                found = spark_reads(
                    settings.spark_events, options, state=settings.state, known=found, seconds=_SECONDS, now=now
                )
                self._known[key] = now, found
            # Event logs name paths alone.
            named = table.located()
            reads = found.of(table.path if named is None else named[1].storage.uri)
            return reads, tuple(f"event logs: {each}" for each in _problems(found, reads, now))


_SHARED: Final = EventLogs()


def reads_of(
    table: TableSettings,
    reads_per_day: float | None,
    downstream: Reads | None,
    now: int,
    *,
    logs: EventLogs = _SHARED,
) -> tuple[Reads | None, tuple[str, ...]]:
    """The reads of a table, and warnings. Event logs come first, then downstream assets, then the declared rate, then
    what was observed for less than a day. ``None``: no reads are known, and the ratio decides.

    reads_per_day : of the table's policy.
    downstream : what :func:`downstream_reads` returned; ``None`` without an orchestrator.
    now : epoch milliseconds.
    """
    warnings: list[str] = []
    seen = [each for each in (_from_logs(table, now, logs, warnings), downstream) if each is not None]
    # An hour shows neither a day nor a night.
    found = [each for each in seen if each.until - each.since >= DAY]
    if reads_per_day is not None:
        warnings += [said for each in found if (said := contradiction(reads_per_day, each, now)) is not None]
        found.append(Reads.declared(reads_per_day))
    return next(iter([*found, *seen]), None), tuple(warnings)


def _from_logs(table: TableSettings, now: int, logs: EventLogs, warnings: list[str]) -> Reads | None:
    try:
        reads, said = logs.of(table, now)
    except DvMaintenanceError as error:
        warnings.append(f"event logs: {error}")
        return None
    warnings += said
    return reads


def _problems(found: SparkReads, reads: Reads | None, now: int) -> Iterator[str]:
    yield from found.problems[:_SHOWN]
    if len(found.problems) > _SHOWN:
        yield f"{len(found.problems) - _SHOWN} more such problems"
    if found.until is None:
        yield "they contain no events"
    elif now - found.until > _STALE:
        yield f"the last event is of {minute_of(found.until)}; the mean rate before that is assumed since then"
    if reads is None and (unlocated := found.unlocated()):
        names = sorted(unlocated, key=lambda name: -unlocated[name])
        total = sum(unlocated.values())
        more = ", ..." if len(names) > _SHOWN else ""
        yield (
            f"no scans of this table; the plans of {count(total, 'scan')} do not show where their tables are "
            f"({', '.join(names[:_SHOWN])}{more})"
        )
