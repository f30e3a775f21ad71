"""Which tables lie below a folder or prefix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import DvMaintenanceError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.registry import detect

_THREADS: Final = 16
# A prefix without tables would be listed folder by folder. An error that requests a closer prefix is cheaper.
_MAX_FOLDERS: Final = 20_000


@dataclass(frozen=True, slots=True, order=True)
class FoundTable:
    """A table that a search found.

    path : relative to the place that was searched, "" for the place itself.
    left_alone : what a catalog has under this name instead of a table to maintain, such as "a view"; "" for a table.
    """

    path: str
    format: str
    left_alone: str = ""


def find_tables(
    place: str,
    storage_options: Mapping[str, str] | None = None,
    on_error: Callable[[str, DvMaintenanceError], None] | None = None,
) -> list[FoundTable]:
    """Every table below ``place``, ordered by path.

    on_error : called with a folder below ``place`` that can't be listed, and the error; the search goes on. ``None``:
        such a folder ends the search.

    Costs one listing per folder, and one more per marker folder whose name alone does not identify a format (Paimon's
    ``schema``). Opens no table.

    The search does not enter tables, hidden folders (names that start with ``_`` or ``.``) or partitions
    (``column=value``), and does not follow links. The branches of a Lance or Paimon table lie inside the table, so they
    are not found as tables.

    Raises
    ------
    UsageError : there are more folders than a search may list.
    StorageError : a listing failed.
    """
    storage = Storage(place, storage_options)
    found: list[FoundTable] = []
    todo, seen = [""], 0
    with ThreadPoolExecutor(_THREADS) as pool:
        while todo:
            seen += len(todo)
            if seen > _MAX_FOLDERS:
                raise UsageError(
                    f"there are more than {_MAX_FOLDERS:,} folders to search for tables",
                    table=storage.uri,
                    next_step="name a folder closer to the tables",
                )
            below: list[str] = []
            listings = [pool.submit(storage.folders, folder) for folder in todo]
            for folder, listing in zip(todo, listings, strict=True):
                try:
                    children = listing.result()
                    known = detect(storage, folder, children)
                except DvMaintenanceError as error:
                    # Without the place itself there is nothing to search.
                    if on_error is None or not folder:
                        raise
                    on_error(folder, error)
                    continue
                if known is not None:
                    found.append(FoundTable(folder, known.name))
                else:
                    inside = (name for name in children if name[0] not in "_." and "=" not in name)
                    below += (f"{folder}/{name}" if folder else name for name in inside)
            todo = below
    return sorted(found)
