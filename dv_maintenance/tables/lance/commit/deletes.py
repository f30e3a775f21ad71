"""Delete rows from a Lance table.

A fragment that keeps rows gets a larger deletion file. A fragment that keeps none is removed from the manifest. Lance
itself commits, and rebases over concurrent appends and over concurrent changes of other fragments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import (
    ConflictError,
    DvMaintenanceError,
    StorageDeniedError,
    StorageError,
    VerificationError,
)
from dv_maintenance.files.lance_library import lance_errors, library, open_dataset, reason_of, translated
from dv_maintenance.storage import Storage
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.lance.commit.deletion_files import described, new_deletion_file, write_deletions
from dv_maintenance.tables.lance.commit.preflight import check_sound
from dv_maintenance.tables.lance.layout import DELETIONS, check_folders
from dv_maintenance.tables.lance.log.manifest import DeletionFile, Fragment
from dv_maintenance.tables.lance.log.transaction import OPERATION, PARAMETERS
from dv_maintenance.tables.lance.log.versions import all_versions, load_manifest, read_manifest
from dv_maintenance.tables.lance.rows.files import deletions_of
from dv_maintenance.tables.lance.snapshot import LanceSnapshot
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.rows import ChangesOutcome, DeletedRows, RowChanges, rehearsed

if TYPE_CHECKING:
    from types import ModuleType

# Messages of Lance about a concurrent writer: nothing was committed.
_CONFLICT: Final = re.compile(r"commit conflict|[Ii]ncompatible transaction|preempted by concurrent")
_CONTENTION: Final = re.compile(r"[Tt]oo ?[Mm]uch ?[Ww]rite ?[Cc]ontention|[Tt]oo many concurrent writers")


def commit_deletes(
    storage: Storage,
    base: LanceSnapshot,
    changes: RowChanges,
    *,
    operation: Mapping[str, Any],
    reads: Callable[[LanceSnapshot], bool],
    max_attempts: int = 10,
    dry_run: bool = False,
) -> ChangesOutcome:
    """Commit the deletion of rows, see ``RowLevelTable.commit_changes``.

    The outcome is a conflict if another writer changed a fragment that loses rows, changed the schema, or recreated the
    table. Lance has the same rule. It is checked here too, before deletion files are written. Concurrent appends, and
    rows that an update moved to new fragments, are ordered after the delete. If a concurrent update changed a row to
    delete, the row's fragment changed, so this is a conflict.

    Raises
    ------
    DamagedTableError : a deletion file that would be extended is damaged; nothing was changed.
    VerificationError : the changes contradict the snapshot; nothing was changed.
    ConflictError : the race for the next version was lost ``max_attempts`` times; nothing was committed.
    StorageError : the storage did not answer; the message says whether the commit is known to have failed.
    RefusedError : pylance is missing or too old; or a folder of the table is a link.
    """
    del reads  # Lance decides by the fragments that changed
    if changes.added or changes.change_files:
        raise VerificationError(
            "this release commits only deletions to Lance tables, not new rows",
            at=base,
            next_step="report this",
        )
    if not changes.deleted:
        return ChangesOutcome(None, 0)
    if dry_run:
        storage = rehearsed(storage, changes)
    check_folders(storage)
    storage.prove_put_if_absent("_transactions")
    lance = library()
    shrinkings = _shrinkings(storage, base, changes.deleted)
    if others := _changed_by_others(storage, base, [each.fragment.id for each in shrinkings]):
        return ChangesOutcome(None, 1, conflict=others)
    commit = _Commit(storage, base, lance, shrinkings)
    return commit.run(operation, max_attempts)


# -- deletions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shrinking:
    """A fragment that loses rows.

    fragment : the fragment before the commit.
    deleted : all its deleted rows after the commit; ``None`` if the whole fragment is removed.
    fresh : how many rows this commit deletes.
    """

    fragment: Fragment
    deleted: DeletionVector | None
    fresh: int


def _shrinkings(storage: Storage, base: LanceSnapshot, deleted: Sequence[DeletedRows]) -> list[_Shrinking]:
    rows = base.files.select(["path", "dv_id", "fragment_id"]).to_pylist()
    ids = {FileKey(row["path"], row["dv_id"]): row["fragment_id"] for row in rows}
    fragments = {fragment.id: fragment for fragment in base.fragments}
    keys = [each.key for each in deleted]
    if len(set(keys)) < len(keys):
        raise _wrong(base, "two deletions share a fragment")
    if missing := [key.path for key in keys if key not in ids]:
        raise _wrong(base, f"{missing[0]} is not live with the deletion file it was read with")
    chosen = [fragments[ids[key]] for key in keys]
    extended = [each.id for each, rows in zip(chosen, deleted, strict=True) if rows.positions is not None]
    check_sound(storage, base.version, extended)
    return [_shrinking(storage, base, fragment, each) for fragment, each in zip(chosen, deleted, strict=True)]


def _shrinking(storage: Storage, base: LanceSnapshot, fragment: Fragment, each: DeletedRows) -> _Shrinking:
    rows, gone = fragment.physical_rows, fragment.deletion.count if fragment.deletion else 0
    if rows is None or gone is None:
        raise _wrong(base, f"the row count of fragment {fragment.id} is unknown")
    if each.positions is None:
        return _Shrinking(fragment, None, rows - gone)
    if each.rows is not None and each.rows != rows:
        raise _wrong(base, f"fragment {fragment.id} was read as {each.rows} rows, the manifest says {rows}")
    if not each.positions or each.positions.max() >= rows:
        raise _wrong(base, f"the positions to delete are not within the {rows} rows of fragment {fragment.id}")
    before = deletions_of(storage, base.manifest, fragment)
    deleted = before | each.positions
    if len(deleted) != len(before) + len(each.positions):
        raise _wrong(base, f"rows to delete in fragment {fragment.id} were already deleted when it was read")
    return _Shrinking(fragment, None if len(deleted) == rows else deleted, len(each.positions))


def _wrong(base: LanceSnapshot, what: str) -> VerificationError:
    return VerificationError(what, at=base, next_step="report this as a bug")


def _changed_by_others(storage: Storage, base: LanceSnapshot, touched: Sequence[int]) -> str:
    """Why the rows to delete must be searched for again; "" if they need not be."""
    _, now = load_manifest(storage)
    if now.version == base.version:
        return ""
    if now.field_records != base.manifest.field_records:
        return "another writer changed the table's columns"
    before = {
        fragment.id: record for fragment, record in zip(base.fragments, base.manifest.fragment_records, strict=True)
    }
    left = set(now.fragment_records)
    changed = [number for number in touched if before[number] not in left]
    return f"another writer changed fragment {changed[0]}, from which rows are to be deleted" if changed else ""


# -- commit -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Commit:
    storage: Storage
    base: LanceSnapshot
    lance: ModuleType
    shrinkings: Sequence[_Shrinking]

    def run(self, operation: Mapping[str, Any], max_attempts: int) -> ChangesOutcome:
        uuid = str(uuid4())
        new = {
            each.fragment.id: new_deletion_file(each.fragment.id, self.base.version, each.deleted)
            for each in self.shrinkings
            if each.deleted is not None
        }
        try:
            self._write(new)
            version = self._commit(uuid, new, operation, max_attempts)
        except _Lost as lost:
            self._discard(new)
            if lost.by_contention:
                raise ConflictError(
                    f"other writers committed first in all {max_attempts} attempts: {lost}",
                    at=self.base,
                ) from lost.__cause__
            return ChangesOutcome(None, 1, conflict=str(lost))
        return ChangesOutcome(
            version,
            1,
            rows_deleted=sum(each.fresh for each in self.shrinkings),
            files_removed=len(self.shrinkings) - len(new),
            dvs_added=len(new),
            dvs_removed=sum(each.fragment.deletion is not None for each in self.shrinkings),
        )

    def _write(self, new: Mapping[int, DeletionFile]) -> None:
        def write(each: _Shrinking) -> None:
            file = new[each.fragment.id]
            if each.deleted is not None:
                write_deletions(self.storage, file, each.deleted)

        try:
            list(in_parallel(self.storage, [each for each in self.shrinkings if each.deleted is not None], write))
        except StorageError:
            self._discard(new)
            raise

    def _commit(
        self, uuid: str, new: Mapping[int, DeletionFile], operation: Mapping[str, Any], max_attempts: int
    ) -> int:
        lance, base = self.lance, self.base
        with lance_errors("the table", table=base.table, version=base.version):
            dataset = open_dataset(self.storage, base.version)
            updated = [self._updated(dataset, each, new[each.fragment.id]) for each in self.shrinkings if each.deleted]
            whole = [each.fragment.id for each in self.shrinkings if each.deleted is None]
            parameters = dict(operation.get("parameters", {}))
            transaction = lance.Transaction(
                base.version,
                lance.LanceOperation.Delete(updated, whole, _predicate(parameters)),
                uuid,
                {OPERATION: str(operation["name"]), PARAMETERS: json.dumps(parameters)},
            )
        if isinstance(self.storage, Rehearsal):
            return base.version
        try:
            committed = lance.LanceDataset.commit(dataset, transaction, max_retries=max_attempts)
            return int(committed.version)
        except Exception as error:
            text = reason_of(error)
            if _CONTENTION.search(text):
                raise _Lost(text, by_contention=True) from error
            if _CONFLICT.search(text):
                raise _Lost(text) from error
            failure = translated(error, "the commit of a delete", table=base.table, version=base.version)
            failure.done = "deletion files were written; it is not known whether the delete was committed"
            # The response may be lost although the commit succeeded.
            with suppress(DvMaintenanceError, FileNotFoundError):
                version = self._committed(uuid)
                if version is not None:
                    return version
                failure.uncommitted = isinstance(failure, StorageDeniedError)
            if failure.uncommitted:
                self._discard(new)
                failure.done = "nothing was committed"
            raise failure from error

    def _updated(self, dataset: Any, each: _Shrinking, file: DeletionFile) -> Any:
        """Lance's own metadata of the fragment, row ids included, with the new deletion file."""
        fragment = dataset.get_fragment(each.fragment.id)
        deletion = self.lance.fragment.DeletionFile(**described(file))
        return replace(fragment.metadata, deletion_file=deletion)

    def _committed(self, uuid: str) -> int | None:
        """The version that the transaction committed, ``None`` if there is none."""
        for file in reversed(all_versions(self.storage)):
            if file.version <= self.base.version:
                break
            if uuid in read_manifest(self.storage, file).transaction_file:
                return file.version
        return None

    def _discard(self, new: Mapping[int, DeletionFile]) -> None:
        with suppress(StorageError):  # vacuum deletes what is left
            self.storage.delete([f"{DELETIONS}/{file.name}" for file in new.values()])


class _Lost(Exception):  # noqa: N818 - not an error: the operation runs again
    """Why Lance did not commit."""

    def __init__(self, reason: str, *, by_contention: bool = False) -> None:
        super().__init__(reason)
        self.by_contention = by_contention


def _predicate(parameters: Mapping[str, Any]) -> str:
    stated = parameters.get("predicate", "")
    return stated if isinstance(stated, str) else " AND ".join(map(str, stated)) or "true"
