"""How long a table keeps unused files: the table property, and the syntax of its intervals."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dv_maintenance.errors import RefusedError
from dv_maintenance.units import DAY, limited

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot

RETENTION = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION = "interval 1 week"

_UNITS = {
    "week": 604_800_000,
    "day": DAY,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1000,
    "millisecond": 1,
}
_TERM = re.compile(rf"(?<!\S)(\d{{1,15}})\s+({'|'.join(_UNITS)})s?(?!\S)", re.IGNORECASE | re.ASCII)


def interval_millis(text: str) -> int:
    """Milliseconds of an interval as table properties spell it: ``interval 1 week 2 days``, ``168 hours``.

    Raises
    ------
    ValueError : not such an interval, or too long. Months and years have no fixed length; a bare number has no unit.
    """
    body = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    pairs = _TERM.findall(body)
    if not pairs or _TERM.sub("", body).strip():
        raise ValueError(f"{text!r} is not an interval of weeks, days, hours, minutes, seconds or milliseconds")
    return limited(sum(int(amount) * _UNITS[unit.lower()] for amount, unit in pairs), text)


def own_retention(snapshot: Snapshot) -> int:
    """The table's retention in milliseconds, by default one week. Raises RefusedError if the property is invalid."""
    try:
        return interval_millis(snapshot.properties.get(RETENTION, DEFAULT_RETENTION))
    except ValueError as error:
        raise RefusedError(
            f"{RETENTION}: {error}",
            at=snapshot,
            next_step=f"set the table property to a value such as '{DEFAULT_RETENTION}'",
        ) from None
