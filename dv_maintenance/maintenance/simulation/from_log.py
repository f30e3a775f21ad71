"""The life of a real table, from its own log: what its writers did, and what its maintenance did in fact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.simulation.trace import TraceBuilder
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.maintenance.reads.model import Reads
    from dv_maintenance.maintenance.simulation.trace import Trace
    from dv_maintenance.tables.file_log import FileCommit, FileLog
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

# Commits of maintenance with nothing in between belong to one run if they are this close, milliseconds.
_ONE_RUN: Final = 15 * 60_000


@dataclass(frozen=True, slots=True)
class Happened:
    """What maintenance did in fact, by this package or by others.

    commits : of the log, all of them.
    runs : groups of rewriting commits without a writer's commit in between.
    written : bytes of the files that they added.
    """

    commits: int
    runs: int
    written: int


@dataclass(frozen=True, slots=True)
class Past:
    """``complete``: whether the log goes back as far as was asked for."""

    trace: Trace
    happened: Happened
    complete: bool


def past_of(table: Table, snapshot: Snapshot, since: int, reads: Reads) -> Past:
    """The life of a table since a time, epoch milliseconds, as far as its log goes back.

    Rewrites are undone: later deletes in their new files are shared among the files that writers wrote.

    Raises
    ------
    UsageError : the log has no commit since then, or the format has no such log.
    DamagedTableError, StorageError : as ``file_log``.
    """
    if not isinstance(table, FileLogTable):
        raise UsageError(f"the log of {title_of(table.format)} tables does not record what a commit did to its files")
    log = table.file_log(snapshot, since)
    if not log.commits:
        raise UsageError(
            "there are no commits since then", table=table.uri, version=snapshot.version, next_step="go back further"
        )
    first = log.commits[0].timestamp - 1
    start = first if log.base is None else min(first, since)
    life = _Life(TraceBuilder(table.uri, start))
    if log.base is not None:
        life.begin(table.snapshot(log.base), start)
    end = max(snapshot.timestamp, start + 1)
    for commit, removed, added in _by_commit(log):
        life.commit(commit, removed, added)
        end = max(end, commit.timestamp)
    happened = Happened(len(log.commits), life.runs, life.written)
    trace = replace(life.builder.build(end + 1, reads), shrinks_to=life.shrinks_to)
    return Past(trace, happened, log.complete)


_Row = Mapping[str, Any]


def _by_commit(log: FileLog) -> Iterator[tuple[FileCommit, dict[str, _Row], dict[str, _Row]]]:
    rows = log.changes.to_pylist()
    at = 0
    for number, commit in enumerate(log.commits):
        removed: dict[str, _Row] = {}
        added: dict[str, _Row] = {}
        while at < len(rows) and rows[at]["commit"] == number:
            (added if rows[at]["added"] else removed)[rows[at]["path"]] = rows[at]
            at += 1
        yield commit, removed, added


@dataclass(slots=True)
class _Life:
    """``pieces``: of each live file, the pieces that it holds. ``deleted``: rows that its deletion vector names."""

    builder: TraceBuilder
    pieces: dict[str, list[int]] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    written: int = 0
    _time: int = 0
    _last_rewrite: int | None = None
    # Not for secrets: the same log gives the same life.
    _random: Random = field(default_factory=lambda: Random(0))  # noqa: S311
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    _before: int = 0
    _after: int = 0

    @property
    def shrinks_to(self) -> float:
        """What the first rewrite of writers' files leaves of their live bytes: another codec, better statistics."""
        return self._after / self._before if self._before else 1.0

    def begin(self, snapshot: Snapshot, start: int) -> None:
        """The files that were there before."""
        self._time = start
        self.builder.statement()
        for row in snapshot.files.select(["path", "partition", "size", "physical_rows", "deleted_rows"]).to_pylist():
            self._add(row, start)

    def commit(self, commit: FileCommit, removed: dict[str, _Row], added: dict[str, _Row]) -> None:
        # The clock of a writer may go back; the order of commits counts.
        self._time = max(self._time, commit.timestamp)
        self.builder.statement()
        both = removed.keys() & added.keys()
        gone = [path for path in removed if path not in both]
        new = [row for path, row in added.items() if path not in both]
        # A statement that touches few of the files is taken to touch as few of the pieces of a merged file.
        spread = len(both) / max(len(self.pieces), 1)
        for path in sorted(both):
            self._grow(path, int(added[path]["deleted_rows"] or 0), spread)
        if commit.data_changed:
            self._last_rewrite = None if gone or new or both else self._last_rewrite
            for path in gone:
                for piece in self.pieces.pop(path, ()):
                    self.builder.drop(self._time, piece)
                self.deleted.pop(path, None)
            for row in new:
                self._add(row, self._time)
        elif gone:
            self._rewrite(gone, new)

    def _add(self, row: _Row, time: int) -> None:
        size = int(row["size"] or 0)
        rows = int(row["physical_rows"] or 0) or max(size // 100, 1)
        piece = self.builder.add(time, size, rows, row["partition"] or "")
        self.pieces[row["path"]] = [piece]
        self._sizes[row["path"]] = (size, rows)
        self.deleted[row["path"]] = 0
        self._grow(row["path"], int(row["deleted_rows"] or 0))

    def _grow(self, path: str, deleted: int, spread: float = 1.0) -> None:
        """More rows of a file are deleted. The log does not tell from which of its pieces: neighbours, about as large a
        share of them as ``spread`` says.
        """
        more = deleted - self.deleted.get(path, 0)
        self.deleted[path] = deleted
        pieces = self.pieces.get(path, [])
        if more <= 0 or not pieces:
            return
        first = self._random.randrange(len(pieces))
        pieces = [*pieces[first:], *pieces[:first]]
        touched = max(1, round(spread * len(pieces)))
        while touched < len(pieces) and sum(map(self.builder.live_rows, pieces[:touched])) < more:
            touched += 1
        live = [self.builder.live_rows(piece) for piece in pieces[:touched]]
        left = sum(live)
        for piece, rows in zip(pieces[:touched], live, strict=True):
            part = min(rows, -(-more * rows // left)) if left > 0 else 0
            self.builder.delete(self._time, piece, part)
            more, left = more - part, left - rows

    def _rewrite(self, gone: list[str], new: list[_Row]) -> None:
        """Maintenance: the pieces of the old files go to the new ones of the same partition, in order."""
        if self._last_rewrite is None or self._time - self._last_rewrite > _ONE_RUN:
            self.runs += 1
        self._last_rewrite = self._time
        written = sum(int(row["size"] or 0) for row in new)
        self.written += written
        originals = [(self._sizes.pop(path, None), self.deleted.get(path, 0)) for path in gone]
        if new and all(known is not None for known, _ in originals):
            self._before += sum(known[0] * (known[1] - dead) // known[1] for known, dead in originals if known)
            self._after += written
        free: dict[str, list[int]] = {}
        for path in gone:
            for piece in self.pieces.pop(path, ()):
                free.setdefault(self.builder.partition_of(piece), []).append(piece)
            self.deleted.pop(path, None)
        for number, row in enumerate(new):
            of_partition = free.get(row["partition"] or "", [])
            last = not any((other["partition"] or "") == (row["partition"] or "") for other in new[number + 1 :])
            room, taken = int(row["physical_rows"] or 0), list[int]()
            while of_partition and (last or room > 0):
                taken.append(of_partition.pop(0))
                room -= self.builder.live_rows(taken[-1])
            self.pieces[row["path"]] = taken
            self.deleted[row["path"]] = 0
            self._grow(row["path"], int(row["deleted_rows"] or 0))
