"""The health of a table as an outcome: totals, the worst partitions as a picture and as a table, columns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dv_maintenance.service.chart import Bar, Picture
from dv_maintenance.service.outcome import Column, Number, Outcome
from dv_maintenance.service.text import percent, shortened, size
from dv_maintenance.tables.model import partition_name
from dv_maintenance.tables.partition_spec import SPEC_ID, fields_of
from dv_maintenance.tables.registry import a_table
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.maintenance.deadlines import ToErase
    from dv_maintenance.maintenance.execution.report import StepReport
    from dv_maintenance.maintenance.health import Counts, Health, PartitionHealth
    from dv_maintenance.service.inspection import Inspection
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.partition_spec import PartitionField

MUST_GO_BY: Final = "deleted_rows_must_go_by"
"""The moment until which the next step of an erasure must be done, under ``Policy.erase_within``."""
# Partitions shown: a plan of a million files does not belong into an event log.
_SHOWN: Final = 50
_TYPE_SHOWN: Final = 60
_COMMENT_SHOWN: Final = 1000
# Years, dates and times in the spelling of partition columns.
_TIME: Final = re.compile(r"(19|20)\d\d(-?\d\d(-?\d\d([ T].*)?)?)?")


def of_health(state: Health) -> Outcome:
    """The health of the table: totals, a picture of its worst partitions, and these as a table to search and copy."""
    totals = {"live_rows": state.counts.live_rows, "size_bytes": state.counts.size_bytes}
    picture, table = _worst(state)
    return Outcome(
        "",
        known({"version": state.version, **counted(state.counts), **totals}),
        picture=picture,
        texts={"worst_partitions": table} if table else {},
        lines=_warnings(state.warnings),
    )


def with_deadlines(outcome: Outcome, found: ToErase | None) -> Outcome:
    """The outcome, and by when deleted rows must go; unchanged without deadlines in the policy."""
    if found is None:
        return outcome
    return replace(
        outcome,
        moments={**outcome.moments, **({} if found.by is None else {MUST_GO_BY: found.by})},
        lines={**outcome.lines, "deadlines": tuple(found.sentences())},
    )


def of_inspection(found: Inspection) -> Outcome:
    """What is due and why, and the table's health: a page may show only the latest observation."""
    state = Outcome("") if found.health is None else of_health(found.health)
    numbers = known({"version": found.version, "deleted_ratio": rounded(found.deleted_ratio)})
    return Outcome(
        "\n".join(f"- **{job}**: {'; '.join(why)}" for job, why in found.reasons.items()),
        {**state.numbers, **numbers},
        picture=state.picture,
        texts=state.texts,
        lines={**state.lines, **_warnings(found.warnings)},
    )


def of_inspections(found: Sequence[Inspection]) -> Outcome:
    """Many tables side by side: what is due and why, warnings and errors."""
    rows = tuple(
        {
            "table": each.name,
            "version": "?" if each.version is None else str(each.version),
            "deleted": percent(each.deleted_ratio),
            "due": ", ".join(each.due) or "-",
        }
        for each in found
    )
    details = []
    for each in found:
        details += [f"{each.name}: {job}: {reason}" for job, why in each.reasons.items() for reason in why]
        details += [f"{each.name}: warning: {warning}" for warning in each.warnings]
        details += [f"{each.name}: error: {each.error}"] if each.error else []
    return Outcome(
        "",
        tables={"tables": rows} if rows else {},
        details=tuple(details),
        report={"tables": [each.to_json() for each in found]},
    )


def of_state(state: Health) -> Outcome:
    """:func:`of_health` with the report and the counts by partition, for a verb that shows one version."""
    worst = sorted(state.partitions, key=lambda each: each.counts.deleted_ratio or 0, reverse=True)
    rows = [_row("all", state.counts)]
    if any(each.partition for each in worst):
        rows += [_row(partition_name(each.partition), each.counts) for each in worst[:_SHOWN]]
    more, counts = len(worst) - _SHOWN, state.counts
    files = f"{counts.files_with_dv:,} of {counts.files:,} files"
    return Outcome(
        f"{a_table(state.format, first=True)}: {percent(counts.deleted_ratio)} of the rows are deleted, in {files}.",
        moments={"committed": state.timestamp},
        tables={"partitions": tuple(rows)},
        details=(f"{count(more, 'partition')} with a smaller share of deleted rows not shown",) if more > 0 else (),
        lines=_warnings(state.warnings),
        report=state.to_json(),
    )


def _row(name: str, counts: Counts) -> dict[str, str | int]:
    return {
        "partition": name,
        "files": counts.files,
        "with DVs": counts.files_with_dv,
        "live rows": "?" if counts.live_rows is None else counts.live_rows,
        "deleted rows": counts.deleted_rows,
        "deleted": percent(counts.deleted_ratio),
        "size": size(counts.size_bytes),
    }


def columns_of(snapshot: Snapshot) -> tuple[Column, ...]:
    """Columns in the table's order, with their comments, and their types in Arrow's spelling."""
    fields = fields_of(snapshot.specs).values()
    return tuple(
        Column(
            field.name,
            _type_name(field.type),
            _column_description(field, [each for each in fields if each.source == field.name]),
            field.nullable,
        )
        for field in snapshot.schema
    )


def counted(counts: Counts) -> dict[str, Any]:
    return {
        "files": counts.files,
        "files_with_dv": counts.files_with_dv,
        "deleted_rows": counts.deleted_rows,
        "deleted_ratio": rounded(counts.deleted_ratio),
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


def change(steps: Sequence[StepReport], after: Health) -> Picture | None:
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
            bars.append(_bar(each.partition, now, ratio_before(each.counts, done)))
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


def ratio_before(now: Counts, steps: Iterable[StepReport]) -> float | None:
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
    first = next((text for name, text in partition.items() if name != SPEC_ID), None)
    return first is not None and _TIME.fullmatch(first) is not None


# -- words ----------------------------------------------------------------------------------------------------------


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


def _column_description(field: pa.Field, partitions_by: Sequence[PartitionField]) -> str | None:
    comment = (field.metadata or {}).get(b"comment", b"").decode(errors="replace")
    parts = [
        shortened(comment, _COMMENT_SHOWN),
        *("Partition column." if each.transform == "identity" else f"Partitioned by {each}." for each in partitions_by),
    ]
    return " ".join(part for part in parts if part) or None


def rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def known(numbers: Mapping[str, Number | None]) -> dict[str, Number]:
    """Without unknown numbers: a missing point in a plot is right, a zero is not."""
    return {name: number for name, number in numbers.items() if number is not None}


def _warnings(warnings: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {"warnings": warnings} if warnings else {}
