"""Lance tables. Only rewriting and reading rows need Lance's library; everything else is read without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.tables.registry import TableFormat

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.table import Table

__all__ = ["FORMAT"]


def _open(storage: Storage) -> Table:
    from dv_maintenance.tables.lance.table import LanceTable

    return LanceTable(storage)


FORMAT = TableFormat(
    name="lance",
    title="Lance",
    marker="_versions",
    open=_open,
    partitions=False,
    dv_checksums=False,
    kind="lance",
    extra="lance",
)
