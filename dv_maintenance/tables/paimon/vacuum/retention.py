"""How long a table keeps its snapshots and changelogs, and how many. Its options are read as Paimon reads them.

Source: CoreOptions and TimeUtils of Paimon 2.1; changelogs checked by running 1.4.2. An option that cannot be parsed is
refused, because a guess might delete too much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.reach.retention import applied_retention
from dv_maintenance.units import DAY, limited

ORPHAN_AGE: Final = DAY
"""Minimum milliseconds for which a file without a snapshot is kept, as in Paimon: a writer may take that long."""

_TIME: Final = "snapshot.time-retained"
_LEAST: Final = "snapshot.num-retained.min"
_MOST: Final = "snapshot.num-retained.max"
_CHANGELOG_MOST: Final = "changelog.num-retained.max"
_PRODUCER: Final = "changelog-producer"
_PRODUCERS: Final = ("none", "input", "full-compaction", "lookup")
_HOUR: Final = 3_600_000
_DEFAULT_LEAST: Final = 10
_UNLIMITED: Final = 2**31 - 1

# Nanoseconds per unit. Units are case-insensitive, and a duration has exactly one.
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
class ChangelogRetention:
    """How long the changelogs of expired snapshots are kept.

    kept_for : milliseconds since the snapshot was committed.
    least, most : how many of the newest ids are kept at least and at most, including those of snapshots; ``most`` is
        ``None`` without a limit.
    alone_consumed : whether consumers keep only changelogs, not snapshots.
    """

    kept_for: int
    least: int
    most: int | None
    alone_consumed: bool = False


@dataclass(frozen=True, slots=True)
class Retention:
    """How long snapshots and files are kept.

    kept_for : milliseconds since the snapshot's successor was committed.
    orphan_age : milliseconds that a file without a snapshot is kept.
    least : how many of the newest snapshots are kept at least.
    most : how many of the newest snapshots are kept at most; ``None`` without a limit.
    changelogs : ``None`` if changelogs are deleted with their snapshots.
    """

    kept_for: int
    orphan_age: int
    least: int
    most: int | None
    changelogs: ChangelogRetention | None = None


def duration_millis(text: str) -> int:
    """Milliseconds of a duration, spelled as in Paimon's options: ``1 h``, ``30min``, ``86400000``. Fractions are
    rounded up.

    Raises
    ------
    ValueError : it is not a duration, has two units (``1h30m``), or is too long.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([a-zµ]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text[:100]!r} is not a duration such as '1 h', '7 d' or '30 min'")
    return limited(-(-int(match[1]) * _UNITS[match[2]] // 1_000_000), text)


def retention_of(options: Mapping[str, str], table: str, requested: int | None, *, allow_short: bool) -> Retention:
    """The retention of a vacuum.

    requested : milliseconds. Replaces ``snapshot.time-retained``. The caller relies on this time, so
        ``snapshot.num-retained.max`` is ignored. ``snapshot.num-retained.min`` and the retention of changelogs still
        apply.
    allow_short : accept a request that is shorter than the table's own retention.

    Raises
    ------
    UsageError : ``requested`` is negative.
    RefusedError : ``requested`` is shorter than the table's own retention, or an option is invalid.
    """
    own = _duration(options, _TIME, _HOUR, table)
    least = _count(options, _LEAST, _DEFAULT_LEAST, table)
    most = _count(options, _MOST, _UNLIMITED, table)
    if most < least:
        raise _unclear(_MOST, f"{most} is less than the {least} of {_LEAST}", str(least), table)
    changelogs = changelog_retention(options, table)
    kept_for = applied_retention(
        requested,
        own,
        allow_short=allow_short,
        source=_TIME if _TIME in options else "Paimon's default",
        loses="readers and time travel would lose snapshots that they still read",
        lower=f"{_TIME} of the table",
        table=table,
    )
    if requested is None:
        return Retention(own, max(ORPHAN_AGE, own), least, _limit(most), changelogs)
    return Retention(kept_for, kept_for if allow_short else max(ORPHAN_AGE, kept_for), least, None, changelogs)


def changelog_retention(options: Mapping[str, str], table: str) -> ChangelogRetention | None:
    """The retention of changelogs; ``None`` if they do not outlive their snapshots.

    They do if one of their three options exceeds the snapshots' option, which is its default. Raises RefusedError.
    """
    own = _duration(options, _TIME, _HOUR, table)
    least = _count(options, _LEAST, _DEFAULT_LEAST, table)
    most = _count(options, _MOST, _UNLIMITED, table)
    kept_for = _duration(options, "changelog.time-retained", own, table)
    lower = _count(options, "changelog.num-retained.min", least, table)
    upper = _count(options, _CHANGELOG_MOST, most, table)
    alone = _flag(options, "consumer.changelog-only", table)
    if kept_for <= own and lower <= least and upper <= most:
        return None
    if upper < lower:
        raise _unclear(_CHANGELOG_MOST, f"{upper} is less than the minimum of {lower}", str(lower), table)
    produces_changelog(options, table)
    return ChangelogRetention(kept_for, lower, _limit(upper), alone)


def produces_changelog(options: Mapping[str, str], table: str) -> bool:
    """Whether changes are in changelog files. Otherwise, they are the rows that commits append. Raises RefusedError."""
    text = options.get(_PRODUCER, "none").strip().lower()
    if text not in _PRODUCERS:
        raise _unclear(_PRODUCER, f"{text[:100]!r} is not one of {', '.join(_PRODUCERS)}", "none", table)
    return text != "none"


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
        raise _unclear(name, f"{text[:100]!r} is not a number of snapshots", "10", table)
    return int(text)


def _flag(options: Mapping[str, str], name: str, table: str) -> bool:
    text = options.get(name, "false").strip().lower()
    if text not in {"true", "false"}:
        raise _unclear(name, f"{text[:100]!r} is neither true nor false", "false", table)
    return text == "true"


def _limit(most: int) -> int | None:
    return None if most == _UNLIMITED else most


def _unclear(name: str, reason: str, example: str, table: str) -> RefusedError:
    return RefusedError(
        f"{name}: {reason}",
        table=table,
        next_step=f"set the option to a value such as '{example}', or reset it",
    )
