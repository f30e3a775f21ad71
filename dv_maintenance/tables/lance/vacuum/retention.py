"""How long and how many superseded versions a table keeps: its config, as Lance's own cleanup reads it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.reach.retention import applied_retention
from dv_maintenance.units import DAY, limited

if TYPE_CHECKING:
    from dv_maintenance.tables.lance.log.manifest import Manifest

OLDER_THAN: Final = "lance.auto_cleanup.older_than"
RETAIN: Final = "lance.auto_cleanup.retain_versions"
DEFAULT_RETENTION: Final = 14 * DAY
"""Milliseconds; the default of Lance's ``cleanup_old_versions``."""

_DAY: Final = 86_400
# Seconds. Case-sensitive: `m` is a minute, `M` a month. Months and years have their average length.
_UNITS: Final = {
    **dict.fromkeys(("nanos", "nsec", "ns"), 1e-9),
    **dict.fromkeys(("usec", "us", "µs"), 1e-6),
    **dict.fromkeys(("millis", "msec", "ms"), 1e-3),
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), 1.0),
    **dict.fromkeys(("minutes", "minute", "mins", "min", "m"), 60.0),
    **dict.fromkeys(("hours", "hour", "hrs", "hr", "h"), 3600.0),
    **dict.fromkeys(("days", "day", "d"), _DAY * 1.0),
    **dict.fromkeys(("weeks", "week", "wks", "wk", "w"), _DAY * 7.0),
    **dict.fromkeys(("months", "month", "M"), _DAY * 30.44),
    **dict.fromkeys(("years", "year", "yrs", "yr", "y"), _DAY * 365.25),
}
_TERM: Final = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-zA-Zµ]+)\s*")


def parse_age(text: str) -> int:
    """Milliseconds of an age as Lance's config spells it: ``14days``, ``1h 30m``, ``1.5h``.

    Raises
    ------
    ValueError : the text is not an age, or too long.
    """
    seconds, at = 0.0, 0
    while match := _TERM.match(text, at):
        if match[2] not in _UNITS:
            raise ValueError(f"{match[2]!r} is not a unit of time")
        seconds, at = seconds + float(match[1]) * _UNITS[match[2]], match.end()
    if at < len(text) or not at:
        raise ValueError(f"{text!r} is not an age such as 14days or 1h 30m")
    return limited(round(seconds * 1000), text)


def own_retention(manifest: Manifest, table: str) -> int:
    """The retention in the table's config, or Lance's default; milliseconds. Raises RefusedError if it is invalid."""
    text = manifest.config.get(OLDER_THAN)
    if text is None:
        return DEFAULT_RETENTION
    try:
        return parse_age(text)
    except ValueError as error:
        raise _unclear(OLDER_THAN, str(error), "14days", manifest, table) from None


def newest_kept(manifest: Manifest, table: str) -> int:
    """How many of the newest versions the table keeps at any age; at least 1. Raises RefusedError."""
    text = manifest.config.get(RETAIN, "1")
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise _unclear(RETAIN, f"{text!r} is not a number of versions", "10", manifest, table)
    return int(text)


def retention_of(manifest: Manifest, table: str, asked: int | None, *, allow_short: bool) -> int:
    """The retention to apply, milliseconds.

    asked : the requested retention, milliseconds; ``None`` is the table's own.

    Raises
    ------
    UsageError : ``asked`` is negative.
    RefusedError : ``asked`` is shorter than the table's own retention, or that is invalid.
    """
    return applied_retention(
        asked,
        own_retention(manifest, table),
        allow_short=allow_short,
        source=OLDER_THAN if OLDER_THAN in manifest.config else "Lance's default",
        loses="readers and time travel would lose versions that they still read",
        lower=f"{OLDER_THAN} in the table's config",
        table=table,
        version=manifest.version,
    )


def _unclear(key: str, reason: str, example: str, manifest: Manifest, table: str) -> RefusedError:
    return RefusedError(
        f"{key}: {reason}",
        table=table,
        version=manifest.version,
        next_step=f"set it in the table's config to a value such as {example}, or remove it",
    )
