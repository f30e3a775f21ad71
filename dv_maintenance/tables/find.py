"""Which tables lie below a folder or prefix."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dv_maintenance.errors import UsageError
from dv_maintenance.storage import Storage

__all__ = ["find_tables"]

_THREADS: Final = 16
# A prefix full of anything but tables would be listed folder by folder: better to be asked for a closer one.
_MAX_FOLDERS: Final = 20_000


def find_tables(place: str, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """Paths below ``place`` of every table there, sorted. Costs one listing per folder and opens no table.

    Neither the inside of a table nor a folder that is hidden (``_`` or ``.`` in front) or a partition
    (``column=value``) is searched; links are not followed.

    Raises
    ------
    UsageError : there are more folders than a search may list.
    StorageError : a listing failed.
    """
    storage = Storage(place, storage_options)
    found: list[str] = []
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
                if "_delta_log" in children:
                    found.append(folder)
                else:
                    inside = (name for name in children if name[0] not in "_." and "=" not in name)
                    below += (f"{folder}/{name}" if folder else name for name in inside)
            todo = below
    return sorted(found)
