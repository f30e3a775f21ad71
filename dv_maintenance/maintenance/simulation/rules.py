"""The rules that can be compared: this package's own, and what others do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from dv_maintenance.maintenance.meter.decide import QUIET, decide, is_due
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.simulation.replay import Rule

if TYPE_CHECKING:
    from dv_maintenance.maintenance.meter.timeline import Timeline
    from dv_maintenance.maintenance.planning.deadlines import Erasure
    from dv_maintenance.maintenance.planning.facts import Bools
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.maintenance.reads.model import Reads
    from dv_maintenance.tables.model import Snapshot

_HALF_A_DAY: Final = 43_200_000


def never() -> Rule:
    """No maintenance at all."""
    return Rule("never", None, nightly=True, start=0.0)


def purge_every_night(start: float) -> Rule:
    """Every deletion vector, every night: REORG TABLE ... APPLY (PURGE)."""

    def plan(snapshot: Snapshot, timeline: Timeline, now: int) -> MaintenancePlan:
        del timeline, now
        return build_plan(snapshot, purge=True)

    return Rule("nightly REORG PURGE", plan, nightly=True, start=start)


def by_meter(
    name: str,
    policy: Policy,
    reads: Reads | None,
    *,
    nightly: bool,
    start: float,
    retention: int = 0,
    erasure: Erasure | None = None,
) -> Rule:
    """What readers have paid against what a rewrite costs, and deadlines; see ``meter.decide``."""
    ahead = _HALF_A_DAY if nightly else 0

    def plan(snapshot: Snapshot, timeline: Timeline, now: int) -> MaintenancePlan:
        made = decide(
            snapshot,
            policy,
            now=now,
            reads=reads,
            timeline=timeline,
            deadlines=None if erasure is None else erasure.of_files(timeline.first_delete, _with_dv(timeline)),
            retention=retention,
            start=start,
            ahead=ahead,
            quiet=0 if nightly else QUIET,
        )
        return made if is_due(made, now, ahead) else replace(made, steps=())

    return Rule(name, plan, nightly, start)


def _with_dv(timeline: Timeline) -> Bools:
    return np.diff(timeline.offsets) > 0
