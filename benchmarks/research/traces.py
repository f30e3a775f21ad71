"""Lives of tables of the kinds that decide between policies. All are made here, from a seed; none is recorded data.

``erasure``: requests to erase people, uniform or for the busiest ones first. ``cdc``: a change stream that updates and
inserts every five minutes. ``late``: daily partitions whose rows are corrected for some days. ``sliding``: a window
from which the oldest day is deleted row by row. ``archive``: hardly read, now and then deleted from. ``commits``: an
append-and-update history as of a source repository, by working hours. ``bursts``: clustered deletes and inserts.
``dimension``: a small table that is read all day and updated at night. ``appends``: small appends only.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dv_maintenance.maintenance.reads.model import Reads
from dv_maintenance.maintenance.simulation.trace import Trace, TraceBuilder

__all__ = ["KINDS", "trace"]

_DAY: Final = 86_400_000
_MINUTE: Final = 60_000
_MIB: Final = 1 << 20
_START: Final = 20_000 * _DAY

KINDS: Final = (
    "erasure, uniform",
    "erasure, busiest first",
    "CDC, 5 min",
    "CDC, hourly",
    "late data",
    "sliding window",
    "archive",
    "commits, small",
    "commits, large",
    "bursts",
    "dimension",
    "appends",
)


def trace(kind: str, *, days: int = 60, seed: int = 0, reads_per_day: float | None = None) -> Trace:
    """One life of a kind in KINDS."""
    random = np.random.default_rng([seed, KINDS.index(kind)])
    builder = TraceBuilder(kind, _START)
    end = _START + days * _DAY
    makers = {
        "erasure, uniform": lambda: _erasure(builder, random, end, skew=0.0),
        "erasure, busiest first": lambda: _erasure(builder, random, end, skew=1.1),
        "CDC, 5 min": lambda: _cdc(builder, random, end, every=5 * _MINUTE, rows=2_000),
        "CDC, hourly": lambda: _cdc(builder, random, end, every=60 * _MINUTE, rows=24_000),
        "late data": lambda: _late(builder, random, end),
        "sliding window": lambda: _sliding(builder, random, end),
        "archive": lambda: _archive(builder, random, end),
        "commits, small": lambda: _commits(builder, random, end, rows=2_000, files=8),
        "commits, large": lambda: _commits(builder, random, end, rows=40_000, files=60),
        "bursts": lambda: _bursts(builder, random, end),
        "dimension": lambda: _dimension(builder, random, end),
        "appends": lambda: _appends(builder, random, end),
    }
    rate = makers[kind]()
    return builder.build(end, Reads.declared(rate if reads_per_day is None else reads_per_day))


def _base(builder: TraceBuilder, files: int, size: int, rows: int) -> list[int]:
    builder.statement()
    return [builder.add(_START, size, rows) for _ in range(files)]


def _erasure(builder: TraceBuilder, random: np.random.Generator, end: int, *, skew: float) -> float:
    """Twenty requests a day; each person has rows in many files, busy ones in all of them."""
    pieces = _base(builder, 120, 230 * _MIB, 2_000_000)
    time = _START
    while (time := time + int(random.exponential(_DAY / 20))) < end:
        builder.statement()
        reach = 0.04 if skew == 0 else min(1.0, 0.02 * random.pareto(skew) + 0.01)
        for piece in random.choice(pieces, max(1, int(reach * len(pieces))), replace=False).tolist():
            builder.delete(time, piece, int(random.poisson(20 if skew == 0 else 200)) + 1)
    return 30.0


def _cdc(builder: TraceBuilder, random: np.random.Generator, end: int, *, every: int, rows: int) -> float:
    """Each statement updates recent rows mostly, and inserts their new versions with as many new rows."""
    pieces = _base(builder, 20, 220 * _MIB, 1_800_000)
    size = 128
    for time in range(_START + every, end, every):
        builder.statement()
        newest = pieces[-200:]
        for piece in random.choice(newest, min(6, len(newest)), replace=False).tolist():
            builder.delete(time, piece, rows // 12)
        piece = int(random.choice(pieces))
        builder.delete(time, piece, rows // 20)
        pieces.append(builder.add(time, rows * size, rows))
    return 48.0


def _late(builder: TraceBuilder, random: np.random.Generator, end: int) -> float:
    """A partition a day; its rows are corrected for five days, less each day."""
    parts: list[list[int]] = []
    for day, at in enumerate(range(_START, end, _DAY)):
        builder.statement()
        name = f"day={day:04d}"
        parts.append([builder.add(at + _DAY // 8, 230 * _MIB, 2_300_000, name) for _ in range(4)])
        for back in range(1, 6):
            if day < back:
                break
            for hour in range(9, 18, 3):
                builder.statement()
                for piece in parts[day - back]:
                    time = at + hour * _DAY // 24
                    if time < end:
                        builder.delete(time, piece, int(random.poisson(12_000 / back)))
    return 24.0


def _sliding(builder: TraceBuilder, random: np.random.Generator, end: int) -> float:
    """No partitions: the oldest of 30 days is deleted hour by hour, a new one is appended."""
    days: list[list[int]] = []
    for _ in range(30):
        builder.statement()
        days.append([builder.add(_START, 64 * _MIB, 600_000) for _ in range(3)])
    for at in range(_START, end, _DAY):
        for hour in range(1, 24, 2):
            builder.statement()
            for piece in days[0]:
                builder.delete(at + hour * _DAY // 24, piece, 50_000 + int(random.integers(0, 2)))
        builder.statement()
        days.append([builder.add(at + 23 * _DAY // 24, 64 * _MIB, 600_000) for _ in range(3)])
        days.pop(0)
    return 12.0


def _archive(builder: TraceBuilder, random: np.random.Generator, end: int) -> float:
    pieces = _base(builder, 300, 250 * _MIB, 2_500_000)
    time = _START
    while (time := time + int(random.exponential(3 * _DAY))) < end:
        builder.statement()
        for piece in random.choice(pieces, 15, replace=False).tolist():
            builder.delete(time, piece, int(random.poisson(5_000)))
    return 0.3


def _commits(builder: TraceBuilder, random: np.random.Generator, end: int, *, rows: int, files: int) -> float:
    """Changes come in working hours, a handful at a time; each rewrites lines of few files, and adds some."""
    pieces = _base(builder, files, 40 * _MIB, 400_000)
    for at in range(_START, end, _DAY):
        if (at // _DAY) % 7 in {2, 3}:
            continue
        for _ in range(int(random.poisson(9))):
            time = at + int(random.normal(14, 3) * _DAY / 24)
            if not _START < time < end:
                continue
            builder.statement()
            lines = int(random.pareto(1.2) * 3) + 1
            for piece in random.choice(pieces, min(lines, 5, len(pieces)), replace=False).tolist():
                builder.delete(time, piece, rows * lines // 6 + 1)
            pieces.append(builder.add(time, rows * lines * 100, rows * lines))
    return 20.0


def _bursts(builder: TraceBuilder, random: np.random.Generator, end: int) -> float:
    """Quiet for days, then dozens of statements within an hour."""
    pieces = _base(builder, 60, 230 * _MIB, 2_300_000)
    time = _START
    while (time := time + int(random.exponential(2.5 * _DAY))) < end:
        where = random.choice(pieces, 12, replace=False).tolist()
        for minute in range(int(random.integers(10, 60))):
            at = time + minute * _MINUTE
            if at >= end:
                break
            builder.statement()
            for piece in where:
                builder.delete(at, piece, int(random.poisson(4_000)))
            pieces.append(builder.add(at, 3 * _MIB, 30_000))
    return 40.0


def _dimension(builder: TraceBuilder, random: np.random.Generator, end: int) -> float:
    pieces = _base(builder, 4, 60 * _MIB, 600_000)
    for at in range(_START, end, _DAY):
        builder.statement()
        for piece in pieces[:]:
            builder.delete(at + _DAY // 12, piece, int(random.poisson(3_000)))
        pieces.append(builder.add(at + _DAY // 12, 2 * _MIB, 20_000))
    return 600.0


def _appends(builder: TraceBuilder, random: np.random.Generator, end: int) -> float:
    builder.statement()
    for time in range(_START + _DAY // 24, end, _DAY // 24):
        builder.statement()
        builder.add(time, int(random.uniform(2, 6) * _MIB), 50_000)
    return 30.0
