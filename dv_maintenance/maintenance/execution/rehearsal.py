"""The dry run of a plan: every check of its run that needs no rewrite."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.maintenance.execution.apply import check_applicable
from dv_maintenance.maintenance.execution.round import without_live_rows
from dv_maintenance.maintenance.planning.previews import previewed
from dv_maintenance.maintenance.planning.revalidate import plan_again, split_stale
from dv_maintenance.tables.gates import check_committable

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table


def rehearsed(table: Table, snapshot: Snapshot, plan: MaintenancePlan) -> MaintenancePlan:
    """The plan as ``apply`` would carry it out on this snapshot, with previews of its row groups.

    Raises
    ------
    What ``apply`` raises before its first rewrite; and what its rewrites raise before they read rows, as far as the
    footers and deletion vectors of 200 files show it.
    """
    check_applicable(table, snapshot, plan)
    steps, lost = split_stale(plan, snapshot)
    if lost:
        steps = [*steps, *plan_again(plan, snapshot, lost, keep=steps, number=1)]
    if steps:
        check_committable(table, dry_run=True)
        without_live_rows(table, snapshot, [step for step in steps if step.action == "remove"])
    return previewed(table, snapshot, replace(plan, steps=tuple(steps), version=snapshot.version), strict=True)
