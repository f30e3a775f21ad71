"""The frame of every vacuum: list, decide, check again, delete in batches. A format contributes only its rules.

:func:`run` checks what a format found against the guard, and reports. :class:`Sweep` removes files, a batch at a time:
it deletes them or sets them aside. Right before each batch the format checks again, and keeps files that are needed by
then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from dv_maintenance.errors import DvMaintenanceError, RefusedError, StorageError
from dv_maintenance.tables.quarantine import QUARANTINE, empty, new_batch, put_back, set_aside
from dv_maintenance.tables.sweep import delete_batch
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.guard import VacuumGuard
    from dv_maintenance.tables.model import ExpiredFile, VacuumResult

__all__ = ["Rules", "Sweep", "run"]

_log = logging.getLogger(__name__)

BATCH = 1000  # files deleted between two checks


class Rules(Protocol):
    """A format's rules: which files have expired, in which order they are removed, and which are needed again."""

    @property
    def storage(self) -> Storage: ...

    @property
    def table(self) -> str:
        """The table's name in errors."""

    def find(self) -> Sequence[ExpiredFile]:
        """List the storage and decide which files have expired. Changes nothing."""

    @property
    def version(self) -> int:
        """The newest version when ``find`` ran."""

    def totals(self, files: Sequence[ExpiredFile]) -> tuple[int, int | None]:
        """The number of all files and their bytes, ``files`` included; ``None`` if the bytes are unknown."""

    def unexplained(self, files: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
        """Those of ``files`` that the history does not record as removed. May be costly."""

    def delete(self, files: Sequence[ExpiredFile], sweep: Sweep) -> None:
        """Remove, through ``sweep``, the files that are still not needed. An error says what was done so far."""

    def result(self, files: Sequence[ExpiredFile], *, deleted: int, dry_run: bool) -> VacuumResult:
        """The report. ``files``: those chosen for removal in the end."""


def run(rules: Rules, guard: VacuumGuard, *, dry_run: bool, now: int) -> VacuumResult:
    """Vacuum a table. ``now``: epoch milliseconds.

    Raises
    ------
    RefusedError : the guard forbids it. Whatever ``rules`` raise is raised too.
    """
    files = rules.find()
    # Inspections and checks do dry runs, and say themselves what those found.
    level = logging.DEBUG if dry_run else logging.INFO
    _log.log(level, "%s: %s out of use at version %d", rules.table, count(len(files), "file"), rules.version)
    refused = guard.refusal(files, *rules.totals(files), rules.unexplained)
    outside = next((file.path for file in files if "://" in file.path), None) if guard.quarantine else None
    immovable = outside and f"{outside} lies outside the table's folder, and can't be set aside in it"
    if refused or immovable:
        _log.warning("%s: refused: %s", rules.table, refused or immovable)
    if guard.quarantine:
        rules.storage.check_target(f"{QUARANTINE}/new")
    if dry_run:
        return replace(rules.result(files, deleted=0, dry_run=True), refused=refused or immovable)
    guard.check(refused, table=rules.table, version=rules.version)
    if immovable:
        step = "vacuum without the quarantine; object versioning of that bucket serves the same purpose"
        raise RefusedError(immovable, table=rules.table, version=rules.version, next_step=step)
    sweep = Sweep(rules.storage, new_batch(now) if guard.quarantine else None)
    if files:
        rules.delete(files, sweep)
    result = rules.result(sweep.files, deleted=sweep.deleted, dry_run=False)
    try:
        emptied = empty(rules.storage, now - guard.quarantine_retention)
    except DvMaintenanceError as error:
        error.done = "; ".join(filter(None, [sweep.done(len(files)) if files else None, error.done])) or None
        raise
    return replace(result, quarantine=sweep.folder if sweep.deleted else None, emptied=emptied)


@dataclass(slots=True)
class Sweep:
    """Removes files of a table.

    folder : the quarantine folder that files move to, ``None``: files are deleted.
    files : files chosen for removal in the end.
    deleted : how many of them were removed.
    """

    storage: Storage
    folder: str | None = None
    files: list[ExpiredFile] = field(default_factory=list)
    deleted: int = 0

    def remove(
        self, files: Sequence[ExpiredFile], still: Callable[[Sequence[ExpiredFile]], Sequence[ExpiredFile]]
    ) -> StorageError | None:
        """Remove as many files as possible, and return the first failure. ``still``: checks a batch again, and returns
        the files that are still not needed.
        """
        failure: StorageError | None = None
        for at in range(0, len(files), BATCH):
            found = files[at : at + BATCH]
            batch = still(found)
            gone, failed = self._remove([file.path for file in batch])
            _log.info(
                "%s: batch of %s: %d %s, %d needed by now",
                self.storage.uri,
                count(len(found), "file"),
                gone,
                "deleted" if self.folder is None else "set aside",
                len(found) - len(batch),
            )
            self.count(batch, gone)
            failure = failure or failed
            if failed and not gone:
                break  # the storage has failed: don't try hundreds of thousands of files one by one
        return failure

    def count(self, files: Sequence[ExpiredFile], gone: int) -> None:
        """Record that ``files`` were chosen for removal, and ``gone`` of them were removed."""
        self.files += files
        self.deleted += gone

    def take(self, path: str, name: str) -> None:
        """Remove one file, named ``name``, that is at ``path`` at present. Does not count it. Raises StorageError."""
        if self.folder is None:
            self.storage.delete([path])
        else:
            self.storage.move(path, f"{self.folder}/{name}")

    def put_back(self, paths: Sequence[str]) -> None:
        """Put back files that were set aside and are needed after all. Raises StorageError."""
        if self.folder is None:
            raise RefusedError("deleted files can't be put back", table=self.storage.uri)
        self.deleted -= put_back(self.storage, paths, self.folder)
        back = set(paths)
        self.files = [file for file in self.files if file.path not in back]

    def _remove(self, paths: Sequence[str]) -> tuple[int, StorageError | None]:
        if self.folder is None:
            return delete_batch(self.storage, paths)
        return set_aside(self.storage, paths, self.folder)

    def done(self, planned: int) -> str:
        """What was removed of ``planned`` files, for an error."""
        verb = "deleted" if self.folder is None else f"set aside in {self.folder}"
        return f"{self.deleted} of {planned} expired files {verb}"

    def failed(self, failure: DvMaintenanceError, rules: Rules, planned: int) -> DvMaintenanceError:
        """The failure, with what was done and what to do next."""
        failure.table, failure.version = failure.table or rules.table, failure.version or rules.version
        if self.deleted:
            failure.done = failure.done or self.done(planned)
        failure.next_step = failure.next_step or "run again: it continues with the rest"
        return failure
