"""By how much Java and ORC's library for C++ differ about the offset of a time zone, long ago.

A stripe holds timestamps without a time zone as instants, by the offsets that the Java of its writer knows. Readers add
the offsets that they know. Java takes today's standard offset for all times before 1900, and afterwards those of the tz
database. The library for C++ takes those of the database, but before the first transition of a zone the first standard
offset in its file (``findAncientVariant`` of its Timezone.cc). Zones that the database has merged with others, which
``zone1970.tab`` leaves out, have another past before 1970 in other releases.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final
from zoneinfo import TZPATH, ZoneInfo

import numpy as np

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = (date(1, 1, 2) - _EPOCH.date()).days
_1900, _STEADY, _TODAY = ((date(year, 1, 1) - _EPOCH.date()).days for year in (1900, 2015, 2026))
_STEP: Final = 28
# Near 1970, readers also differ about seconds, see ``near_epoch``.
_NEAR: Final = 3
_DAY: Final = 86_400
# Of a file of a time zone (RFC 9636): magic number, version, and six counts.
_HEADER: Final = struct.Struct(">4sc15x6l")


def java_less_cpp(days: Any, zone: ZoneInfo) -> dict[int, int | None]:
    """For the days on which they may differ: the seconds by which Java is ahead, ``None`` if that is not certain.

    days : counted from 1970 on, in an array of NumPy, in any order.
    """
    beginning = _beginning(zone)
    if beginning is None:
        return dict.fromkeys(np.unique(days).tolist())
    # Some zones begin after 1970, in Antarctica.
    certain = max(0, beginning[0] or 0) // _DAY + 2
    return {day: ahead for day in np.unique(days[days < certain]).tolist() if (ahead := _ahead(day, zone)) != 0}


@cache
def _ahead(day: int, zone: ZoneInfo) -> int | None:
    beginning = _beginning(zone)
    if beginning is None or (day < 0 and zone.key not in _with_own_past() and beginning[0] is not None):
        return None
    # Offsets change within a day, and a day of the clock is not one of UTC.
    near = [max(day + more, _FIRST) for more in (-1, 0, 1, 2)]
    found, *others = {_in_java(each, zone) - _in_cpp(each, zone, *beginning) for each in near}
    if others or (found and day > -_NEAR) or (day <= _1900 and not _is_steady(zone)):
        return None
    return round(found.total_seconds())


@cache
def _is_steady(zone: ZoneInfo) -> bool:
    """Whether the Java of a reader may be of any of these years, and has the same standard offset. Where summer time is
    the standard, as in Dublin, Java takes that of the winter.
    """
    days = range(_STEADY, _TODAY + 1, _STEP)
    summers = (_at(day, zone).dst() or timedelta() for day in days)
    return len({_standard(day, zone) for day in days}) == 1 and min(summers) >= timedelta()


def _in_java(day: int, zone: ZoneInfo) -> timedelta:
    if day >= _1900:
        return _offset(day, zone)
    return _standard(_TODAY, zone)


def _standard(day: int, zone: ZoneInfo) -> timedelta:
    return _offset(day, zone) - (_at(day, zone).dst() or timedelta())


def _in_cpp(day: int, zone: ZoneInfo, transition: int | None, before: timedelta) -> timedelta:
    offset = _offset(day, zone)
    return before if transition is None or day * _DAY - offset.total_seconds() <= transition else offset


def _offset(day: int, zone: ZoneInfo) -> timedelta:
    return _at(day, zone).utcoffset() or timedelta()


def _at(day: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(days=day)).replace(tzinfo=zone)


@cache
def _beginning(zone: ZoneInfo) -> tuple[int | None, timedelta] | None:
    """The first transition, in seconds, if there is one, and the offset before it; ``None`` if no file says so."""
    path = _file(zone.key)
    if path is None:
        return None
    data, start, width = path.read_bytes(), 0, 4
    _, version, *counts = _HEADER.unpack_from(data)
    if version >= b"2":  # the same again follows, with times of 64 bits
        start, width = _HEADER.size + _size(counts, width), 8
        _, _, *counts = _HEADER.unpack_from(data, start)
    times, types = counts[3:5]
    at = start + _HEADER.size
    transitions = struct.unpack_from(f">{times}{'q' if width == 8 else 'l'}", data, at)
    used = data[at + times * width :][:times]
    known = [*struct.iter_unpack(">l?B", data[at + times * (width + 1) :][: types * 6])]
    before = next((number for number in used if not known[number][1]), 0)
    return transitions[0] if times else None, timedelta(seconds=known[before][0])


def _size(counts: list[int], width: int) -> int:
    of_utc, of_standard, leaps, times, types, letters = counts
    return times * (width + 1) + types * 6 + letters + leaps * (width + 4) + of_standard + of_utc


def _file(name: str) -> Path | None:
    found = (Path(folder) / name for folder in TZPATH)
    return next((path for path in found if path.is_file()), None)


@cache
def _with_own_past() -> frozenset[str]:
    """The zones that the tz database of this machine has not merged with others; none if it does not say so."""
    path = _file("zone1970.tab")
    lines = [] if path is None else path.read_text().splitlines()
    return frozenset(line.split("\t")[2] for line in lines if line and not line.startswith("#"))
