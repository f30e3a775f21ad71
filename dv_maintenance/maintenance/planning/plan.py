"""From a snapshot and a policy to steps: classify, pack into bins, order by benefit, cut at the limits.

Everything up to the chosen steps works on columns: a healthy table of a million files costs no object per file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import taken
from dv_maintenance.maintenance.planning.candidates import DEADLINE, KEEP, WHYS, Candidates, Codes, by_ratio, every_dv
from dv_maintenance.maintenance.planning.deadlines import NEVER
from dv_maintenance.maintenance.planning.drafts import Draft, draft_steps, positions
from dv_maintenance.maintenance.planning.facts import Bools, FileFacts, Ints, file_facts, partition_mask
from dv_maintenance.maintenance.planning.left_alone import EXAMPLES, NO_DV, OUTSIDE, left_alone
from dv_maintenance.maintenance.planning.policy import Policy, check_compression, target_file_size
from dv_maintenance.maintenance.planning.reasons import expected, kept_reasons, step_reason, waiting
from dv_maintenance.maintenance.planning.run_limits import MOST_FILES, NOTHING_SPENT, Spent, within_limits
from dv_maintenance.maintenance.planning.selection import select
from dv_maintenance.maintenance.planning.steps import (
    Cost,
    Effect,
    KeptFile,
    MaintenancePlan,
    Metered,
    PlanInput,
    PlanStep,
)
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.tracing import finished
from dv_maintenance.units import count, format_size

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class PlanSetting:
    """What every plan for a snapshot starts from.

    target : bytes of a new file.
    smallest : a file with fewer live bytes is small.
    """

    snapshot: Snapshot
    policy: Policy
    facts: FileFacts
    target: int
    smallest: int

    @classmethod
    def of(cls, snapshot: Snapshot, policy: Policy | None) -> PlanSetting:
        """Raises UsageError (the table's property of the target size is not a size; a partition of the policy can't
        exist; the format leaves no choice of compression) and DamagedTableError (the log's numbers contradict each
        other).
        """
        policy = policy or Policy()
        check_compression(policy, snapshot)
        target = target_file_size(policy, snapshot)
        smallest = target * 3 // 4 if policy.min_file_size is None else policy.min_file_size
        facts = file_facts(snapshot)
        if policy.partitions:
            # One partition has one spelling: the table's, in the plan's JSON, its text and the commit.
            known = select(snapshot, facts.partitions, policy.partitions).filters
            policy = policy.model_copy(update={"partitions": known})
        return cls(snapshot, policy, facts, target, smallest)


def build_plan(
    snapshot: Snapshot, policy: Policy | None = None, *, purge: bool = False, spent: Spent = NOTHING_SPENT
) -> MaintenancePlan:
    """The plan for a snapshot by thresholds: a pure function of its arguments.

    With ``purge`` the plan purges every deletion vector (DV) and touches no file without one. Otherwise thresholds
    and file sizes decide, see :class:`Policy`. A file whose rows are all deleted is removed without being read,
    independent of thresholds. The limits apply in both cases. ``meter.decide`` plans by what readers paid instead.

    Raises
    ------
    UsageError : the policy names unknown partition columns, or the table's property of the target size is not a size.
    DamagedTableError : the log's numbers contradict each other.
    """
    setting = PlanSetting.of(snapshot, policy)
    facts = setting.facts
    candidates = every_dv(facts) if purge else by_ratio(facts, setting.policy, setting.smallest)
    return plan_candidates(setting, candidates, purge=purge, spent=spent)


def purge_plan(snapshot: Snapshot, policy: Policy | None = None) -> MaintenancePlan:
    """``build_plan`` for a purge. Also raises RefusedError: no file with a DV may be rewritten now."""
    plan, barred = build_plan(snapshot, policy, purge=True), snapshot.barred()
    kept = [each for each in plan.left_alone if each.reason in barred]
    if kept and not plan.steps:
        raise RefusedError(
            "no file may be rewritten now: "
            + "; ".join(f"{count(each.files, 'file')} with deleted rows: {each.reason}" for each in kept),
            at=snapshot,
            next_step=Remedy("let the table's engine do it: {}", (run("engine-sql", f"{snapshot.table} purge"),)),
        )
    return plan


def plan_candidates(
    setting: PlanSetting,
    candidates: Candidates,
    *,
    purge: bool = False,
    spent: Spent = NOTHING_SPENT,
    basis: str = "",
    listed: int = 0,
    examples: int = EXAMPLES,
) -> MaintenancePlan:
    """The plan that rewrites the candidates.

    basis : what the decision is based on, for people.
    listed : how many of the files left alone are listed one by one.
    examples : how many of them each reason names. Finding the first ones reads nearly all paths of a table.

    Raises
    ------
    UsageError : the policy names unknown partition columns.
    """
    began = time.monotonic()
    snapshot, policy, facts, target = setting.snapshot, setting.policy, setting.facts, setting.target
    selected = partition_mask(snapshot, facts, policy.partitions)
    others = "" if purge or policy.beside_optimizer else snapshot.optimizer
    wanted = selected & (candidates.why != KEEP) & (not others)
    barred = {reason: wanted & files for reason, files in snapshot.barred().items()}
    free = wanted & ~np.logical_or.reduce([*barred.values(), ~wanted])
    why = np.where(free, candidates.why, KEEP)
    drafts = draft_steps(snapshot, facts, why, policy, target)
    # Python's sort is stable: equal files keep their order.
    drafts.steps.sort(key=lambda draft: _rank(draft, candidates))
    # A purge is asked to leave no DV behind.
    chosen, cut = within_limits(drafts.steps, policy, spent, None if purge else MOST_FILES)

    stay = selected & (candidates.why == KEEP)
    clean, small = stay & ~facts.has_dv, (facts.live_bytes < setting.smallest) & (not purge)
    big = f"at least {format_size(setting.smallest)} of live rows"
    few = f"small, but fewer than {policy.min_input_files} such files fit into a new one of {format_size(target)}"
    left = {
        NO_DV if purge else f"no deletion vector, and {big}": positions(clean & ~small),
        "small, but no file of its partition is due for a rewrite": positions(clean & small),
        **waiting(candidates, facts, stay, policy, big),
        few: drafts.few,
        "small, but larger than all files that would join it: waits for more of them": drafts.large,
        **{reason: positions(files) for reason, files in barred.items()},
        **cut,
    }
    if others:
        left = {f"left to {others}; the policy's beside_optimizer changes that": positions(selected)}
    left[OUTSIDE] = positions(~selected)
    kept, more = _kept(left, setting, candidates, selected, listed) if listed else ((), 0)
    plan = MaintenancePlan(
        table=snapshot.table,
        format=snapshot.format,
        version=snapshot.version,
        purge=purge,
        target_file_size=target,
        policy=policy,
        steps=tuple(_steps(chosen, setting, why, candidates)),
        left_alone=tuple(
            left_alone(reason, rows, snapshot, facts, examples) for reason, rows in left.items() if len(rows)
        ),
        basis=basis,
        kept=kept,
        kept_not_listed=more,
    )
    _log.debug(
        "%s: plan for version %d: %d steps, reading %s; %d files left alone",
        plan.table,
        plan.version,
        len(plan.steps),
        format_size(sum(step.cost.bytes_read for step in plan.steps)),
        sum(each.files for each in plan.left_alone),
    )
    finished(
        "plan",
        time.monotonic() - began,
        table=plan.table,
        version=plan.version,
        steps=len(plan.steps),
        bytes=sum(step.cost.bytes_read for step in plan.steps),
    )
    return plan


def _rank(draft: Draft, candidates: Candidates) -> tuple[int, float]:
    """Deadlines first, then what saves most for what it costs."""
    metering = candidates.metering
    if metering is None:
        benefit = draft.benefit
    else:
        cost = float(metering.cost[draft.rows].sum()) if draft.action == "rewrite" else 0.0
        benefit = float(metering.paid[draft.rows].sum()) / max(cost, 1e-12)
    return _purge_by(draft, candidates), -benefit


def _purge_by(draft: Draft, candidates: Candidates) -> int:
    """When the step must be committed at the latest, if it is in the plan because of that; else ``NEVER``."""
    if candidates.deadlines is None:
        return NEVER
    due = draft.rows[candidates.why[draft.rows] == DEADLINE]
    return int(candidates.deadlines.purge_by[due].min()) if len(due) else NEVER


# -- from columns to objects -------------------------------------------------------------------------------------


def _steps(drafts: list[Draft], setting: PlanSetting, why: Codes, candidates: Candidates) -> Iterator[PlanStep]:
    rows = np.concatenate([np.zeros(0, np.int64), *(draft.rows for draft in drafts)])
    # One take for all steps: on a table of many chunks, each call costs more than the rows it takes.
    files = setting.snapshot.files
    columns = (taken(files[name], rows) for name in ("path", "dv_id", "size", "physical_rows", "deleted_rows"))
    inputs = (
        PlanInput(path, dv_id, size, physical_rows, deleted_rows, WHYS[code - 1])
        for path, dv_id, size, physical_rows, deleted_rows, code in zip(
            *(column.to_pylist() for column in columns), why[rows].tolist(), strict=True
        )
    )
    for number, draft in enumerate(drafts, 1):
        yield _step(f"step-{number}", draft, tuple(islice(inputs, len(draft.rows))), setting, why, candidates)


def _step(
    identity: str,
    draft: Draft,
    inputs: tuple[PlanInput, ...],
    setting: PlanSetting,
    why: Codes,
    candidates: Candidates,
) -> PlanStep:
    rows, facts = draft.rows, setting.facts
    purged = int(facts.deleted[rows].sum())
    known = bool(facts.known[rows].all())
    written = draft.bytes_written
    remark = setting.snapshot.rewrite_remark if draft.action == "rewrite" else ""
    return PlanStep(
        id=identity,
        action=draft.action,
        partition=facts.partitions[int(facts.partition[rows[0]])],
        reason="; ".join(filter(None, [step_reason(draft, why, setting.policy, candidates), remark])),
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
        metered=_metered(draft, candidates),
    )


def _metered(draft: Draft, candidates: Candidates) -> Metered | None:
    metering, purge_by = candidates.metering, _purge_by(draft, candidates)
    if metering is None:
        return None if purge_by == NEVER else Metered(0.0, 0.0, purge_by)
    return Metered(
        paid=round(float(metering.paid[draft.rows].sum()), 6),
        cost=round(float(metering.cost[draft.rows].sum()), 6) if draft.action == "rewrite" else 0.0,
        purge_by=None if purge_by == NEVER else purge_by,
    )


def _kept(
    left: Mapping[str, Ints], setting: PlanSetting, candidates: Candidates, selected: Bools, listed: int
) -> tuple[tuple[KeptFile, ...], int]:
    """The files one by one, those due first at the top, then those with deleted rows; and how many are not listed."""
    facts = setting.facts
    rows = np.concatenate(list(left.values()))
    reasons, codes = list(left), np.repeat(np.arange(len(left)), [len(each) for each in left.values()])
    due = np.where(selected, expected(candidates, facts), NEVER)[rows]
    rank = np.where((due == NEVER) & facts.has_dv[rows], NEVER - 1, due)
    first = np.argpartition(rank, listed)[:listed] if len(rows) > listed else np.arange(len(rows))
    first = first[np.argsort(rank[first], kind="stable")]
    chosen, due = rows[first], due[first]
    files = [taken(setting.snapshot.files[name], chosen) for name in ("path", "size", "deleted_rows")]
    sentences = kept_reasons(chosen, [reasons[code] for code in codes[first].tolist()], candidates, facts)
    columns = (*(column.to_pylist() for column in files), sentences, due.tolist())
    kept = tuple(
        KeptFile(path, size, deleted or 0, reason, None if at == NEVER else at)
        for path, size, deleted, reason, at in zip(*columns, strict=True)
    )
    return kept, len(rows) - len(kept)
