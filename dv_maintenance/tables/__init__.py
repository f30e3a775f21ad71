"""Table formats. ``open_table`` finds out which one lies at a place."""

from __future__ import annotations

from collections.abc import Mapping

from dv_maintenance.errors import TableNotFoundError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.registry import detect, format_called, formats
from dv_maintenance.tables.table import Table

__all__ = ["open_table"]


def open_table(place: str, format: str | None = None, storage_options: Mapping[str, str] | None = None) -> Table:
    """The table at a path or URI. The format is detected unless given.

    Raises
    ------
    TableNotFoundError : nothing there looks like a table of a known format.
    UsageError : ``format`` is unknown.
    """
    given = None if format is None else format_called(format, place)
    storage = Storage(place, storage_options)
    found = given or detect(storage)
    if found is None:
        markers = [each.marker for each in formats()]
        raise TableNotFoundError(
            f"no table found here (looked for {', '.join(markers[:-1])} and {markers[-1]})",
            table=storage.uri,
            next_step="check the path, and --storage-option if it is in object storage",
        )
    return found.open(storage)
