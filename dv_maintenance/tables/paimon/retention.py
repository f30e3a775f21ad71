"""How long a table keeps its snapshots, and how many: its options, read as Paimon reads them, or not at all.

Source: CoreOptions and TimeUtils of Paimon 2.1. What cannot be understood is refused: a guess may delete too much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import RefusedError, UsageError

__all__ = ["ORPHAN_AGE", "Retention", "decoupled_by", "duration_millis", "retention_of"]

ORPHAN_AGE: Final = 86_400_000
"""Milliseconds that a file without a snapshot is kept at least, as Paimon does: so long may a writer take."""

_TIME: Final = "snapshot.time-retained"
_LEAST: Final = "snapshot.num-retained.min"
_MOST: Final = "snapshot.num-retained.max"
_HOUR: Final = 3_600_000
_DEFAULT_LEAST: Final = 10
_UNLIMITED: Final = 2**31 - 1

# Nanoseconds. Case does not count, and one unit is all there is.
_UNITS: Final = {
    **dict.fromkeys(("ns", "nano", "nanosecond", "nanoseconds", "nanos"), 1),
    **dict.fromkeys(("µs", "micro", "micros", "microsecond", "microseconds"), 1_000),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1_000_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000_000),
}


@dataclass(frozen=True, slots=True)
class Retention:
    """Times in milliseconds. ``kept_for``: since a snapshot has a successor. ``orphan_age``: of files that no snapshot
    has. ``least``: so many of the newest snapshots stay; ``most``: no more of them stay than that, ``None`` without
    such a limit.
    """

    kept_for: int
    orphan_age: int
    least: int
    most: int | None


def duration_millis(text: str) -> int:
    """Milliseconds of a duration as Paimon's options spell it: ``1 h``, ``30min``, ``86400000``; a part of one counts
    as a whole.

    Raises
    ------
    ValueError : no such duration; two units (``1h30m``) are none.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([a-zµ]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text[:100]!r} is no duration such as '1 h', '7 d' or '30 min'")
    return -(-int(match[1]) * _UNITS[match[2]] // 1_000_000)


def retention_of(options: Mapping[str, str], table: str, asked: int | None, *, allow_short: bool) -> Retention:
    """What to go by, where a retention of ``asked`` milliseconds is asked for. That takes the place of the table's time
    and of its greatest number, never of its least: who names a time relies on it.

    Raises
    ------
    UsageError : ``asked`` is negative.
    RefusedError : it is shorter than the table's own, or an option makes no sense.
    """
    own = _duration(options, _TIME, _HOUR, table)
    least = _count(options, _LEAST, _DEFAULT_LEAST, table)
    most = _count(options, _MOST, _UNLIMITED, table)
    if most < least:
        raise _unclear(_MOST, f"{most} is less than the {least} of {_LEAST}", str(least), table)
    if asked is None:
        return Retention(own, max(ORPHAN_AGE, own), least, None if most == _UNLIMITED else most)
    if asked < 0:
        raise UsageError("the retention is negative", table=table, next_step="give a duration such as 168h")
    if asked < own and not allow_short:
        from dv_maintenance.config import format_duration

        source = _TIME if _TIME in options else "Paimon's default"
        raise RefusedError(
            f"a retention of {format_duration(asked)} is shorter than the table's own {format_duration(own)} "
            f"({source}): running readers and time travel would lose snapshots that they still read",
            table=table,
            next_step=f"give at least {format_duration(own)}, lower {_TIME} of the table, or, if nothing else uses the "
            "table now, allow a short retention explicitly",
        )
    return Retention(asked, asked if allow_short else max(ORPHAN_AGE, asked), least, None)


def decoupled_by(options: Mapping[str, str], table: str) -> str | None:
    """The option by which changelogs outlive their snapshots, if there is one. Raises RefusedError."""
    if "changelog.time-retained" in options:
        snapshots = _duration(options, _TIME, _HOUR, table)
        if _duration(options, "changelog.time-retained", snapshots, table) > snapshots:
            return "changelog.time-retained"
    for end, default in (("min", _DEFAULT_LEAST), ("max", _UNLIMITED)):
        name = f"changelog.num-retained.{end}"
        if name in options:
            snapshots = _count(options, f"snapshot.num-retained.{end}", default, table)
            if _count(options, name, snapshots, table) > snapshots:
                return name
    return None


def _duration(options: Mapping[str, str], name: str, default: int, table: str) -> int:
    if name not in options:
        return default
    try:
        return duration_millis(options[name])
    except ValueError as error:
        raise _unclear(name, str(error), "1 h", table) from None


def _count(options: Mapping[str, str], name: str, default: int, table: str) -> int:
    text = options.get(name, str(default)).strip()
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 0 < int(text) <= _UNLIMITED:
        raise _unclear(name, f"{text[:100]!r} is no number of snapshots", "10", table)
    return int(text)


def _unclear(name: str, reason: str, example: str, table: str) -> RefusedError:
    return RefusedError(
        f"{name}: {reason}",
        table=table,
        next_step=f"set the option to a value such as '{example}', or reset it",
    )
