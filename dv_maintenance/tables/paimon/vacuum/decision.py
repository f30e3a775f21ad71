"""What there is, what of it is needed, and what may go.

A plan reads, and deletes nothing. It can be held against what others did since, again and again: what was once found to
be needed stays.
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
from dv_maintenance.tables.paimon.vacuum.changelogs import NOTHING, Rest, check_room, rest_of
from dv_maintenance.tables.paimon.vacuum.expiry import Rules, Stamp, first_kept
from dv_maintenance.tables.paimon.vacuum.needed import Names, Needed
from dv_maintenance.tables.paimon.vacuum.orphans import LISTED, file_key, list_files
from dv_maintenance.tables.paimon.vacuum.references import DataFile, MissingError, Named, Reach, is_external
from dv_maintenance.tables.paimon.vacuum.retained import Branch, Ground, Ref, changes_in_deltas, look, moved
from dv_maintenance.tables.paimon.vacuum.retention import Retention, retention_of
from dv_maintenance.tables.parallel import in_parallel

__all__ = [
    "BRANCHED",
    "CHANGELOG",
    "FOREIGN",
    "LEFT",
    "NO_SNAPSHOT",
    "OUTSIDE",
    "TAGGED",
    "UNTOLD",
    "YOUNG",
    "MovedError",
    "Plan",
    "check_options",
    "is_there",
]

TAGGED: Final = "in a tagged snapshot"
BRANCHED: Final = "in another branch"
CHANGELOG: Final = "in a changelog that outlives its snapshot"
LEFT: Final = "left behind as the changelog of a snapshot that expires"
YOUNG: Final = "in no snapshot, but young: a writer may be about to commit it"
FOREIGN: Final = "not named as Paimon names its files, or known to Paimon alone"
OUTSIDE: Final = "in an expired snapshot, but at no place outside of the table that its options name"
UNTOLD: Final = "in an expired snapshot, but in a partition whose folder cannot be told: it goes by its age"
NO_SNAPSHOT: Final = "in a table without a snapshot: nobody knows what a writer is about to commit"


class MovedError(Exception):
    """The ground moved before anything was deleted: plan anew, and raise ``final`` when that does not help."""

    def __init__(self, final: DvMaintenanceError) -> None:
        super().__init__(final)
        self.final = final


@dataclass(slots=True)
class Plan:
    """``expired``: snapshots that go, and ``rest``: what becomes of changelogs then; ``kept``: how many files stay for
    which reason. ``pins``: snapshots that stay. ``checked``: how much was needed when all files were held against it,
    and ``known``: how much when the names of that were put together. ``deltas``: as ``Ref`` has it.
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
    ground: Ground = field(init=False)
    needed: Needed = field(init=False)
    expired: list[int] = field(default_factory=list)
    rest: Rest = NOTHING
    deltas: bool = True
    checked: int = 0
    known: tuple[int, Names] | None = None
    orphans: frozenset[str] = frozenset()  # paths of files that no snapshot which is there needed

    def __post_init__(self) -> None:
        options = self.schema.options
        self.needed = Needed(Reach(self.layout, Partitions(self.schema.partition_fields(), options), options))

    @property
    def rules(self) -> Rules:
        return Rules(self.now - self.retention.kept_for, self.retention.least, self.retention.most)

    @property
    def mine(self) -> Branch:
        return self.ground.branches[self.layout.branch]

    @property
    def storage(self) -> Storage:
        return self.layout.storage

    def totals(self, files: Sequence[ExpiredFile]) -> tuple[int, int | None]:
        """How many files and bytes there are, of which ``files`` are to go; the bytes only where they were listed."""
        if self.lite:
            return self.kept.total() + len(files), None
        known = pc.is_in(strings([file.path for file in files]), value_set=self.listed["path"]).to_pylist()
        more = [file.size for file, found in zip(files, known, strict=True) if not found]
        return self.listed.num_rows + len(more), (pc.sum(self.listed["size"]).as_py() or 0) + sum(more)

    def unexplained(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """Those of the files that no snapshot, expired or not, needed."""
        return [file for file in files if file.path in self.orphans]

    def make(self) -> list[ExpiredFile]:
        """What is to go, snapshots first, oldest first."""
        if not self.lite:
            data = self.schema.options.get("data-file.path-directory", "").strip("/")
            self.listed = list_files(self.layout, self.schema.partition_keys, data)
        self.ground = look(self.layout)
        if not self.mine.snapshots:
            self.kept[NO_SNAPSHOT] = self.listed.num_rows
            return []
        self.newest = self.mine.newest
        self._check_pins()
        stamps = _stamps(self.mine)
        first = first_kept(stamps, self.rules, self._holding(self.ground))
        self.expired = [stamp.id for stamp in stamps if stamp.id < first]
        if self.retention.changelogs is not None:
            self.deltas = changes_in_deltas(self.layout)
        self.rest = self._rest(self.ground)
        self.kept[LEFT] = len(self.rest.left.keys() - self.rest.outdated)
        self.take_in(self.ground)
        outdated = [self.mine.changelogs[number] for number in sorted(self.rest.outdated & self.mine.changelogs.keys())]
        named = self._past([*(self.mine.snapshots[number] for number in self.expired), *outdated])
        self.checked = len(self.needed.taken)
        needed = self._names()
        doubtful = needed.codes_of(strings([file.name for file in named])).to_pylist()
        past = self._stored([file for file, code in zip(named, doubtful, strict=True) if code is None])
        if self.lite:
            self.kept.update(needed.count())
            orphans = []
        else:
            self.kept.update(self._why(self.ground).values())
            orphans = self._orphans({file.path for file in past}, needed)
            self.orphans = frozenset(file.path for file in orphans)
        rest = sorted([*past, *orphans], key=lambda file: (file.kind, file.path))
        gone = [*(self.mine.snapshots[number] for number in self.expired), *outdated]
        return [*map(_snapshot_file, gone), *rest]

    def _past(self, refs: Sequence[Ref]) -> list[Named]:
        """Files that what goes needed, by their paths; without those of which a number is needed."""
        reach, named = self.needed.reach, dict[str, Named]()
        data = changes = np.zeros(0, np.bool_)
        for reached in reach.reached(refs, partly=True):
            if len(data) < len(reach):
                data, changes = np.zeros(len(reach), np.bool_), np.zeros(len(reach), np.bool_)
            data[reached.data], changes[reached.changes] = True, True
            named |= {each.name: each for each in reached.named}
        found = []
        for kind, which in (("data", data), ("change", changes & ~data)):
            for file in reach.files(self.needed.without(np.flatnonzero(which))):
                found += self._placed(file, kind)
        for each in named.values():
            path = each.path
            if path is not None and is_external(path):
                path = self._outside(path, each.name)
            if path is not None:
                found.append(Named(each.name, path, each.kind, each.size))
            elif each.name not in self.needed.named:
                self.kept[OUTSIDE if each.path else UNTOLD] += 1
        # A file that changed its level has two numbers.
        return list({each.path: each for each in found}.values())

    def _placed(self, file: DataFile, kind: str) -> list[Named]:
        folder = file.folder
        if file.external is not None:
            path = self._outside(file.external, file.name)
            folder = None if path is None else path.rpartition("/")[0]
        if folder is None:
            self.kept[UNTOLD if file.external is None else OUTSIDE] += 1 + len(file.extra)
            return []
        extra = (Named(name, f"{folder}/{name}", kind, None) for name in file.extra)
        return [Named(file.name, f"{folder}/{file.name}", kind, file.size), *extra]

    def _outside(self, spelled: str, name: str) -> str | None:
        """The URI of a file outside of the table; ``None`` where its options do not say that it has files there: what
        manifests say is not enough to delete anything anywhere.
        """
        path = self.storage.path_of_uri(plain_uri(spelled))
        parts = path.split("/")
        if "://" not in path or ".." in parts or parts[-1] != plain_uri(f"file:///{name}").rpartition("/")[2]:
            return None
        return path if any(path.startswith(f"{root}/") for root in self.external_roots) else None

    @property
    def external_roots(self) -> list[str]:
        """URIs of the folders outside of the table that its options say it has files in."""
        texts = [self.schema.options.get(key, "") for key in ("data-file.external-paths", "global-index.external-path")]
        return [plain_uri(text.strip()) for text in ",".join(texts).split(",") if is_external(text.strip())]

    def _stored(self, files: Sequence[Named]) -> list[ExpiredFile]:
        """Those that are there, with size and time: from the listing, where it covers them, else by a look at each."""
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
        """Of the files listed, those that are old and not needed; notes why the others stay."""
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

    def _holding(self, ground: Ground) -> Mapping[str, int]:
        """The consumers that snapshots are kept for."""
        changelogs = self.retention.changelogs
        consumers = {} if changelogs is not None and changelogs.alone_consumed else ground.consumers
        # Snapshots go from the oldest on: a pin holds those after it, too.
        return {**consumers, **{f"pin {number}": number for number in self.pins & self.mine.snapshots.keys()}}

    def _check_pins(self) -> None:
        there = self.mine.snapshots.keys() | {ref.id for ref in self.mine.tags.values()}
        if lost := self.pins - there:
            raise RefusedError(
                f"snapshot {min(lost)} is to be protected, and does not exist",
                table=self.layout.uri,
                version=self.newest,
                next_step="take it out of the protected versions (protected_versions, --protect-version) if it is "
                "given up",
            )

    def protected(self) -> tuple[str, ...]:
        """Each pinned snapshot, with the number of files that it names."""
        every = {ref.id: ref for ref in (*self.mine.tags.values(), *self.mine.snapshots.values())}
        pinned = sorted(self.pins)
        found = self.needed.reach.reached([every[number] for number in pinned if number in every])
        sizes = [len(each.data) + len(each.named) for each in found]
        return tuple(f"{expiry.pinned(n)}: {size:,} files" for n, size in zip(pinned, sizes, strict=True))

    def _rest(self, ground: Ground) -> Rest:
        """What becomes of changelogs when ``expired`` does."""
        changelogs, mine = self.retention.changelogs, ground.branches[self.layout.branch]
        if changelogs is None:
            return NOTHING
        rules = Rules(self.now - changelogs.kept_for, changelogs.least, changelogs.most)
        rest = rest_of(self.layout, mine, self.expired, rules, ground.consumers, deltas=self.deltas)
        check_room(self.layout, mine, rest.left)
        return rest

    def take_in(self, ground: Ground) -> None:
        """All that any snapshot, tag or changelog needs that does not go, or is about to be left behind.

        Raises
        ------
        MovedError : one of them lacks a file. It may be about to be expired by somebody else.
        """
        try:
            self.needed.take_in(self._needing(ground))
        except MissingError as missing:
            raise MovedError(self._missing(missing)) from None

    def _needing(self, ground: Ground) -> Iterable[tuple[Ref, str]]:
        """Everything that needs files, the branch's own first."""
        mine, why, expired = ground.branches[self.layout.branch], self._why(ground), set(self.expired)
        for number, ref in reversed(list(mine.snapshots.items())):
            if number not in expired:
                yield ref, why.get(number, expiry.RECENT)
        yield from ((ref, TAGGED) for ref in mine.tags.values())
        for name, branch in ground.branches.items():
            if name != self.layout.branch:
                yield from ((ref, BRANCHED) for ref in (*branch.snapshots.values(), *branch.tags.values()))
                yield from ((ref, CHANGELOG) for ref in branch.changelogs.values())
        yield from ((ref, CHANGELOG) for ref in self._changelogs(mine).values())

    def _changelogs(self, mine: Branch) -> Mapping[int, Ref]:
        """Those of the branch itself that there will be."""
        every = {**self.rest.left, **mine.changelogs}
        return {number: ref for number, ref in every.items() if number not in self.rest.outdated}

    def _why(self, ground: Ground) -> Mapping[int, str]:
        stamps = _stamps(ground.branches[self.layout.branch])
        return expiry.reasons(stamps, self.rules, self._holding(ground), self.pins) if stamps else {}

    def _names(self) -> Names:
        """Of all that is needed. Snapshots and changelogs are, too: next to them there may be checksums of them."""
        why = self._why(self.ground)
        own = {f"snapshot-{number}": reason for number, reason in why.items() if number not in self.expired}
        own |= {f"changelog-{number}": CHANGELOG for number in self._changelogs(self.mine)}
        return self.needed.names(own)

    def _missing(self, missing: MissingError) -> DvMaintenanceError:
        if not self.storage.exists(missing.ref.path):
            return self.conflict(f"{missing.ref.path} was deleted while its manifests were read")
        return DamagedTableError(
            f"{missing}, so that nobody knows which files are needed",
            table=self.layout.uri,
            version=missing.ref.id,
            next_step="run again, if another process may be expiring that snapshot right now; else restore the file, "
            "or delete what needs it with Paimon itself",
        )

    # -- held against what others did -------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Right before anything goes. Raises MovedError."""
        after = look(self.layout, self.ground)
        mine = after.branches[self.layout.branch]
        if reason := moved(self.mine, mine):
            raise MovedError(self.conflict(reason))
        first = first_kept(_stamps(mine), self.rules, self._holding(after))
        self.expired = [number for number in self.expired if number < first and number in mine.snapshots]
        rest, planned = self._rest(after), self.rest
        # What others left meanwhile waits for the next run: nobody has looked for what only it needs.
        going = rest.outdated & (planned.outdated | rest.left.keys())
        first = min((rest.left.keys() | mine.changelogs.keys()) - going, default=0)
        self.rest = Rest(rest.left, frozenset(number for number in going if number < first))
        self.take_in(after)
        self.ground = after

    def rely_on(self, ground: Ground) -> None:
        """Once snapshots and changelogs are gone, whatever is there is needed."""
        self.ground, self.expired, self.rest = ground, [], NOTHING
        self.take_in(ground)

    def unneeded(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """Those of the files that are not needed by now either; notes why the others stay."""
        taken = len(self.needed.taken)
        if taken == self.checked:
            return list(files)
        if self.known is None or self.known[0] != taken:
            self.known = (taken, self._names())
        needed = self.known[1]
        codes = needed.codes_of(strings(self._keys(files))).to_pylist()
        self.kept.update(needed.whys[code] for code in codes if code is not None)
        return [file for file, code in zip(files, codes, strict=True) if code is None]

    @staticmethod
    def _keys(files: Iterable[ExpiredFile]) -> list[str]:
        """What manifests know the files by."""
        paths = (unquote(file.path) if "://" in file.path else file.path for file in files)
        return [file_key(path.rpartition("/")[2]) for path in paths]

    def verify(self, files: Sequence[ExpiredFile]) -> None:
        """Gates of their own, whatever was reckoned: what readers find in the newest snapshot is not among the files,
        and is there. Where a name is damaged, the file that it was the name of may look like one that nobody needs.
        """
        newest, options = self.mine.snapshots[self.mine.newest], self.schema.options
        partitions = Partitions(self.schema.partition_fields(), options)
        try:
            file = parse_snapshot(Document.parse(self.layout.uri, newest.path, newest.data))
            live = live_entries(self.layout, file, partitions).entries["file_name"].combine_chunks()
            index = read_index_manifest(self.layout, file.index_manifest, partitions, options, file.id)
        except DamagedTableError:
            if is_there(self.storage, newest):
                raise
            raise MovedError(self.conflict(f"{newest.path}, its newest snapshot, vanished")) from None
        self._check_there(newest)
        used = pc.is_in(strings(self._keys(files)), value_set=live).to_pylist()
        indexes = {each.path for each in index.files}
        for each, is_used in zip(files, used, strict=True):
            if is_used or each.path in indexes:
                raise VerificationError(
                    f"{each.path} was about to be deleted, and the newest snapshot needs it",
                    table=self.layout.uri,
                    version=self.newest,
                )

    def _check_there(self, newest: Ref) -> None:
        """Look for those data files of the newest snapshot that the listing lacks; without one, for none."""
        if self.lite or self.layout.branch is not None:
            return
        reach = self.needed.reach
        (reached,) = reach.reached([newest])
        listed = pc.is_in(reach.names(reached.data), value_set=self.listed["key"].combine_chunks())
        # What was committed since is not in the listing.
        for file in reach.files(reached.data[~listed.to_numpy(zero_copy_only=False)]):
            if file.external or file.folder is None or self.storage.exists(f"{file.folder}/{file.name}"):
                continue
            if not is_there(self.storage, newest):
                raise MovedError(self.conflict(f"{newest.path}, its newest snapshot, vanished"))
            raise DamagedTableError(
                f"{file.folder}/{file.name}, which the newest snapshot needs, does not exist: nothing is deleted "
                "before it is known why",
                table=self.layout.uri,
                version=newest.id,
                next_step="restore the file, or roll the table back; CALL sys.remove_unexisting_files gives it up",
            )

    def conflict(self, what: str) -> ConflictError:
        return ConflictError(
            f"the table changed while it was cleaned up: {what}", table=self.layout.uri, version=self.newest
        )


def check_options(layout: Layout, schema: Schema, retention: int | None, *, allow_short: bool) -> Retention:
    check_known_kind(schema, layout.uri)
    if ".." in schema.options.get("data-file.path-directory", "").split("/"):
        raise RefusedError(
            "data-file.path-directory leads out of the table",
            table=layout.uri,
            next_step="give it a folder below the table, or maintain the table with Paimon itself",
        )
    return retention_of(schema.options, layout.uri, retention, allow_short=allow_short)


def is_there(storage: Storage, ref: Ref) -> bool:
    """Whether a snapshot, a tag or a changelog still is what was read."""
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
