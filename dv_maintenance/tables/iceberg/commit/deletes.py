"""Delete rows: a file that keeps rows gets one new deletion vector, which has the rows of the one before; others go.

Format: Iceberg specification, Deletion Vectors: at most one for a data file in a snapshot, and old position deletes of
that file are part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import VerificationError
from dv_maintenance.tables.iceberg.commit.publish import Draft, NewDv, publish
from dv_maintenance.tables.iceberg.commit.rewrites import Row, live_rows, stored_dv
from dv_maintenance.tables.iceberg.commit.unneeded import unneeded_deletes
from dv_maintenance.tables.iceberg.rows.rewrite_tasks import output_folder
from dv_maintenance.tables.rows import ChangesOutcome, DeletedRows, RowChanges, rehearsed

if TYPE_CHECKING:
    from dv_maintenance.tables.iceberg.layout import Layout
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot

__all__ = ["commit_deletes"]


def commit_deletes(
    layout: Layout,
    base: IcebergSnapshot,
    changes: RowChanges,
    *,
    operation: Mapping[str, Any],
    reads: Callable[[IcebergSnapshot], bool],
    max_attempts: int = 10,
    dry_run: bool = False,
) -> ChangesOutcome:
    """Commit the deletion of rows, see ``RowLevelTable.commit_changes``. Like Iceberg's own, it is a ``delete``
    snapshot.

    The outcome is a conflict if another writer removed a file that loses rows, changed which of its rows are deleted by
    position, or rolled the table back. Concurrent appends are ordered after the delete.

    Raises
    ------
    VerificationError : the changes contradict the snapshot; nothing was committed.
    ConflictError, StorageError, DamagedTableError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    del operation, reads  # the specification has no place for the one, and appends are ordered after the delete
    if changes.added or changes.change_files:
        raise _wrong(base, "this release commits only deletions to Iceberg tables, not new rows")
    if not changes.deleted:
        return ChangesOutcome(None, 0)
    if dry_run:
        layout = layout.at(rehearsed(layout.storage, changes))
    commit = _Commit(layout, base, _deletions(layout, base, changes.deleted))
    published = publish(layout, base, commit.compose, writes="delete", max_attempts=max_attempts)
    if published.version is None:
        return ChangesOutcome(None, published.attempts, conflict=commit.conflict)
    whole = sum(each.deleted is None for each in commit.deletions)
    return ChangesOutcome(
        published.version,
        published.attempts,
        rows_deleted=None
        if any(each.fresh is None for each in commit.deletions)
        else sum(each.fresh or 0 for each in commit.deletions),
        files_removed=whole,
        dvs_added=len(commit.deletions) - whole,
        dvs_removed=sum(each.row["dv_file"] is not None for each in commit.deletions),
    )


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A file that loses rows.

    deleted : all rows that are deleted by position after the commit; ``None`` if the whole file is removed.
    fresh : number of rows that this commit deletes; ``None`` if equality deletes make it unknown.
    """

    row: Row
    deleted: DeletionVector | None
    fresh: int | None


def _deletions(layout: Layout, base: IcebergSnapshot, deleted: Sequence[DeletedRows]) -> list[_Deletion]:
    paths = [each.key.path for each in deleted]
    if len(set(paths)) < len(paths):
        raise _wrong(base, "two deletions share a file")
    live = live_rows(base, set(paths))
    for each in deleted:
        if each.key.path not in live or live[each.key.path]["dv_id"] != each.key.dv_id:
            raise _wrong(base, f"{each.key.path} is not live with the deletes that it was read with")
    return [_deletion(layout, base, live[each.key.path], each) for each in deleted]


def _deletion(layout: Layout, base: IcebergSnapshot, row: Row, each: DeletedRows) -> _Deletion:
    path, rows = row["path"], row["record_count"]
    before = stored_dv(layout, base, row)
    if each.positions is None:
        return _Deletion(row, None, None if row["equality_deletes"] else rows - len(before))
    if each.rows is not None and each.rows != rows:
        raise _wrong(base, f"{path} was read as {each.rows} rows, but its manifest records {rows}")
    if not each.positions or each.positions.max() >= rows:
        raise _wrong(base, f"the positions to delete are not within the {rows} rows of {path}")
    deleted = before | each.positions
    if len(deleted) != len(before) + len(each.positions):
        raise _wrong(base, f"rows to delete in {path} were already deleted when it was read")
    return _Deletion(row, None if len(deleted) == rows else deleted, len(each.positions))


def _wrong(base: IcebergSnapshot, what: str) -> VerificationError:
    return VerificationError(what, table=base.table, version=base.version, next_step="report this as a bug")


@dataclass(slots=True)
class _Commit:
    layout: Layout
    base: IcebergSnapshot
    deletions: Sequence[_Deletion]
    conflict: str = ""

    def compose(self, now: IcebergSnapshot) -> Draft | None:
        found = live_rows(now, {each.row["path"] for each in self.deletions})
        changed = (_changed(each.row, found.get(each.row["path"])) for each in self.deletions)
        self.conflict = now.strange_after(self.base) or next(filter(None, changed), "")
        if self.conflict:
            return None
        removed = frozenset(each.row["path"] for each in self.deletions if each.deleted is None)
        dvs = tuple(
            NewDv(each.row["path"], each.deleted, each.row["partition_code"])
            for each in self.deletions
            if each.deleted is not None
        )
        folder = output_folder(self.layout, now, dvs[0].path) if dvs else ""
        gone = unneeded_deletes(now, removed, (), {each.path for each in dvs})
        return Draft("delete", removed, gone, (), dvs, folder)


def _changed(before: Row, now: Row | None) -> str:
    """How another writer changed the file; "" if its rows are unchanged, those aside that equality deletes delete."""
    if now is None:
        return f"another writer removed {before['path']}, from which rows are to be deleted"
    names = ("dv_file", "dv_offset", "deleted_rows")
    same = all(before[name] == now[name] for name in names)
    return "" if same else f"another writer deleted rows of {before['path']}, from which rows are to be deleted"
