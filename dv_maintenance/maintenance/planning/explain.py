"""A plan in words, as Markdown, for the operator who has to decide at three in the morning. This module only prints
what the plan says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from dv_maintenance.tables.registry import a_table
from dv_maintenance.units import format_size

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.left_alone import LeftAlone
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan, PlanStep, Recoding

_STEPS_SHOWN = 50


def explain(plan: MaintenancePlan, *, every_step: bool = False) -> str:
    """Totals, each step with its reason and cost, and the files left alone with the reason.

    every_step : not only the first 50.
    """
    return "\n".join(_lines(plan, len(plan.steps) if every_step else _STEPS_SHOWN)) + "\n"


def _lines(plan: MaintenancePlan, most: int) -> Iterator[str]:
    yield f"# {'Purge' if plan.purge else 'Maintenance'} of {plan.table}"
    yield ""
    yield f"{a_table(plan.format, first=True)} at version {plan.version}."
    if plan.basis:
        yield f"Decided by {plan.basis}."
    yield ""
    yield from totals(plan)
    if plan.steps:
        yield ""
        yield "## Steps, most useful first"
        yield ""
        for step in plan.steps[:most]:
            yield _step(step)
        hidden = plan.steps[most:]
        if hidden:
            yield f"- ... and {len(hidden):,} more, reading {_read(hidden)}"
    if plan.left_alone:
        yield ""
        yield "## Left alone"
        yield ""
        for each in plan.left_alone:
            yield f"- {left_alone_line(each)}"


def totals(plan: MaintenancePlan) -> Iterator[str]:
    """What the whole plan does and costs."""
    steps = plan.steps
    if not steps:
        yield "Nothing to do."
        return
    before = sum(len(step.inputs) for step in steps)
    after = sum(step.expected.files_after for step in steps)
    size = sum(each.size for step in steps for each in step.inputs)
    yield f"- Files: {before:,} become about {after:,}"
    yield f"- Deletion vectors removed: {sum(step.expected.dvs_removed for step in steps):,}"
    yield f"- Deleted rows purged: {sum(step.expected.rows_purged for step in steps):,}"
    yield f"- Bytes: {format_size(size)} become about {format_size(sum(step.expected.bytes_after for step in steps))}"
    written = sum(step.cost.bytes_written for step in steps)
    tasks = sum(step.action == "rewrite" for step in steps)
    yield f"- Cost: {_read(steps)} read, about {format_size(written)} written, in {_count(tasks, 'task')}"
    if copied := copied_groups(steps):
        size = sum(step.cost.bytes_copied for step in steps)
        yield f"- Not decoded: {copied}, {format_size(size)}"
    for text in recoded(each for step in steps for each in step.recoded):
        yield f"- Compression: {text}"
    yield "- The old files stay on disk until their retention has passed and a vacuum deletes them."


def _step(step: PlanStep) -> str:
    where = f" in {step.partition}" if step.partition else ""
    cost = (
        f"; reads {_read([step])}, writes about {format_size(step.cost.bytes_written)}" if step.cost.files_read else ""
    )
    purged = f"; purges {_count(step.expected.rows_purged, 'row')}" if step.expected.rows_purged else ""
    copied = f"; {text}" if (text := copied_groups([step])) else ""
    codecs = "".join(f"; {each}" for each in recoded(step.recoded))
    return f"- **{step.id}** {step.action}{where}: {step.reason}{purged}{cost}{copied}{codecs}"


def copied_groups(steps: Iterable[PlanStep]) -> str:
    """How many row groups the steps copy, of those whose footers were read; empty if none was."""
    costs = [step.cost for step in steps if step.cost.row_groups is not None]
    groups = sum(cost.row_groups or 0 for cost in costs)
    if not groups:
        return ""
    return f"{sum(cost.row_groups_copied for cost in costs):,} of {_count(groups, 'row group')} copied"


def recoded(changes: Iterable[Recoding]) -> Iterator[str]:
    """What each change of codec does to the size, all changes between the same two codecs together."""
    for (source, target), each in groupby(sorted(changes, key=_codecs), _codecs):
        sizes = [(one.bytes_before, one.bytes_after) for one in each]
        before, after = (sum(column) for column in zip(*sizes, strict=True))
        share = round(100 * abs(before - after) / max(before, 1))
        by = f"{share} % {'smaller' if after < before else 'larger'}, {format_size(abs(before - after))}"
        yield f"{_named(target)} instead of {_named(source)}: about {by if share else 'the same size'}"


def _codecs(change: Recoding) -> tuple[str, str]:
    return change.source, change.target


def _named(codec: str) -> str:
    return "no compression" if codec == "none" else codec


def left_alone_line(each: LeftAlone) -> str:
    """How many files are left alone, and why."""
    rows = f", {each.deleted_rows:,} deleted rows" if each.deleted_rows else ""
    shown = ", ".join(f"`{path}`" for path in each.examples[:2])
    more = ", ..." if each.files > 2 else ""
    return f"{_count(each.files, 'file')} ({format_size(each.size_bytes)}{rows}): {each.reason} ({shown}{more})"


def _read(steps: Iterable[PlanStep]) -> str:
    return format_size(sum(step.cost.bytes_read for step in steps))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
