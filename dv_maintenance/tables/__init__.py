"""Table formats. ``open_table`` detects the format of the table at a path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dv_maintenance.errors import RefusedError, located
from dv_maintenance.storage import Storage
from dv_maintenance.tables.not_found import not_found
from dv_maintenance.tables.registry import Location, detect, format_called, formats, in_catalog

if TYPE_CHECKING:
    from dv_maintenance.tables.capabilities import AdoptingTable
    from dv_maintenance.tables.table import Table


def open_table(
    place: str | os.PathLike[str], format: str | None = None, storage_options: Mapping[str, str] | None = None
) -> Table:
    """The table at a path or URI, or of a catalog: ``FORMAT:CATALOG.NAMESPACE.TABLE``, for formats that ask catalogs.
    The format is detected unless given.

    Raises
    ------
    TableNotFoundError
        nothing there looks like a table of a known format.
    UsageError
        ``format`` is unknown.
    """
    place = os.fspath(place)
    given = None if format is None else format_called(format, place)
    named = in_catalog(place, storage_options)
    if named is not None:
        return named
    storage = Storage(place, storage_options)
    with located(storage.uri):
        found = given or detect(storage)
        if found is None:
            raise not_found(storage, place)
        return found.open(Location(storage))


def open_adopting_table(place: str, storage_options: Mapping[str, str] | None = None) -> AdoptingTable:
    """The table that the data files at a path or URI can become, of the first format that adopts files.

    Raises RefusedError if no known format does.
    """
    from dv_maintenance.tables.capabilities import AdoptingTable

    location = Location(Storage(place, storage_options))
    for each in formats():
        if isinstance(table := each.open(location), AdoptingTable):
            return table
    raise RefusedError(
        "no known table format adopts existing data files",
        table=location.storage.uri,
        next_step="create a table, and append the files with its own engine",
    )
