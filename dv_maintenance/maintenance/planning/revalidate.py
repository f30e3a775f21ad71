"""Check a plan against a newer version of its table: which steps are still valid, and which replace the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from dv_maintenance.errors import UsageError
from dv_maintenance.files.arrays import bools, combined, strings
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanInput, PlanStep
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.partition_spec import only

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot


def split_stale(plan: MaintenancePlan, snapshot: Snapshot) -> tuple[list[PlanStep], list[PlanStep]]:
    """Steps that are valid for the snapshot, and steps that are not: an input is no longer live, has another deletion
    vector (DV), other counts in the log, or may not be rewritten now (``Snapshot.barred``).

    Raises
    ------
    UsageError : the plan contradicts the very version that it was made for.
    """
    live = _live(snapshot, plan.steps)
    holds: list[PlanStep] = []
    stale: list[PlanStep] = []
    for step in plan.steps:
        wrong = next((each for each in step.inputs if live.get(_key(each)) != _facts(each, step.partition)), None)
        if wrong is not None and snapshot.version == plan.version:
            raise UsageError(
                f"the plan does not match the table: {step.id} names {wrong.path} with values that differ from the log",
                at=snapshot,
                next_step="make a new plan",
            )
        (holds if wrong is None else stale).append(step)
    return holds, stale


def refresh(steps: Sequence[PlanStep], snapshot: Snapshot) -> tuple[list[PlanStep], list[PlanStep]]:
    """Steps that have not begun, as they are on a newer version, and those that are no longer valid there.

    A step is kept if each of its files is still live, in the same partition with the same physical rows, and has lost
    no deleted row: another deletion vector (DV) has more rows, or its bytes are stored elsewhere since a commit of this
    run. A rewrite whose input has no live row left is not kept: such a file is removed without being read.
    """
    live: dict[str, list[tuple[FileKey, tuple[Any, ...]]]] = {}
    for key, facts in _live(snapshot, steps).items():
        live.setdefault(key.path, []).append((key, facts))
    kept: list[PlanStep] = []
    stale: list[PlanStep] = []
    for step in steps:
        inputs = [_refreshed(each, step, live.get(each.path, [])) for each in step.inputs]
        if None in inputs:
            stale.append(step)
        else:
            kept.append(replace(step, inputs=tuple(each for each in inputs if each is not None)))
    return kept, stale


def _refreshed(each: PlanInput, step: PlanStep, found: Sequence[tuple[FileKey, tuple[Any, ...]]]) -> PlanInput | None:
    """The input with its current DV; ``None`` if the step can't be kept."""
    facts = _facts(each, step.partition)
    if (_key(each), facts) in found:
        return each
    if len(found) != 1 or step.action != "rewrite":
        return None
    [(key, (*same, deleted))] = found
    grown = deleted >= each.deleted_rows and deleted != each.physical_rows
    if tuple(same) != facts[:-1] or not grown or (key.dv_id is None) != (deleted == 0):
        return None
    return replace(each, dv_id=key.dv_id, deleted_rows=deleted)


def plan_again(
    plan: MaintenancePlan, snapshot: Snapshot, lost: Sequence[PlanStep], *, keep: Sequence[PlanStep], number: int
) -> list[PlanStep]:
    """Steps that replace the lost ones.

    They follow the same policy on the same partitions, leave out the files of the steps kept, and cost at most as much
    as the lost steps. Steps that order rows, or that the meter chose, keep their files, as far as these are still live.
    ``number`` makes the new ids differ from earlier ones.
    """
    if plan.order_by or any(step.metered for step in lost):
        return _steps_again(snapshot, lost, number)
    taken = strings([each.path for step in keep for each in step.inputs])
    rest = snapshot.files.filter(pc.invert(pc.is_in(snapshot.files["path"], value_set=taken)))
    partitions = sorted({step.partition for step in lost})
    policy = plan.policy.model_copy(
        update={
            "target_file_size": plan.target_file_size,
            "partitions": tuple(only(snapshot.specs, partition) for partition in partitions),
            **_limits(plan, lost),
        }
    )
    again = build_plan(replace(snapshot, files=rest), policy, purge=plan.purge)
    return [replace(step, id=f"{step.id}.{number}") for step in again.steps]


def _steps_again(snapshot: Snapshot, lost: Sequence[PlanStep], number: int) -> list[PlanStep]:
    live = {key.path: (key, facts) for key, facts in _live(snapshot, lost).items()}
    again = []
    for step in lost:
        inputs = []
        for each in step.inputs:
            if each.path in live:
                key, (_, size, physical, deleted) = live[each.path]
                inputs.append(replace(each, dv_id=key.dv_id, size=size, physical_rows=physical, deleted_rows=deleted))
        if inputs:
            again.append(replace(step, id=f"{step.id}.{number}", inputs=tuple(inputs)))
    return again


def _limits(plan: MaintenancePlan, lost: Sequence[PlanStep]) -> dict[str, int]:
    """A replanned run may spend the cost of its lost steps once more, but no more than that."""
    policy = plan.policy
    spent = {
        "max_bytes": (policy.max_bytes, sum(each.size for step in lost for each in step.inputs)),
        "max_files": (policy.max_files, sum(len(step.inputs) for step in lost)),
        "max_tasks": (policy.max_tasks, len(lost)),
    }
    return {name: max(1, amount) for name, (limit, amount) in spent.items() if limit is not None}


def _key(each: PlanInput) -> FileKey:
    return FileKey(each.path, each.dv_id)


def _facts(each: PlanInput, partition: str) -> tuple[Any, ...]:
    return partition, each.size, each.physical_rows, each.deleted_rows


def _live(snapshot: Snapshot, steps: Sequence[PlanStep]) -> Mapping[FileKey, tuple[Any, ...]]:
    paths = strings([each.path for step in steps for each in step.inputs])
    columns = ["path", "dv_id", "partition", "size", "physical_rows", "deleted_rows"]
    found = snapshot.files.filter(pc.is_in(snapshot.files["path"], value_set=paths)).select(columns)
    for files in snapshot.barred().values():
        found = found.filter(
            pc.invert(pc.is_in(found["path"], value_set=combined(snapshot.files["path"].filter(bools(files)))))
        )
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return {FileKey(path, dv_id): facts for path, dv_id, *rest in rows for facts in [tuple(rest)]}
