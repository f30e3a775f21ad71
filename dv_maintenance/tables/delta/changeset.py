"""Commits that change rows: DELETE, UPDATE and MERGE with deletion vectors (DVs), held against what others did
meanwhile row by row.

Rows go out by DVs, so two writers that touch one file need not be in each other's way: what counts is which rows each
of them took out. Taking out a row that is gone already is what a delete wanted; an update of such a row would bring it
back. Files that others added are rows that the operation has not seen, blind appends aside: those may as well have come
after it (Delta's isolation level WriteSerializable).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
import pyarrow.compute as pc

from dv_maintenance.dv import DeletionVector, DvDescriptor, load
from dv_maintenance.errors import ConflictError, DamagedTableError, RefusedError, StorageError, VerificationError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.actions import Action
from dv_maintenance.tables.delta.bulk import dv_id
from dv_maintenance.tables.delta.columns import strings
from dv_maintenance.tables.delta.conflicts import Since
from dv_maintenance.tables.delta.dv_files import Placed, place
from dv_maintenance.tables.delta.live_file import LiveFile
from dv_maintenance.tables.delta.log import read_commit
from dv_maintenance.tables.delta.publish import Draft, operation_info, publish
from dv_maintenance.tables.delta.rebase import takes_dvs
from dv_maintenance.tables.delta.replay import replay
from dv_maintenance.tables.delta.row_tracking import DOMAIN, assigns_row_ids, numbered
from dv_maintenance.tables.delta.schema import partition_physical_names
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot, load_snapshot
from dv_maintenance.tables.delta.stats import stats_json
from dv_maintenance.tables.delta.tasks import dv_ref, log_path
from dv_maintenance.tables.model import FileKey, parse_partition
from dv_maintenance.tables.rows import AddedFile, ChangesOutcome, DeletedRows, RowChanges
from dv_maintenance.tables.work import OutputFile

__all__ = ["commit_changes"]

_HEAD_THREADS: Final = 16
_NONE: Final = DeletionVector.empty()
# Of an add, what its next add repeats.
_ADD: Final = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "stats",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
    "clusteringProvider",
)
_MAPS: Final = ("partitionValues", "tags")


def commit_changes(
    storage: Storage,
    base: DeltaSnapshot,
    changes: RowChanges,
    *,
    operation: Mapping[str, Any],
    reads: Callable[[DeltaSnapshot], bool],
    max_attempts: int = 10,
) -> ChangesOutcome:
    """Commit rows out and in, on top of whatever was committed since ``base``; see ``RowLevelTable.commit_changes``.

    A file that loses rows is removed with the DV it had and added with a larger one, its statistics kept and their
    bounds no longer tight; one that loses its last row is only removed (protocol: Add File and Remove File, Per-file
    Statistics). Where others deleted from it meanwhile, both deletes hold: a DELETE may meet them on the same rows,
    an UPDATE or MERGE may not.

    The outcome is a conflict, and nothing is committed, if others meanwhile rewrote a file that loses rows or brought
    rows back, updated the same rows, changed protocol or metadata, or added files (blind appends aside) that ``reads``
    is about. With ``delta.isolationLevel`` Serializable blind appends count too.

    Raises
    ------
    VerificationError : the changes can't be right; nothing was committed.
    RefusedError : rows of a file are to go, but the table takes no DVs.
    ConflictError, StorageError, UnsupportedFeatureError, RefusedError : see ``publish``.
    """
    commit = _Commit(storage, base, changes, operation, reads, _live_adds(storage, base, changes.deleted))
    commit.verify()
    if not (changes.deleted or changes.added):
        return ChangesOutcome(None, 0)
    with commit.dvs.cleaned_up():
        published = publish(storage, base, commit.compose, writes=commit.name.lower(), max_attempts=max_attempts)
        commit.dvs.keep = published.version is not None
    return replace(commit.outcome, version=published.version, attempts=max(1, published.attempts))


@dataclass(frozen=True, slots=True)
class _Live:
    """A live file as its ``add`` has it."""

    add: Mapping[str, Any]
    file: LiveFile

    @classmethod
    def of(cls, add: Mapping[str, Any]) -> _Live:
        return cls(add, LiveFile.from_add(add))

    @property
    def physical_rows(self) -> int | None:
        with suppress(orjson.JSONDecodeError, AttributeError):
            rows = orjson.loads(self.add.get("stats") or "{}").get("numRecords")
            return rows if type(rows) is int else None
        return None


@dataclass(frozen=True, slots=True)
class _Deletion:
    """One file at one attempt: ``deleted`` is all that is deleted in it afterwards, ``None``: it goes whole. ``fresh``:
    rows that we delete and nobody else did, ``None`` if nobody counted them.
    """

    live: _Live
    rows: int | None
    deleted: DeletionVector | None
    fresh: int | None


class _Conflict(Exception):  # noqa: N818 - no error: the operation is run again
    """Why what was read is no longer the table's state."""


@dataclass(slots=True)
class _Commit:
    """What to commit, decided anew in each attempt. ``live``: by key, the files that lose rows, at the base version."""

    storage: Storage
    base: DeltaSnapshot
    changes: RowChanges
    operation: Mapping[str, Any]
    reads: Callable[[DeltaSnapshot], bool]
    live: Mapping[FileKey, _Live]
    deleted_at: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    outcome: ChangesOutcome = field(default_factory=lambda: ChangesOutcome(None, 0))
    dvs: _Dvs = field(init=False)
    _read: dict[FileKey, DeletionVector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dvs = _Dvs(self.storage)

    @property
    def name(self) -> str:
        return str(self.operation["name"])

    # -- gates -----------------------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Refuse what can't be right, whatever others commit."""
        keys = [each.key for each in self.changes.deleted]
        if len(set(keys)) < len(keys):
            raise self._wrong("two deletions share a file")
        if missing := [key.path for key in keys if key not in self.live]:
            raise self._wrong(f"{missing[0]} is not live with the deletion vector it was read with")
        for each in self.changes.deleted:
            rows = self.live[each.key].physical_rows
            if rows is not None and each.rows is not None and rows != each.rows:
                raise self._wrong(f"{each.key.path} was read as {each.rows} rows, the log says {rows}")
            known = rows if each.rows is None else each.rows
            if each.positions is not None and not _within(each.positions, known):
                raise self._wrong(f"{each.key.path}: rows to delete are none of its {known} rows")
        outputs = [each.output for each in (*self.changes.added, *self.changes.change_files)]
        if len({output.uri for output in outputs}) < len(outputs):
            raise self._wrong("two new files share a name")
        with ThreadPoolExecutor(_HEAD_THREADS) as pool:
            for problem in pool.map(self._problem, outputs):
                if problem is not None:
                    raise self._wrong(problem)

    def _problem(self, output: OutputFile) -> str | None:
        path = self.storage.path_of(output.uri)
        try:
            size = self.storage.head(path).size
        except FileNotFoundError:
            return f"the new file {path} does not exist"
        return None if size == output.size else f"the new file {path} has {size} bytes, not {output.size}"

    def _wrong(self, what: str) -> VerificationError:
        return VerificationError(
            what,
            table=self.base.table,
            version=self.base.version,
            done="new files may have been written, nothing was committed",
            next_step="report this; vacuum deletes the files that no commit names",
        )

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
            return None  # others have deleted all of it
        removes = [each.live.file.remove(self.deleted_at, data_change=True) for each in deletions]
        shrunk = self._shrunk(deletions)
        added = [self._new_file("add", each) for each in self.changes.added]
        change_files = [self._new_file("cdc", each) for each in self.changes.change_files]
        self.outcome = _outcome(deletions, shrunk, added)
        metrics = {**_metrics(self.name, deletions, shrunk, added, change_files), **self._own_metrics(self.outcome)}
        info = operation_info(self.base, self.name, self.operation.get("parameters", {}), metrics, blind=False)
        if assigns_row_ids(self.base.protocol, self.base.metadata):
            taken_ids = since.domains.get(DOMAIN, self.base.domains.get(DOMAIN))
            added = numbered(added, taken_ids, since.version + 1)
        return Draft({**info, "isolationLevel": self._isolation()}, [*removes, *shrunk, *added, *change_files])

    def _own_metrics(self, outcome: ChangesOutcome) -> dict[str, int]:
        own = dict(self.operation.get("metrics", {}))
        if self.name == "DELETE" and outcome.rows_deleted is not None:
            own["numDeletedRows"] = outcome.rows_deleted  # others may have been faster with some of them
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
        identified = strings([self.storage.path_of(path) for path in now.files["path"].to_pylist()])
        seen = pc.is_in(identified, strings(sorted(fresh)))
        if self.reads(replace(now, files=now.files.filter(seen))):
            raise _Conflict("another writer added rows that the operation had to look at")

    def _unseen(self, since: Since) -> set[str]:
        """Identified paths of live files that hold rows which may not have been live at the base version."""
        serializable = self._isolation() == "Serializable"
        added: dict[str, Any] = {}
        for version in range(self.base.version + 1, since.version + 1):
            try:
                actions = read_commit(self.storage, version)
            except FileNotFoundError:
                raise _Conflict(f"commit {version} was cleaned up meanwhile") from None
            blind = not serializable and any(
                isinstance(info := action.get("commitInfo"), dict) and info.get("isBlindAppend") is True
                for action in actions
            )
            taken = {since.identify(action["remove"]["path"]) for action in actions if "remove" in action}
            moves_unseen = not taken.isdisjoint(added)
            for add in (action["add"] for action in actions if "add" in action):
                # Without dataChange the rows are those of other files: unseen if one of these was, and else no rows of
                # ours, see _deletion.
                if moves_unseen if add.get("dataChange") is False else not blind:
                    added[since.identify(add["path"])] = add
        known = {}
        if added:
            for row in self.base.files.select(["path", "dv_id"]).to_pylist():
                if (path := since.identify(row["path"])) in added:
                    known[path] = FileKey(row["path"], row["dv_id"])
        return {path for path in added if path in since.current and not self._only_shrank(path, known, since)}

    def _only_shrank(self, path: str, known: Mapping[str, FileKey], since: Since) -> bool:
        """Whether a file of the base version is still live with none of its rows brought back."""
        if path not in known:
            return False
        before, now = known[path].dv_id, since.current[path]
        if before is None or before == dv_id(now.get("deletionVector")):
            return True
        old = self.live.get(known[path]) or _live_adds(self.storage, self.base, [DeletedRows(known[path])])[known[path]]
        return not self._dv(old) - self._dv(_Live.of(now))

    def _deletion(self, each: DeletedRows, since: Since) -> _Deletion | None:
        """What becomes of a file; ``None`` where others have deleted all of the rows."""
        before = self.live[each.key]
        rows = before.physical_rows if each.rows is None else each.rows
        path = since.identify(each.key.path)
        if FileKey(path, each.key.dv_id) not in since.gone:
            return self._taken_out(each, before, before, rows)
        if path in since.moved:
            raise _Conflict(f"another writer rewrote {each.key.path}")
        add = since.current.get(path)
        if self.name != "DELETE" and (add is None or each.positions is None):
            raise _Conflict(f"another writer deleted rows of {each.key.path} that are changed here")
        if add is None:
            return None  # no rows of it are left; where they were copied to, `reads` has looked
        now = _Live.of(add)
        if self._dv(before) - self._dv(now):
            raise _Conflict(f"another writer brought rows of {each.key.path} back")
        return self._taken_out(each, before, now, rows)

    def _taken_out(self, each: DeletedRows, before: _Live, now: _Live, rows: int | None) -> _Deletion | None:
        if each.positions is None:
            left = None if rows is None else rows - now.file.deleted_rows
            return _Deletion(now, rows, None, left)
        taken = self._dv(now)
        fresh = each.positions - taken
        if len(fresh) < len(each.positions):
            if now is before:
                raise self._wrong(f"{each.key.path}: rows to delete were deleted when it was read")
            if self.name != "DELETE":
                raise _Conflict(f"another writer deleted rows of {each.key.path} that are changed here")
        if not fresh:
            return None
        deleted = taken | fresh
        return _Deletion(now, rows, None if len(deleted) == rows else deleted, len(fresh))

    def _dv(self, live: _Live) -> DeletionVector:
        if live.file.dv is None:
            return _NONE
        key = live.file.key
        if key not in self._read:
            ref = dv_ref(self.storage, live.file.dv)
            self._read[key] = load(ref, self.storage.get_range, rows=live.physical_rows)
        return self._read[key]

    # -- actions ---------------------------------------------------------------------------------------------------

    def _shrunk(self, deletions: Sequence[_Deletion]) -> list[Action]:
        """The files that keep rows, with their larger DVs."""
        left = [each for each in deletions if each.deleted is not None]
        if left and not takes_dvs(self.base.protocol, self.base.metadata):
            raise RefusedError(
                "rows of a file are to be deleted, but the table takes no deletion vectors",
                table=self.base.table,
                version=self.base.version,
                next_step="set the table property delta.enableDeletionVectors to true, or use an engine that "
                "rewrites whole files",
            )
        descriptors = self.dvs.place(tuple(each.deleted for each in left if each.deleted is not None))
        return [
            {
                "add": {
                    **{key: each.live.add[key] for key in _ADD if each.live.add.get(key) is not None},
                    "dataChange": True,
                    "stats": _wide(each.live.add.get("stats"), each.rows, each.live.file.path),
                    "deletionVector": descriptor.to_json(),
                }
            }
            for each, descriptor in zip(left, descriptors, strict=True)
        ]

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
        stats = stats_json(new.output, self.base.metadata)
        return {"add": {**body, "modificationTime": new.output.modified, "dataChange": True, "stats": stats}}


@dataclass(slots=True)
class _Dvs:
    """DV files of one commit. Those that no attempt committed are deleted at the end, where it is certain that none
    did.
    """

    storage: Storage
    keep: bool = True
    _wanted: tuple[DeletionVector, ...] = ()
    _placed: Placed = field(default_factory=Placed)
    _superseded: list[str] = field(default_factory=list)

    def place(self, dvs: tuple[DeletionVector, ...]) -> tuple[DvDescriptor, ...]:
        if dvs != self._wanted:
            self._superseded += self._placed.paths
            self._wanted, self._placed = dvs, Placed()
            self._placed = place(self.storage, dvs)
        return self._placed.descriptors

    @contextmanager
    def cleaned_up(self) -> Iterator[None]:
        try:
            yield
        except (ConflictError, RefusedError):
            self.keep = False
            raise
        finally:
            unused = [*self._superseded, *(() if self.keep else self._placed.paths)]
            if unused:
                with suppress(StorageError):  # vacuum finds what stays
                    self.storage.delete(unused)


def _within(positions: DeletionVector, rows: int | None) -> bool:
    return rows is not None and bool(positions) and positions.max() < rows


def _live_adds(storage: Storage, base: DeltaSnapshot, deleted: Sequence[DeletedRows]) -> dict[FileKey, _Live]:
    """The adds of the files that lose rows; keys that are not live are missing."""
    if not deleted:
        return {}
    wanted = {each.key for each in deleted}
    adds = replay(storage, base.segment, adds=_ADD).adds
    chosen = adds.filter(pc.is_in(adds["path"], strings(sorted({key.path for key in wanted}))))
    found = {}
    for row in chosen.to_pylist():
        add = {key: dict(value) if key in _MAPS and value is not None else value for key, value in row.items()}
        if add["deletionVector"] is not None:
            present = {key: value for key, value in add["deletionVector"].items() if value is not None}
            add["deletionVector"] = present
        live = _Live.of(add)
        if live.file.key in wanted:
            found[live.file.key] = live
    return found


_TIGHT: Final = "tightBounds"


def _wide(stats: str | None, rows: int | None, path: str) -> str:
    """The statistics of a file that gets a DV: how many rows it has, which a DV needs, and bounds that are not tight.

    Numbers keep all their digits, of which floats have fewer than decimals.
    """
    try:
        body = json.loads(stats or "{}", parse_float=_verbatim, parse_int=_verbatim)
    except json.JSONDecodeError:
        body = {}  # what can't be read helps nobody
    if not isinstance(body, dict):
        body = {}
    if "numRecords" not in body:
        if rows is None:
            raise DamagedTableError(f"nobody knows how many rows {path} has")
        body = {"numRecords": rows, **body}
    return orjson.dumps({**body, _TIGHT: False}).decode()


def _verbatim(number: str) -> orjson.Fragment:
    return orjson.Fragment(number)


# -- what is told ------------------------------------------------------------------------------------------------


def _outcome(deletions: Sequence[_Deletion], shrunk: Sequence[Action], added: Sequence[Action]) -> ChangesOutcome:
    fresh = [each.fresh for each in deletions]
    return ChangesOutcome(
        version=None,
        attempts=0,
        rows_deleted=None if None in fresh else sum(count or 0 for count in fresh),
        files_removed=len(deletions) - len(shrunk),
        files_added=len(added),
        dvs_added=len(shrunk),
        dvs_removed=sum(each.live.file.dv is not None for each in deletions),
    )


def _metrics(
    name: str,
    deletions: Sequence[_Deletion],
    shrunk: Sequence[Action],
    added: Sequence[Action],
    change_files: Sequence[Action],
) -> dict[str, int]:
    """As delta-spark records them; a DV that took the place of another is added, removed and updated."""
    # An UPDATE's removed files are all that lose rows, those of the others only files that go whole.
    removed = [each.live.file.size for each in deletions if each.deleted is None or name == "UPDATE"]
    target = "Target" if name == "MERGE" else ""
    whole_files, new_files, changes = (
        ("numTargetFilesRemoved", "numTargetFilesAdded", "numTargetChangeFilesAdded")
        if target
        else ("numRemovedFiles", "numAddedFiles", "numAddedChangeFiles")
    )
    whole_bytes, new_bytes = (
        ("numTargetBytesRemoved", "numTargetBytesAdded") if target else ("numRemovedBytes", "numAddedBytes")
    )
    return {
        whole_files: len(removed),
        whole_bytes: sum(removed),
        new_files: len(added),
        new_bytes: sum(add["add"]["size"] for add in added),
        changes: len(change_files),
        f"num{target}DeletionVectorsAdded": len(shrunk),
        f"num{target}DeletionVectorsRemoved": sum(each.live.file.dv is not None for each in deletions),
        f"num{target}DeletionVectorsUpdated": sum(
            each.deleted is not None and each.live.file.dv is not None for each in deletions
        ),
        "numTargetRowsCopied" if target else "numCopiedRows": 0,
    }
