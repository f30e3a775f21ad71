"""Order a table's files by some columns (Z-order), so that filters on any of them skip most files.

Files already in this order are left alone unless new files lie in their range: a second run finds nothing to do.
Deletion vectors of rewritten files are purged.

Rows move between files, so concurrent deletes can't be carried over by position as in a compaction. The steps that
they touch are repeated, the others are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.planning.facts import file_facts, partition_mask
from dv_maintenance.maintenance.planning.left_alone import left_alone
from dv_maintenance.maintenance.planning.policy import Policy, target_file_size
from dv_maintenance.maintenance.planning.selection import select
from dv_maintenance.maintenance.planning.steps import Cost, Effect, MaintenancePlan, PlanInput, PlanStep, Why
from dv_maintenance.tables.capabilities import OrderableTable
from dv_maintenance.units import format_size

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.maintenance.execution.apply import OnProgress
    from dv_maintenance.maintenance.execution.report import ApplyReport
    from dv_maintenance.maintenance.planning.facts import Bools, FileFacts, Ints
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import ColumnBounds
    from dv_maintenance.tables.table import Table

__all__ = ["plan_zorder", "zorder"]

# The curve distinguishes so many columns in its 64 bits; Delta recommends at most four.
_MAX_COLUMNS: Final = 16
# One task orders the rows of so many new files: more files skip better, but keep one worker busy for longer.
_FILES_PER_STEP: Final = 32
_WHYS: Final[tuple[Why, ...]] = ("unordered", "overlapping", "deleted_ratio")


def zorder(
    table: Table,
    engine: Engine,
    columns: Sequence[str],
    partitions: Iterable[Mapping[str, str | None] | str] = (),
    *,
    target_size: int | str | None = None,
    on_progress: OnProgress | None = None,
    max_attempts: int = 3,
) -> ApplyReport:
    """Plan for the newest version, see :func:`plan_zorder`, and run the plan. Raises the errors of both."""
    plan = plan_zorder(table, table.snapshot(), columns, partitions, target_size=target_size)
    return apply(table, engine, plan, on_progress=on_progress, max_attempts=max_attempts)


def plan_zorder(
    table: Table,
    snapshot: Snapshot,
    columns: Sequence[str],
    partitions: Iterable[Mapping[str, str | None] | str] = (),
    *,
    target_size: int | str | None = None,
) -> MaintenancePlan:
    """A plan that orders files by ``columns`` together.

    It contains the files that are not ordered by these columns, and ordered files that lie in their range or have many
    deleted rows.

    partitions : only files of these, see ``Policy.partitions``.
    target_size : bytes of a new file, see ``Policy.target_file_size``.

    Raises
    ------
    UsageError : a column does not exist or can't be ordered, or a partition column is unknown.
    UnsupportedFeatureError, RefusedError : the table may not be rewritten, or is clustered by columns of its own.
    """
    table.check_writable(snapshot, "rewrite")
    if not isinstance(table, OrderableTable):
        raise RefusedError(f"ordering files of {table.format} tables is not supported", table=table.uri)
    if clustered := table.clustered_by(snapshot):
        raise RefusedError(
            f"the table is clustered by {', '.join('.'.join(column) for column in clustered)}: its files have an order "
            "of their own",
            table=table.uri,
            version=snapshot.version,
            next_step="let OPTIMIZE of the table's own engine cluster them; purge and optimize keep what is clustered",
        )
    names = _checked(snapshot, columns)
    policy = Policy.from_mapping({"partitions": list(partitions), "target_file_size": target_size}, "the selection")
    facts, target = file_facts(snapshot), target_file_size(policy, snapshot)
    if policy.partitions:
        policy = policy.model_copy(update={"partitions": select(snapshot, facts.partitions, policy.partitions).filters})
    selected = partition_mask(snapshot, facts, policy.partitions)
    ordered = np.array([found == names for found in table.ordered_by(snapshot)], bool)
    bounds = table.column_bounds(snapshot, names)

    why = np.full(len(facts), -1, np.int8)
    why[selected & ~ordered] = _WHYS.index("unordered")
    why[selected & ordered & _dirty(facts, policy)] = _WHYS.index("deleted_ratio")
    for code in np.unique(facts.partition[why >= 0]).tolist():
        inside = facts.partition == code
        why[inside & (why < 0) & _in_range(bounds, inside & (why >= 0))] = _WHYS.index("overlapping")

    first = bounds.get(names[0])
    ranks = np.arange(len(facts)) if first is None else _ranks(first.minimum)
    steps: list[PlanStep] = []
    for code in sorted(np.unique(facts.partition[why >= 0]).tolist(), key=facts.partitions.__getitem__):
        rows = np.flatnonzero((facts.partition == code) & (why >= 0))
        for share in _shares(rows[np.argsort(ranks[rows], kind="stable")], facts, target * _FILES_PER_STEP):
            steps.append(_step(f"step-{len(steps) + 1}", share, snapshot, facts, why, target, names))
    left = {
        f"ordered by {', '.join(names)}, with nothing new in its range": selected & (why < 0),
        "outside the selected partitions": ~selected,
    }
    return MaintenancePlan(
        table=snapshot.table,
        format=snapshot.format,
        version=snapshot.version,
        purge=False,
        target_file_size=target,
        policy=policy,
        steps=tuple(steps),
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
        elif types.is_nested(type_ := snapshot.schema.field(name).type) or types.is_null(type_):
            problem = f"column {name!r} of type {type_} cannot be ordered"
    if problem:
        others = [name for name in snapshot.schema.names if name not in snapshot.partition_columns]
        raise UsageError(
            problem, table=snapshot.table, version=snapshot.version, next_step=f"choose from {', '.join(others)}"
        )
    return names


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


def _ranks(values: pa.ChunkedArray) -> Ints:
    ranks = np.empty(len(values), np.int64)
    ranks[pc.array_sort_indices(values.combine_chunks(), null_placement="at_start").to_numpy()] = np.arange(len(values))
    return ranks


def _shares(rows: Ints, facts: FileFacts, most: int) -> list[Ints]:
    """Consecutive files, in parts of about equal live bytes and at most ``most``."""
    sizes = facts.live_bytes[rows]
    total = int(sizes.sum())
    count = max(1, -(-total // most))
    # By the middle of each file, so that the size of a part is at most half a file off.
    parts = (np.cumsum(sizes) - sizes / 2) * count // max(total, 1)
    return [share for share in np.split(rows, np.flatnonzero(np.diff(parts)) + 1) if len(share)]


def _step(
    identity: str,
    rows: Ints,
    snapshot: Snapshot,
    facts: FileFacts,
    why: npt.NDArray[np.int8],
    target: int,
    names: tuple[str, ...],
) -> PlanStep:
    files = snapshot.files.select(["path", "dv_id", "size", "physical_rows", "deleted_rows"]).take(pa.array(rows))
    inputs = tuple(
        PlanInput(**row, why=_WHYS[code]) for row, code in zip(files.to_pylist(), why[rows].tolist(), strict=True)
    )
    live, purged = int(facts.live_bytes[rows].sum()), int(facts.deleted[rows].sum())
    counts = np.bincount(why[rows], minlength=len(_WHYS)).tolist()
    what = ("not ordered yet", "in the range of unordered files", "with many deleted rows")
    parts = ", ".join(f"{count} {text}" for count, text in zip(counts, what, strict=True) if count)
    return PlanStep(
        id=identity,
        action="rewrite",
        partition=facts.partitions[int(facts.partition[rows[0]])],
        reason=f"files: {parts}: {format_size(live)} to order by {', '.join(names)}",
        inputs=inputs,
        expected=Effect(
            files_after=max(1, round(live / target)),
            dvs_removed=int(facts.has_dv[rows].sum()),
            rows_purged=purged,
            live_rows=int(facts.physical[rows].sum()) - purged if bool(facts.known[rows].all()) else None,
            bytes_after=live,
        ),
        cost=Cost(bytes_read=int(facts.size[rows].sum()), bytes_written=live, files_read=len(rows)),
    )
