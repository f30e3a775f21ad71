"""Apache Paimon tables on a file system or in object storage, read from their own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.tables.registry import TableFormat

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.table import Table

__all__ = ["FORMAT"]


def _open(storage: Storage) -> Table:
    from dv_maintenance.tables.paimon.table import PaimonTable

    return PaimonTable(storage)


FORMAT = TableFormat(
    name="paimon",
    title="Paimon",
    # No folder name is unique to Paimon. A schema file is, with or without snapshots.
    marker="schema",
    marker_file=r"schema-\d+",
    open=_open,
    kind="paimon",
    size_property="target-file-size",
    extra="paimon",
)
