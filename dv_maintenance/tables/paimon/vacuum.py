"""Clean a Paimon table up: expire snapshots, and delete what no snapshot needs.

``expiry`` decides which snapshots go, ``ground`` tells what else there is, ``reach`` which files that needs,
``orphans`` what lies in the folders, and a ``plan`` puts that together. A file goes if a snapshot that expires needed
it, or if it is old and nothing ever did; and if nothing else needs it: no snapshot, tag or changelog of any branch.

**The order.** Files are listed first, so that what is written from then on is no candidate. What is needed is read
next. Then comes another look, and the snapshot files go, oldest first, one by one: what is left has no gap. Then the
hint; then, behind one more look in front of each batch, the other files. So a crash leaves files that nobody needs,
never a snapshot without its files.

**Others at work.** Why none of them can lose a file, once the snapshot files are gone and the look behind that is done:

* A *commit* builds on the newest snapshot, which never goes: of files that were there before, it can only name those
  that are live in it. All others it has written itself, and no snapshot that expired ever named them.
* A *tag*, a *branch*, a *rollback* or a *fast-forward* names what a snapshot, a tag or a branch names that it found.
  One that found an expired snapshot did so before its file was gone, so the look behind that sees it. What it needs
  stays. (One that read the snapshot before and writes its own file only after that look is not seen, as by Paimon's own
  expiry; it has the time of the whole sweep of snapshot files for that.)
* A *rollback* takes snapshots away from the newest down, while we take them from the oldest up. In front of each that
  goes, the newest must still be there. Should both have met all the same, the one that is rolled back to was the last
  that we took, and it is put back: none of its files is touched before the look behind it. A snapshot file that was
  rolled back and written anew is another one, and is left alone; on local disk for certain, elsewhere but for the blink
  of an eye between reading it and deleting it.
* Another *expiry* may take more of the oldest snapshots, never the newest. While a plan is made, it stops it only if it
  took the newest one that was seen (apache/paimon#7710): everything is read anew then. Behind the look, whatever
  snapshots there are have been read, those among them that came meanwhile included.
* A *reader* of an expired snapshot was warned by the retention, see ``expiry``.
* A *writer* that has not committed yet is known by nothing but the age of its files: they are orphans to anybody.

What was read of the newest snapshot, rolled back to an older one or replaced meanwhile, stops the run with what was
done so far. Nobody can tell from its files whether a REST catalog owns the table: there, run Paimon's own procedures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from dv_maintenance.errors import DvMaintenanceError, StorageError
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles, VacuumResult
from dv_maintenance.tables.paimon.ground import Ref, look, moved
from dv_maintenance.tables.paimon.layout import SNAPSHOT, Layout, numbered, table_layout
from dv_maintenance.tables.paimon.plan import MovedError, Plan, check_coupled, check_options, is_there
from dv_maintenance.tables.paimon.schema import newest_schema
from dv_maintenance.tables.sweep import delete_batch

__all__ = ["check_cleanable", "vacuum"]

# Plans made before others are too busy, and files deleted between two looks.
_ATTEMPTS: Final = 3
_BATCH: Final = 1000
_ROLLED_BACK: Final = "it was rolled back to the snapshot that was just deleted, which is back in its place"


def vacuum(
    storage: Storage,
    *,
    retention: int | None = None,
    dry_run: bool = False,
    lite: bool = False,
    allow_short_retention: bool = False,
    now: int | None = None,
) -> VacuumResult:
    """Delete snapshots that were superseded before the retention, the files that only they needed, and old files that
    nothing needs. ``storage``: of the table; or of a branch, whose own snapshots then expire, and nothing else.

    ``retention``: milliseconds; by default the table's ``snapshot.time-retained``, or an hour. ``now``: epoch
    milliseconds, by default the clock. ``lite``: only what expires, without a listing. All that may go goes:
    ``snapshot.expire.limit`` is about commits that must not wait.

    Costs a listing of each bucket, and a read of every manifest that any snapshot or tag has, each once.

    Raises
    ------
    UsageError : ``retention`` is negative.
    RefusedError : ``retention`` is below the table's own (unless ``allow_short_retention``); an option makes no sense;
        changelogs outlive their snapshots.
    UnsupportedFeatureError : a file names others in a way that is not known here.
    DamagedTableError : a file that tells what is needed cannot be read. Nothing was deleted, unless it says so.
    ConflictError : the table was rolled back or replaced meanwhile, or others expire it faster than it can be read.
    StorageError : some files could not be deleted; says how many were.
    """
    layout = table_layout(storage)
    now = time.time_ns() // 1_000_000 if now is None else now
    attempts = 0
    while True:
        attempts += 1
        schema = newest_schema(layout)
        kept = check_options(layout, schema, retention, allow_short=allow_short_retention)
        plan = Plan(layout, schema, kept, now, lite=lite)
        deletion = _Deletion(plan)
        try:
            files = plan.make()
            gone = files if dry_run else deletion.delete(files)
        except MovedError as error:
            if attempts == _ATTEMPTS:
                raise error.final from error
            continue
        report = ExpiredFiles(plan.newest, now - kept.kept_for, kept.kept_for, tuple(gone), dict(+plan.kept))
        return VacuumResult(report, deletion.deleted, dry_run, plan.newest, plan.newest)


def check_cleanable(layout: Layout) -> None:
    """Whether a vacuum may touch the table, as far as that can be told without reading all of it.

    Raises
    ------
    RefusedError, UnsupportedFeatureError, DamagedTableError : as :func:`vacuum`.
    """
    schema = newest_schema(layout)
    check_options(layout, schema, None, allow_short=False)
    check_coupled(layout, schema, any(numbered(name, "changelog-") for name in layout.names("changelog")))


@dataclass(slots=True)
class _Deletion:
    """What comes of a plan. ``removed``: snapshots that were deleted, oldest first; ``planned``: how many files were to
    go, and ``deleted``: how many did.
    """

    plan: Plan
    deleted: int = 0
    planned: int = 0
    removed: list[Ref] = field(default_factory=list)

    @property
    def storage(self) -> Storage:
        return self.plan.layout.storage

    def delete(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """Delete them, but for what is needed by now. Returns what was to go in the end."""
        if not files:
            return []
        plan = self.plan
        snapshots = {plan.mine.snapshots[number].path: number for number in plan.expired}
        plan.look_again()
        files = plan.unneeded(files)
        plan.verify(files)
        self.planned = len(files)
        gone: list[ExpiredFile] = []
        try:
            expired = set(plan.expired)
            self._expire([file for file in files if snapshots.get(file.path) in expired], gone)
            failure = self._sweep([file for file in files if file.path not in snapshots], gone)
        except MovedError as error:
            # Too late to plan anew.
            error.final.done = self._done()
            raise error.final from error
        except DvMaintenanceError as error:
            error.table, error.done = error.table or self.plan.layout.uri, error.done or self._done()
            raise
        if failure is not None:
            failure.table, failure.version, failure.done = self.plan.layout.uri, self.plan.newest, self._done()
            failure.next_step = "run again: what is left is deleted once it is old enough for files without a snapshot"
            raise failure
        return gone

    def _done(self) -> str | None:
        if not self.deleted:
            return None
        until = f", snapshots up to {self.removed[-1].id} among them" if self.removed else ""
        return f"{self.deleted} of {self.planned} files deleted{until}; a later run deletes the others"

    def _expire(self, files: Sequence[ExpiredFile], gone: list[ExpiredFile]) -> None:
        """Delete snapshot files, each only while the newest one is there, and move the hint."""
        refs = {ref.path: ref for ref in self.plan.mine.snapshots.values()}
        newest = self.plan.mine.snapshots[self.plan.mine.newest]
        for file in files:
            if file.path not in refs:
                continue  # somebody else was faster
            if not is_there(self.storage, newest):
                why = f"{newest.path}, its newest snapshot, vanished, or is another one now"
                raise self.plan.conflict(_ROLLED_BACK if self._put_back() else why)
            removed = self._remove(refs[file.path])
            if removed is None:
                raise self.plan.conflict(f"{file.path} is another one now")
            if removed:
                self.deleted += removed
                self.removed.append(refs[file.path])
            gone.append(file)
        if self.removed:
            first = min(number for number in self.plan.mine.snapshots if number > self.removed[-1].id)
            self.storage.put(f"{self.plan.layout.own}{SNAPSHOT}/EARLIEST", str(first).encode())

    def _remove(self, ref: Ref) -> int | None:
        """Delete a snapshot file; how many were there. ``None``: it is not what was read any more, and stays. On local
        disk that is certain: it is moved out of the way before it is looked at.
        """
        if not self.storage.is_local:
            if not is_there(self.storage, ref) and self.storage.exists(ref.path):
                return None
            return self.storage.delete([ref.path])
        place = self.storage.local(ref.path)
        folder, name = os.path.split(place)
        aside = os.path.join(folder, f".{name}.{uuid4()}.tmp")
        try:
            try:
                os.rename(place, aside)
            except FileNotFoundError:
                return 0
            with open(aside, "rb") as file:
                same = file.read() == ref.data
            if not same:
                _move_back(aside, place)
            else:
                os.unlink(aside)
        except OSError as error:
            raise StorageError(f"cannot delete {ref.path}: {error.strerror}", table=self.plan.layout.uri) from error
        return 1 if same else None

    def _sweep(self, files: Sequence[ExpiredFile], gone: list[ExpiredFile]) -> DvMaintenanceError | None:
        failure: DvMaintenanceError | None = None
        while files:
            self._catch_up()
            files = self.plan.unneeded(files)
            batch, files = files[:_BATCH], files[_BATCH:]
            count, failed = delete_batch(self.storage, [file.path for file in batch])
            self.deleted += count
            gone += batch
            failure = failure or failed
            if failed and not count:
                break  # nothing works any more
        return failure

    def _catch_up(self) -> None:
        """Look again, and take in what anything new needs."""
        try:
            after = look(self.plan.layout, self.plan.ground)
        except DvMaintenanceError:
            if self._put_back():
                raise self.plan.conflict(_ROLLED_BACK) from None
            raise
        mine = after.branches[self.plan.layout.branch]
        reason = moved(self.plan.mine, mine)
        # Others may expire what they like, as long as they leave newer ones: those were read just now.
        if reason and not (mine.newest > self.plan.mine.newest and self.plan.mine.newest not in mine.snapshots):
            raise self.plan.conflict(_ROLLED_BACK if self._put_back() else reason)
        self.plan.ground, self.plan.expired = after, []
        self.plan.take_in(after, frozenset())

    def _put_back(self) -> bool:
        """The last snapshot that was deleted, if none is left: somebody rolled back to it at that very moment."""
        if not self.removed or any(numbered(name, "snapshot-") for name in self.plan.layout.names(SNAPSHOT)):
            return False
        with suppress(FileExistsAlreadyError):
            path, data = self.removed[-1].path, self.removed[-1].data
            folder, _, name = path.rpartition("/")
            # Whoever lists snapshots takes what is behind `snapshot-` for a number: nothing else may begin like that.
            self.storage.create(path, data, staging=f"{folder}/.{name}.{uuid4()}.tmp")
            self.removed.pop()
            self.deleted -= 1
        return True


def _move_back(aside: str, place: str) -> None:
    """Unless there is another one by now. Not every file system has links."""
    try:
        os.link(aside, place)
    except FileExistsError:
        pass
    except OSError:
        os.rename(aside, place)
        return
    os.unlink(aside)
