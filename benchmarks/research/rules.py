"""Rules of others, to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.simulation.replay import Rule

if TYPE_CHECKING:
    from dv_maintenance.maintenance.meter.timeline import Timeline
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.tables.model import Snapshot


def by_thresholds(name: str, policy: Policy, *, nightly: bool, start: float) -> Rule:
    """Thresholds alone, whatever a start costs."""

    def plan(snapshot: Snapshot, timeline: Timeline, now: int) -> MaintenancePlan:
        del timeline, now
        return build_plan(snapshot, policy)

    return Rule(name, plan, nightly, start)
