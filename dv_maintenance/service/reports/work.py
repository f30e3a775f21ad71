"""Plans, and what running them did, as outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.maintenance.planning.explain import explain
from dv_maintenance.maintenance.planning.left_alone import OUTSIDE
from dv_maintenance.service.outcome import Number, Outcome
from dv_maintenance.service.reports.health import change, counted, known, of_health, ratio_before, rounded
from dv_maintenance.service.reports.plain import of_report
from dv_maintenance.service.text import grouped, inline, shortened, size, was
from dv_maintenance.units import count, day_of
from dv_maintenance.units import iso_timestamp as iso

if TYPE_CHECKING:
    from dv_maintenance.maintenance.downgrade import DowngradeReport
    from dv_maintenance.maintenance.execution.report import ApplyReport, StepReport
    from dv_maintenance.maintenance.health import Counts, Health
    from dv_maintenance.maintenance.meter.prices import Prices
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan

# Pages show a table in full, however long.
_PLANNED_SHOWN: Final = 10
_DONE_SHOWN: Final = 20
KEPT_LISTED: Final = 10_000
"""Files left alone that the JSON of a plan lists one by one."""
KEPT_SHOWN: Final = 10
"""Files left alone that are shown one by one, those due first."""
_NOTHING: Final = "There was nothing to do."
_STATES: Final = {"done": "done", "due": "next", "waiting": "waits", "later": ""}


def of_plan(plan: MaintenancePlan) -> Outcome:
    """The reasons, the first steps, and the whole plan in words."""
    rows: list[dict[str, str | int]] = [
        {
            **({"partition": shortened(step.partition)} if step.partition else {}),
            "files": len(step.inputs),
            "rows_purged": step.expected.rows_purged,
            "bytes_read": step.cost.bytes_read,
        }
        for step in plan.steps[:_PLANNED_SHOWN]
    ]
    kept: list[dict[str, str | int]] = [
        {
            "file": shortened(each.path),
            "due": "" if each.due_at is None else day_of(each.due_at),
            "deleted_rows": each.deleted_rows,
            "reason": each.reason,
        }
        for each in plan.kept[:KEPT_SHOWN]
    ]
    return Outcome(
        _why(plan),
        tables={name: tuple(found) for name, found in (("plan", rows), ("left_alone", kept)) if found},
        texts={"explanation": explain(plan)},
    )


def of_run(plan: MaintenancePlan | None, report: ApplyReport | None, after: Health, *, per_partition: bool) -> Outcome:
    """What an optimize did, and the table's health afterwards.

    ``None`` as report: there was nothing to plan for. ``per_partition``: only what all partitions share, since each has
    its own :func:`of_partition`.
    """
    table = known({"table_deleted_ratio": rounded(after.counts.deleted_ratio)}) if per_partition else {}
    if plan is None or report is None:
        return Outcome("", {"version_before": after.version, "version_after": after.version, **table})
    shared: dict[str, Number] = {
        "version_before": report.version_before,
        "version_after": report.version_after,
        "verified": report.verified,
    }
    if per_partition:
        return Outcome("", {**shared, **table}, problems=report.problems, report=report.to_json())
    planned, state = of_plan(plan), of_health(after)
    cost = cost_numbers(report.steps, plan.policy.prices)
    cost_line = {"cost": (_cost_line(report.steps, plan.policy.prices),)} if report.steps else {}
    before = known({"deleted_ratio_before": rounded(ratio_before(after.counts, report.steps))})
    changed = change(report.steps, after)
    texts = {name: text for name, text in state.texts.items() if changed is None or name != "worst_partitions"}
    return Outcome(
        _lost(plan, report) or planned.reason,
        {**work_numbers(report.steps), "priced_seconds": cost["priced_seconds"], **shared, **before, **state.numbers},
        tables=planned.tables,
        picture=changed or state.picture,
        texts={**texts, **planned.texts},
        lines={**state.lines, **cost_line},
        problems=report.problems,
        report={**report.to_json(), "cost": cost},
    )


def of_partition(steps: Sequence[StepReport], now: Counts | None) -> Outcome:
    """One chosen partition: the steps done in it, and its health afterwards; ``None``: it has no live file."""
    if steps:
        reason = inline(grouped((step.reason for step in steps), "step"))
    elif now is None:
        reason = "Nothing to do: this partition has no live file."
    else:
        reason = (
            f"Nothing to do: the plan left {count(now.files, 'file')} alone, {now.files_with_dv:,} with deletion "
            "vectors. The plan in the run's log says why."
        )
    state: dict[str, Any] = {"files": 0} if now is None else {**counted(now), "size_bytes": now.size_bytes}
    rows = {
        "deleted_ratio_before": None if now is None else rounded(ratio_before(now, steps)),
        "live_rows": 0 if now is None else now.live_rows,
    }
    return Outcome(reason, {**work_numbers(steps), **known(state | rows)})


def work_numbers(steps: Sequence[StepReport]) -> dict[str, Number]:
    """What the steps of a plan did, in numbers."""
    return {
        "steps": len(steps),
        "files_removed": sum(step.files_removed for step in steps),
        "files_added": sum(step.files_added for step in steps),
        "dvs_removed": sum(step.dvs_removed for step in steps),
        "rows_purged": sum(step.rows_purged for step in steps),
        "bytes_in": sum(step.bytes_in for step in steps),
        "bytes_out": sum(step.bytes_out for step in steps),
        "work_seconds": round(sum(step.seconds for step in steps), 2),
    }


def cost_numbers(steps: Sequence[StepReport], prices: Prices | None) -> dict[str, Number]:
    """What the steps cost: measured seconds of their tasks, the CPU seconds that the policy's prices expect (``None``:
    no steps), bytes of data files read and written, and those of them that were copied without being decoded.
    """
    read, written, copied = (
        sum(getattr(step, name) for step in steps) for name in ("bytes_in", "bytes_out", "bytes_copied")
    )
    return {
        "work_seconds": round(sum(step.seconds for step in steps), 2),
        "priced_seconds": 0.0 if prices is None else round(prices.rewriting(read, written, copied), 2),
        "bytes_read": read,
        "bytes_written": written,
        "bytes_copied": copied,
    }


def _cost_line(steps: Sequence[StepReport], prices: Prices) -> str:
    cost = cost_numbers(steps, prices)
    groups, copied = sum(step.row_groups for step in steps), sum(step.row_groups_copied for step in steps)
    as_they_are = f", {copied:,} of {count(groups, 'row group')} copied" if groups else ""
    return (
        f"{cost['work_seconds']} s in tasks ({cost['priced_seconds']} s of CPU by the policy's prices), "
        f"{size(int(cost['bytes_read']))} read, {size(int(cost['bytes_written']))} written{as_they_are}"
    )


def _lost(plan: MaintenancePlan, report: ApplyReport) -> str | None:
    """Why nothing was done although something was planned."""
    if report.steps or not plan.steps:
        return None
    steps = count(len(plan.steps), "planned step")
    return f"Nothing left to do: while this run was working, other writers replaced the files of {steps}."


def _why(plan: MaintenancePlan) -> str:
    """The plan's reasons, few enough to be read in place."""
    if not plan.steps:
        left = (f"{count(each.files, 'file')} left alone: {each.reason}" for each in plan.left_alone)
        return inline(["Nothing to do.", *left])
    read, written = (
        size(sum(getattr(step.cost, cost) for step in plan.steps)) for cost in ("bytes_read", "bytes_written")
    )
    cost = f"{count(len(plan.steps), 'step')}, reading {read} and writing about {written}"
    return inline([*grouped((step.reason for step in plan.steps), "step"), cost])


def of_apply(plan: MaintenancePlan, report: ApplyReport) -> Outcome:
    """What running a plan did, step by step."""
    steps = report.steps
    reason = _NOTHING
    details = []
    if steps:
        out, new, purged, carried = (
            sum(getattr(step, name) for step in steps)
            for name in ("files_removed", "files_added", "rows_purged", "rows_carried")
        )
        without = f", without their {count(purged, 'deleted row')}" if purged else ""
        reason = f"{count(out, 'file')} {was(out)} rewritten as {new:,}{without}."
        if carried:
            details.append(
                f"{count(carried, 'row')} that others deleted concurrently are also deleted in the new files; "
                "a later purge removes them"
            )
        details.append(f"cost: {_cost_line(steps, plan.policy.prices)}")
        if report.verified:
            details.append("verified: every query returns what it did before")
    if plan.purge:
        details += [
            f"{count(each.files, 'file')} with {count(each.deleted_rows, 'deleted row')} left alone: {each.reason}"
            for each in report.left_alone
            if each.deleted_rows and each.reason != OUTSIDE
        ]
    more = len(steps) - _DONE_SHOWN
    rows = tuple(_done(step) for step in steps[:_DONE_SHOWN])
    if more > 0:
        details.insert(0, f"{count(more, 'more step')} not shown")
    planned = of_plan(plan)
    return replace(
        _of_steps(reason, report, plan.policy.prices),
        tables={**planned.tables, **({"rewrites": rows} if rows else {})},
        texts=planned.texts,
        details=tuple(details),
        problems=report.problems,
    )


def of_nothing(report: ApplyReport) -> Outcome:
    """What a run did for which nothing was planned."""
    return _of_steps(_NOTHING, report, None)


def _of_steps(reason: str, report: ApplyReport, prices: Prices | None) -> Outcome:
    outcome, cost = of_report(reason, report.to_json()), cost_numbers(report.steps, prices)
    return replace(
        outcome,
        numbers={**outcome.numbers, **work_numbers(report.steps), "priced_seconds": cost["priced_seconds"]},
        report={**outcome.report, "cost": cost},
    )


def _done(step: StepReport) -> dict[str, str | int]:
    return {
        "partition": shortened(step.partition) or "(whole table)",
        "files": f"{step.files_removed:,} -> {step.files_added:,}",
        "DVs removed": step.dvs_removed,
        "rows purged": step.rows_purged,
        "bytes": f"{size(step.bytes_in)} -> {size(step.bytes_out)}",
        "work": f"{step.seconds:.1f} s",
    }


def of_downgrade(report: DowngradeReport) -> Outcome:
    """Which steps are done, and when to continue."""
    if report.finished:
        reason = "Finished: no reader of the table needs deletion vectors."
    elif report.waits_until is not None:
        reason = f"Not finished: run it again after {iso(report.waits_until)}."
    else:
        reason = "Not finished: the next run begins with the first step that is not done."
    rows = tuple(
        {"step": each.name, "state": _STATES[each.state], "what it does": each.explanation} for each in report.steps
    )
    purged = f"{count(report.rows_purged, 'deleted row')} {was(report.rows_purged)} purged from data files"
    outcome = of_report(reason, report.to_json())
    return replace(
        outcome,
        numbers={name: number for name, number in outcome.numbers.items() if name != "waits_until"},
        moments={} if report.waits_until is None else {"waits_until": report.waits_until},
        tables={"steps": rows},
        details=(purged,) if report.rows_purged else (),
    )
