"""Order a table's files by some columns along a space-filling curve, so that filters on any of them skip most files.

Files already in this order are left alone unless new files lie in their range: a second run finds nothing to do.
Deletion vectors of rewritten files are purged.

Rows move between files, so concurrent deletes can't be carried over by position as in a compaction. The steps that
they touch are repeated, the others are committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.planning.facts import file_facts, partition_mask
from dv_maintenance.maintenance.planning.left_alone import OUTSIDE, left_alone
from dv_maintenance.maintenance.planning.ordered_steps import NOT_CHOSEN, ordered_steps
from dv_maintenance.maintenance.planning.policy import Policy, target_file_size
from dv_maintenance.maintenance.planning.selection import select
from dv_maintenance.maintenance.planning.steps import MaintenancePlan, Why
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tables.capabilities import OrderableTable
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.maintenance.execution.apply import OnProgress
    from dv_maintenance.maintenance.execution.report import ApplyReport
    from dv_maintenance.maintenance.planning.facts import Bools, FileFacts
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import ColumnBounds
    from dv_maintenance.tables.table import Table

# The curve distinguishes so many columns in its 64 bits; Delta recommends at most four.
_MAX_COLUMNS: Final = 16
_WORDS: Final[dict[Why, str]] = {
    "unordered": "not ordered yet",
    "overlapping": "in the range of unordered files",
    "deleted_ratio": "with many deleted rows",
}
_UNORDERED, _OVERLAPPING, _DELETED = range(len(_WORDS))


def zorder(
    table: Table,
    engine: Engine,
    columns: Sequence[str],
    policy: Policy | None = None,
    *,
    on_progress: OnProgress | None = None,
    max_attempts: int = 3,
) -> ApplyReport:
    """Plan for the newest version, see :func:`plan_zorder`, and run the plan. Raises the errors of both."""
    plan = plan_zorder(table, table.snapshot(), columns, policy)
    return apply(table, engine, plan, on_progress=on_progress, max_attempts=max_attempts)


def plan_zorder(
    table: Table, snapshot: Snapshot, columns: Sequence[str], policy: Policy | None = None
) -> MaintenancePlan:
    """A plan that orders files by ``columns`` together.

    It contains the files that are not ordered by these columns, and ordered files that lie in their range or have many
    deleted rows.

    policy : its ``partitions`` and ``target_file_size``.

    Raises
    ------
    UsageError : a column does not exist or can't be ordered, or a partition column is unknown.
    UnsupportedFeatureError, RefusedError : the table may not be rewritten, or is clustered by columns of its own.
    """
    table.check_writable(snapshot, "rewrite")
    if not isinstance(table, OrderableTable):
        raise RefusedError(
            f"ordering files of {title_of(table.format)} tables is not supported",
            table=table.uri,
            next_step="use the engine of the table",
        )
    if clustered := table.clustered_by(snapshot):
        raise RefusedError(
            f"the table is clustered by {', '.join('.'.join(column) for column in clustered)}: its files have an order "
            "of their own",
            table=table.uri,
            version=snapshot.version,
            next_step=Remedy("cluster what is not clustered yet: {}", (run("cluster", table.uri),)),
        )
    names = _checked(snapshot, columns)
    policy = policy or Policy()
    facts, target = file_facts(snapshot), target_file_size(policy, snapshot)
    if policy.partitions:
        policy = policy.model_copy(update={"partitions": select(snapshot, facts.partitions, policy.partitions).filters})
    selected = partition_mask(snapshot, facts, policy.partitions)
    ordered = np.array([found == names for found in table.ordered_by(snapshot)], bool)
    bounds = table.column_bounds(snapshot, names)

    why = np.full(len(facts), NOT_CHOSEN, np.int8)
    why[selected & ~ordered] = _UNORDERED
    why[selected & ordered & _dirty(facts, policy)] = _DELETED
    for code in np.unique(facts.partition[why >= 0]).tolist():
        inside = facts.partition == code
        why[inside & (why < 0) & _in_range(bounds, inside & (why >= 0))] = _OVERLAPPING

    left = {
        f"ordered by {', '.join(names)}, with nothing new in its range": selected & (why < 0),
        OUTSIDE: ~selected,
    }
    return MaintenancePlan(
        table=snapshot.table,
        format=snapshot.format,
        version=snapshot.version,
        purge=False,
        target_file_size=target,
        policy=policy,
        steps=ordered_steps(snapshot, facts, why, _WORDS, names, target, bounds),
        left_alone=tuple(
            left_alone(reason, np.flatnonzero(mask), snapshot, facts) for reason, mask in left.items() if mask.any()
        ),
        order_by=names,
    )


def _checked(snapshot: Snapshot, columns: Sequence[str]) -> tuple[str, ...]:
    """The columns in the table's spelling."""
    spelt = {name.lower(): name for name in snapshot.schema.names}
    names = tuple(spelt.get(name.lower(), name) for name in columns)
    problem = None
    if not names or len(set(names)) < len(names) or len(names) > _MAX_COLUMNS:
        problem = f"name 1 to {_MAX_COLUMNS} different columns to order by"
    for name in names:
        if name not in snapshot.schema.names:
            problem = f"no column {name!r}"
        elif name in snapshot.partition_columns:
            problem = f"{name!r} is a partition column: it already separates the files"
        elif not orderable(type_ := snapshot.schema.field(name).type):
            problem = f"column {name!r} of type {type_} cannot be ordered"
    if problem:
        others = [name for name in snapshot.schema.names if name not in snapshot.partition_columns]
        raise UsageError(problem, at=snapshot, next_step=f"choose from {', '.join(others)}")
    return names


def orderable(type_: pa.DataType) -> bool:
    return not (types.is_nested(type_) or types.is_null(type_))


def _dirty(facts: FileFacts, policy: Policy) -> Bools:
    ratio = facts.deleted / np.maximum(facts.physical, 1)
    return facts.has_dv & (~facts.known | (ratio > policy.max_deleted_ratio))


def _in_range(bounds: Mapping[str, ColumnBounds], files: Bools) -> Bools:
    """Which files may hold values in each column's range over ``files``; files with unknown bounds may."""
    chosen = pa.array(np.flatnonzero(files))
    result = np.ones(len(files), bool)
    for each in bounds.values():
        least, greatest = each.minimum.take(chosen), each.maximum.take(chosen)
        if not least.null_count:
            result &= _or_unknown(pc.greater_equal(each.maximum, pc.min(least)))
        if not greatest.null_count:
            result &= _or_unknown(pc.less_equal(each.minimum, pc.max(greatest)))
    return result


def _or_unknown(mask: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.fill_null(mask, True).to_numpy(), bool)
