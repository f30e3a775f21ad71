"""Commits that change rows: DELETE, UPDATE and MERGE with deletion vectors (DVs), checked row by row against
concurrent commits.

DVs delete single rows, so two writers that touch one file need not conflict: only the rows that each of them deleted
matter. A DELETE may meet a row that is already deleted; an UPDATE of such a row would bring it back. Files that other
writers added hold rows that the operation has not seen. Blind appends are the exception: they may be ordered after the
operation (Delta's isolation level WriteSerializable).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.arrays import strings
from dv_maintenance.files.parquet_footer import read_footer
from dv_maintenance.storage import RawName, Storage
from dv_maintenance.tables.delta.commit.conflicts import Since
from dv_maintenance.tables.delta.commit.dv_files import CommitDvs
from dv_maintenance.tables.delta.commit.live_adds import LiveAdd, live_adds, shrunk
from dv_maintenance.tables.delta.commit.publish import Draft, operation_info, publish
from dv_maintenance.tables.delta.commit.rebase import takes_dvs
from dv_maintenance.tables.delta.commit.row_metrics import Deletion, metrics_of, outcome_of
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.delta.rows.clustering import clustering_columns
from dv_maintenance.tables.delta.rows.layout import file_tags
from dv_maintenance.tables.delta.rows.row_tracking import DOMAIN, assigns_row_ids, highest_row_id, numbered
from dv_maintenance.tables.delta.rows.schema import partition_physical_names
from dv_maintenance.tables.delta.rows.stats import stats_json
from dv_maintenance.tables.delta.rows.tasks import dv_ref, log_path
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.gates import check_stored, wrong
from dv_maintenance.tables.model import FileKey, parse_partition
from dv_maintenance.tables.publish import before_the_commit
from dv_maintenance.tables.rows import AddedFile, ChangesOutcome, DeletedRows, RowChanges, rehearsed
from dv_maintenance.units import epoch_millis

_NONE: Final = DeletionVector.empty()


def commit_changes(
    storage: Storage,
    base: DeltaSnapshot,
    changes: RowChanges,
    *,
    operation: Mapping[str, Any],
    reads: Callable[[DeltaSnapshot], bool],
    max_attempts: int = 10,
    dry_run: bool = False,
) -> ChangesOutcome:
    """Commit row changes on top of everything committed since ``base``; see ``RowLevelTable.commit_changes``.

    A file that loses rows is removed with its DV and added with a larger one. It keeps its statistics, but their bounds
    are no longer tight. A file that loses its last row is only removed (protocol: Add File and Remove File, Per-file
    Statistics). If another writer deleted rows of the file meanwhile, both deletes hold: a DELETE may meet these on the
    same rows, an UPDATE or MERGE may not.

    The outcome is a conflict, and nothing is committed, if another writer meanwhile rewrote a file that loses rows,
    brought rows back, updated the same rows, changed protocol or metadata, or added files (other than blind appends)
    for which ``reads`` is true. With ``delta.isolationLevel`` Serializable, blind appends count too.

    Raises
    ------
    VerificationError : the changes can't be right; nothing was committed.
    RefusedError : rows of a file must be deleted, but the table does not allow DVs.
    ConflictError, StorageError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    if dry_run:
        storage = rehearsed(storage, changes)
    with before_the_commit():
        commit = _Commit(storage, base, changes, operation, reads, live_adds(storage, base, changes.deleted))
        commit.verify()
    if not (changes.deleted or changes.added):
        return ChangesOutcome(None, 0)
    with commit.dvs.cleaned_up():
        published = publish(storage, base, commit.compose, writes=commit.name.lower(), max_attempts=max_attempts)
        commit.dvs.keep = published.version is not None
    return replace(commit.outcome, version=published.version, attempts=published.attempts)


class _Conflict(Exception):  # noqa: N818 - not an error: the operation is run again
    """The table's state is no longer the one that the operation read; the message says why."""


@dataclass(slots=True)
class _Commit:
    """The commit, decided again in each attempt. ``live``: the files that lose rows, at the base version, by key."""

    storage: Storage
    base: DeltaSnapshot
    changes: RowChanges
    operation: Mapping[str, Any]
    reads: Callable[[DeltaSnapshot], bool]
    live: Mapping[FileKey, LiveAdd]
    deleted_at: int = field(default_factory=epoch_millis)
    outcome: ChangesOutcome = field(default_factory=lambda: ChangesOutcome(None, 0))
    dvs: CommitDvs = field(init=False)
    _read: dict[FileKey, DeletionVector] = field(default_factory=dict)
    _footers: dict[FileKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dvs = CommitDvs(self.storage)

    @property
    def name(self) -> str:
        return str(self.operation["name"])

    # -- gates -----------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Refuse changes that can't be right, whatever other writers commit."""
        keys = [each.key for each in self.changes.deleted]
        if len(set(keys)) < len(keys):
            raise wrong(self.base, "two deletions share a file")
        if missing := [key.path for key in keys if key not in self.live]:
            raise wrong(self.base, f"{missing[0]} is not live with the deletion vector it was read with")
        for each in self.changes.deleted:
            known = self.live[each.key].physical_rows if each.rows is None else each.rows
            if each.positions is not None and not _within(each.positions, known):
                known = self._counted(each.key)
            if each.positions is not None and not _within(each.positions, known):
                raise wrong(self.base, f"{each.key.path}: the rows to delete are not among its {known} rows")
        outputs = [each.output for each in (*self.changes.added, *self.changes.change_files)]
        if len({output.uri for output in outputs}) < len(outputs):
            raise wrong(self.base, "two new files share a name")
        check_stored(self.storage, self.base, outputs)

    # -- one attempt -----------------------------------------------------------------------------------------------

    def compose(self, since: Since) -> Draft | None:
        self.outcome = ChangesOutcome(None, 0)
        try:
            self._check(since)
            deletions = [found for each in self.changes.deleted if (found := self._deletion(each, since))]
        except _Conflict as conflict:
            self.outcome = ChangesOutcome(None, 0, conflict=str(conflict))
            return None
        if not deletions and not self.changes.added:
            return None  # other writers have already deleted all of these rows
        removes = [each.live.file.remove(self.deleted_at, data_change=True) for each in deletions]
        smaller = self._shrunk(deletions)
        added = [self._new_file("add", each) for each in self.changes.added]
        change_files = [self._new_file("cdc", each) for each in self.changes.change_files]
        self.outcome = outcome_of(deletions, smaller, added)
        metrics = {**metrics_of(self.name, deletions, smaller, added, change_files), **self._own_metrics(self.outcome)}
        info = operation_info(self.base, self.name, self.operation.get("parameters", {}), metrics, blind=False)
        if assigns_row_ids(self.base.protocol, self.base.metadata):
            taken_ids = since.domains.get(DOMAIN, self.base.domains.get(DOMAIN))
            added = numbered(added, taken_ids, since.version + 1, highest_row_id(self.base.files))
        return Draft({**info, "isolationLevel": self._isolation()}, [*removes, *smaller, *added, *change_files])

    def _own_metrics(self, outcome: ChangesOutcome) -> dict[str, int]:
        own = dict(self.operation.get("metrics", {}))
        if self.name == "DELETE" and outcome.rows_deleted is not None:
            own["numDeletedRows"] = outcome.rows_deleted  # other writers may have deleted some of them first
        return own

    def _isolation(self) -> str:
        wanted = self.base.metadata.configuration.get("delta.isolationLevel", "").lower()
        return "Serializable" if wanted == "serializable" else "WriteSerializable"

    def _check(self, since: Since) -> None:
        if since.version == self.base.version:
            return
        if since.protocol not in (None, self.base.protocol) or since.metadata not in (None, self.base.metadata):
            raise _Conflict("another writer changed the table's protocol or metadata")
        fresh = self._unseen(since)
        if not fresh:
            return
        now = load_snapshot(self.storage, since.version)
        identified = strings([self.storage.path_of(RawName(path)) for path in now.files["path"].to_pylist()])
        seen = pc.is_in(identified, strings(sorted(fresh)))
        if self.reads(replace(now, files=now.files.filter(seen))):
            raise _Conflict("another writer added rows that the operation has to read")

    def _unseen(self, since: Since) -> set[str]:
        """Identified paths of live files with rows that may not have been live at the base version."""
        serializable = self._isolation() == "Serializable"
        added: dict[str, Any] = {}
        for version in range(self.base.version + 1, since.version + 1):
            try:
                actions = read_commit(self.storage, version)
            except FileNotFoundError:
                raise _Conflict(f"commit {version} was cleaned up during the operation") from None
            blind = not serializable and any(
                isinstance(info := action.get("commitInfo"), dict) and info.get("isBlindAppend") is True
                for action in actions
            )
            taken = {since.identify(action["remove"]["path"]) for action in actions if "remove" in action}
            moves_unseen = not taken.isdisjoint(added)
            for add in (action["add"] for action in actions if "add" in action):
                # Without dataChange, the rows come from the files that the commit removes. They are unseen if one of
                # these files was. Otherwise this operation deletes none of them, see _deletion.
                if moves_unseen if add.get("dataChange") is False else not blind:
                    added[since.identify(add["path"])] = add
        known = {}
        if added:
            for row in self.base.files.select(["path", "dv_id"]).to_pylist():
                if (path := since.identify(row["path"])) in added:
                    known[path] = FileKey(row["path"], row["dv_id"])
        return {path for path in added if path in since.current and not self._only_shrank(path, known, since)}

    def _only_shrank(self, path: str, known: Mapping[str, FileKey], since: Since) -> bool:
        """Whether a file of the base version is still live, and no row of it was brought back."""
        if path not in known:
            return False
        before, now = known[path].dv_id, since.current[path]
        if before is None or before == dv_id(now.get("deletionVector")):
            return True
        old = self.live.get(known[path]) or live_adds(self.storage, self.base, [DeletedRows(known[path])])[known[path]]
        return not self._dv(old) - self._dv(LiveAdd.of(now))

    def _deletion(self, each: DeletedRows, since: Since) -> Deletion | None:
        """The deletion from one file; ``None`` if other writers have already deleted all of its rows to delete."""
        before = self.live[each.key]
        rows = before.physical_rows if each.rows is None else each.rows
        path = since.identify(each.key.path)
        if FileKey(path, each.key.dv_id) not in since.gone:
            return self._taken_out(each, before, before, rows)
        if path in since.moved:
            raise _Conflict(f"another writer rewrote {each.key.path}")
        add = since.current.get(path)
        if self.name != "DELETE" and (add is None or each.positions is None):
            raise _Conflict(f"another writer deleted rows of {each.key.path} that this operation changes")
        if add is None:
            return None  # no rows of it are left; `reads` has checked the files that they may have been copied to
        now = LiveAdd.of(add)
        if self._dv(before) - self._dv(now):
            raise _Conflict(f"another writer brought rows of {each.key.path} back")
        return self._taken_out(each, before, now, rows)

    def _taken_out(self, each: DeletedRows, before: LiveAdd, now: LiveAdd, rows: int | None) -> Deletion | None:
        if each.positions is None:
            left = None if rows is None else rows - now.file.deleted_rows
            return Deletion(now, rows, None, left)
        taken = self._dv(now)
        fresh = each.positions - taken
        if len(fresh) < len(each.positions):
            if now is before:
                raise wrong(self.base, f"{each.key.path}: rows to delete were deleted when it was read")
            if self.name != "DELETE":
                raise _Conflict(f"another writer deleted rows of {each.key.path} that this operation changes")
        if not fresh:
            return None
        deleted = taken | fresh
        if rows is None or len(deleted) >= rows:
            # The file would be removed with its last row. Its own footer decides: statistics may be wrong.
            rows = self._counted(each.key)
        return Deletion(now, rows, None if len(deleted) == rows else deleted, len(fresh))

    def _counted(self, key: FileKey) -> int:
        """Physical rows by the file's footer. Raises DamagedTableError, StorageError."""
        if key not in self._footers:
            path = self.storage.path_of(RawName(key.path))
            try:
                with self.storage.open_input(path) as file:
                    self._footers[key] = read_footer(file).num_rows
            except (FileNotFoundError, pa.ArrowInvalid) as error:
                raise DamagedTableError(
                    f"data file {path} can't be read: {error}",
                    at=self.base,
                    done="new files may have been written, nothing was committed",
                ) from error
        return self._footers[key]

    def _dv(self, live: LiveAdd) -> DeletionVector:
        if live.file.dv is None:
            return _NONE
        key = live.file.key
        if key not in self._read:
            ref = dv_ref(self.storage, live.file.dv)
            self._read[key] = load(ref, self.storage.get_range, of=self.storage.uri_of(key.path))
        return self._read[key]

    # -- actions ---------------------------------------------------------------------------------------------------

    def _shrunk(self, deletions: Sequence[Deletion]) -> list[Action]:
        """The files that keep rows, with their larger DVs."""
        left = [each for each in deletions if each.deleted is not None]
        if left and not takes_dvs(self.base.protocol, self.base.metadata):
            raise RefusedError(
                "rows of a file are to be deleted, but the table does not allow deletion vectors",
                at=self.base,
                next_step="set the table property delta.enableDeletionVectors to true, or use an engine that "
                "rewrites whole files",
            )
        descriptors = self.dvs.place(tuple(each.deleted for each in left if each.deleted is not None))
        return [shrunk(each.live, each.rows, descriptor) for each, descriptor in zip(left, descriptors, strict=True)]

    def _new_file(self, kind: str, new: AddedFile) -> Action:
        physical = partition_physical_names(self.base.metadata)
        values = parse_partition(new.partition)
        body = {
            "path": log_path(self.storage, new.output.uri),
            "partitionValues": {physical[name]: values.get(name) for name in self.base.partition_columns},
            "size": new.output.size,
        }
        if kind == "cdc":
            return {"cdc": {**body, "dataChange": False}}
        stats = stats_json(new.output, self.base.metadata, clustering_columns(self.base.domains))
        add = {**body, "modificationTime": new.output.modified, "dataChange": True, "stats": stats}
        tags = file_tags(self.base.protocol)
        return {"add": {**add, "tags": tags} if tags else add}


def _within(positions: DeletionVector, rows: int | None) -> bool:
    return rows is not None and bool(positions) and positions.max() < rows
