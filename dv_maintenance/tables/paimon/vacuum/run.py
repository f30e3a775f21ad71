"""Clean a Paimon table up: expire snapshots, and delete what no snapshot needs.

``expiry`` decides which snapshots go, ``ground`` tells what else there is, ``reach`` which files that needs,
``orphans`` what lies in the folders, and a ``plan`` puts that together. A file goes if a snapshot that expires needed
it, or if it is old and nothing ever did; and if nothing else needs it: no snapshot, tag or changelog of any branch.

**The order.** Files are listed first, so that what is written from then on is no candidate. What is needed is read
next. Then comes another look, and the snapshot files go, oldest first, one by one: what is left has no gap. Then the
hint; then, behind one more look in front of each batch, the other files. So a crash leaves files that nobody needs,
never a snapshot without its files.

Where changes outlive their snapshots (``changelogs``), each snapshot's changelog is there before it goes, as with
Paimon: a crash leaves it twice at worst, which any later expiry makes up for. Changelogs that are too old go when all
snapshots have gone, oldest first, so that there is no gap either.

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
* Another expiry leaves and takes changelogs, too. One that is there in our place must say the same, or we stop before
  its snapshot goes. If the snapshot went while we wrote its changelog, and others are done with changelogs of that age,
  or it was rolled back, ours is taken back, since Paimon fails at gaps. What the look behind all that sees is needed.
* A *reader* of an expired snapshot was warned by the retention, see ``expiry``.
* A *writer* that has not committed yet is known by nothing but the age of its files: they are orphans to anybody.

What was read of the newest snapshot, rolled back to an older one or replaced meanwhile, stops the run with what was
done so far. Nobody can tell from its files whether a REST catalog owns the table: there, run Paimon's own procedures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dv_maintenance.errors import DvMaintenanceError, StorageError
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.guard import NO_GUARD, VacuumGuard
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles, VacuumResult
from dv_maintenance.tables.paimon.layout import CHANGELOG, SNAPSHOT, Layout, numbered, table_layout
from dv_maintenance.tables.paimon.log.schema import newest_schema
from dv_maintenance.tables.paimon.vacuum.changelogs import is_same
from dv_maintenance.tables.paimon.vacuum.decision import MovedError, Plan, check_options, is_there
from dv_maintenance.tables.paimon.vacuum.retained import Ref, look, moved
from dv_maintenance.tables.vacuum import Sweep, run

if TYPE_CHECKING:
    from dv_maintenance.access import Access

__all__ = ["check_cleanable", "vacuum"]

_ATTEMPTS: Final = 3  # plans made before others are too busy
_HINT: Final = 19  # digits that no id has
_ROLLED_BACK: Final = "it was rolled back to the snapshot that was just deleted, which is back in its place"


def vacuum(
    storage: Storage,
    *,
    retention: int | None = None,
    dry_run: bool = False,
    lite: bool = False,
    allow_short_retention: bool = False,
    now: int | None = None,
    guard: VacuumGuard = NO_GUARD,
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
        a changelog would have to be left where there is another one.
    UnsupportedFeatureError : a file names others in a way that is not known here.
    DamagedTableError : a file that tells what is needed cannot be read. Nothing was deleted, unless it says so.
    ConflictError : the table was rolled back or replaced meanwhile, or others expire it faster than it can be read.
    StorageError : some files could not be deleted; says how many were.
    """
    layout = table_layout(storage)
    guard.refuse_streams("Paimon", table=layout.uri, next_step="give streaming readers a consumer-id: it is respected")
    now = time.time_ns() // 1_000_000 if now is None else now
    attempts = 0
    while True:
        attempts += 1
        schema = newest_schema(layout)
        kept = check_options(layout, schema, retention, allow_short=allow_short_retention)
        plan = Plan(layout, schema, kept, now, lite=lite, pins=frozenset(guard.versions))
        try:
            return run(_Rules(plan), guard, dry_run=dry_run, now=now)
        except MovedError as error:
            if attempts == _ATTEMPTS:
                raise error.final from error


def check_cleanable(layout: Layout) -> None:
    """Whether a vacuum may touch the table, as far as that can be told without reading all of it.

    Raises
    ------
    RefusedError, UnsupportedFeatureError, DamagedTableError : as :func:`vacuum`.
    """
    check_options(layout, newest_schema(layout), None, allow_short=False)


@dataclass(slots=True)
class _Rules:
    """``removed``: snapshots that were deleted, oldest first; ``planned``: how many files were to go. ``left``:
    changelogs that were written.
    """

    plan: Plan
    planned: int = 0
    removed: list[Ref] = field(default_factory=list)
    left: list[Ref] = field(default_factory=list)
    sweep: Sweep = field(init=False)

    @property
    def storage(self) -> Storage:
        return self.plan.layout.storage

    @property
    def table(self) -> str:
        return self.plan.layout.uri

    @property
    def version(self) -> int:
        return self.plan.newest

    def find(self) -> Sequence[ExpiredFile]:
        return self.plan.make()

    def totals(self, files: Sequence[ExpiredFile]) -> tuple[int, int | None]:
        return self.plan.totals(files)

    def unexplained(self, files: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
        return self.plan.unexplained(files)

    def result(self, files: Sequence[ExpiredFile], *, deleted: int, dry_run: bool) -> VacuumResult:
        plan, kept_for = self.plan, self.plan.retention.kept_for
        report = ExpiredFiles(plan.newest, plan.now - kept_for, kept_for, tuple(files), dict(+plan.kept))
        return VacuumResult(report, deleted, dry_run, plan.newest, plan.newest, protected=plan.protected())

    def delete(self, files: Sequence[ExpiredFile], sweep: Sweep) -> None:
        plan, self.sweep = self.plan, sweep
        snapshots = {plan.mine.snapshots[number].path: number for number in plan.expired}
        changelogs = {ref.path: number for number, ref in plan.mine.changelogs.items()}
        plan.look_again()
        files = plan.unneeded(files)
        plan.verify(files)
        self.planned = len(files)
        try:
            expired = set(plan.expired)
            self._expire([file for file in files if snapshots.get(file.path) in expired])
            self._outdate([file for file in files if changelogs.get(file.path) in plan.rest.outdated])
            self.storage.fence.outside = tuple(plan.external_roots)
            rest = [file for file in files if file.path not in snapshots and file.path not in changelogs]
            failure = sweep.remove(rest, self._still)
        except MovedError as error:
            # Too late to plan anew.
            error.final.done = self._done()
            raise error.final from error
        except DvMaintenanceError as error:
            error.table, error.done = error.table or self.table, error.done or self._done()
            raise
        if failure is not None:
            failure.done = self._done()
            failure.next_step = "run again: what is left is deleted once it is old enough for files without a snapshot"
            raise sweep.failed(failure, self, self.planned)

    def _still(self, files: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
        self._catch_up()
        return self.plan.unneeded(files)

    def _done(self) -> str | None:
        if not self.sweep.deleted:
            written = f"{self.left[-1].path} was written" if self.left else None
            return written and f"nothing was deleted; {written}, as a later run would do"
        until = f", snapshots up to {self.removed[-1].id} among them" if self.removed else ""
        verb = "deleted" if self.sweep.folder is None else f"set aside in {self.sweep.folder}"
        return f"{self.sweep.deleted} of {self.planned} files {verb}{until}; a later run takes the others"

    def _expire(self, files: Sequence[ExpiredFile]) -> None:
        """Delete snapshot files, each only while the newest one is there, and move the hint."""
        refs = {ref.path: ref for ref in self.plan.mine.snapshots.values()}
        newest = self.plan.mine.snapshots[self.plan.mine.newest]
        for file in files:
            if file.path not in refs:
                continue  # somebody else was faster
            if not is_there(self.storage, newest):
                why = f"{newest.path}, its newest snapshot, vanished, or is another one now"
                raise self.plan.conflict(_ROLLED_BACK if self._put_back() else why)
            left = self.plan.rest.left.get(refs[file.path].id)
            if left is not None:
                self._leave(left, refs[file.path])
            removed = self._remove(refs[file.path])
            if left is not None and not removed:
                self._take_back(left, replaced=removed is None)
            if removed is None:
                raise self.plan.conflict(f"{file.path} is another one now")
            if removed:
                self.removed.append(refs[file.path])
            self.sweep.count([file], removed)
        if self.removed:
            first = min(number for number in self.plan.mine.snapshots if number > self.removed[-1].id)
            self.storage.put(f"{self.plan.layout.own}{SNAPSHOT}/EARLIEST", str(first).encode())

    def _leave(self, changelog: Ref, snapshot: Ref) -> None:
        """Write the changelog of a snapshot that is about to go, unless somebody did, and point to it."""
        if not is_there(self.storage, snapshot):
            return  # somebody else left one, and was faster
        path, layout = changelog.path, self.plan.layout
        folder, _, name = path.rpartition("/")
        if self.storage.is_local:
            self.storage.check_target(path)
            self.storage.access.make_folders(self.storage.local(folder))
        created = True
        try:
            self.storage.create(path, changelog.data, staging=f"{folder}/.{name}.{uuid4()}.tmp")
        except FileExistsAlreadyError:
            created = False
        try:
            found: bytes | None = self.storage.get(path)
        except FileNotFoundError:
            found = None
        if found is not None and not is_same(layout, path, found, changelog.data):
            raise self.plan.conflict(f"{path} came meanwhile, and is not what snapshot {snapshot.id} leaves behind")
        if created:
            self.left.append(changelog)
        if not is_there(self.storage, snapshot):
            return  # the caller will see
        if found is None:
            raise self.plan.conflict(f"{path}, which was just written, vanished")
        self.storage.put(f"{layout.own}{CHANGELOG}/LATEST", str(snapshot.id).encode())

    def _take_back(self, changelog: Ref, *, replaced: bool) -> None:
        """A changelog that we wrote while others took its snapshot away, unless it is theirs as well: if its successor
        is gone, or the hint says that all up to it had their time. ``replaced``: another snapshot is in its place.
        """
        if changelog not in self.left:
            return
        layout, number = self.plan.layout, changelog.id
        folder = f"{layout.own}{CHANGELOG}"
        follows = self.storage.exists(layout.changelog(number + 1)) or self.storage.exists(layout.snapshot(number + 1))
        if follows and not replaced and self._earliest(folder) <= number:
            return
        self._remove(changelog)
        self.left.remove(changelog)
        ids = [found for name in layout.names(CHANGELOG) if (found := numbered(name, "changelog-")) is not None]
        if ids:
            # Paimon relies on that hint unless the next changelog is there.
            self.storage.put(f"{folder}/LATEST", str(max(ids)).encode())

    def _earliest(self, folder: str) -> int:
        try:
            hint = self.storage.get(f"{folder}/EARLIEST").strip()
        except FileNotFoundError:
            return 0
        return int(hint) if hint.isdigit() and len(hint) < _HINT else 0

    def _outdate(self, files: Sequence[ExpiredFile]) -> None:
        """Delete changelogs that are too old, oldest first, and move the hint."""
        plan, known = self.plan, {file.path: file for file in files}
        every = {**plan.rest.left, **plan.mine.changelogs}
        outdated = set(plan.rest.outdated)
        for number in sorted(outdated):
            if number not in plan.mine.changelogs and every[number] not in self.left:
                outdated = {each for each in outdated if each < number}
                break  # somebody else has just left it: the next run finds it
            removed = self._remove(every[number])
            if removed is None:
                raise plan.conflict(f"{every[number].path} is another one now")
            file = known.get(every[number].path)
            if file is not None:  # else it was left by this very run
                self.sweep.count([file], removed)
        first = min(every.keys() - outdated, default=None)
        if first is not None and (outdated or self.left):
            self.storage.put(f"{plan.layout.own}{CHANGELOG}/EARLIEST", str(first).encode())

    def _remove(self, ref: Ref) -> int | None:
        """Delete the file of a snapshot or a changelog; how many were there. ``None``: it is not what was read any
        more, and stays. On local disk that is certain: it is moved out of the way before it is looked at.
        """
        if not self.storage.is_local:
            if not is_there(self.storage, ref) and self.storage.exists(ref.path):
                return None
            if not self.storage.exists(ref.path):
                return 0
            self.sweep.take(ref.path, ref.path)
            return 1
        self.storage.check_target(ref.path)
        access, place = self.storage.access, self.storage.local(ref.path)
        folder, _, name = ref.path.rpartition("/")
        waiting = f"{folder}/.{name}.{uuid4()}.tmp"
        aside = self.storage.local(waiting)
        try:
            try:
                access.rename(place, aside)
            except FileNotFoundError:
                return 0
            same = access.read(aside) == ref.data
            if not same:
                _move_back(access, aside, place)
        except OSError as error:
            raise StorageError(f"cannot delete {ref.path}: {error.strerror}", table=self.table) from error
        if same:
            try:
                self.sweep.take(waiting, ref.path)
            except DvMaintenanceError:
                with suppress(OSError):
                    _move_back(access, aside, place)
                raise
        return 1 if same else None

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
        self.plan.rely_on(after)

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
            self.sweep.deleted -= 1
        return True


def _move_back(access: Access, aside: str, place: str) -> None:
    """Unless there is another one by now. Not every file system has links."""
    try:
        access.link(aside, place)
    except FileExistsError:
        pass
    except OSError:
        access.rename(aside, place)
        return
    access.unlink(aside)
