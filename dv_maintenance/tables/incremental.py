"""Tables whose newest version follows from one that was read before, without reading all of it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dv_maintenance.tables.table import Table

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot


@runtime_checkable
class AdvancingTable(Table, Protocol):
    """A table that can advance a snapshot. For inspections only: code that commits or deletes reads the table in full,
    with ``snapshot``.
    """

    def advanced(self, kept: Snapshot, version: int) -> Snapshot | None:
        """The snapshot of ``version`` from an earlier snapshot of this table and what was committed since; ``None`` if
        there is any doubt about the earlier one.

        It equals ``snapshot(version)``, but may list the files in another order.
        """
