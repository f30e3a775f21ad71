"""Reports as outcomes: the reason first, numbers that can be plotted, a picture, tables as Markdown.

Pages show only short Markdown in place (:mod:`~dv_maintenance.service.chart`), and never format numbers. So reasons are
short and shares are rounded; longer texts have entries of their own, which open on demand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dv_maintenance.config import format_size
from dv_maintenance.maintenance.planning.explain import explain
from dv_maintenance.service.chart import Bar, Picture
from dv_maintenance.service.outcome import Column, Number, Outcome
from dv_maintenance.service.text import bullets, count, grouped, inline, percent, shortened, shown_bullets
from dv_maintenance.tables.model import partition_name

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.apply import ApplyReport, StepReport
    from dv_maintenance.maintenance.health import Counts, Health, PartitionHealth
    from dv_maintenance.maintenance.manifest import ManifestReport
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.maintenance.vacuum import VacuumReport
    from dv_maintenance.service.inspection import Inspection
    from dv_maintenance.tables.model import Snapshot

__all__ = [
    "columns_of",
    "of_health",
    "of_inspection",
    "of_manifest",
    "of_partition",
    "of_plan",
    "of_report",
    "of_run",
    "of_vacuum",
    "work_numbers",
]

# Partitions shown: a plan of a million files does not belong into an event log.
_SHOWN: Final = 50
# Pages show a table in full, however long.
_STEPS_SHOWN: Final = 10
_TYPE_SHOWN: Final = 60
_COMMENT_SHOWN: Final = 1000
# Fields of a report that its page shows anyway.
_SAID_ELSEWHERE: Final = frozenset({"table", "format", "name"})
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
# Years, dates and times in the spelling of partition columns.
_TIME: Final = re.compile(r"(19|20)\d\d(-?\d\d(-?\d\d([ T].*)?)?)?")


def of_health(state: Health) -> Outcome:
    """The health of the table: totals, a picture of its worst partitions, and these as a table to search and copy."""
    totals = {"live_rows": state.counts.live_rows, "size_bytes": state.counts.size_bytes}
    picture, table = _worst(state)
    return Outcome(
        "",
        _known({"version": state.version, **_counts(state.counts), **totals}),
        picture=picture,
        texts={**({"worst_partitions": table} if table else {}), **_warnings(state.warnings)},
    )


def of_inspection(found: Inspection) -> Outcome:
    """What is due and why, and the table's health: a page may show only the latest observation."""
    state = Outcome("") if found.health is None else of_health(found.health)
    numbers = _known({"version": found.version, "deleted_ratio": _rounded(found.deleted_ratio)})
    return Outcome(
        "\n".join(f"- **{job}**: {'; '.join(why)}" for job, why in found.reasons.items()),
        {**state.numbers, **numbers},
        picture=state.picture,
        texts={**state.texts, **_warnings(found.warnings)},
    )


def of_plan(plan: MaintenancePlan) -> Outcome:
    """The reasons, the first steps, and the whole plan in words."""
    rows: list[dict[str, str | int]] = [
        {
            **({"partition": shortened(step.partition)} if step.partition else {}),
            "files": len(step.inputs),
            "rows_purged": step.expected.rows_purged,
            "bytes_read": step.cost.bytes_read,
        }
        for step in plan.steps[:_STEPS_SHOWN]
    ]
    # Headings as bold lines: pages set them larger than their entries have room for.
    texts = {"explanation": _HEADING.sub(r"**\1**", explain(plan))}
    return Outcome(_why(plan), tables={"plan": tuple(rows)} if rows else {}, texts=texts)


def of_run(plan: MaintenancePlan | None, report: ApplyReport | None, after: Health, *, per_partition: bool) -> Outcome:
    """What an optimize did, and the table's health afterwards.

    ``None`` as report: there was nothing to plan for. ``per_partition``: only what all partitions share, as each has
    an :func:`of_partition` of its own.
    """
    if plan is None or report is None:
        return Outcome("", {"version_before": after.version, "version_after": after.version})
    shared: dict[str, Number] = {
        "version_before": report.version_before,
        "version_after": report.version_after,
        "verified": report.verified,
    }
    problems = {"problems": bullets(report.problems)} if report.problems else {}
    if per_partition:
        return Outcome("", shared, texts=problems, problems=report.problems, report=report.to_json())
    planned, state = of_plan(plan), of_health(after)
    before = _known({"deleted_ratio_before": _rounded(_ratio_before(after.counts, report.steps))})
    changed = _change(report.steps, after)
    texts = {name: text for name, text in state.texts.items() if changed is None or name != "worst_partitions"}
    return Outcome(
        planned.reason,
        {**work_numbers(report.steps), **shared, **before, **state.numbers},
        tables=planned.tables,
        picture=changed or state.picture,
        texts={**problems, **texts, **planned.texts},
        problems=report.problems,
        report=report.to_json(),
    )


def of_partition(steps: Sequence[StepReport], now: Counts | None) -> Outcome:
    """One chosen partition: the steps done in it, and its health afterwards; ``None``: it has no live file."""
    if steps:
        reason = inline(grouped((step.reason for step in steps), "step"))
    elif now is None:
        reason = "Nothing to do: this partition has no live file."
    else:
        reason = (
            f"Nothing to do: the plan left its {now.files:,} files alone, {now.files_with_dv:,} of them with deletion "
            "vectors. The plan in the run's log says why."
        )
    state: dict[str, Any] = {"files": 0} if now is None else {**_counts(now), "size_bytes": now.size_bytes}
    rows = {
        "deleted_ratio_before": None if now is None else _rounded(_ratio_before(now, steps)),
        "live_rows": 0 if now is None else now.live_rows,
    }
    return Outcome(reason, {**work_numbers(steps), **_known(state | rows)})


def of_vacuum(report: VacuumReport) -> Outcome:
    kinds = {
        "data": report.data_files,
        "deletion vector": report.dv_files,
        "change data": report.change_files,
        "index": report.index_files,
        "transaction": report.transaction_files,
        "version": report.version_files,
        "other": report.other_files,
    }
    found = ", ".join(f"{files:,} {kind}" for kind, files in kinds.items() if files)
    aside = f" They were set aside in {report.quarantine}; dvm undelete puts them back." if report.quarantine else ""
    if report.emptied:
        aside = f"{aside} {report.emptied:,} files were deleted from the quarantine after their time."
    reason = (
        f"{report.deleted:,} files ({format_size(report.bytes)}) were out of use beyond the retention: {found}.{aside}"
        if found
        else f"No file was out of use beyond the retention.{aside}"
    )
    some = {
        "index_files": report.index_files,
        "transaction_files": report.transaction_files,
        "version_files": report.version_files,
    }
    numbers: dict[str, Number] = {
        "version_after": report.version_after,
        "files_deleted": 0 if report.quarantine else report.deleted,
        **({"files_set_aside": report.deleted} if report.quarantine else {}),
        **({"quarantine_emptied": report.emptied} if report.emptied else {}),
        "data_files": report.data_files,
        "dv_files": report.dv_files,
        "change_files": report.change_files,
        "other_files": report.other_files,
        # Of formats that have such files.
        **{name: files for name, files in some.items() if files},
        "bytes_deleted": report.bytes,
    }
    lines = {
        "kept": [f"{files:,} files: {reason}" for reason, files in report.kept.items()],
        "protected": list(report.protected),
    }
    return Outcome(
        reason,
        numbers,
        moments={"out_of_use_before": report.cutoff},
        texts={name: inline(texts) for name, texts in lines.items() if texts},
        report=report.to_json(),
    )


def of_manifest(report: ManifestReport) -> Outcome:
    purged = " Deletion vectors were purged first." if report.purged else ""
    reason = report.note or (
        f"{len(report.manifests):,} manifests list the {report.files:,} data files of version {report.version}.{purged}"
    )
    return Outcome(
        reason,
        {
            "version": report.version,
            "manifests": len(report.manifests),
            "files": report.files,
            "removed": len(report.removed),
            "purged_first": report.purged,
        },
        texts={"paths": shown_bullets([f"`{path}`" for path in report.manifests])} if report.manifests else {},
        report=report.to_json(),
    )


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


def of_report(reason: str, report: Mapping[str, Any]) -> Outcome:
    """The reason, and the numbers, names and booleans of a report."""
    plain = {name: value for name, value in report.items() if isinstance(value, int | float | str)}
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in plain.items()}
    said = {name: value for name, value in rounded.items() if name not in _SAID_ELSEWHERE}
    return Outcome(reason, said, report=report)


def columns_of(snapshot: Snapshot) -> tuple[Column, ...]:
    """Columns in the table's order, with their comments, and their types in Arrow's spelling."""
    return tuple(
        Column(
            field.name,
            _type_name(field.type),
            _column_description(field, field.name in snapshot.partition_columns),
            field.nullable,
        )
        for field in snapshot.schema
    )


def _counts(counts: Counts) -> dict[str, Any]:
    return {
        "files": counts.files,
        "files_with_dv": counts.files_with_dv,
        "deleted_rows": counts.deleted_rows,
        "deleted_ratio": _rounded(counts.deleted_ratio),
    }


# -- pictures --------------------------------------------------------------------------------------------------------


def _worst(state: Health) -> tuple[Picture | None, str]:
    """The partitions with the largest share of deleted rows, as a picture and as a table; neither if there is nothing
    to compare.
    """
    rows = [each for each in state.partitions if each.counts.deleted_rows]
    if len(state.partitions) < 2 or not rows:
        return None, ""
    # Without row counts in the log the share is unknown: such partitions are in the table only.
    rows.sort(key=lambda row: (row.counts.deleted_ratio is None, -(row.counts.deleted_ratio or 0)))
    bars = [_bar(row.partition, row.counts.deleted_ratio) for row in rows if row.counts.deleted_ratio]
    clean = len(state.partitions) - len(rows)
    notes = [f"{count(clean, 'partition')} without any."] if clean else []
    if len(bars) < len(rows):
        notes.append(f"{len(rows) - len(bars):,} with an unknown share.")
    caption = f"Share of rows that are deleted, by {_columns(rows[0])}"
    picture = Picture.of(bars, "Deleted rows by partition", caption, " ".join(notes))
    return picture, _partition_table(rows)


def _change(steps: Sequence[StepReport], after: Health) -> Picture | None:
    """The partitions from which rows were purged, before and after; ``None`` if there are none to compare."""
    worked_on: dict[str, list[StepReport]] = defaultdict(list)
    for step in steps:
        if step.rows_purged:
            worked_on[step.partition].append(step)
    if len(after.partitions) < 2 or not worked_on:
        return None
    bars = []
    for each in after.partitions:
        done, now = worked_on.get(partition_name(each.partition)), each.counts.deleted_ratio
        if done and now is not None:
            bars.append(_bar(each.partition, now, _ratio_before(each.counts, done)))
    bars.sort(key=lambda bar: -(bar.before or 0))
    caption = f"Share of rows that are deleted, before and after, by {_columns(after.partitions[0])}"
    return Picture.of(bars, "Deleted rows by partition before and after", caption)


def _bar(partition: Mapping[str, str | None], share: float, before: float | None = None) -> Bar:
    return Bar(_label(partition), share, before, _is_time(partition))


def _columns(row: PartitionHealth) -> str:
    return ", ".join(f"`{shortened(name)}`" for name in row.partition)


def _partition_table(rows: Sequence[PartitionHealth]) -> str:
    """The content of the picture and more, as text, under the names used by policies and the command line."""
    lines = [
        f"| `{shortened(partition_name(row.partition))}` | {percent(row.counts.deleted_ratio)} | "
        f"{row.counts.deleted_rows:,} | {row.counts.files_with_dv:,}/{row.counts.files:,} |"
        for row in rows[:_SHOWN]
    ]
    head = ["| partition | deleted | rows | DV/files |", "|:--|--:|--:|--:|"]
    more = ["", f"{len(rows) - _SHOWN:,} more are not shown."] if len(rows) > _SHOWN else []
    return "\n".join([*head, *lines, *more])


def _ratio_before(now: Counts, steps: Iterable[StepReport]) -> float | None:
    """The share of deleted rows without these steps; concurrent changes of others are kept."""
    if now.physical_rows is None:
        return None
    purged = sum(step.rows_purged for step in steps)
    physical = now.physical_rows + purged
    return (now.deleted_rows + purged) / physical if physical else 0.0


def _label(partition: Mapping[str, str | None]) -> str:
    """The values alone: the caption names the columns."""
    return "/".join("null" if value is None else value or "(empty)" for value in partition.values())


def _is_time(partition: Mapping[str, str | None]) -> bool:
    first = next(iter(partition.values()), None)
    return first is not None and _TIME.fullmatch(first) is not None


# -- words -----------------------------------------------------------------------------------------------------------


def _why(plan: MaintenancePlan) -> str:
    """The plan's reasons, few enough to be read in place."""
    if not plan.steps:
        left = (f"{each.files:,} files are left alone: {each.reason}" for each in plan.left_alone)
        return inline(["Nothing to do.", *left])
    read, written = (
        format_size(sum(getattr(step.cost, cost) for step in plan.steps)) for cost in ("bytes_read", "bytes_written")
    )
    cost = f"{count(len(plan.steps), 'step')}, reading {read} and writing about {written}"
    return inline([*grouped((step.reason for step in plan.steps), "step"), cost])


def _type_name(type: pa.DataType) -> str:
    """The type in Arrow's spelling; only the outer levels of a type that is too long for a page."""
    name = str(type)
    for depth in (3, 2, 1, 0):
        if len(name) <= _TYPE_SHOWN:
            break
        name = _outline(type, depth)
    return shortened(name, _TYPE_SHOWN)


def _outline(type: pa.DataType, depth: int) -> str:
    if pa.types.is_list(type):
        return f"list<{_outline(type.value_type, depth)}>"
    if pa.types.is_map(type):
        return f"map<{_outline(type.key_type, depth)}, {_outline(type.item_type, depth)}>"
    if not pa.types.is_struct(type):
        return str(type)
    fields = ", ".join(f"{field.name}: {_outline(field.type, depth - 1)}" for field in type) if depth else "…"
    return f"struct<{fields}>"


def _column_description(field: pa.Field, partition_column: bool) -> str | None:
    comment = (field.metadata or {}).get(b"comment", b"").decode(errors="replace")
    parts = [shortened(comment, _COMMENT_SHOWN), "Partition column." if partition_column else ""]
    return " ".join(part for part in parts if part) or None


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _known(numbers: Mapping[str, Number | None]) -> dict[str, Number]:
    """Without unknown numbers: a missing point in a plot is right, a zero is not."""
    return {name: number for name, number in numbers.items() if number is not None}


def _warnings(warnings: tuple[str, ...]) -> dict[str, str]:
    return {"warnings": bullets(warnings)} if warnings else {}
