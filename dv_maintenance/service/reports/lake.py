"""Many tables side by side as an outcome: totals, a row per table, the worst as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dv_maintenance.service.chart import Bar, Picture
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.reports.health import known
from dv_maintenance.service.text import has, percent, size
from dv_maintenance.units import DAY, count, day_of, epoch_millis, format_duration, iso_timestamp

if TYPE_CHECKING:
    from dv_maintenance.service.lake import LakeTable


def of_lake(
    tables: Sequence[LakeTable],
    *,
    limit: int | None = None,
    now: int | None = None,
    stored: bool = False,
    failing: Mapping[str, Sequence[str]] | None = None,
) -> Outcome:
    """The tables in the given order.

    limit : show so many; the totals count all of them. ``None``: every table.
    now : epoch milliseconds, for the ages.
    stored : an orchestrator stores the outcome: dates take the place of ages, which would be wrong when they are read.
    failing : the checks that fail, by table, where they are known.
    """
    now = epoch_millis(now)
    shown = tables if limit is None else tables[:limit]
    totals = _totals(tables, now)
    if failing is not None:
        totals |= {
            "tables_with_failing_checks": sum(bool(failing.get(each.name)) for each in tables),
            "failing_checks": sum(len(failing.get(each.name, ())) for each in tables),
        }
    return Outcome(
        _summary(totals),
        totals,
        tables={"tables": tuple(_row(each, now, stored, failing) for each in shown)} if shown else {},
        picture=Picture.of(
            [Bar(each.name, each.deleted_ratio) for each in tables if each.deleted_ratio],
            "Deleted rows by table",
            "Share of rows that are deleted, by table",
        ),
        details=(f"{count(len(tables) - len(shown), 'more table')} not shown",) if len(shown) < len(tables) else (),
        lines=_lines(shown),
        report={
            "at": iso_timestamp(now),
            "totals": totals,
            "tables": [each.to_json() for each in shown],
            "not_shown": len(tables) - len(shown),
        },
    )


def _totals(tables: Sequence[LakeTable], now: int) -> dict[str, Any]:
    oldest = min((each.oldest_dv for each in tables if each.oldest_dv is not None), default=None)
    return known(
        {
            "tables": len(tables),
            "unreadable_tables": sum(each.error is not None for each in tables),
            "tables_with_dvs": sum(bool(each.files_with_dv) for each in tables),
            "due_tables": sum(bool(each.due) for each in tables),
            "files": sum(each.files or 0 for each in tables),
            "files_with_dv": sum(each.files_with_dv or 0 for each in tables),
            "deleted_rows": sum(each.deleted_rows or 0 for each in tables),
            "small_files": sum(each.small_files or 0 for each in tables),
            "size_bytes": sum(each.size_bytes or 0 for each in tables),
            "expired_bytes": sum(each.expired_bytes or 0 for each in tables),
            "expiring_bytes": sum(each.expiring_bytes or 0 for each in tables),
            "oldest_dv_age_seconds": None if oldest is None else max(now - oldest, 0) // 1000,
        }
    )


def _summary(totals: dict[str, Any]) -> str:
    unreadable = totals["unreadable_tables"]
    parts = [
        f"{has(totals['tables_with_dvs'])} deletion vectors",
        f"{has(totals['due_tables'])} work due",
        f"vacuuming all of them would free {size(totals['expired_bytes'])} now",
    ]
    broken = f" {unreadable:,} can't be read." if unreadable else ""
    return f"{count(totals['tables'], 'table')}: {', '.join(parts)}.{broken}"


def _row(table: LakeTable, now: int, stored: bool, failing: Mapping[str, Sequence[str]] | None) -> dict[str, str | int]:
    checked: dict[str, str | int] = {"readable": "no" if table.error else "yes"} if stored else {}
    if failing is not None:
        checked["failing checks"] = ", ".join(failing.get(table.name, ())) or "-"
    return {
        "table": table.name,
        "format": table.format or "?",
        **checked,
        "DVs": _known(table.files_with_dv),
        "files": _known(table.files),
        "deleted": "?" if table.files is None else percent(table.deleted_ratio),
        "oldest DV": _since(table) if stored else _age(table, now),
        "small": _known(table.small_files),
        "expired": size(table.expired_bytes),
        "later": _later(table),
        "due": "ERROR" if table.error else ", ".join(table.due) or "-",
    }


def _known(number: int | None) -> str | int:
    return "?" if number is None else number


def _since(table: LakeTable) -> str:
    if table.oldest_dv is None:
        return "?" if table.files is None else "-"
    return f"{'' if table.oldest_dv_exact else 'before '}{day_of(table.oldest_dv)}"


def _age(table: LakeTable, now: int) -> str:
    if table.oldest_dv is None:
        return "?" if table.files is None else "-"
    age = max(now - table.oldest_dv, 0)
    unit = DAY if age >= DAY else 3_600_000 if age >= 3_600_000 else 60_000
    return f"{'' if table.oldest_dv_exact else '>'}{format_duration(age // unit * unit) if age >= unit else '<1m'}"


def _later(table: LakeTable) -> str:
    if table.expiring_bytes is None:
        return "?"
    if table.expiring_from is None:
        return "-"
    return f"{size(table.expiring_bytes)} from {day_of(table.expiring_from)}"


def _lines(tables: Sequence[LakeTable]) -> dict[str, tuple[str, ...]]:
    found = {
        "errors": tuple(f"{each.name}: {each.error}" for each in tables if each.error),
        "due": tuple(f"{each.name}: {job}: {'; '.join(why)}" for each in tables for job, why in each.reasons.items()),
        "warnings": tuple(f"{each.name}: {warning}" for each in tables for warning in each.warnings),
    }
    return {name: lines for name, lines in found.items() if lines}
