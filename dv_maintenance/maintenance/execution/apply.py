"""Run a plan: rewrite, pass the gates, commit, read back, batch by batch. Steps that a concurrent writer invalidated
are replanned.

The commit ensures safety, not locks. Every step is checked against a fresh snapshot before it runs. New files that do
not pass the gates are deleted instead of committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dv_maintenance.engine import slots_of
from dv_maintenance.engine.pool import OutOfTimeError
from dv_maintenance.errors import ConflictError, DvMaintenanceError, UsageError, VerificationError
from dv_maintenance.maintenance.execution.batches import Pace, largest_share, next_batch, removals_first, work_of
from dv_maintenance.maintenance.execution.report import ApplyReport, StepReport
from dv_maintenance.maintenance.execution.round import NOTHING_COMMITTED, Committed, run_round
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.maintenance.planning.facts import file_facts
from dv_maintenance.maintenance.planning.left_alone import LeftAlone, barred_inputs
from dv_maintenance.maintenance.planning.plan import purge_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.revalidate import plan_again, refresh, split_stale
from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep, check_plan
from dv_maintenance.tables.registry import title_of
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

_log = logging.getLogger(__name__)

# Called with the number of finished rewrites and the number of all rewrites.
OnProgress = Callable[[int, int], None]


class StoppedError(Exception):
    """The time of the run was up; see ``engine.pool.stopped_at``. ``report``: what was committed before."""

    def __init__(self, report: ApplyReport) -> None:
        super().__init__(f"{report.table}: stopped when its time was up")
        self.report = report


def apply(
    table: Table,
    engine: Engine,
    plan: MaintenancePlan,
    *,
    snapshot: Snapshot | None = None,
    on_progress: OnProgress | None = None,
    max_attempts: int = 3,
) -> ApplyReport:
    """Run ``plan`` on the newest version of ``table``.

    ``snapshot``: the newest version, if the caller has just read it.

    The steps are committed in batches of about five minutes of work, and a run of ten rewrites or more in at least five
    where the engine's parallelism allows it. A run that is killed keeps the batches before.

    Steps whose inputs are no longer live are replanned for their partitions under the same policy. The same happens to
    steps that lose against another writer while they run, up to ``max_attempts`` rounds of work in all.

    Raises
    ------
    UsageError : the plan is for another table, or contradicts the version that it was made for.
    UnsupportedFeatureError, RefusedError : the table may not be rewritten.
    VerificationError : a rewrite failed its gate; its new files were deleted, nothing of that batch was committed.
    ConflictError : other writers committed first in every round; it says what was committed and what was not.
    StoppedError : within ``engine.pool.stopped_at``, if the time is over before the rewrites are done.

    Errors of the engine and the table pass through. On any error, new files without a commit are deleted. If it is
    unknown whether a commit names them, they are kept; vacuum finds them.
    """
    return _Run(table, engine, plan, on_progress, max_attempts).run(snapshot or table.snapshot())


def check_applicable(table: Table, snapshot: Snapshot, plan: MaintenancePlan) -> None:
    """Raise what :func:`apply` raises about the plan as a whole. ``snapshot``: the newest version."""
    table.check_writable(snapshot, "rewrite")
    check_plan(plan)
    problem = None
    if (plan.table, plan.format) != (table.uri, table.format):
        problem = f"the plan is for the {title_of(plan.format)} table {plan.table}"
    elif plan.version != snapshot.version and not table.follows(snapshot.version, plan.version):
        problem = f"the plan is for version {plan.version}, which this table does not have"
    if problem:
        raise UsageError(problem, table=table.uri, version=snapshot.version, next_step="make a plan for this table")


def maintain(
    table: Table,
    engine: Engine,
    policy: Policy | None = None,
    *,
    purge: bool = False,
    on_progress: OnProgress | None = None,
    max_attempts: int = 3,
) -> ApplyReport:
    """Plan for the newest version and run the plan. Raises what ``decide_for``, ``purge_plan``, :func:`apply` raise."""
    snapshot = table.snapshot()
    table.check_writable(snapshot, "rewrite")
    plan = purge_plan(snapshot, policy) if purge else decide_for(table, snapshot, policy)
    return _Run(table, engine, plan, on_progress, max_attempts).run(snapshot)


def purge(
    table: Table,
    engine: Engine,
    partitions: Iterable[Mapping[str, str | None] | str] = (),
    *,
    on_progress: OnProgress | None = None,
    max_attempts: int = 3,
) -> ApplyReport:
    """Purge every deletion vector, whatever the thresholds, and touch no other file.

    ``partitions``: only in partitions that match one of these, see ``Policy.partitions``; by default in all. Raises
    the errors of :func:`maintain`.
    """
    policy = Policy.from_mapping({"partitions": list(partitions)}, "the selection")
    return maintain(table, engine, policy, purge=True, on_progress=on_progress, max_attempts=max_attempts)


@dataclass(slots=True)
class _Progress:
    """Counts the rewrites of all batches. ``before``: those of earlier batches."""

    on_progress: OnProgress | None
    total: int
    before: int = 0

    def __post_init__(self) -> None:
        if self.total:
            self(0)

    def __call__(self, rewritten: int) -> None:
        if self.on_progress is not None:
            self.on_progress(self.before + rewritten, self.total)


@dataclass(slots=True)
class _Run:
    table: Table
    engine: Engine
    plan: MaintenancePlan
    on_progress: OnProgress | None
    max_attempts: int
    committed: list[Committed] = field(default_factory=list)
    attempts: int = 0  # commit attempts of the rounds before this one
    pace: Pace = field(default_factory=Pace)
    unverified: bool = False  # a commit of this run could not be verified
    not_begun: int = 0  # steps that were not begun for that reason
    barred: tuple[LeftAlone, ...] = ()  # inputs of lost steps that may not be rewritten now

    def run(self, snapshot: Snapshot) -> ApplyReport:
        check_applicable(self.table, snapshot, self.plan)
        try:
            return self._run(snapshot)
        except OutOfTimeError:
            raise StoppedError(self._report(snapshot.version)) from None

    def _run(self, snapshot: Snapshot) -> ApplyReport:
        before = snapshot.version
        steps, lost = split_stale(self.plan, snapshot)
        reason = "the plan was made for an older version"
        for number in range(1, self.max_attempts + 1):
            if lost:
                self.barred = barred_inputs(snapshot, file_facts(snapshot), lost)
                steps = [*steps, *plan_again(self.plan, snapshot, lost, keep=steps, number=number)]
            if not steps:
                return self._report(before)
            _log.info("%s: %s on version %d", self.table.uri, count(len(steps), "step"), snapshot.version)
            lost, reason = self._batches(snapshot, steps)
            if not lost or self.unverified:
                return self._report(before)
            _log.info(
                "%s: attempt %d of %d lost %s: %s",
                self.table.uri,
                number,
                self.max_attempts,
                count(len(lost), "step"),
                reason,
            )
            steps, snapshot = [], self._newest(lost)
        raise ConflictError(
            f"other writers committed first in all {self.max_attempts} attempts: {reason}",
            table=self.table.uri,
            version=snapshot.version,
            done=self._done(lost),
            next_step="run again when fewer writers are active, or in smaller runs (max_bytes)",
        )

    def _batches(self, snapshot: Snapshot, steps: Sequence[PlanStep]) -> tuple[list[PlanStep], str]:
        """Run the steps. Returns those that lost against another writer, and why."""
        progress = _Progress(self.on_progress, sum(step.action == "rewrite" for step in steps))
        planned, share, left = snapshot.version, largest_share(steps), removals_first(steps)
        lost: list[PlanStep] = []
        reasons: list[str] = []
        attempts = 0
        while left:
            self.pace = replace(self.pace, slots=slots_of(self.engine) or 1)
            count = next_batch(left, self.pace, share)
            batch, left = left[:count], left[count:]
            if snapshot.version != planned:
                batch, stale = refresh(batch, snapshot)
                lost += stale
                reasons += ["another writer changed their files before they began"] if stale else []
            if not batch:
                continue
            with self._explained([*lost, *batch, *left], snapshot):
                done = run_round(
                    self.table, self.engine, snapshot, batch, self.plan, progress, attempts_before=self.attempts
                )
            progress.before += sum(step.action == "rewrite" for step in batch)
            self.committed += done.committed
            self.pace = self.pace.after(sum(map(work_of, batch)), done.work_seconds, done.commit_seconds)
            if done.outcome.lost:
                lost += [step for step in batch if step.id in done.outcome.lost]
                reasons.append(done.outcome.reason)
                attempts = max(attempts, done.outcome.attempts)
            if not done.verified:
                self.not_begun, self.unverified = len(left) + len(lost), True
                break
            if left:
                snapshot = self._newest([*lost, *left], done.snapshot)
        self.attempts += attempts
        return lost, "; ".join(dict.fromkeys(reasons))

    def _newest(self, open_steps: Sequence[PlanStep], known: Snapshot | None = None) -> Snapshot:
        """The version for the next steps. ``known``: one that is new enough."""
        with self._explained(open_steps, known):
            snapshot = known or self.table.snapshot()
            self.table.check_writable(snapshot, "rewrite")
        return snapshot

    @contextmanager
    def _explained(self, open_steps: Sequence[PlanStep], snapshot: Snapshot | None) -> Iterator[None]:
        """Let an error say what this run has done so far."""
        try:
            yield
        except DvMaintenanceError as error:
            if isinstance(error, VerificationError) or error.table is None:
                error.table, error.version = self.table.uri, snapshot.version if snapshot else None
            if self.committed:
                batch = "the new files of this batch were deleted" if error.done == NOTHING_COMMITTED else error.done
                error.done = "; ".join(part for part in (self._done(open_steps), batch) if part)
            raise
        except KeyboardInterrupt as stop:
            stop.add_note(self._done(open_steps))
            raise

    def _done(self, open_steps: Sequence[PlanStep]) -> str:
        versions = ", ".join(str(version) for version in dict.fromkeys(each.version for each in self.committed))
        done = (
            f"{count(len(self.committed), 'step')} committed in version {versions}"
            if versions
            else "nothing was committed"
        )
        return f"{done}; not committed: {', '.join(step.id for step in open_steps)}"

    def _report(self, before: int) -> ApplyReport:
        problems = tuple(dict.fromkeys(each.problem for each in self.committed if each.problem))
        if self.not_begun:
            problems += (f"the run ended there: {count(self.not_begun, 'step')} not carried out",)
        return ApplyReport(
            table=self.table.uri,
            format=self.table.format,
            version_before=before,
            version_after=self.committed[-1].version if self.committed else before,
            steps=tuple(_step_report(each) for each in self.committed),
            verified=not problems,
            problems=problems,
            left_alone=(*self.plan.left_alone, *self.barred),
        )


def _step_report(each: Committed) -> StepReport:
    step, result = each.step, each.result
    counts = result.details if result else {}
    return StepReport(
        id=step.id,
        action=step.action,
        partition=step.partition,
        reason=step.reason,
        version=each.version,
        files_removed=len(step.inputs),
        files_added=len(result.outputs) if result else 0,
        dvs_removed=sum(item.dv_id is not None for item in step.inputs),
        rows_purged=sum(item.deleted_rows for item in step.inputs),
        rows_carried=each.carried,
        bytes_in=sum(item.size for item in step.inputs),
        bytes_out=sum(output.size for output in result.outputs) if result else 0,
        attempts=each.attempts,
        seconds=round(result.seconds, 3) if result else 0.0,
        row_groups=counts.get("row_groups", 0),
        row_groups_copied=counts.get("row_groups_copied", 0),
        bytes_copied=counts.get("bytes_copied", 0),
    )
