"""Delete the files of snapshots and changelogs of a Paimon table, one by one, each only while it is as it was read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dv_maintenance.errors import ConflictError, DvMaintenanceError
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.storage.failures import storage_failure
from dv_maintenance.tables.model import ExpiredFile
from dv_maintenance.tables.paimon.layout import CHANGELOG, SNAPSHOT, Layout, numbered
from dv_maintenance.tables.paimon.vacuum.changelogs import is_same
from dv_maintenance.tables.paimon.vacuum.decision import Decision, conflict
from dv_maintenance.tables.paimon.vacuum.holders import Ref
from dv_maintenance.tables.paimon.vacuum.verification import is_unchanged
from dv_maintenance.tables.vacuum import Sweep
from dv_maintenance.units import parse_count

if TYPE_CHECKING:
    from dv_maintenance.access import Access

ROLLED_BACK: Final = "it was rolled back to the snapshot that was just deleted, which has been restored"


@dataclass(slots=True)
class Removal:
    """What a run has deleted and written.

    version : of the plan, for errors.
    removed : deleted snapshots, oldest first.
    written : changelogs that this run wrote.
    """

    layout: Layout
    version: int
    sweep: Sweep
    removed: list[Ref] = field(default_factory=list)
    written: list[Ref] = field(default_factory=list)

    @property
    def storage(self) -> Storage:
        return self.layout.storage

    def done(self, planned: int) -> str | None:
        """What was done of ``planned`` files, for an error."""
        if not self.sweep.deleted:
            written = f"{self.written[-1].path} was written" if self.written else None
            return written and f"nothing was deleted, but {written}; a later run would write it as well"
        until = f", snapshots up to {self.removed[-1].id} among them" if self.removed else ""
        verb = "deleted" if self.sweep.folder is None else f"quarantined in {self.sweep.folder}"
        return f"{self.sweep.deleted} of {planned} files {verb}{until}; a later run handles the rest"

    def delete_snapshots(self, decision: Decision, files: Sequence[ExpiredFile]) -> None:
        """Delete snapshot files, each only while the newest snapshot is unchanged, and update the hint."""
        refs = {ref.path: ref for ref in decision.branch.snapshots.values()}
        newest = decision.branch.snapshots[decision.branch.newest]
        for file in files:
            if file.path not in refs:
                continue  # another process has deleted it
            if not is_unchanged(self.storage, newest):
                why = f"{newest.path}, its newest snapshot, was deleted or replaced"
                raise self._conflict(ROLLED_BACK if self.put_back() else why)
            changelog = decision.changelogs.to_write.get(refs[file.path].id)
            if changelog is not None:
                self._write_changelog(changelog, refs[file.path])
            removed = self._remove(refs[file.path])
            if changelog is not None and not removed:
                self._withdraw(changelog, replaced=removed is None)
            if removed is None:
                raise self._conflict(f"{file.path} was replaced")
            if removed:
                self.removed.append(refs[file.path])
            self.sweep.count([file], removed)
        if self.removed:
            first = min(number for number in decision.branch.snapshots if number > self.removed[-1].id)
            self.storage.put(f"{self.layout.own}{SNAPSHOT}/EARLIEST", str(first).encode())

    def _write_changelog(self, changelog: Ref, snapshot: Ref) -> None:
        """Write the changelog of a snapshot before its deletion, unless it exists, and update the hint."""
        if not is_unchanged(self.storage, snapshot):
            return  # another process deleted the snapshot, after writing its changelog
        path, layout = changelog.path, self.layout
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
            raise self._conflict(
                f"{path} was written concurrently, and differs from the changelog of snapshot {snapshot.id}"
            )
        if created:
            self.written.append(changelog)
        if not is_unchanged(self.storage, snapshot):
            return  # the caller handles a snapshot that was deleted concurrently
        if found is None:
            raise self._conflict(f"{path}, which was just written, was deleted")
        self.storage.put(f"{layout.own}{CHANGELOG}/LATEST", str(snapshot.id).encode())

    def _withdraw(self, changelog: Ref, *, replaced: bool) -> None:
        """Delete a changelog that this run wrote while others deleted its snapshot.

        It is kept if the other process needs it, too: its successor exists, and the hint EARLIEST does not say that it
        has expired.

        replaced : whether another snapshot has taken the snapshot's number.
        """
        if changelog not in self.written:
            return
        layout, number = self.layout, changelog.id
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

    def delete_changelogs(self, decision: Decision, files: Sequence[ExpiredFile]) -> None:
        """Delete changelogs that are too old, oldest first, and update the hint."""
        plan, known = decision.changelogs, {file.path: file for file in files}
        every = {**plan.to_write, **decision.branch.changelogs}
        expired = set(plan.to_delete)
        for number in sorted(expired):
            if number not in decision.branch.changelogs and every[number] not in self.written:
                expired = {each for each in expired if each < number}
                break  # another process has just written it: the next run handles it
            removed = self._remove(every[number])
            if removed is None:
                raise self._conflict(f"{every[number].path} was replaced")
            file = known.get(every[number].path)
            if file is not None:  # otherwise, this run wrote it
                self.sweep.count([file], removed)
        first = min(every.keys() - expired, default=None)
        if first is not None and (expired or self.written):
            self.storage.put(f"{self.layout.own}{CHANGELOG}/EARLIEST", str(first).encode())

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
            raise storage_failure(ref.path, error, table=self.layout.uri) from error
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

    def put_back(self) -> bool:
        """Restore the snapshot that was deleted last if no snapshot is left: then a concurrent rollback targeted it."""
        if not self.removed or any(numbered(name, "snapshot-") for name in self.layout.names(SNAPSHOT)):
            return False
        with suppress(FileExistsAlreadyError):
            path, data = self.removed[-1].path, self.removed[-1].data
            folder, _, name = path.rpartition("/")
            # Listings parse the text after `snapshot-` as a number: the staging name must not begin with it.
            self.storage.create(path, data, staging=f"{folder}/.{name}.{uuid4()}.tmp")
            self.removed.pop()
            self.sweep.deleted -= 1
        return True

    def _conflict(self, what: str) -> ConflictError:
        return conflict(self.layout, self.version, what)


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
