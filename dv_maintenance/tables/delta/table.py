"""The ``Table`` protocol for Delta: each method is implemented in a module of this folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dv_maintenance.storage import RawName
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.guard import NO_GUARD, VacuumGuard

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.capabilities import (
        ChangeFeed,
        CheckpointResult,
        DowngradeStep,
        EngineName,
        RestoreResult,
        UndeleteResult,
        WaitingRows,
    )
    from dv_maintenance.tables.file_log import FileLog
    from dv_maintenance.tables.fsck import LogFault, Repair
    from dv_maintenance.tables.model import (
        Change,
        Changes,
        FileKey,
        HistoryEntry,
        ManifestResult,
        OldestDv,
        Snapshot,
        VacuumResult,
    )
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.rows import AddedFile, ChangesOutcome, ColumnBounds, RowChanges, RowRules, RowWriteTask
    from dv_maintenance.tables.table import CommitOutcome, Probe, Replacement
    from dv_maintenance.tables.work import RewriteBin, RewriteTask, ScanTask, SourceFile

__all__ = ["DeltaTable"]


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """See ``dv_maintenance.tables.table.Table`` for what each method promises."""

    storage: Storage
    protected: tuple[str, ...] = ()
    """Locations of shallow clones; a vacuum keeps the files that they need."""
    format: ClassVar[str] = "delta"

    @property
    def uri(self) -> str:
        return self.storage.uri

    def path_of(self, name: str) -> str:
        return self.storage.path_of(RawName(name))

    def version(self, known: int | None = None) -> int:
        from dv_maintenance.tables.delta.log.segment import latest_version

        return latest_version(self.storage, known)

    def probe(self, known: int | None = None) -> Probe:
        from dv_maintenance.tables.delta.log.segment import probe

        return probe(self.storage, known)

    def stamp(self, version: int) -> str | None:
        from dv_maintenance.tables.delta.log.segment import stamp

        return stamp(self.storage, version)

    def snapshot(self, version: int | None = None) -> DeltaSnapshot:
        return load_snapshot(self.storage, version)

    def advanced(self, kept: Snapshot, version: int) -> DeltaSnapshot | None:
        from dv_maintenance.tables.delta.advance import advanced

        return advanced(self.storage, _delta(kept), version)

    def parent_of(self, version: int) -> int:
        return version - 1

    def changes_since(self, version: int) -> Changes:
        from dv_maintenance.tables.delta.log.history import changes_since

        return changes_since(self.storage, version)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        from dv_maintenance.tables.delta.log.history import history

        return history(self.storage, limit)

    def retention(self, snapshot: Snapshot) -> int:
        from dv_maintenance.tables.delta.vacuum.retention import own_retention

        return own_retention(snapshot)

    def oldest_dv(self, snapshot: Snapshot, limit: int = 1000) -> OldestDv | None:
        from dv_maintenance.tables.delta.log.history import oldest_dv

        return oldest_dv(self.storage, snapshot, limit)

    def file_log(self, snapshot: Snapshot, since: int) -> FileLog:
        from dv_maintenance.tables.delta.file_log import file_log

        return file_log(self.storage, _delta(snapshot), since)

    def version_at(self, snapshot: Snapshot, timestamp: int) -> int:
        from dv_maintenance.tables.delta.log.timeline import version_at

        return version_at(self.storage, _delta(snapshot), timestamp)

    def may_match(self, snapshot: Snapshot, predicate: Predicate) -> pa.BooleanArray:
        from dv_maintenance.tables.delta.rows.skipping import may_match

        return may_match(self.storage, _delta(snapshot), predicate)

    def change_feed(self, first: int, last: int | None = None) -> ChangeFeed:
        from dv_maintenance.tables.delta.rows.change_feed import change_feed

        return change_feed(self.storage, first, last)

    def restore(
        self,
        *,
        version: int | None = None,
        timestamp: int | None = None,
        dry_run: bool = False,
        max_attempts: int = 10,
        vacuums_over: Collection[int] = (),
    ) -> RestoreResult:
        from dv_maintenance.tables.delta.verbs.restore import restore

        return restore(
            self.storage,
            version=version,
            timestamp=timestamp,
            dry_run=dry_run,
            max_attempts=max_attempts,
            vacuums_over=vacuums_over,
        )

    def checkpoint(self, *, clean_log: bool = False, dry_run: bool = False, now: int | None = None) -> CheckpointResult:
        from dv_maintenance.tables.delta.log.log_cleanup import checkpoint

        return checkpoint(self.storage, clean_log=clean_log, dry_run=dry_run, now=now)

    def recount(self, base: Snapshot, rows: Mapping[FileKey, int], *, dry_run: bool = False) -> int | None:
        from dv_maintenance.tables.delta.verbs.recount import recount

        return recount(self.storage, _delta(base), rows, dry_run=dry_run)

    def downgrade_steps(self, *, truncate_history: bool, now: int | None = None) -> tuple[DowngradeStep, ...]:
        from dv_maintenance.tables.delta.verbs.downgrade import downgrade_steps

        return downgrade_steps(self.storage, truncate_history=truncate_history, now=now)

    def take_downgrade_step(self, name: str, *, truncate_history: bool, now: int | None = None) -> None:
        from dv_maintenance.tables.delta.verbs.downgrade import take_downgrade_step

        take_downgrade_step(self.storage, name, truncate_history=truncate_history, now=now)

    def check_writable(self, snapshot: Snapshot, operation: str) -> None:
        from dv_maintenance.tables.delta.features import check_writable

        check_writable(_delta(snapshot), operation)

    def scan_tasks(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
        from dv_maintenance.tables.delta.rows.tasks import scan_tasks

        return scan_tasks(self.storage, _delta(snapshot), columns)

    def rewrite_tasks(
        self, snapshot: Snapshot, bins: Sequence[RewriteBin], target_bytes: int, compression: str | None = None
    ) -> list[RewriteTask]:
        from dv_maintenance.tables.delta.rows.tasks import rewrite_tasks

        return rewrite_tasks(self.storage, _delta(snapshot), bins, target_bytes, compression)

    def commit(
        self,
        base: Snapshot,
        replacements: Sequence[Replacement],
        *,
        operation: Mapping[str, Any],
        max_attempts: int = 10,
    ) -> CommitOutcome:
        from dv_maintenance.tables.delta.commit.rewrites import commit_replacements

        return commit_replacements(
            self.storage, _delta(base), replacements, operation=operation, max_attempts=max_attempts
        )

    def ordered_by(self, snapshot: Snapshot) -> list[tuple[str, ...]]:
        from dv_maintenance.tables.delta.rows.order import ordered_by

        return ordered_by(_delta(snapshot))

    def column_bounds(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
        from dv_maintenance.tables.delta.rows.bounds import column_bounds

        return column_bounds(self.storage, _delta(snapshot), columns)

    def local_times(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        from dv_maintenance.tables.delta.rows.bounds import local_times

        return local_times(cast("DeltaSnapshot", snapshot), columns)

    def row_rules(self, snapshot: Snapshot) -> RowRules:
        from dv_maintenance.tables.delta.rows.new_rows import row_rules

        return row_rules(_delta(snapshot))

    def row_write_tasks(self, snapshot: Snapshot, target_bytes: int) -> tuple[RowWriteTask, RowWriteTask]:
        from dv_maintenance.tables.delta.rows.new_rows import row_write_tasks

        return row_write_tasks(self.storage, _delta(snapshot), target_bytes)

    def commit_changes(
        self,
        base: Snapshot,
        changes: RowChanges,
        *,
        operation: Mapping[str, Any],
        reads: Callable[[Snapshot], bool],
        max_attempts: int = 10,
        dry_run: bool = False,
    ) -> ChangesOutcome:
        from dv_maintenance.tables.delta.commit.row_changes import commit_changes

        return commit_changes(
            self.storage,
            _delta(base),
            changes,
            operation=operation,
            reads=reads,
            max_attempts=max_attempts,
            dry_run=dry_run,
        )

    def vacuum(
        self,
        *,
        retention: int | None = None,
        dry_run: bool = False,
        lite: bool = False,
        allow_short_retention: bool = False,
        now: int | None = None,
        guard: VacuumGuard = NO_GUARD,
    ) -> VacuumResult:
        from dv_maintenance.tables.delta.vacuum.run import vacuum

        return vacuum(
            self.storage,
            retention=retention,
            dry_run=dry_run,
            lite=lite,
            allow_short_retention=allow_short_retention,
            now=now,
            guard=guard,
            clones=self.protected,
        )

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteResult:
        from dv_maintenance.tables.quarantine import undelete

        return undelete(self.storage, self.version, since=since, until=until, dry_run=dry_run)

    def is_clone(self) -> bool:
        from dv_maintenance.tables.delta.vacuum.protected import is_clone

        return is_clone(self.storage)

    def protecting(self, clones: Sequence[str]) -> DeltaTable:
        return DeltaTable(self.storage, (*self.protected, *clones))

    def adopted(self) -> int | None:
        from dv_maintenance.tables.delta.verbs.convert import adopted

        return adopted(self.storage)

    def adopt(
        self,
        schema: pa.Schema,
        partition_columns: Sequence[str],
        files: Sequence[AddedFile],
        *,
        dry_run: bool = False,
    ) -> int | None:
        from dv_maintenance.tables.delta.verbs.convert import adopt

        return adopt(self.storage, schema, partition_columns, files, dry_run=dry_run)

    @property
    def engine_extension(self) -> str:
        from dv_maintenance.tables.delta.verbs.engine_sql import EXTENSION

        return EXTENSION

    @property
    def engine_advice(self) -> str:
        from dv_maintenance.tables.delta.verbs.engine_sql import ADVICE

        return ADVICE

    def engine_name(self, settings: Mapping[str, str], wanted: str | None) -> EngineName:
        from dv_maintenance.tables.delta.verbs.engine_sql import name_of

        del settings
        return name_of(self.storage, wanted)

    def engine_probe(self, name: EngineName, snapshot: Snapshot) -> tuple[str, tuple[Any, ...]] | None:
        del name, snapshot
        return None

    def engine_statements(self, job: str, name: EngineName, snapshot: Snapshot) -> tuple[str, ...]:
        from dv_maintenance.tables.delta.verbs.engine_sql import statements

        del snapshot
        return statements(job, name)

    def engine_only_moves_rows(self, change: Change) -> bool:
        return not change.data_changed

    def engine_waiting(self, old: Snapshot, new: Snapshot) -> WaitingRows | None:
        del old, new
        return None

    def engine_rows(self, name: EngineName, snapshot: Snapshot) -> str | None:
        del name, snapshot
        return None

    def engine_sources(self, snapshot: Snapshot) -> Iterable[SourceFile]:
        return (task.sources[0] for task in self.scan_tasks(snapshot))

    def needed_files(self, snapshot: Snapshot) -> pa.Table:
        from dv_maintenance.tables.delta.fsck import needed_files

        return needed_files(self.storage, _delta(snapshot))

    def log_faults(self, snapshot: Snapshot) -> tuple[LogFault, ...]:
        from dv_maintenance.tables.delta.fsck import log_faults

        return log_faults(self.storage, _delta(snapshot))

    def stored_sources(self, snapshot: Snapshot) -> Iterable[SourceFile]:
        from dv_maintenance.tables.delta.rows.tasks import stored_sources

        return stored_sources(self.storage, _delta(snapshot))

    def remedies(self, snapshot: Snapshot, kinds: Collection[str], back_to: int | None) -> tuple[Repair, ...]:
        from dv_maintenance.tables.delta.fsck import remedies

        return remedies(self.storage, _delta(snapshot), kinds, back_to)

    def write_manifests(self, snapshot: Snapshot, *, dry_run: bool = False) -> ManifestResult:
        from dv_maintenance.tables.delta.verbs.manifest import write_manifests

        return write_manifests(self.storage, _delta(snapshot), dry_run=dry_run)


def _delta(snapshot: Snapshot) -> DeltaSnapshot:
    """The snapshot as a DeltaSnapshot: callers pass back the result of ``snapshot()``."""
    return cast("DeltaSnapshot", snapshot)
