"""A Delta table behind the ``Table`` protocol: each method is a module of this folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dv_maintenance.tables.delta.snapshot import DeltaSnapshot, load_snapshot

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.model import (
        Changes,
        CommitOutcome,
        HistoryEntry,
        ManifestResult,
        OldestDv,
        Replacement,
        RewriteBin,
        RewriteTask,
        ScanTask,
        Snapshot,
        VacuumResult,
    )

__all__ = ["DeltaTable"]


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """See ``dv_maintenance.tables.model.Table`` for what each method promises."""

    storage: Storage
    format: ClassVar[str] = "delta"

    @property
    def uri(self) -> str:
        return self.storage.uri

    def version(self, known: int | None = None) -> int:
        from dv_maintenance.tables.delta.log import latest_version

        return latest_version(self.storage, known)

    def snapshot(self, version: int | None = None) -> DeltaSnapshot:
        return load_snapshot(self.storage, version)

    def changes_since(self, version: int) -> Changes:
        from dv_maintenance.tables.delta.history import changes_since

        return changes_since(self.storage, version)

    def history(self, limit: int | None = None) -> list[HistoryEntry]:
        from dv_maintenance.tables.delta.history import history

        return history(self.storage, limit)

    def oldest_dv(self, snapshot: Snapshot, limit: int = 1000) -> OldestDv | None:
        from dv_maintenance.tables.delta.history import oldest_dv

        return oldest_dv(self.storage, snapshot, limit)

    def check_writable(self, snapshot: Snapshot, operation: str) -> None:
        from dv_maintenance.tables.delta.features import check_writable

        check_writable(_delta(snapshot), operation)

    def scan_tasks(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> list[ScanTask]:
        from dv_maintenance.tables.delta.tasks import scan_tasks

        return scan_tasks(self.storage, _delta(snapshot), columns)

    def rewrite_tasks(self, snapshot: Snapshot, bins: Sequence[RewriteBin], target_bytes: int) -> list[RewriteTask]:
        from dv_maintenance.tables.delta.tasks import rewrite_tasks

        return rewrite_tasks(self.storage, _delta(snapshot), bins, target_bytes)

    def commit(
        self,
        base: Snapshot,
        replacements: Sequence[Replacement],
        *,
        operation: Mapping[str, Any],
        max_attempts: int = 10,
    ) -> CommitOutcome:
        from dv_maintenance.tables.delta.commit import commit_replacements

        return commit_replacements(
            self.storage, _delta(base), replacements, operation=operation, max_attempts=max_attempts
        )

    def vacuum(
        self,
        *,
        retention: int | None = None,
        dry_run: bool = False,
        lite: bool = False,
        allow_short_retention: bool = False,
        now: int | None = None,
    ) -> VacuumResult:
        from dv_maintenance.tables.delta.vacuum import vacuum

        return vacuum(
            self.storage,
            retention=retention,
            dry_run=dry_run,
            lite=lite,
            allow_short_retention=allow_short_retention,
            now=now,
        )

    def write_manifests(self, snapshot: Snapshot) -> ManifestResult:
        from dv_maintenance.tables.delta.manifest import write_manifests

        return write_manifests(self.storage, _delta(snapshot))


def _delta(snapshot: Snapshot) -> DeltaSnapshot:
    """The layers above hand back what ``snapshot()`` gave them."""
    return cast("DeltaSnapshot", snapshot)
