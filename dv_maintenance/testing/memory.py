"""A small table format, for tests of everything above formats and engines.

Rows are JSON values, data files are JSON files in a folder, versions live in this process. It keeps the promises of the
``Table`` and ``Engine`` protocols and has hooks with which a test adds other writers, or trouble.
"""
# ruff: noqa: ARG002 - the protocol's arguments, used or not

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.carry import Source, carry_over
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.files.arrays import int64s
from dv_maintenance.storage import Storage
from dv_maintenance.tables.file_log import FILE_CHANGES, FileCommit, FileLog
from dv_maintenance.tables.fsck import DATA, LogFault, Needed, Repair, needed
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.model import (
    FILES_SCHEMA,
    Change,
    Changes,
    ExpiredFile,
    ExpiredFiles,
    FileKey,
    HistoryEntry,
    OldestDv,
    Snapshot,
    parse_partition,
)
from dv_maintenance.tables.partition_spec import SPEC_ID, PartitionField, PartitionSpec, by_columns
from dv_maintenance.tables.predicate import Bounds, Column, Predicate, bind, may_be_true
from dv_maintenance.tables.reports import ManifestReport, VacuumReport
from dv_maintenance.tables.table import CommitOutcome, Probe, Rebased, Replacement
from dv_maintenance.tables.work import DvRef, RewriteBin, RewriteTask, ScanTask, SourceFile
from dv_maintenance.testing.memory_engine import write_file
from dv_maintenance.testing.memory_log import File, MemoryLog, NamedTable, Version
from dv_maintenance.units import DAY

_SCHEMA = pa.schema([("row", pa.string())])
_RETENTION = 7 * DAY


class MemoryTable:
    """A table in ``folder``, with versions of its own unless a catalog has them.

    before_commit : runs at the start of a commit.
    after_commit : runs after a commit, before it is reported.
    carries : whether a delete that raced with a rewrite can be carried over.
    """

    format = "memory"

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        *,
        schema: pa.Schema = _SCHEMA,
        log: MemoryLog | None = None,
        catalog: NamedTable | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.storage = Storage(str(folder))
        self.uri = self.storage.uri
        self.properties = dict(properties or {})
        self.schema = schema
        self.catalog = catalog
        self.before_commit: Callable[[], None] = _nothing
        self.after_commit: Callable[[], None] = _nothing
        self.carries = True
        self.snapshots = 0  # how many were loaded
        self._own = log or MemoryLog()

    @property
    def log(self) -> MemoryLog:
        return self._own if self.catalog is None else self.catalog.log

    @property
    def now(self) -> int:
        """Its clock, epoch milliseconds."""
        return self.log.now

    @now.setter
    def now(self, moment: int) -> None:
        self.log.now = moment

    @property
    def _versions(self) -> list[Version]:
        return self.log.versions

    # -- other writers --------------------------------------------------------------------------------------------

    def append(self, partition: str, rows: Sequence[Any], *, counted: bool = True) -> str:
        """Add a file with these rows, and return its path."""
        path = f"data-{next(self.log.numbers)}.json"
        output = write_file(self.storage, path, rows)
        file = File(partition, output.size, len(rows), frozenset(), self.now, counted)
        self._add({**self._files, FileKey(path): file}, "WRITE", data_changed=True)
        return path

    def evolve(self, *fields: PartitionField) -> PartitionSpec:
        """Give new files another partition specification."""
        specs = self._versions[-1].specs
        spec = PartitionSpec(len(specs), fields)
        self._add(self._files, "SET SPEC", data_changed=False, specs=(*specs, spec))
        return spec

    @property
    def spec(self) -> PartitionSpec:
        """That of new files."""
        return self._specs(len(self._versions) - 1)[-1]

    def delete(self, path: str, positions: Sequence[int]) -> FileKey:
        """Delete rows of a live file by position: the same file with a larger DV."""
        key = next(key for key in self._files if key.path == path)
        file = self._files[key]
        deleted = file.deleted | set(positions)
        assert max(deleted) < file.rows
        new = FileKey(path, f"dv-{next(self.log.numbers)}")
        rest = {other: each for other, each in self._files.items() if other != key}
        self._add({**rest, new: replace(file, deleted=deleted)}, "DELETE", data_changed=True)
        return new

    def delete_where(self, where: Callable[[str, Any], bool], *, keep_empty: bool = False) -> int:
        """Delete the rows for which ``where`` (partition, row) holds, with one commit, and return its version. Files
        without live rows go, unless ``keep_empty``.
        """
        files: dict[FileKey, File] = {}
        for key, file in self._files.items():
            rows = enumerate(json.loads(self.storage.get(key.path)))
            deleted = file.deleted | {position for position, row in rows if where(file.partition, row)}
            if deleted == file.deleted:
                files[key] = file
            elif keep_empty or len(deleted) < file.rows:
                files[FileKey(key.path, f"dv-{next(self.log.numbers)}")] = replace(file, deleted=deleted)
        self._add(files, "DELETE", data_changed=True)
        return self.version()

    def rows(self, version: int | None = None) -> list[str]:
        """Every live row as JSON, sorted, as a query returns them."""
        files = self._versions[-1 if version is None else self._place(version)].files
        return sorted(
            json.dumps([file.partition, row])
            for key, file in files.items()
            for position, row in enumerate(json.loads(self.storage.get(key.path)))
            if position not in file.deleted
        )

    def rows_of_files(self, snapshot: Snapshot) -> list[list[Any]]:
        """The live rows of each file of a snapshot."""
        files = self._at(snapshot.version).files
        return [
            [row for at, row in enumerate(json.loads(self.storage.get(key.path))) if at not in file.deleted]
            for key, file in files.items()
        ]

    def stored(self) -> set[str]:
        """Paths of all data files that exist, live or not."""
        return {path.name for path in self.folder.glob("*.json")}

    @property
    def keys(self) -> set[FileKey]:
        return set(self._files)

    @property
    def operations(self) -> list[str]:
        return [version.operation for version in self._versions]

    # -- the protocol --------------------------------------------------------------------------------------------

    def path_of(self, name: str) -> str:
        return name

    def version(self, known: int | None = None) -> int:
        return self._versions[-1].id

    def probe(self, known: int | None = None) -> Probe:
        return Probe(self.version(known), self.stamp(self.version(known)) or "")

    def stamp(self, version: int) -> str | None:
        return f"{id(self.log):x}-{version}" if version in [each.id for each in self._versions] else None

    def snapshot(self, version: int | None = None) -> Snapshot:
        self.snapshots += 1
        version = self.version() if version is None else version
        place = self._place(version)
        files = self._versions[place].files
        rows = [
            {
                "path": key.path,
                "partition": file.partition,
                "size": file.size,
                "physical_rows": file.rows if file.counted else None,
                "deleted_rows": len(file.deleted),
                "dv_id": key.dv_id,
                "modified": file.modified,
            }
            for key, file in files.items()
        ]
        return Snapshot(
            table=self.uri,
            format=self.format,
            version=version,
            timestamp=self._versions[place].timestamp,
            schema=self.schema,
            specs=self._specs(place),
            properties=self.properties,
            files=pa.Table.from_pylist(rows, schema=FILES_SCHEMA),
        )

    def parent_of(self, version: int) -> int:
        if not (place := self._place(version)):
            raise UsageError(f"version {version} is the first one", table=self.uri)
        return self._versions[place - 1].id

    def follows(self, version: int, earlier: int) -> bool:
        order = [each.id for each in self._versions]
        return version in order and earlier in order[: order.index(version)]

    def changes_since(self, version: int | None) -> Changes:
        later = self._versions[0 if version is None else self._place(version) + 1 :]
        commits = tuple(Change(each.id, each.timestamp, each.operation, each.data_changed) for each in later)
        data = [change.version for change in commits if change.data_changed]
        return Changes(version, self.version(), data[-1] if data else None, commits)

    def check_writable(self, snapshot: Snapshot, operation: str) -> None:
        """Every operation is allowed."""

    def may_match(self, snapshot: Snapshot, predicate: Predicate) -> pa.BooleanArray:
        bound = bind(predicate, snapshot.schema)
        names = snapshot.files["partition"].to_pylist()
        possible = {name: may_be_true(bound, self._bounds(snapshot, name)) for name in dict.fromkeys(names)}
        return pa.array([possible[name] for name in names], pa.bool_())

    def local_times(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        return {}

    def scan_tasks(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
        files = self._at(snapshot.version).files
        return [ScanTask((self._source(key, snapshot.version),), self.schema) for key in files]

    def rewrite_tasks(
        self, snapshot: Snapshot, bins: Sequence[RewriteBin], target_bytes: int, compression: str | None = None
    ) -> list[RewriteTask]:
        return [
            RewriteTask(
                id=each.id,
                scan=ScanTask(tuple(self._source(key, snapshot.version) for key in each.inputs), self.schema),
                output_uri=self.uri,
                target_bytes=target_bytes,
            )
            for each in bins
        ]

    def commit(
        self,
        base: Snapshot,
        replacements: Sequence[Replacement],
        *,
        operation: Mapping[str, Any],
        max_attempts: int = 10,
    ) -> CommitOutcome:
        self.before_commit()
        files = dict(self._files)
        old = self._at(base.version).files
        stay: dict[str, list[DeletionVector]] = {}
        rebased = []
        for each in replacements:
            now = {key: self._now(key) for key in each.inputs}
            changed = any(now[key] != key for key in each.inputs)
            deleted = [DeletionVector.empty()] * len(each.outputs)
            if changed:
                carried = self._carry(each, old, now)
                if carried is None:
                    continue
                deleted = carried
                there = tuple(key for key in now.values() if key is not None)
                rebased.append(Rebased(each.id, there, tuple(map(len, deleted))))
            stay[each.id] = deleted
            for key in filter(None, now.values()):
                del files[key]
            for output, dv in zip(each.outputs, deleted, strict=True):
                key = FileKey(self.storage.path_of_uri(output.uri), f"dv-{next(self.log.numbers)}" if dv else None)
                if not dv or len(dv) < output.rows:
                    gone = frozenset(dv.positions().tolist())
                    files[key] = File(each.partition, output.size, output.rows, gone, self.now)
        lost = tuple(each.id for each in replacements if each.id not in stay)
        reason = "another writer changed an input" if lost else ""
        if not stay:
            return CommitOutcome(None, (), lost, 1, reason)
        self._add(files, operation["name"], data_changed=False, parameters=operation["parameters"], ours=True)
        version = self.version()
        self.after_commit()
        return CommitOutcome(version, tuple(stay), lost, 1, reason, tuple(rebased))

    def _now(self, key: FileKey) -> FileKey | None:
        """The file with its current DV."""
        return next((each for each in self._files if each.path == key.path), None)

    def _carry(
        self, replacement: Replacement, old: Mapping[FileKey, File], now: Mapping[FileKey, FileKey | None]
    ) -> list[DeletionVector] | None:
        """The replacement as it can be committed; ``None`` if it is lost."""
        if not self.carries or not replacement.kept or any(key not in old for key in replacement.inputs):
            return None
        of = DeletionVector.from_positions
        sources = [
            Source(kept, of(sorted(old[key].deleted)), None if new is None else of(sorted(self._files[new].deleted)))
            for kept, (key, new) in zip(replacement.kept, now.items(), strict=True)
        ]
        if any(source.newer is not None and source.older - source.newer for source in sources):
            return None
        carried = carry_over(sources, [output.rows for output in replacement.outputs])
        return carried if sum(map(len, carried)) < sum(replacement.kept) else None

    def vacuum(self, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
        guard = request.guard
        if guard.quarantine or guard.versions or guard.streams:
            raise RefusedError("memory tables can't set files aside or protect them", table=self.uri)
        kept_for = _RETENTION if request.retention is None else request.retention
        if kept_for < _RETENTION and not request.allow_short_retention:
            raise RefusedError("a retention below the table's own", table=self.uri, version=self.version())
        cutoff = (self.now if request.now is None else request.now) - kept_for
        # Needed are the files of every version that was the newest at the cutoff or later.
        ends = [each.timestamp for each in self._versions[1:]] + [cutoff]
        needed = {
            key.path for each, end in zip(self._versions, ends, strict=True) if end >= cutoff for key in each.files
        }
        # A file that no version names may be about to be committed.
        named = {key.path for each in self._versions for key in each.files}
        gone = sorted((self.stored() & named) - needed)
        before = self.version()
        expired = tuple(ExpiredFile(path, "data", 1, 0) for path in gone)
        refused = guard.refusal(expired, len(self.stored()), len(self.stored()))
        if not request.dry_run:
            guard.check(refused, table=self.uri, version=before)
        if gone and not request.dry_run:
            self.storage.delete(gone)
            self._add(self._files, "VACUUM END", data_changed=False, ours=True)
        report = ExpiredFiles(before, cutoff, kept_for, expired)
        return VacuumReport(
            report, 0 if request.dry_run else len(gone), request.dry_run, before, self.version(), refused
        )

    def write_manifests(self, snapshot: Snapshot, *, dry_run: bool = False) -> ManifestReport:
        if snapshot.files["dv_id"].null_count < snapshot.files.num_rows:
            raise RefusedError("there are deletion vectors", table=self.uri, version=snapshot.version)
        if not dry_run:
            self.storage.put("_symlink_format_manifest/manifest", b"")
        return ManifestReport(snapshot.version, ("_symlink_format_manifest/manifest",), snapshot.files.num_rows)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        entries = [
            HistoryEntry(
                version=each.id,
                timestamp=each.timestamp,
                operation=each.operation,
                parameters=each.parameters,
                metrics={},
                engine=None,
                files_added=len(each.files.keys() - before.files.keys()),
                files_removed=len(before.files.keys() - each.files.keys()),
                dvs_added=sum(key.dv_id is not None for key in each.files.keys() - before.files.keys()),
                dvs_removed=sum(key.dv_id is not None for key in before.files.keys() - each.files.keys()),
                rows_deleted_by_dvs=_grown(before.files, each.files),
                data_changed=each.data_changed,
            )
            for before, each in zip(self._versions[:1] + self._versions, self._versions, strict=False)
        ]
        return entries[::-1][:limit]

    def retention(self, snapshot: Snapshot) -> int:
        del snapshot
        return _RETENTION

    def oldest_dv(self, snapshot: Snapshot, limit: int = 1000) -> OldestDv | None:
        newest = since = self._place(snapshot.version)
        wanted = _with_dv(self._versions[newest])
        if not wanted:
            return None
        while since and (wanted := wanted & _with_dv(self._versions[since - 1])):
            since -= 1
        read = max(since, newest + 1 - limit)
        return OldestDv(self._versions[read].timestamp, exact=read == since)

    def file_log(self, snapshot: Snapshot, since: int) -> FileLog:
        end = first = self._place(snapshot.version) + 1
        while first and self._versions[first - 1].timestamp >= since:
            first -= 1
        commits = []
        rows = []
        for number in range(first, end):
            each = self._versions[number]
            before = self._versions[number - 1].files if number else {}
            commits.append(FileCommit(each.id, each.timestamp, each.operation, each.data_changed, each.ours))
            removed = {key: file for key, file in before.items() if key not in each.files}
            added = {key: file for key, file in each.files.items() if key not in before}
            rows += [
                {
                    "commit": number - first,
                    "added": files is added,
                    "path": key.path,
                    "dv_id": key.dv_id,
                    "partition": file.partition,
                    "size": file.size,
                    "physical_rows": file.rows if file.counted else None,
                    "deleted_rows": len(file.deleted),
                }
                for files in (removed, added)
                for key, file in files.items()
            ]
        changes = pa.Table.from_pylist(rows, schema=FILE_CHANGES)
        return FileLog(tuple(commits), changes, self._versions[first - 1].id if first else None, complete=True)

    def log_faults(self, snapshot: Snapshot) -> tuple[LogFault, ...]:
        return ()

    def needed_files(self, snapshot: Snapshot) -> pa.Table:
        files = snapshot.files
        paths, sizes = files["path"].combine_chunks(), files["size"].combine_chunks()
        return needed([Needed(DATA, paths, sizes, exact=True, files=int64s(range(files.num_rows)))])

    def stored_sources(self, snapshot: Snapshot) -> Iterator[SourceFile]:
        for key in self._at(snapshot.version).files:
            # Its DVs are in this process: there are no bytes to look at.
            yield replace(self._source(key, snapshot.version), dv=None, format="json")

    def remedies(self, snapshot: Snapshot, kinds: Collection[str], back_to: int | None) -> tuple[Repair, ...]:
        return () if back_to is None else (Repair(f"Go back to version {back_to}.", None, "What came after it."),)

    # -- plumbing ------------------------------------------------------------------------------------------------

    @property
    def _files(self) -> Mapping[FileKey, File]:
        return self._versions[-1].files

    def _place(self, version: int) -> int:
        found = next((place for place, each in enumerate(self._versions) if each.id == version), None)
        if found is None:
            raise UsageError(f"there is no version {version}", table=self.uri)
        return found

    def _at(self, version: int) -> Version:
        return self._versions[self._place(version)]

    def _add(
        self,
        files: Mapping[FileKey, File],
        operation: str,
        *,
        data_changed: bool,
        parameters: Mapping[str, Any] | None = None,
        ours: bool = False,
        specs: tuple[PartitionSpec, ...] | None = None,
    ) -> None:
        self.now += 1
        known = self._versions[-1].specs if specs is None else specs
        self._versions.append(
            Version(next(self.log.ids), dict(files), self.now, operation, data_changed, parameters or {}, ours, known)
        )

    def _specs(self, place: int) -> tuple[PartitionSpec, ...]:
        if specs := self._versions[place].specs:
            return specs
        ever = {file.partition for each in self._versions[: place + 1] for file in each.files.values()}
        return by_columns(*sorted({name for partition in ever for name in parse_partition(partition)}))

    def _bounds(self, snapshot: Snapshot, partition: str) -> Callable[[Column], Bounds]:
        """What the partition says about columns."""
        values = parse_partition(partition)
        number = int(values.get(SPEC_ID) or 0)
        known: dict[Column, Bounds] = {
            (each.source,): each.bounds(values[each.name], snapshot.schema)
            for spec in snapshot.specs
            for each in spec.fields
            if spec.id == number and each.name in values and each.source in snapshot.schema.names
        }
        return lambda column: known.get(column, Bounds())

    def _source(self, key: FileKey, version: int) -> SourceFile:
        file = self._at(version).files[key]
        dv = DvRef("memory", len(file.deleted), 0, inline=json.dumps(sorted(file.deleted))) if key.dv_id else None
        return SourceFile(key, self.storage.uri_of(key.path), file.size, file.rows if file.counted else None, dv)


def _with_dv(version: Version) -> set[str]:
    return {key.path for key in version.files if key.dv_id is not None}


def _grown(before: Mapping[FileKey, File], after: Mapping[FileKey, File]) -> int:
    """Rows that new DVs name and those in their place before did not."""
    old = {key.path: len(file.deleted) for key, file in before.items()}
    return sum(len(file.deleted) - old.get(key.path, 0) for key, file in after.items() if key not in before)


def _nothing() -> None:
    pass
