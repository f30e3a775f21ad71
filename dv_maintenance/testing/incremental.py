"""An inspection that builds on an earlier one must decide as an inspection that reads everything."""

from __future__ import annotations

from typing import Any, Final

from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.meter.of_table import due_for
from dv_maintenance.maintenance.meter.prices import Prices
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables.incremental import AdvancingTable
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.tables.table import Table
from dv_maintenance.units import DAY

# By thresholds that little meets and that much meets, and by what readers paid.
_POLICIES: Final = (
    Policy(max_deleted_ratio=0.3),
    Policy(max_deleted_ratio=0, min_file_size=0),
    Policy(reads_per_day=1000, prices=Prices(start=0.001)),
)
# Tables, what was read to get there, and what is numbered in the order of reading.
_NOT_COMPARED: Final = frozenset(
    {
        *("files", "derived", "segment", "live", "hidden", "parts", "partitions", "index", "dangling"),
        *("entries", "deletes", "matched"),
    }
)
# Numbers that depend on the order in which files were read.
_NUMBERED: Final = ("manifest", "partition_code")


def check_advanced(table: Table, kept: Snapshot | None) -> Snapshot:
    """The newest version, advanced from ``kept`` where the table can, otherwise read in full. Raises AssertionError if
    the two differ in anything but the order of the files.
    """
    # As an inspection does, which knows the version.
    full = table.snapshot(table.version())
    found = None
    if kept is not None and isinstance(table, AdvancingTable):
        found = table.advanced(kept, full.version)
    if found is None:
        return full
    for name in sorted(set(type(full).__dataclass_fields__) - _NOT_COMPARED):
        assert getattr(found, name) == getattr(full, name), name
    assert _rows(found) == _rows(full)
    assert decision(table, found) == decision(table, full)
    return found


def decision(table: Table, snapshot: Snapshot) -> list[Any]:
    """What inspections make of a snapshot: its health and the plans of several policies, with their reasons."""
    now = snapshot.timestamp + DAY
    plans = (due_for(table, snapshot, policy, now=now).to_json() for policy in _POLICIES)
    return [health(snapshot).to_json(), *plans]


def _rows(snapshot: Snapshot) -> list[str]:
    names = [name for name in snapshot.files.column_names if name not in _NUMBERED]
    return sorted(map(repr, snapshot.files.select(names).to_pylist()))
