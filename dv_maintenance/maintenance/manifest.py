"""Write a table's symlink manifests, purging deletion vectors (DVs) first where that is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.capabilities import SymlinkManifestTable
from dv_maintenance.tables.registry import known_format

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import HistoryEntry
    from dv_maintenance.tables.table import Table

__all__ = ["ManifestReport", "files_changed", "manifests_written", "no_manifests", "write_manifests"]

# Commits to read before reading them all: between two changes of files there are hardly ever more.
_RECENT = 8
# Where every format writes them: the folder is a convention of the readers (Hive's SymlinkTextInputFormat tables).
_MANIFESTS = "_symlink_format_manifest"


@dataclass(frozen=True, slots=True)
class ManifestReport:
    """``manifests`` written and ``removed``, by path relative to the table; ``files``: data files that they list.
    ``purged``: whether DVs had to go first. ``note``: why there was nothing to write, in formats where there never is.
    """

    table: str
    format: str
    version: int
    manifests: tuple[str, ...]
    files: int
    removed: tuple[str, ...]
    purged: bool
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "format": self.format,
            "version": self.version,
            "manifests": list(self.manifests),
            "files": self.files,
            "removed": list(self.removed),
            "purged": self.purged,
            "note": self.note,
        }


def write_manifests(table: Table, engine: Engine, purge_first: bool = False) -> ManifestReport:
    """Write the manifests of the newest version. The engine works only if ``purge_first`` is set and there are DVs.
    Nothing is done to a table whose format has no symlink manifests.

    Raises
    ------
    RefusedError : there are DVs: without ``purge_first``, or because somebody deleted rows after the purge.
    UnsupportedFeatureError : readers of manifests could not read this table anyway.
    What ``maintenance.apply.purge`` raises.
    """
    snapshot = table.snapshot()
    # Before anything is rewritten for a manifest that can't be.
    table.check_writable(snapshot, "manifest")
    if not isinstance(table, SymlinkManifestTable):
        return ManifestReport(
            table.uri, table.format, snapshot.version, (), snapshot.files.num_rows, (), False, no_manifests(table)
        )
    purged = purge_first and snapshot.files["dv_id"].null_count < snapshot.files.num_rows
    if purged:
        from dv_maintenance.maintenance.execution.apply import purge

        report = purge(table, engine)
        done = f"deletion vectors were purged, up to version {report.version_after}"
    else:
        done = ""
    try:
        result = table.write_manifests(table.snapshot() if done else snapshot)
    except DvMaintenanceError as error:
        error.done = "; ".join(filter(None, (done, error.done))) or None
        raise
    return ManifestReport(
        table=table.uri,
        format=table.format,
        version=result.version,
        manifests=result.manifests,
        files=result.files,
        removed=result.removed,
        purged=purged,
    )


def no_manifests(table: Table) -> str:
    """Why there is nothing to generate for a table without symlink manifests."""
    known = known_format(table.format)
    return f"{known.title if known else table.format} writes its own manifests: nothing to generate"


def manifests_written(table: Table) -> int | None:
    """When the newest symlink manifest was written, epoch milliseconds; ``None`` without any."""
    return max((file.modified for file in table.storage.list(_MANIFESTS)), default=None)


def files_changed(table: Table) -> int:
    """When a commit last added or removed files, epoch milliseconds: vacuums, properties and the like outdate no
    manifest. The time of the oldest known commit, where the log no longer has the one that did.
    """
    entries: list[HistoryEntry] = []
    for limit in (_RECENT, None):
        entries = table.history(limit)
        for entry in entries:
            if entry.files_added or entry.files_removed:
                return entry.timestamp
    return entries[-1].timestamp if entries else table.snapshot().timestamp
