"""Give a table's manifests the names that newer writers give them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dv_maintenance.errors import RefusedError
from dv_maintenance.report import Report
from dv_maintenance.tables.capabilities import RenamableManifestsTable

if TYPE_CHECKING:
    from dv_maintenance.tables.capabilities import RenamedManifests
    from dv_maintenance.tables.table import Table

__all__ = ["RenameReport", "rename_manifests"]


@dataclass(frozen=True, slots=True, repr=False)
class RenameReport(Report):
    """``result``: see ``tables.capabilities.RenamedManifests``."""

    table: str
    format: str
    result: RenamedManifests

    def to_json(self) -> dict[str, Any]:
        return {"table": self.table, "format": self.format, **asdict(self.result)}


def rename_manifests(table: Table, *, dry_run: bool = False, now: int | None = None) -> RenameReport:
    """Rename all manifests, or continue where an interrupted run stopped.

    Not safe with concurrent writers. Readers can't open the table until the renaming is done. ``now``: epoch
    milliseconds.

    Raises
    ------
    RefusedError : the format has only one naming scheme, or another writer committed within the last minute.
    ConflictError : another writer committed concurrently.
    StorageError : the storage failed; run it again.
    """
    if not isinstance(table, RenamableManifestsTable):
        raise RefusedError(f"{table.format} tables have only one naming scheme of manifests", table=table.uri)
    return RenameReport(table.uri, table.format, table.rename_manifests(dry_run=dry_run, now=now))
