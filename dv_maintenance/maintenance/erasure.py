"""From deleted rows to erased bytes: a DELETE leaves rows in their files, a purge writes the files without them, and a
vacuum removes the old files when the table's retention is over.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

__all__ = ["plan_purge_since", "removable_from"]


def plan_purge_since(table: Table, since: int) -> MaintenancePlan:
    """A plan for the newest version that takes out every deletion vector (DV) that version ``since`` did not have, and
    touches no other file.

    By DV and not by the paths of a delete's files: a compaction that was under way carries the delete over to a file of
    another name, with the rows in it.

    Raises
    ------
    UsageError : no such version. UnsupportedFeatureError, RefusedError : the table may not be rewritten.
    """
    snapshot = table.snapshot()
    table.check_writable(snapshot, "rewrite")
    known = pc.is_in(_logical_files(snapshot), value_set=_logical_files(table.snapshot(since)).combine_chunks())
    new = pc.and_(pc.is_valid(snapshot.files["dv_id"]), pc.invert(known))
    return build_plan(replace(snapshot, files=snapshot.files.filter(new)), Policy(), purge=True)


def _logical_files(snapshot: Snapshot) -> pa.ChunkedArray:
    """Path and DV of each file, in one text."""
    return pc.binary_join_element_wise(snapshot.files["path"], pc.fill_null(snapshot.files["dv_id"], ""), "\n")


def removable_from(table: Table, retention: int | None = None, *, now: int | None = None) -> int:
    """When a vacuum may first remove all that is out of use ``now``: epoch milliseconds, as is ``now`` (``None``: the
    clock). ``retention``: milliseconds, ``None`` for the table's own property.

    By the clock, which tombstones were written by, and not by the time of a commit: that is its file's, and on object
    stores may be up to a second earlier.

    Raises
    ------
    RefusedError : a retention below the table's own, or no vacuum on this table.
    """
    now = time.time_ns() // 1_000_000 if now is None else now
    try:
        result = table.vacuum(retention=retention, dry_run=True, lite=True, now=now)
    except RefusedError:
        # Of a table whose log was cleaned up, or one that may not be vacuumed: this one says which.
        result = table.vacuum(retention=retention, dry_run=True, now=now)
    return now + result.expired.retention
