"""What a plan will copy instead of decoding it: known once the footers of its files have been read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import RewriteBin

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import RewriteTask

__all__ = ["with_copies"]

# Footers that a plan may read: each takes a request or two from an object store.
_MOST_FILES: Final = 200
_AT_ONCE: Final = 8


def with_copies(table: Table, snapshot: Snapshot, plan: MaintenancePlan) -> MaintenancePlan:
    """The plan, with the row groups that its first steps copy. Only footers and deletion vectors of up to 200 files are
    read; the other steps leave it open. So does a step whose files can't be read: ``apply`` raises the error.
    """
    if plan.order_by:
        return plan
    rewrites = [step for step in plan.steps if step.action == "rewrite"]
    opened = accumulate(len(step.inputs) for step in rewrites)
    chosen = [step for step, files in zip(rewrites, opened, strict=True) if files <= _MOST_FILES]
    if not chosen:
        return plan
    bins = [
        RewriteBin(step.id, step.partition, tuple(FileKey(each.path, each.dv_id) for each in step.inputs))
        for step in chosen
    ]
    try:
        tasks = {task.id: task for task in table.rewrite_tasks(snapshot, bins, plan.target_file_size)}
    except DvMaintenanceError:
        return plan
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        looked = pool.map(lambda step: _looked_into(step, tasks.get(step.id), table), chosen)
        known = {step.id: step for step in looked}
    return replace(plan, steps=tuple(known.get(step.id, step) for step in plan.steps))


def _looked_into(step: PlanStep, task: RewriteTask | None, table: Table) -> PlanStep:
    from dv_maintenance.engine.parquet.preview import preview

    try:
        found = None if task is None else preview(task, table.storage.options)
    except DvMaintenanceError:
        return step
    if found is None:
        return step
    cost = replace(step.cost, row_groups=found.groups, row_groups_copied=found.copied, bytes_copied=found.bytes_copied)
    return replace(step, cost=cost)
