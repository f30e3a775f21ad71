"""Clean a Paimon table up: expire snapshots, and delete what no snapshot needs.

``expiry`` decides which snapshots go, ``ground`` tells what else there is, ``reach`` which files that needs,
``orphans`` what lies in the folders. A file goes if a snapshot that expires needed it, or if it is old and nothing ever
did; and if nothing else needs it: no snapshot, tag or changelog of any branch. What was once found to be needed stays.

**The order.** Files are listed first, so that what is written from then on is no candidate. What is needed is read
next. Then comes another look, and the snapshot files go, oldest first, one by one: what is left has no gap. Then the
hint; then, behind one more look in front of each batch, the other files. So a crash leaves files that nobody needs,
never a snapshot without its files.

**Others at work.** Why none of them can lose a file, once the snapshot files are gone and the look behind that is done:

* A *commit* builds on the newest snapshot, which never goes: of files that were there before, it can only name those
  that are live in it. All others it has written itself, and no snapshot that expired ever named them.
* A *tag*, a *branch*, a *rollback* or a *fast-forward* names what a snapshot, a tag or a branch names that it found.
  One that found an expired snapshot did so before its file was gone, so the look behind that sees it. What it needs
  stays. (One that read the snapshot before and writes its own file only after that look is not seen, as by Paimon's own
  expiry; it has the time of the whole sweep of snapshot files for that.)
* A *rollback* takes snapshots away from the newest down, while we take them from the oldest up. In front of each that
  goes, the newest must still be there. Should both have met all the same, the one that is rolled back to was the last
  that we took, and it is put back: none of its files is touched before the look behind it. A snapshot file that was
  rolled back and written anew is another one, and is left alone; on local disk for certain, elsewhere but for the blink
  of an eye between reading it and deleting it.
* Another *expiry* may take more of the oldest snapshots, never the newest. While a plan is made, it stops it only if it
  took the newest one that was seen (apache/paimon#7710): everything is read anew then. Behind the look, whatever
  snapshots there are have been read, those among them that came meanwhile included.
* A *reader* of an expired snapshot was warned by the retention, see ``expiry``.
* A *writer* that has not committed yet is known by nothing but the age of its files: they are orphans to anybody.

What was read of the newest snapshot, rolled back to an older one or replaced meanwhile, stops the run with what was
done so far. Nobody can tell from its files whether a REST catalog owns the table: there, run Paimon's own procedures.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    StorageError,
    VerificationError,
)
from dv_maintenance.storage import FileExistsAlreadyError, FileInfo, Storage, absolute_uri
from dv_maintenance.tables.arrays import strings
from dv_maintenance.tables.model import ExpiredFile, ExpiredFiles, VacuumResult
from dv_maintenance.tables.paimon import expiry
from dv_maintenance.tables.paimon.documents import Document
from dv_maintenance.tables.paimon.expiry import Rules, Stamp, first_kept
from dv_maintenance.tables.paimon.features import check_known_kind
from dv_maintenance.tables.paimon.ground import Branch, Ground, Ref, look, moved
from dv_maintenance.tables.paimon.index_manifest import read_index_manifest
from dv_maintenance.tables.paimon.layout import SNAPSHOT, Layout, numbered, table_layout
from dv_maintenance.tables.paimon.manifests import live_entries
from dv_maintenance.tables.paimon.needed import Names, Needed
from dv_maintenance.tables.paimon.orphans import LISTED, file_key, list_files
from dv_maintenance.tables.paimon.partitions import Partitions
from dv_maintenance.tables.paimon.reach import DataFile, MissingError, Named, Reach, is_external
from dv_maintenance.tables.paimon.retention import Retention, decoupled_by, retention_of
from dv_maintenance.tables.paimon.scalars import integer
from dv_maintenance.tables.paimon.schema import Schema, newest_schema
from dv_maintenance.tables.paimon.snapshots import parse_snapshot
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.sweep import delete_batch

__all__ = [
    "BRANCHED",
    "CHANGELOG",
    "FOREIGN",
    "NO_SNAPSHOT",
    "OUTSIDE",
    "TAGGED",
    "UNTOLD",
    "YOUNG",
    "check_cleanable",
    "vacuum",
]

TAGGED: Final = "in a tagged snapshot"
BRANCHED: Final = "in another branch"
CHANGELOG: Final = "in a changelog that outlives its snapshot"
YOUNG: Final = "in no snapshot, but young: a writer may be about to commit it"
FOREIGN: Final = "not named as Paimon names its files, or known to Paimon alone"
OUTSIDE: Final = "in an expired snapshot, but at no place outside of the table that its options name"
UNTOLD: Final = "in an expired snapshot, but in a partition whose folder cannot be told: it goes by its age"
NO_SNAPSHOT: Final = "in a table without a snapshot: nobody knows what a writer is about to commit"

# Plans made before others are too busy, and files deleted between two looks.
_ATTEMPTS: Final = 3
_BATCH: Final = 1000
_EXPIRE: Final = "CALL sys.expire_snapshots"
_ROLLED_BACK: Final = "it was rolled back to the snapshot that was just deleted, which is back in its place"


def vacuum(
    storage: Storage,
    *,
    retention: int | None = None,
    dry_run: bool = False,
    lite: bool = False,
    allow_short_retention: bool = False,
    now: int | None = None,
) -> VacuumResult:
    """Delete snapshots that were superseded before the retention, the files that only they needed, and old files that
    nothing needs. ``storage``: of the table; or of a branch, whose own snapshots then expire, and nothing else.

    ``retention``: milliseconds; by default the table's ``snapshot.time-retained``, or an hour. ``now``: epoch
    milliseconds, by default the clock. ``lite``: only what expires, without a listing. All that may go goes:
    ``snapshot.expire.limit`` is about commits that must not wait.

    Costs a listing of each bucket, and a read of every manifest that any snapshot or tag has, each once.

    Raises
    ------
    UsageError : ``retention`` is negative.
    RefusedError : ``retention`` is below the table's own (unless ``allow_short_retention``); an option makes no sense;
        changelogs outlive their snapshots.
    UnsupportedFeatureError : a file names others in a way that is not known here.
    DamagedTableError : a file that tells what is needed cannot be read. Nothing was deleted, unless it says so.
    ConflictError : the table was rolled back or replaced meanwhile, or others expire it faster than it can be read.
    StorageError : some files could not be deleted; says how many were.
    """
    layout = table_layout(storage)
    now = time.time_ns() // 1_000_000 if now is None else now
    attempts = 0
    while True:
        attempts += 1
        schema = newest_schema(layout)
        kept = _check_options(layout, schema, retention, allow_short=allow_short_retention)
        run = _Run(layout, schema, kept, now, lite=lite)
        try:
            files = run.plan()
            gone = files if dry_run else run.delete(files)
        except _MovedError as error:
            if attempts == _ATTEMPTS:
                raise error.final from error
            continue
        report = ExpiredFiles(run.newest, now - kept.kept_for, kept.kept_for, tuple(gone), dict(+run.kept))
        return VacuumResult(report, run.deleted, dry_run, run.newest, run.newest)


def check_cleanable(layout: Layout) -> None:
    """Whether a vacuum may touch the table, as far as that can be told without reading all of it.

    Raises
    ------
    RefusedError, UnsupportedFeatureError, DamagedTableError : as :func:`vacuum`.
    """
    schema = newest_schema(layout)
    _check_options(layout, schema, None, allow_short=False)
    _check_coupled(layout, schema, any(numbered(name, "changelog-") for name in layout.names("changelog")))


def _check_options(layout: Layout, schema: Schema, retention: int | None, *, allow_short: bool) -> Retention:
    check_known_kind(schema, layout.uri)
    if ".." in schema.options.get("data-file.path-directory", "").split("/"):
        raise RefusedError(
            "data-file.path-directory leads out of the table",
            table=layout.uri,
            next_step="give it a folder below the table, or maintain the table with Paimon itself",
        )
    return retention_of(schema.options, layout.uri, retention, allow_short=allow_short)


def _check_coupled(layout: Layout, schema: Schema, has_changelogs: bool) -> None:
    option = decoupled_by(schema.options, layout.uri)
    if option is None and not has_changelogs:
        return
    why = f"by {option}" if option else "as its folder of changelogs shows"
    raise RefusedError(
        f"changelogs of the table outlive their snapshots ({why}): what expires has to leave one behind, which is not "
        "done here",
        table=layout.uri,
        next_step=f"use Paimon itself: {_EXPIRE}, and sys.remove_orphan_files",
    )


class _MovedError(Exception):
    """The ground moved before anything was deleted: plan anew, and raise ``final`` when that does not help."""

    def __init__(self, final: DvMaintenanceError) -> None:
        super().__init__(final)
        self.final = final


@dataclass(slots=True)
class _Run:
    """One plan, and what came of it. ``checked``: how much was needed when files were last held against it."""

    layout: Layout
    schema: Schema
    retention: Retention
    now: int
    lite: bool
    newest: int = 0
    deleted: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    listed: pa.Table = field(default_factory=LISTED.empty_table)
    ground: Ground = field(init=False)
    needed: Needed = field(init=False)
    expired: list[int] = field(default_factory=list)
    checked: int = 0
    removed: list[Ref] = field(default_factory=list)  # snapshots that were deleted, oldest first
    planned: int = 0  # files to delete

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

    # -- the plan -------------------------------------------------------------------------------------------------

    def plan(self) -> list[ExpiredFile]:
        """What is to go, snapshots first, oldest first."""
        if not self.lite:
            data = self.schema.options.get("data-file.path-directory", "").strip("/")
            self.listed = list_files(self.layout, self.schema.partition_keys, data)
        self.ground = look(self.layout)
        _check_coupled(self.layout, self.schema, bool(self.mine.changelogs))
        if not self.mine.snapshots:
            self.kept[NO_SNAPSHOT] = self.listed.num_rows
            return []
        self.newest = self.mine.newest
        stamps = _stamps(self.mine)
        first = first_kept(stamps, self.rules, self.ground.consumers)
        self.expired = [stamp.id for stamp in stamps if stamp.id < first]
        self._take_in(self.ground, frozenset(self.expired))
        named = self._past([self.mine.snapshots[number] for number in self.expired])
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
        rest = sorted([*past, *orphans], key=lambda file: (file.kind, file.path))
        return [*(_snapshot_file(self.mine.snapshots[number]) for number in self.expired), *rest]

    def _past(self, refs: Sequence[Ref]) -> list[Named]:
        """Files that expired snapshots need, by their paths; without those of which a number is needed."""
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
        return found

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
        texts = [self.schema.options.get(key, "") for key in ("data-file.external-paths", "global-index.external-path")]
        roots = [absolute_uri(text.strip()) for text in ",".join(texts).split(",") if is_external(text.strip())]
        path = self.storage.path_of(spelled)
        parts = path.split("/")
        if "://" not in path or ".." in parts or parts[-1] != absolute_uri(f"file:///{name}").rpartition("/")[2]:
            return None
        return path if any(path.startswith(f"{root}/") for root in roots) else None

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
            if full and "://" not in path:
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

    def _take_in(self, ground: Ground, gone: frozenset[int]) -> None:
        """All that any snapshot, tag or changelog needs, but for the snapshots ``gone`` of the branch itself.

        Raises
        ------
        _MovedError : one of them lacks a file. It may be about to be expired by somebody else.
        """
        try:
            self.needed.take_in(_needing(ground, self.layout.branch, self._why(ground), gone))
        except MissingError as missing:
            raise _MovedError(self._missing(missing)) from None

    def _why(self, ground: Ground) -> Mapping[int, str]:
        stamps = _stamps(ground.branches[self.layout.branch])
        return expiry.reasons(stamps, self.rules, ground.consumers) if stamps else {}

    def _names(self) -> Names:
        """Of all that is needed. Snapshots are, too: next to them there may be checksums of them."""
        why = self._why(self.ground)
        own = {number: reason for number, reason in why.items() if number not in self.expired}
        return self.needed.names({f"snapshot-{number}": reason for number, reason in own.items()})

    def _missing(self, missing: MissingError) -> DvMaintenanceError:
        if not self.storage.exists(missing.ref.path):
            return self._conflict(f"{missing.ref.path} was deleted while its manifests were read")
        return DamagedTableError(
            f"{missing}, so that nobody knows which files are needed",
            table=self.layout.uri,
            version=missing.ref.id,
            next_step="run again, if another process may be expiring that snapshot right now; else restore the file, "
            "or delete what needs it with Paimon itself",
        )

    # -- deleting -------------------------------------------------------------------------------------------------

    def delete(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        """Delete them, but for what is needed by now. Returns what was to go in the end."""
        if not files:
            return []
        snapshots = {self.mine.snapshots[number].path: number for number in self.expired}
        self._look_again()
        if len(self.needed.taken) > self.checked:
            files = self._unneeded(files)
        self._verify(files)
        self.planned = len(files)
        gone: list[ExpiredFile] = []
        try:
            self._expire([file for file in files if snapshots.get(file.path) in self.expired], gone)
            failure = self._sweep([file for file in files if file.path not in snapshots], gone)
        except _MovedError as error:
            # Too late to plan anew.
            error.final.done = self._done()
            raise error.final from error
        except DvMaintenanceError as error:
            error.table, error.done = error.table or self.layout.uri, error.done or self._done()
            raise
        if failure is not None:
            failure.table, failure.version, failure.done = self.layout.uri, self.newest, self._done()
            failure.next_step = "run again: what is left is deleted once it is old enough for files without a snapshot"
            raise failure
        return gone

    def _done(self) -> str | None:
        if not self.deleted:
            return None
        until = f", snapshots up to {self.removed[-1].id} among them" if self.removed else ""
        return f"{self.deleted} of {self.planned} files deleted{until}; a later run deletes the others"

    def _verify(self, files: Sequence[ExpiredFile]) -> None:
        """A gate of its own: what readers find in the newest snapshot is not among the files, whatever was reckoned."""
        newest, options = self.mine.snapshots[self.mine.newest], self.schema.options
        partitions = Partitions(self.schema.partition_fields(), options)
        try:
            file = parse_snapshot(Document.parse(self.layout.uri, newest.path, newest.data))
            live = live_entries(self.layout, file, partitions).entries["file_name"].combine_chunks()
            index = read_index_manifest(self.layout, file.index_manifest, partitions, options, file.id)
        except DamagedTableError:
            if self._is_there(newest):
                raise
            raise _MovedError(self._conflict(f"{newest.path}, its newest snapshot, vanished")) from None
        used = pc.is_in(strings(self._keys(files)), value_set=live).to_pylist()
        indexes = {each.path for each in index.files}
        for each, is_used in zip(files, used, strict=True):
            if is_used or each.path in indexes:
                raise VerificationError(
                    f"{each.path} was about to be deleted, and the newest snapshot needs it",
                    table=self.layout.uri,
                    version=self.newest,
                )

    def _look_again(self) -> None:
        """Right before anything goes. Raises _MovedError."""
        after = look(self.layout, self.ground)
        mine = after.branches[self.layout.branch]
        if reason := moved(self.mine, mine):
            raise _MovedError(self._conflict(reason))
        _check_coupled(self.layout, self.schema, bool(mine.changelogs))
        first = first_kept(_stamps(mine), self.rules, after.consumers)
        self.expired = [number for number in self.expired if number < first]
        self._take_in(after, frozenset(self.expired))
        self.ground = after

    def _expire(self, files: Sequence[ExpiredFile], gone: list[ExpiredFile]) -> None:
        """Delete snapshot files, each only while the newest one is there, and move the hint."""
        refs = {ref.path: ref for ref in self.mine.snapshots.values()}
        newest = self.mine.snapshots[self.mine.newest]
        for file in files:
            if file.path not in refs:
                continue  # somebody else was faster
            if not self._is_there(newest):
                why = f"{newest.path}, its newest snapshot, vanished, or is another one now"
                raise self._conflict(_ROLLED_BACK if self._put_back() else why)
            removed = self._remove(refs[file.path])
            if removed is None:
                raise self._conflict(f"{file.path} is another one now")
            if removed:
                self.deleted += removed
                self.removed.append(refs[file.path])
            gone.append(file)
        if self.removed:
            first = min(number for number in self.mine.snapshots if number > self.removed[-1].id)
            self.storage.put(f"{self.layout.own}{SNAPSHOT}/EARLIEST", str(first).encode())

    def _remove(self, ref: Ref) -> int | None:
        """Delete a snapshot file; how many were there. ``None``: it is not what was read any more, and stays. On local
        disk that is certain: it is moved out of the way before it is looked at.
        """
        if not self.storage.is_local:
            if not self._is_there(ref) and self.storage.exists(ref.path):
                return None
            return self.storage.delete([ref.path])
        place = self.storage.local(ref.path)
        folder, name = os.path.split(place)
        aside = os.path.join(folder, f".{name}.{uuid4()}.tmp")
        try:
            try:
                os.rename(place, aside)
            except FileNotFoundError:
                return 0
            with open(aside, "rb") as file:
                same = file.read() == ref.data
            if not same:
                _move_back(aside, place)
            else:
                os.unlink(aside)
        except OSError as error:
            raise StorageError(f"cannot delete {ref.path}: {error.strerror}", table=self.layout.uri) from error
        return 1 if same else None

    def _is_there(self, ref: Ref) -> bool:
        try:
            return self.storage.get(ref.path) == ref.data
        except FileNotFoundError:
            return False

    def _sweep(self, files: Sequence[ExpiredFile], gone: list[ExpiredFile]) -> DvMaintenanceError | None:
        failure: DvMaintenanceError | None = None
        while files:
            self._catch_up()
            if len(self.needed.taken) > self.checked:
                files = self._unneeded(files)
            batch, files = files[:_BATCH], files[_BATCH:]
            count, failed = delete_batch(self.storage, [file.path for file in batch])
            self.deleted += count
            gone += batch
            failure = failure or failed
            if failed and not count:
                break  # nothing works any more
        return failure

    def _catch_up(self) -> None:
        """Look again, and take in what anything new needs."""
        try:
            after = look(self.layout, self.ground)
        except DvMaintenanceError:
            if self._put_back():
                raise self._conflict(_ROLLED_BACK) from None
            raise
        mine = after.branches[self.layout.branch]
        reason = moved(self.mine, mine)
        # Others may expire what they like, as long as they leave newer ones: those were read just now.
        if reason and not (mine.newest > self.mine.newest and self.mine.newest not in mine.snapshots):
            raise self._conflict(_ROLLED_BACK if self._put_back() else reason)
        self.ground, self.expired = after, []
        self._take_in(after, frozenset())

    def _unneeded(self, files: Sequence[ExpiredFile]) -> list[ExpiredFile]:
        self.checked = len(self.needed.taken)
        needed = self._names()
        codes = needed.codes_of(strings(self._keys(files))).to_pylist()
        self.kept.update(needed.whys[code] for code in codes if code is not None)
        return [file for file, code in zip(files, codes, strict=True) if code is None]

    @staticmethod
    def _keys(files: Iterable[ExpiredFile]) -> list[str]:
        """What manifests know the files by."""
        paths = (unquote(file.path) if "://" in file.path else file.path for file in files)
        return [file_key(path.rpartition("/")[2]) for path in paths]

    def _put_back(self) -> bool:
        """The last snapshot that was deleted, if none is left: somebody rolled back to it at that very moment."""
        if not self.removed or any(numbered(name, "snapshot-") for name in self.layout.names(SNAPSHOT)):
            return False
        with suppress(FileExistsAlreadyError):
            self.storage.create(self.removed[-1].path, self.removed[-1].data)
            self.removed.pop()
            self.deleted -= 1
        return True

    def _conflict(self, what: str) -> ConflictError:
        return ConflictError(
            f"the table changed while it was cleaned up: {what}", table=self.layout.uri, version=self.newest
        )


def _needing(
    ground: Ground, own: str | None, why: Mapping[int, str], gone: frozenset[int]
) -> Iterable[tuple[Ref, str]]:
    """Everything that needs files, the branch's own first."""
    mine = ground.branches[own]
    for number, ref in reversed(list(mine.snapshots.items())):
        if number not in gone:
            yield ref, why.get(number, expiry.RECENT)
    yield from ((ref, TAGGED) for ref in mine.tags.values())
    for name, branch in ground.branches.items():
        if name != own:
            yield from ((ref, BRANCHED) for ref in (*branch.snapshots.values(), *branch.tags.values()))
        yield from ((ref, CHANGELOG) for ref in branch.changelogs.values())


def _stamps(branch: Branch) -> list[Stamp]:
    return [Stamp(number, ref.timestamp) for number, ref in branch.snapshots.items()]


def _snapshot_file(ref: Ref) -> ExpiredFile:
    return ExpiredFile(ref.path, "manifest", len(ref.data), ref.timestamp)


def _move_back(aside: str, place: str) -> None:
    """Unless there is another one by now. Not every file system has links."""
    try:
        os.link(aside, place)
    except FileExistsError:
        pass
    except OSError:
        os.rename(aside, place)
        return
    os.unlink(aside)


def _count(values: pa.BooleanArray) -> int:
    return int(pc.sum(values).as_py() or 0)
