"""Vacuum an Iceberg table: expire snapshots, then remove the files that only they reached.

**Snapshots** expire as ``retention`` says; they are taken out of the metadata first, by the same swap as any commit, so
that no reader finds them any more. **Files** go by reachability, as Spark's procedure does, never by the entries of the
expired snapshots alone: a Puffin file has deletion vectors of many data files. They expire

1. at once, if an expired snapshot reached them and no kept one does;
2. later, if no snapshot of the metadata names them: once they are older than three days, or than the retention if that
   is longer, and have a name that writers of Iceberg give. Their writer may have failed, or may not have committed yet.

Before each batch the metadata is read again, and everything that it reaches is kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    StorageUnavailableError,
)
from dv_maintenance.storage import FileInfo, Storage
from dv_maintenance.tables.expiring import by_day
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumGuard, VacuumRequest
from dv_maintenance.tables.iceberg.commit.change import Change
from dv_maintenance.tables.iceberg.commit.pointer import swap
from dv_maintenance.tables.iceberg.log.metadata import Metadata, document, load_metadata
from dv_maintenance.tables.iceberg.log.pointer import HINT
from dv_maintenance.tables.iceberg.log.versions import MAX_AGE, retention
from dv_maintenance.tables.iceberg.snapshot import load_snapshot
from dv_maintenance.tables.iceberg.vacuum.reached import Reached
from dv_maintenance.tables.iceberg.vacuum.retention import CURRENT, RECENT, Kept, kept_snapshots
from dv_maintenance.tables.iceberg.writable import check_writable
from dv_maintenance.tables.model import ExpiredFile, ExpiringFiles
from dv_maintenance.tables.nested import NestedTables
from dv_maintenance.tables.publish import Overtaken
from dv_maintenance.tables.reach.needed import Needed
from dv_maintenance.tables.reach.retention import applied_retention
from dv_maintenance.tables.reach.unneeded import KnownFile, divided, unneeded
from dv_maintenance.tables.reports import VacuumReport
from dv_maintenance.tables.sweep import remove_empty_folders
from dv_maintenance.tables.vacuum import Plan, Sweep, run
from dv_maintenance.units import DAY, count

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout

ORPHAN_AGE: Final = 3 * DAY
"""Milliseconds for which a file that no snapshot names is kept, as in Spark's ``remove_orphan_files``."""

YOUNG: Final = "in no snapshot, but young: a writer may be about to commit"
FOREIGN: Final = "not named as Iceberg's writers name files"
OUTSIDE: Final = "outside the table's folder"
METADATA: Final = "metadata"

_ATTEMPTS: Final = 10
_FOLDERS: Final = ("data", "metadata")
# The group's name is the kind.
_KINDS: Final = re.compile(
    r"(?P<manifest>metadata/(?:.*\.metadata\.json(?:\.gz)?|(?:snap-.+|.+-m\d+|.+-deletes?)\.avro))"
    r"|(?P<other>metadata/(?:.+\.stats|partition-stats-.+))"
    r"|(?P<dv>.*\.puffin)"
    r"|(?P<data>data/.*\.(?:parquet|orc|avro))"
)
_DOCUMENT: Final = (".metadata.json", ".metadata.json.gz")
_LEFT: Final = re.compile(r".*/\.[^/]+\.tmp|.*#\d+")


def vacuum(layout: Layout, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
    """Expire snapshots, and delete the files that nothing reaches any more.

    request : its retention is by default the table's ``history.expire.max-snapshot-age-ms``, or five days. Branches
        and tags may have their own. ``lite`` looks for no orphans.

    Costs a listing of ``data`` and ``metadata``, and a read of every manifest that a snapshot of the metadata has.

    Raises
    ------
    UsageError : the retention is negative.
    RefusedError : the retention is below the table's own (unless ``allow_short_retention``); ``gc.enabled`` is false;
        the table can't be committed to; another table shares its folder.
    DamagedTableError : a manifest can't be read, so the files that it needs are unknown.
    ConflictError : other writers committed first in every attempt, or the table was replaced.
    StorageError : some files could not be deleted; says how many were. The next run deletes the rest as orphans.
    """
    guard, now = request.guard, request.moment
    guard.refuse_streams("Iceberg", table=layout.uri, next_step="tag the snapshot that a reader uses")
    snapshot = load_snapshot(layout)
    check_writable(layout, snapshot, "vacuum")
    guard.check_versions(snapshot.metadata.snapshots, "snapshot", table=layout.uri, version=snapshot.version)
    kept_for = applied_retention(
        request.retention,
        retention(snapshot),
        allow_short=request.allow_short_retention,
        source=MAX_AGE if MAX_AGE in snapshot.properties else "Iceberg's default",
        loses="readers and time travel would lose snapshots that they still read",
        lower=f"the table property {MAX_AGE}",
        table=layout.uri,
        version=snapshot.version,
    )
    rules = _Rules(
        layout,
        guard,
        kept_for,
        now - kept_for,
        now,
        snapshot.metadata,
        lite=request.lite,
    )
    result = run(rules, guard, dry_run=request.dry_run, now=now)
    if not request.dry_run:
        try:
            rules.expire()  # references to kept snapshots, where there was no file to remove
        except DvMaintenanceError as error:
            rules.say_what_expired(error, f"{count(result.deleted, 'file')} deleted" if result.deleted else None)
            raise
    return result


@dataclass(slots=True)
class _Rules:
    """Iceberg's part of a vacuum run.

    metadata : as it was read last.
    chosen : what it keeps.
    past : files that expired snapshots reached.
    committed : whether snapshots or references were taken out of the metadata.
    """

    layout: Layout
    guard: VacuumGuard
    kept_for: int
    cutoff: int
    now: int
    metadata: Metadata
    lite: bool = False
    needed: Needed = field(default_factory=Needed)
    kept: Counter[str] = field(default_factory=Counter)
    past: set[str] = field(default_factory=set)
    committed: bool = False
    chosen: Kept = field(init=False)
    reached: Reached = field(init=False)
    _done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.reached = Reached(self.layout)
        self.chosen = self._choose()

    @property
    def storage(self) -> Storage:
        return self.layout.storage

    @property
    def table(self) -> str:
        return self.layout.uri

    def _choose(self) -> Kept:
        return kept_snapshots(self.metadata, self.cutoff, self.kept_for, self.now, self.guard.versions)

    # -- planning --------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """List the files first, then read the metadata again: what is committed in between is young."""
        infos = {info.path: info for folder in _FOLDERS for info in self.storage.list(folder, staged=True)}
        self.refresh()
        self._check_alone(infos)
        for number in self.chosen.expired:
            self.past.update(self._of_expired(number))
        outside = {path for path in self.past if "://" in path}
        self.past -= outside
        self.kept[OUTSIDE] = len(outside)
        for path in self.past - infos.keys():
            unlisted = not path.startswith(tuple(f"{folder}/" for folder in _FOLDERS))
            if unlisted and self.needed.why(path) is None and (info := self.storage.info(path)) is not None:
                infos[path] = info
        files = [(info, self._known(info.path)) for info in infos.values()]
        found = divided(unneeded(files, lambda file: self.needed.why(file[1].key), self.kept), self._young, self.past)
        self.kept.update({YOUNG: found.young, FOREIGN: found.foreign})
        expired = [each for each in found.expired if not self.lite or each.path in self.past]
        order = {"data": 0, "dv": 0}
        return Plan(
            self.metadata.version,
            self.cutoff,
            self.kept_for,
            sorted(expired, key=lambda file: (order.get(file.kind, 1), file.path)),
            (len(infos), sum(info.size for info in infos.values())),
            self._expiring(infos),
            tuple(
                f"{holder.why}: snapshot {number}"
                for number, holder in self.chosen.holders.items()
                if holder.why not in {CURRENT, RECENT}
            ),
        )

    def _of_expired(self, number: int) -> Iterator[str]:
        """The files of a snapshot that is to go, unless another vacuum takes it meanwhile."""
        if number not in self.metadata.snapshots:
            return
        try:
            yield from self.reached.by(self.metadata, number, ever=True)
        except DamagedTableError:
            self.refresh()
            if number in self.metadata.snapshots:
                raise

    @property
    def _young(self) -> int:
        return self.now - max(self.kept_for, ORPHAN_AGE)

    def _known(self, path: str) -> KnownFile:
        match = _KINDS.fullmatch(path)
        kind = None if match is None else match.lastgroup
        if kind is None and (_LEFT.fullmatch(path) or path in self.past):
            kind = "other"
        return KnownFile(path, kind)

    def _expiring(self, infos: Mapping[str, FileInfo]) -> tuple[ExpiringFiles, ...]:
        """Files that only snapshots inside the retention reach, by the day on which the last of these expires."""
        ends = [
            (holder.until, info.size)
            for path, info in infos.items()
            if (holder := self.needed.holder(path)) is not None and holder.until is not None
        ]
        return by_day([until for until, _ in ends], [size for _, size in ends])

    def _check_alone(self, infos: Mapping[str, FileInfo]) -> None:
        """Refuse a folder that holds another table, whose files would be taken for orphans."""
        nested = NestedTables("iceberg")
        nested.see_folder_itself(self.storage)
        documents = []
        for path in infos:
            nested.see_file_below(path)
            if path.endswith(_DOCUMENT) and path != self.metadata.path and not self.needed.why(path):
                documents.append(path)
        of = {None, self.metadata.uuid}
        others = [f"{folder or 'its folder'} holds a table of {title}" for folder, title in nested.titles.items()]
        others = others or [
            f"{path} belongs to another table" for path in documents if self._uuid(infos[path]) not in of
        ]
        if others:
            raise RefusedError(
                f"{others[0]}, so files in this folder may be that table's",
                table=self.table,
                version=self.metadata.version,
                next_step="vacuum it with its own engine, or move one of the tables to a folder of its own",
            )

    def _uuid(self, info: FileInfo) -> str | None:
        try:
            return str(document(self.storage.get(info.path)).get("table-uuid") or "") or None
        except (FileNotFoundError, DamagedTableError):
            return None  # a writer died in the middle of it

    def unexplained(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        return [file for file in files if file.path not in self.past]

    # -- what is needed --------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the metadata again, and need what it reaches. Another vacuum may take snapshots of older metadata while
        their files are read here.
        """
        self._load()
        for _ in range(_ATTEMPTS):
            seen = self.metadata.path
            try:
                self._need()
            except DamagedTableError:
                self._load()
                if self.metadata.path == seen:
                    raise
            else:
                return
        self._need()

    def _load(self) -> None:
        found = load_metadata(self.layout)
        if found.uuid != self.metadata.uuid:
            raise ConflictError("the table was replaced by another one while it was being vacuumed", table=self.table)
        self.metadata = found
        self.chosen = self._choose()

    def _need(self) -> None:
        self.needed.add([HINT, *self.reached.of_metadata(self.metadata)], METADATA)
        # The longest hold of a file counts.
        order = sorted(self.chosen.holders.items(), key=lambda each: -(each[1].until or 1 << 62))
        for number, holder in order:
            if number not in self._done:
                self.needed.add(self.reached.by(self.metadata, number), holder.why, until=holder.until)
                self._done.add(number)

    def why(self, file: ExpiredFile) -> str | None:
        return self.needed.why(file.path)

    # -- removing --------------------------------------------------------------------------------------------------

    def remove(self, plan: Plan, sweep: Sweep) -> int:
        try:
            self.expire()
            failure: DvMaintenanceError | None = sweep.remove(plan.files)
        except DvMaintenanceError as error:
            failure = error
        finally:
            inside = (file.path for file in sweep.files if file.path.startswith("data/"))
            remove_empty_folders(self.storage, (path for path in inside if path.count("/") > 1), below="data")
        if failure is not None:
            failure = sweep.failed(failure, plan)
            self.say_what_expired(failure, sweep.done(len(plan.files)) if sweep.deleted else None)
            raise failure
        return self.metadata.version

    def say_what_expired(self, error: DvMaintenanceError, deleted: str | None) -> None:
        """Readers find no expired snapshot any more, even if an error came before the first file was deleted."""
        if self.committed:
            error.done = "; ".join(filter(None, ["the expired snapshots were taken out of the metadata", deleted]))

    def expire(self) -> None:
        """Take the expired snapshots out of the metadata."""
        for _ in range(_ATTEMPTS):
            if not self.chosen.expired and not self.chosen.refs:
                return
            gone, refs = set(self.chosen.expired), set(self.chosen.refs)
            try:
                swap(self.layout, self.metadata, Change(removed=self.chosen.expired, refs=self.chosen.refs))
                self.committed = True
            except Overtaken:
                pass
            except StorageUnavailableError as error:
                try:
                    self.refresh()
                except DvMaintenanceError:
                    error.done = error.done or "it is not known whether the expired snapshots were taken out"
                    raise error from None
                if gone & set(self.metadata.snapshots) or refs & set(self.metadata.refs):
                    raise
                self.committed = True
            self.refresh()
        if self.chosen.expired:
            raise ConflictError(
                f"other writers committed first in all {_ATTEMPTS} attempts to expire snapshots",
                table=self.table,
                version=self.metadata.version,
                done="nothing was deleted",
                next_step="run again when the table is less busy",
            )
