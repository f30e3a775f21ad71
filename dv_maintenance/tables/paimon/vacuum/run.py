"""Vacuum a Paimon table: expire snapshots, and delete the files that no snapshot needs.

``expiry`` decides which snapshots expire. ``retained`` reads the references (snapshots, tags, changelogs of every
branch), ``references`` resolves them to files, ``orphans`` lists the folders, and ``decision`` makes the plan. A file
is deleted if an expiring snapshot needed it, or if it is old and no snapshot ever named it. In both cases, no retained
snapshot, tag or changelog of any branch may need it.

**Order of steps.**

1. List the files. Files that are written later are not candidates.
2. Read the references and resolve them to needed files.
3. Read the references again, then delete the snapshot files one by one, oldest first, so that no gap appears.
4. Update the hint.
5. Delete the other files in batches. Read the references again before each batch.

A crash leaves files that nothing needs, never a snapshot without its files.

If changes outlive their snapshots (``changelogs``), each snapshot's changelog is written before the snapshot is
deleted, as in Paimon. After a crash, both may exist, which any later expiry repairs. Changelogs that are too old are
deleted after all snapshots, oldest first, so that they have no gap either.

**Concurrent processes.** The references are read once more after the snapshot files are deleted. From then on no other
process can lose a file:

* A *commit* builds on the newest snapshot, which is never deleted. Of the files that existed before, it can only name
  those that are live in that snapshot. It has written all other files itself, and no expired snapshot named them.
* A *tag*, *branch*, *rollback* or *fast-forward* names the files of a snapshot, tag or branch that it found. If it
  found an expired snapshot, it did so before that snapshot file was deleted. So the next read of the references sees
  the new reference, and its files are kept. There is one exception, as in Paimon's own expiry: a process that reads the
  snapshot before its deletion, but writes its own file only after the next read of the references. To avoid this, it
  has the time that the deletion of all snapshot files takes.
* A *rollback* deletes snapshots from the newest downwards, a vacuum from the oldest upwards. The newest snapshot must
  exist before each deletion. If both still meet, the target of the rollback is the snapshot that was deleted last. It
  is restored, and its files still exist, because the references are read before files are deleted. A snapshot file that
  was rolled back and rewritten differs from the one that was read, and is kept. On local disk, this check is exact;
  elsewhere, a short window remains between reading the file and deleting it.
* Another *expiry* may delete more of the oldest snapshots, never the newest. It invalidates a plan only if it deleted
  the newest snapshot that the plan saw (apache/paimon#7710). Then everything is read again. The last read of the
  references covers all snapshots that exist by then, including new commits.
* Another expiry also writes and deletes changelogs. If it wrote a changelog that differs from this run's, the run stops
  before it deletes the snapshot. If another process deletes the snapshot while this run writes its changelog, the run
  may withdraw that changelog, because Paimon fails at gaps. It does so if the process has expired changelogs of that
  age, or has rolled the snapshot back. All changelogs that the last read of the references finds are needed.
* A *reader* of an expired snapshot is protected by the retention, see ``expiry``.
* A *writer* that has not committed yet is recognized only by the age of its files. To any other process, they are
  orphans.

If the newest snapshot that was read is rolled back or replaced during the run, the run stops and reports what it has
done. The files of a table do not show whether a REST catalog owns it. Run Paimon's own procedures for such a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.storage.failures import storage_failure
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles, VacuumResult
from dv_maintenance.tables.paimon.layout import CHANGELOG, SNAPSHOT, Layout, numbered, table_layout
from dv_maintenance.tables.paimon.log.schema import newest_schema
from dv_maintenance.tables.paimon.vacuum.changelogs import is_same
from dv_maintenance.tables.paimon.vacuum.decision import MovedError, Plan, check_options, is_unchanged
from dv_maintenance.tables.paimon.vacuum.retained import Ref, moved, read_references
from dv_maintenance.tables.vacuum import Sweep, run
from dv_maintenance.units import parse_count

if TYPE_CHECKING:
    from dv_maintenance.access import Access

__all__ = ["check_cleanable", "vacuum"]

_ATTEMPTS: Final = 3  # number of plans before a run gives up because of concurrent changes
_ROLLED_BACK: Final = "it was rolled back to the snapshot that was just deleted, which has been restored"


def vacuum(storage: Storage, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumResult:
    """Delete snapshots that were superseded before the retention began, files that only they needed, and old files that
    nothing needs.

    storage : storage of the table, or of a branch. For a branch, only its own snapshots expire.
    request : its retention is by default the table's ``snapshot.time-retained``, or an hour. ``lite`` only expires
        snapshots with their files, without a listing.

    All expired snapshots are deleted: ``snapshot.expire.limit`` only limits the expiry inside a commit.

    Cost: lists each bucket, and reads every manifest of every snapshot and tag once.

    Raises
    ------
    UsageError : the retention is negative.
    RefusedError : the retention is below the table's own (unless ``allow_short_retention``); an option is invalid; or a
        changelog would overwrite a different one.
    UnsupportedFeatureError : a file refers to other files in an unknown way.
    DamagedTableError : a file that refers to needed files cannot be read. Nothing was deleted unless the message says
        so.
    ConflictError : the table was rolled back or replaced during the run, or others expire it faster than it can be
        read.
    StorageError : some files could not be deleted; the message says how many were.
    """
    layout = table_layout(storage)
    guard, now = request.guard, request.moment
    guard.refuse_streams("Paimon", table=layout.uri, next_step="give streaming readers a consumer-id: it is respected")
    attempts = 0
    while True:
        attempts += 1
        schema = newest_schema(layout)
        kept = check_options(layout, schema, request.retention, allow_short=request.allow_short_retention)
        plan = Plan(layout, schema, kept, now, lite=request.lite, pins=frozenset(guard.versions))
        try:
            return run(_Rules(plan), guard, dry_run=request.dry_run, now=now)
        except MovedError as error:
            if attempts == _ATTEMPTS:
                raise error.final from error


def check_cleanable(layout: Layout) -> None:
    """Check what can be checked without reading the whole table: kind, folders and retention options.

    Raises
    ------
    RefusedError, UnsupportedFeatureError, DamagedTableError : as :func:`vacuum`.
    """
    check_options(layout, newest_schema(layout), None, allow_short=False)


@dataclass(slots=True)
class _Rules:
    """Paimon's part of a vacuum run.

    planned : number of files to delete.
    removed : deleted snapshots, oldest first.
    written : changelogs that this run wrote.
    """

    plan: Plan
    planned: int = 0
    removed: list[Ref] = field(default_factory=list)
    written: list[Ref] = field(default_factory=list)
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
        snapshots = {plan.branch.snapshots[number].path: number for number in plan.expired}
        changelogs = {ref.path: number for number, ref in plan.branch.changelogs.items()}
        plan.recheck()
        files = plan.unneeded(files)
        plan.verify(files)
        self.planned = len(files)
        try:
            expired = set(plan.expired)
            self._delete_snapshots([file for file in files if snapshots.get(file.path) in expired])
            self._delete_changelogs([file for file in files if changelogs.get(file.path) in plan.changelogs.to_delete])
            self.storage.fence.outside = tuple(plan.external_roots)
            rest = [file for file in files if file.path not in snapshots and file.path not in changelogs]
            failure = sweep.remove(rest, self._still)
        except MovedError as error:
            # Files were deleted: too late to plan again.
            error.final.done = self._done()
            raise error.final from error
        except DvMaintenanceError as error:
            error.table, error.done = error.table or self.table, error.done or self._done()
            raise
        if failure is not None:
            failure.done = self._done()
            failure.next_step = (
                "run again: the remaining files are deleted once they are old enough for files without a snapshot"
            )
            raise sweep.failed(failure, self, self.planned)

    def _still(self, files: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
        self._recheck()
        return self.plan.unneeded(files)

    def _done(self) -> str | None:
        if not self.sweep.deleted:
            written = f"{self.written[-1].path} was written" if self.written else None
            return written and f"nothing was deleted, but {written}; a later run would write it as well"
        until = f", snapshots up to {self.removed[-1].id} among them" if self.removed else ""
        verb = "deleted" if self.sweep.folder is None else f"set aside in {self.sweep.folder}"
        return f"{self.sweep.deleted} of {self.planned} files {verb}{until}; a later run handles the rest"

    def _delete_snapshots(self, files: Sequence[ExpiredFile]) -> None:
        """Delete snapshot files, each only while the newest snapshot is unchanged, and update the hint."""
        refs = {ref.path: ref for ref in self.plan.branch.snapshots.values()}
        newest = self.plan.branch.snapshots[self.plan.branch.newest]
        for file in files:
            if file.path not in refs:
                continue  # another process has deleted it
            if not is_unchanged(self.storage, newest):
                why = f"{newest.path}, its newest snapshot, was deleted or replaced"
                raise self.plan.conflict(_ROLLED_BACK if self._put_back() else why)
            changelog = self.plan.changelogs.to_write.get(refs[file.path].id)
            if changelog is not None:
                self._write_changelog(changelog, refs[file.path])
            removed = self._remove(refs[file.path])
            if changelog is not None and not removed:
                self._withdraw(changelog, replaced=removed is None)
            if removed is None:
                raise self.plan.conflict(f"{file.path} was replaced")
            if removed:
                self.removed.append(refs[file.path])
            self.sweep.count([file], removed)
        if self.removed:
            first = min(number for number in self.plan.branch.snapshots if number > self.removed[-1].id)
            self.storage.put(f"{self.plan.layout.own}{SNAPSHOT}/EARLIEST", str(first).encode())

    def _write_changelog(self, changelog: Ref, snapshot: Ref) -> None:
        """Write the changelog of a snapshot before its deletion, unless it exists, and update the hint."""
        if not is_unchanged(self.storage, snapshot):
            return  # another process deleted the snapshot, after writing its changelog
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
            raise self.plan.conflict(
                f"{path} was written concurrently, and differs from the changelog of snapshot {snapshot.id}"
            )
        if created:
            self.written.append(changelog)
        if not is_unchanged(self.storage, snapshot):
            return  # the caller handles a snapshot that was deleted concurrently
        if found is None:
            raise self.plan.conflict(f"{path}, which was just written, was deleted")
        self.storage.put(f"{layout.own}{CHANGELOG}/LATEST", str(snapshot.id).encode())

    def _withdraw(self, changelog: Ref, *, replaced: bool) -> None:
        """Delete a changelog that this run wrote while others deleted its snapshot.

        It is kept if the other process needs it, too: its successor exists, and the hint EARLIEST does not say that it
        has expired.

        replaced : whether another snapshot has taken the snapshot's number.
        """
        if changelog not in self.written:
            return
        layout, number = self.plan.layout, changelog.id
        folder = f"{layout.own}{CHANGELOG}"
        follows = self.storage.exists(layout.changelog(number + 1)) or self.storage.exists(layout.snapshot(number + 1))
        if follows and not replaced and self._earliest(folder) <= number:
            return
        self._remove(changelog)
        self.written.remove(changelog)
        ids = [found for name in layout.names(CHANGELOG) if (found := numbered(name, "changelog-")) is not None]
        if ids:
            # Paimon trusts this hint unless the next changelog exists.
            self.storage.put(f"{folder}/LATEST", str(max(ids)).encode())

    def _earliest(self, folder: str) -> int:
        try:
            hint = self.storage.get(f"{folder}/EARLIEST").strip()
        except FileNotFoundError:
            return 0
        return parse_count(hint.decode(errors="replace")) or 0

    def _delete_changelogs(self, files: Sequence[ExpiredFile]) -> None:
        """Delete changelogs that are too old, oldest first, and update the hint."""
        plan, known = self.plan, {file.path: file for file in files}
        every = {**plan.changelogs.to_write, **plan.branch.changelogs}
        expired = set(plan.changelogs.to_delete)
        for number in sorted(expired):
            if number not in plan.branch.changelogs and every[number] not in self.written:
                expired = {each for each in expired if each < number}
                break  # another process has just written it: the next run handles it
            removed = self._remove(every[number])
            if removed is None:
                raise plan.conflict(f"{every[number].path} was replaced")
            file = known.get(every[number].path)
            if file is not None:  # otherwise, this run wrote it
                self.sweep.count([file], removed)
        first = min(every.keys() - expired, default=None)
        if first is not None and (expired or self.written):
            self.storage.put(f"{plan.layout.own}{CHANGELOG}/EARLIEST", str(first).encode())

    def _remove(self, ref: Ref) -> int | None:
        """Delete the file of a snapshot or a changelog, unless it has changed since it was read.

        Returns the number of deleted files, 0 if the file was missing; ``None`` if it has changed and is kept. On local
        disk, the check is exact: the file is renamed before it is compared.
        """
        if not self.storage.is_local:
            if not is_unchanged(self.storage, ref) and self.storage.exists(ref.path):
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
            raise storage_failure(ref.path, error, table=self.table) from error
        if same:
            try:
                self.sweep.take(waiting, ref.path)
            except DvMaintenanceError as error:
                try:
                    _move_back(access, aside, place)
                except OSError:
                    error.done = f"{ref.path} was renamed to {waiting}; a vacuum deletes it"
                raise
        return 1 if same else None

    def _recheck(self) -> None:
        """Read the references again, and keep the files that new references need."""
        try:
            after = read_references(self.plan.layout, self.plan.references)
        except DvMaintenanceError:
            if self._put_back():
                raise self.plan.conflict(_ROLLED_BACK) from None
            raise
        own = after.branches[self.plan.layout.branch]
        reason = moved(self.plan.branch, own)
        # Another expiry may delete any snapshots if newer ones remain. The newer ones have just been read.
        if reason and not (own.newest > self.plan.branch.newest and self.plan.branch.newest not in own.snapshots):
            raise self.plan.conflict(_ROLLED_BACK if self._put_back() else reason)
        self.plan.retain_all(after)

    def _put_back(self) -> bool:
        """Restore the snapshot that was deleted last if no snapshot is left: then a concurrent rollback targeted it."""
        if not self.removed or any(numbered(name, "snapshot-") for name in self.plan.layout.names(SNAPSHOT)):
            return False
        with suppress(FileExistsAlreadyError):
            path, data = self.removed[-1].path, self.removed[-1].data
            folder, _, name = path.rpartition("/")
            # Listings parse the text after `snapshot-` as a number: the staging name must not begin with it.
            self.storage.create(path, data, staging=f"{folder}/.{name}.{uuid4()}.tmp")
            self.removed.pop()
            self.sweep.deleted -= 1
        return True


def _move_back(access: Access, aside: str, place: str) -> None:
    """Move a file back unless its place is taken. Some file systems have no links, so there it is renamed."""
    try:
        access.link(aside, place)
    except FileExistsError:
        pass
    except OSError:
        access.rename(aside, place)
        return
    access.unlink(aside)
