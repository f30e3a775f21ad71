"""Verbs that rewrite files: run a plan, purge, order by columns, downgrade."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.maintenance.execution.rehearsal import rehearsed
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.maintenance.planning.explain import explain
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.selection import no_live_file, refuse_missing, select
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.service.progress import progress_log
from dv_maintenance.service.reports.work import KEPT_LISTED, KEPT_SHOWN, of_apply, of_downgrade, of_plan

if TYPE_CHECKING:
    from dv_maintenance.service.engines import EngineOf, OnProgress
    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

__all__ = [
    "apply",
    "apply_plan",
    "cluster",
    "downgrade",
    "missing_partitions",
    "planned_only",
    "purge_planned",
    "warn_missing",
    "zorder",
]

_log = logging.getLogger(__name__)

_PLANNED_ONLY: Final = "Only planned; nothing was changed."


def apply(
    table: Table,
    engine: EngineOf,
    *,
    policy: Policy | None = None,
    plan: str | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Plan by a policy and run the plan.

    plan : path of a saved plan, run instead of making one.

    Raises
    ------
    UsageError : the plan can't be read, or is for another table.

    The errors of ``build_plan`` and ``apply`` pass through.
    """
    snapshot = table.snapshot()
    if policy is not None:
        warn_missing(snapshot, policy)
    listed = KEPT_LISTED if dry_run else KEPT_SHOWN
    made = decide_for(table, snapshot, policy, listed=listed) if plan is None else MaintenancePlan.load(plan)
    if dry_run:
        return planned_only(rehearsed(table, snapshot, made))
    return apply_plan(table, engine, made, on_progress, snapshot)


def purge_planned(
    table: Table,
    engine: EngineOf,
    partitions: Iterable[Mapping[str, str | None] | str],
    *,
    missing_ok: bool,
    dry_run: bool,
    on_progress: OnProgress | None,
    snapshot: Snapshot | None,
) -> Outcome:
    """See ``purging.purge``. ``snapshot``: the newest version, if it was just read."""
    policy = Policy.from_mapping({"partitions": list(partitions)}, "the selection")
    snapshot = snapshot or table.snapshot()
    missing = missing_partitions(snapshot, policy, ok=missing_ok)
    table.check_writable(snapshot, "rewrite")
    plan = build_plan(snapshot, policy, purge=True)
    if dry_run:
        done = planned_only(rehearsed(table, snapshot, plan))
    else:
        done = apply_plan(table, engine, plan, on_progress, snapshot)
    return _without(missing, done)


def zorder(
    table: Table,
    engine: EngineOf,
    columns: Iterable[str],
    partitions: Iterable[Mapping[str, str | None] | str] = (),
    *,
    target_file_size: str | None = None,
    missing_ok: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Order files by columns. ``partitions``, ``missing_ok``: as in ``purge``. Raises the errors of
    ``maintenance.zorder``, ``purge`` and ``apply``.
    """
    from dv_maintenance.maintenance.zorder import plan_zorder

    snapshot = table.snapshot()
    plan = plan_zorder(table, snapshot, list(columns), partitions, target_size=target_file_size)
    missing = missing_partitions(snapshot, plan.policy, ok=missing_ok)
    if dry_run:
        done = planned_only(rehearsed(table, snapshot, plan))
    else:
        done = apply_plan(table, engine, plan, on_progress, snapshot)
    return _without(missing, done)


def cluster(
    table: Table,
    engine: EngineOf,
    *,
    full: bool = False,
    target_file_size: str | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Cluster files by the table's own columns. Raises the errors of ``maintenance.cluster`` and ``apply``."""
    from dv_maintenance.maintenance.cluster import plan_cluster

    snapshot = table.snapshot()
    plan = plan_cluster(table, snapshot, full=full, target_size=target_file_size)
    if dry_run:
        return planned_only(rehearsed(table, snapshot, plan))
    return apply_plan(table, engine, plan, on_progress, snapshot)


def downgrade(
    table: Table,
    engine: EngineOf,
    *,
    truncate_history: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Bring the table to a state that readers without deletion vectors can read. Raises the errors of
    ``maintenance.downgrade``.
    """
    from dv_maintenance.maintenance.downgrade import downgrade as run

    progress = on_progress or progress_log(_log)
    return of_downgrade(run(table, engine(), truncate_history=truncate_history, dry_run=dry_run, on_progress=progress))


def apply_plan(
    table: Table,
    engine: EngineOf,
    plan: MaintenancePlan,
    on_progress: OnProgress | None = None,
    snapshot: Snapshot | None = None,
) -> Outcome:
    """Run a plan that was made for the table. Raises the errors of ``apply``.

    on_progress : ``None``: progress goes to the log.
    snapshot : the newest version, if it was just read.
    """
    from dv_maintenance.maintenance.execution.apply import apply as run

    _say(plan)
    progress = on_progress or progress_log(_log)
    return of_apply(plan, run(table, engine(), plan, snapshot=snapshot, on_progress=progress))


def warn_missing(snapshot: Snapshot, policy: Policy) -> None:
    """A policy serves many runs: its partitions may appear later, or may be gone already."""
    missing = missing_partitions(snapshot, policy, ok=True)
    if missing:
        _log.warning("%s: of the policy's partitions, %s", snapshot.table, no_live_file(missing))


def missing_partitions(snapshot: Snapshot, policy: Policy, *, ok: bool) -> tuple[str, ...]:
    """Chosen partitions that no live file has. Raises UsageError if there are any and ``missing_ok`` is not set."""
    if not policy.partitions:
        return ()
    live = snapshot.files["partition"].unique().to_pylist()
    missing = select(snapshot, live, policy.partitions).missing
    if not ok:
        refuse_missing(snapshot, live, missing)
    return missing


def _without(missing: Sequence[str], outcome: Outcome) -> Outcome:
    """The outcome, with the chosen partitions that no live file has."""
    if not missing:
        return outcome
    text = no_live_file(missing)
    return replace(
        outcome,
        reason=f"{outcome.reason} {text[0].upper()}{text[1:]}.",
        report={**outcome.report, "missing_partitions": list(missing)},
    )


def planned_only(plan: MaintenancePlan) -> Outcome:
    """What a dry run reports of a plan."""
    _say(plan)
    return replace(of_plan(plan), reason=_PLANNED_ONLY, report=plan.to_json())


def _say(plan: MaintenancePlan) -> None:
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", explain(plan))
