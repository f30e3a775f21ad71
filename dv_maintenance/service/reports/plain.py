"""A report as an outcome: its plain values under their own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dv_maintenance.service.outcome import Outcome

# Fields of a report that its page shows anyway.
_SAID_ELSEWHERE: Final = frozenset({"table", "format", "name"})


def of_report(reason: str, report: Mapping[str, Any]) -> Outcome:
    """The reason, and the numbers, names and booleans of a report."""
    plain = {name: value for name, value in report.items() if isinstance(value, int | float | str)}
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in plain.items()}
    said = {name: value for name, value in rounded.items() if name not in _SAID_ELSEWHERE}
    return Outcome(reason, said, report=report)
