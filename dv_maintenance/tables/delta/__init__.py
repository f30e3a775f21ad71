"""Delta Lake: the log, its snapshots, commits, vacuum and manifests (protocol: PROTOCOL.md of the Delta project)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.tables.registry import TableFormat

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.table import Table

__all__ = ["FORMAT"]


def _open(storage: Storage) -> Table:
    from dv_maintenance.tables.delta.table import DeltaTable

    return DeltaTable(storage)


FORMAT = TableFormat(
    name="delta",
    title="Delta",
    marker="_delta_log",
    open=_open,
    symlink_manifests=True,
    kind="deltalake",
    size_property="delta.targetFileSize",
)
