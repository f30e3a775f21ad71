"""What a table has still to erase under ``Policy.erase_within``, and by when.

Deleted rows are in three kinds of files: in live files with a deletion vector (DV), which wait for a purge, in
unneeded files, which wait for a vacuum, and in files that a vacuum quarantined, which wait for another one. The
log of file changes (``tables.file_log``) lists them, with the times. Without it only the first kind is known.

Not counted are files that a compaction replaced before any of their rows was deleted. What was deleted later from the
compacted file has the same deadline there, and the file that was replaced earlier expires earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.files.arrays import flags
from dv_maintenance.maintenance.meter.timeline import timeline
from dv_maintenance.maintenance.planning.deadlines import MARGIN, NEVER, Erasure, erasure_of
from dv_maintenance.maintenance.planning.facts import ints, valid
from dv_maintenance.maintenance.vacuum import foreseen
from dv_maintenance.tables.file_log import FileLogTable
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.quarantine import quarantined
from dv_maintenance.tables.registry import title_of
from dv_maintenance.units import day_of, format_duration, iso_timestamp

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.facts import Bools, Ints
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.tables.file_log import FileLog
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

# Unneeded files whose existence is checked one by one: those that are late, oldest first.
_LOOKED_FOR: Final = 1000


@dataclass(frozen=True, slots=True)
class Waiting:
    """Files with deleted rows that wait for their next step.

    files : how many.
    oldest : when the oldest of these rows were deleted, epoch milliseconds.
    exact : whether ``oldest`` is exact. If not, the rows were deleted then or earlier: the log does not go back far
        enough.
    by : when the step must be done at the latest, epoch milliseconds.
    """

    files: int
    oldest: int
    exact: bool
    by: int


@dataclass(frozen=True, slots=True)
class ToErase:
    """What a table has still to erase.

    live : files that wait for a purge; ``None`` if no live file has deleted rows.
    unneeded : files that wait for a vacuum; ``None`` if there are none, as far as known.
    aside : files in quarantine; ``None`` if there are none, as far as known.
    forgotten : expired files that became unneeded before the log of twice the time begins; what they hold is late.
    unknown : what could not be found out, a sentence each.
    """

    erasure: Erasure
    live: Waiting | None
    unneeded: Waiting | None = None
    forgotten: int = 0
    unknown: tuple[str, ...] = ()
    aside: Waiting | None = None

    @property
    def waiting(self) -> Mapping[str, Waiting]:
        """What waits, by the next step."""
        steps = {"purge": self.live, "vacuum": self.unneeded, "emptying the quarantine": self.aside}
        return {step: each for step, each in steps.items() if each is not None}

    @property
    def by(self) -> int | None:
        """When the next step must be done at the latest, epoch milliseconds; ``None`` if nothing is to be erased."""
        return min((each.by for each in self.waiting.values()), default=None)

    def to_json(self) -> dict[str, Any]:
        """Times as ISO 8601."""
        return {
            "erase_by": None if self.by is None else iso_timestamp(self.by),
            "deadlines": [
                {
                    "step": step,
                    "by": iso_timestamp(each.by),
                    "files": each.files,
                    "oldest_delete": iso_timestamp(each.oldest),
                    "exact": each.exact,
                }
                for step, each in self.waiting.items()
            ],
            "unknown": list(self.unknown),
            "problem": self.erasure.problem,
        }

    def sentences(self) -> list[str]:
        """One per kind of files, and what is unknown."""
        said = [] if self.erasure.problem is None else [self.erasure.problem]
        if self.live is not None:
            said.append(f"{_count(self.live.files)} {self.erasure.sentence(self.live.oldest, exact=self.live.exact)}")
        if self.unneeded is not None:
            said.append(f"{_count(self.unneeded.files)} that nothing needs must be vacuumed {_by(self.unneeded)}")
        if self.aside is not None:
            said.append(f"{_count(self.aside.files)} in quarantine must be deleted there {_by(self.aside)}")
        if self.forgotten:
            said.append(
                f"{_count(self.forgotten)} unneeded for more than {format_duration(2 * self.erasure.erase_within)}, "
                "with only rows deleted before that, must be vacuumed"
            )
        if not self.waiting and not self.forgotten and not self.unknown:
            said.append("no deleted rows are left in storage")
        return [*said, *self.unknown]


def to_erase(table: Table, snapshot: Snapshot, policy: Policy, *, now: int) -> ToErase | None:
    """What the table has still to erase at the snapshot; ``None`` without ``Policy.erase_within``.

    Reads the log of twice that time, does a dry run of a lite vacuum, and looks for files that should be gone. Files
    that only a tag, a clone or a pinned version keeps are found as long as the log records their removal.

    now : epoch milliseconds.

    Raises
    ------
    The errors of ``erasure_of`` and of reading the log.
    """
    erasure = erasure_of(table, snapshot, policy)
    if erasure is None:
        return None
    has_dv = valid(snapshot.files["dv_id"])
    if not isinstance(table, FileLogTable):
        silent = f"{title_of(table.format)} tables don't record which unneeded files hold deleted rows"
        return ToErase(
            erasure, _oldest_dv(table, snapshot, erasure, int(has_dv.sum())), unknown=(silent, *snapshot.unerased)
        )
    since = now - 2 * erasure.erase_within
    log = table.file_log(snapshot, since)
    # What a complete log begins with was there at that time.
    begins = since if log.complete else min((each.timestamp for each in log.commits), default=snapshot.timestamp)
    live = _live(snapshot, log, erasure, has_dv, begins)
    gone = _gone(snapshot, log, begins)
    try:
        result = foreseen(table, policy.vacuum_request, now)
        expired = {file.path: file.modified for file in result.expired.files if file.kind == "data"}
        unknown = snapshot.unerased
    except DvMaintenanceError as error:
        expired, unknown = {}, (f"a vacuum would be refused: {error}", *snapshot.unerased)
    unneeded, others = _unneeded(table, gone, erasure, expired, now)
    forgotten = sum(expired[path] < since for path in others)
    return ToErase(erasure, live, unneeded, forgotten, unknown, _aside(table, gone, erasure))


def _oldest_dv(table: Table, snapshot: Snapshot, erasure: Erasure, files: int) -> Waiting | None:
    oldest = table.oldest_dv(snapshot)
    if oldest is None:
        return None
    return Waiting(files, oldest.timestamp, oldest.exact, int(erasure.purge_by(np.array([oldest.timestamp]))[0]))


def _live(snapshot: Snapshot, log: FileLog, erasure: Erasure, has_dv: Bools, begins: int) -> Waiting | None:
    """``begins``: rows of DVs that are older than the log were deleted by then, epoch milliseconds."""
    if not has_dv.any():
        return None
    life = timeline(snapshot, log)
    exact = bool(life.exact[has_dv].all())
    oldest = int(np.where(life.exact, life.first_delete, begins)[has_dv].min())
    return Waiting(int(has_dv.sum()), oldest, exact, int(erasure.purge_by(np.array([oldest], np.int64))[0]))


@dataclass(frozen=True, slots=True, eq=False)
class _Gone:
    """Files with deleted rows that were removed from the table, according to the log. One entry per path.

    oldest : when the first of their rows were deleted, epoch milliseconds.
    exact : whether the log goes back that far.
    removed : when the file became unneeded.
    """

    paths: tuple[str, ...]
    oldest: Ints
    exact: Bools
    removed: Ints


def _gone(snapshot: Snapshot, log: FileLog, begins: int) -> _Gone:
    """``begins``: as for :func:`_live`."""
    changes = log.changes
    names = pc.unique(changes["path"])
    names = names.filter(pc.invert(pc.is_in(names, value_set=snapshot.files["path"].combine_chunks())))
    found = pc.index_in(changes["path"], value_set=names)
    of_gone = valid(found)
    at = ints(found.cast(pa.int64()))[of_gone]
    commit = ints(changes["commit"])[of_gone]
    added = flags(changes["added"])[of_gone]
    with_dv = valid(changes["dv_id"])[of_gone]
    when = np.array([each.timestamp for each in log.commits], np.int64)
    changed = np.array([each.data_changed for each in log.commits], np.bool_)

    number = len(names)
    oldest = np.full(number, NEVER, np.int64)
    np.minimum.at(oldest, at[with_dv], when[commit[with_dv]])
    # Rows of a file that a commit with other data removed are deleted or were copied; which ones, the log doesn't say.
    rewritten = ~added & changed[commit]
    np.minimum.at(oldest, at[rewritten], when[commit[rewritten]])
    removed = np.zeros(number, np.int64)
    np.maximum.at(removed, at, when[commit])
    first_commit = np.full(number, len(when), np.int64)
    np.minimum.at(first_commit, at, commit)
    inherited = at[~added & with_dv & (commit == first_commit[at])]
    exact = np.ones(number, np.bool_)
    exact[inherited] = False
    oldest[inherited] = np.minimum(oldest[inherited], begins)
    holds = oldest < NEVER
    everything = names.to_pylist()
    paths = tuple(everything[row] for row in np.flatnonzero(holds).tolist())
    return _Gone(paths, oldest[holds], exact[holds], removed[holds])


def _aside(table: Table, gone: _Gone, erasure: Erasure) -> Waiting | None:
    """Those in quarantine: they hold their rows until a vacuum deletes them there."""
    places = [table.path_of(path) for path in gone.paths]
    there = quarantined(table.storage, places) if places else set()
    rows = np.array([row for row, place in enumerate(places) if place in there], np.int64)
    if not len(rows):
        return None
    oldest = int(gone.oldest[rows].min())
    by = int(erasure.gone_by(np.array([oldest], np.int64))[0])
    return Waiting(len(rows), oldest, bool(gone.exact[rows].all()), by)


def _unneeded(
    table: Table, gone: _Gone, erasure: Erasure, expired: Mapping[str, int], now: int
) -> tuple[Waiting | None, AbstractSet[str]]:
    """Those that still exist, and the expired files that are not among them at all.

    Inside the retention they all exist. After it, a file that is early enough does not matter, and a late one is looked
    for: a vacuum deleted it, unless something else needs it.
    """
    by = erasure.vacuum_by(gone.oldest)
    stored = gone.removed >= now - erasure.retention
    late = np.flatnonzero(~stored & (by < now + MARGIN))
    late = late[np.argsort(gone.oldest[late], kind="stable")][:_LOOKED_FOR]
    places = [table.path_of(path) for path in gone.paths]
    # Absolute places are another table's: a clone never deletes them.
    inside = [row for row in late.tolist() if "://" not in places[row]]

    def exists(row: int) -> bool:
        return places[row] in expired or table.storage.exists(places[row])

    for row, is_there in zip(inside, in_parallel(table.storage, inside, exists), strict=True):
        stored[row] = is_there
    others = expired.keys() - set(places)
    rows = np.flatnonzero(stored)
    if not len(rows):
        return None, others
    first = int(rows[np.argmin(gone.oldest[rows])])
    waiting = Waiting(len(rows), int(gone.oldest[first]), bool(gone.exact[rows].all()), int(by[first]))
    return waiting, others


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"


def _by(waiting: Waiting) -> str:
    earlier = "" if waiting.exact else " or earlier"
    return f"by {day_of(waiting.by)}: rows deleted on {day_of(waiting.oldest)}{earlier}"
