"""Commits that change rows: DELETE, UPDATE and MERGE with deletion vectors, checked against concurrent commits.

Format: Iceberg specification, Deletion Vectors: at most one for a data file in a snapshot, and old position deletes of
that file are part of it. A file that keeps rows gets a new one, which has the rows of the one before; others go.

In format version 2 a position delete file takes the place of the vector. It, too, has the rows of the one before, so
that a data file has one at most. Delete files of other writers that name several data files stay, with their rows.

Two writers that touch one file need not conflict: only the rows that each of them deleted matter. A DELETE may meet a
row that is deleted already; an UPDATE of such a row would bring it back. Files that other writers added hold rows that
the operation has not seen: what these mean is a property of the table (``write.delete.isolation-level`` and so on).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.tables.gates import check_stored, wrong
from dv_maintenance.tables.iceberg.commit.deletes import NewDv
from dv_maintenance.tables.iceberg.commit.manifests import NewEntry
from dv_maintenance.tables.iceberg.commit.metrics import file_record, format_of_file
from dv_maintenance.tables.iceberg.commit.publish import Draft, publish
from dv_maintenance.tables.iceberg.commit.rewrites import Row, deletes_of, live_rows, stored_dv
from dv_maintenance.tables.iceberg.commit.unneeded import unneeded_deletes
from dv_maintenance.tables.iceberg.log.manifests import DATA
from dv_maintenance.tables.iceberg.rows.transforms import NewPartitions
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.publish import before_the_commit
from dv_maintenance.tables.rows import AddedFile, ChangesOutcome, DeletedRows, RowChanges, rehearsed

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot


def commit_changes(
    layout: Layout,
    base: IcebergSnapshot,
    changes: RowChanges,
    *,
    operation: Mapping[str, Any],
    reads: Callable[[IcebergSnapshot], bool],
    max_attempts: int = 10,
    dry_run: bool = False,
) -> ChangesOutcome:
    """Commit row changes on top of everything committed since ``base``, see ``RowLevelTable.commit_changes``. As with
    Iceberg's own, the snapshot is an ``append``, a ``delete`` or an ``overwrite``.

    The outcome is a conflict if another writer rewrote or removed a file that loses rows, brought rows back, changed
    the schema or the partition specification of new rows, or rolled the table back; for an UPDATE or MERGE, if it
    deleted the same rows. Under the isolation level ``serializable``, Iceberg's default, also if it added files for
    which ``reads`` is true.

    Raises
    ------
    VerificationError : the changes contradict the snapshot; nothing was committed.
    ConflictError, StorageError, DamagedTableError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    if not (changes.deleted or changes.added):
        return ChangesOutcome(None, 0)
    if dry_run:
        layout = layout.at(rehearsed(layout.storage, changes))
    name = str(operation["name"])
    with before_the_commit():
        commit = _Commit(layout, base, changes, name, reads, dry_run=dry_run)
        commit.verify()
    published = publish(layout, base, commit.compose, writes=name.lower(), max_attempts=max_attempts)
    return replace(commit.outcome, version=published.version, attempts=published.attempts)


class _Conflict(Exception):  # noqa: N818 - not an error: the operation is run again
    """The table's state is no longer the one that the operation read; the message says why."""


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A file that loses rows in one attempt.

    row : of the newest snapshot.
    deleted : all rows that are deleted by position after the commit; ``None`` if the whole file is removed.
    fresh : number of rows that this commit deletes; ``None`` if equality deletes make it unknown.
    """

    row: Row
    deleted: DeletionVector | None
    fresh: int | None


@dataclass(slots=True)
class _Commit:
    """The commit, decided again in each attempt. ``live``: the files that lose rows, at the base snapshot, by path."""

    layout: Layout
    base: IcebergSnapshot
    changes: RowChanges
    name: str
    reads: Callable[[IcebergSnapshot], bool]
    dry_run: bool
    outcome: ChangesOutcome = field(default_factory=lambda: ChangesOutcome(None, 0))
    live: Mapping[str, Row] = field(init=False)
    _added: tuple[NewEntry, ...] = ()
    _read: dict[FileKey, DeletionVector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.live = live_rows(self.base, {each.key.path for each in self.changes.deleted})

    # -- gates -----------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Refuse changes that can't be right, whatever other writers commit."""
        for what, names in (
            ("deletions share a file", [each.key.path for each in self.changes.deleted]),
            ("new files share a name", [each.output.uri for each in self.changes.added]),
        ):
            if len(set(names)) < len(names):
                raise wrong(self.base, f"two {what}")
        for each in self.changes.deleted:
            self._check(each)
        check_stored(self.layout.storage, self.base, [each.output for each in self.changes.added])
        partitions = NewPartitions.of(self.base.metadata)
        self._added = tuple(self._entry(each, partitions) for each in self.changes.added)

    def _check(self, each: DeletedRows) -> None:
        path, row = each.key.path, self.live.get(each.key.path)
        if row is None or row["dv_id"] != each.key.dv_id:
            raise wrong(self.base, f"{path} is not live with the deletes that it was read with")
        rows = row["record_count"]
        if each.positions is None:
            return
        if each.rows is not None and each.rows != rows:
            raise wrong(self.base, f"{path} was read as {each.rows} rows, but its manifest records {rows}")
        if not each.positions or each.positions.max() >= rows:
            raise wrong(self.base, f"the positions to delete are not within the {rows} rows of {path}")
        if each.positions & self._dv(self.base, row):
            raise wrong(self.base, f"rows to delete in {path} were already deleted when it was read")

    def _entry(self, new: AddedFile, partitions: NewPartitions) -> NewEntry:
        output, metadata = new.output, self.base.metadata
        path = f"{metadata.location.rstrip('/')}/{self.layout.storage.path_of_uri(output.uri)}"
        if self.dry_run:  # there is no footer to read
            kind = format_of_file(path)
            record: Mapping[str, Any] = {"100": path, "101": kind, "103": output.rows, "104": output.size}
        else:
            record = file_record(self.layout.storage, self.base, output, path)
        return NewEntry(DATA, (metadata.default_spec, partitions.values(new.partition)), None, record)

    # -- one attempt -----------------------------------------------------------------------------------------------

    def compose(self, now: IcebergSnapshot) -> Draft | None:
        self.outcome = ChangesOutcome(None, 0)
        try:
            self._check_unseen(now)
            found = live_rows(now, set(self.live))
            deletions = [one for each in self.changes.deleted if (one := self._deletion(each, now, found))]
        except _Conflict as conflict:
            self.outcome = ChangesOutcome(None, 0, conflict=str(conflict))
            return None
        if not deletions and not self._added:
            return None  # other writers have already deleted all of these rows
        removed = frozenset(each.row["path"] for each in deletions if each.deleted is None)
        dvs = tuple(
            NewDv(each.row["path"], each.deleted, now.partitions[each.row["partition_code"]].place)
            for each in deletions
            if each.deleted is not None
        )
        fresh, had = [each.fresh for each in deletions], set(now.of_one_file.values())
        self.outcome = ChangesOutcome(
            None,
            0,
            rows_deleted=None if None in fresh else sum(count or 0 for count in fresh),
            files_removed=len(removed),
            files_added=len(self._added),
            dvs_added=len(dvs),
            dvs_removed=sum(each.row["dv_file"] is not None or each.row["path"] in had for each in deletions),
        )
        return Draft(
            "delete" if not self._added else "overwrite" if deletions else "append",
            removed,
            unneeded_deletes(now, removed, (), {each.path for each in dvs}),
            self._added,
            dvs,
        )

    def _check_unseen(self, now: IcebergSnapshot) -> None:
        """Raise _Conflict if other writers added rows that the operation has not seen, but had to."""
        if strange := now.strange_after(self.base):
            raise _Conflict(strange)
        before, after = self.base.metadata, now.metadata
        if self._added and (before.current_schema, before.default_spec) != (after.current_schema, after.default_spec):
            raise _Conflict("another writer changed the table's schema or partition specification")
        level = after.properties.get(f"write.{self.name.lower()}.isolation-level", "serializable")
        since = [each.id for each in after.ancestors(now.version)]  # the base's follow it
        since = since[: since.index(self.base.version)] if self.base.version in since else since
        # A replacement moves rows, those that were added meanwhile too.
        moved = all(after.snapshots[number].operation in {"replace", "delete"} for number in since)
        if level.strip().lower() == "snapshot" or moved:
            return
        fresh = pc.invert(pc.is_in(now.files["path"], value_set=self.base.files["path"].combine_chunks()))
        if self.reads(replace(now, files=now.files.filter(fresh))):
            raise _Conflict("another writer added rows that the operation has to read")

    def _deletion(self, each: DeletedRows, now: IcebergSnapshot, found: Mapping[str, Row]) -> _Deletion | None:
        """The deletion from one file; ``None`` if other writers have already deleted all of its rows to delete."""
        old, new = self.live[each.key.path], found.get(each.key.path)
        if new is None:
            raise _Conflict(f"another writer removed or rewrote {each.key.path}")
        before = after = self._dv(self.base, old)
        if deletes_of(old) != deletes_of(new):
            after = self._dv(now, new)
            if before - after:
                raise _Conflict(f"another writer brought rows of {each.key.path} back")
        taken = after - before
        if self.name != "DELETE":
            equality = old["dv_id"] != new["dv_id"] and bool(new["equality_deletes"])
            if equality or (taken if each.positions is None else taken & each.positions):
                raise _Conflict(f"another writer deleted rows of {each.key.path} that this operation changes")
        rows = new["record_count"]
        if each.positions is None:
            return _Deletion(new, None, None if new["equality_deletes"] else rows - len(after))
        deleted = after | each.positions
        if len(deleted) == len(after):
            return None
        return _Deletion(new, None if len(deleted) == rows else deleted, len(deleted) - len(after))

    def _dv(self, snapshot: IcebergSnapshot, row: Row) -> DeletionVector:
        key = FileKey(row["path"], row["dv_id"])
        if key not in self._read:
            self._read[key] = stored_dv(self.layout, snapshot, row)
        return self._read[key]
