"""Delete what a Delta table no longer needs: list or read the log, decide, check again, delete, and say so in the log.

``expired`` decides; this module does the looking and the deleting. The order makes it safe: the log is read once more
after ``VACUUM START`` is committed, and only files that this newest version does not need either are deleted. Restores
of ours wait for the ``VACUUM END`` (see ``restore``). For others that bring files back, the log is looked at again in
front of each batch, and once more behind the ``VACUUM END``: what came back too late is told.
"""

from __future__ import annotations

import posixpath
import stat
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, StorageError, UsageError
from dv_maintenance.storage import FileInfo
from dv_maintenance.tables.delta.commit.presence import listed
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.replay import tombstones
from dv_maintenance.tables.delta.rows.schema import partition_physical_names
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.vacuum.at_work import END, START
from dv_maintenance.tables.delta.vacuum.expired import (
    FOREIGN,
    LIVE,
    YOUNG,
    Protected,
    Scope,
    find_expired,
    needed_files,
)
from dv_maintenance.tables.delta.vacuum.named_since import NamedSince
from dv_maintenance.tables.delta.vacuum.protected import protected_files
from dv_maintenance.tables.delta.vacuum.quarantine import empty, new_batch, put_back, set_aside
from dv_maintenance.tables.delta.vacuum.retention import DEFAULT_RETENTION, RETENTION, interval_millis
from dv_maintenance.tables.delta.vacuum.watermark import (
    read_watermark,
    removed_files,
    removed_since,
    taken_out,
    write_watermark,
)
from dv_maintenance.tables.guard import NO_GUARD, VacuumGuard
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles, VacuumResult
from dv_maintenance.tables.sweep import delete_batch, remove_empty_folders

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage import Storage

__all__ = ["vacuum"]

_STAT_THREADS = 16
# Files deleted between two looks at what went wrong.
_BATCH = 1000


def vacuum(
    storage: Storage,
    *,
    retention: int | None = None,
    dry_run: bool = False,
    lite: bool = False,
    allow_short_retention: bool = False,
    now: int | None = None,
    guard: VacuumGuard = NO_GUARD,
    clones: Sequence[str] = (),
) -> VacuumResult:
    """Delete data, DV and change files that no version inside the retention needs.

    ``retention``: milliseconds; by default the table's ``delta.deletedFileRetentionDuration``, or one week. ``now``:
    epoch milliseconds, by default the clock. ``lite`` looks at the files that commits removed instead of listing the
    table: cheaper, but it never sees what was written and never committed.

    ``clones``: places of shallow clones, of which the log knows nothing; what they need stays.

    Nothing is committed where nothing is to be deleted. A version that fell out of the retention can't be read any more
    once its files are gone.

    Raises
    ------
    UsageError : ``retention`` is negative.
    RefusedError : ``retention`` is below the table's own (unless ``allow_short_retention``), or longer than the log
        goes back; or ``lite`` lacks commits; or ``guard`` forbids it, or what it protects can't be read.
    UnsupportedFeatureError : the table's features forbid it.
    StorageError : some files could not be deleted; says how many were. The next run goes on from there.
    """
    snapshot = load_snapshot(storage)
    check_writable(snapshot, "vacuum")
    own = _own_retention(snapshot)
    if retention is not None:
        _check_retention(snapshot, retention, own, allow_short_retention)
    kept_for = own if retention is None else retention
    now = time.time_ns() // 1_000_000 if now is None else now
    cutoff = now - kept_for

    watermark = read_watermark(storage, snapshot, cutoff)
    forgotten = removed_since(storage, snapshot, watermark, cutoff) if kept_for > own else set()
    protected = protected_files(storage, snapshot, guard, clones)
    removed = tombstones(storage, snapshot)
    needed = needed_files(storage, snapshot, removed, cutoff, forgotten, protected)
    scope = _scope(snapshot)
    found = removed_files(storage, snapshot, watermark) if lite else storage.walk(skip=scope.skip)
    files, kept = find_expired(needed, scope, found, lambda infos: _stat(storage, infos), cutoff)

    def unexplained(files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        unknown = [file for file in files if file.path not in needed.past]
        known = taken_out(storage, watermark) if unknown else set()
        return [file for file in unknown if file.path not in known]

    refused = guard.refusal(files, *_totals(snapshot, removed, cutoff, files, kept, listed=not lite), unexplained)
    plan = _Plan(snapshot, retention, own, cutoff, files, kept, forgotten, protected, refused if dry_run else None)
    folder = new_batch(now) if guard.quarantine else None
    if not dry_run:
        guard.check(refused, table=storage.uri, version=snapshot.version)
    if dry_run or not files:
        result = plan.result(files, version_after=snapshot.version, dry_run=dry_run)
    else:
        result = _delete(storage, plan, folder)
    if not dry_run:
        result = replace(result, emptied=empty(storage, now - guard.quarantine_retention))
    # What is protected now is not to be forgotten by lite vacuums once it no longer is.
    if not dry_run and not any(kept[reason] for reason in protected.reasons):
        write_watermark(storage, watermark)
    return result


@dataclass(frozen=True, slots=True)
class _Plan:
    snapshot: DeltaSnapshot
    asked: int | None  # milliseconds
    own: int  # milliseconds
    cutoff: int
    files: Sequence[ExpiredFile]
    kept: Counter[str]
    forgotten: set[str]  # see needed_files
    protected: Protected
    refused: str | None

    def result(
        self, files: Sequence[ExpiredFile], *, version_after: int, deleted: int = 0, dry_run: bool = False
    ) -> VacuumResult:
        retention = self.own if self.asked is None else self.asked
        expired = ExpiredFiles(self.snapshot.version, self.cutoff, retention, tuple(files), dict(self.kept))
        return VacuumResult(
            expired, deleted, dry_run, self.snapshot.version, version_after, self.refused, self.protected.told()
        )


# -- retention ---------------------------------------------------------------------------------------------------


def _own_retention(snapshot: DeltaSnapshot) -> int:
    try:
        return interval_millis(snapshot.metadata.configuration.get(RETENTION, DEFAULT_RETENTION))
    except ValueError as error:
        raise RefusedError(
            f"{RETENTION}: {error}",
            table=snapshot.table,
            version=snapshot.version,
            next_step=f"set the table property to a value such as '{DEFAULT_RETENTION}'",
        ) from None


def _check_retention(snapshot: DeltaSnapshot, asked: int, own: int, allow_short: bool) -> None:
    if asked < 0:
        raise UsageError("the retention is negative", table=snapshot.table, next_step="give a duration such as 168h")
    if asked < own and not allow_short:
        from dv_maintenance.config import format_duration

        raise RefusedError(
            f"a retention of {format_duration(asked)} is shorter than the table's own {format_duration(own)} "
            f"({RETENTION}): running writers would lose files that they are about to commit, running readers and time "
            "travel files that they still read",
            table=snapshot.table,
            version=snapshot.version,
            next_step=f"give at least {format_duration(own)}, lower the table property, or, if nothing else uses the "
            "table now, allow a short retention explicitly",
        )


# -- what there is -----------------------------------------------------------------------------------------------


def _scope(snapshot: DeltaSnapshot) -> Scope:
    names = partition_physical_names(snapshot.metadata)
    formats = snapshot.metadata.configuration.get("delta.universalFormat.enabledFormats", "")
    compatible = any(name.startswith("icebergCompat") for name in snapshot.protocol.features("writer"))
    return Scope({*names, *names.values()}, iceberg=compatible or "iceberg" in formats.lower())


def _stat(storage: Storage, infos: Sequence[FileInfo]) -> Iterator[FileInfo]:
    """Sizes and times of files whose listing lacks them. Leaves out what is gone, and links and what lies beyond them:
    who set them has plans.
    """
    if storage.is_local:
        # Not Storage.head: twenty times as fast, and it does not follow links.
        beyond = {folder: storage.beyond_link(f"{folder}/") for folder in {posixpath.dirname(i.path) for i in infos}}
        own = (info.path for info in infos if not beyond[posixpath.dirname(info.path)])
        yield from filter(None, (_stat_local(storage, path) for path in own))
    elif any(info.modified < 0 for info in infos):
        with ThreadPoolExecutor(_STAT_THREADS) as pool:
            yield from filter(None, pool.map(lambda info: _head(storage, info.path), infos))
    else:
        yield from infos


def _stat_local(storage: Storage, path: str) -> FileInfo | None:
    try:
        found = storage.access.lstat(storage.local(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error.strerror}", table=storage.uri) from error
    regular = stat.S_ISREG(found.st_mode)
    return FileInfo(path, found.st_size, found.st_mtime_ns // 1_000_000) if regular else None


def _head(storage: Storage, path: str) -> FileInfo | None:
    try:
        return storage.head(path)
    except FileNotFoundError:
        return None


def _totals(
    snapshot: DeltaSnapshot,
    removed: pa.Table,
    cutoff: int,
    files: Sequence[ExpiredFile],
    kept: Counter[str],
    *,
    listed: bool,
) -> tuple[int, int]:
    """How many files and bytes the table has, as far as that is known without a look at each: live ones, those inside
    the retention, and those that are to go.
    """
    recent = removed.filter(pc.greater_equal(removed["deletion_timestamp"], cutoff))
    size = sum(pc.sum(sizes).as_py() or 0 for sizes in (snapshot.files["size"], recent["size"]))
    count = kept.total() - kept[FOREIGN] if listed else snapshot.files.num_rows + recent.num_rows
    return count + len(files), size + sum(file.size for file in files)


# -- deleting ----------------------------------------------------------------------------------------------------


def _delete(storage: Storage, plan: _Plan, folder: str | None) -> VacuumResult:
    """``folder``: where the files go instead."""
    start = {"retentionCheckEnabled": plan.asked is None or plan.asked >= plan.own, "defaultRetentionMillis": plan.own}
    if plan.asked is not None:
        start["specifiedRetentionMillis"] = plan.asked
    sizes = {"numFilesToDelete": len(plan.files), "sizeOfDataToDelete": sum(file.size for file in plan.files)}
    commit_info_only(storage, START, start, sizes)

    sweep = _Sweep(storage, plan, folder)
    failure: DvMaintenanceError | None = None
    try:
        failure = sweep.run()
    except DvMaintenanceError as error:
        failure = error
    done = f"{sweep.deleted} of {len(plan.files)} expired files deleted"
    try:
        status = {"status": "FAILED" if failure else "COMPLETED"}
        end = commit_info_only(
            storage, END, status, {"numDeletedFiles": sweep.deleted, "numVacuumedDirectories": sweep.folders}
        )
    except DvMaintenanceError as error:
        error.done = f"{done}, but {END} is not in the log"
        raise
    try:
        failure = sweep.came_back() or failure
    except DvMaintenanceError as error:
        failure = failure or error
    if failure is None:
        return replace(plan.result(sweep.files, deleted=sweep.deleted, version_after=end), quarantine=folder)
    failure.table, failure.version, failure.done = storage.uri, plan.snapshot.version, done
    failure.next_step = failure.next_step or "run again: it goes on with what is left"
    raise failure


@dataclass(slots=True)
class _Sweep:
    """``files``: what was to go in the end. ``folders``: how many went."""

    storage: Storage
    plan: _Plan
    folder: str | None
    files: list[ExpiredFile] = field(default_factory=list)
    deleted: int = 0
    folders: int = 0
    since: NamedSince | None = None

    def run(self) -> DvMaintenanceError | None:
        """Delete what is still expired, as much as can be; the first failure."""
        version, still = _still_expired(self.storage, self.plan, self.plan.files)
        since = self.since = NamedSince(self.storage, version)
        failure: DvMaintenanceError | None = None
        for at in range(0, len(still), _BATCH):
            since.look()
            batch = still[at : at + _BATCH]
            if since.changed:
                since.changed = False
                _, batch = _still_expired(self.storage, self.plan, batch)
            needed = [file for file in batch if since.needs(file.path)]
            self.plan.kept[LIVE] += len(needed)
            batch = [file for file in batch if not since.needs(file.path)] if needed else batch
            paths = [file.path for file in batch]
            if self.folder is None:
                gone, failed = delete_batch(self.storage, paths)
            else:
                gone, failed = set_aside(self.storage, paths, self.folder)
            self.deleted += gone
            self.files += batch
            failure = failure or failed
            if failed and not gone:
                break  # nothing works any more: don't try hundreds of thousands of files one by one
        self.folders = remove_empty_folders(self.storage, (file.path for file in self.files))
        return failure

    def came_back(self) -> DvMaintenanceError | None:
        """Whether others brought files back that are gone, in any version up to the END."""
        since = self.since
        if since is None or not self.files:
            return None
        since.look()
        lost = [file.path for file in self.files if since.needs(file.path)]
        if lost and self.folder is not None:
            self.deleted -= put_back(self.storage, lost, self.folder)
            self.files = [file for file in self.files if not since.needs(file.path)]
            self.plan.kept[LIVE] += len(lost)
            return None
        if not lost:
            return None
        versions = sorted({since.named[path] for path in lost if path in since.named}) or [since.version]
        return DamagedTableError(
            f"version {versions[0]} names {len(lost)} files that were just deleted: {listed(lost)}; whoever committed "
            f"it looked for them before, and took no notice of {START}",
            next_step=f"restore a version other than what {versions[0]} brought back, or bring the files back from a "
            "backup; run no restore beside a vacuum with a tool that does not look at the log",
        )


def _still_expired(storage: Storage, plan: _Plan, files: Sequence[ExpiredFile]) -> tuple[int, list[ExpiredFile]]:
    """What the newest version, which comes first, does not need either: others may have brought files back since."""
    snapshot = load_snapshot(storage)
    check_writable(snapshot, "vacuum")
    longer = 0 if plan.asked is not None else max(0, _own_retention(snapshot) - plan.own)
    cutoff = plan.cutoff - longer
    needed = needed_files(storage, snapshot, tombstones(storage, snapshot), cutoff, plan.forgotten, plan.protected)
    still = []
    for file in files:
        reason = needed.reason(file.path) or (YOUNG if file.modified >= cutoff else None)
        if reason is None:
            still.append(file)
        else:
            plan.kept[reason] += 1
    return snapshot.version, still
