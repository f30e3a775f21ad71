"""The change data feed: the rows that each version of a range inserted, deleted or updated.

A version with ``cdc`` actions has recorded its changes, and only these count. Otherwise the changes follow from its
files. Rows of an added file are inserts, and rows of a removed file are deletes. If a file comes back with another
deletion vector (DV), the rows that only the new DV names are deletes, and those that only the old one names are
inserts. Actions with ``dataChange`` false move rows without changing any. (protocol: Change Data Files, "Reader
Requirements for AddCDCFile")

Without ``delta.enableChangeDataFeed``, a writer may copy rows from one file to another and write no ``cdc``. Such a
version is refused: copied rows would appear as deleted and inserted. All other versions can be read; an update appears
as a delete and an insert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from dv_maintenance.dv import DeletionVector, delta
from dv_maintenance.errors import DamagedTableError, RefusedError, UsageError, located
from dv_maintenance.files.parquet_footer import read_footer
from dv_maintenance.resources import raise_if_refused
from dv_maintenance.storage import RawName
from dv_maintenance.storage.failures import storage_failure
from dv_maintenance.tables.capabilities import CHANGE_COLUMNS, ChangeFeed, ChangeTask
from dv_maintenance.tables.delta.commit.conflicts import logical_key
from dv_maintenance.tables.delta.commit.live_file import LiveFile
from dv_maintenance.tables.delta.features import check_readable
from dv_maintenance.tables.delta.load import replayed
from dv_maintenance.tables.delta.log.actions import Action, Metadata, Protocol
from dv_maintenance.tables.delta.log.ratified import RatifiedStorage
from dv_maintenance.tables.delta.log.segment import CommitFile, commit_files, read_commits
from dv_maintenance.tables.delta.log.timeline import CLOCK_SLACK, modified_times
from dv_maintenance.tables.delta.rows.partitions import PartitionColumn, constants, partition_columns
from dv_maintenance.tables.delta.rows.schema import arrow_schema, column_mapping_mode, physical_name
from dv_maintenance.tables.delta.rows.tasks import dv_ref
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.work import DvRef, ScanTask, SourceFile

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

_CHANGE_TYPE: Final = CHANGE_COLUMNS.field("_change_type")
# The metrics of a commit that count rows copied by copy-on-write.
_COPIED: Final = ("numCopiedRows", "numTargetRowsCopied")
# An overwrite writes new rows. A restore exchanges whole files: rows that a compaction moved in between are deleted and
# inserted, as in delta-spark's feed.
_COPIES_NOTHING: Final = frozenset({"RESTORE", "WRITE"})
_MERGED: Final = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


def change_feed(storage: Storage, first: int, last: int | None = None) -> ChangeFeed:
    """Changes of the versions ``first`` to ``last`` (the newest by default), both included, under the schema of
    ``last``.

    Raises
    ------
    UsageError : no such versions, or their commits are no longer in the log; names the first that still is.
    RefusedError : the schema changed in between in a way that one schema can't express, or a version copied rows
        without a change data feed. Says which part of the range can be read.
    UnsupportedFeatureError, DamagedTableError : as a snapshot. Missing files are only reported when they are read.
    """
    commits, times = _commits(storage, first, last)
    last = commits[-1].start
    begin, end = _head(storage, first), _head(storage, last)
    reader = _Reader(storage, end.metadata)
    _check_schema(begin.metadata, end, storage, first, first)
    metadata, found, inferred = begin.metadata, [], []
    for file, actions in read_commits(storage, commits):
        commit = _Commit.parse(storage, file, actions, times[file.start])
        if commit.metadata is not None and commit.version > first:
            metadata = commit.metadata
            _check_schema(metadata, end, storage, commit.version, first)
        if commit.version == first and commit.metadata is not None and commit.removed:
            # The files that it removes have the previous schema, which can't be checked if log cleanup deleted it.
            _check_schema(_metadata_before(storage, first) or metadata, end, storage, first, first)
        if commit.changed and not (commit.cdc or has_feed(metadata)):
            _check_copies(commit, storage)
            if commit.removed and commit.added.keys() - commit.removed.keys():
                inferred.append(commit.version)
        found.append(commit)
    tasks = (task for commit in found for task in reader.tasks(commit))
    return ChangeFeed(first, last, reader.feed_schema, tasks, tuple(inferred))


# -- the range -----------------------------------------------------------------------------------------------------


def _commits(storage: Storage, first: int, last: int | None) -> tuple[list[CommitFile], dict[int, int]]:
    """All commits of the range, and their times in epoch milliseconds."""
    if first < 0 or (last is not None and last < first):
        raise UsageError(
            f"there are no changes from version {first} to {'the newest' if last is None else last}",
            table=storage.uri,
            next_step="give a first version that is not after the last; both are included",
        )
    known, newest = commit_files(storage, max(first - CLOCK_SLACK, 0) - 1)
    last = newest if last is None else last
    if max(first, last) > newest:
        raise UsageError(
            f"version {max(first, last)} does not exist", table=storage.uri, next_step=f"give at most version {newest}"
        )
    present = {commit.start: commit for commit in known}
    missing = [version for version in range(first, last + 1) if version not in present]
    if missing:
        available = 1 + next(version for version in range(newest, -1, -1) if version not in present)
        raise UsageError(
            f"version {missing[0]} is no longer in the log: its changes can no longer be determined",
            table=storage.uri,
            version=newest,
            next_step=f"start from version {available}, the first that still exists",
        )
    return [present[version] for version in range(first, last + 1)], modified_times(known)


@dataclass(frozen=True, slots=True)
class _Head:
    version: int
    protocol: Protocol
    metadata: Metadata


def _head(storage: Storage, version: int) -> _Head:
    """Protocol and metadata of a version, without its files."""
    _, state, _ = replayed(storage, version, adds=())
    if state.protocol is None or state.metadata is None or not state.metadata.schema_string:
        raise DamagedTableError("the log has no protocol or no schema", table=storage.uri, version=version)
    check_readable(state.protocol, table=storage.uri, managed=isinstance(storage, RatifiedStorage))
    return _Head(version, state.protocol, state.metadata)


def _metadata_before(storage: Storage, version: int) -> Metadata | None:
    try:
        return _head(storage, version - 1).metadata
    except UsageError:
        return None


# -- one commit ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """The file of an action.

    rows : physical rows according to its statistics; ``None`` if unknown.
    placed : whether the action has ``partitionValues``, even empty ones (all null). A remove may leave them out.
    """

    file: LiveFile
    rows: int | None
    placed: bool


@dataclass(slots=True)
class _Commit:
    """The data changes of a version. ``added`` and ``removed`` are by canonical path."""

    version: int
    timestamp: int
    cdc: list[_File] = field(default_factory=list)
    added: dict[str, _File] = field(default_factory=dict)
    removed: dict[str, _File] = field(default_factory=dict)
    metadata: Metadata | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return bool(self.cdc or self.added or self.removed)

    @property
    def metrics(self) -> Mapping[str, Any]:
        metrics = self.info.get("operationMetrics")
        return metrics if isinstance(metrics, dict) else {}

    @classmethod
    def parse(cls, storage: Storage, file: CommitFile, actions: Sequence[Action], timestamp: int) -> _Commit:
        commit = cls(file.start, timestamp)
        for action in actions:
            for kind, body in action.items():
                match kind:
                    case "cdc":
                        commit.cdc.append(_file(storage, body, file.path)[1])
                    case "add" | "remove":
                        commit._take(storage, kind, body, file.path)
                    case "metaData":
                        commit.metadata = Metadata.from_json(body, where=file.path)
                    case "commitInfo" if isinstance(body, dict):
                        commit.info = body
                        stamp = body.get("inCommitTimestamp")
                        commit.timestamp = stamp if type(stamp) is int else timestamp
        # Only its metrics show that a MERGE rewrote files but changed no row.
        if commit.info.get("operation") == "MERGE" and all(commit.metrics.get(name) == "0" for name in _MERGED):
            commit.added, commit.removed = {}, {}
        return commit

    def _take(self, storage: Storage, kind: str, body: Any, where: str) -> None:
        path, file = _file(storage, body, where)
        if body.get("dataChange") is False:
            return
        files = self.added if kind == "add" else self.removed
        if path in files:
            raise DamagedTableError(f"{where} has two {kind} actions for {path}", table=storage.uri)
        files[path] = file


def _file(storage: Storage, body: Any, where: str) -> tuple[str, _File]:
    """The canonical path, and the file of an add, remove or cdc action. The last two need no size."""
    path = logical_key(body, lambda name: storage.path_of(RawName(name)), where=where).path
    with located(storage.uri):
        file = LiveFile.from_add({**body, "size": body.get("size") or 0})
    return path, _File(file, _num_records(body.get("stats")), body.get("partitionValues") is not None)


def _num_records(stats: object) -> int | None:
    try:
        rows = orjson.loads(stats)["numRecords"] if isinstance(stats, str) else None
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None
    return rows if type(rows) is int and rows >= 0 else None


def has_feed(metadata: Metadata) -> bool:
    """Whether writers record the changes that they make."""
    return metadata.configuration.get("delta.enableChangeDataFeed", "false").lower() == "true"


def _check_copies(commit: _Commit, storage: Storage) -> None:
    """Refuse a version that may have copied rows from its removed files to its added files."""
    if not (commit.removed.keys() - commit.added.keys() and commit.added.keys() - commit.removed.keys()):
        return
    copied = [commit.metrics[name] for name in _COPIED if name in commit.metrics]
    if commit.info.get("operation") in _COPIES_NOTHING or (copied and all(str(rows) == "0" for rows in copied)):
        return
    raise RefusedError(
        f"version {commit.version} rewrote files while delta.enableChangeDataFeed was off: which of their rows it "
        "changed, and which it only copied, is not recorded",
        table=storage.uri,
        version=commit.version,
        next_step=f"request versions before or after {commit.version}; to record all changes from now on, set "
        "delta.enableChangeDataFeed to true",
    )


# -- schema --------------------------------------------------------------------------------------------------------


def _check_schema(metadata: Metadata, end: _Head, storage: Storage, version: int, first: int) -> None:
    """Refuse a version if rows written under ``metadata`` do not read as the same rows under the last schema. Added
    columns are fine: they read as nulls. So are widened types. Renamed, dropped and tightened columns are not.
    """
    widens = bool({"typeWidening", "typeWidening-preview"} & end.protocol.features("reader"))
    problem = (
        "the partition columns changed"
        if metadata.partition_columns != end.metadata.partition_columns
        else _unreadable(list(arrow_schema(metadata)), list(arrow_schema(end.metadata)), (), widens)
    )
    if problem is None:
        return
    parts = (
        "only later versions have the schema of the last one" if version == first else f"read up to {version - 1} first"
    )
    raise RefusedError(
        f"the schema of version {version} is incompatible with that of version {end.version}: {problem}",
        table=storage.uri,
        version=version,
        next_step=f"request fewer versions at once: {parts}",
    )


def _unreadable(old: Sequence[pa.Field], new: Sequence[pa.Field], path: tuple[str, ...], widens: bool) -> str | None:
    known = {field.name: field for field in new}
    for before in old:
        name = ".".join((*path, before.name))
        after = known.get(before.name)
        if after is None:
            return f"column {name} is gone"
        if physical_name(before) != physical_name(after):
            return f"column {name} was replaced by another column"
        if before.nullable and not after.nullable:
            return f"column {name} may no longer be null"
        if problem := _unfit(before.type, after.type, (*path, before.name), widens):
            return problem
    return None


def _unfit(old: pa.DataType, new: pa.DataType, path: tuple[str, ...], widens: bool) -> str | None:
    nested = pa.types.is_struct, pa.types.is_list, pa.types.is_map
    if any(kind(old) and kind(new) for kind in nested):
        inner = [[type_.field(at) for at in range(type_.num_fields)] for type_ in (old, new)]
        return _unreadable(inner[0], inner[1], path, widens)
    if old.equals(new) or (widens and not any(kind(old) or kind(new) for kind in nested)):
        return None
    return f"column {'.'.join(path)} changed from {old} to {new}"


# -- reading -------------------------------------------------------------------------------------------------------


class _Reader:
    """Builds read tasks under the schema of ``metadata``."""

    def __init__(self, storage: Storage, metadata: Metadata) -> None:
        self.storage = storage
        self.schema = arrow_schema(metadata, any_null=True)
        self.partitions: tuple[PartitionColumn, ...] = partition_columns(metadata)
        self.match_by = "id" if column_mapping_mode(metadata) == "id" else "name"
        if taken := sorted(set(CHANGE_COLUMNS.names) & set(self.schema.names)):
            raise RefusedError(
                f"the table has a column {taken[0]}, a name that is reserved for the change feed",
                table=storage.uri,
                next_step="rename the column",
            )
        self.feed_schema = pa.schema([*self.schema, *CHANGE_COLUMNS])

    def tasks(self, commit: _Commit) -> Iterator[ChangeTask]:
        """The tasks of a commit, deletes before inserts. DVs are read one file at a time, as the tasks are consumed."""
        if commit.cdc:
            for each in commit.cdc:
                yield self._recorded(commit, each)
            return
        for path, removed in commit.removed.items():
            if path not in commit.added:
                yield self._whole(commit, removed, "delete")
                continue
            yield from self._difference(commit, removed, commit.added[path])
        for path, added in commit.added.items():
            if path not in commit.removed:
                yield self._whole(commit, added, "insert")

    def _recorded(self, commit: _Commit, each: _File) -> ChangeTask:
        # By name under every column mapping mode: `_change_type` has no field id.
        scan = ScanTask((self._source(each, self._dv(each.file)),), pa.schema([*self.schema, _CHANGE_TYPE]), "name")
        return ChangeTask(commit.version, commit.timestamp, None, scan)

    def _whole(self, commit: _Commit, each: _File, change_type: str) -> ChangeTask:
        return self._task(commit, change_type, self._source(each, self._dv(each.file)))

    def _difference(self, commit: _Commit, removed: _File, added: _File) -> Iterator[ChangeTask]:
        # Not by the statistics: with too few rows, those beyond would be taken for changed ones.
        rows = self._count(added.file)
        older, newer = (self._read(file.file, rows) for file in (removed, added))
        for change_type, positions in (("delete", newer - older), ("insert", older - newer)):
            if positions:
                source = self._source(replace(added, rows=rows), _all_but(positions, rows))
                yield self._task(commit, change_type, source)

    def _task(self, commit: _Commit, change_type: str, source: SourceFile) -> ChangeTask:
        scan = ScanTask((source,), self.schema, self.match_by)
        return ChangeTask(commit.version, commit.timestamp, change_type, scan)

    def _source(self, each: _File, dv: DvRef | None) -> SourceFile:
        file = each.file
        if self.partitions and not each.placed:
            raise RefusedError(
                f"the log does not say which partition the removed file {file.path} was in",
                table=self.storage.uri,
                next_step="request later versions: the writer of this one omitted optional fields of the remove",
            )
        return SourceFile(
            key=file.key,
            uri=self.storage.uri_of(self.storage.path_of(RawName(file.path))),
            size=file.size,
            rows=each.rows,
            exact_rows=False,
            dv=dv,
            constants=constants(file.partition_values, self.partitions),
        )

    def _dv(self, file: LiveFile) -> DvRef | None:
        return None if file.dv is None else dv_ref(self.storage, file.dv)

    def _read(self, file: LiveFile, rows: int | None) -> DeletionVector:
        ref = self._dv(file)
        return DeletionVector.empty() if ref is None else load(ref, self.storage.get_range, rows=rows)

    def _count(self, file: LiveFile) -> int:
        """Physical rows according to the file's footer."""
        try:
            with self.storage.open_input(self.storage.path_of(RawName(file.path))) as data:
                return int(read_footer(data).num_rows)
        except (FileNotFoundError, pa.ArrowException, MemoryError, OSError) as error:
            raise_if_refused(error, file.path)
            if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
                raise storage_failure(file.path, error, table=self.storage.uri) from error
            raise DamagedTableError(f"{file.path} cannot be read: {error}", table=self.storage.uri) from error


def _all_but(positions: DeletionVector, rows: int) -> DvRef | None:
    """A DV that leaves only ``positions`` of a file's ``rows``; ``None`` if these are all rows."""
    others = DeletionVector.from_ranges([(0, rows)]) - positions
    if not others:
        return None
    made = delta.inline(others)
    return DvRef("delta", made.cardinality, made.size_in_bytes, inline=made.path_or_inline)
