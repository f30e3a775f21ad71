"""Table formats. ``open_table`` finds out which one lies at a place."""

from __future__ import annotations

from collections.abc import Mapping

from dv_maintenance.errors import TableNotFoundError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.find import is_paimon
from dv_maintenance.tables.model import Table

__all__ = ["FORMATS", "FORMATS_WITHOUT_PARTITIONS", "FORMATS_WITH_OWN_MANIFESTS", "open_table"]

FORMATS = ("delta", "lance", "paimon")
# For those who plan before they open a table; the latter: see capabilities.OwnManifestsTable.
FORMATS_WITHOUT_PARTITIONS = frozenset({"lance"})
FORMATS_WITH_OWN_MANIFESTS = frozenset({"lance", "paimon"})


def open_table(place: str, format: str | None = None, storage_options: Mapping[str, str] | None = None) -> Table:
    """The table at a path or URI. The format is detected unless given.

    Raises
    ------
    TableNotFoundError : nothing there looks like a table of a known format.
    UsageError : ``format`` is unknown.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"unknown table format {format!r}", table=place, next_step=f"use one of {', '.join(FORMATS)}")
    storage = Storage(place, storage_options)
    if format == "delta" or (format is None and _has_files(storage, "_delta_log")):
        from dv_maintenance.tables.delta import DeltaTable

        return DeltaTable(storage)
    if format == "lance" or (format is None and _has_files(storage, "_versions")):
        from dv_maintenance.tables.lance import LanceTable

        return LanceTable(storage)
    if format == "paimon" or (format is None and is_paimon(storage)):
        from dv_maintenance.tables.paimon import PaimonTable

        return PaimonTable(storage)
    raise TableNotFoundError(
        "no table found here (looked for _delta_log, _versions and schema)",
        table=storage.uri,
        next_step="check the path, and --storage-option if it is in object storage",
    )


def _has_files(storage: Storage, folder: str) -> bool:
    return bool(storage.first_names(folder)[0])
