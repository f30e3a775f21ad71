"""Verbs that rewrite files: run a plan, purge, order by columns, downgrade."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.maintenance.planning.explain import explain
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.service.progress import progress_log
from dv_maintenance.service.reports.work import of_apply, of_downgrade, of_plan

if TYPE_CHECKING:
    from dv_maintenance.service.engines import EngineOf, OnProgress
    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

__all__ = ["apply", "apply_plan", "downgrade", "purge", "zorder"]

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
    made = decide_for(table, snapshot, policy) if plan is None else MaintenancePlan.load(plan)
    return _planned_only(made) if dry_run else apply_plan(table, engine, made, on_progress, snapshot)


def purge(
    table: Table,
    engine: EngineOf,
    partitions: Iterable[Mapping[str, str | None] | str] = (),
    *,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Purge every deletion vector, even a single one. ``partitions``: only there, as in ``Policy.partitions``. Raises
    the errors of :func:`apply`.
    """
    policy = Policy.from_mapping({"partitions": list(partitions)}, "the selection")
    snapshot = table.snapshot()
    table.check_writable(snapshot, "rewrite")
    return apply_plan(table, engine, build_plan(snapshot, policy, purge=True), on_progress, snapshot)


def zorder(
    table: Table,
    engine: EngineOf,
    columns: Iterable[str],
    partitions: Iterable[Mapping[str, str | None] | str] = (),
    *,
    target_file_size: str | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Order files by columns. Raises the errors of ``maintenance.zorder`` and ``apply``."""
    from dv_maintenance.maintenance.zorder import plan_zorder

    snapshot = table.snapshot()
    plan = plan_zorder(table, snapshot, list(columns), partitions, target_size=target_file_size)
    return _planned_only(plan) if dry_run else apply_plan(table, engine, plan, on_progress, snapshot)


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


def _planned_only(plan: MaintenancePlan) -> Outcome:
    _say(plan)
    return replace(of_plan(plan), reason=_PLANNED_ONLY, report=plan.to_json())


def _say(plan: MaintenancePlan) -> None:
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", explain(plan))
