"""Outcomes in Airflow: a table in the log, small JSON as XCom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.text import inline
from dv_maintenance.units import iso_timestamp as iso

_PARTITIONS_SHOWN = 50


def as_xcom(outcome: Outcome) -> dict[str, Any]:
    """The reason, then the numbers, then the partitions: a few hundred bytes."""
    moments = {name: iso(moment) for name, moment in outcome.moments.items()}
    shown = list(outcome.partitions.items())[:_PARTITIONS_SHOWN]
    found: dict[str, Any] = {"reason": _reason(outcome), **outcome.numbers, **moments}
    if outcome.problems:
        found["problems"] = list(outcome.problems)
    return found | ({"partitions": {key: as_xcom(each) for key, each in shown}} if shown else {})


def ended(context: Any, shown: dict[str, Any], problem: str) -> dict[str, Any]:
    """What a task returns. With a problem, it fails, and has its XCom nevertheless."""
    if problem:
        context["ti"].xcom_push(key="return_value", value=shown)
        raise AirflowFailException(problem)
    return shown


def unverified(outcome: Outcome) -> str:
    """The problem of a result that could not be verified; "" for none."""
    return f"not verified: {'; '.join(outcome.problems)}" if outcome.problems else ""


def as_text(outcome: Outcome) -> str:
    """The reason and tables for a log."""
    parts = [_reason(outcome)]
    if outcome.problems:
        parts.append(f"NOT VERIFIED: {'; '.join(outcome.problems)}")
    if outcome.numbers or outcome.moments:
        moments = {name: iso(moment) for name, moment in outcome.moments.items()}
        rows = [{"": name, "value": value} for name, value in {**outcome.numbers, **moments}.items()]
        parts.append(table_text(rows))
    parts += [f"{name}:\n{table_text(rows)}" for name, rows in outcome.tables.items() if rows]
    parts += [inline(outcome.details)] if outcome.details else []
    parts += [f"{name}:\n{inline(lines)}" for name, lines in outcome.lines.items() if lines]
    shown = {key: {"partition": key, "reason": each.reason} for key, each in outcome.partitions.items()}
    return "\n".join(parts + ([table_text(list(shown.values()))] if shown else []))


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys, aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0], box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(f"{value:,}" if type(value) is int else str(value) for value in row.values()))
    text = StringIO()
    Console(file=text, width=120).print(table)
    return text.getvalue().strip("\n")


def _reason(outcome: Outcome) -> str:
    return outcome.reason or inline([f"{key}: {each.reason}" for key, each in outcome.partitions.items()] or ["Done."])
