"""The plan of a vacuum: which files exist, which are needed, and which have expired.

A plan deletes nothing. It can be checked repeatedly against concurrent changes. A file that any check found to be
needed is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    VerificationError,
)
from dv_maintenance.files.arrays import strings
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.storage import FileInfo, Storage, plain_uri
from dv_maintenance.tables.model import ExpiredFile
from dv_maintenance.tables.paimon.features import check_known_kind
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.log.documents import Document
from dv_maintenance.tables.paimon.log.index_manifest import read_index_manifest
from dv_maintenance.tables.paimon.log.manifests import live_entries
from dv_maintenance.tables.paimon.log.schema import Schema
from dv_maintenance.tables.paimon.log.snapshots import parse_snapshot
from dv_maintenance.tables.paimon.rows.partitions import Partitions
from dv_maintenance.tables.paimon.scalars import integer
from dv_maintenance.tables.paimon.vacuum import expiry
from dv_maintenance.tables.paimon.vacuum.changelogs import NOTHING, ChangelogPlan, changelog_plan, refuse_overwrite
from dv_maintenance.tables.paimon.vacuum.expiry import Rules, Stamp, first_kept
from dv_maintenance.tables.paimon.vacuum.needed import Names, Needed
from dv_maintenance.tables.paimon.vacuum.orphans import LISTED, file_key, list_files
from dv_maintenance.tables.paimon.vacuum.references import DataFile, MissingError, Named, ReferenceReader, is_external
from dv_maintenance.tables.paimon.vacuum.retained import (
    Branch,
    Ref,
    References,
    changes_in_deltas,
    moved,
    read_references,
)
from dv_maintenance.tables.paimon.vacuum.retention import Retention, retention_of
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.units import count

__all__ = [
    "BRANCHED",
    "CHANGELOG",
    "FOREIGN",
    "LEFT",
    "NO_SNAPSHOT",
    "OUTSIDE",
    "TAGGED",
    "UNLOCATED",
    "YOUNG",
    "MovedError",
    "Plan",
    "check_options",
    "is_unchanged",
]

TAGGED: Final = "in a tagged snapshot"
BRANCHED: Final = "in another branch"
CHANGELOG: Final = "in a changelog that outlives its snapshot"
LEFT: Final = "kept as the changelog of a snapshot that expires"
YOUNG: Final = "in no snapshot, but young: a writer may be about to commit it"
FOREIGN: Final = "not named like a file of Paimon's, or readable only by Paimon"
OUTSIDE: Final = "in an expired snapshot, but outside the table in a folder that its options do not name"
UNLOCATED: Final = "in an expired snapshot, but the folder of its partition is unknown: it expires by age"
NO_SNAPSHOT: Final = "in a table without a snapshot: what a writer is about to commit is unknown"


class MovedError(Exception):
    """The table changed before anything was deleted. Plan again, and raise ``final`` if that fails, too."""

    def __init__(self, final: DvMaintenanceError) -> None:
        super().__init__(final)
        self.final = final


@dataclass(slots=True)
class Plan:
    """A plan, and its inputs.

    retention : how long snapshots, changelogs and unnamed files are kept.
    now : epoch milliseconds.
    lite : without a listing, so that files which no snapshot named are not found.
    pins : ids of snapshots that must be kept.
    newest : id of the newest snapshot.
    kept : reason -> how many files are kept.
    listed : the files of the table, schema LISTED.
    expired : ids of snapshots to delete, oldest first.
    changelogs : changelogs to write for the expired snapshots, and changelogs to delete.
    deltas : as in ``Ref``.
    checked : number of references in ``needed`` when all files were checked.
    known : number of references in ``needed`` when its names were collected, and the names.
    orphans : paths of files that no existing snapshot named.
    """

    layout: Layout
    schema: Schema
    retention: Retention
    now: int
    lite: bool
    pins: frozenset[int] = frozenset()
    newest: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    listed: pa.Table = field(default_factory=LISTED.empty_table)
    references: References = field(init=False)
    needed: Needed = field(init=False)
    expired: list[int] = field(default_factory=list)
    changelogs: ChangelogPlan = NOTHING
    deltas: bool = True
    checked: int = 0
    known: tuple[int, Names] | None = None
    orphans: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        options = self.schema.options
        self.needed = Needed(ReferenceReader(self.layout, Partitions(self.schema.partition_fields(), options), options))

    @property
    def rules(self) -> Rules:
        return Rules(self.now - self.retention.kept_for, self.retention.least, self.retention.most)

    @property
    def branch(self) -> Branch:
        return self.references.branches[self.layout.branch]

    @property
    def storage(self) -> Storage:
        return self.layout.storage

    def totals(self, files: Sequence[ExpiredFile]) -> tuple[int, int | None]:
        """How many files and bytes exist, including ``files``. Without a listing, the bytes are unknown (``None``)."""
        if self.lite:
            return self.kept.total() + len(files), None
        known = pc.is_in(strings([file.path for file in files]), value_set=self.listed["path"]).to_pylist()
        more = [file.size for file, found in zip(files, known, strict=True) if not found]
        return self.listed.num_rows + len(more), (pc.sum(self.listed["size"]).as_py() or 0) + sum(more)

    def unexplained(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """The files that no snapshot named, whether retained or expired."""
        return [file for file in files if file.path in self.orphans]

    def make(self) -> list[ExpiredFile]:
        """The files to delete: snapshots first, oldest first."""
        if not self.lite:
            data = self.schema.options.get("data-file.path-directory", "").strip("/")
            self.listed = list_files(self.layout, self.schema.partition_keys, data)
        self.references = read_references(self.layout)
        if not self.branch.snapshots:
            self.kept[NO_SNAPSHOT] = self.listed.num_rows
            return []
        self.newest = self.branch.newest
        self._check_pins()
        stamps = _stamps(self.branch)
        first = first_kept(stamps, self.rules, self._holds(self.references))
        self.expired = [stamp.id for stamp in stamps if stamp.id < first]
        if self.retention.changelogs is not None:
            self.deltas = changes_in_deltas(self.layout)
        self.changelogs = self._changelog_plan(self.references)
        self.kept[LEFT] = len(self.changelogs.to_write.keys() - self.changelogs.to_delete)
        self.add_needed(self.references)
        existing = self.changelogs.to_delete & self.branch.changelogs.keys()
        changelogs = [self.branch.changelogs[number] for number in sorted(existing)]
        named = self._expired_files([*(self.branch.snapshots[number] for number in self.expired), *changelogs])
        self.checked = len(self.needed.added)
        needed = self._names()
        doubtful = needed.codes_of(strings([file.name for file in named])).to_pylist()
        past = self._existing([file for file, code in zip(named, doubtful, strict=True) if code is None])
        if self.lite:
            self.kept.update(needed.count())
            orphans = []
        else:
            self.kept.update(self._reasons(self.references).values())
            orphans = self._orphans({file.path for file in past}, needed)
            self.orphans = frozenset(file.path for file in orphans)
        others = sorted([*past, *orphans], key=lambda file: (file.kind, file.path))
        gone = [*(self.branch.snapshots[number] for number in self.expired), *changelogs]
        return [*map(_snapshot_file, gone), *others]

    def _expired_files(self, refs: Sequence[Ref]) -> list[Named]:
        """The files that expiring references named, each path once. Excludes needed data files."""
        reader, named = self.needed.reader, dict[str, Named]()
        data = changes = np.zeros(0, np.bool_)
        for reached in reader.resolve(refs, partly=True):
            if len(data) < len(reader):
                data, changes = np.zeros(len(reader), np.bool_), np.zeros(len(reader), np.bool_)
            data[reached.data], changes[reached.changes] = True, True
            named |= {each.name: each for each in reached.named}
        found = []
        for kind, which in (("data", data), ("change", changes & ~data)):
            for file in reader.files(self.needed.without(np.flatnonzero(which))):
                found += self._located(file, kind)
        for each in named.values():
            path = each.path
            if path is not None and is_external(path):
                path = self._outside(path, each.name)
            if path is not None:
                found.append(Named(each.name, path, each.kind, each.size))
            elif each.name not in self.needed.named:
                self.kept[OUTSIDE if each.path else UNLOCATED] += 1
        # A file that changed its level has two numbers.
        return list({each.path: each for each in found}.values())

    def _located(self, file: DataFile, kind: str) -> list[Named]:
        folder = file.folder
        if file.external is not None:
            path = self._outside(file.external, file.name)
            folder = None if path is None else path.rpartition("/")[0]
        if folder is None:
            self.kept[UNLOCATED if file.external is None else OUTSIDE] += 1 + len(file.extra)
            return []
        extra = (Named(name, f"{folder}/{name}", kind, None) for name in file.extra)
        return [Named(file.name, f"{folder}/{file.name}", kind, file.size), *extra]

    def _outside(self, spelled: str, name: str) -> str | None:
        """The URI of a file outside the table; ``None`` if no option of the table names its folder. A path in a
        manifest alone does not justify a deletion.
        """
        path = self.storage.path_of_uri(plain_uri(spelled))
        parts = path.split("/")
        if "://" not in path or ".." in parts or parts[-1] != plain_uri(f"file:///{name}").rpartition("/")[2]:
            return None
        return path if any(path.startswith(f"{root}/") for root in self.external_roots) else None

    @property
    def external_roots(self) -> list[str]:
        """URIs of the folders outside the table that its options name."""
        texts = [self.schema.options.get(key, "") for key in ("data-file.external-paths", "global-index.external-path")]
        return [plain_uri(text.strip()) for text in ",".join(texts).split(",") if is_external(text.strip())]

    def _existing(self, files: Sequence[Named]) -> list[ExpiredFile]:
        """The files that exist, with size and time: from the listing if it covers them, else by one request each."""
        listed = self.listed
        at = pc.index_in(strings([file.path for file in files]), value_set=listed["path"].combine_chunks()).to_pylist()
        sizes, times = (listed[name].to_pylist() for name in ("size", "modified"))
        full = not self.lite and self.layout.branch is None

        def info(place: int) -> FileInfo | None:
            path, row = str(files[place].path), at[place]
            if row is not None:
                return FileInfo(path, sizes[row], times[row])
            if (full and "://" not in path) or self.storage.beyond_link(path):
                return None
            try:
                return self.storage.head(path)
            except FileNotFoundError:
                return None

        found = in_parallel(self.storage, range(len(files)), info)
        return [
            ExpiredFile(each.path, file.kind, each.size, each.modified)
            for file, each in zip(files, found, strict=True)
            if each is not None
        ]

    def _orphans(self, past: set[str], needed: Names) -> list[ExpiredFile]:
        """The listed files that are old and not needed. Counts why other files are kept."""
        listed = self.listed.combine_chunks()
        rest = listed.filter(pc.invert(pc.is_in(listed["path"], value_set=strings(sorted(past))))).combine_chunks()
        keys = rest["key"].combine_chunks()
        self.kept.update(needed.count(keys))
        unneeded, foreign = pc.is_null(needed.codes_of(keys)), pc.is_null(rest["kind"])
        old = pc.less(rest["modified"], integer(self.now - self.retention.orphan_age))
        self.kept[FOREIGN] += _count(pc.and_(unneeded, foreign))
        unneeded = pc.and_(unneeded, pc.invert(foreign))
        self.kept[YOUNG] += _count(pc.and_(unneeded, pc.invert(old)))
        orphans = rest.filter(pc.and_(unneeded, old)).select(["path", "kind", "size", "modified"])
        return [ExpiredFile(**row) for row in orphans.to_pylist()]

    # -- what is needed -------------------------------------------------------------------------------------------

    def _holds(self, references: References) -> Mapping[str, int]:
        """The consumers and pins that keep snapshots, each with its snapshot."""
        changelogs = self.retention.changelogs
        consumers = {} if changelogs is not None and changelogs.alone_consumed else references.consumers
        # Snapshots expire oldest first, so a pin keeps all snapshots after it, too.
        return {**consumers, **{f"pin {number}": number for number in self.pins & self.branch.snapshots.keys()}}

    def _check_pins(self) -> None:
        there = self.branch.snapshots.keys() | {ref.id for ref in self.branch.tags.values()}
        if lost := self.pins - there:
            raise RefusedError(
                f"snapshot {min(lost)} is to be protected, but does not exist",
                table=self.layout.uri,
                version=self.newest,
                next_step=Remedy("remove it from {} if it is no longer needed", (setting("protected_versions"),)),
            )

    def protected(self) -> tuple[str, ...]:
        """One line for each pinned snapshot, with the number of files that it needs."""
        every = {ref.id: ref for ref in (*self.branch.tags.values(), *self.branch.snapshots.values())}
        pinned = sorted(self.pins)
        found = self.needed.reader.resolve([every[number] for number in pinned if number in every])
        sizes = [len(each.data) + len(each.named) for each in found]
        return tuple(f"{expiry.pinned(n)}: {count(size, 'file')}" for n, size in zip(pinned, sizes, strict=True))

    def _changelog_plan(self, references: References) -> ChangelogPlan:
        """The changelogs to write and to delete when ``expired`` is deleted."""
        changelogs, own = self.retention.changelogs, references.branches[self.layout.branch]
        if changelogs is None:
            return NOTHING
        rules = Rules(self.now - changelogs.kept_for, changelogs.least, changelogs.most)
        planned = changelog_plan(self.layout, own, self.expired, rules, references.consumers, deltas=self.deltas)
        refuse_overwrite(self.layout, own, planned.to_write)
        return planned

    def add_needed(self, references: References) -> None:
        """Add the files that retained snapshots, tags and changelogs need, including changelogs yet to be written.

        Raises
        ------
        MovedError : one of them lacks a file. Another process may be expiring it.
        """
        try:
            self.needed.add(self._retained(references))
        except MissingError as missing:
            raise MovedError(self._missing(missing)) from None

    def _retained(self, references: References) -> Iterable[tuple[Ref, str]]:
        """All references that need files, each with the reason. Those of this branch come first, except changelogs."""
        own, why, expired = references.branches[self.layout.branch], self._reasons(references), set(self.expired)
        for number, ref in reversed(list(own.snapshots.items())):
            if number not in expired:
                yield ref, why.get(number, expiry.RECENT)
        yield from ((ref, TAGGED) for ref in own.tags.values())
        for name, branch in references.branches.items():
            if name != self.layout.branch:
                yield from ((ref, BRANCHED) for ref in (*branch.snapshots.values(), *branch.tags.values()))
                yield from ((ref, CHANGELOG) for ref in branch.changelogs.values())
        yield from ((ref, CHANGELOG) for ref in self._kept_changelogs(own).values())

    def _kept_changelogs(self, own: Branch) -> Mapping[int, Ref]:
        """The changelogs of this branch after the vacuum."""
        every = {**self.changelogs.to_write, **own.changelogs}
        return {number: ref for number, ref in every.items() if number not in self.changelogs.to_delete}

    def _reasons(self, references: References) -> Mapping[int, str]:
        stamps = _stamps(references.branches[self.layout.branch])
        return expiry.reasons(stamps, self.rules, self._holds(references), self.pins) if stamps else {}

    def _names(self) -> Names:
        """The names of all needed files. Includes snapshots and changelogs, because they may have checksum files."""
        why = self._reasons(self.references)
        own = {f"snapshot-{number}": reason for number, reason in why.items() if number not in self.expired}
        own |= {f"changelog-{number}": CHANGELOG for number in self._kept_changelogs(self.branch)}
        return self.needed.names(own)

    def _missing(self, missing: MissingError) -> DvMaintenanceError:
        if not self.storage.exists(missing.ref.path):
            return self.conflict(f"{missing.ref.path} was deleted while its manifests were read")
        return DamagedTableError(
            f"{missing}, so the needed files are unknown",
            table=self.layout.uri,
            version=missing.ref.id,
            next_step="run again, if another process may be expiring that snapshot now; otherwise restore the file, "
            "or delete the snapshot, tag or changelog that needs it with Paimon itself",
        )

    # -- checked against concurrent changes --------------------------------------------------------------------------

    def recheck(self) -> None:
        """Check the plan right before the first deletion. Raises MovedError."""
        after = read_references(self.layout, self.references)
        own = after.branches[self.layout.branch]
        if reason := moved(self.branch, own):
            raise MovedError(self.conflict(reason))
        first = first_kept(_stamps(own), self.rules, self._holds(after))
        self.expired = [number for number in self.expired if number < first and number in own.snapshots]
        current, planned = self._changelog_plan(after), self.changelogs
        # Changelogs that other processes have written since wait for the next run: their files are not in the plan.
        going = current.to_delete & (planned.to_delete | current.to_write.keys())
        first = min((current.to_write.keys() | own.changelogs.keys()) - going, default=0)
        self.changelogs = ChangelogPlan(current.to_write, frozenset(number for number in going if number < first))
        self.add_needed(after)
        self.references = after

    def retain_all(self, references: References) -> None:
        """Keep every file that ``references`` need. Called after snapshots and changelogs are deleted."""
        self.references, self.expired, self.changelogs = references, [], NOTHING
        self.add_needed(references)

    def unneeded(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """The files that are still not needed. Counts why other files are kept."""
        added = len(self.needed.added)
        if added == self.checked:
            return list(files)
        if self.known is None or self.known[0] != added:
            self.known = (added, self._names())
        needed = self.known[1]
        codes = needed.codes_of(strings(self._keys(files))).to_pylist()
        self.kept.update(needed.whys[code] for code in codes if code is not None)
        return [file for file, code in zip(files, codes, strict=True) if code is None]

    @staticmethod
    def _keys(files: Iterable[ExpiredFile]) -> list[str]:
        """The files' names in manifests."""
        paths = (unquote(file.path) if "://" in file.path else file.path for file in files)
        return [file_key(path.rpartition("/")[2]) for path in paths]

    def verify(self, files: Sequence[ExpiredFile]) -> None:
        """Check, independently of the plan, that the files of the newest snapshot exist, and that none of them is about
        to be deleted.

        If a name in a manifest is damaged, the plan may take the file that had it for unneeded.
        """
        newest, options = self.branch.snapshots[self.branch.newest], self.schema.options
        partitions = Partitions(self.schema.partition_fields(), options)
        try:
            file = parse_snapshot(Document.parse(self.layout.uri, newest.path, newest.data))
            live = live_entries(self.layout, file, partitions).entries["file_name"].combine_chunks()
            index = read_index_manifest(self.layout, file.index_manifest, partitions, options, file.id)
        except DamagedTableError:
            if is_unchanged(self.storage, newest):
                raise
            raise MovedError(self.conflict(f"{newest.path}, its newest snapshot, was deleted")) from None
        self._check_newest(newest)
        used = pc.is_in(strings(self._keys(files)), value_set=live).to_pylist()
        indexes = {each.path for each in index.files}
        for each, is_used in zip(files, used, strict=True):
            if is_used or each.path in indexes:
                raise VerificationError(
                    f"{each.path} was about to be deleted, but the newest snapshot needs it",
                    table=self.layout.uri,
                    version=self.newest,
                )

    def _check_newest(self, newest: Ref) -> None:
        """Check that data files of the newest snapshot that the listing lacks exist. Without a listing, do nothing."""
        if self.lite or self.layout.branch is not None:
            return
        reader = self.needed.reader
        (reached,) = reader.resolve([newest])
        listed = pc.is_in(reader.names(reached.data), value_set=self.listed["key"].combine_chunks())
        # Files that were committed after the listing are not in it.
        for file in reader.files(reached.data[~listed.to_numpy(zero_copy_only=False)]):
            if file.external or file.folder is None or self.storage.exists(f"{file.folder}/{file.name}"):
                continue
            if not is_unchanged(self.storage, newest):
                raise MovedError(self.conflict(f"{newest.path}, its newest snapshot, vanished"))
            raise DamagedTableError(
                f"{file.folder}/{file.name}, which the newest snapshot needs, does not exist: nothing is deleted "
                "until the cause is known",
                table=self.layout.uri,
                version=newest.id,
                next_step="restore the file, or roll the table back; CALL sys.remove_unexisting_files gives it up",
            )

    def conflict(self, what: str) -> ConflictError:
        return ConflictError(
            f"the table changed while it was being vacuumed: {what}", table=self.layout.uri, version=self.newest
        )


def check_options(layout: Layout, schema: Schema, retention: int | None, *, allow_short: bool) -> Retention:
    check_known_kind(schema, layout.uri)
    if ".." in schema.options.get("data-file.path-directory", "").split("/"):
        raise RefusedError(
            "data-file.path-directory points outside the table",
            table=layout.uri,
            next_step="set it to a folder below the table, or maintain the table with Paimon itself",
        )
    return retention_of(schema.options, layout.uri, retention, allow_short=allow_short)


def is_unchanged(storage: Storage, ref: Ref) -> bool:
    """Whether the file of a snapshot, a tag or a changelog is unchanged."""
    try:
        return storage.get(ref.path) == ref.data
    except FileNotFoundError:
        return False


def _stamps(branch: Branch) -> list[Stamp]:
    return [Stamp(number, ref.timestamp) for number, ref in branch.snapshots.items()]


def _snapshot_file(ref: Ref) -> ExpiredFile:
    return ExpiredFile(ref.path, "manifest", len(ref.data), ref.timestamp)


def _count(values: pa.BooleanArray) -> int:
    return int(pc.sum(values).as_py() or 0)
