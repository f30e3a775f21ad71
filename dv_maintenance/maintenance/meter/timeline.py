"""The life of each live file: when it was written, and how its deleted rows grew. Derived from the table's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import flags, taken
from dv_maintenance.maintenance.planning.facts import Bools, Ints, ints, valid

if TYPE_CHECKING:
    from dv_maintenance.tables.file_log import FileLog
    from dv_maintenance.tables.model import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One entry per live file, in the snapshot's order. Times are epoch milliseconds.

    born : when the file was written or, if that was before the log begins, its modification time.
    offsets : the steps of file ``i`` are ``offsets[i]`` to ``offsets[i + 1]`` of the two columns below. Files without
        deleted rows have none.
    times : when a deletion vector (DV) of the file was committed, oldest first.
    deleted : rows that it names.
    first_delete : when the first of the file's deleted rows were deleted; the snapshot's time for files without any.
    exact : whether the log goes back far enough to know the file's first DV.
    """

    born: Ints
    offsets: Ints
    times: Ints
    deleted: Ints
    first_delete: Ints
    exact: Bools

    def __len__(self) -> int:
        return len(self.born)

    @property
    def owner(self) -> Ints:
        """The file of each step."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))

    @property
    def last_step(self) -> Ints:
        """When each file got its present DV; its birth without one."""
        last = self.born.copy()
        has = np.diff(self.offsets) > 0
        last[has] = self.times[self.offsets[1:][has] - 1]
        return last


def from_snapshot(snapshot: Snapshot) -> Timeline:
    """A timeline that every true one costs at most as much as: as if today's deleted rows were deleted when their file
    was written. It needs no log.
    """
    born = ints(snapshot.files["modified"])
    deleted, has_dv = ints(snapshot.files["deleted_rows"]), valid(snapshot.files["dv_id"])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(has_dv)])
    first = np.where(has_dv, born, snapshot.timestamp)
    return Timeline(born, offsets, born[has_dv], deleted[has_dv], first, ~has_dv)


def timeline(snapshot: Snapshot, log: FileLog) -> Timeline:
    """The life of the snapshot's files, as far as the log goes back.

    A DV that is older than the log is counted from the log's first commit, or from the birth of its file if that is
    later: readers may have paid more for it, never less. Its ``first_delete`` is the file's birth, the earliest
    possible time. A DV that a compaction wrote together with its file names rows that were deleted while it ran; they
    count from its commit.
    """
    files = snapshot.files
    number = files.num_rows
    has_dv = valid(files["dv_id"])
    # The clock of a writer may go back; the order of the commits counts.
    when = np.maximum.accumulate(np.array([commit.timestamp for commit in log.commits], np.int64))
    at = _position(log.changes["path"], files["path"])
    live = at >= 0
    at, commit, added = at[live], ints(log.changes["commit"])[live], flags(log.changes["added"])[live]
    deleted = np.where(valid(log.changes["dv_id"]), ints(log.changes["deleted_rows"]), 0)[live]

    # A commit that adds a file without removing it brought the file. The newest one counts: a restore may have added it
    # again.
    change = at * max(len(when), 1) + commit
    brought = added & ~np.isin(change, change[~added])
    born_in = np.full(number, -1, np.int64)
    np.maximum.at(born_in, at[brought], commit[brought])
    in_log = born_in >= 0
    born = ints(files["modified"]).copy()
    born[in_log] = when[born_in[in_log]]

    # For files that are older than the log, the first change shows which DV they had before.
    first_change = np.full(number, len(when), np.int64)
    np.minimum.at(first_change, at, commit)
    first = ~added & ~in_log[at] & (commit == first_change[at])
    earlier = np.zeros(number, np.int64)
    earlier[at[first]] = deleted[first]
    untouched = has_dv & (first_change == len(when))
    earlier[untouched] = ints(files["deleted_rows"])[untouched]

    inherited = np.flatnonzero(earlier)
    begins = int(when[0]) if len(when) else snapshot.timestamp
    step = added & (commit >= born_in[at]) & (deleted > 0)
    owner = np.concatenate([inherited, at[step]])
    times = np.concatenate([np.maximum(born[inherited], begins), when[commit[step]]])
    rows = np.concatenate([earlier[inherited], deleted[step]])
    order = np.lexsort((times, owner))
    owner, times, rows = owner[order], times[order], rows[order]
    # A delete from another file may move a DV (Paimon), a new column may change a file (Lance): no step of this file.
    new = np.ones(len(owner), np.bool_)
    new[1:] = (owner[1:] != owner[:-1]) | (rows[1:] != rows[:-1])
    owner, times, rows = owner[new], times[new], rows[new]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owner, minlength=number))])
    first_delete = np.full(number, snapshot.timestamp, np.int64)
    np.minimum.at(first_delete, owner, times)
    first_delete[inherited] = np.minimum(first_delete, born)[inherited]
    exact = np.ones(number, np.bool_)
    exact[inherited] = False
    return Timeline(born, offsets, times, rows, first_delete, exact)


def _position(values: pa.ChunkedArray, among: pa.ChunkedArray) -> Ints:
    """The position of each value in ``among``, -1 if it is not there."""
    # A log names few of a table's files: a hash table of those takes less time and memory than one of all.
    rows = np.flatnonzero(flags(pc.is_in(among, value_set=values)))
    found = pc.index_in(values, value_set=taken(among, rows)).cast(pa.int64())
    there = valid(found)
    at = np.full(len(there), -1, np.int64)
    at[there] = rows[ints(found)[there]]
    return at
