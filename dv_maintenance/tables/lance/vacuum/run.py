"""Vacuum a Lance table: list, read manifests, decide, check again, delete.

``expired`` decides; this module lists, reads and deletes. Manifests are deleted first, oldest first, then their
transactions, then the files that they named, so a manifest never names a missing file. Before each batch the versions,
tags, branches and clones are read again, and everything with a new reference is kept: a restore of an old version, a
tag on it, a branch from it, a commit of files that were written long ago. Files are deleted only after every manifest
of an expired version, so that no new reference to them can be created from then on. One race remains: a restore that
read its manifest before that and commits after the last check.

Lance's own ``cleanup_old_versions`` is not used: it uses the age of versions (see ``expired``), does not know clones,
and an old tag hides orphans from it.

The order has a cost: if a run stops between manifests and files, the files are orphans for the next run, which deletes
them when they are old enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.files.protobuf import BYTES, Shape, parse
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.storage import FileInfo, Storage, staged_for
from dv_maintenance.tables.expiring import by_day
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.lance.features import check_cleanable, check_no_overlays
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
from dv_maintenance.tables.lance.vacuum import expired
from dv_maintenance.tables.lance.vacuum.expired import Committed
from dv_maintenance.tables.lance.vacuum.retained import TREE, References, read_references, unreadable
from dv_maintenance.tables.lance.vacuum.retention import retained_versions, retention_of
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles, ExpiringFiles, VacuumResult
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.sweep import remove_empty_folders
from dv_maintenance.tables.vacuum import Sweep, run
from dv_maintenance.units import count

__all__ = ["ORPHAN_AGE", "vacuum"]

ORPHAN_AGE: Final = 7 * 86_400_000
"""Milliseconds for which a file that no version names is kept. As in Lance, no writer may take longer."""

# Manifests read at once before their files are added.
_BATCH: Final = 64
# Sequences of row ids and versions in files of their own. No writer creates them, and their names are not specified.
_EXTERNAL: Final[Shape] = {6: BYTES, 8: BYTES, 10: BYTES}

T = TypeVar("T")


def vacuum(storage: Storage, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumResult:
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
    cleanup = _Cleanup(
        storage=storage,
        root=root(storage, newest.branch) if f"/{TREE}/" in storage.uri else storage,
        branch=newest.branch,
        clones=tuple(_clone(storage, place) for place in request.clones),
        pins=frozenset(guard.versions),
        kept_for=kept_for,
        cutoff=now - kept_for,
        young=now - max(kept_for, ORPHAN_AGE),
        retained=retained_versions(newest, storage.uri),
        version=newest.version,
    )
    return run(cleanup, guard, dry_run=request.dry_run, now=now)


def _clone(storage: Storage, place: str) -> Storage:
    clone = Storage(place, storage.options)
    if clone.uri == storage.uri:
        raise UsageError("this is the table itself, not a clone of it", table=clone.uri)
    return clone


@dataclass(slots=True)
class _Cleanup:
    """One run.

    needed : key -> why the file is kept. It only grows.
    past : keys that expired versions named.
    read : URIs of the manifests whose keys are in ``needed``.
    """

    storage: Storage
    root: Storage
    branch: str | None
    clones: tuple[Storage, ...]
    pins: frozenset[int]
    kept_for: int
    cutoff: int
    young: int
    retained: int
    version: int
    needed: dict[str, str] = field(default_factory=dict)
    past: set[str] = field(default_factory=set)
    expired: dict[int, VersionFile] = field(default_factory=dict)
    unread: list[VersionFile] = field(default_factory=list)  # expired versions with manifests not read yet
    why: dict[int, str] = field(default_factory=dict)  # version -> why it is kept
    kept: Counter[str] = field(default_factory=Counter)
    read: set[str] = field(default_factory=set)
    known: set[bytes] = field(default_factory=set)
    known_elsewhere: set[bytes] = field(default_factory=set)
    known_past: set[bytes] = field(default_factory=set)
    listed: list[FileInfo] = field(default_factory=list)
    files: Sequence[ExpiredFile] = ()
    named: dict[int, int] = field(default_factory=dict)  # pinned version -> how many files it names
    superseded: dict[int, int] = field(default_factory=dict)  # version inside the retention -> when, epoch milliseconds
    last_named: dict[str, int] = field(default_factory=dict)  # key -> the newest of these versions that names it
    elsewhere: bool = False  # whether branches, clones or detached versions may need files, too

    # -- references ------------------------------------------------------------------------------------------------

    @property
    def table(self) -> str:
        return self.storage.uri

    def find(self) -> Sequence[ExpiredFile]:
        self._list()
        return self.decide()

    def totals(self, files: Sequence[ExpiredFile]) -> tuple[int, int]:
        del files
        return len(self.listed), sum(info.size for info in self.listed)

    def result(self, files: Sequence[ExpiredFile], *, deleted: int, dry_run: bool) -> VacuumResult:
        chosen = set(files)
        removed = [file for file in self.files if file in chosen]
        expiring = self._expiring()
        report = ExpiredFiles(self.version, self.cutoff, self.kept_for, tuple(removed), dict(+self.kept), expiring)
        pinned = tuple(f"{expired.pinned(pin)}: {count(self.named[pin], 'file')}" for pin in sorted(self.pins))
        return VacuumResult(report, deleted, dry_run, self.version, self.version, protected=pinned)

    def _expiring(self) -> tuple[ExpiringFiles, ...] | None:
        """Files that only versions inside the retention name, by the day on which the last of these versions expires.
        ``None`` if something else keeps versions for an unknown time.
        """
        if self.elsewhere or set(self.why.values()) - {expired.CURRENT, expired.RECENT}:
            return None
        at, sizes = [], []
        for info in self.listed:
            found = expired.known_file(info.path)
            version = None if found is None else self.last_named.get(found.key)
            if version is not None and version in self.superseded:
                at.append(self.superseded[version] + self.kept_for)
                sizes.append(info.size)
        return by_day(at, sizes)

    def _list(self) -> None:
        """List files first, then versions. A file committed in between is young, or a later check finds it."""
        self.listed = [info for folder in expired.FOLDERS for info in self.storage.list(folder, staged=True)]
        refs = self.storage.list(expired.REFS, staged=True)
        self.listed += [info for info in refs if staged_for(info.path) is not None]
        references = self._references()
        self.version = references.versions[-1].version
        self._split_versions(references)
        if self.storage.uri_of(references.versions[-1].path) not in self.read:
            raise self._conflict("its newest version was deleted or renamed")
        self._add_others(references)

    def _references(self) -> References:
        return read_references(self.storage, self.root, self.branch, self.clones)

    def _split_versions(self, references: References) -> None:
        """Decide, newest first, which versions have expired, and which files the remaining ones need."""
        files = references.versions[::-1]
        if lost := self.pins - {file.version for file in files}:
            raise RefusedError(
                f"version {min(lost)} is to be protected, but does not exist",
                table=self.storage.uri,
                version=self.version,
                next_step=Remedy("remove it from {} if it is no longer needed", (setting("protected_versions"),)),
            )
        tagged = {version for version, why in references.pinned.items() if why == expired.TAGGED}
        if gone := tagged - {file.version for file in files}:
            raise DamagedTableError(
                f"the manifest of version {min(gone)}, which has a tag, does not exist: its files are unknown",
                table=self.storage.uri,
                version=self.version,
                next_step="restore it from a backup, or delete the tag with dataset.tags.delete(NAME)",
            )
        written = {info.path: info.modified for info in self.listed}
        # A manifest that was committed after the listing counts as new.
        stored = {file.version: Committed(file.version, written.get(file.path, self.cutoff)) for file in files}
        successor = {file.version: newer.version for newer, file in pairwise(files)}

        def is_expired(version: int) -> bool | None:
            newer = successor.get(version)
            return expired.superseded_before(stored[version], None if newer is None else stored[newer], self.cutoff)

        for place, file in enumerate(files):
            if file.version in self.pins:
                self.why[file.version] = expired.pinned(file.version)
            elif file.version in references.pinned:
                self.why[file.version] = references.pinned[file.version]
            if place < self.retained:
                self.why.setdefault(file.version, expired.RETAINED)
        self.why[files[0].version] = expired.CURRENT
        certain = {file.version for file in files if file.version not in self.why and is_expired(file.version)}
        # The time of a pinned version may decide about its predecessor.
        for manifest in _each(self.storage, [file for file in files if file.version not in certain], read_manifest):
            version = manifest.version
            stored[version] = replace(stored[version], timestamp=manifest.timestamp)
            if version not in self.why and not is_expired(version):
                self.why[version] = expired.RECENT
                newer = successor.get(version)
                times = [stored[each].timestamp for each in (version, newer) if each is not None]
                known = [each for each in times if each is not None]
                if len(known) == len(times):
                    self.superseded[version] = max(known)
            if version in self.why:
                self._need(self.storage, manifest, self.why[version])
            else:
                self._add_past(manifest)
        self.expired = {file.version: file for file in files if file.version not in self.why}
        self.unread = [file for file in files if file.version in certain]

    def _add_others(self, references: References) -> None:
        """Add the files that detached versions, branches and clones need. Skips manifests that were already read."""
        self.elsewhere = bool(references.detached or references.places)
        new = [path for path in references.detached if self.storage.uri_of(path) not in self.read]
        for manifest in _each(self.storage, new, read_detached):
            self._need(self.storage, manifest, expired.DETACHED)
        for place in references.places:
            new = [path for path in place.versions if place.storage.uri_of(path) not in self.read]
            try:
                for manifest in _each(place.storage, new, _read_any):
                    self._need(place.storage, manifest, place.reason, elsewhere=True)
            except DvMaintenanceError as error:
                raise unreadable(place, error) from error

    # -- files that manifests need ---------------------------------------------------------------------------------

    def _need(self, storage: Storage, manifest: Manifest, reason: str, *, elsewhere: bool = False) -> None:
        self.read.add(storage.uri_of(manifest.path))
        check_cleanable(manifest, storage.uri)
        if elsewhere and not manifest.base_paths:
            return
        known = self.known_elsewhere if elsewhere else self.known
        for key in self._keys(storage, manifest, known, elsewhere=elsewhere):
            if key not in self.needed and reason == expired.RECENT:
                self.last_named[key] = manifest.version
            self.needed.setdefault(key, reason)
        if not elsewhere and manifest.version in self.pins:
            self.named[manifest.version] = len(self._keys(storage, manifest, set())) + 1

    def _add_past(self, manifest: Manifest) -> None:
        check_cleanable(manifest, self.storage.uri)
        self.past |= self._keys(self.storage, manifest, self.known_past)

    def _keys(self, storage: Storage, manifest: Manifest, known: set[bytes], *, elsewhere: bool = False) -> set[str]:
        """Keys of the files that a manifest names, without those of byte-identical fragments in ``known``."""
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
            known.update(records)
            keys = expired.keys_of(fragments, manifest.indices(), elsewhere=elsewhere)
        if manifest.transaction_file and not elsewhere:
            keys.add(f"{TRANSACTIONS}/{manifest.transaction_file}")
        return keys

    # -- deciding --------------------------------------------------------------------------------------------------

    def decide(self) -> Sequence[ExpiredFile]:
        manifests: dict[str, str | None] = {}
        paths = {info.path for info in self.listed}
        for info in self.listed:
            folder, _, name = info.path.rpartition("/")
            if (final := expired.staged_manifest(info.path)) is not None:
                staged = version_file(final.rpartition("/")[2])
                if final not in paths and (staged is None or staged.version > self.version):
                    manifests[info.path] = expired.UNFINISHED
                continue
            found = version_file(name) if folder == VERSIONS else None
            if found is not None:
                is_expired = found.version in self.expired
                manifests[info.path] = None if is_expired else self.why.get(found.version, expired.RECENT)
            elif folder == VERSIONS and detached_names([name]):
                manifests[info.path] = expired.DETACHED
        files, kept, doubtful = expired.find_expired(self.listed, self.needed, self.past, manifests, self.young)
        if doubtful and self.unread:
            for manifest in _each(self.storage, self.unread, read_manifest):
                self._add_past(manifest)
            files, kept, _ = expired.find_expired(self.listed, self.needed, self.past, manifests, self.young)
        self.kept, self.files = kept, files
        return files

    def unexplained(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """The files that no existing version names, expired or not."""
        for manifest in _each(self.storage, self.unread, read_manifest):
            self._add_past(manifest)
        of_versions = {"manifest", "transaction"}
        known = {file.path: expired.known_file(file.path) for file in files if file.kind not in of_versions}
        return [file for file in files if (found := known.get(file.path)) is not None and found.key not in self.past]

    # -- deleting --------------------------------------------------------------------------------------------------

    def delete(self, files: Sequence[ExpiredFile], sweep: Sweep) -> None:
        manifests = [file for file in files if file.kind == "manifest"]
        # Oldest first, so that the remaining history has no gap.
        age = {file.path: file.version for file in self.expired.values()}
        manifests.sort(key=lambda file: age[file.path])
        others = [file for file in files if file.kind != "manifest"]
        try:
            failure: DvMaintenanceError | None = sweep.remove(manifests, partial(self._still, manifests_are_gone=False))
            failure = failure or sweep.remove(others, partial(self._still, manifests_are_gone=True))
        except DvMaintenanceError as error:
            failure = error
        finally:
            self._remove_folders(sweep.files)
        if failure is not None:
            raise sweep.failed(failure, self, len(files))

    def _still(self, files: Sequence[ExpiredFile], *, manifests_are_gone: bool) -> Sequence[ExpiredFile]:
        self._read_again(manifests_are_gone=manifests_are_gone)
        reasons = [self._needed_by_now(file) for file in files]
        self.kept.update(reason for reason in reasons if reason is not None)
        return [file for file, reason in zip(files, reasons, strict=True) if reason is None]

    def _needed_by_now(self, file: ExpiredFile) -> str | None:
        if file.kind == "manifest":
            found = version_file(file.path.rpartition("/")[2])
            return None if found is None else self.why.get(found.version)
        known = expired.known_file(file.path)
        return None if known is None else self.needed.get(known.key)

    def _read_again(self, *, manifests_are_gone: bool) -> None:
        """Read the references again, and keep the files that new references need."""
        references = self._references()
        there = {file.version: file for file in references.versions}
        if references.versions[-1].version < self.version:
            raise self._conflict(
                f"its newest version is {references.versions[-1].version} now: was the table recreated?"
            )
        for version, reason in references.pinned.items():
            if version in self.expired:
                if version not in there:
                    raise self._conflict(f"version {version} was deleted while a tag or a branch on it was created")
                self._keep(version, reason)
        for version, file in there.items():
            old = self.expired.get(version)
            if old is not None and old.path != file.path:
                raise self._conflict("its manifests were renamed")
            if old is not None and manifests_are_gone:
                self._keep(version, expired.RECENT)
        new = [
            file for file in references.versions if file.version not in self.why and file.version not in self.expired
        ]
        new += [there[version] for version in self.why if version in there]
        unread = [file for file in new if self.storage.uri_of(file.path) not in self.read]
        for manifest in _each(self.storage, unread, read_manifest):
            self._need(self.storage, manifest, self.why.setdefault(manifest.version, expired.CURRENT))
        self._add_others(references)

    def _keep(self, version: int, reason: str) -> None:
        del self.expired[version]
        self.why[version] = reason

    def _conflict(self, what: str) -> ConflictError:
        return ConflictError(f"the table changed while it was being vacuumed: {what}", table=self.storage.uri)

    def _remove_folders(self, files: Iterable[ExpiredFile]) -> None:
        for folder in (DATA, expired.INDICES):
            inside = (file.path for file in files if file.path.startswith(f"{folder}/") and file.path.count("/") > 1)
            remove_empty_folders(self.storage, inside, below=folder)


# -- reading ---------------------------------------------------------------------------------------------------------


def _read_any(storage: Storage, path: str) -> Manifest:
    found = version_file(path.rpartition("/")[2])
    return read_detached(storage, path) if found is None else read_manifest(storage, found)


def _each(storage: Storage, files: Sequence[T], read: Callable[[Storage, T], Manifest]) -> Iterator[Manifest]:
    """The manifests in order, without those that are deleted concurrently."""

    def read_one(file: T) -> Manifest | None:
        try:
            return read(storage, file)
        except FileNotFoundError:
            return None

    for at in range(0, len(files), _BATCH):
        yield from (found for found in in_parallel(storage, files[at : at + _BATCH], read_one) if found is not None)


def _has_external(record: bytes) -> bool:
    fields = parse(record, _EXTERNAL)
    return any(fields.has(number) for number in _EXTERNAL)
