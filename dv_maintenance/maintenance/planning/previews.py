"""What the footers of its files say of a plan: what is copied instead of decoded, and what another codec changes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.planning.steps import Recoding
from dv_maintenance.tracing import finished

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.preview import Preview, Recoded
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import RewriteTask

    Ratios = Mapping[tuple[str, str], float]

# Footers that a plan may read: each takes a request or two from an object store.
_MOST_FILES: Final = 200
_AT_ONCE: Final = 8


def previewed(table: Table, snapshot: Snapshot, plan: MaintenancePlan, *, strict: bool = False) -> MaintenancePlan:
    """The plan, with the row groups that its first steps copy, and what they save where they change the codec. Footers
    and deletion vectors of up to 200 files are read; the other steps leave it open. For each pair of codecs, one sample
    of a few MiB is encoded in both. A step whose files can't be read also leaves it open: ``apply`` raises the error.

    strict : raise that error, and errors of the tasks of all steps.
    """
    if plan.order_by and not strict:
        return plan
    rewrites = [step for step in plan.steps if step.action == "rewrite"]
    opened = accumulate(len(step.inputs) for step in rewrites)
    few = sum(files <= _MOST_FILES for files in opened)
    bins = [plan.bin_of(step) for step in (rewrites if strict else rewrites[:few])]
    if not bins:
        return plan
    try:
        tasks = table.rewrite_tasks(snapshot, bins, plan.target_file_size, plan.policy.compression)[:few]
    except DvMaintenanceError:
        if strict:
            raise
        return plan
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda task: _preview_of(task, table, strict=strict), tasks)
        seen = [(task, each) for task, each in zip(tasks, found, strict=True) if each is not None]
    ratios, known = _ratios(seen, table), {task.id: found for task, found in seen}
    return replace(plan, steps=tuple(_with_preview(step, known.get(step.id), ratios) for step in plan.steps))


def _preview_of(task: RewriteTask, table: Table, *, strict: bool) -> Preview | None:
    from dv_maintenance.engine.missing_values import check_values
    from dv_maintenance.engine.parquet.preview import preview
    from dv_maintenance.engine.rewrite import check_sources

    try:
        found = None if task.order_by else preview(task, table.storage.options)
    except DvMaintenanceError:
        if strict:
            raise
        return None
    if strict:
        if found is None:
            check_sources(task, table.storage.options)
        check_values(task.scan, table.storage.options)
    return found


def _ratios(seen: Iterable[tuple[RewriteTask, Preview]], table: Table) -> Ratios:
    """Bytes in the new codec per byte in the old one, for each pair of codecs that the plan changes."""
    largest: dict[tuple[str, str], tuple[RewriteTask, Recoded]] = {}
    for task, found in seen:
        for recoded in found.recoded:
            pair = recoded.codec, found.codec
            if pair not in largest or recoded.size > largest[pair][1].size:
                largest[pair] = task, recoded
    if not largest:
        return {}
    from dv_maintenance.engine.parquet.preview import sampled_ratio

    began = time.monotonic()
    ratios = {}
    for (old, new), (task, recoded) in largest.items():
        try:
            ratios[old, new] = sampled_ratio(task, recoded, new, table.storage.options)
        except DvMaintenanceError:
            continue
    finished("sample", time.monotonic() - began, table=table.uri, codecs=len(ratios))
    return ratios


def _with_preview(step: PlanStep, found: Preview | None, ratios: Ratios) -> PlanStep:
    if found is None:
        return step
    recoded = tuple(
        Recoding(each.codec, found.codec, each.size, round(each.size * ratios[each.codec, found.codec]))
        for each in found.recoded
        if (each.codec, found.codec) in ratios
    )
    more = sum(each.bytes_after - each.bytes_before for each in recoded)
    expected = replace(step.expected, bytes_after=max(0, step.expected.bytes_after + more))
    cost = replace(
        step.cost,
        bytes_written=max(0, step.cost.bytes_written + more),
        row_groups=found.groups,
        row_groups_copied=found.copied,
        bytes_copied=found.bytes_copied,
    )
    return replace(step, expected=expected, cost=cost, recoded=recoded)
