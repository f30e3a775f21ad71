"""Which tables lie below a folder or prefix."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.registry import detect

__all__ = ["FoundTable", "find_tables"]

_THREADS: Final = 16
# A prefix full of anything but tables would be listed folder by folder: better to be asked for a closer one.
_MAX_FOLDERS: Final = 20_000


@dataclass(frozen=True, slots=True, order=True)
class FoundTable:
    """``path``: below the place that was searched, "" for the place itself."""

    path: str
    format: str


def find_tables(place: str, storage_options: Mapping[str, str] | None = None) -> list[FoundTable]:
    """Every table below ``place``, by path. Costs one listing per folder, and one of each marker folder whose name
    alone does not tell a format (Paimon's ``schema``); opens no table.

    Neither the inside of a table nor a folder that is hidden (``_`` or ``.`` in front) or a partition
    (``column=value``) is searched; links are not followed. So the branches of a Lance or Paimon table, which are inside
    of it, are no tables of their own.

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
                    f"more than {_MAX_FOLDERS:,} folders here to look for tables",
                    table=storage.uri,
                    next_step="name a folder closer to the tables",
                )
            below: list[str] = []
            for folder, children in zip(todo, pool.map(storage.folders, todo), strict=True):
                known = detect(storage, folder, children)
                if known is not None:
                    found.append(FoundTable(folder, known.name))
                else:
                    inside = (name for name in children if name[0] not in "_." and "=" not in name)
                    below += (f"{folder}/{name}" if folder else name for name in inside)
            todo = below
    return sorted(found)
