"""The changes that each commit made to the live files, in columns (``FileLogTable.file_log``).

Commits are read from the snapshot's version backwards, so none before the requested time has to be read. Their actions
become columns batch by batch, with the functions that build ``Snapshot.files``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError, UsageError, located
from dv_maintenance.files.arrays import bools, flags, int32s, int64s, integer, numbers
from dv_maintenance.tables.delta.load import replayed
from dv_maintenance.tables.delta.log.actions import Action, Metadata
from dv_maintenance.tables.delta.log.bulk import bulk_table, dv_ids
from dv_maintenance.tables.delta.log.commit_info import commit_info, commit_time, data_changed, is_ours, operation_of
from dv_maintenance.tables.delta.log.replay import no_collection
from dv_maintenance.tables.delta.log.segment import CommitFile, commit_files, read_commits, segment
from dv_maintenance.tables.delta.log.tail import Tail
from dv_maintenance.tables.delta.rows.files import deleted_rows, possible_rows, sizes
from dv_maintenance.tables.delta.rows.partitions import partition_columns, partition_names
from dv_maintenance.tables.file_log import FILE_CHANGES, FileCommit, FileLog

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_COLUMNS: Final = ("path", "partitionValues", "size", "numRecords", "deletionVector")
# The fields that an add repeats for a file that is live already; its statistics may be new.
_REPEATED: Final = ("path", "partitionValues", "size", "deletionVector")
# Commits read at once; only their columns stay in memory.
_BATCH: Final = 64
_ZERO: Final = integer(0)


@dataclass(frozen=True, slots=True)
class _Commit:
    """One commit.

    metadata : the metadata that the commit sets, if any.
    actions : its adds and removes, see :func:`_actions`. Commits that are read together share one table.
    """

    commit: FileCommit
    metadata: Metadata | None
    actions: pa.Table


@no_collection()
def file_log(storage: Storage, snapshot: DeltaSnapshot, since: int) -> FileLog:
    """See ``FileLogTable.file_log``. The ``version`` of a DamagedTableError is that of the damaged commit."""
    files = _unbroken(commit_files(storage)[0], snapshot.version)
    commits = _read(storage, files, since, stamped=snapshot.in_commit_timestamp is not None)
    if not commits:
        nothing = pa.Table.from_batches([], FILE_CHANGES)
        return FileLog((), nothing, snapshot.version, bool(files) or snapshot.timestamp < since)
    first = commits[0].commit.version
    complete = first == 0 or len(commits) < len(files)
    base = first - 1 if first and _exists(storage, first - 1) else None
    epochs = _epochs(storage, snapshot, commits, base)
    if not epochs:
        # The log no longer shows the partitioning that the oldest of these commits used.
        commits = commits[next(at for at, one in enumerate(commits) if one.metadata) :]
        base, complete = None, False
        epochs = _epochs(storage, snapshot, commits, base)
    changes = _checked(commits, epochs, storage.uri)
    return FileLog(tuple(one.commit for one in commits), changes, base, complete)


def _unbroken(files: Sequence[CommitFile], version: int) -> list[CommitFile]:
    """The commits up to a version, back to the first gap, oldest first."""
    found: list[CommitFile] = []
    for file in reversed(files):
        if file.start == version - len(found):
            found.append(file)
    return found[::-1]


def _exists(storage: Storage, version: int) -> bool:
    """Whether the log still has all files of a version."""
    try:
        segment(storage, version)
    except (UsageError, DamagedTableError):
        return False
    return True


# -- reading ---------------------------------------------------------------------------------------------------------


def _read(storage: Storage, files: Sequence[CommitFile], since: int, *, stamped: bool) -> list[_Commit]:
    """The commits after the last one before ``since``, oldest first.

    stamped : whether commits record their own times. Modification times then only suggest where to start.
    """
    begin = 1 + max((at for at, file in enumerate(files) if file.modified < since), default=-1)
    found: list[_Commit] = []  # newest first
    at, ahead = len(files), 1
    while at > (0 if stamped else begin):
        size = min(_BATCH, at - begin)
        if size <= 0:
            size, ahead = min(_BATCH, ahead, at), 2 * ahead
        for commit in _batch(storage, files[at - size : at])[::-1]:
            if commit.commit.timestamp < since:
                return found[::-1]
            found.append(commit)
        at -= size
    return found[::-1]


def _batch(storage: Storage, files: Sequence[CommitFile]) -> list[_Commit]:
    read: list[FileCommit] = []
    tails: list[Tail] = []
    try:
        for file, actions in read_commits(storage, files):
            tail = Tail(storage.uri)
            tail.read(actions, file.path)
            read.append(_commit(file, actions))
            tails.append(tail)
    except DamagedTableError as error:
        error.version = files[len(tails)].start
        raise
    try:
        table = _actions(files, tails, storage.uri)
    except DamagedTableError:
        for file, tail in zip(files, tails, strict=True):
            try:
                _actions([file], [tail], storage.uri)
            except DamagedTableError as error:
                error.version = file.start
                raise
        raise
    return [_Commit(commit, tail.metadata, table) for commit, tail in zip(read, tails, strict=True)]


def _commit(file: CommitFile, actions: list[Action]) -> FileCommit:
    info = commit_info(actions)
    return FileCommit(file.start, commit_time(file, info), operation_of(info), data_changed(actions), is_ours(info))


def _actions(files: Sequence[CommitFile], tails: Sequence[Tail], uri: str) -> pa.Table:
    """Removes and adds as rows: ``version``, ``added`` and ``_COLUMNS``."""
    tables = []
    for kind in ("remove", "add"):
        bodies: list[Any] = []
        where: list[str] = []
        versions: list[int] = []
        for file, tail in zip(files, tails, strict=True):
            found = _bodies(tail, kind)
            bodies += found
            where += [file.path] * len(found)
            versions += [file.start] * len(found)
        table = bulk_table(kind, bodies, where, _COLUMNS, table=uri)
        added = bools(np.full(len(bodies), kind == "add"))
        tables.append(table.add_column(0, "added", added).add_column(0, "version", int64s(versions)))
    return pa.concat_tables(tables)


def _bodies(tail: Tail, kind: str) -> list[Any]:
    """The adds or removes of a commit. A file that is live already may be added again, with new statistics or tags; it
    then counts as removed first. In a commit without removes, these are the adds with ``dataChange`` false, since a new
    file would change data (protocol: Add File, dataChange). A commit with metadata is an exception: it may create the
    table, as a clone does.
    """
    found = [body for action, body, _ in tail.latest.values() if action == kind]
    if kind == "add" or found or tail.metadata is not None:
        return found
    again = (body for _, body, _ in tail.latest.values() if body.get("dataChange") is False)
    return [{name: body[name] for name in _REPEATED if name in body} for body in again]


# -- rows ------------------------------------------------------------------------------------------------------------


def _epochs(
    storage: Storage, snapshot: DeltaSnapshot, commits: Sequence[_Commit], base: int | None
) -> list[tuple[int, Metadata]]:
    """Each metadata with the version from which it is in force, oldest first; empty if the first one is unknown."""
    changes = [(one.commit.version, one.metadata) for one in commits if one.metadata is not None]
    first = commits[0].commit.version
    if not changes:
        return [(first, snapshot.metadata)]
    if changes[0][0] == first:
        return changes
    before = None if base is None else replayed(storage, base, adds=())[1].metadata
    return [] if before is None else [(first, before), *changes]


def _checked(commits: Sequence[_Commit], epochs: Sequence[tuple[int, Metadata]], uri: str) -> pa.Table:
    """:func:`_changes`; an error names the commit."""
    try:
        return _changes(commits, epochs)
    except DamagedTableError:
        for one in commits:
            version = one.commit.version
            metadata = next(metadata for start, metadata in reversed(epochs) if start <= version)
            with located(uri, version):
                _changes([one], [(version, metadata)])
        raise


def _changes(commits: Sequence[_Commit], epochs: Sequence[tuple[int, Metadata]]) -> pa.Table:
    """Rows of FILE_CHANGES: for each commit, the removed files, then the added ones."""
    first, last = commits[0].commit.version, commits[-1].commit.version
    rows = pa.concat_tables({id(one.actions): one.actions for one in commits}.values())
    version = _numbers(rows["version"])
    order = np.argsort(2 * version + flags(rows["added"]), kind="stable")
    # Tables of commits that were read together may include rows of other commits.
    low, high = np.searchsorted(version[order], [first, last + 1])
    rows, version = rows.take(int32s(order[low:high])), version[order[low:high]]
    adds = rows.filter(rows["added"])
    sizes(adds)
    deleted_rows(adds)
    starts = [*np.searchsorted(version, [start for start, _ in epochs]).tolist(), len(rows)]
    partitions = [
        _partitions(rows.slice(start, end - start), metadata)
        for (_, metadata), start, end in zip(epochs, starts[:-1], starts[1:], strict=True)
    ]
    descriptors = rows["deletionVector"]
    gone = pc.if_else(pc.is_null(descriptors), _ZERO, pc.struct_field(descriptors, "cardinality"))
    columns = {
        "commit": int64s((version - first).tolist()),
        "added": rows["added"],
        "path": rows["path"],
        "dv_id": dv_ids(descriptors),
        "partition": pa.chunked_array(partitions),
        "size": rows["size"],
        "physical_rows": possible_rows(rows["numRecords"], gone),
        "deleted_rows": gone,
    }
    return pa.Table.from_arrays(list(columns.values()), schema=FILE_CHANGES).unify_dictionaries()


def _partitions(rows: pa.Table, metadata: Metadata) -> pa.Array:
    """``partition`` of each row; null for a remove that does not name it."""
    columns = partition_columns(metadata)
    values = rows["partitionValues"]
    names = partition_names(values, columns).chunk(0)
    if not columns:
        return names
    entries = [np.diff(numbers(chunk.offsets)) for chunk in values.chunks]
    known = flags(rows["added"]) | (np.concatenate([np.zeros(0, np.int32), *entries]) > 0)
    indices = pc.if_else(bools(known), names.indices, pa.nulls(len(names), pa.int32()))
    return pa.DictionaryArray.from_arrays(indices, names.dictionary)


def _numbers(column: pa.ChunkedArray) -> Any:
    return np.concatenate([numbers(chunk) for chunk in column.chunks] or [np.zeros(0, np.int64)])
