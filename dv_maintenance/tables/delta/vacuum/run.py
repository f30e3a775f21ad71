"""Vacuum a Delta table: list it or read the log, plan, check again, delete, log it.

A file expires if nothing needs it (``holders``), if it is neither hidden nor foreign nor part of another table
(``files``), and if it was modified before the cutoff: a writer may be about to commit a younger one, or a change feed
to read it.

The order makes it safe: the log is read once more after ``VACUUM START`` is committed, and only files that this newest
version does not need either are deleted. Restores of this package wait for the ``VACUUM END`` (see ``restore``). Other
tools may add deleted files again, so new commits are read before each batch, and once more after the ``VACUUM END``:
files that were added too late are reported.

Folders are decided as they are listed, with a log that may be older than the listing. Files committed in between are
either new, so the cutoff keeps them, or older, as after a restore, so the second reading of the log finds them. No file
is deleted before the listing ends: the guard limits the share of all files, and ``VACUUM START`` records how many will
be deleted.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, StorageError
from dv_maintenance.files.arrays import bools, combined, integer, numbers
from dv_maintenance.storage import FileInfo, RawName
from dv_maintenance.storage.failures import storage_failure
from dv_maintenance.tables.delta.commit.presence import listed
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.load import load_with_tombstones
from dv_maintenance.tables.delta.log.segment import LOG
from dv_maintenance.tables.delta.permissions import check_permitted
from dv_maintenance.tables.delta.rows.schema import partition_physical_names
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.vacuum.files import Scope, kind_of
from dv_maintenance.tables.delta.vacuum.holders import LIVE, Protected, add_state, inside, protected_files
from dv_maintenance.tables.delta.vacuum.named_since import NamedSince
from dv_maintenance.tables.delta.vacuum.names import path_of, paths_of
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
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.model import ExpiredFile, ExpiringFiles
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.reach.needed import Needed
from dv_maintenance.tables.reach.retention import applied_retention
from dv_maintenance.tables.reach.unneeded import KnownFile, divided, unneeded
from dv_maintenance.tables.reports import VacuumReport
from dv_maintenance.tables.sweep import remove_empty_folders
from dv_maintenance.tables.vacuum import Plan, Sweep, run

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

FOREIGN = "hidden, foreign or of another table"
YOUNG = "younger than the retention"
_PAGE = 1000


def vacuum(storage: Storage, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
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
    check_writable(storage, snapshot, "vacuum")
    storage.check_target(f"{LOG}/new")
    own = own_retention(snapshot)
    kept_for = applied_retention(
        request.retention,
        own,
        allow_short=request.allow_short_retention,
        source=RETENTION,
        loses="running writers would lose files that they are about to commit, and readers and time travel would lose "
        "files that they still need",
        lower="the table property",
        table=snapshot.table,
        version=snapshot.version,
    )
    now = request.moment
    rules = _Rules(storage, snapshot, removed, request, own, kept_for, now - kept_for)
    result = run(rules, request.guard, dry_run=request.dry_run, now=now)
    # The watermark must stay, so that lite vacuums find the protected files once their protection ends.
    if not request.dry_run and not any(rules.kept[reason] for reason in rules.protected.reasons):
        try:
            write_watermark(storage, rules.watermark)
        except StorageError as error:
            error.done = f"{result.deleted} expired files deleted or quarantined"
            raise
    return result


@dataclass(slots=True)
class _Rules:
    """Delta's part of a vacuum run.

    removed : the tombstones of the snapshot.
    own, kept_for : the table's retention, and the one to apply, milliseconds.
    cutoff : epoch milliseconds.
    young : epoch milliseconds; files modified since then stay. Before the cutoff if the retention was prolonged since.
    forgotten : see ``add_state``.
    past : paths that expired tombstones name: they belong to this table whatever their names look like.
    since : commits after the last reading of the whole log; ``None`` before ``VACUUM START``.
    """

    storage: Storage
    snapshot: DeltaSnapshot
    removed: pa.Table
    request: VacuumRequest
    own: int
    kept_for: int
    cutoff: int
    young: int = field(init=False)
    scope: Scope = field(init=False)
    watermark: Watermark = field(init=False)
    forgotten: set[str] = field(init=False)
    protected: Protected = field(init=False)
    past: set[str] = field(init=False)
    needed: Needed = field(default_factory=Needed)
    kept: Counter[str] = field(default_factory=Counter)
    since: NamedSince | None = None

    def __post_init__(self) -> None:
        self.young, self.scope = self.cutoff, _scope(self.snapshot)
        self.watermark = read_watermark(self.storage, self.snapshot, self.cutoff)
        longer = self.kept_for > self.own
        self.forgotten = removed_since(self.storage, self.snapshot, self.watermark, self.cutoff) if longer else set()
        self.protected = protected_files(self.storage, self.snapshot, self.request)

    @property
    def table(self) -> str:
        return self.storage.uri

    # -- planning --------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        storage, snapshot = self.storage, self.snapshot
        add_state(self.needed, storage, snapshot, self.removed, self.cutoff, self.forgotten)
        is_recent = inside(self.removed, self.cutoff)
        recent, past = self.removed.filter(is_recent), self.removed.filter(pc.invert(is_recent))
        self.past = paths_of(storage, past["path"]).paths
        seen, gone, rest = dict[str, FileInfo](), set(self.protected.needed), list[str]()
        for paths in [removed_files(storage, snapshot, self.watermark)] if self.request.lite else self._walk(seen):
            rest += unneeded(paths, self._reason, self.kept)
            gone.difference_update(paths)
        files = self._expired(rest, seen)
        return Plan(
            snapshot.version,
            self.cutoff,
            self.kept_for,
            files,
            self._stored(files, recent),
            self._expiring(recent),
            self.protected.summary(() if self.request.lite else filter(self.scope.holds, gone)),
        )

    def _reason(self, path: str) -> str | None:
        return self.needed.why(path) or self.protected.needed.why(path)

    def _walk(self, seen: dict[str, FileInfo]) -> Iterator[Collection[str]]:
        """The table's files. ``seen`` receives the sizes and times that an object store lists for unneeded files."""
        if self.storage.is_local:
            for folder, paths in self.storage.walk_folders(skip=lambda path: self.scope.skip(path, True)):
                yield self.scope.shown(folder, paths)
            return
        infos = self.storage.walk(skip=self.scope.skip, by_folder=bool(self.snapshot.partition_columns))
        while page := list(islice(infos, _PAGE)):
            seen.update((info.path, info) for info in page if self._reason(info.path) is None)
            yield [info.path for info in page]

    def _expired(self, paths: Sequence[str], seen: Mapping[str, FileInfo]) -> list[ExpiredFile]:
        """Those of the paths, which nothing needs, that have expired."""
        kinds: dict[str, str] = {}
        for path in paths:
            kind = kind_of(path) or ("other" if path in self.past else None)
            if kind and self.scope.holds(path) and (path in self.past or not self.scope.shared):
                kinds[path] = kind
        self.kept[FOREIGN] += len(paths) - len(kinds)
        stored = _stat(self.storage, list(kinds), seen)
        found = divided([(info, KnownFile(info.path, kinds[info.path])) for info in stored], self.cutoff)
        self.kept[YOUNG] += found.young
        return sorted(found.expired, key=lambda file: file.path)

    def _stored(self, files: Sequence[ExpiredFile], recent: pa.Table) -> tuple[int, int]:
        """Number and bytes of live files, files inside the retention, and files to delete. Sizes come from the log."""
        size = sum(pc.sum(sizes).as_py() or 0 for sizes in (self.snapshot.files["size"], recent["size"]))
        listed = self.kept.total() - self.kept[FOREIGN]
        count = self.snapshot.files.num_rows + recent.num_rows if self.request.lite else listed
        return count + len(files), size + sum(file.size for file in files)

    def _expiring(self, recent: pa.Table) -> tuple[ExpiringFiles, ...]:
        """Data files that tombstones inside the retention name, with sizes from the log. Excludes files outside the
        table, which are never deleted, and protected files, whose end of protection is unknown.
        """
        outside = pc.match_substring_regex(recent["path"], "://|^/")
        recent = recent.filter(pc.invert(outside))
        # A table of the few recent paths takes less memory than one of all live paths.
        live = self.snapshot.files["path"]
        live = live.filter(pc.is_in(live, value_set=combined(recent["path"])))
        recent = recent.filter(pc.invert(pc.is_in(recent["path"], value_set=combined(live))))
        if self.protected.reasons:
            names = recent["path"].to_pylist()
            needed = [self.protected.needed.why(path_of(self.storage, RawName(name))) is not None for name in names]
            recent = recent.filter(bools(np.logical_not(needed)))
        # Not group_by: it imports pyarrow.dataset, and with it pandas.
        paths = combined(recent["path"]).dictionary_encode()
        last, size = np.zeros((2, len(paths.dictionary)), np.int64)
        np.maximum.at(last, numbers(paths.indices), numbers(combined(recent["deletion_timestamp"])))
        np.maximum.at(size, numbers(paths.indices), numbers(combined(pc.fill_null(recent["size"], integer(0)))))
        return by_day(last + self.kept_for, size)

    def unexplained(self, files: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
        unknown = [file for file in files if file.path not in self.past]
        known = taken_out(self.storage, self.watermark) if unknown else set()
        return [file for file in unknown if file.path not in known]

    # -- removing --------------------------------------------------------------------------------------------------

    def remove(self, plan: Plan, sweep: Sweep) -> int:
        files, asked = plan.files, self.request.retention
        start = {"retentionCheckEnabled": asked is None or asked >= self.own, "defaultRetentionMillis": self.own}
        if asked is not None:
            start["specifiedRetentionMillis"] = asked
        sizes = {"numFilesToDelete": len(files), "sizeOfDataToDelete": sum(file.size for file in files)}
        commit_info_only(self.storage, START, start, sizes)
        failure: DvMaintenanceError | None = None
        folders = 0
        try:
            failure = sweep.remove(files)
            folders = remove_empty_folders(self.storage, (file.path for file in sweep.files))
        except DvMaintenanceError as error:
            failure = error
        try:
            status = {"status": "FAILED" if failure else "COMPLETED"}
            metrics = {"numDeletedFiles": sweep.deleted, "numVacuumedDirectories": folders}
            after = commit_info_only(self.storage, END, status, metrics)
        except DvMaintenanceError as error:
            error.done = f"{sweep.done(len(files))}, but {END} is not in the log"
            raise
        try:
            failure = self._came_back(sweep) or failure
        except DvMaintenanceError as error:
            failure = failure or error
        if failure is not None:
            failure.done = sweep.done(len(files))
            raise sweep.failed(failure, plan)
        return after

    def refresh(self) -> None:
        """Read the whole log once, when ``VACUUM START`` is in it, and then the commits since."""
        if self.since is None or self.since.refresh():
            self._read_state()
        check_permitted(self.storage, "vacuum")

    def _read_state(self) -> None:
        """Add what the newest version needs: another writer may have restored files, or prolonged the retention."""
        snapshot, removed = load_with_tombstones(self.storage)
        check_writable(self.storage, snapshot, "vacuum")
        if self.request.retention is None:
            self.young = min(self.young, self.cutoff - max(0, own_retention(snapshot) - self.own))
        add_state(self.needed, self.storage, snapshot, removed, self.young, self.forgotten)
        self.since = self.since or NamedSince(self.storage, snapshot.version)

    def why(self, file: ExpiredFile) -> str | None:
        if (reason := self._reason(file.path) or (YOUNG if file.modified >= self.young else None)) is not None:
            return reason
        return LIVE if self.since is not None and self.since.needs(file.path) else None

    def _came_back(self, sweep: Sweep) -> DvMaintenanceError | None:
        """The failure to report if a version up to the END names deleted files again; it undeletes quarantined ones."""
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
    yield from filter(None, in_parallel(storage, [path for path in paths if path not in seen], storage.info))


def _stat_local(storage: Storage, path: str) -> FileInfo | None:
    try:
        found = storage.access.lstat(storage.local(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_failure(path, error, table=storage.uri) from error
    regular = stat.S_ISREG(found.st_mode)
    return FileInfo(path, found.st_size, found.st_mtime_ns // 1_000_000) if regular else None
