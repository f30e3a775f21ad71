"""Publish commits that a catalog has ratified: copy them to the log, for readers that know only the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.capabilities import PublishableTable
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.tables.reports import PublishReport
    from dv_maintenance.tables.table import Table


def publish(table: Table, *, dry_run: bool = False) -> PublishReport:
    """Publish every ratified commit that the catalog still holds, and tell the catalog.

    Raises
    ------
    RefusedError : no catalog ratifies the table's commits.
    DamagedTableError : a ratified commit is missing.
    StorageError : the storage or the catalog failed.
    """
    if not isinstance(table, PublishableTable):
        raise RefusedError(f"{title_of(table.format)} tables have no commits to publish", table=table.uri)
    return table.publish(dry_run=dry_run).of(table)
