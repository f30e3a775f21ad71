"""The frame of every vacuum: plan, check again, remove in batches. A format contributes only its rules.

:func:`run` checks what a format planned against the guard, and reports. :class:`Sweep` removes files, a batch at a
time: it deletes them or sets them aside. Right before each batch the format reads again what keeps files, and those
that are needed by then stay.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from dv_maintenance.errors import DvMaintenanceError, RefusedError, StorageError
from dv_maintenance.tables.model import ExpiredFiles
from dv_maintenance.tables.quarantine import QUARANTINE, empty, new_batch, put_back, set_aside
from dv_maintenance.tables.reach.unneeded import unneeded
from dv_maintenance.tables.reports import VacuumReport
from dv_maintenance.tables.sweep import delete_batch
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.guard import VacuumGuard
    from dv_maintenance.tables.model import ExpiredFile, ExpiringFiles

_log = logging.getLogger(__name__)

BATCH = 1000  # files deleted between two checks


@dataclass(frozen=True, slots=True)
class Plan:
    """What a vacuum would remove. Made without side effects.

    version : the newest version.
    cutoff, retention, expiring : as in ``ExpiredFiles``.
    files : the expired files, in the order of reports.
    stored : the number of all files and their bytes, ``files`` included; ``None`` if the bytes are unknown.
    protected : as in ``VacuumReport``.
    """

    version: int
    cutoff: int
    retention: int
    files: Sequence[ExpiredFile]
    stored: tuple[int, int | None]
    expiring: tuple[ExpiringFiles, ...] | None = None
    protected: tuple[str, ...] = ()


class Rules(Protocol):
    """A format's rules: which files have expired, in which order they are removed, and which are needed again."""

    @property
    def storage(self) -> Storage: ...

    @property
    def table(self) -> str:
        """The table's name in errors."""

    @property
    def kept(self) -> Counter[str]:
        """Reason -> number of files that are kept for it."""

    def plan(self) -> Plan:
        """List the storage, read what keeps files, and decide which files have expired. Changes nothing."""

    def unexplained(self, files: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
        """Those of ``files`` that the history does not record as removed. May be costly."""

    def refresh(self) -> None:
        """Read again what keeps files."""

    def why(self, file: ExpiredFile) -> str | None:
        """Why a file of the plan is needed by now; ``None`` if nothing needs it, as far as ``refresh`` has read."""

    def remove(self, plan: Plan, sweep: Sweep) -> int:
        """Remove, through ``sweep``, the files that are still not needed, and return the newest version after that. An
        error says what was done so far.
        """


def run(rules: Rules, guard: VacuumGuard, *, dry_run: bool, now: int) -> VacuumReport:
    """Vacuum a table. ``now``: epoch milliseconds.

    Raises
    ------
    RefusedError : the guard forbids it, or see ``Fence.check_open``. Whatever ``rules`` raise is raised too.
    """
    rules.storage.fence.check_open()
    plan = rules.plan()
    # Inspections and checks do dry runs, and say themselves what those found.
    level = logging.DEBUG if dry_run else logging.INFO
    _log.log(level, "%s: %s unneeded at version %d", rules.table, count(len(plan.files), "file"), plan.version)
    refused = guard.refusal(plan.files, *plan.stored, rules.unexplained)
    outside = next((file.path for file in plan.files if "://" in file.path), None) if guard.quarantine else None
    immovable = outside and f"{outside} lies outside the table's folder, and can't be quarantined in it"
    if refused or immovable:
        _log.warning("%s: refused: %s", rules.table, refused or immovable)
    if guard.quarantine:
        rules.storage.check_target(f"{QUARANTINE}/new")
    if dry_run:
        folder = QUARANTINE if guard.quarantine and plan.files else None
        return replace(_result(rules, plan, plan.files), dry_run=True, refused=refused or immovable, quarantine=folder)
    guard.check(refused, table=rules.table, version=plan.version)
    if immovable:
        step = "vacuum without the quarantine; object versioning of that bucket serves the same purpose"
        raise RefusedError(immovable, table=rules.table, version=plan.version, next_step=step)
    sweep = Sweep(rules, new_batch(now) if guard.quarantine else None)
    after = rules.remove(plan, sweep) if plan.files else plan.version
    result = replace(_result(rules, plan, sweep.files), deleted=sweep.deleted, version_after=after)
    try:
        emptied = empty(rules.storage, now - guard.quarantine_retention)
    except DvMaintenanceError as error:
        error.done = "; ".join(filter(None, [sweep.done(len(plan.files)) if plan.files else None, error.done])) or None
        raise
    return replace(result, quarantine=sweep.folder if sweep.deleted else None, emptied=emptied)


def _result(rules: Rules, plan: Plan, chosen: Sequence[ExpiredFile]) -> VacuumReport:
    wanted = set(chosen)
    files, kept = tuple(file for file in plan.files if file in wanted), dict(+rules.kept)
    expired = ExpiredFiles(plan.version, plan.cutoff, plan.retention, files, kept, plan.expiring)
    return VacuumReport(expired, 0, False, plan.version, plan.version, protected=plan.protected)


@dataclass(slots=True)
class Sweep:
    """Removes files of a table.

    folder : the quarantine folder that files move to, ``None``: files are deleted.
    files : files chosen for removal in the end.
    deleted : how many of them were removed.
    """

    rules: Rules
    folder: str | None = None
    files: list[ExpiredFile] = field(default_factory=list)
    deleted: int = 0

    @property
    def storage(self) -> Storage:
        return self.rules.storage

    def still(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """The files that are not needed by now."""
        return unneeded(files, self.rules.why, self.rules.kept)

    def remove(self, files: Sequence[ExpiredFile]) -> StorageError | None:
        """Remove as many files as possible, and return the first failure. Those that are needed by now stay."""
        failure: StorageError | None = None
        for at in range(0, len(files), BATCH):
            self.rules.refresh()
            found = files[at : at + BATCH]
            batch = self.still(found)
            gone, failed = self._remove([file.path for file in batch])
            _log.info(
                "%s: batch of %s: %d %s, %d needed by now",
                self.storage.uri,
                count(len(found), "file"),
                gone,
                "deleted" if self.folder is None else "quarantined",
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
        """Undelete files that were quarantined and are needed after all. Raises StorageError."""
        if self.folder is None:
            raise RefusedError("deleted files can't be undeleted", table=self.storage.uri)
        self.deleted -= put_back(self.storage, paths, self.folder)
        back = set(paths)
        self.files = [file for file in self.files if file.path not in back]

    def _remove(self, paths: Sequence[str]) -> tuple[int, StorageError | None]:
        if self.folder is None:
            return delete_batch(self.storage, paths)
        return set_aside(self.storage, paths, self.folder)

    def done(self, planned: int) -> str:
        """What was removed of ``planned`` files, for an error."""
        verb = "deleted" if self.folder is None else f"quarantined in {self.folder}"
        return f"{self.deleted} of {planned} expired files {verb}"

    def failed(self, failure: DvMaintenanceError, plan: Plan) -> DvMaintenanceError:
        """The failure, with what was done and what to do next."""
        failure.table, failure.version = failure.table or self.rules.table, failure.version or plan.version
        if self.deleted:
            failure.done = failure.done or self.done(len(plan.files))
        failure.next_step = failure.next_step or "run again: it continues with the rest"
        return failure
