"""A plan in the parts that a page or a screen is made of, from the outcome that planned it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from dv_maintenance.maintenance.planning.explain import explain, left_alone_line, totals
from dv_maintenance.maintenance.planning.groups import grouped_steps
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.service.text import size
from dv_maintenance.tables.registry import a_table

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.groups import StepGroup
    from dv_maintenance.maintenance.planning.steps import PlanStep


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps for one reason.

    title : how many steps, and the reason.
    columns : names of the columns; ``rows`` has their texts.
    words : the columns that are flush left, by number.
    bytes_read : of each step.
    """

    title: str
    columns: tuple[str, ...]
    words: frozenset[int]
    rows: tuple[tuple[str, ...], ...]
    bytes_read: tuple[int, ...]

    def more_after(self, shown: int) -> str:
        """A note on the steps after the first ones; empty if there are none."""
        hidden = self.bytes_read[shown:]
        return f"... and {len(hidden):,} more, reading {size(sum(hidden))}" if hidden else ""


@dataclass(frozen=True, slots=True)
class PlanView:
    """``head``: what the whole plan is, does and costs, line by line; ``left_alone``: a line for each reason."""

    title: str
    head: tuple[str, ...]
    groups: tuple[StepTable, ...]
    left_alone: tuple[str, ...]


def plan_view(report: Mapping[str, Any]) -> PlanView:
    """``report``: of an outcome that planned. Raises UsageError if it has no plan."""
    plan = _plan(report)
    head = [
        f"{a_table(plan.format, first=True)} at version {plan.version}.",
        *([f"Decided by {plan.basis}."] if plan.basis else []),
    ]
    return PlanView(
        f"{'Purge' if plan.purge else 'Maintenance'} of {plan.table}",
        (*head, "", *(line.removeprefix("- ") for line in totals(plan))),
        tuple(map(_table, grouped_steps(plan))),
        tuple(map(left_alone_line, plan.left_alone)),
    )


def markdown(report: Mapping[str, Any]) -> str:
    """Every step of the plan, as Markdown. Raises as :func:`plan_view`."""
    return explain(_plan(report), every_step=True)


def _plan(report: Mapping[str, Any]) -> MaintenancePlan:
    # A report may say more than its plan.
    names = [each.name for each in fields(MaintenancePlan)]
    return MaintenancePlan.from_json({name: report[name] for name in names if name in report})


def _table(group: StepGroup) -> StepTable:
    parted = any(step.partition for step in group.steps)
    names = ["step", *(["partition"] if parted else []), "files", "DVs", "rows purged", "reads", "writes"]
    columns = (*names, *(["why"] if group.own_facts else []))
    return StepTable(
        f"{len(group.steps):,} {'step' if len(group.steps) == 1 else 'steps'}: {group.title}",
        columns,
        frozenset(columns.index(name) for name in ("step", "partition", "why") if name in columns),
        tuple(tuple(_cells(step, parted=parted, why=group.own_facts)) for step in group.steps),
        tuple(step.cost.bytes_read for step in group.steps),
    )


def _cells(step: PlanStep, *, parted: bool, why: bool) -> Iterator[str]:
    yield step.id
    if parted:
        yield step.partition
    yield f"{len(step.inputs):,} -> {step.expected.files_after:,}"
    yield f"{step.expected.dvs_removed:,}"
    yield f"{step.expected.rows_purged:,}"
    yield size(step.cost.bytes_read)
    yield size(step.cost.bytes_written)
    if why:
        yield step.reason
