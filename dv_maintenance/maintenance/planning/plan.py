"""From a snapshot and a policy to steps: classify, pack into bins, order by benefit, cut at the limits.

Everything up to the chosen steps works on columns: a healthy table of a million files costs no object per file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.maintenance.planning.bins import pack, pack_in_order
from dv_maintenance.maintenance.planning.facts import Bools, FileFacts, Ints, file_facts, partition_mask
from dv_maintenance.maintenance.planning.policy import Policy, target_file_size
from dv_maintenance.maintenance.planning.steps import (
    Action,
    Cost,
    Effect,
    LeftAlone,
    MaintenancePlan,
    PlanInput,
    PlanStep,
    Why,
)
from dv_maintenance.tables.model import SEQUENCE
from dv_maintenance.units import format_size

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot

__all__ = ["MaintenancePlan", "PlanStep", "build_plan"]

_log = logging.getLogger(__name__)

# The cost of opening one more file or deletion vector, in bytes read: Spark's own figure
# (spark.sql.files.openCostInBytes).
_OPEN_COST = 4 << 20
# A bin may read at most this many times its output. Otherwise one task would get all the almost empty files.
_MAX_READ_PER_WRITTEN = 8
_EXAMPLES = 5

Codes = npt.NDArray[np.int8]
_KEEP = 0
_WHYS: tuple[Why, ...] = ("deleted_ratio", "unknown_rows", "deletion_vector", "small", "wholly_deleted")
_RATIO, _UNKNOWN, _DV, _SMALL, _EMPTY = range(1, len(_WHYS) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """A step before it is chosen: ``rows`` are positions in the snapshot's files."""

    action: Action
    rows: Ints
    size: int
    live_bytes: int
    dvs: int
    files_after: int

    @property
    def bytes_read(self) -> int:
        return 0 if self.action == "remove" else self.size

    @property
    def benefit(self) -> float:
        """What queries save per byte that has to be read now: bytes that are no longer read, and files and DVs that are
        no longer opened (at Spark's cost of opening).
        """
        saved = self.size - self.live_bytes + _OPEN_COST * (len(self.rows) + self.dvs - self.files_after)
        return saved / self.bytes_read if self.bytes_read else float("inf")


def build_plan(snapshot: Snapshot, policy: Policy | None = None, *, purge: bool = False) -> MaintenancePlan:
    """The plan for a snapshot: a pure function of its arguments.

    With ``purge`` the plan purges every deletion vector (DV) and touches no file without one. Otherwise thresholds
    and file sizes decide, see :class:`Policy`. A file whose rows are all deleted is removed without being read,
    independent of thresholds. The limits apply in both cases.

    Raises
    ------
    UsageError : the policy names unknown partition columns, or the table's property of the target size is not a size.
    DamagedTableError : the log's numbers contradict each other.
    """
    policy = policy or Policy()
    facts = file_facts(snapshot)
    target = target_file_size(policy, snapshot)
    smallest = target * 3 // 4 if policy.min_file_size is None else policy.min_file_size
    selected = partition_mask(snapshot, facts, policy.partitions)
    why = np.where(selected, _classify(facts, policy, smallest, purge=purge), _KEEP)

    ordered = SEQUENCE.name in snapshot.files.column_names
    groups = _runs(snapshot, facts, why) if ordered else _by_partition(snapshot, facts, why)
    drafts, lone = _drafts(facts, why, groups, policy, target, ordered=ordered)
    # Python's sort is stable: equal files keep their order.
    drafts.sort(key=lambda draft: -draft.benefit)
    chosen, cut = _within_limits(drafts, policy)

    stay = selected & (why == _KEEP)
    big = f"at least {format_size(smallest)} of live rows"
    few = f"small, but fewer than {policy.min_input_files} such files fit into a new one of {format_size(target)}"
    left = {
        "no deletion vector" if purge else f"no deletion vector, and {big}": _rows(stay & ~facts.has_dv),
        f"at most {_percent(policy)} of its rows deleted, and {big}": _rows(stay & facts.has_dv),
        few: lone,
        **cut,
        "outside the selected partitions": _rows(~selected),
    }
    plan = MaintenancePlan(
        table=snapshot.table,
        format=snapshot.format,
        version=snapshot.version,
        purge=purge,
        target_file_size=target,
        policy=policy,
        steps=tuple(_steps(chosen, snapshot, facts, why, policy)),
        left_alone=tuple(_left_alone(reason, rows, snapshot, facts) for reason, rows in left.items() if len(rows)),
    )
    _log.debug(
        "%s: plan for version %d: %d steps, reading %s; %d files left alone",
        plan.table,
        plan.version,
        len(plan.steps),
        format_size(sum(step.cost.bytes_read for step in plan.steps)),
        sum(each.files for each in plan.left_alone),
    )
    return plan


def _classify(facts: FileFacts, policy: Policy, smallest: int, *, purge: bool) -> Codes:
    """Per file, why it is a candidate; ``_KEEP`` if it is not one. Later rules win."""
    why = np.full(len(facts), _KEEP, np.int8)
    if purge:
        why[facts.has_dv] = _DV
    else:
        why[facts.live_bytes < smallest] = _SMALL
        # Strictly greater, as Delta's maxDeletedRowsRatio.
        ratio = facts.deleted / np.maximum(facts.physical, 1)
        why[facts.has_dv & facts.known & (ratio > policy.max_deleted_ratio)] = _RATIO
        why[facts.has_dv & ~facts.known] = _UNKNOWN
    # Only with a DV: writers need not record row counts of files without one, so these never justify dropping data.
    why[facts.has_dv & facts.known & (facts.physical > 0) & (facts.deleted == facts.physical)] = _EMPTY
    return why


def _by_partition(snapshot: Snapshot, facts: FileFacts, why: Codes) -> list[Ints]:
    """Candidates of each partition, by partition name, then oldest first.

    Rows written together stay together, which keeps the bounds of new files narrow. The result does not depend on the
    order in which the log lists the files.
    """
    candidates = _rows(why != _KEEP)
    if not len(candidates):
        return []
    names = sorted(range(len(facts.partitions)), key=facts.partitions.__getitem__)
    rank = np.empty(len(names), np.int64)
    rank[names] = np.arange(len(names))
    ranks = rank[facts.partition[candidates]]
    keys = snapshot.files.select(["modified", "path", "dv_id"]).take(_arrow(candidates))
    keys = keys.append_column("partition", _arrow(ranks))
    order = pc.sort_indices(
        keys, sort_keys=[(name, "ascending") for name in ("partition", "modified", "path", "dv_id")]
    )
    sorted_rows = np.frombuffer(order.buffers()[1], np.uint64)[order.offset : order.offset + len(order)].astype(
        np.int64
    )
    ends = np.flatnonzero(np.diff(ranks[sorted_rows])) + 1
    return np.split(candidates[sorted_rows], ends)


def _runs(snapshot: Snapshot, facts: FileFacts, why: Codes) -> list[Ints]:
    """Candidates that may be merged because each directly follows the one before it: see ``SEQUENCE``."""
    candidates = _rows(why != _KEEP)
    numbers = snapshot.files[SEQUENCE.name].combine_chunks().to_numpy()[candidates]
    order = np.argsort(numbers, kind="stable")
    numbers, candidates = numbers[order], candidates[order]
    empty, partition = why[candidates] == _EMPTY, facts.partition[candidates]
    # A file that is removed whole separates its neighbours, since the removal is another commit.
    together = (np.diff(numbers) == 1) & (np.diff(partition) == 0) & (empty[1:] == empty[:-1])
    return [run for run in np.split(candidates, np.flatnonzero(~together) + 1) if len(run)]


def _drafts(
    facts: FileFacts, why: Codes, groups: list[Ints], policy: Policy, target: int, *, ordered: bool
) -> tuple[list[_Draft], Ints]:
    """Possible steps, and the candidates without benefit alone. Each step has files of one group."""
    drafts: list[_Draft] = []
    lone = [np.zeros(0, np.int64)]
    weights = _weights(facts, policy, target)
    for rows in groups:
        empty, rest = rows[why[rows] == _EMPTY], rows[why[rows] != _EMPTY]
        at_once = policy.max_files or max(len(empty), 1)
        drafts += [_draft("remove", empty[at : at + at_once], facts, 0) for at in range(0, len(empty), at_once)]
        for members in _bins(rest, weights[rest], target, ordered=ordered):
            if len(members) < policy.min_input_files and (why[members] == _SMALL).all():
                lone.append(members)
            else:
                live_bytes = int(facts.live_bytes[members].sum())
                drafts.append(_draft("rewrite", members, facts, _files_after(live_bytes, target)))
    return drafts, np.concatenate(lone)


def _bins(rows: Ints, weights: Ints, target: int, *, ordered: bool) -> Iterator[Ints]:
    if ordered:
        yield from (rows[positions] for positions in pack_in_order(weights.tolist(), target))
        return
    heaviest = np.argsort(-weights, kind="stable")
    for positions in pack(weights[heaviest].tolist(), target):
        yield rows[np.sort(heaviest[positions])]


def _weights(facts: FileFacts, policy: Policy, target: int) -> Ints:
    """The weight of a file in a bin of ``target``: its live bytes, or more if the bin would otherwise read too much or
    hold more files than a run may replace.
    """
    # Rounded up: a bin within its weights is within the limits.
    weights = np.maximum(facts.live_bytes, -(-facts.size // _MAX_READ_PER_WRITTEN))
    if policy.max_bytes:
        share = np.floor(facts.size * (target / policy.max_bytes)).astype(np.int64) + 1
        weights = np.maximum(weights, np.where(facts.size > 0, share, 0))
    return np.maximum(weights, -(-target // policy.max_files)) if policy.max_files else weights


def _files_after(live_bytes: int, target: int) -> int:
    """A tenth above the target does not justify a file of its own."""
    return max(1, -(-(10 * live_bytes - target) // (10 * target)))


def _draft(action: Action, rows: Ints, facts: FileFacts, files_after: int) -> _Draft:
    return _Draft(
        action=action,
        rows=rows,
        size=int(facts.size[rows].sum()),
        live_bytes=int(facts.live_bytes[rows].sum()),
        dvs=int(facts.has_dv[rows].sum()),
        files_after=files_after,
    )


def _within_limits(drafts: list[_Draft], policy: Policy) -> tuple[list[_Draft], dict[str, Ints]]:
    """The steps of this run, and the steps beyond its limits, by reason. A smaller step may take the place of one that
    does not fit. A file above ``max_bytes`` gets a run without other rewrites, once nothing else needs a rewrite:
    otherwise no run would ever take it.
    """
    limits = {"max_bytes": policy.max_bytes, "max_files": policy.max_files, "max_tasks": policy.max_tasks}
    used = dict.fromkeys(limits, 0)
    chosen: list[_Draft] = []
    large: list[_Draft] = []
    cut: dict[str, list[Ints]] = {}
    for draft in drafts:
        if _is_above_limit(draft, policy):
            large.append(draft)
            continue
        takes = {
            "max_bytes": draft.bytes_read,
            "max_files": len(draft.rows),
            "max_tasks": int(draft.action == "rewrite"),
        }
        over = next(
            (
                name
                for name, limit in limits.items()
                if limit is not None and takes[name] and used[name] + takes[name] > limit
            ),
            None,
        )
        if over is None:
            chosen.append(draft)
            used = {name: used[name] + takes[name] for name in used}
            continue
        value = format_size(limits[over] or 0) if over == "max_bytes" else f"{limits[over]}"
        cut.setdefault(f"beyond this run's limit: {over} is {value}", []).append(draft.rows)
    room = policy.max_files is None or used["max_files"] < policy.max_files
    if large and room and not any(draft.action == "rewrite" for draft in chosen):
        chosen.append(large.pop(0))
    if large:
        reason = f"larger than max_bytes, {format_size(policy.max_bytes or 0)}: waits for a run of its own"
        cut[reason] = [draft.rows for draft in large]
    return chosen, {reason: np.concatenate(rows) for reason, rows in cut.items()}


def _is_above_limit(draft: _Draft, policy: Policy) -> bool:
    """Whether a step can't keep ``max_bytes``. Bins do, so it is a single file's."""
    return policy.max_bytes is not None and draft.bytes_read > policy.max_bytes


# -- from columns to objects -------------------------------------------------------------------------------------


def _steps(
    drafts: list[_Draft], snapshot: Snapshot, facts: FileFacts, why: Codes, policy: Policy
) -> Iterator[PlanStep]:
    rows = np.concatenate([np.zeros(0, np.int64), *(draft.rows for draft in drafts)])
    # One take for all steps: on a table of many chunks, each call costs more than the rows it takes.
    files = snapshot.files.select(["path", "dv_id", "size", "physical_rows", "deleted_rows"]).take(_arrow(rows))
    inputs = (
        PlanInput(path, dv_id, size, physical_rows, deleted_rows, _WHYS[code - 1])
        for path, dv_id, size, physical_rows, deleted_rows, code in zip(
            *(column.to_pylist() for column in files.columns), why[rows].tolist(), strict=True
        )
    )
    for number, draft in enumerate(drafts, 1):
        yield _step(f"step-{number}", draft, tuple(islice(inputs, len(draft.rows))), facts, why, policy)


def _step(
    identity: str, draft: _Draft, inputs: tuple[PlanInput, ...], facts: FileFacts, why: Codes, policy: Policy
) -> PlanStep:
    rows = draft.rows
    purged = int(facts.deleted[rows].sum())
    known = bool(facts.known[rows].all())
    written = 0 if draft.action == "remove" else draft.live_bytes
    return PlanStep(
        id=identity,
        action=draft.action,
        partition=facts.partitions[int(facts.partition[rows[0]])],
        reason=_reason(draft, np.bincount(why[rows], minlength=len(_WHYS) + 1).tolist(), policy),
        inputs=inputs,
        expected=Effect(
            files_after=draft.files_after,
            dvs_removed=draft.dvs,
            rows_purged=purged,
            live_rows=int(facts.physical[rows].sum()) - purged if known else None,
            bytes_after=written,
        ),
        cost=Cost(
            bytes_read=draft.bytes_read,
            bytes_written=written,
            files_read=0 if draft.action == "remove" else len(rows),
        ),
    )


def _reason(draft: _Draft, counts: list[int], policy: Policy) -> str:
    """In plain words, the strongest reason first."""
    if draft.action == "remove":
        return f"every row of {_files(counts[_EMPTY])} is deleted: nothing to read, nothing to write"
    parts = [
        f"{_files(counts[_RATIO])} with more than {_percent(policy)} of the rows deleted",
        f"{_files(counts[_UNKNOWN])} with a deletion vector but no row count in the log",
        f"{_files(counts[_DV])} with a deletion vector",
        f"{_files(counts[_SMALL])} too small to stay alone",
    ]
    counted = [counts[_RATIO], counts[_UNKNOWN], counts[_DV], counts[_SMALL]]
    into = "one new file" if draft.files_after == 1 else f"about {draft.files_after} new files"
    reason = f"{', '.join(part for part, count in zip(parts, counted, strict=True) if count)}: rewrite into {into}"
    if policy.max_bytes is not None and _is_above_limit(draft, policy):
        reason += f"; larger than max_bytes, {format_size(policy.max_bytes)}, so a run of its own"
    return reason


def _left_alone(reason: str, rows: Ints, snapshot: Snapshot, facts: FileFacts) -> LeftAlone:
    paths = snapshot.files.select(["path"]).take(_arrow(rows))
    first = pc.select_k_unstable(paths, min(_EXAMPLES, len(rows)), sort_keys=[("path", "ascending")])
    return LeftAlone(
        reason=reason,
        files=len(rows),
        size_bytes=int(facts.size[rows].sum()),
        deleted_rows=int(facts.deleted[rows].sum()),
        examples=tuple(paths["path"].take(first).to_pylist()),
    )


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _percent(policy: Policy) -> str:
    return f"{policy.max_deleted_ratio * 100:.4g} %"


def _rows(mask: Bools) -> Ints:
    return np.flatnonzero(mask).astype(np.int64)


def _arrow(values: Ints) -> pa.Array:
    """Without pa.array(), which would import pandas."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
