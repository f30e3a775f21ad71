"""The life of a table without its maintenance: what writers added and deleted, and how often it was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.facts import Bools, Ints
    from dv_maintenance.maintenance.reads.model import Reads


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Pieces are the files as writers wrote them. Maintenance merges them, but never changes which rows are deleted.

    name : for people.
    start, end : epoch milliseconds.
    partitions : names of the partitions.
    partition, size, rows : of each piece; bytes and rows as written.
    time : of each event, epoch milliseconds, ascending.
    piece : of each event.
    deleted : rows of the piece that are deleted after the event; -1: the event adds the piece.
    dropped : whether the event removes the whole file of the piece, as an overwrite does.
    statement : number of the writer's statement; events of one statement have the same time.
    shrinks_to : what the first rewrite of a piece leaves of its live bytes.
    """

    name: str
    start: int
    end: int
    partitions: tuple[str, ...]
    partition: Ints
    size: Ints
    rows: Ints
    time: Ints
    piece: Ints
    deleted: Ints
    dropped: Bools
    statement: Ints
    reads: Reads
    shrinks_to: float = 1.0

    @property
    def appended(self) -> int:
        """Bytes that writers added after the start."""
        added = (self.deleted < 0) & (self.time > self.start)
        return int(self.size[self.piece[added]].sum())

    @property
    def statements(self) -> int:
        """Statements of writers after the start."""
        return len(np.unique(self.statement[self.time > self.start]))


class TraceBuilder:
    """Collects the events of a trace in the order of time."""

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        self._codes: dict[str, int] = {}
        self._pieces: list[tuple[int, int, int]] = []
        self._deleted: list[int] = []
        self._events: list[tuple[int, int, int, bool, int]] = []
        self._statement = 0

    def statement(self) -> None:
        """The events from here on are another statement's."""
        self._statement += 1

    def add(self, time: int, size: int, rows: int, partition: str = "") -> int:
        """A new file. Returns its piece."""
        code = self._codes.setdefault(partition, len(self._codes))
        self._pieces.append((code, size, rows))
        self._deleted.append(0)
        piece = len(self._pieces) - 1
        self._events.append((time, piece, -1, False, self._statement))
        return piece

    def delete(self, time: int, piece: int, rows: int) -> None:
        """``rows`` more rows of a piece are deleted, at most those that it still has."""
        total = min(self._deleted[piece] + rows, self._pieces[piece][2])
        if total > self._deleted[piece]:
            self._deleted[piece] = total
            self._events.append((time, piece, total, False, self._statement))

    def drop(self, time: int, piece: int) -> None:
        """A writer replaced the piece's file, or removed it."""
        self._deleted[piece] = self._pieces[piece][2]
        self._events.append((time, piece, self._pieces[piece][2], True, self._statement))

    def live_rows(self, piece: int) -> int:
        return self._pieces[piece][2] - self._deleted[piece]

    def partition_of(self, piece: int) -> str:
        return list(self._codes)[self._pieces[piece][0]]

    def build(self, end: int, reads: Reads) -> Trace:
        """The trace up to ``end``."""
        events = np.array(self._events, np.int64).reshape(-1, 5)
        events = events[np.argsort(events[:, 0], kind="stable")]
        events = events[events[:, 0] <= end]
        pieces: npt.NDArray[np.int64] = np.array(self._pieces, np.int64).reshape(-1, 3)
        return Trace(
            name=self.name,
            start=self.start,
            end=end,
            partitions=tuple(self._codes) or ("",),
            partition=pieces[:, 0],
            size=pieces[:, 1],
            rows=pieces[:, 2],
            time=events[:, 0],
            piece=events[:, 1],
            deleted=events[:, 2],
            dropped=events[:, 3].astype(np.bool_),
            statement=events[:, 4],
            reads=reads,
        )
