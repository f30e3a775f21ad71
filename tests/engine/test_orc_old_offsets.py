"""The days before 1970 on which Java and ORC's library for C++ may add different offsets. What they are was found with
Paimon's engine (``tests/judges/test_paimon_formats_judged.py::test_the_past_of_time_zones``).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo

import numpy as np
import pytest

from dv_maintenance.engine.orc import old_offsets
from dv_maintenance.engine.orc.old_offsets import differ


def day_of(year: int, month: int = 7, day: int = 15) -> int:
    return (date(year, month, day) - date(1970, 1, 1)).days


def test_the_day_of_the_first_transition() -> None:
    """It is no reason by itself: 1883-11-18 in New York, 1893-04-01 in Berlin."""
    for zone, first in (("America/New_York", day_of(1883, 11, 18)), ("Europe/Berlin", day_of(1893, 4, 1))):
        assert differ(np.arange(first - 5, first + 5), ZoneInfo(zone)) is None


@pytest.mark.parametrize(
    ("zone", "year", "differs"),
    [
        ("America/New_York", 1, False),
        ("America/New_York", 1883, False),
        ("America/New_York", 1943, False),
        ("Asia/Kolkata", 1, True),
        ("Asia/Kolkata", 1899, True),
        ("Asia/Kolkata", 1900, False),
        ("Asia/Shanghai", 1899, False),
        ("Asia/Shanghai", 1900, True),
        ("Asia/Shanghai", 1901, False),
        ("Asia/Manila", 1700, True),
        ("Antarctica/Davis", 1950, True),
        ("Europe/Lisbon", 1899, True),
        ("Etc/GMT+5", 1, False),
    ],
)
def test_years_in_which_they_differ(monkeypatch: pytest.MonkeyPatch, zone: str, year: int, differs: bool) -> None:
    monkeypatch.setattr(old_offsets, "_with_own_past", lambda: {zone} if "/GMT" not in zone else set())
    old_offsets._agree.cache_clear()
    assert (differ(np.array([day_of(year)]), ZoneInfo(zone)) is not None) == differs
    assert differ(np.array([day_of(1980), day_of(2026)]), ZoneInfo(zone)) is None


def test_zones_without_a_past_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tz database says which they are, or else nothing before 1970 is certain; nothing at all without its files."""
    (tmp_path / "zone1970.tab").write_text("# comment\nBE,LU,NL\t+5050+00420\tEurope/Brussels\nUS\t+1\tX/Y\tnote\n")
    cached = old_offsets._with_own_past, old_offsets._agree, old_offsets._beginning
    zones = [ZoneInfo(f"Europe/{each}") for each in ("Brussels", "Amsterdam")]
    found = []
    for folders in ([str(tmp_path), *TZPATH], [], [str(tmp_path)]):
        monkeypatch.setattr(old_offsets, "TZPATH", folders)
        for each in cached:
            each.cache_clear()
        found.append([differ(np.array([day_of(year)]), zone) is None for zone in zones for year in (1950, 2026)])
    for each in cached:
        each.cache_clear()
    assert found == [[True, True, False, True], [False] * 4, [False] * 4]
