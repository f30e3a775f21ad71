"""Outcomes as Dagster metadata: the reason first, numbers that can be plotted, pictures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

if TYPE_CHECKING:
    from dv_maintenance.service.outcome import Column, Outcome, TableReport

__all__ = ["of_columns", "of_partition", "of_table", "render", "table_of"]

Metadata = dict[str, Any]

# The page's header shows these two, the size in words.
_HEADER: Final = {"live_rows": "dagster/row_count", "size_bytes": "dagster/size_bytes"}
_PARTITION: Final = {"live_rows": "dagster/partition_row_count"}


def render(outcome: Outcome, *, reason: str = "reason", names: Mapping[str, str] = _HEADER) -> Metadata:
    """Every entry of an outcome.

    reason : name of the entry with the reason.
    names : Dagster's own names for some numbers.
    """
    found: Metadata = {reason: dg.MetadataValue.md(outcome.reason)} if outcome.reason else {}
    if outcome.picture is not None and (picture := outcome.picture.markdown()):
        found["deleted_ratio_by_partition"] = dg.MetadataValue.md(picture)
    found |= {names.get(name, name): number for name, number in outcome.numbers.items()}
    found |= {name: dg.MetadataValue.timestamp(moment / 1000) for name, moment in outcome.moments.items()}
    found |= {name: table_of(rows) for name, rows in outcome.tables.items()}
    return found | {name: dg.MetadataValue.md(text) for name, text in outcome.texts.items()}


def of_partition(outcome: Outcome) -> Metadata:
    return render(outcome, names=_PARTITION)


def of_table(report: TableReport) -> Metadata:
    """The health of a table, for its own page."""
    return render(report.state) | of_columns(report.columns) | {"version": report.version}


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
