"""What a clairvoyant would have paid at least: the bound that rules are measured against.

A piece is charged for itself alone, with all reads and deletes known in advance: it is rewritten at the best times, and
merging is free. What readers pay for a file is at least what its pieces would cost them apart, so no rule pays less.

The start of a run is shared by the pieces that it rewrites, which couples them. The bound takes that apart by
Lagrangian relaxation: each piece pays a share of the start that depends on the time, and the shares of all pieces add
up to at most one start at any time. Whatever the shares are, no set of runs costs less than the pieces then pay apart.
Good shares fall with the age of what makes a piece worth rewriting, as in the dual of the joint replenishment problem
(Levi, Roundy and Shmoys 2006). Several windows are tried, and the largest bound counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from dv_maintenance.maintenance.meter.measure import Floats
from dv_maintenance.units import DAY

if TYPE_CHECKING:
    from dv_maintenance.maintenance.meter.prices import Prices
    from dv_maintenance.maintenance.planning.facts import Bools, Ints
    from dv_maintenance.maintenance.simulation.trace import Trace

_HOUR: Final = DAY // 24
_CELLS: Final = 240
_WINDOWS_IN_DAYS: Final = (0.1, 0.5, 2.0, 10.0)


def clairvoyant(
    trace: Trace, prices: Prices, *, target: int, small: int, start: float = 0.0, retention_days: float = 0.0
) -> float:
    """A lower bound of the cost of any rule, in seconds of CPU.

    target : bytes of a full file.
    small : pieces with fewer live bytes pay for opening them until they are rewritten.
    start : what the start of a run costs at least.
    """
    lives = _lives(trace, prices, target, small)
    blind = [replace(life, opening=0.0) for life in lives]
    return max(
        _bound(blind, trace, prices, start, retention_days),
        _bound(lives, trace, prices, start, retention_days) - _unavoidable(lives, prices),
    )


def _unavoidable(lives: list[_Life], prices: Prices) -> float:
    """At most what opening one small file in each partition costs: the one that has no other to be merged with."""
    first: dict[str, _Life] = {}
    for life in lives:
        if life.opening and (life.partition not in first or life.time[0] < first[life.partition].time[0]):
            first[life.partition] = life
    spans = ((life, np.array([life.time[0], life.trace.end], np.int64)) for life in first.values())
    return prices.decoding(prices.open_bytes) * sum(float(np.diff(life.reads(span))[0]) for life, span in spans)


def _bound(lives: list[_Life], trace: Trace, prices: Prices, start: float, retention_days: float) -> float:
    if not start:
        none = np.zeros(1)
        return sum(_cheapest(life, np.zeros(1, np.int64), none, prices, retention_days) for life in lives)
    width = max(_HOUR // 2, (trace.end - trace.start) // _CELLS)
    cells = np.arange(trace.start, trace.end, width)
    # The last one never closes: a file that is alone pays whole starts, however long it waits.
    windows = [*(int(days * DAY) for days in _WINDOWS_IN_DAYS), trace.end - trace.start + width]
    return max(_with_starts(lives, cells, window, start, prices, retention_days) for window in windows)


@dataclass(frozen=True, slots=True, eq=False)
class _Life:
    """The life of one piece from its birth, or from the start of the trace.

    time, share : when its deleted share changed, and to what; the first entry is its birth.
    end : when it was removed, or the end of the trace.
    reads : cumulative reads at any times.
    opening : what one read pays for the size of the piece until it is rewritten.
    """

    time: Ints
    share: Floats
    end: int
    size: float
    opening: float
    partition: str
    trace: Trace

    def reads(self, times: Ints) -> Floats:
        since = np.full(len(times), self.trace.start, np.int64)
        return self.trace.reads.count(since, times, (self.partition,), np.zeros(len(times), np.int64))


def _lives(trace: Trace, prices: Prices, target: int, small: int) -> list[_Life]:
    order = np.lexsort((np.arange(len(trace.piece)), trace.piece))
    ends = np.searchsorted(trace.piece[order], np.arange(len(trace.size) + 1))
    lives = []
    for piece in range(len(trace.size)):
        events = order[ends[piece] : ends[piece + 1]]
        time = np.maximum(trace.time[events], trace.start)
        share = np.maximum(trace.deleted[events], 0) / max(int(trace.rows[piece]), 1)
        gone = np.flatnonzero(trace.dropped[events])
        end = trace.end
        if len(gone):
            end, time, share = int(time[gone[0]]), time[: gone[0]], share[: gone[0]]
        if not len(time) or time[0] >= end:
            continue
        live = float(trace.size[piece]) * (1 - share[0])
        opening = prices.decoding(prices.open_bytes) * max(1 - live / target, 0) if live < small else 0.0
        name = trace.partitions[int(trace.partition[piece])]
        lives.append(_Life(time, share, end, float(trace.size[piece]), opening, name, trace))
    return lives


def _with_starts(
    lives: list[_Life], cells: Ints, window: int, start: float, prices: Prices, retention_days: float
) -> float:
    weights = [_weights(life, cells, window, prices) for life in lives]
    total = np.zeros(len(cells))
    for first, weight in weights:
        total[first : first + len(weight)] += weight
    scale = np.divide(start, total, out=np.zeros(len(cells)), where=total > 0)
    bound = 0.0
    for life, (first, weight) in zip(lives, weights, strict=True):
        shares = np.zeros(len(cells))
        shares[first : first + len(weight)] = weight * scale[first : first + len(weight)]
        bound += _cheapest(life, cells, shares, prices, retention_days)
    return bound


def _weights(life: _Life, cells: Ints, window: int, prices: Prices) -> tuple[int, Floats]:
    """The weights of a piece from some cell on: each delete, and its birth if it is small, weighs what it costs readers
    per read, times what is left of the window.
    """
    grown = np.diff(life.share, prepend=0.0)
    decode = prices.decoding(life.size)
    asks = decode * grown + np.where(grown > 0, prices.dv * decode, 0.0)
    asks[0] += life.opening
    first = max(int(np.searchsorted(cells, life.time[0], side="right")) - 1, 0)
    last = int(np.searchsorted(cells, life.end))
    weight = np.zeros(max(last - first, 0))
    width = int(cells[1] - cells[0]) if len(cells) > 1 else window
    long = window // width + 2
    cell_of = np.maximum(np.searchsorted(cells, life.time, side="right") - 1, 0)
    for time, ask, cell in zip(life.time.tolist(), asks.tolist(), cell_of.tolist(), strict=True):
        if ask:
            ages = np.maximum(cells[cell : min(cell + long, last)] - time, 0)
            weight[cell - first : cell - first + len(ages)] += ask * np.maximum(window - ages, 0)
    return first, weight


def _cheapest(life: _Life, cells: Ints, shares: Floats, prices: Prices, retention_days: float) -> float:
    """The cheapest way to serve the reads of one piece, by dynamic programming over the times of its rewrites.

    It is rewritten right after a delete, or at the beginning of a cell, where its share of the start changes.
    """
    waits = cells[(cells > life.time[0]) & (cells < life.end)]
    times = np.unique(np.concatenate([life.time, waits]))
    state = np.searchsorted(life.time, times, side="right") - 1
    fee = shares[np.maximum(np.searchsorted(cells, times, side="right") - 1, 0)]
    cheaper = _falls(fee, state)
    times, state, fee = times[cheaper], state[cheaper], fee[cheaper]
    share = life.share[state]
    decode, keep = prices.decoding(1), prices.keeping(1, 1)
    bounds = np.append(times, life.end)
    reads, days = np.diff(life.reads(bounds)), np.diff(bounds) / DAY
    live = life.size * (1 - share)
    size, copying = life.size, decode + prices.keeping(1, retention_days)
    # A file without live rows is removed without being read.
    some = share < 1
    unrewritten = np.cumsum(
        reads * (decode * size * (share + prices.dv * (share > 0)) + life.opening) + days * keep * size * share
    )
    best = float(unrewritten[-1])
    first = copying * size * some + prices.encoding(1) * live + fee
    # The cheapest way to a file that was rewritten at each time; so far from the file as it was written.
    rewritten = np.concatenate([[0.0], unrewritten[:-1]]) + first
    if share[-1] == share[0]:
        # Nothing happens after its first rewrite.
        return min(best, float(rewritten.min()))
    for at in range(len(times)):
        if rewritten[at] >= best:
            continue
        if not some[at]:
            best = float(rewritten[at])
            continue
        dead = (share[at:] - share[at]) / (1 - share[at])
        pays = reads[at:] * decode * (dead + prices.dv * (dead > 0)) + days[at:] * keep * dead
        served = live[at] * np.cumsum(pays)
        best = min(best, float(rewritten[at] + served[-1]))
        again = copying * live[at] * some[at + 1 :] + prices.encoding(1) * live[at + 1 :] + fee[at + 1 :]
        np.minimum(rewritten[at + 1 :], rewritten[at] + served[:-1] + again, out=rewritten[at + 1 :])
    return best


def _falls(fee: Floats, state: Ints) -> Bools:
    """Which times have a lower fee than all earlier ones since the last delete: at others it is too late to wait."""
    # Each state gets a level of its own below the one before it, so that one running minimum serves all.
    level = fee - state * (float(fee.max(initial=0.0)) + 1)
    least = np.minimum.accumulate(level)
    return np.concatenate([[True], level[1:] < least[:-1]])
