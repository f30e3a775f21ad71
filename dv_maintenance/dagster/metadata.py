"""Reports as Dagster metadata: the reason first, numbers that plot, pictures and tables as Markdown.

Dagster's page shows Markdown in place only while it is short (:mod:`~dv_maintenance.service.chart`), and numbers as
they are, so: short reasons, rounded shares; what is long has an entry of its own, which opens on demand.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
import pyarrow as pa

from dv_maintenance.config import format_size
from dv_maintenance.service.chart import MOST_BARS, Bar, bar_chart, fits_inline

if TYPE_CHECKING:
    from dv_maintenance.maintenance.execution.apply import ApplyReport, StepReport
    from dv_maintenance.maintenance.health import Counts, Health, PartitionHealth
    from dv_maintenance.maintenance.manifest import ManifestReport
    from dv_maintenance.maintenance.planning.steps import MaintenancePlan
    from dv_maintenance.maintenance.vacuum import VacuumReport
    from dv_maintenance.service.inspection import Inspection
    from dv_maintenance.tables.model import Snapshot

__all__ = [
    "of_health",
    "of_inspection",
    "of_manifest",
    "of_partition",
    "of_plan",
    "of_report",
    "of_run",
    "of_schema",
    "of_vacuum",
    "of_work",
]

Metadata = dict[str, Any]
# Names shown in the UI; the event log is no place for a plan of a million files.
_SHOWN: Final = 50
# The page shows a table in full, however long.
_STEPS_SHOWN: Final = 10
_NAME_SHOWN: Final = 80
_TYPE_SHOWN: Final = 60
_COMMENT_SHOWN: Final = 1000
# Of a report: the page that it is on says these.
_SAID_ELSEWHERE: Final = frozenset({"table", "format", "name"})
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
# Years, dates and times, as a partition column spells them.
_TIME: Final = re.compile(r"(19|20)\d\d(-?\d\d(-?\d\d([ T].*)?)?)?")


def of_health(state: Health) -> Metadata:
    """The table as it is: totals, the picture of its worst partitions, and these as a table to search and copy."""
    # The page's header shows these two, the size in words.
    header = {"dagster/row_count": state.counts.live_rows, "dagster/size_bytes": state.counts.size_bytes}
    numbers = _known({"version": state.version, **_counts(state.counts), **header})
    return _picture(state) | numbers | _warnings(state.warnings)


def of_schema(snapshot: Snapshot) -> Metadata:
    """Columns in the table's order, with their comments, and their types as Arrow spells them."""
    columns = [
        dg.TableColumn(
            field.name,
            _type_name(field.type),
            description=_column_description(field, field.name in snapshot.partition_columns),
            constraints=dg.TableColumnConstraints(nullable=field.nullable),
        )
        for field in snapshot.schema
    ]
    return {"dagster/column_schema": dg.TableSchema(columns)}


def of_inspection(found: Inspection) -> Metadata:
    """What is due and why, and how the table is: the page's overview shows the latest observation and no other."""
    numbers: Metadata = {"version": found.version, "deleted_ratio": _rounded(found.deleted_ratio)}
    state = {} if found.health is None else of_health(found.health)
    reasons = [f"- **{job}**: {'; '.join(why)}" for job, why in found.reasons.items()]
    due: Metadata = {"due": dg.MetadataValue.md("\n".join(reasons))} if reasons else {}
    return due | state | _known(numbers) | _warnings(found.warnings)


def of_plan(plan: MaintenancePlan) -> Metadata:
    """Why, which steps first, and the whole plan in words."""
    from dv_maintenance.maintenance.planning.explain import explain

    rows = [
        dg.TableRecord(
            {
                **({"partition": _shortened(step.partition)} if step.partition else {}),
                "files": len(step.inputs),
                "rows_purged": step.expected.rows_purged,
                "bytes_read": step.cost.bytes_read,
            }
        )
        for step in plan.steps[:_STEPS_SHOWN]
    ]
    table: Metadata = {"plan": dg.MetadataValue.table(rows)} if rows else {}
    explanation = dg.MetadataValue.md(_as_text(explain(plan)))
    return {"reason": dg.MetadataValue.md(_why(plan))} | table | {"explanation": explanation}


def _as_text(markdown: str) -> str:
    """Headings as bold lines: the page sets them larger than its entries have room for."""
    return _HEADING.sub(r"**\1**", markdown)


def of_run(plan: MaintenancePlan | None, report: ApplyReport | None, after: Health, *, per_partition: bool) -> Metadata:
    """What a run of ``dv/optimize`` did and how the table is now; for ``per_partition`` only what all its partitions
    share, each adds :func:`of_partition`. ``None``: there was nothing to plan for.
    """
    if plan is None or report is None:
        return {"version_before": after.version, "version_after": after.version}
    problems: Metadata = {"problems": dg.MetadataValue.md(_bullets(report.problems))} if report.problems else {}
    shared: Metadata = {
        "version_before": report.version_before,
        "version_after": report.version_after,
        "verified": report.verified,
        **problems,
    }
    if per_partition:
        return shared
    planned = of_plan(plan)
    reason: Metadata = {"reason": planned.pop("reason")}
    before = _known({"deleted_ratio_before": _rounded(_ratio_before(after.counts, report.steps))})
    state = of_health(after)
    changed = _picture_of_change(report.steps, after)
    picture = changed or {name: state[name] for name in _PICTURES if name in state}
    numbers = {name: value for name, value in state.items() if name not in _PICTURES}
    return reason | picture | of_work(report.steps) | shared | before | numbers | planned


def of_partition(steps: Sequence[StepReport], now: Counts | None) -> Metadata:
    """One Dagster partition: the steps done in it and how it is now; ``None``: no live file is in it."""
    if steps:
        reason = _inline(_grouped((step.reason for step in steps), "step"))
    elif now is None:
        reason = "Nothing to do: no live file is in this partition."
    else:
        reason = (
            f"Nothing to do: the plan left its {now.files:,} files alone, {now.files_with_dv:,} of them with deletion "
            "vectors. The plan in the run's log says why."
        )
    state = {"files": 0} if now is None else {**_counts(now), "size_bytes": now.size_bytes}
    rows = {
        "deleted_ratio_before": None if now is None else _rounded(_ratio_before(now, steps)),
        "dagster/partition_row_count": 0 if now is None else now.live_rows,
    }
    return {"reason": dg.MetadataValue.md(reason)} | of_work(steps) | _known(state | rows)


def of_vacuum(report: VacuumReport) -> Metadata:
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
    reason = (
        f"{report.deleted:,} files ({format_size(report.bytes)}) were out of use beyond the retention: {found}."
        if found
        else "No file was out of use beyond the retention."
    )
    some = {
        "index_files": report.index_files,
        "transaction_files": report.transaction_files,
        "version_files": report.version_files,
    }
    numbers: Metadata = {
        "reason": dg.MetadataValue.md(reason),
        "version_after": report.version_after,
        "files_deleted": report.deleted,
        "data_files": report.data_files,
        "dv_files": report.dv_files,
        "change_files": report.change_files,
        "other_files": report.other_files,
        # Of formats that have such files.
        **{name: files for name, files in some.items() if files},
        "bytes_deleted": report.bytes,
        "out_of_use_before": dg.MetadataValue.timestamp(report.cutoff / 1000),
    }
    kept = _inline(f"{files:,} files: {reason}" for reason, files in report.kept.items())
    return numbers | ({"kept": dg.MetadataValue.md(kept)} if kept else {})


def of_manifest(report: ManifestReport) -> Metadata:
    purged = " Deletion vectors were purged first." if report.purged else ""
    reason = report.note or (
        f"{len(report.manifests):,} manifests list the {report.files:,} data files of version {report.version}.{purged}"
    )
    return {
        "reason": dg.MetadataValue.md(reason),
        "version": report.version,
        "manifests": len(report.manifests),
        "files": report.files,
        "removed": len(report.removed),
        "purged_first": report.purged,
        "paths": dg.MetadataValue.md(_shown_bullets([f"`{path}`" for path in report.manifests])),
    }


def of_work(steps: Sequence[StepReport]) -> Metadata:
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


def of_report(reason: str, report: Mapping[str, Any]) -> Metadata:
    """The reason, and what of a report is a number, a name, or a yes or no."""
    plain = {name: value for name, value in report.items() if isinstance(value, int | float | str)}
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in plain.items()}
    said = {name: value for name, value in rounded.items() if name not in _SAID_ELSEWHERE}
    return {"reason": dg.MetadataValue.md(reason)} | said


def _counts(counts: Counts) -> Metadata:
    return {
        "files": counts.files,
        "files_with_dv": counts.files_with_dv,
        "deleted_rows": counts.deleted_rows,
        "deleted_ratio": _rounded(counts.deleted_ratio),
    }


# -- pictures --------------------------------------------------------------------------------------------------------

# In place, and behind a link.
_PICTURES: Final = ("deleted_ratio_by_partition", "worst_partitions")


def _picture(state: Health) -> Metadata:
    """The partitions with the largest share of deleted rows; nothing where there are none to compare."""
    rows = [each for each in state.partitions if each.counts.deleted_rows]
    if len(state.partitions) < 2 or not rows:
        return {}
    # Where the log does not say how many rows there are, a share is not known: such rows are in the table only.
    rows.sort(key=lambda row: (row.counts.deleted_ratio is None, -(row.counts.deleted_ratio or 0)))
    known = [(row, Bar(_label(row.partition), row.counts.deleted_ratio)) for row in rows if row.counts.deleted_ratio]
    clean = len(state.partitions) - len(rows)
    notes = [f"{_count(clean, 'partition')} without any."] if clean else []
    if len(known) < len(rows):
        notes.append(f"{len(rows) - len(known):,} with a share that the log does not tell.")
    picture = _chart(known, "Deleted rows by partition", "Share of rows that are deleted", " ".join(notes))
    table = dg.MetadataValue.md(_partition_table(rows))
    first, then = _PICTURES
    return ({first: dg.MetadataValue.md(picture)} if picture else {}) | {then: table}


def _picture_of_change(steps: Sequence[StepReport], after: Health) -> Metadata:
    """The partitions that rows were purged from, before and after; nothing where there are none to compare."""
    from dv_maintenance.tables.model import partition_name

    worked_on: dict[str, list[StepReport]] = defaultdict(list)
    for step in steps:
        if step.rows_purged:
            worked_on[step.partition].append(step)
    if len(after.partitions) < 2 or not worked_on:
        return {}
    rows = []
    for each in after.partitions:
        done, now = worked_on.get(partition_name(each.partition)), each.counts.deleted_ratio
        if done and now is not None:
            rows.append((each, Bar(_label(each.partition), now, _ratio_before(each.counts, done))))
    rows.sort(key=lambda row: -(row[1].before or 0))
    said = "Share of rows that are deleted, before and after"
    picture = _chart(rows, "Deleted rows by partition before and after", said)
    return {_PICTURES[0]: dg.MetadataValue.md(picture)} if picture else {}


def _chart(rows: Sequence[tuple[PartitionHealth, Bar]], alt: str, said: str, note: str = "") -> str:
    """As many of the rows, worst first, as the page shows in place; those of days and the like in order of time."""
    if not rows:
        return ""
    columns = ", ".join(f"`{_shortened(name)}`" for name in rows[0][0].partition)
    for shown in range(min(len(rows), MOST_BARS), 0, -1):
        chosen = list(rows[:shown])
        if all(_is_time(row.partition) for row, _ in chosen):
            chosen.sort(key=lambda row: _natural(row[1].label))
        hidden = f" The {shown:,} worst of {len(rows):,}." if shown < len(rows) else ""
        caption = f"{said}, by {columns}.{hidden} {note}".rstrip()
        markdown = f"{bar_chart([bar for _, bar in chosen], alt)}\n\n{caption}"
        if fits_inline(markdown):
            return markdown
    return ""


def _partition_table(rows: Sequence[PartitionHealth]) -> str:
    """What the picture shows and more, as text, under the names that policies and the command line take."""
    from dv_maintenance.tables.model import partition_name

    lines = [
        f"| `{_shortened(partition_name(row.partition))}` | {_percent(row.counts.deleted_ratio)} | "
        f"{row.counts.deleted_rows:,} | {row.counts.files_with_dv:,}/{row.counts.files:,} |"
        for row in rows[:_SHOWN]
    ]
    head = ["| partition | deleted | rows | DV/files |", "|:--|--:|--:|--:|"]
    more = ["", f"{len(rows) - _SHOWN:,} more are not shown."] if len(rows) > _SHOWN else []
    return "\n".join([*head, *lines, *more])


def _ratio_before(now: Counts, steps: Iterable[StepReport]) -> float | None:
    """The share of deleted rows that there would be without these steps: what others did meanwhile is not undone."""
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


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Orders numbers in text by their value: month 9 goes before month 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2%}"


# -- words -----------------------------------------------------------------------------------------------------------


def _why(plan: MaintenancePlan) -> str:
    """The plan's reasons, few enough to be read in place."""
    if not plan.steps:
        left = (f"{each.files:,} files are left alone: {each.reason}" for each in plan.left_alone)
        return _inline(["Nothing to do.", *left])
    read, written = (
        format_size(sum(getattr(step.cost, cost) for step in plan.steps)) for cost in ("bytes_read", "bytes_written")
    )
    cost = f"{_count(len(plan.steps), 'step')}, reading {read} and writing about {written}"
    return _inline([*_grouped((step.reason for step in plan.steps), "step"), cost])


def _grouped(reasons: Iterable[str], noun: str) -> list[str]:
    """Equal reasons said once, the most frequent first."""
    counted = Counter(reasons).most_common(_STEPS_SHOWN)
    return [reason if times == 1 else f"{_count(times, noun)}: {reason}" for reason, times in counted]


def _type_name(type: pa.DataType) -> str:
    """As Arrow spells it; of a type that is too long for a page the outer levels."""
    name = str(type)
    for depth in (3, 2, 1, 0):
        if len(name) <= _TYPE_SHOWN:
            break
        name = _outline(type, depth)
    return _shortened(name, _TYPE_SHOWN)


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
    parts = [_shortened(comment, _COMMENT_SHOWN), "Partition column." if partition_column else ""]
    return " ".join(part for part in parts if part) or None


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _known(numbers: Metadata) -> Metadata:
    """Without what the log does not say: a missing point in a plot is right, a zero is not."""
    return {name: number for name, number in numbers.items() if number is not None}


def _warnings(warnings: tuple[str, ...]) -> Metadata:
    return {"warnings": dg.MetadataValue.md(_bullets(warnings))} if warnings else {}


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _shown_bullets(lines: Sequence[str]) -> str:
    hidden = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return _bullets([*lines[:_SHOWN], *hidden])


def _inline(lines: Iterable[str]) -> str:
    """As many of the lines as the page shows in place, at least the first; a single line needs no bullet."""
    rest = list(lines)
    for shown in range(len(rest), 0, -1):
        hidden = [f"and {len(rest) - shown:,} more"] if shown < len(rest) else []
        text = rest[0] if len(rest) == 1 else _bullets([*rest[:shown], *hidden])
        if fits_inline(text):
            return text
    return _bullets(rest[:1])


def _shortened(text: str, most: int = _NAME_SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
