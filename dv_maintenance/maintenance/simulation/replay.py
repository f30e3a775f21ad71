"""Replay the life of a table under a rule of maintenance, planned by the same code that plans real runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import int64s
from dv_maintenance.maintenance.meter.timeline import Timeline
from dv_maintenance.tables.model import FILES_SCHEMA, Snapshot
from dv_maintenance.tables.partition_spec import by_columns
from dv_maintenance.units import DAY

if TYPE_CHECKING:
    from dv_maintenance.maintenance.meter.prices import Prices
    from dv_maintenance.maintenance.planning.facts import Ints
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep
    from dv_maintenance.maintenance.simulation.trace import Trace

# Parallel tasks of a run, and how long a writer's statement takes: what conflicts depend on.
_CORES: Final = 4
_STATEMENT_MS: Final = 60_000
_NIGHT: Final = 3 * DAY // 24

PlanOf = Callable[[Snapshot, Timeline, int], "MaintenancePlan"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to maintain a table.

    plan : the plan to run now, from snapshot, timeline and time; without steps if no run is worth its start. ``None``:
        no maintenance.
    nightly : asked every night at three; otherwise after each statement of a writer, and when the last plan said so.
    start : seconds of CPU that the start of a run costs.
    """

    name: str
    plan: PlanOf | None
    nightly: bool
    start: float


@dataclass(slots=True)
class Replayed:
    """What a rule has cost, in seconds of CPU.

    reading : what readers paid for deleted rows, deletion vectors and small files.
    rewriting : decoding and writing.
    starting : starts of runs.
    storing : deleted rows, and old copies until retention is over.
    written : bytes that runs wrote.
    disturbed : statements of writers that lost a file to a run while they worked.
    late : deleted rows whose file was not rewritten by ``purge_within`` after their delete.
    late_days : by how many days the latest of them.
    """

    rule: str
    reading: float = 0.0
    rewriting: float = 0.0
    starting: float = 0.0
    storing: float = 0.0
    runs: int = 0
    written: int = 0
    disturbed: int = 0
    late: int = 0
    late_days: float = 0.0

    @property
    def cost(self) -> float:
        return self.reading + self.rewriting + self.starting + self.storing


@dataclass(slots=True)
class _File:
    """A file of the simulated table. ``steps``: times and deleted rows of its deletion vectors."""

    partition: int
    born: int
    size: int
    rows: int
    pieces: list[int]
    deleted: int = 0
    busy_until: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)


def replay(
    trace: Trace,
    rule: Rule,
    prices: Prices,
    *,
    target: int,
    small: int,
    retention_days: float = 0.0,
    purge_within: int | None = None,
) -> Replayed:
    """The cost of a rule over a trace.

    target, small : bytes of a full file, and below which live size a file is small, for what readers pay.
    purge_within : milliseconds after a delete within which its file must be rewritten.
    """
    return _Replay(trace, rule, prices, target, small, retention_days, purge_within).run()


class _Replay:
    def __init__(
        self,
        trace: Trace,
        rule: Rule,
        prices: Prices,
        target: int,
        small: int,
        retention_days: float,
        purge_within: int | None,
    ) -> None:
        self.trace, self.rule, self.prices = trace, rule, prices
        self.target, self.small, self.retention_days, self.purge_within = target, small, retention_days, purge_within
        self.found = Replayed(rule.name)
        self.files: dict[int, _File] = {}
        self.next_file = 0
        # Of each piece: its file (-1: none), present bytes and rows, rows deleted in its file, and purged before.
        number = len(trace.size)
        self.file_of = [-1] * number
        self.size, self.rows = trace.size.tolist(), trace.rows.tolist()
        self.deleted, self.purged = [0] * number, [0] * number
        self.shrinks = [trace.shrinks_to] * number
        # Of each partition: what one read costs now, without opening files; its small files. Bytes of all dead rows.
        self.overhead, self.small_files, self.small_bytes = np.zeros((3, len(trace.partitions)))
        self.dead = 0.0
        self.version = 0
        self.next_due: int | None = None

    def run(self) -> Replayed:
        trace = self.trace
        nights = range((trace.start // DAY) * DAY + _NIGHT, trace.end, DAY) if self.rule.nightly else range(0)
        asked = sorted({*(night for night in nights if night > trace.start), trace.end})
        bounds = np.unique(trace.time)
        ends = np.searchsorted(trace.time, bounds, side="right").tolist()
        moments = sorted({*asked, *bounds[bounds > trace.start].tolist()})
        counted = self._reads([trace.start, *moments])
        at, now, asked_set = 0, trace.start, set(asked)
        by_time = dict(zip(bounds.tolist(), ends, strict=True))
        first = int(np.searchsorted(trace.time, trace.start, side="right"))
        for event in range(first):
            self._event(event)
        at = first
        for number, moment in enumerate(moments):
            if not self.rule.nightly:
                self._runs_before(now, moment, counted[number])
            else:
                self._pass(now, moment, counted[number])
            now = moment
            until = by_time.get(moment, at)
            if until > at:
                self._statement(range(at, until))
                at = until
                if not self.rule.nightly and moment < trace.end:
                    self._ask(moment)
            if self.rule.nightly and moment in asked_set and moment < trace.end:
                self._ask(moment)
        self._judge_rest()
        return self.found

    def _reads(self, moments: list[int]) -> np.ndarray:
        """Reads of each partition between two moments, a row per interval."""
        start, end = np.array(moments[:-1], np.int64), np.array(moments[1:], np.int64)
        names = self.trace.partitions
        columns = [
            self.trace.reads.count(start, end, names, np.full(len(start), code, np.int64)) for code in range(len(names))
        ]
        return np.stack(columns, axis=1)

    def _runs_before(self, now: int, moment: int, counted: np.ndarray) -> None:
        """Let time pass, with the runs that become due on the way."""
        passed = now
        while self.next_due is not None and passed < self.next_due < moment:
            due, self.next_due = self.next_due, None
            self._pass(passed, due, counted * ((due - passed) / (moment - now)))
            passed = due
            self._ask(due)
        self._pass(passed, moment, counted * ((moment - passed) / (moment - now)))

    def _pass(self, now: int, moment: int, counted: np.ndarray) -> None:
        # Small files beyond those that merging all of them would leave.
        needed = np.ceil(np.round(self.small_bytes) / self.target)
        opening = self.prices.decoding(self.prices.open_bytes) * np.maximum(self.small_files - needed, 0)
        self.found.reading += float(counted @ (self.overhead + opening))
        self.found.storing += self.prices.keeping(self.dead, (moment - now) / DAY)

    # -- writers --------------------------------------------------------------------------------------------------

    def _statement(self, events: range) -> None:
        now = int(self.trace.time[events[0]])
        touched: dict[int, bool] = {}
        for event in events:
            file = self._event(event)
            if file is not None and file.busy_until > now - _STATEMENT_MS:
                touched[int(self.trace.statement[event])] = True
        self.found.disturbed += len(touched)
        self.version += 1

    def _event(self, event: int) -> _File | None:
        """Apply one event. Returns the file that it deleted rows of."""
        trace, piece, time = self.trace, int(self.trace.piece[event]), int(self.trace.time[event])
        deleted = int(trace.deleted[event])
        if deleted < 0:
            self._add(_File(int(trace.partition[piece]), time, self.size[piece], self.rows[piece], [piece]))
            return None
        number = self.file_of[piece]
        if number < 0:
            return None
        file = self.files[number]
        if trace.dropped[event] and len(file.pieces) == 1:
            self._judge(file, time)
            self._remove(number)
            return file
        new = min(deleted - self.purged[piece], self.rows[piece]) - self.deleted[piece]
        if new > 0:
            self._count(file, -1)
            self.deleted[piece] += new
            file.deleted += new
            file.steps.append((time, file.deleted))
            self._count(file, 1)
        return file

    def _add(self, file: _File) -> None:
        number, self.next_file = self.next_file, self.next_file + 1
        self.files[number] = file
        for piece in file.pieces:
            self.file_of[piece] = number
        self._count(file, 1)

    def _remove(self, number: int) -> _File:
        file = self.files.pop(number)
        self._count(file, -1)
        for piece in file.pieces:
            self.file_of[piece] = -1
        return file

    def _count(self, file: _File, sign: int) -> None:
        """Add what readers pay for a file to the sums, or take it away."""
        prices, share = self.prices, file.deleted / max(file.rows, 1)
        live = file.size * (1 - share)
        self.overhead[file.partition] += sign * prices.decoding(file.size) * (share + prices.dv * (file.deleted > 0))
        if live < self.small:
            self.small_files[file.partition] += sign
            self.small_bytes[file.partition] += sign * live
        self.dead += sign * (file.size - live)

    # -- maintenance ----------------------------------------------------------------------------------------------

    def _ask(self, now: int) -> None:
        if not self.files or self.rule.plan is None:
            return
        plan = self.rule.plan(self._snapshot(now), self._timeline(now), now)
        self.next_due = None
        if not plan.steps:
            self.next_due = plan.next_due_at
            return
        self.found.runs += 1
        self.found.starting += self.rule.start
        seconds = sum(
            self.prices.decoding(step.cost.bytes_read) + self.prices.encoding(step.cost.bytes_written)
            for step in plan.steps
        )
        self.found.rewriting += seconds
        ends = now + int(1000 * (self.rule.start + seconds) / _CORES)
        for step in plan.steps:
            self._apply(step, now, ends)
        self.version += 1
        # The run's commit is a new version, at which the rule is asked again.
        self.next_due = now + 1

    def _apply(self, step: PlanStep, now: int, ends: int) -> None:
        pieces: list[int] = []
        old, partition = 0, 0
        for each in step.inputs:
            file = self._remove(int(each.path))
            self._judge(file, now)
            pieces += file.pieces
            old += file.size
            partition = file.partition
        self.found.storing += self.prices.keeping(old, self.retention_days)
        live: list[int] = []
        for piece in pieces:
            rows = self.rows[piece]
            left = rows - self.deleted[piece]
            self.size[piece] = round(self.size[piece] * left / max(rows, 1) * self.shrinks[piece])
            self.shrinks[piece] = 1.0
            self.rows[piece] = left
            self.purged[piece] += self.deleted[piece]
            self.deleted[piece] = 0
            if left:
                live.append(piece)
        if not live:
            return
        # As many files as the step expects, of whole pieces, about equally large.
        total, parts = sum(self.size[piece] for piece in live), max(step.expected.files_after, 1)
        at = 0
        for number in range(parts):
            chosen: list[int] = []
            size = 0
            while at < len(live) and (size < total / parts or number == parts - 1):
                chosen.append(live[at])
                size += self.size[live[at]]
                at += 1
            if chosen:
                rows = sum(self.rows[piece] for piece in chosen)
                self._add(_File(partition, now, size, rows, chosen, busy_until=ends))
        self.found.written += total

    def _judge(self, file: _File, now: int) -> None:
        """Count the deleted rows of a file that goes later than it may."""
        if self.purge_within is None:
            return
        before = 0
        for time, deleted in file.steps:
            over = now - time - self.purge_within
            if over > 0:
                self.found.late += deleted - before
                self.found.late_days = max(self.found.late_days, over / DAY)
            before = deleted

    def _judge_rest(self) -> None:
        for file in self.files.values():
            self._judge(file, self.trace.end)

    # -- what planners see ----------------------------------------------------------------------------------------

    def _snapshot(self, now: int) -> Snapshot:
        files = self.files.values()
        number = len(files)
        deleted = _int64s([file.deleted for file in files])
        ids = pc.cast(int64s(list(self.files)), pa.string())
        dv = pc.if_else(
            pc.greater(int64s(deleted), pa.scalar(0, pa.int64())),
            pc.cast(int64s([len(file.steps) for file in files]), pa.string()),
            pa.scalar(None, pa.string()),
        )
        codes = np.array([file.partition for file in files], np.int32)
        partition = pa.DictionaryArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), number, [None, pa.py_buffer(codes)]), pa.array(self.trace.partitions)
        )
        columns = [
            ids,
            partition,
            int64s([file.size for file in files]),
            int64s([file.rows for file in files]),
            int64s(deleted),
            dv,
            int64s([file.born for file in files]),
        ]
        keys = next((name.split("=")[0] for name in self.trace.partitions if name), None)
        return Snapshot(
            table=self.trace.name,
            format="simulated",
            version=self.version,
            timestamp=now,
            schema=pa.schema([]),
            specs=by_columns(*([keys] if keys else [])),
            properties={},
            files=pa.Table.from_arrays(columns, schema=FILES_SCHEMA),
        )

    def _timeline(self, now: int) -> Timeline:
        files = list(self.files.values())
        number = np.array([len(file.steps) for file in files], np.int64)
        steps = np.array([step for file in files for step in file.steps], np.int64).reshape(-1, 2)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(number)])
        first = np.full(len(files), now, np.int64)
        some = number > 0
        first[some] = steps[offsets[:-1][some], 0]
        born = _int64s([file.born for file in files])
        return Timeline(born, offsets, steps[:, 0], steps[:, 1], first, np.ones(len(files), np.bool_))


def _int64s(values: list[int]) -> Ints:
    return np.array(values, np.int64)
