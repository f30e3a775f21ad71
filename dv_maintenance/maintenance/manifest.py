"""Write a table's symlink manifests, and purge deletion vectors (DVs) first on request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.capabilities import SymlinkManifestTable
from dv_maintenance.tables.registry import title_of
from dv_maintenance.tables.reports import ManifestReport

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import HistoryEntry, Snapshot
    from dv_maintenance.tables.table import Table

# Commits to read before reading them all: two changes of files rarely have more between them.
_RECENT = 8
# The folder is a convention of the readers (Hive's SymlinkTextInputFormat tables), the same for every format.
_MANIFESTS = "_symlink_format_manifest"


def write_manifests(table: Table, engine: Engine, purge_first: bool = False) -> ManifestReport:
    """Write the manifests of the newest version.

    The engine is used only if ``purge_first`` is set and the table has DVs. A table whose format has no symlink
    manifests is left unchanged.

    Raises
    ------
    RefusedError : the table has DVs: either ``purge_first`` is not set, or another writer deleted rows after the purge.
    UnsupportedFeatureError : readers of manifests can't read this table.

    Errors of ``maintenance.apply.purge`` pass through.
    """
    planned, snapshot = _planned(table, purge_first=purge_first)
    if not isinstance(table, SymlinkManifestTable):
        return replace(planned, dry_run=False)
    if not planned.purged:
        return table.write_manifests(snapshot).of(table)
    from dv_maintenance.maintenance.execution.apply import purge

    report = purge(table, engine)
    try:
        result = table.write_manifests(_not_older(table, report.version_after))
    except DvMaintenanceError as error:
        done = f"deletion vectors were purged, up to version {report.version_after}"
        error.done = "; ".join(filter(None, (done, error.done)))
        raise
    return replace(result, purged=True).of(table)


def _not_older(table: Table, version: int) -> Snapshot:
    """The newest version that the storage shows. Its listing may be late, and not show what was just committed."""
    newest = table.snapshot()
    return newest if newest.version >= version else table.snapshot(version)


def plan_manifests(table: Table, *, purge_first: bool = False) -> ManifestReport:
    """What :func:`write_manifests` would do. Raises the errors that it would raise, see also ``rehearsed``."""
    planned, snapshot = _planned(table, purge_first=purge_first)
    if planned.purged:
        from dv_maintenance.maintenance.execution.rehearsal import rehearsed
        from dv_maintenance.maintenance.planning.plan import build_plan

        rehearsed(table, snapshot, build_plan(snapshot, purge=True))
    elif isinstance(table, SymlinkManifestTable):
        result = table.write_manifests(snapshot, dry_run=True)
        return replace(planned, manifests=result.manifests, removed=result.removed)
    return planned


def _planned(table: Table, *, purge_first: bool) -> tuple[ManifestReport, Snapshot]:
    """Checks before anything is rewritten for manifests that can't be written."""
    snapshot = table.snapshot()
    table.check_writable(snapshot, "manifest")
    files, note = snapshot.files, None if isinstance(table, SymlinkManifestTable) else no_manifests(table)
    purged = note is None and purge_first and files["dv_id"].null_count < files.num_rows
    if purged and isinstance(table, SymlinkManifestTable):
        # The purge replaces all other files.
        table.write_manifests(replace(snapshot, files=files.filter(files["dv_id"].is_null())), dry_run=True)
    planned = ManifestReport(snapshot.version, (), files.num_rows, (), purged, note, dry_run=True)
    return planned.of(table), snapshot


def no_manifests(table: Table) -> str:
    """Why a table without symlink manifests needs none."""
    return f"{title_of(table.format)} writes its own manifests: nothing to generate"


def manifests_written(table: Table) -> int | None:
    """When the newest symlink manifest was written, epoch milliseconds; ``None`` without any."""
    return max((file.modified for file in table.storage.list(_MANIFESTS)), default=None)


def files_changed(table: Table) -> int:
    """When a commit last added or removed files, epoch milliseconds. Other commits (vacuums, properties) outdate no
    manifest. If the log no longer has that commit, the time of the oldest known one.
    """
    entries: list[HistoryEntry] = []
    for limit in (_RECENT, None):
        entries = table.history(limit)
        for entry in entries:
            if entry.files_added or entry.files_removed:
                return entry.timestamp
    return entries[-1].timestamp if entries else table.snapshot().timestamp
