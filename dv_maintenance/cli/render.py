"""An outcome as text for a terminal: which table and version, the reason, tables, further facts, problems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dv_maintenance.cli.output import table
from dv_maintenance.units import iso_timestamp as iso

if TYPE_CHECKING:
    from dv_maintenance.service.outcome import Outcome

# A column of numbers, sizes or changes is flush right.
_NUMBER = re.compile(r"[-+]?[\d?][\d.,]*( ?[KMGTP]i?B| B| s|%)?( (->|[-+]).*)?|-|unknown")


def text(outcome: Outcome) -> str:
    """Without the plan, which has a verb of its own, unless only planning was done."""
    done = {name: rows for name, rows in outcome.tables.items() if name not in {"plan", "left_alone"}}
    lines = [*_head(outcome.report), *([outcome.reason] if outcome.reason else [])]
    lines += [_table(rows) for rows in done.values() if rows]
    lines += [f"{name.replace('_', ' ')}: {iso(moment)}" for name, moment in outcome.moments.items()]
    lines += outcome.details
    if outcome.damage:
        lines += ["DAMAGED:", *(f"  {each}" for each in outcome.damage)]
    for name, each in outcome.lines.items():
        lines += [f"{name}:", *(f"  {line}" for line in each)]
    if outcome.problems:
        lines += ["NOT VERIFIED:", *(f"  {problem}" for problem in outcome.problems)]
    return "\n".join(lines)


def _head(report: Mapping[str, Any]) -> list[str]:
    if "table" not in report:
        return []
    before, after = report.get("version_before"), report.get("version_after", report.get("version"))
    if after is None:
        return [str(report["table"])]
    return [f"{report['table']}  version {after if before in (None, after) else f'{before} -> {after}'}"]


def _table(rows: Sequence[Mapping[str, str | int]]) -> str:
    cells = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row.values()] for row in rows]
    words = {at for row in cells for at, cell in enumerate(row) if not _NUMBER.fullmatch(cell)}
    return table(list(rows[0]), cells, left=words)
