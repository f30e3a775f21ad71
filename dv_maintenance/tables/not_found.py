"""What exists at a path without a table: the caller usually meant a nearby path, or another verb."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from dv_maintenance.errors import DvMaintenanceError, TableNotFoundError
from dv_maintenance.remedies import Remedy, run, setting
from dv_maintenance.tables.nested import table_around
from dv_maintenance.tables.registry import CATALOGS, detect, formats

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

# Folders to look into for tables: an answer within a second, also from an object store.
_FOLDERS = 20
_CHECK = Remedy("check the path, and {} if it is in object storage", (setting("storage_options"),))
_ELSEWHERE = f"check the path; or, if this is a name in a catalog, let {CATALOGS} name the file with the catalogs"


def not_found(storage: Storage, place: str | None = None, *, format: str | None = None) -> TableNotFoundError:
    """The error for a place that no format recognizes, or that ``format`` does not.

    place : as it was given, if this is where it was.
    """
    markers = [each.marker for each in formats() if format in {None, each.name}]
    looked = f"looked for {' and '.join(filter(None, [', '.join(markers[:-1]), markers[-1]]))}"
    try:
        found, step = _there(storage, place)
    except (DvMaintenanceError, OSError):
        found, step = "", _CHECK
    return TableNotFoundError(f"no table found here ({found or looked})", table=storage.uri, next_step=step)


def _there(storage: Storage, place: str | None) -> tuple[str, str | Remedy]:
    """What exists there, if it is worth mentioning, and what to do."""
    scheme = re.match(r"([a-z0-9]{2,6}):/[^/]", place or "")
    if scheme:
        return "a local path, since a URI has two slashes", f"write {scheme[1]}://BUCKET/PATH"
    if storage.is_local:
        path = storage.local("").rstrip("/")
        if os.path.isfile(path):
            return "it is a file", "give the folder that has the table's log"
        if not os.path.exists(path):
            return "nothing exists at this path", _ELSEWHERE if _is_name(place) else "check the path"
    names, _ = storage.first_names("")
    folders = storage.folders()
    tables = [each for each in folders[:_FOLDERS] if not each.startswith(("_", ".")) and detect(storage, each)]
    if tables:
        shown = ", ".join(tables[:3]) + (", ..." if len(tables) > 3 else "")
        return (
            f"a folder of tables: {shown}",
            Remedy("give one of them; {} shows all of them", (run("scan", place),)),
        )
    if (names or folders) and (around := table_around(storage)) is not None:
        return f"a part of the {around.title} table at {around.place}", "give that place"
    if any(name.endswith(".parquet") for name in names):
        return "a folder of Parquet files", Remedy("turn it into a Delta table: {}", (run("convert", place),))
    if not names and not folders:
        return "the folder is empty" if storage.is_local else "nothing exists below this prefix", "check the path"
    return "", _CHECK


def _is_name(place: str | None) -> bool:
    """Whether a place that does not exist reads like a table in a catalog, whose file is not known."""
    return bool(re.fullmatch(r"[^./:]+(\.[^./:]+){2,}", place or "")) and not os.environ.get(CATALOGS)
