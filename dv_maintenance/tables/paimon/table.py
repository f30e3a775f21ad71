"""A Paimon table: each method is a module of this folder."""

# ruff: noqa: ARG002 - the protocol's arguments that Paimon has no use for

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.guard import NO_GUARD, VacuumGuard
from dv_maintenance.tables.paimon.layout import Layout, table_layout
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot, load_snapshot

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.capabilities import EngineName, UndeleteResult, WaitingRows
    from dv_maintenance.tables.file_log import FileLog
    from dv_maintenance.tables.fsck import LogFault, Repair
    from dv_maintenance.tables.model import Change, Changes, HistoryEntry, OldestDv, Snapshot, VacuumResult
    from dv_maintenance.tables.paimon.log.refs import Tag
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.rows import ChangesOutcome, ColumnBounds, RowChanges, RowRules, RowWriteTask
    from dv_maintenance.tables.table import CommitOutcome, Probe, Replacement
    from dv_maintenance.tables.work import RewriteBin, RewriteTask, ScanTask, SourceFile

__all__ = ["PaimonTable"]


@dataclass(frozen=True, slots=True)
class PaimonTable:
    """A Paimon table, or a branch of one (``TABLE/branch/branch-NAME``).

    See ``dv_maintenance.tables.table.Table`` for what each method promises.

    place : the folder of the table or of the branch.
    """

    place: Storage
    format: ClassVar[str] = "paimon"

    @property
    def uri(self) -> str:
        return self.place.uri

    @property
    def storage(self) -> Storage:
        """The storage of the table's root, also for a branch: paths are relative to it."""
        return self.layout.storage

    @property
    def layout(self) -> Layout:
        return table_layout(self.place)

    def path_of(self, name: str) -> str:
        return name

    def version(self, known: int | None = None) -> int:
        from dv_maintenance.tables.paimon.log.snapshots import latest_version

        del known  # of no use: a rollback may have deleted that snapshot
        return latest_version(self.layout)

    def probe(self, known: int | None = None) -> Probe:
        from dv_maintenance.tables.paimon.log.snapshots import probe

        del known
        return probe(self.layout)

    def stamp(self, version: int) -> str | None:
        from dv_maintenance.tables.paimon.log.snapshots import stamp

        return stamp(self.layout, version)

    def snapshot(self, version: int | None = None) -> PaimonSnapshot:
        return load_snapshot(self.place, version)

    def advanced(self, kept: Snapshot, version: int) -> PaimonSnapshot | None:
        """Manifests that ``kept`` has read are not read again."""
        try:
            return (
                None
                if version < kept.version
                else load_snapshot(self.place, version, known=cast("PaimonSnapshot", kept))
            )
        except DvMaintenanceError:
            # A full read reports whatever is wrong more precisely.
            return None

    def parent_of(self, version: int) -> int:
        return version - 1

    def changes_since(self, version: int) -> Changes:
        from dv_maintenance.tables.paimon.log.history import changes_since

        return changes_since(self.place, version)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        from dv_maintenance.tables.paimon.log.history import history

        return history(self.place, limit)

    def file_log(self, snapshot: Snapshot, since: int) -> FileLog:
        from dv_maintenance.tables.paimon.file_log import file_log

        return file_log(self.place, cast("PaimonSnapshot", snapshot), since)

    def retention(self, snapshot: Snapshot) -> int:
        from dv_maintenance.tables.paimon.vacuum.retention import retention_of

        return retention_of(snapshot.properties, self.uri, None, allow_short=False).kept_for

    def oldest_dv(self, snapshot: Snapshot, limit: int = 1000) -> OldestDv | None:
        from dv_maintenance.tables.paimon.log.history import oldest_dv

        return oldest_dv(self.place, cast("PaimonSnapshot", snapshot), limit)

    def scan_tasks(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
        from dv_maintenance.tables.paimon.rows.tasks import scan_tasks

        return scan_tasks(self.layout, cast("PaimonSnapshot", snapshot), columns)

    def check_writable(self, snapshot: Snapshot, operation: str) -> None:
        if operation == "vacuum":
            from dv_maintenance.tables.paimon.vacuum.run import check_cleanable

            return check_cleanable(self.layout)
        from dv_maintenance.tables.paimon.writable import check_writable

        return check_writable(cast("PaimonSnapshot", snapshot), operation)

    def rewrite_tasks(
        self, snapshot: Snapshot, bins: Sequence[RewriteBin], target_bytes: int, compression: str | None = None
    ) -> list[RewriteTask]:
        from dv_maintenance.tables.paimon.rows.rewrite_tasks import rewrite_tasks

        return rewrite_tasks(self.layout, cast("PaimonSnapshot", snapshot), bins, target_bytes, compression)

    def commit(
        self,
        base: Snapshot,
        replacements: Sequence[Replacement],
        *,
        operation: Mapping[str, Any],
        max_attempts: int = 10,
    ) -> CommitOutcome:
        from dv_maintenance.tables.paimon.commit.rewrites import commit_replacements

        return commit_replacements(self.place, cast("PaimonSnapshot", base), replacements, max_attempts=max_attempts)

    def may_match(self, snapshot: Snapshot, predicate: Predicate) -> pa.BooleanArray:
        from dv_maintenance.tables.paimon.rows.skipping import may_match

        return may_match(self.layout, cast("PaimonSnapshot", snapshot), predicate)

    def column_bounds(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
        return {}

    def local_times(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        return {}

    def row_rules(self, snapshot: Snapshot) -> RowRules:
        from dv_maintenance.tables.rows import RowRules

        return RowRules()

    def row_write_tasks(self, snapshot: Snapshot, target_bytes: int) -> tuple[RowWriteTask, RowWriteTask]:
        from dv_maintenance.tables.paimon.writable import refused

        raise refused(cast("PaimonSnapshot", snapshot), "update")

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
        from dv_maintenance.tables.paimon.commit.deletes import commit_deletes

        return commit_deletes(
            self.place, cast("PaimonSnapshot", base), changes, max_attempts=max_attempts, dry_run=dry_run
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
        from dv_maintenance.tables.paimon.vacuum.run import vacuum

        return vacuum(
            self.place,
            retention=retention,
            dry_run=dry_run,
            lite=lite,
            allow_short_retention=allow_short_retention,
            now=now,
            guard=guard,
        )

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteResult:
        from dv_maintenance.tables.paimon.vacuum.returning import PaimonReturning
        from dv_maintenance.tables.quarantine import undelete

        returning = PaimonReturning(self.storage)
        return undelete(self.storage, self.version, returning, since=since, until=until, dry_run=dry_run)

    def engine_only_reason(self, snapshot: Snapshot) -> str | None:
        from dv_maintenance.errors import RefusedError

        try:
            self.check_writable(snapshot, "rewrite")
        except RefusedError as error:
            return str(error)
        return None

    # -- the engine's own maintenance --------------------------------------------------------------------------------

    @property
    def engine_extension(self) -> str:
        from dv_maintenance.tables.paimon.verbs.engine_sql import EXTENSION

        return EXTENSION

    @property
    def engine_advice(self) -> str:
        from dv_maintenance.tables.paimon.verbs.engine_sql import ADVICE

        return ADVICE

    def engine_name(self, settings: Mapping[str, str], wanted: str | None) -> EngineName:
        from dv_maintenance.tables.paimon.verbs.engine_sql import name_of

        return name_of(self.layout, settings, wanted)

    def engine_probe(self, name: EngineName, snapshot: Snapshot) -> tuple[str, tuple[Any, ...]] | None:
        from dv_maintenance.tables.paimon.verbs.engine_sql import probe

        return probe(name, cast("PaimonSnapshot", snapshot))

    def engine_statements(self, job: str, name: EngineName, snapshot: Snapshot) -> tuple[str, ...]:
        from dv_maintenance.tables.paimon.verbs.engine_sql import statements

        return statements(job, name, data_evolution=cast("PaimonSnapshot", snapshot).options.data_evolution)

    def engine_only_moves_rows(self, change: Change) -> bool:
        from dv_maintenance.tables.paimon.log.schema import newest_schema
        from dv_maintenance.tables.paimon.verbs.engine_sql import moves

        return moves(change, primary_key=bool(newest_schema(self.layout).primary_keys))

    def engine_waiting(self, old: Snapshot, new: Snapshot) -> WaitingRows | None:
        from dv_maintenance.tables.paimon.verbs.engine_sql import waiting

        return waiting(self.layout, cast("PaimonSnapshot", old), cast("PaimonSnapshot", new))

    def engine_rows(self, name: EngineName, snapshot: Snapshot) -> str | None:
        from dv_maintenance.tables.paimon.verbs.engine_sql import rows_query

        return rows_query(name, cast("PaimonSnapshot", snapshot))

    def engine_sources(self, snapshot: Snapshot) -> Iterable[SourceFile]:
        """The files of the snapshot and of every tag."""
        from dv_maintenance.tables.paimon.verbs.engine_sql import sources

        tagged = (self.snapshot(tag.snapshot.id) for tag in self.tags().values())
        return sources(self.layout, chain([cast("PaimonSnapshot", snapshot)], tagged))

    # -- fsck ----------------------------------------------------------------------------------------------------------

    def needed_files(self, snapshot: Snapshot) -> pa.Table:
        from dv_maintenance.tables.paimon.fsck import needed_files

        return needed_files(cast("PaimonSnapshot", snapshot))

    def log_faults(self, snapshot: Snapshot) -> tuple[LogFault, ...]:
        return ()

    def stored_sources(self, snapshot: Snapshot) -> Iterable[SourceFile]:
        from dv_maintenance.tables.paimon.verbs.engine_sql import sources

        return sources(self.layout, iter([cast("PaimonSnapshot", snapshot)]))

    def remedies(self, snapshot: Snapshot, kinds: Collection[str], back_to: int | None) -> tuple[Repair, ...]:
        from dv_maintenance.tables.paimon.fsck import remedies

        return remedies(kinds, back_to)

    # -- tags and branches -------------------------------------------------------------------------------------------

    def tags(self) -> dict[str, Tag]:
        """The tags of the branch, by name."""
        from dv_maintenance.tables.paimon.log.refs import tags

        return tags(self.layout)

    def consumers(self) -> dict[str, int]:
        """The snapshot that each consumer reads next, by the consumer's id."""
        from dv_maintenance.tables.paimon.log.refs import consumers

        return consumers(self.layout)

    def branches(self) -> tuple[str, ...]:
        """Names of all branches except the main one."""
        from dv_maintenance.tables.paimon.log.refs import branches

        return branches(self.layout)

    def branch(self, name: str) -> PaimonTable:
        """One of the ``branches``. Raises UsageError if there is no such branch."""
        from dv_maintenance.errors import UsageError
        from dv_maintenance.storage import Storage

        known = self.branches()
        if name not in known:
            raise UsageError(
                f"there is no branch {name!r}",
                table=self.uri,
                next_step=f"use one of {', '.join(known)}" if known else "the table has no branches",
            )
        root = self.layout.storage
        return PaimonTable(Storage(root.uri_of(f"branch/branch-{name}"), root.options))
