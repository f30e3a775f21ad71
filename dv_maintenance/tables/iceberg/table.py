"""The ``Table`` protocol for Iceberg: each method is a function of a module of this folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.binding import Receiver, deferred
from dv_maintenance.tables.iceberg.layout import Layout
from dv_maintenance.tables.iceberg.log.strictness import strict_faults
from dv_maintenance.tables.iceberg.snapshot import load_snapshot
from dv_maintenance.tables.registry import Location
from dv_maintenance.tables.table import check_branch, refusal_of_rewrites

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from dv_maintenance.tables.fsck import LogFault
    from dv_maintenance.tables.iceberg import file_log, fsck, writable
    from dv_maintenance.tables.iceberg.commit import rewrites, row_changes
    from dv_maintenance.tables.iceberg.log import history, versions
    from dv_maintenance.tables.iceberg.rows import bounds, new_rows, rewrite_tasks, skipping, tasks
    from dv_maintenance.tables.iceberg.snapshot import IcebergSnapshot
    from dv_maintenance.tables.iceberg.vacuum import run
    from dv_maintenance.tables.reports import UndeleteReport
    from dv_maintenance.tables.table import Table
else:
    file_log, fsck, writable = deferred(__package__, "file_log", "fsck", "writable")
    (run,) = deferred(f"{__package__}.vacuum", "run")
    history, versions = deferred(f"{__package__}.log", "history", "versions")
    rewrites, row_changes = deferred(f"{__package__}.commit", "rewrites", "row_changes")
    bounds, new_rows, rewrite_tasks, skipping, tasks = deferred(
        f"{__package__}.rows", "bounds", "new_rows", "rewrite_tasks", "skipping", "tasks"
    )

_of_layout = Receiver[Layout]("layout")


def open_at(location: Location) -> IcebergTable:
    """See ``TableFormat.open``."""
    return IcebergTable(Layout.of(location))


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """An Iceberg table, or a branch of one.

    See ``dv_maintenance.tables.table.Table`` for what each method promises. Versions are ids of snapshots.
    """

    layout: Layout
    format: ClassVar[str] = "iceberg"

    @property
    def uri(self) -> str:
        return self.layout.uri

    @property
    def storage(self) -> Storage:
        return self.layout.storage

    def path_of(self, name: str) -> str:
        return self.layout.path(name)

    version = _of_layout(versions.version)
    probe = _of_layout(versions.probe)
    stamp = _of_layout(versions.stamp)
    parent_of = _of_layout(versions.parent_of)
    follows = _of_layout(versions.follows)
    version_at = _of_layout(versions.version_at)
    tags = _of_layout(versions.tags)
    branches = _of_layout(versions.branches)

    def snapshot(self, version: int | None = None) -> IcebergSnapshot:
        return load_snapshot(self.layout, version)

    def advanced(self, kept: IcebergSnapshot, version: int) -> IcebergSnapshot | None:
        """Manifests and position delete files that ``kept`` has read are not read again."""
        try:
            found = load_snapshot(self.layout, known=kept)
        except DvMaintenanceError:
            # A full read reports whatever is wrong more precisely.
            return None
        return found if found.version == version and found.metadata.uuid == kept.metadata.uuid else None

    changes_since = _of_layout(history.changes_since)
    oldest_dv = _of_layout(history.oldest_dv)
    history = _of_layout(history.history)
    file_log = _of_layout(file_log.file_log)

    check_writable = _of_layout(writable.check_writable)

    engine_only_reason = refusal_of_rewrites

    scan_tasks = _of_layout(tasks.scan_tasks)
    may_match = _of_layout(skipping.may_match)
    column_bounds = _of_layout(bounds.column_bounds)

    def local_times(self, snapshot: IcebergSnapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        del snapshot, columns
        return {}

    rewrite_tasks = _of_layout(rewrite_tasks.rewrite_tasks)
    commit = _of_layout(rewrites.commit_replacements)
    commit_changes = _of_layout(row_changes.commit_changes)
    row_rules = staticmethod(new_rows.row_rules)
    row_write_tasks = _of_layout(new_rows.row_write_tasks)

    vacuum = _of_layout(run.vacuum)

    def undelete(self, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> UndeleteReport:
        from dv_maintenance.tables.quarantine import undelete

        return undelete(self.storage, self.version, since=since, until=until, dry_run=dry_run)

    retention = staticmethod(versions.retention)

    needed_files = _of_layout(fsck.needed_files)
    stored_sources = _of_layout(fsck.stored_sources)
    remedies = staticmethod(fsck.remedies)

    def log_faults(self, snapshot: IcebergSnapshot) -> tuple[LogFault, ...]:
        return (
            *strict_faults(snapshot.metadata),
            *fsck.row_id_faults(snapshot),
            *fsck.list_faults(self.layout, snapshot),
        )

    def branch(self, name: str) -> IcebergTable:
        """One of the ``branches``. Raises UsageError if there is no such branch."""
        check_branch(self.uri, name, self.branches())
        return replace(self, layout=replace(self.layout, branch=name))


if TYPE_CHECKING:

    def _conforms(table: IcebergTable) -> Table[IcebergSnapshot]:
        return table
