"""A Lance table. A module of this package implements each method."""

# ruff: noqa: ARG002 - arguments of the protocol that Lance does not use

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.guard import NO_GUARD, VacuumGuard
from dv_maintenance.tables.lance.snapshot import LanceSnapshot, load_snapshot

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.capabilities import RenamedManifests, UndeleteResult
    from dv_maintenance.tables.file_log import FileLog
    from dv_maintenance.tables.fsck import LogFault, Repair
    from dv_maintenance.tables.lance.commit.preflight import Fault
    from dv_maintenance.tables.lance.log.refs import Branch, Tag
    from dv_maintenance.tables.model import Changes, HistoryEntry, OldestDv, Snapshot, VacuumResult
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.rows import ChangesOutcome, ColumnBounds, RowChanges, RowRules, RowWriteTask
    from dv_maintenance.tables.table import CommitOutcome, Probe, Replacement
    from dv_maintenance.tables.work import RewriteBin, RewriteTask, ScanTask, SourceFile

__all__ = ["LanceTable"]


@dataclass(frozen=True, slots=True)
class LanceTable:
    """Implements ``dv_maintenance.tables.table.Table``, which documents each method.

    The folder of a branch (``TABLE/tree/NAME``) is an ordinary table.

    storage : the table's folder.
    protected : URIs of clones whose files a vacuum keeps.
    """

    storage: Storage
    protected: tuple[str, ...] = ()
    format: ClassVar[str] = "lance"

    @property
    def uri(self) -> str:
        return self.storage.uri

    def path_of(self, name: str) -> str:
        return name

    def version(self, known: int | None = None) -> int:
        from dv_maintenance.tables.lance.log.versions import latest_version

        del known  # it saves no request, see latest_version
        return latest_version(self.storage)

    def probe(self, known: int | None = None) -> Probe:
        from dv_maintenance.tables.lance.log.versions import probe

        del known
        return probe(self.storage)

    def stamp(self, version: int) -> str | None:
        from dv_maintenance.tables.lance.log.versions import stamp

        return stamp(self.storage, version)

    def snapshot(self, version: int | None = None) -> LanceSnapshot:
        return load_snapshot(self.storage, version)

    def advanced(self, kept: Snapshot, version: int) -> LanceSnapshot | None:
        """Fragments of ``kept`` that did not change are not parsed again."""
        try:
            return load_snapshot(self.storage, version, known=cast("LanceSnapshot", kept))
        except DvMaintenanceError:
            # Whatever is wrong, a full read reports it better.
            return None

    def parent_of(self, version: int) -> int:
        return version - 1

    def changes_since(self, version: int) -> Changes:
        from dv_maintenance.tables.lance.log.history import changes_since

        return changes_since(self.storage, version)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        from dv_maintenance.tables.lance.log.history import history

        return history(self.storage, limit)

    def file_log(self, snapshot: Snapshot, since: int) -> FileLog:
        from dv_maintenance.tables.lance.file_log import file_log

        return file_log(self.storage, cast("LanceSnapshot", snapshot), since)

    def retention(self, snapshot: Snapshot) -> int:
        from dv_maintenance.tables.lance.vacuum.retention import own_retention

        return own_retention(cast("LanceSnapshot", snapshot).manifest, self.uri)

    def oldest_dv(self, snapshot: Snapshot, limit: int = 1000) -> OldestDv | None:
        from dv_maintenance.tables.lance.log.history import oldest_dv

        return oldest_dv(self.storage, cast("LanceSnapshot", snapshot), limit)

    def check_writable(self, snapshot: Snapshot, operation: str) -> None:
        from dv_maintenance.tables.lance.writable import check_writable

        check_writable(cast("LanceSnapshot", snapshot), operation)

    def scan_tasks(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
        from dv_maintenance.tables.lance.rows.tasks import scan_tasks

        return scan_tasks(self.storage, cast("LanceSnapshot", snapshot), columns)

    def may_match(self, snapshot: Snapshot, predicate: Predicate) -> pa.BooleanArray:
        # Manifests have no column statistics.
        import pyarrow as pa

        return pa.array([True] * snapshot.files.num_rows, pa.bool_())

    def column_bounds(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
        return {}

    def local_times(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        return {}

    def row_rules(self, snapshot: Snapshot) -> RowRules:
        from dv_maintenance.tables.rows import RowRules

        return RowRules()

    def row_write_tasks(self, snapshot: Snapshot, target_bytes: int) -> tuple[RowWriteTask, RowWriteTask]:
        from dv_maintenance.tables.lance.writable import refused

        raise refused(cast("LanceSnapshot", snapshot), "update")

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
        from dv_maintenance.tables.lance.commit.deletes import commit_deletes

        return commit_deletes(
            self.storage,
            cast("LanceSnapshot", base),
            changes,
            operation=operation,
            max_attempts=max_attempts,
            dry_run=dry_run,
        )

    def rewrite_tasks(
        self, snapshot: Snapshot, bins: Sequence[RewriteBin], target_bytes: int, compression: str | None = None
    ) -> list[RewriteTask]:
        from dv_maintenance.tables.lance.rows.tasks import rewrite_tasks

        return rewrite_tasks(self.storage, cast("LanceSnapshot", snapshot), bins, target_bytes)

    def commit(
        self,
        base: Snapshot,
        replacements: Sequence[Replacement],
        *,
        operation: Mapping[str, Any],
        max_attempts: int = 200,
    ) -> CommitOutcome:
        from dv_maintenance.tables.lance.commit.rewrites import commit

        return commit(
            self.storage,
            cast("LanceSnapshot", base),
            replacements,
            operation=operation,
            max_attempts=max_attempts,
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
        from dv_maintenance.tables.lance.vacuum.run import vacuum

        return vacuum(
            self.storage,
            retention=retention,
            dry_run=dry_run,
            lite=lite,
            allow_short_retention=allow_short_retention,
            now=now,
            guard=guard,
            protected=self.protected,
        )

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteResult:
        from dv_maintenance.tables.lance.layout import check_folders
        from dv_maintenance.tables.lance.vacuum.returning import LanceReturning
        from dv_maintenance.tables.quarantine import undelete

        check_folders(self.storage)
        returning = LanceReturning(self.storage)
        return undelete(self.storage, self.version, returning, since=since, until=until, dry_run=dry_run)

    def is_clone(self) -> bool:
        from dv_maintenance.tables.lance.log.versions import load_manifest

        return bool(load_manifest(self.storage)[1].base_paths)

    def protecting(self, clones: Sequence[str]) -> LanceTable:
        return LanceTable(self.storage, (*self.protected, *clones))

    def rename_manifests(self, *, dry_run: bool = False, now: int | None = None) -> RenamedManifests:
        from dv_maintenance.tables.lance.verbs.rename_manifests import rename_manifests

        return rename_manifests(self.storage, dry_run=dry_run, now=now)

    def preflight(self, version: int | None = None, fragments: Sequence[int] | None = None) -> tuple[Fault, ...]:
        """Every fault of the deletion files of a version, the newest by default."""
        from dv_maintenance.tables.lance.commit.preflight import preflight

        return preflight(self.storage, version, fragments)

    def needed_files(self, snapshot: Snapshot) -> pa.Table:
        from dv_maintenance.tables.lance.fsck import needed_files

        return needed_files(self.storage, cast("LanceSnapshot", snapshot))

    def log_faults(self, snapshot: Snapshot) -> tuple[LogFault, ...]:
        return ()

    def stored_sources(self, snapshot: Snapshot) -> Iterable[SourceFile]:
        from dv_maintenance.tables.lance.fsck import stored_sources

        return stored_sources(self.storage, cast("LanceSnapshot", snapshot))

    def remedies(self, snapshot: Snapshot, kinds: Collection[str], back_to: int | None) -> tuple[Repair, ...]:
        from dv_maintenance.tables.lance.fsck import remedies

        return remedies(self.storage, cast("LanceSnapshot", snapshot), kinds, back_to)

    def tags(self) -> dict[str, Tag]:
        """Tags by name, including those of all branches, even if this table is a branch."""
        from dv_maintenance.tables.lance.log.refs import tags

        return tags(self._root())

    def branches(self) -> dict[str, Branch]:
        """Branches by name, without the main branch."""
        from dv_maintenance.tables.lance.log.refs import branches

        return branches(self._root())

    def branch(self, name: str) -> LanceTable:
        """One of the ``branches``. Raises UsageError if there is no such branch."""
        from dv_maintenance.errors import UsageError
        from dv_maintenance.storage import Storage

        known = self.branches()
        if name not in known:
            raise UsageError(
                f"there is no branch {name!r}",
                table=self.uri,
                next_step=f"use one of {', '.join(known)}" if known else "use the table itself, which has no branches",
            )
        place = self._root()
        return LanceTable(Storage(place.uri_of(known[name].path), place.options), self.protected)

    def _root(self) -> Storage:
        from dv_maintenance.tables.lance.log.refs import root
        from dv_maintenance.tables.lance.log.versions import load_manifest

        # Only a branch can be in such a folder, and only its manifest shows how much of the path is its name.
        if "/tree/" not in self.uri:
            return self.storage
        return root(self.storage, load_manifest(self.storage)[1].branch)
