"""Delete rows from an append table: a file that keeps rows gets a larger deletion vector (DV), other files are removed,
unless data evolution keeps columns of their rows in further files.

The DVs that one commit writes for a partition and bucket share as few index files as the target size allows (PIP-16:
one delete file per write and bucket).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import VerificationError
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.paimon.commit.index_change import index_change, load_dv
from dv_maintenance.tables.paimon.commit.publish import Draft, publish
from dv_maintenance.tables.paimon.commit.rewrites import LiveFile, live_files, others_with
from dv_maintenance.tables.paimon.layout import table_layout
from dv_maintenance.tables.paimon.log.entries import FileId, added_entries, removal
from dv_maintenance.tables.paimon.served import Target
from dv_maintenance.tables.rows import ChangesOutcome, DeletedRows, RowChanges, rehearsed

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.layout import Layout
    from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot


def commit_deletes(
    target: Target,
    base: PaimonSnapshot,
    changes: RowChanges,
    *,
    operation: Mapping[str, Any],
    reads: Callable[[PaimonSnapshot], bool],
    max_attempts: int = 10,
    dry_run: bool = False,
) -> ChangesOutcome:
    """Commit the deletion of rows, see ``RowLevelTable.commit_changes``. Like Paimon's DELETE, it is an OVERWRITE
    snapshot.

    The outcome is a conflict if another writer removed a file that loses rows, or changed which of its rows are
    deleted. Concurrent appends, and rows that a concurrent update moved to new files, are ordered after the delete. If
    another writer updated one of the rows to delete, that row's file has changed, so this is a conflict.

    Raises
    ------
    VerificationError : the changes contradict the snapshot; nothing was committed.
    ConflictError, StorageError, DamagedTableError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    del operation, reads  # a snapshot has no place for the one, and appends are ordered after the delete
    if changes.added or changes.change_files:
        raise _wrong(base, "this release commits only deletions to Paimon tables, not new rows")
    if not changes.deleted:
        return ChangesOutcome(None, 0)
    if dry_run:
        target = Target(rehearsed(target.place, changes))
    layout = table_layout(target.place)
    commit = _Commit(layout, base, _deletions(layout, base, changes.deleted))
    published = publish(target, base, commit.compose, writes="delete", max_attempts=max_attempts)
    if published.version is None:
        return ChangesOutcome(None, published.attempts, conflict=commit.conflict)
    whole = sum(each.deleted is None for each in commit.deletions)
    return ChangesOutcome(
        published.version,
        published.attempts,
        rows_deleted=sum(each.fresh for each in commit.deletions),
        files_removed=whole,
        dvs_added=len(commit.deletions) - whole,
        dvs_removed=sum(each.file.dv is not None for each in commit.deletions),
    )


@dataclass(frozen=True, slots=True)
class _Deletion:
    """A file that loses rows.

    before : all its deleted rows before the commit.
    deleted : all its deleted rows after the commit; ``None`` if the whole file is removed.
    fresh : number of rows that this commit deletes.
    """

    file: LiveFile
    before: DeletionVector
    deleted: DeletionVector | None
    fresh: int


def _deletions(layout: Layout, base: PaimonSnapshot, deleted: Sequence[DeletedRows]) -> list[_Deletion]:
    keys = [each.key for each in deleted]
    if len(set(keys)) < len(keys):
        raise _wrong(base, "two deletions share a file")
    names = {key.path.rpartition("/")[2] for key in keys}
    live: Mapping[FileKey, LiveFile] = {file.key: file for file in live_files(base, names).values()}
    if missing := [key.path for key in keys if key not in live]:
        raise _wrong(base, f"{missing[0]} is not live with the deletion vector that it was read with")
    return [_deletion(layout, base, live[each.key], each) for each in deleted]


def _deletion(layout: Layout, base: PaimonSnapshot, file: LiveFile, each: DeletedRows) -> _Deletion:
    before = DeletionVector.empty() if file.dv is None else load_dv(layout, file.dv)
    path = file.key.path
    # With data evolution a file stays, for others have columns of its rows: a purge removes them together.
    stays = base.options.data_evolution
    if each.positions is None:
        every = DeletionVector.from_ranges([(0, file.rows)]) if stays else None
        return _Deletion(file, before, every, file.rows - len(before))
    if each.rows is not None and each.rows != file.rows:
        raise _wrong(base, f"{path} was read as {each.rows} rows, but its manifest records {file.rows}")
    if not each.positions or each.positions.max() >= file.rows:
        raise _wrong(base, f"the positions to delete are not within the {file.rows} rows of {path}")
    deleted = before | each.positions
    if len(deleted) != len(before) + len(each.positions):
        raise _wrong(base, f"rows to delete in {path} were already deleted when it was read")
    whole = len(deleted) == file.rows and not stays
    return _Deletion(file, before, None if whole else deleted, len(each.positions))


def _wrong(base: PaimonSnapshot, what: str) -> VerificationError:
    return VerificationError(what, at=base, next_step="report this as a bug")


@dataclass(slots=True)
class _Commit:
    layout: Layout
    base: PaimonSnapshot
    deletions: Sequence[_Deletion]
    conflict: str = ""
    _known: dict[str, Any] = field(default_factory=dict)

    def compose(self, now: PaimonSnapshot) -> Draft | None:
        found = live_files(now, {each.file.id[2] for each in self.deletions})
        self.conflict = next(filter(None, (self._changed(each, found) for each in self.deletions)), "")
        files = [each.file for each in self.deletions]
        if others_with(self.base, files).keys() != others_with(now, files).keys():
            self.conflict = "another writer changed columns of rows in files from which rows are to be deleted"
        if self.conflict:
            return None
        whole = {each.file.id for each in self.deletions if each.deleted is None}
        fresh: dict[FileId, DeletionVector] = {
            each.file.id: each.deleted for each in self.deletions if each.deleted is not None
        }
        entries = added_entries(self.layout, now, {file: found[file].manifest for file in whole})
        index = index_change(self.layout, now, whole, fresh, self._known)
        return Draft("OVERWRITE", tuple(removal(each) for each in entries.values()), index)

    def _changed(self, each: _Deletion, found: Mapping[FileId, LiveFile]) -> str:
        """How another writer changed the file; "" if its rows are unchanged."""
        path, now = each.file.key.path, found.get(each.file.id)
        if now is None:
            return f"another writer removed {path}, from which rows are to be deleted"
        if now.key == each.file.key:
            return ""
        # Another DV in the index file may have changed: then this one moved, but names the same rows.
        same = now.dv is not None and load_dv(self.layout, now.dv) == each.before
        return "" if same else f"another writer deleted rows of {path}, from which rows are to be deleted"
