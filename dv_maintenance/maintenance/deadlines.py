"""What a table has still to erase under ``Policy.erase_within``, and by when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.maintenance.planning.deadlines import Erasure

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

__all__ = ["erasure_of"]


def erasure_of(table: Table, snapshot: Snapshot, policy: Policy) -> Erasure | None:
    """The steps of an erasure under the retention in force: the policy's or, without one, the table's. ``None`` without
    ``erase_within``.

    Raises
    ------
    UsageError : the steps after a purge alone take too long.
    RefusedError : the table's property of the retention is invalid.
    """
    if policy.erase_within is None:
        return None
    retention = table.retention(snapshot) if policy.retention is None else policy.retention
    return Erasure.of(policy, retention, table=snapshot.table)
