"""Which version of a table counts as its data version: the newest one that changed what a query returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from dv_maintenance.tables.table import Table

# Commits to read before reading them all: maintenance rarely makes more in a row.
_WINDOW = 50


def last_data_version(table: Table, since: tuple[int, int] | None = None) -> int:
    """The newest version that changed what a query returns.

    ``since``: (version, data version) of an earlier observation; only the log after it is read.
    """
    if since is not None:
        try:
            changes = table.changes_since(since[0])
        except UsageError:  # another table at the same location, younger than the last observation
            return last_data_version(table)
        return since[1] if changes.data_version is None else changes.data_version
    for entry in table.history(_WINDOW):
        if entry.data_changed:
            return entry.version
    found = table.changes_since(None).data_version
    return table.version() if found is None else found
