"""Outcomes as Dagster metadata: the reason first, numbers that can be plotted, pictures and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from dv_maintenance.service.checks import ERASE_WITHIN
from dv_maintenance.service.reports.health import MUST_GO_BY
from dv_maintenance.service.text import bullets, inline
from dv_maintenance.units import parse_instant

if TYPE_CHECKING:
    from dv_maintenance.service.checks import Finding
    from dv_maintenance.service.outcome import Column, Outcome, TableReport

Metadata = dict[str, Any]

# The page's header shows these two.
_HEADER: Final = {"live_rows": "dagster/row_count", "size_bytes": "dagster/size_bytes"}
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
# The asset's page shows the newest partition's entries as its own: their names say whose they are.
_OF_PARTITION: Final = ("files", "files_with_dv", "deleted_rows", "deleted_ratio", "deleted_ratio_before", "size_bytes")
_PARTITION: Final = {
    "live_rows": "dagster/partition_row_count",
    **{name: f"partition_{name}" for name in _OF_PARTITION},
}


def render(outcome: Outcome, *, reason: str = "reason", names: Mapping[str, str] = _HEADER) -> Metadata:
    """Every entry of an outcome.

    reason : name of the entry with the reason.
    names : Dagster's own names for some numbers.
    """
    found: Metadata = {reason: dg.MetadataValue.md(outcome.reason)} if outcome.reason else {}
    if outcome.problems:
        found["problems"] = dg.MetadataValue.md(bullets(outcome.problems))
    if outcome.picture is not None and (picture := outcome.picture.markdown()):
        found["deleted_ratio_by_partition"] = dg.MetadataValue.md(picture)
    found |= {names.get(name, name): number for name, number in outcome.numbers.items()}
    found |= {name: dg.MetadataValue.timestamp(moment / 1000) for name, moment in outcome.moments.items()}
    found |= {name: table_of(rows) for name, rows in outcome.tables.items()}
    if outcome.details:
        found["details"] = dg.MetadataValue.md(inline(outcome.details))
    found |= {name.replace(" ", "_"): dg.MetadataValue.md(inline(lines)) for name, lines in outcome.lines.items()}
    # Headings as bold lines: pages set them larger than their entries have room for.
    return found | {name: dg.MetadataValue.md(_HEADING.sub(r"**\1**", text)) for name, text in outcome.texts.items()}


def of_partition(outcome: Outcome) -> Metadata:
    return render(outcome, names=_PARTITION)


def of_table(report: TableReport) -> Metadata:
    """The health of a table, for its own page."""
    return render(report.state) | of_columns(report.columns) | {"version": report.version}


def of_findings(findings: Iterable[Finding]) -> Metadata:
    """What checks found about unneeded files and deadlines, for the table's own page: from which day how many bytes
    can go, and by when deleted rows must.
    """
    names = {"retention": "vacuum", ERASE_WITHIN: "deadlines"}
    known = [
        each
        for each in findings
        if each.check in names and ("expired_files" in each.numbers or each.check == ERASE_WITHIN)
    ]
    found: Metadata = {names[each.check]: dg.MetadataValue.md(each.reason) for each in known}
    for each in known:
        if "erase_by" in each.numbers:
            found[MUST_GO_BY] = dg.MetadataValue.timestamp(parse_instant(each.numbers["erase_by"]) / 1000)
    return found


def of_columns(columns: Sequence[Column]) -> Metadata:
    shown = [
        dg.TableColumn(
            column.name,
            column.type,
            description=column.description,
            constraints=dg.TableColumnConstraints(nullable=column.nullable),
        )
        for column in columns
    ]
    return {"dagster/column_schema": dg.TableSchema(shown)}


def table_of(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows])
