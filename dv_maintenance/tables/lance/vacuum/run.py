"""Vacuum a Lance table: list, read manifests, plan, check again, delete.

**Versions** expire as ``holders`` says. **Files** with names that Lance gives (``files``) expire

1. at once, if an expired version names them and no kept version does;
2. later, if no version ever named them: once everything written under the same key is older than a week, or than the
   retention if that is longer. Their writer may have failed, or may not have committed yet. This rule covers files of
   every kind, also manifests that writers stage as ``N.manifest-UUID``. A catalog may point to such a file until
   somebody gives it its final name, so it is kept unless that name, or a newer version, exists.
   Lance's own cleanup keeps deletion files and transactions that are younger than the oldest version it keeps, so an
   old tag preserves orphans forever.

Manifests are deleted first, oldest first, then their transactions, then the files that they named, so a manifest never
names a missing file. Before each batch the versions, tags, branches and clones are read again, and everything with a
new reference is kept: a restore of an old version, a tag on it, a branch from it, a commit of files that were written
long ago. Files are deleted only after every manifest of an expired version, so that no new reference to them can be
created from then on. One race remains: a restore that read its manifest before that and commits after the last check.

Lance's own ``cleanup_old_versions`` is not used: it uses the age of versions (see ``holders``), does not know clones,
and an old tag hides orphans from it.

The order has a cost: if a run stops between manifests and files, the files are orphans for the next run, which deletes
them when they are old enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.files.protobuf import BYTES, Shape, parse
from dv_maintenance.storage import FileInfo, Storage, staged_for
from dv_maintenance.tables.expiring import by_day
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumGuard, VacuumRequest
from dv_maintenance.tables.lance.features import MANAGED_BLOBS, check_cleanable, check_no_overlays
from dv_maintenance.tables.lance.layout import DATA, check_folders
from dv_maintenance.tables.lance.log.manifest import Manifest, parse_fragment
from dv_maintenance.tables.lance.log.refs import root
from dv_maintenance.tables.lance.log.transaction import TRANSACTIONS
from dv_maintenance.tables.lance.log.versions import (
    VERSIONS,
    VersionFile,
    detached_names,
    load_manifest,
    naming_manifest,
    read_detached,
    read_manifest,
    version_file,
)
from dv_maintenance.tables.lance.vacuum.blobs import managed_objects
from dv_maintenance.tables.lance.vacuum.files import (
    FOLDERS,
    HINT,
    INDICES,
    REFS,
    keys_of,
    known_file,
    staged_manifest,
)
from dv_maintenance.tables.lance.vacuum.holders import (
    AMONG_THE_NEWEST,
    CURRENT,
    DETACHED,
    RECENT,
    TAGGED,
    TREE,
    Holders,
    read_holders,
    unreadable,
)
from dv_maintenance.tables.lance.vacuum.retention import newest_kept, retention_of
from dv_maintenance.tables.model import ExpiredFile, ExpiringFiles
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.reach.needed import Needed, pinned
from dv_maintenance.tables.reach.unneeded import KnownFile, Unneeded, divided, unneeded
from dv_maintenance.tables.reports import VacuumReport
from dv_maintenance.tables.sweep import remove_empty_folders
from dv_maintenance.tables.vacuum import Plan, Sweep, run
from dv_maintenance.units import DAY, count

ORPHAN_AGE: Final = 7 * DAY
"""Milliseconds for which a file that no version names is kept. As in Lance, no writer may take longer."""

YOUNG: Final = "in no version, but young: a writer may be about to commit"
UNFINISHED: Final = "the manifest of a version that may yet be committed"
FOREIGN: Final = "not named as Lance names its files"
# Manifests read at once before their files are added.
_BATCH: Final = 64
# Sequences of row ids and versions in files of their own. No writer creates them, and their names are not specified.
_EXTERNAL: Final[Shape] = {6: BYTES, 8: BYTES, 10: BYTES}


def vacuum(storage: Storage, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
    """Delete versions that were superseded before the retention, and the files that no other version needs.

    request : its retention is by default the table's ``lance.auto_cleanup.older_than``, or two weeks. ``lite`` has no
        effect: the manifests must be read anyway, and one listing has the sizes. The table does not record its clones.

    Costs a listing, and a read of every manifest inside the retention, of branches and of clones. Manifests of expired
    versions are read only if a file is young enough to belong to a writer that has not committed yet.

    Raises
    ------
    UsageError : the retention is negative; a protected place is the table itself.
    RefusedError : the retention is below the table's own (unless ``allow_short_retention``); a clone cannot be read;
        a folder of the table is a link.
    UnsupportedFeatureError : a version has features that may make it need more files than it names.
    DamagedTableError : a manifest, a tag or a branch cannot be read, so the files that it needs are unknown.
    ConflictError : the table was replaced or its manifests were renamed during the run.
    StorageError : some files could not be deleted; says how many were. The next run deletes the rest.
    """
    guard, now = request.guard, request.moment
    guard.refuse_streams("Lance", table=storage.uri, next_step="tag the version that a reader uses")
    _, newest = load_manifest(storage)
    check_cleanable(newest, storage.uri)
    check_folders(storage)
    kept_for = retention_of(newest, storage.uri, request.retention, allow_short=request.allow_short_retention)
    rules = _Rules(
        storage=storage,
        root=root(storage, newest.branch) if f"/{TREE}/" in storage.uri else storage,
        branch=newest.branch,
        clones=tuple(_clone(storage, place) for place in request.clones),
        guard=guard,
        kept_for=kept_for,
        cutoff=now - kept_for,
        young=now - max(kept_for, ORPHAN_AGE),
        newest_kept=newest_kept(newest, storage.uri),
        version=newest.version,
    )
    return run(rules, guard, dry_run=request.dry_run, now=now)


def _clone(storage: Storage, place: str) -> Storage:
    clone = Storage(place, storage.options)
    if clone.uri == storage.uri:
        raise UsageError("this is the table itself, not a clone of it", table=clone.uri)
    return clone


@dataclass(slots=True)
class _Rules:
    """Lance's part of a vacuum run.

    young : epoch milliseconds; a file that no version names is kept unless it is older.
    newest_kept : how many of the newest versions are kept.
    why_kept : version -> why it is kept.
    expired : the other versions.
    unread : expired versions with manifests not read yet.
    past : keys that expired versions named, and those of their manifests.
    read : URIs of the manifests whose files are in ``needed``.
    known : fragments, as manifests spell them, whose files are in ``needed``; the same for files named through a base
        path; and those whose files are in ``past``.
    manifests_gone : whether the manifests of all expired versions were removed.
    """

    storage: Storage
    root: Storage
    branch: str | None
    clones: tuple[Storage, ...]
    guard: VacuumGuard
    kept_for: int
    cutoff: int
    young: int
    newest_kept: int
    version: int
    needed: Needed = field(default_factory=Needed)
    kept: Counter[str] = field(default_factory=Counter)
    why_kept: dict[int, str] = field(default_factory=dict)
    expired: dict[int, VersionFile] = field(default_factory=dict)
    unread: list[VersionFile] = field(default_factory=list)
    past: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    known: tuple[set[bytes], set[bytes], set[bytes]] = field(default_factory=lambda: (set(), set(), set()))
    manifests_gone: bool = False

    @property
    def table(self) -> str:
        return self.storage.uri

    # -- planning --------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """List files first, then versions. A file committed in between is young, or a later check finds it."""
        infos = [info for folder in FOLDERS for info in self.storage.list(folder, staged=True)]
        infos += [info for info in self.storage.list(REFS, staged=True) if staged_for(info.path) is not None]
        holders = self._holders()
        self.version = holders.versions[-1].version
        sizes = self._split_versions(holders, {info.path: info.modified for info in infos})
        if self.storage.uri_of(holders.versions[-1].path) not in self.read:
            raise self._conflict("its newest version was deleted or renamed")
        self._need_others(holders)
        self._need_manifests({info.path for info in infos if info.path.startswith(f"{VERSIONS}/")})
        files = [(info, known_file(info.path)) for info in infos if info.path != HINT]
        found = self._divided(unneeded(files, lambda file: self.needed.why(file[1].key), self.kept))
        order = {"manifest": 0, "transaction": 1}
        return Plan(
            self.version,
            self.cutoff,
            self.kept_for,
            sorted(found.expired, key=lambda file: (order.get(file.kind, 2), file.path)),
            (len(infos), sum(info.size for info in infos)),
            self._expiring(holders, files),
            tuple(f"{pinned(version)}: {count(sizes[version], 'file')}" for version in sorted(sizes)),
        )

    def _holders(self) -> Holders:
        return read_holders(self.storage, self.root, self.branch, self.clones)

    def _split_versions(self, holders: Holders, written: Mapping[str, int]) -> Mapping[int, int]:
        """Decide, newest first, which versions have expired, and which files the others need. Returns how many files
        each pinned version names.

        written : path of a manifest -> when it was stored, epoch milliseconds.
        """
        files = {file.version: file for file in reversed(holders.versions)}
        self._check_there(holders, files)
        pins = set(self.guard.versions)
        self.why_kept = dict.fromkeys(list(files)[: self.newest_kept], AMONG_THE_NEWEST)
        self.why_kept |= {version: why for version, why in holders.kept.items() if version in files}
        self.why_kept |= {version: pinned(version) for version in pins} | {self.version: CURRENT}
        # A manifest is written at the commit or, in a copied table, later: then only its own time decides. One that was
        # committed after the listing counts as new.
        old = {version: written.get(file.path, self.cutoff) < self.cutoff for version, file in files.items()}
        successor = {older: newer for newer, older in pairwise(files)}

        def is_expired(version: int) -> bool:
            # Its own time can't be later than its successor's: a successor from a writer with a wrong clock expires
            # nothing.
            return version not in self.why_kept and old[version] and old[successor[version]]

        self.unread = [file for version, file in files.items() if is_expired(version)]
        certain = {file.version for file in self.unread}
        times, sizes = dict[int, int](), dict[int, int]()
        # The time of a version that is kept may decide about its predecessor.
        for manifest in self._manifests([file.path for version, file in files.items() if version not in certain]):
            version = manifest.version
            times[version] = manifest.timestamp
            # Without a time in the manifest only its age in storage counts.
            old[version] = old[version] or 0 < manifest.timestamp < self.cutoff
            if is_expired(version):
                self._add_past(manifest)
                continue
            until = None
            if self.why_kept.setdefault(version, RECENT) == RECENT and successor[version] in times:
                until = max(times[version], times[successor[version]]) + self.kept_for
            self._need(self.storage, manifest, self.why_kept[version], until=until)
            if version in pins:
                sizes[version] = len(self._keys(self.storage, manifest, set())) + 1
        self.expired = {version: file for version, file in files.items() if version not in self.why_kept}
        self.past.update(file.path for file in self.expired.values())
        return sizes

    def _check_there(self, holders: Holders, there: Collection[int]) -> None:
        self.guard.check_versions(there, "version", table=self.storage.uri, version=self.version)
        tagged = {version for version, why in holders.kept.items() if why == TAGGED}
        if gone := tagged.difference(there):
            raise DamagedTableError(
                f"the manifest of version {min(gone)}, which has a tag, does not exist: its files are unknown",
                table=self.storage.uri,
                version=self.version,
                next_step="restore it from a backup, or delete the tag with dataset.tags.delete(NAME)",
            )

    def _need_manifests(self, paths: Collection[str]) -> None:
        """Add the listed manifests, except those of expired versions."""
        for path in paths:
            name = path.rpartition("/")[2]
            found, final = version_file(name), staged_manifest(path)
            if found is not None and found.version not in self.expired:
                self.needed.add([path], self.why_kept.get(found.version, RECENT))
            elif detached_names([name]):
                self.needed.add([path], DETACHED)
            elif final is not None and final not in paths:
                staged = version_file(final.rpartition("/")[2])
                if staged is None or staged.version > self.version:
                    self.needed.add([path], UNFINISHED)

    def _divided(self, files: Sequence[tuple[FileInfo, KnownFile]]) -> Unneeded:
        found = divided(files, self.young, self.past)
        if found.unproven and self.unread:
            self._read_rest()
            found = divided(files, self.young, self.past)
        self.kept.update({YOUNG: found.young, FOREIGN: found.foreign})
        return found

    def _expiring(
        self, holders: Holders, files: Sequence[tuple[FileInfo, KnownFile]]
    ) -> tuple[ExpiringFiles, ...] | None:
        """Files that only versions inside the retention name, by the day on which the last of these versions expires.
        ``None`` if something else keeps versions for an unknown time.
        """
        if holders.detached or holders.places or set(self.why_kept.values()) - {CURRENT, RECENT}:
            return None
        found = ((self.needed.holder(known.key), info.size) for info, known in files)
        ends = [(holder.until, size) for holder, size in found if holder is not None and holder.until is not None]
        return by_day([until for until, _ in ends], [size for _, size in ends])

    def unexplained(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """The files that no existing version names, expired or not."""
        self._read_rest()
        of_versions = {"manifest", "transaction"}
        return [file for file in files if file.kind not in of_versions and known_file(file.path).key not in self.past]

    # -- files that manifests need ---------------------------------------------------------------------------------

    def _need_others(self, holders: Holders) -> None:
        """Add the files that detached versions, branches and clones need. Skips manifests that were already read."""
        for manifest in self._manifests(holders.detached):
            self._need(self.storage, manifest, DETACHED)
        for place in holders.places:
            try:
                for manifest in self._manifests(place.versions, place.storage):
                    self._need(place.storage, manifest, place.reason, elsewhere=True)
            except DvMaintenanceError as error:
                raise unreadable(place, error) from error

    def _need(
        self, storage: Storage, manifest: Manifest, why: str, *, until: int | None = None, elsewhere: bool = False
    ) -> None:
        self.read.add(storage.uri_of(manifest.path))
        check_cleanable(manifest, storage.uri)
        if not elsewhere or manifest.base_paths:
            keys = self._keys(storage, manifest, self.known[elsewhere], elsewhere=elsewhere)
            self.needed.add(keys, why, until=until)

    def _add_past(self, manifest: Manifest) -> None:
        check_cleanable(manifest, self.storage.uri)
        self.past |= self._keys(self.storage, manifest, self.known[2], past=True)

    def _read_rest(self) -> None:
        """Read the manifests of the other expired versions."""
        for manifest in self._manifests([file.path for file in self.unread]):
            self._add_past(manifest)
        self.unread = []

    def _keys(
        self,
        storage: Storage,
        manifest: Manifest,
        known: set[bytes],
        *,
        elsewhere: bool = False,
        past: bool = False,
    ) -> set[str]:
        """Keys of the files that a manifest and the rows of its version name, without those of byte-identical fragments
        in ``known``.

        past : the version has expired: files that it lost no longer name anything.
        """
        with naming_manifest(storage, manifest.path, manifest.version):
            records = [each for each in manifest.fragment_records if each not in known]
            fragments = tuple(map(parse_fragment, records))
            check_no_overlays(fragments, manifest, storage.uri)
            if any(_has_external(record) for record in records):
                raise UnsupportedFeatureError(
                    "the table has row ids or row versions in separate files, which this release can't clean up",
                    features=("external row id sequences",),
                    table=storage.uri,
                    version=manifest.version,
                    next_step="use a newer release of this tool, or Lance itself",
                )
            keys = keys_of(fragments, manifest.indices(), elsewhere=elsewhere)
        if (manifest.reader_flags | manifest.writer_flags) & MANAGED_BLOBS:
            try:
                keys |= {known_file(path).key for path in managed_objects(storage, manifest, fragments)}
            except DamagedTableError:
                if not past:
                    raise
        known.update(records)
        if manifest.transaction_file and not elsewhere:
            keys.add(f"{TRANSACTIONS}/{manifest.transaction_file}")
        return keys

    def _manifests(self, paths: Iterable[str], storage: Storage | None = None) -> Iterator[Manifest]:
        """The manifests that are not in ``read``, in order, without those that are deleted concurrently."""
        place = storage or self.storage
        new = [path for path in paths if place.uri_of(path) not in self.read]

        def read(path: str) -> Manifest | None:
            found = version_file(path.rpartition("/")[2])
            try:
                return read_detached(place, path) if found is None else read_manifest(place, found)
            except FileNotFoundError:
                return None

        for at in range(0, len(new), _BATCH):
            yield from (found for found in in_parallel(place, new[at : at + _BATCH], read) if found is not None)

    # -- removing --------------------------------------------------------------------------------------------------

    def remove(self, plan: Plan, sweep: Sweep) -> int:
        # Oldest first, so that the remaining history has no gap.
        age = {file.path: file.version for file in self.expired.values()}
        manifests = sorted((file for file in plan.files if file.kind == "manifest"), key=lambda file: age[file.path])
        others = [file for file in plan.files if file.kind != "manifest"]
        try:
            failure: DvMaintenanceError | None = sweep.remove(manifests)
            self.manifests_gone = True
            failure = failure or sweep.remove(others)
        except DvMaintenanceError as error:
            failure = error
        finally:
            for folder in (DATA, INDICES):
                inside = (file.path for file in sweep.files if file.path.startswith(f"{folder}/"))
                remove_empty_folders(self.storage, (path for path in inside if path.count("/") > 1), below=folder)
        if failure is not None:
            raise sweep.failed(failure, plan)
        return plan.version

    def refresh(self) -> None:
        """Read the versions and everything else again, and keep the files that new ones need."""
        holders = self._holders()
        there = {file.version: file for file in holders.versions}
        if max(there) < self.version:
            raise self._conflict(f"its newest version is {max(there)} now: was the table recreated?")
        for version, why in holders.kept.items():
            if version in self.expired:
                if version not in there:
                    raise self._conflict(f"version {version} was deleted while a tag or a branch on it was created")
                self._keep(version, why)
        for version, file in there.items():
            old = self.expired.get(version)
            if old is not None and old.path != file.path:
                raise self._conflict("its manifests were renamed")
            if old is not None and self.manifests_gone:
                self._keep(version, RECENT)
        for manifest in self._manifests([file.path for version, file in there.items() if version not in self.expired]):
            self._need(self.storage, manifest, self.why_kept.setdefault(manifest.version, CURRENT))
        self._need_others(holders)

    def why(self, file: ExpiredFile) -> str | None:
        return self.needed.why(known_file(file.path).key)

    def _keep(self, version: int, why: str) -> None:
        self.needed.add([self.expired.pop(version).path], why)
        self.why_kept[version] = why

    def _conflict(self, what: str) -> ConflictError:
        return ConflictError(f"the table changed while it was being vacuumed: {what}", table=self.storage.uri)


def _has_external(record: bytes) -> bool:
    fields = parse(record, _EXTERNAL)
    return any(fields.has(number) for number in _EXTERNAL)
