"""Write a checkpoint of a table's log, and delete log files beyond the log retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.capabilities import CheckpointableTable
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.tables.reports import CheckpointReport
    from dv_maintenance.tables.table import Table


def checkpoint(
    table: Table, *, clean_log: bool = False, dry_run: bool = False, now: int | None = None
) -> CheckpointReport:
    """Write a checkpoint of the newest version.

    clean_log : also delete versions beyond the table's log retention; they can't be read afterwards.
    dry_run : only report what would be deleted.
    now : epoch milliseconds.

    Raises
    ------
    RefusedError, UnsupportedFeatureError : the format has no checkpoints, or the table keeps its log.
    StorageError : the storage failed.
    """
    if not isinstance(table, CheckpointableTable):
        raise RefusedError(f"{title_of(table.format)} tables need no checkpoints", table=table.uri)
    return table.checkpoint(clean_log=clean_log, dry_run=dry_run, now=now).of(table)
