"""Give a table's manifests the names that newer writers give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.capabilities import RenamableManifestsTable
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.tables.reports import RenameReport
    from dv_maintenance.tables.table import Table


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
        raise RefusedError(f"{title_of(table.format)} tables have only one naming scheme of manifests", table=table.uri)
    return table.rename_manifests(dry_run=dry_run, now=now).of(table)
