"""Verbs that rewrite files by a plan, and the downgrade."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.maintenance.execution.rehearsal import rehearsed
from dv_maintenance.maintenance.planning.explain import explain
from dv_maintenance.maintenance.planning.selection import no_live_file
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.maintenance.rewriting import missing_partitions, requested
from dv_maintenance.service.progress import progress_log
from dv_maintenance.service.reports.work import KEPT_LISTED, KEPT_SHOWN, of_apply, of_downgrade, of_plan
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.rewriting import RewriteRequest
    from dv_maintenance.service.engines import EngineOf, OnProgress
    from dv_maintenance.service.inspection import ReadsNow
    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

_log = logging.getLogger(__name__)

_PLANNED_ONLY: Final = "Only planned; nothing was changed."


def apply(
    table: Table,
    engine: EngineOf,
    plan: str,
    *,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Run a plan that was saved under this path.

    Raises
    ------
    UsageError : the plan can't be read, or is for another table.

    The errors of ``maintenance.execution.apply`` pass through.
    """
    snapshot, made = table.snapshot(), MaintenancePlan.load(plan)
    return _run(table, engine, made, dry_run, on_progress, snapshot)


def rewrite_planned(
    table: Table,
    engine: EngineOf,
    request: RewriteRequest,
    reads: ReadsNow | None,
    on_progress: OnProgress | None,
    snapshot: Snapshot | None,
) -> Outcome:
    """See ``rewriting.rewrite``. ``snapshot``: the newest version, if it was just read."""
    snapshot = snapshot or table.snapshot()
    now = epoch_millis()
    known, warnings = (None, ()) if reads is None or request.policy is None else reads(now)
    for warning in warnings:
        _log.warning("%s: %s", table.uri, warning)
    listed = KEPT_LISTED if request.dry_run else KEPT_SHOWN
    plan = requested(table, snapshot, request, reads=known, now=now, listed=listed)
    if request.policy is not None and not request.partitions:
        warn_missing(snapshot, request.policy)
    done = _run(table, engine, plan, request.dry_run, on_progress, snapshot)
    return _without(missing_partitions(snapshot, plan.policy), done) if request.partitions else done


def _run(
    table: Table,
    engine: EngineOf,
    plan: MaintenancePlan,
    dry_run: bool,
    on_progress: OnProgress | None,
    snapshot: Snapshot,
) -> Outcome:
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
    missing = missing_partitions(snapshot, policy)
    if missing:
        _log.warning("%s: of the policy's partitions, %s", snapshot.table, no_live_file(missing))


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
