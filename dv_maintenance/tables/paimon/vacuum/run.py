"""Vacuum a Paimon table: expire snapshots, and delete the files that no snapshot needs.

``holders`` reads the references (snapshots, tags, changelogs of every branch), ``decision`` decides which of them go
(``expiry``, ``changelogs``), ``reached`` resolves them to files (``references``), ``files`` lists the folders, and
``verification`` checks the outcome independently. A file is deleted if an expiring snapshot needed it, or if it is old
and no snapshot ever named it. In both cases, no kept snapshot, tag or changelog of any branch may need it.

**Order of steps.**

1. List the files. Files that are written later are not candidates.
2. Read the references and resolve them to needed files.
3. Read the references again, then delete the snapshot files one by one, oldest first, so that no gap appears.
4. Update the hint.
5. Delete the other files in batches. Read the references again before each batch.

A crash leaves files that nothing needs, never a snapshot without its files.

If changes outlive their snapshots (``changelogs``), each snapshot's changelog is written before the snapshot is
deleted, as in Paimon. After a crash, both may exist, which any later expiry repairs. Changelogs that are too old are
deleted after all snapshots, oldest first, so that they have no gap either.

**Concurrent processes.** The references are read once more after the snapshot files are deleted. From then on no other
process can lose a file:

* A *commit* builds on the newest snapshot, which is never deleted. Of the files that existed before, it can only name
  those that are live in that snapshot. It has written all other files itself, and no expired snapshot named them.
* A *tag*, *branch*, *rollback* or *fast-forward* names the files of a snapshot, tag or branch that it found. If it
  found an expired snapshot, it did so before that snapshot file was deleted. So the next read of the references sees
  the new reference, and its files are kept. There is one exception, as in Paimon's own expiry: a process that reads the
  snapshot before its deletion, but writes its own file only after the next read of the references. To avoid this, it
  has the time that the deletion of all snapshot files takes.
* A *rollback* deletes snapshots from the newest downwards, a vacuum from the oldest upwards. The newest snapshot must
  exist before each deletion. If both still meet, the target of the rollback is the snapshot that was deleted last. It
  is restored, and its files still exist, because the references are read before files are deleted. A snapshot file that
  was rolled back and rewritten differs from the one that was read, and is kept. On local disk, this check is exact;
  elsewhere, a short window remains between reading the file and deleting it.
* Another *expiry* may delete more of the oldest snapshots, never the newest. It invalidates a plan only if it deleted
  the newest snapshot that the plan saw (apache/paimon#7710). Then everything is read again. The last read of the
  references covers all snapshots that exist by then, including new commits.
* Another expiry also writes and deletes changelogs. If it wrote a changelog that differs from this run's, the run stops
  before it deletes the snapshot. If another process deletes the snapshot while this run writes its changelog, the run
  may withdraw that changelog, because Paimon fails at gaps. It does so if the process has expired changelogs of that
  age, or has rolled the snapshot back. All changelogs that the last read of the references finds are needed.
* A *reader* of an expired snapshot is protected by the retention, see ``expiry``.
* A *writer* that has not committed yet is recognized only by the age of its files. To any other process, they are
  orphans.

If the newest snapshot that was read is rolled back or replaced during the run, the run stops and reports what it has
done. The files of a table do not show whether a REST catalog owns it: name such a table by its catalog, whose server is
then asked for snapshots, tags, branches and consumers, each time that the references are read (``served``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import ConflictError, DvMaintenanceError, RefusedError
from dv_maintenance.storage import FileInfo, Storage
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.model import ExpiredFile
from dv_maintenance.tables.paimon.features import Options, check_known_kind
from dv_maintenance.tables.paimon.layout import Layout, table_layout
from dv_maintenance.tables.paimon.log.schema import Schema, newest_schema
from dv_maintenance.tables.paimon.vacuum.decision import Decision, MovedError, Terms, conflict, decide
from dv_maintenance.tables.paimon.vacuum.files import list_files
from dv_maintenance.tables.paimon.vacuum.holders import Branch, Holders, moved, read_holders
from dv_maintenance.tables.paimon.vacuum.reached import Reached, external_roots, key_of
from dv_maintenance.tables.paimon.vacuum.references import Named, ReferenceReader
from dv_maintenance.tables.paimon.vacuum.removal import ROLLED_BACK, Removal
from dv_maintenance.tables.paimon.vacuum.retention import Retention, retention_of
from dv_maintenance.tables.paimon.vacuum.served import with_served
from dv_maintenance.tables.paimon.vacuum.verification import verify
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.reach.needed import pinned
from dv_maintenance.tables.reach.unneeded import KnownFile, divided, unneeded
from dv_maintenance.tables.reports import VacuumReport
from dv_maintenance.tables.vacuum import Plan, Sweep, run
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.served import ServedTable, Target

LEFT: Final = "kept as the changelog of a snapshot that expires"
YOUNG: Final = "in no snapshot, but young: a writer may be about to commit"
FOREIGN: Final = "not named like a file of Paimon's, or readable only by Paimon"
NO_SNAPSHOT: Final = "in a table without a snapshot: what a writer is about to commit is unknown"
_ATTEMPTS: Final = 3  # number of plans before a run gives up because of concurrent changes


def vacuum(target: Target, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
    """Delete snapshots that were superseded before the retention began, files that only they needed, and old files that
    nothing needs.

    target : the table, or a branch. For a branch, only its own snapshots expire.
    request : its retention is by default the table's ``snapshot.time-retained``, or an hour. ``lite`` only expires
        snapshots with their files, without a listing.

    All expired snapshots are deleted: ``snapshot.expire.limit`` only limits the expiry inside a commit.

    Cost: lists each bucket, and reads every manifest of every snapshot and tag once.

    Raises
    ------
    UsageError : the retention is negative.
    RefusedError : the retention is below the table's own (unless ``allow_short_retention``); an option is invalid; or a
        changelog would overwrite a different one.
    UnsupportedFeatureError : a file refers to other files in an unknown way.
    DamagedTableError : a file that refers to needed files cannot be read. Nothing was deleted unless the message says
        so.
    ConflictError : the table was rolled back or replaced during the run, or others expire it faster than it can be
        read.
    StorageError : some files could not be deleted; the message says how many were.
    """
    layout = table_layout(target.place)
    request.guard.refuse_streams(
        "Paimon", table=layout.uri, next_step="give streaming readers a consumer-id: it is respected"
    )
    attempts, now = 0, request.moment
    while True:
        attempts += 1
        schema = newest_schema(layout)
        retention = _retention(layout, schema, request.retention, allow_short=request.allow_short_retention)
        shown = Options(schema.options, bool(schema.primary_keys)).elsewhere(layout.branch)
        terms = Terms(layout, retention, now, frozenset(request.guard.versions), shown)
        try:
            return run(_Rules(terms, schema, request, target.server), request.guard, dry_run=request.dry_run, now=now)
        except MovedError as error:
            if attempts == _ATTEMPTS:
                raise error.final from error


def check_cleanable(layout: Layout) -> None:
    """Check what can be checked without reading the whole table: kind, folders and retention options.

    Raises
    ------
    RefusedError, UnsupportedFeatureError, DamagedTableError : as :func:`vacuum`.
    """
    _retention(layout, newest_schema(layout), None, allow_short=False)


def _retention(layout: Layout, schema: Schema, asked: int | None, *, allow_short: bool) -> Retention:
    check_known_kind(schema, layout.uri)
    if ".." in schema.options.get("data-file.path-directory", "").split("/"):
        raise RefusedError(
            "data-file.path-directory points outside the table",
            table=layout.uri,
            next_step="set it to a folder below the table, or maintain the table with Paimon itself",
        )
    return retention_of(schema.options, layout.uri, asked, allow_short=allow_short)


@dataclass(slots=True)
class _Rules:
    """Paimon's part of a vacuum run.

    version : id of the newest snapshot when the plan was made.
    listed : the files of the table; none for a lite vacuum.
    decision : the newest one. After the deletion of snapshots and changelogs, everything that is left is kept.
    orphans : paths of files that no existing snapshot named.
    """

    terms: Terms
    schema: Schema
    request: VacuumRequest
    server: ServedTable | None = None
    version: int = 0
    listed: list[tuple[FileInfo, KnownFile]] = field(default_factory=list)
    decision: Decision = field(init=False)
    reached: Reached = field(init=False)
    kept: Counter[str] = field(default_factory=Counter)
    orphans: frozenset[str] = frozenset()
    removal: Removal = field(init=False)

    def __post_init__(self) -> None:
        self.reached = Reached(ReferenceReader(self.layout, self.schema))

    def holders(self, before: Holders | None = None) -> Holders:
        found = read_holders(self.layout, before)
        return found if self.server is None else with_served(self.layout, found, self.server)

    @property
    def layout(self) -> Layout:
        return self.terms.layout

    @property
    def storage(self) -> Storage:
        return self.layout.storage

    @property
    def table(self) -> str:
        return self.layout.uri

    @property
    def branch(self) -> Branch:
        return self.decision.branch

    # -- planning --------------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Snapshots first, oldest first."""
        if not self.request.lite:
            self.listed = list_files(self.layout, self.schema)
        holders = self.holders()
        self.decision = Decision(self.terms, holders)
        files: list[ExpiredFile] = []
        if self.branch.snapshots:
            files = self._expired(holders)
        else:
            self.kept[NO_SNAPSHOT] = len(self.listed)
        kept_for = self.terms.retention.kept_for
        stored, protected = self._stored(files), self._protected()
        return Plan(self.version, self.terms.now - kept_for, kept_for, files, stored, protected=protected)

    def _expired(self, holders: Holders) -> list[ExpiredFile]:
        self.version = self.branch.newest
        there = self.branch.snapshots.keys() | {ref.id for ref in self.branch.tags.values()}
        self.request.guard.check_versions(there, "snapshot", table=self.table, version=self.version)
        self.decision = decide(self.terms, holders)
        changelogs, snapshots = self.decision.changelogs, self.branch.snapshots
        self.kept[LEFT] = len(changelogs.to_write.keys() - changelogs.to_delete)
        self.reached.add(self.decision, self.version)
        going = [snapshots[number] for number in self.decision.expired]
        going += [ref for number, ref in self.branch.changelogs.items() if number in changelogs.to_delete]
        named = self.reached.expired(going, self.kept)
        past = self._existing([file for file in named if self.reached.needed.why(file.name) is None])
        orphans: list[ExpiredFile] = []
        if self.request.lite:
            self.kept.update(self.reached.needed.count())
        else:
            self.kept.update(self.decision.reasons().values())
            orphans = self._orphans({file.path for file in past})
        self.orphans = frozenset(file.path for file in orphans)
        others = sorted([*past, *orphans], key=lambda file: (file.kind, file.path))
        return [*(ExpiredFile(ref.path, "manifest", len(ref.data), ref.timestamp) for ref in going), *others]

    def _existing(self, files: Sequence[Named]) -> list[ExpiredFile]:
        """The files that exist, with size and time: from the listing if it covers them, else by one request each."""
        listed = {info.path: info for info, _ in self.listed}
        full = not self.request.lite and self.layout.branch is None

        def info(file: Named) -> FileInfo | None:
            path = str(file.path)
            if path in listed:
                return listed[path]
            if (full and "://" not in path) or self.storage.beyond_link(path):
                return None
            return self.storage.info(path)

        found = in_parallel(self.storage, files, info)
        return [
            ExpiredFile(each.path, file.kind, each.size, each.modified)
            for file, each in zip(files, found, strict=True)
            if each is not None
        ]

    def _orphans(self, past: Collection[str]) -> list[ExpiredFile]:
        """The listed files that are old and not needed. Counts why other files are kept."""
        rest = [file for file in self.listed if file[0].path not in past]
        rest = unneeded(rest, lambda file: self.reached.needed.why(file[1].key), self.kept)
        found = divided(rest, self.terms.now - self.terms.retention.orphan_age)
        self.kept.update({YOUNG: found.young, FOREIGN: found.foreign})
        return found.expired

    def _stored(self, files: Sequence[ExpiredFile]) -> tuple[int, int | None]:
        """How many files and bytes exist, including ``files``. Without a listing, the bytes are unknown."""
        if self.request.lite:
            return self.kept.total() + len(files), None
        sizes = {file.path: file.size for file in files} | {info.path: info.size for info, _ in self.listed}
        return len(sizes), sum(sizes.values())

    def _protected(self) -> tuple[str, ...]:
        """One line for each pinned snapshot, with the number of files that it needs."""
        every = {ref.id: ref for ref in (*self.branch.tags.values(), *self.branch.snapshots.values())}
        pins = sorted(self.terms.pins & every.keys())
        found = self.reached.reader.resolve([every[number] for number in pins])
        sizes = (len(each.data) + len(each.named) for each in found)
        return tuple(f"{pinned(n, 'snapshot')}: {count(size, 'file')}" for n, size in zip(pins, sizes, strict=True))

    def unexplained(self, files: Sequence[ExpiredFile]) -> Sequence[ExpiredFile]:
        return [file for file in files if file.path in self.orphans]

    # -- removing --------------------------------------------------------------------------------------------------

    def remove(self, plan: Plan, sweep: Sweep) -> int:
        before = self.decision
        self.removal = removal = Removal(self.layout, self.version, sweep)
        snapshots = {before.branch.snapshots[number].path: number for number in before.expired}
        changelogs = {ref.path: number for number, ref in before.branch.changelogs.items()}
        self.decision = before.again(self.holders(before.holders))
        self.reached.add(self.decision, self.version)
        files = sweep.still(plan.files)
        listed = {known.key for _, known in self.listed}
        full = not self.request.lite and self.layout.branch is None
        newest = self.branch.snapshots[self.branch.newest]
        verify(self.reached.reader, newest, files, listed if full else None, version=self.version)
        try:
            expired, going = set(self.decision.expired), self.decision.changelogs.to_delete
            removal.delete_snapshots(self.decision, [file for file in files if snapshots.get(file.path) in expired])
            removal.delete_changelogs(self.decision, [file for file in files if changelogs.get(file.path) in going])
            self.storage.fence.outside = tuple(external_roots(self.schema.options))
            failure = sweep.remove(
                [file for file in files if file.path not in snapshots and file.path not in changelogs]
            )
        except MovedError as error:
            # Files were deleted: too late to plan again.
            error.final.done = removal.done(len(files))
            raise error.final from error
        except DvMaintenanceError as error:
            error.table, error.done = error.table or self.table, error.done or removal.done(len(files))
            raise
        if failure is not None:
            failure.done = removal.done(len(files))
            failure.next_step = (
                "run again: the remaining files are deleted once they are old enough for files without a snapshot"
            )
            raise sweep.failed(failure, plan)
        return plan.version

    def why(self, file: ExpiredFile) -> str | None:
        return self.reached.needed.why(key_of(file))

    def _conflict(self, what: str) -> ConflictError:
        return conflict(self.layout, self.version, what)

    def refresh(self) -> None:
        """Read what keeps files again, after snapshots and changelogs are deleted, and keep all files that it needs."""
        try:
            after = self.holders(self.decision.holders)
        except DvMaintenanceError:
            if self.removal.put_back():
                raise self._conflict(ROLLED_BACK) from None
            raise
        own = after.branches[self.layout.branch]
        reason = moved(self.branch, own)
        # Another expiry may delete any snapshots if newer ones remain. The newer ones have just been read.
        if reason and not (own.newest > self.branch.newest and self.branch.newest not in own.snapshots):
            raise self._conflict(ROLLED_BACK if self.removal.put_back() else reason)
        self.decision = Decision(self.terms, after)
        self.reached.add(self.decision, self.version)
