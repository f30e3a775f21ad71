"""Per file, what its readers have paid that a rewrite would have saved, and what a rewrite costs.

A rewrite is worth its cost once the readers of the file have paid as much as it costs: the rule of ski rental.
Following it costs at most twice what a clairvoyant would pay for the file if every payment counts, and at most three
times with the exception below; see docs/explanation/policy-method.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dv_maintenance.units import DAY

if TYPE_CHECKING:
    from dv_maintenance.maintenance.meter.prices import Prices
    from dv_maintenance.maintenance.meter.timeline import Timeline
    from dv_maintenance.maintenance.planning.facts import Bools, FileFacts, Ints
    from dv_maintenance.maintenance.reads.model import Reads

Floats = npt.NDArray[np.float64]
# Days over which the present rate of reads is taken.
_RECENT = 7
# How long a file waits between its rewrite and the commit: a run commits about every five minutes.
_RUN = 5 * 60_000


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """One entry per file, in seconds of CPU.

    paid : what reads and storage have cost so far that a rewrite would have saved.
    cost : of a rewrite, including the old copy until retention is over, and the conflicts to expect.
    rate : by how much ``paid`` grows per day at the present rate of reads.
    """

    paid: Floats
    cost: Floats
    rate: Floats

    def ripe_in(self) -> Floats:
        """Days until ``paid`` reaches ``cost``; infinite where nothing is paid."""
        missing = np.maximum(self.cost - self.paid, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(missing == 0, 0.0, np.where(self.rate > 0, missing / self.rate, np.inf))


def measure(
    facts: FileFacts,
    timeline: Timeline,
    reads: Reads,
    prices: Prices,
    *,
    now: int,
    small: Bools,
    target: int,
    retention_days: float,
) -> Measure:
    """Meter every file.

    Readers pay for deleted rows, since each is decoded and dropped, from the time of its delete on. They pay for the
    deletion vector (DV) itself since its last change only: a rewrite before that change would not have saved it. For a
    small file they pay the part of opening it that a full file would not have. Deleted rows also pay for their storage.

    now : epoch milliseconds.
    small : files that merging would save.
    target : bytes of a full file.
    retention_days : how long the old copy of a rewritten file is kept.
    """
    decode = prices.decoding(1) * facts.size
    shares = _new_shares(facts, timeline)
    owner = timeline.owner

    def reads_since(start: Ints, files: Ints) -> Floats:
        return reads.count(start, np.full(len(start), now, np.int64), facts.partitions, facts.partition[files])

    of_rows = np.bincount(owner, shares * reads_since(timeline.times, owner), minlength=len(facts))
    paid = decode * of_rows
    with_dv = np.flatnonzero(facts.has_dv)
    paid[with_dv] += decode[with_dv] * prices.dv * reads_since(timeline.last_step[with_dv], with_dv)
    opening = np.where(small, prices.decoding(prices.open_bytes) * np.maximum(1 - facts.live_bytes / target, 0), 0.0)
    of_small = np.flatnonzero(opening)
    paid[of_small] += opening[of_small] * reads_since(timeline.born[of_small], of_small)
    kept_days = np.maximum(now - timeline.times, 0) / DAY
    paid += prices.keeping(1, 1) * facts.size * np.bincount(owner, shares * kept_days, minlength=len(facts))

    dead = np.bincount(owner, shares, minlength=len(facts))
    number = len(facts.partitions)
    recently, until = (np.full(number, at, np.int64) for at in (now - _RECENT * DAY, now))
    of_partition = reads.count(recently, until, facts.partitions, np.arange(number, dtype=np.int64)) / _RECENT
    a_day = of_partition[facts.partition]
    rate = a_day * (decode * (dead + prices.dv * facts.has_dv) + opening) + prices.keeping(1, 1) * facts.size * dead
    cost = rewrite_cost(facts, prices, retention_days) * (1 + _conflicts(timeline, now))
    return Measure(paid.astype(np.float64), cost, rate)


def _conflicts(timeline: Timeline, now: int) -> Floats:
    """How likely a writer changes each file while it is rewritten: by the changes of the last day. One of the two then
    does its work again, which is charged as a rewrite.
    """
    recent = timeline.owner[timeline.times > now - DAY]
    changes = np.bincount(recent, minlength=len(timeline)).astype(np.float64)
    found: Floats = np.minimum(changes * (_RUN / DAY), 1.0)
    return found


def rewrite_cost(facts: FileFacts, prices: Prices, retention_days: float) -> Floats:
    """What rewriting each file costs: decoding it, writing its live rows, and keeping the old copy."""
    size, live = facts.size.astype(np.float64), facts.live_bytes.astype(np.float64)
    return prices.decoding(1) * size + prices.encoding(1) * live + prices.keeping(1, retention_days) * size


def _new_shares(facts: FileFacts, timeline: Timeline) -> Floats:
    """By which share of its file's rows each step of a timeline has grown the deleted rows."""
    before = np.concatenate([np.zeros(1, np.int64), timeline.deleted[:-1]])[: len(timeline.deleted)]
    before[timeline.offsets[:-1][np.diff(timeline.offsets) > 0]] = 0
    rows = np.maximum(facts.physical, 1)[timeline.owner]
    known = facts.known[timeline.owner]
    return np.where(known, (timeline.deleted - before) / rows, 0.0)
