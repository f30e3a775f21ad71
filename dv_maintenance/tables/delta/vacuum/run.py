"""Delete the files that a Delta table no longer needs: list or read the log, decide, check again, delete, log it.

``expired`` decides; this module reads and deletes. The order makes it safe: the log is read once more after
``VACUUM START`` is committed, and only files that this newest version does not need either are deleted. Restores of
this package wait for the ``VACUUM END`` (see ``restore``). Other tools may add deleted files again, so the log is read
again before each batch, and once more after the ``VACUUM END``: files that were added too late are reported.

Folders are decided as they are listed, with a log that may be older than the listing. Files committed in between are
either new, so the cutoff keeps them, or older, as after a restore, so the second reading of the log finds them. No file
is deleted before the listing ends: the guard limits the share of all files, and ``VACUUM START`` records how many will
be deleted.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, StorageError, UsageError
from dv_maintenance.files.arrays import bools, combined, int64s, numbers
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.storage import FileInfo, RawName
from dv_maintenance.storage.failures import storage_failure
from dv_maintenance.tables.delta.commit.presence import listed
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.load import load_with_tombstones
from dv_maintenance.tables.delta.log.segment import LOG
from dv_maintenance.tables.delta.rows.schema import partition_physical_names
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.vacuum.expired import (
    FOREIGN,
    LIVE,
    YOUNG,
    Needed,
    Protected,
    Scope,
    find_expired,
    needed_files,
    path_of,
)
from dv_maintenance.tables.delta.vacuum.named_since import NamedSince
from dv_maintenance.tables.delta.vacuum.protected import protected_files
from dv_maintenance.tables.delta.vacuum.retention import RETENTION, own_retention
from dv_maintenance.tables.delta.vacuum.running import END, START
from dv_maintenance.tables.delta.vacuum.watermark import (
    Watermark,
    read_watermark,
    removed_files,
    removed_since,
    taken_out,
    write_watermark,
)
from dv_maintenance.tables.expiring import by_day
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumGuard, VacuumRequest
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles, ExpiringFiles, VacuumResult
from dv_maintenance.tables.sweep import remove_empty_folders
from dv_maintenance.tables.vacuum import Sweep, run

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

__all__ = ["vacuum"]

_STAT_THREADS = 16
_PAGE = 1000


def vacuum(storage: Storage, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumResult:
    """Delete data, DV and change files that no version inside the retention needs.

    request : its retention is by default the table's ``delta.deletedFileRetentionDuration``, or one week. ``lite``
        checks the files that commits removed instead of listing the table. Its clones are not in the log.

    Nothing is committed if there is nothing to delete. A version outside the retention can no longer be read once its
    files are deleted.

    Raises
    ------
    UsageError : the retention is negative.
    RefusedError : the retention is below the table's own (unless ``allow_short_retention``), or reaches further back
        than the log; or ``lite`` needs commits that are gone; or the guard forbids it, or something that it protects
        can't be read.
    UnsupportedFeatureError : the table's features forbid it.
    StorageError : some files could not be deleted; says how many were. The next run continues from there.
    """
    snapshot, removed = load_with_tombstones(storage)
    check_writable(snapshot, "vacuum")
    storage.check_target(f"{LOG}/new")
    own = own_retention(snapshot)
    asked, now = request.retention, request.moment
    if asked is not None:
        _check_retention(snapshot, asked, own, request.allow_short_retention)
    cutoff = now - (own if asked is None else asked)

    rules = _Rules(storage, snapshot, removed, asked, own, cutoff, request.lite, request.guard, request.clones)
    result = run(rules, request.guard, dry_run=request.dry_run, now=now)
    # The watermark must stay, so that lite vacuums find the protected files once their protection ends.
    if not request.dry_run and not any(rules.kept[reason] for reason in rules.protected.reasons):
        try:
            write_watermark(storage, rules.watermark)
        except StorageError as error:
            error.done = f"{result.deleted} expired files deleted or set aside"
            raise
    return result


@dataclass(slots=True)
class _Rules:
    """Delta's part of a vacuum run.

    removed : the tombstones of the snapshot.
    requested : the caller's retention, milliseconds; ``None`` for the table's own.
    own : the table's retention, milliseconds.
    cutoff : epoch milliseconds.
    after : the newest version after the run.
    gone : protected files that do not exist.
    """

    storage: Storage
    snapshot: DeltaSnapshot
    removed: pa.Table
    requested: int | None
    own: int
    cutoff: int
    lite: bool
    guard: VacuumGuard
    clones: Sequence[str]
    kept: Counter[str] = field(default_factory=Counter)
    after: int = -1
    folders: int = 0
    watermark: Watermark = field(init=False)
    forgotten: set[str] = field(init=False)  # see needed_files
    protected: Protected = field(init=False)
    past: AbstractSet[str] = field(init=False)
    gone: set[str] = field(default_factory=set)
    since: NamedSince | None = None

    def __post_init__(self) -> None:
        kept_for = self.own if self.requested is None else self.requested
        self.after = self.snapshot.version
        self.watermark = read_watermark(self.storage, self.snapshot, self.cutoff)
        longer = kept_for > self.own
        self.forgotten = removed_since(self.storage, self.snapshot, self.watermark, self.cutoff) if longer else set()
        self.protected = protected_files(self.storage, self.snapshot, self.guard, self.clones)

    @property
    def table(self) -> str:
        return self.storage.uri

    @property
    def version(self) -> int:
        return self.snapshot.version

    def find(self) -> Sequence[ExpiredFile]:
        storage, snapshot = self.storage, self.snapshot
        needed = needed_files(storage, snapshot, self.removed, self.cutoff, self.forgotten, self.protected)
        scope = _scope(snapshot)
        seen: dict[str, FileInfo] = {}
        found = [removed_files(storage, snapshot, self.watermark)] if self.lite else self._walk(scope, needed, seen)
        stat = lambda paths: _stat(storage, paths, seen)  # noqa: E731
        files, self.kept = find_expired(needed, scope, found, stat, self.cutoff)
        self.past = needed.past
        return files

    def _walk(self, scope: Scope, needed: Needed, seen: dict[str, FileInfo]) -> Iterator[Collection[str]]:
        """The table's files. ``seen`` receives the sizes and times that an object store lists for files not live."""
        gone = set(self.protected.paths)
        for paths in self._folders(scope) if self.storage.is_local else self._pages(scope, needed, seen):
            gone.difference_update(paths)
            yield paths
        self.gone = {path for path in gone if scope.holds(path)}

    def _folders(self, scope: Scope) -> Iterator[list[str]]:
        for folder, paths in self.storage.walk_folders(skip=lambda path: scope.skip(path, True)):
            yield scope.shown(folder, paths)

    def _pages(self, scope: Scope, needed: Needed, seen: dict[str, FileInfo]) -> Iterator[list[str]]:
        infos = self.storage.walk(skip=scope.skip, by_folder=bool(self.snapshot.partition_columns))
        while page := list(islice(infos, _PAGE)):
            seen.update((info.path, info) for info in page if info.path not in needed.live)
            yield [info.path for info in page]

    def totals(self, files: Sequence[ExpiredFile]) -> tuple[int, int]:
        """Number and bytes of live files, files inside the retention, and files to delete. Sizes come from the log."""
        recent = self.removed.filter(pc.greater_equal(self.removed["deletion_timestamp"], int64s([self.cutoff])[0]))
        size = sum(pc.sum(sizes).as_py() or 0 for sizes in (self.snapshot.files["size"], recent["size"]))
        listed = self.kept.total() - self.kept[FOREIGN]
        count = self.snapshot.files.num_rows + recent.num_rows if self.lite else listed
        return count + len(files), size + sum(file.size for file in files)

    def unexplained(self, files: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
        unknown = [file for file in files if file.path not in self.past]
        known = taken_out(self.storage, self.watermark) if unknown else set()
        return [file for file in unknown if file.path not in known]

    def result(self, files: Sequence[ExpiredFile], *, deleted: int, dry_run: bool) -> VacuumResult:
        retention = self.own if self.requested is None else self.requested
        expiring = self._expiring(retention)
        expired = ExpiredFiles(self.version, self.cutoff, retention, tuple(files), dict(self.kept), expiring)
        protected = self.protected.summary(self.gone)
        return VacuumResult(expired, deleted, dry_run, self.version, self.after, protected=protected)

    def _expiring(self, retention: int) -> tuple[ExpiringFiles, ...]:
        """Data files that tombstones inside the retention name, with sizes from the log. Excludes files outside the
        table, which are never deleted, and protected files, whose end of protection is unknown.
        """
        recent = self.removed.filter(pc.greater_equal(self.removed["deletion_timestamp"], int64s([self.cutoff])[0]))
        outside = pc.match_substring_regex(recent["path"], "://|^/")
        live = pc.is_in(recent["path"], value_set=self.snapshot.files["path"].combine_chunks())
        recent = recent.filter(pc.invert(pc.or_(outside, live)))
        if self.protected.reasons:
            names = recent["path"].to_pylist()
            held = [self.protected.reason(path_of(self.storage, RawName(name))) is not None for name in names]
            recent = recent.filter(bools(np.logical_not(held)))
        # Not group_by: it imports pyarrow.dataset, and with it pandas.
        paths = combined(recent["path"]).dictionary_encode()
        last, size = np.zeros((2, len(paths.dictionary)), np.int64)
        np.maximum.at(last, numbers(paths.indices), numbers(combined(recent["deletion_timestamp"])))
        np.maximum.at(size, numbers(paths.indices), numbers(combined(pc.fill_null(recent["size"], int64s([0])[0]))))
        return by_day(last + retention, size)

    # -- deleting --------------------------------------------------------------------------------------------------

    def delete(self, files: Sequence[ExpiredFile], sweep: Sweep) -> None:
        checked = self.requested is None or self.requested >= self.own
        start = {"retentionCheckEnabled": checked, "defaultRetentionMillis": self.own}
        if self.requested is not None:
            start["specifiedRetentionMillis"] = self.requested
        sizes = {"numFilesToDelete": len(files), "sizeOfDataToDelete": sum(file.size for file in files)}
        commit_info_only(self.storage, START, start, sizes)
        failure: DvMaintenanceError | None = None
        try:
            failure = self._sweep(files, sweep)
        except DvMaintenanceError as error:
            failure = error
        try:
            status = {"status": "FAILED" if failure else "COMPLETED"}
            metrics = {"numDeletedFiles": sweep.deleted, "numVacuumedDirectories": self.folders}
            self.after = commit_info_only(self.storage, END, status, metrics)
        except DvMaintenanceError as error:
            error.done = f"{sweep.done(len(files))}, but {END} is not in the log"
            raise
        try:
            failure = self._came_back(sweep) or failure
        except DvMaintenanceError as error:
            failure = failure or error
        if failure is not None:
            failure.done = sweep.done(len(files))
            raise sweep.failed(failure, self, len(files))

    def _sweep(self, files: Sequence[ExpiredFile], sweep: Sweep) -> DvMaintenanceError | None:
        """Delete as many of the still expired files as possible; return the first failure."""
        version, expired = self._still_expired(files)
        since = self.since = NamedSince(self.storage, version)

        def still(batch: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
            since.refresh()
            if since.changed:
                since.changed = False
                _, batch = self._still_expired(batch)
            needed = sum(since.needs(file.path) for file in batch)
            self.kept[LIVE] += needed
            return [file for file in batch if not since.needs(file.path)] if needed else batch

        failure = sweep.remove(expired, still)
        self.folders = remove_empty_folders(self.storage, (file.path for file in sweep.files))
        return failure

    def _still_expired(self, files: Sequence[ExpiredFile]) -> tuple[int, list[ExpiredFile]]:
        """The newest version, and the files that it does not need either: another writer may have restored some."""
        snapshot, removed = load_with_tombstones(self.storage)
        check_writable(snapshot, "vacuum")
        cutoff = self.cutoff - (0 if self.requested is not None else max(0, own_retention(snapshot) - self.own))
        needed = needed_files(self.storage, snapshot, removed, cutoff, self.forgotten, self.protected)
        still = []
        for file in files:
            reason = needed.reason(file.path) or (YOUNG if file.modified >= cutoff else None)
            if reason is None:
                still.append(file)
            else:
                self.kept[reason] += 1
        return snapshot.version, still

    def _came_back(self, sweep: Sweep) -> DvMaintenanceError | None:
        """The failure to report if a version up to the END names deleted files again; files set aside are put back."""
        since = self.since
        if since is None or not sweep.files:
            return None
        since.refresh()
        lost = [file.path for file in sweep.files if since.needs(file.path)]
        if not lost:
            return None
        if sweep.folder is not None:
            sweep.put_back(lost)
            self.kept[LIVE] += len(lost)
            return None
        versions = sorted({since.named[path] for path in lost if path in since.named}) or [since.version]
        return DamagedTableError(
            f"version {versions[0]} names {len(lost)} files that were just deleted: {listed(lost)}; its writer checked "
            f"them earlier and ignored {START}",
            next_step=f"restore a version other than the one that {versions[0]} restored, or copy the files back from "
            "a backup; during a vacuum do not run restores with a tool that does not check the log for vacuums",
        )


# -- retention ---------------------------------------------------------------------------------------------------


def _check_retention(snapshot: DeltaSnapshot, requested: int, own: int, allow_short: bool) -> None:
    if requested < 0:
        raise UsageError("the retention is negative", table=snapshot.table, next_step="give a duration such as 168h")
    if requested < own and not allow_short:
        from dv_maintenance.units import format_duration

        raise RefusedError(
            f"a retention of {format_duration(requested)} is shorter than the table's own {format_duration(own)} "
            f"({RETENTION}): running writers would lose files that they are about to commit, and readers and time "
            "travel would lose files that they still need",
            table=snapshot.table,
            version=snapshot.version,
            next_step=Remedy(
                "give at least {}, lower the table property, or, if nothing else uses the table now, give {}",
                (setting("retention", format_duration(own)), setting("allow_short_retention", True)),
            ),
        )


# -- files -------------------------------------------------------------------------------------------------------


def _scope(snapshot: DeltaSnapshot) -> Scope:
    names = partition_physical_names(snapshot.metadata)
    formats = snapshot.metadata.configuration.get("delta.universalFormat.enabledFormats", "")
    compatible = any(name.startswith("icebergCompat") for name in snapshot.protocol.features("writer"))
    return Scope({*names, *names.values()}, iceberg=compatible or "iceberg" in formats.lower())


def _stat(storage: Storage, paths: Sequence[str], seen: Mapping[str, FileInfo]) -> Iterator[FileInfo]:
    """Sizes and times of files. ``seen``: files known from a listing. Skips missing files, links, and files reached
    through links, because the creator of a link may still use its target.
    """
    if storage.is_local:
        # Not Storage.head: twenty times as fast, and it does not follow links.
        beyond: dict[str, bool] = {}
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in beyond:
                beyond[folder] = storage.beyond_link(f"{folder}/")
            if not beyond[folder] and (info := _stat_local(storage, path)) is not None:
                yield info
        return
    yield from (seen[path] for path in paths if path in seen)
    if rest := [path for path in paths if path not in seen]:
        with ThreadPoolExecutor(_STAT_THREADS) as pool:
            yield from filter(None, pool.map(lambda path: _head(storage, path), rest))


def _stat_local(storage: Storage, path: str) -> FileInfo | None:
    try:
        found = storage.access.lstat(storage.local(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_failure(path, error, table=storage.uri) from error
    regular = stat.S_ISREG(found.st_mode)
    return FileInfo(path, found.st_size, found.st_mtime_ns // 1_000_000) if regular else None


def _head(storage: Storage, path: str) -> FileInfo | None:
    try:
        return storage.head(path)
    except FileNotFoundError:
        return None
