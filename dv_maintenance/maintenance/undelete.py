"""Undelete what vacuums quarantined in a table's quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.capabilities import UndeletableTable
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.tables.reports import UndeleteReport
    from dv_maintenance.tables.table import Table


def undelete(
    table: Table, *, since: int | None = None, until: int | None = None, dry_run: bool = False
) -> UndeleteReport:
    """Undelete the files that are quarantined from ``since`` to ``until`` (epoch milliseconds), by default all of them.

    Raises
    ------
    RefusedError : the format has no quarantine.
    StorageError : some files could not be moved; run it again.
    """
    if not isinstance(table, UndeletableTable):
        raise RefusedError(
            f"vacuums of {title_of(table.format)} tables have no quarantine",
            table=table.uri,
            next_step="bring the files back from a backup, or from the versions of the bucket",
        )
    return table.undelete(since=since, until=until, dry_run=dry_run).of(table)
