"""The days before 1970 on which Java and ORC's library for C++ add different offsets. Which they are was found with
Paimon's engine (``tests/judges/test_paimon_formats_judged.py::test_the_past_of_time_zones``).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import TZPATH, ZoneInfo

import numpy as np
import pytest

from dv_maintenance.engine.orc import old_offsets
from dv_maintenance.engine.orc.old_offsets import java_less_cpp


def day_of(year: int, month: int = 7, day: int = 15) -> int:
    return (date(year, month, day) - date(1970, 1, 1)).days


def found(zone: str, *days: int) -> dict[int, Any]:
    return java_less_cpp(np.array(days), ZoneInfo(zone))


def test_the_day_of_the_first_transition() -> None:
    """It is no reason by itself: 1883-11-18 in New York, 1893-04-01 in Berlin."""
    for zone, first in (("America/New_York", day_of(1883, 11, 18)), ("Europe/Berlin", day_of(1893, 4, 1))):
        assert found(zone, *range(first - 5, first + 5)) == {}


@pytest.mark.parametrize(
    ("zone", "year", "ahead"),
    [
        ("America/New_York", 1, {}),
        ("America/New_York", 1883, {}),
        ("America/New_York", 1943, {}),
        ("Asia/Kolkata", 1, 19800 - 21200),
        ("Asia/Kolkata", 1899, 19800 - 19270),
        ("Asia/Kolkata", 1900, {}),
        ("Asia/Shanghai", 1899, {}),
        ("Asia/Shanghai", 1900, 29143 - 28800),
        ("Asia/Shanghai", 1901, {}),
        ("Asia/Manila", 1700, 28800 - 29032),
        ("Antarctica/Davis", 1950, -25200),
        ("Europe/Lisbon", 1899, 2205),
        ("Asia/Almaty", 1899, None),  # its standard offset is another one since 2024
        ("Europe/Dublin", 1899, None),  # its standard is that of the summer
        ("Etc/GMT+5", 1, {}),
    ],
)
def test_years_in_which_they_differ(monkeypatch: pytest.MonkeyPatch, zone: str, year: int, ahead: Any) -> None:
    monkeypatch.setattr(old_offsets, "_with_own_past", lambda: {zone} if "/GMT" not in zone else set())
    old_offsets._ahead.cache_clear()
    assert found(zone, day_of(year)) == (ahead if ahead == {} else {day_of(year): ahead})
    assert found(zone, day_of(1980), day_of(2026)) == {}


def test_the_day_on_which_the_difference_changes() -> None:
    changes = day_of(1900, 1, 1)
    known = found("Asia/Kolkata", *range(changes - 5, changes + 5))
    assert [known.get(changes + more, 0) for more in (-3, -2, -1, 0, 1, 2)] == [530, None, None, None, 0, 0]


def test_zones_without_a_past_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tz database says which they are, or else nothing before 1970 is certain; nothing at all without its files."""
    (tmp_path / "zone1970.tab").write_text("# comment\nBE,LU,NL\t+5050+00420\tEurope/Brussels\nUS\t+1\tX/Y\tnote\n")
    cached = old_offsets._with_own_past, old_offsets._ahead, old_offsets._beginning
    certain = []
    for folders in ([str(tmp_path), *TZPATH], [], [str(tmp_path)]):
        monkeypatch.setattr(old_offsets, "TZPATH", folders)
        for each in cached:
            each.cache_clear()
        zones = [f"Europe/{each}" for each in ("Brussels", "Amsterdam")]
        certain.append([not found(zone, day_of(year)) for zone in zones for year in (1950, 2026)])
    for each in cached:
        each.cache_clear()
    assert certain == [[True, True, False, True], [False] * 4, [False] * 4]
