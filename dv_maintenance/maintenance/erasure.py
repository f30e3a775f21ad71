"""From deleted rows to erased bytes. A DELETE leaves rows in their files. A purge writes the files without them. A
vacuum deletes the old files when the table's retention is over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table


def plan_purge_since(table: Table, since: int) -> MaintenancePlan:
    """A plan for the newest version that purges every deletion vector (DV) that version ``since`` did not have.

    The plan touches no other file. It goes by DVs and not by the paths that a delete touched: a concurrent compaction
    carries the delete over to a file of another name, with the rows in it.

    Raises
    ------
    UsageError : the version does not exist.
    UnsupportedFeatureError, RefusedError : the table may not be rewritten.
    """
    snapshot = table.snapshot()
    table.check_writable(snapshot, "rewrite")
    known = pc.is_in(_logical_files(snapshot), value_set=_logical_files(table.snapshot(since)).combine_chunks())
    new = pc.and_(pc.is_valid(snapshot.files["dv_id"]), pc.invert(known))
    return build_plan(replace(snapshot, files=snapshot.files.filter(new)), Policy(), purge=True)


def _logical_files(snapshot: Snapshot) -> pa.ChunkedArray:
    """Path and DV of each file, in one text."""
    return pc.binary_join_element_wise(snapshot.files["path"], pc.fill_null(snapshot.files["dv_id"], ""), "\n")


def expires_at(table: Table, retention: int | None = None, *, now: int | None = None) -> int:
    """The earliest time, in epoch milliseconds, at which a vacuum may delete every file that is unneeded at ``now``.

    retention : milliseconds; ``None``: the table's own property.
    now : epoch milliseconds; ``None``: the clock.

    Tombstones carry the time of a clock. The time of a commit is that of its file, and may be up to a second earlier
    on object stores; it is not used.

    Raises
    ------
    RefusedError : the retention is below the table's own, or the table may not be vacuumed.
    """
    now = epoch_millis(now)
    try:
        result = table.vacuum(VacuumRequest(retention=retention, dry_run=True, lite=True, now=now))
    except RefusedError:
        # The log was cleaned up, or the table may not be vacuumed: this raises the error that says which.
        result = table.vacuum(VacuumRequest(retention=retention, dry_run=True, now=now))
    return now + result.expired.retention
