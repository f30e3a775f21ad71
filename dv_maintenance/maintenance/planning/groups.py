"""The steps of a plan by the reason for them: a table of many partitions has few reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.maintenance.planning.reasons import percent

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep, Why

# In the order of step_reason: the strongest first.
_TITLES: Final[dict[Why, str]] = {
    "wholly_deleted": "files without live rows: removed without being read",
    "deadline": "files whose deleted rows must go by a deadline",
    "paid": "files whose readers have paid for a rewrite",
    "along": "files at least halfway to a rewrite",
    "deleted_ratio": "files with more than {percent} of the rows deleted",
    "unknown_rows": "files with a deletion vector but no row count in the log",
    "deletion_vector": "files with a deletion vector",
    "small": "files too small to keep",
    "unordered": "files not ordered yet",
    "overlapping": "files in the range of unordered files",
    "unclustered": "files not clustered yet",
    "other_columns": "files clustered by other columns",
    "small_unit": "files clustered together with too few others",
}
# Their sentences have facts of the step: days, how often a rewrite has been paid for.
_OWN_FACTS: Final[frozenset[Why]] = frozenset({"deadline", "paid", "along"})


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps with the same reasons, in the plan's order.

    title : the reasons, the strongest first.
    own_facts : whether each step's ``reason`` says more than the title and the numbers.
    """

    title: str
    own_facts: bool
    steps: Sequence[PlanStep]


def grouped_steps(plan: MaintenancePlan) -> list[StepGroup]:
    """Groups in the order of their first step, which is the most useful one."""
    found: dict[tuple[Why, ...], list[PlanStep]] = {}
    for step in plan.steps:
        whys = {each.why for each in step.inputs}
        found.setdefault(tuple(why for why in _TITLES if why in whys), []).append(step)
    return [StepGroup(_title(whys, plan.policy), bool(_OWN_FACTS & {*whys}), steps) for whys, steps in found.items()]


def _title(whys: Sequence[Why], policy: Policy) -> str:
    titles = [_TITLES[why].format(percent=percent(policy)) for why in whys]
    return ", and ".join([titles[0], *(title.removeprefix("files ") for title in titles[1:])])
