"""What is worth doing now, and when the next run will be worth its start: a pure function of its arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from dv_maintenance.files.arrays import taken
from dv_maintenance.maintenance.meter.measure import Floats, Measure, measure
from dv_maintenance.maintenance.meter.timeline import Timeline, from_snapshot
from dv_maintenance.maintenance.planning.candidates import (
    ALONG,
    DEADLINE,
    KEEP,
    PAID,
    SMALL,
    UNKNOWN,
    Candidates,
    Codes,
    Metering,
    by_ratio,
    mark_empty,
)
from dv_maintenance.maintenance.planning.deadlines import NEVER, Deadlines
from dv_maintenance.maintenance.planning.facts import partition_mask
from dv_maintenance.maintenance.planning.left_alone import EXAMPLES
from dv_maintenance.maintenance.planning.plan import PlanSetting, plan_candidates
from dv_maintenance.maintenance.planning.run_limits import NOTHING_SPENT, Spent
from dv_maintenance.units import DAY

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.facts import Bools, FileFacts, Ints
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.maintenance.reads.model import Reads
    from dv_maintenance.tables.model import Snapshot

# How long before its deadline a file is rewritten at the latest: two nights.
_AHEAD: Final = 2 * DAY
_ALONG: Final = 0.5
QUIET: Final = 2 * 60_000
"""How long a sensor lets a partition rest after a change, milliseconds."""


def decide(
    snapshot: Snapshot,
    policy: Policy,
    *,
    now: int,
    reads: Reads | None = None,
    timeline: Timeline | None = None,
    deadlines: Deadlines | None = None,
    spent: Spent = NOTHING_SPENT,
    retention: int = 0,
    start: float | None = None,
    ahead: int = 0,
    quiet: int = 0,
    listed: int = 0,
    examples: int = EXAMPLES,
) -> MaintenancePlan:
    """The plan for a snapshot.

    With known reads a file is rewritten once its readers have paid for it: see ``meter.measure``. Files half-way there
    and small ones are rewritten along with it. A run is due once the readers of such files have paid for its start,
    too. Without known reads the thresholds of the policy decide. In both cases a file with a deadline is rewritten in
    time.

    now : epoch milliseconds.
    reads : ``None``: they are unknown.
    timeline : ``None``: an upper bound from the snapshot alone, so that the plan has every step that the true timeline
        would justify, and perhaps others.
    deadlines : ``None`` without ``Policy.erase_within``.
    retention : how long the old copy of a rewritten file is kept, milliseconds.
    start : seconds of CPU that starting a run costs; by default ``Prices.start``. It decides when a run is due.
    ahead : milliseconds. A file counts as paid for if it will be by then at the present rate: half of the time until
        the next run that is possible, so that a nightly run neither comes a day late nor a day early.
    quiet : milliseconds. A partition that changed within that time waits, until its readers have paid for two rewrites:
        a run would disturb the writer. For a sensor; a run that has started no longer waits.
    listed : how many of the files left alone the plan lists one by one.
    examples : how many of them each reason names.

    Raises
    ------
    UsageError, DamagedTableError : as ``build_plan``.
    """
    setting = PlanSetting.of(snapshot, policy)
    facts = setting.facts
    if reads is None or "max_deleted_ratio" in policy.model_fields_set:
        because = "set in the policy" if reads is not None else "no reads of the table are known"
        why = _with_deadlines(by_ratio(facts, policy, setting.smallest).why, facts, deadlines, now)
        candidates = Candidates(why, deadlines=deadlines)
        basis = f"thresholds: {because}"
        plan = plan_candidates(setting, candidates, spent=spent, basis=basis, listed=listed, examples=examples)
        return replace(plan, next_due_at=_deadline(facts, deadlines, now))
    life = timeline if timeline is not None else from_snapshot(snapshot)
    small = _mergeable(facts, setting)
    found = measure(
        facts,
        life,
        reads,
        policy.prices,
        now=now,
        small=small,
        target=setting.target,
        retention_days=retention / DAY,
    )
    waits = _waits(facts, life, found, now, quiet)
    why = _classify(facts, found, setting.smallest, small, ahead / DAY, waits)
    metering = Metering(
        paid=found.paid,
        cost=found.cost,
        since=np.where(facts.has_dv, life.first_delete, life.born),
        ripe_at=_times(now, found.ripe_in()),
    )
    candidates = Candidates(_with_deadlines(why, facts, deadlines, now), metering, deadlines)
    basis = f"{reads.per_day(now):.4g} reads a day ({reads.source})"
    plan = plan_candidates(setting, candidates, spent=spent, basis=basis, listed=listed, examples=examples)
    start = policy.prices.start if start is None else start
    blocked = _blocked(snapshot, plan, (why == PAID) & ~facts.has_dv)
    blocked |= ~partition_mask(snapshot, facts, policy.partitions)
    return replace(plan, next_due_at=_next_due(found, facts, deadlines, now, start, blocked, waits))


def is_due(plan: MaintenancePlan, now: int, ahead: int = 0) -> bool:
    """Whether a run for a plan of :func:`decide` is worth its start at ``now``, epoch milliseconds. A step that
    thresholds chose always is.
    """
    if any(step.metered is None for step in plan.steps):
        return True
    return bool(plan.steps) and plan.next_due_at is not None and plan.next_due_at <= now + ahead


def _mergeable(facts: FileFacts, setting: PlanSetting) -> Bools:
    """Small files of partitions where merging them would save a file."""
    small = facts.live_bytes < setting.smallest
    needed = -(-facts.per_partition(np.where(small, facts.live_bytes, 0)) // setting.target)
    return small & (facts.per_partition(small) > needed)[facts.partition]


def _waits(facts: FileFacts, life: Timeline, found: Measure, now: int, quiet: int) -> Floats:
    """Days that each file waits until its partition has been quiet for long enough; 0 if it does not wait."""
    if not quiet or not len(facts):
        return np.zeros(len(facts))
    newest = np.zeros(len(facts.partitions), np.int64)
    np.maximum.at(newest, facts.partition, np.maximum(life.born, life.last_step))
    days = np.maximum(newest[facts.partition] + quiet - now, 0) / DAY
    return np.where(found.paid < 2 * found.cost, days, 0.0)


def _classify(facts: FileFacts, found: Measure, smallest: int, mergeable: Bools, ahead: float, waits: Floats) -> Codes:
    why = np.full(len(facts), KEEP, np.int8)
    why[facts.live_bytes < smallest] = SMALL
    paid = found.paid + found.rate * ahead
    why[facts.has_dv & (paid >= _ALONG * found.cost)] = ALONG
    why[(paid >= found.cost) & (facts.has_dv | mergeable) & (waits == 0)] = PAID
    why[facts.has_dv & ~facts.known] = UNKNOWN
    return mark_empty(facts, _only_with_a_cause(facts, why))


def _only_with_a_cause(facts: FileFacts, why: Codes) -> Codes:
    """Small files and those half-way there ride along in partitions where another file must be rewritten anyway."""
    cause = (why != KEEP) & (why != SMALL) & (why != ALONG)
    here = facts.per_partition(cause)[facts.partition] > 0
    return np.where(cause | here, why, KEEP)


def _with_deadlines(why: Codes, facts: FileFacts, deadlines: Deadlines | None, now: int) -> Codes:
    """Files whose deadline is near are candidates, whatever else is known of them."""
    if deadlines is None:
        return why
    due = facts.has_dv & (deadlines.purge_by - _AHEAD <= now)
    return mark_empty(facts, np.where(due, np.int8(DEADLINE), why))


def _times(now: int, days: Floats) -> Ints:
    far = days > 36_500
    return np.where(far, NEVER, now + np.ceil(np.where(far, 0, days) * DAY).astype(np.int64) + (days > 0))


def _blocked(snapshot: Snapshot, plan: MaintenancePlan, merged: Bools) -> Bools:
    """Files whose readers have paid for merging them, but that have no others to be merged with yet."""
    if not merged.any():
        return merged
    planned = {each.path for step in plan.steps for each in step.inputs}
    rows = np.flatnonzero(merged)
    paths = taken(snapshot.files["path"], rows).to_pylist()
    blocked = np.zeros(len(merged), np.bool_)
    blocked[[row for row, path in zip(rows.tolist(), paths, strict=True) if path not in planned]] = True
    return blocked


def _next_due(
    found: Measure,
    facts: FileFacts,
    deadlines: Deadlines | None,
    now: int,
    start: float,
    blocked: Bools,
    waits: Floats,
) -> int | None:
    """When a run will be worth its start if nothing is deleted until then, epoch milliseconds.

    At any time the files that are ripe by then have paid ``paid + rate * days``. The run is due as soon as that exceeds
    their cost by the start.
    """
    days = np.maximum(found.ripe_in(), waits)
    order = np.argsort(days, kind="stable")
    order = order[(np.isfinite(days) & ~blocked)[order]]
    at: list[int] = []
    if len(order):
        missing = start + np.cumsum((found.cost - found.paid)[order])
        rate = np.cumsum(found.rate[order])
        with np.errstate(divide="ignore", invalid="ignore"):
            enough = np.where(missing <= 0, 0.0, np.where(rate > 0, missing / rate, np.inf))
        at.append(int(_times(now, np.maximum(days[order], enough).min(keepdims=True))[0]))
    deadline = _deadline(facts, deadlines, now)
    first = min([*at, *([] if deadline is None else [deadline])], default=NEVER)
    return None if first == NEVER else first


def _deadline(facts: FileFacts, deadlines: Deadlines | None, now: int) -> int | None:
    """When the next file must be rewritten because of its deadline."""
    if deadlines is None or not facts.has_dv.any():
        return None
    return int(max(deadlines.purge_by[facts.has_dv].min() - _AHEAD, now))
