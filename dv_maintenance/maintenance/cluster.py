"""Cluster what is not clustered yet, by the table's own columns, as its engine's OPTIMIZE does.

The rows of unclustered files form a new unit, in the order of a space-filling curve. Units that are not much larger
than all that joins them are taken in, so a byte is clustered again about once each time its unit doubles. A second run
finds nothing to do. Deletion vectors of rewritten files are purged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pyarrow.compute as pc

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import strings
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.planning.drafts import joins
from dv_maintenance.maintenance.planning.facts import file_facts
from dv_maintenance.maintenance.planning.left_alone import left_alone
from dv_maintenance.maintenance.planning.ordered_steps import BYTES_PER_STEP, NOT_CHOSEN, ordered_steps
from dv_maintenance.maintenance.planning.policy import Policy, target_file_size
from dv_maintenance.maintenance.planning.run_limits import NOTHING_SPENT, Spent
from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep, Why
from dv_maintenance.maintenance.zorder import orderable
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.capabilities import OrderableTable
from dv_maintenance.tables.columns import field_at, quoted, text_of

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.maintenance.execution.apply import OnProgress
    from dv_maintenance.maintenance.execution.report import ApplyReport
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

# A larger unit takes no more files in (delta-spark: minCubeSize.threshold).
_FULL: Final = 100 << 30
_WORDS: Final[dict[Why, str]] = {
    "unclustered": "not clustered yet",
    "other_columns": "clustered by other columns",
    "small_unit": "clustered together with too few others",
}
_UNCLUSTERED, _OTHERS, _JOINED = range(len(_WORDS))


def cluster(
    table: Table,
    engine: Engine,
    *,
    full: bool = False,
    target_size: int | str | None = None,
    on_progress: OnProgress | None = None,
    max_attempts: int = 3,
) -> ApplyReport:
    """Plan for the newest version, see :func:`plan_cluster`, and run the plan. Raises the errors of both."""
    plan = plan_cluster(table, table.snapshot(), full=full, target_size=target_size)
    return apply(table, engine, plan, on_progress=on_progress, max_attempts=max_attempts)


def plan_cluster(
    table: Table,
    snapshot: Snapshot,
    *,
    full: bool = False,
    target_size: int | str | None = None,
    step_bytes: int = BYTES_PER_STEP,
) -> MaintenancePlan:
    """A plan that clusters what is not clustered.

    full : also files that were clustered by other columns, before the table's columns were changed.
    target_size : bytes of a new file, see ``Policy.target_file_size``.
    step_bytes : see ``ordered_steps``.

    Raises
    ------
    UnsupportedFeatureError, RefusedError : the table may not be rewritten, is not clustered, or by a column that can't
        be ordered here.
    """
    table.check_writable(snapshot, "rewrite")
    columns = table.clustered_by(snapshot) if isinstance(table, OrderableTable) else ()
    if not isinstance(table, OrderableTable) or not columns:
        raise RefusedError(
            "the table is not clustered: it names no columns (CLUSTER BY)",
            at=snapshot,
            next_step=Remedy(
                "order its files by columns that you name: {}", (run("zorder", table.uri, columns="A,B"),)
            ),
        )
    for path in columns:
        if not orderable(type_ := field_at(path, snapshot.schema).type):
            raise RefusedError(
                f"the table is clustered by {quoted(path)}, and values of type {type_} can't be ordered here",
                at=snapshot,
                next_step="cluster it with OPTIMIZE of its engine; purge and optimize keep what is clustered",
            )
    names = tuple(text_of(path, snapshot.schema) for path in columns)
    policy = Policy.from_mapping({"target_file_size": target_size}, "the selection")
    facts, target, units = file_facts(snapshot), target_file_size(policy, snapshot), snapshot.units()
    units = np.full(len(facts), -1) if units is None else units
    like = np.array(table.clustered(snapshot), bool)

    why = np.full(len(facts), NOT_CHOSEN, np.int8)
    why[units < 0] = _UNCLUSTERED
    if full:
        why[(units >= 0) & ~like] = _OTHERS
    sizes = np.bincount(units[like], facts.live_bytes[like]) if like.any() else np.zeros(0)
    total = float(facts.live_bytes[why >= 0].sum())
    for unit in np.argsort(sizes, kind="stable").tolist() if (why >= 0).any() else ():
        members = like & (units == unit)
        if members.any() and sizes[unit] < _FULL and joins(sizes[unit], total):
            why[members] = _JOINED
            total += sizes[unit]
    left = {
        f"clustered by {', '.join(names)}": like & (why < 0),
        "clustered by other columns or another engine; a full run clusters it again": ~like & (why < 0),
    }
    return MaintenancePlan(
        table=snapshot.table,
        format=snapshot.format,
        version=snapshot.version,
        purge=False,
        target_file_size=target,
        policy=policy,
        steps=ordered_steps(
            snapshot, facts, why, _WORDS, names, target, table.column_bounds(snapshot, names), step_bytes
        ),
        left_alone=tuple(
            left_alone(reason, np.flatnonzero(mask), snapshot, facts) for reason, mask in left.items() if mask.any()
        ),
        order_by=names,
        unit=str(uuid5(NAMESPACE_URL, f"{snapshot.table}#{snapshot.version}")),
    )


def clustered_too(
    table: Table,
    snapshot: Snapshot,
    policy: Policy,
    spent: Spent,
    others: Callable[[Snapshot, Policy], MaintenancePlan],
) -> MaintenancePlan:
    """The plan of a policy that clusters: the steps of ``others`` for the files that need no clustering, then as many
    steps of clustering as the policy's limits leave room for.

    Fewer unclustered files than ``Policy.min_input_files`` wait for more, unless they fill a new one.
    """
    if not isinstance(table, OrderableTable) or not table.clustered_by(snapshot):
        return others(snapshot, policy)
    target = target_file_size(policy, snapshot)
    plan = plan_cluster(table, snapshot, target_size=target)
    if not _fits(policy, spent, plan.steps):
        plan = plan_cluster(table, snapshot, target_size=target, step_bytes=0)
    new = [each for step in plan.steps for each in step.inputs if each.why == "unclustered"]
    if len(new) < policy.min_input_files and sum(each.size for each in new) < plan.target_file_size:
        return others(snapshot, policy)
    rest = others(_without(snapshot, plan.steps), policy)
    steps = plan.steps
    while steps and not _fits(policy, spent, (*rest.steps, *steps)):
        if not rest.steps and len(steps) == 1 and spent == NOTHING_SPENT:
            break  # or no run would ever take it
        steps = steps[:-1]
    if not steps:
        return others(snapshot, policy)
    if len(steps) < len(plan.steps):
        rest = others(_without(snapshot, steps), _less(policy, steps))
    kept = tuple(replace(step, keeps_order=True) for step in rest.steps)
    ordered = tuple(replace(step, id=f"cluster-{step.id}") for step in steps)
    return replace(rest, policy=policy, steps=(*kept, *ordered), order_by=plan.order_by, unit=plan.unit)


def _without(snapshot: Snapshot, steps: Sequence[PlanStep]) -> Snapshot:
    taken = strings([each.path for step in steps for each in step.inputs])
    return replace(snapshot, files=snapshot.files.filter(pc.invert(pc.is_in(snapshot.files["path"], taken))))


def _costs(steps: Sequence[PlanStep]) -> dict[str, int]:
    return {
        "max_tasks": len(steps),
        "max_files": sum(len(step.inputs) for step in steps),
        "max_bytes": sum(step.cost.bytes_read for step in steps),
    }


def _fits(policy: Policy, spent: Spent, steps: Sequence[PlanStep]) -> bool:
    before = {"max_tasks": spent.tasks, "max_files": spent.files, "max_bytes": spent.bytes}
    limits = {name: getattr(policy, name) for name in before}
    return all(limits[name] is None or before[name] + cost <= limits[name] for name, cost in _costs(steps).items())


def _less(policy: Policy, steps: Sequence[PlanStep]) -> Policy:
    limits = {name: (getattr(policy, name), cost) for name, cost in _costs(steps).items()}
    return policy.model_copy(
        update={name: max(1, limit - cost) for name, (limit, cost) in limits.items() if limit is not None}
    )
