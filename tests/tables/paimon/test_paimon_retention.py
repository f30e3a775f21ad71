"""How long a table keeps snapshots: its options, in Paimon's words and no others."""

from __future__ import annotations

import pytest
from support.paimon_lake import DAY, HOUR

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.tables.paimon.vacuum.retention import (
    ChangelogRetention,
    Retention,
    changelog_retention,
    duration_millis,
    retention_of,
)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1 h", HOUR),
        ("1h", HOUR),
        (" 7 d ", 7 * DAY),
        ("30 min", 30 * 60_000),
        ("2 M", 2 * 60_000),
        ("15 minutes", 15 * 60_000),
        ("90 sec", 90_000),
        ("1500", 1500),
        ("10ms", 10),
        ("1 ns", 1),
        ("1001 micros", 2),
        ("3 DAYS", 3 * DAY),
        ("0 s", 0),
    ],
)
def test_durations(text: str, millis: int) -> None:
    assert duration_millis(text) == millis


@pytest.mark.parametrize(
    "text",
    ["", "h", "1h30m", "1 h 30 min", "1.5 h", "-1 h", "+1h", "1 week", "1e3", "PT1H", "١ h", "9" * 19],
)
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        duration_millis(text)


def test_defaults() -> None:
    assert retention_of({}, "t", None, allow_short=False) == Retention(HOUR, DAY, 10, None)


def test_options() -> None:
    options = {
        "snapshot.time-retained": "3 d",
        "snapshot.num-retained.min": "2",
        "snapshot.num-retained.max": "20",
    }
    assert retention_of(options, "t", None, allow_short=False) == Retention(3 * DAY, 3 * DAY, 2, 20)
    # Who names a time relies on it, whatever the greatest number is.
    assert retention_of(options, "t", 4 * DAY, allow_short=False) == Retention(4 * DAY, 4 * DAY, 2, None)
    assert retention_of(options, "t", 0, allow_short=True) == Retention(0, 0, 2, None)


def test_files_without_a_snapshot_are_kept_for_a_day() -> None:
    assert retention_of({}, "t", 2 * HOUR, allow_short=False).orphan_age == DAY
    assert retention_of({}, "t", None, allow_short=True).orphan_age == DAY
    assert retention_of({}, "t", 2 * HOUR, allow_short=True).orphan_age == 2 * HOUR


@pytest.mark.parametrize(
    ("options", "asked", "error"),
    [
        ({}, HOUR - 1, "shorter than the table's own 1h .Paimon's default"),
        ({"snapshot.time-retained": "2 d"}, DAY, "own 2d .snapshot.time-retained"),
        ({"snapshot.time-retained": "1h30m"}, None, "snapshot.time-retained: '1h30m' is not a duration"),
        ({"snapshot.num-retained.min": "0"}, None, "num-retained.min: '0' is not a number"),
        ({"snapshot.num-retained.min": "ten"}, 2 * HOUR, "'ten' is not a number"),
        ({"snapshot.num-retained.max": "5"}, None, "num-retained.max: 5 is less than the 10"),
        ({"snapshot.num-retained.max": "99999999999"}, None, "is not a number"),
    ],
)
def test_refused(options: dict[str, str], asked: int | None, error: str) -> None:
    with pytest.raises(RefusedError, match=error) as caught:
        retention_of(options, "t", asked, allow_short=False)
    assert caught.value.next_step


def test_negative() -> None:
    with pytest.raises(UsageError, match="negative"):
        retention_of({}, "t", -1, allow_short=True)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, None),
        ({"changelog.time-retained": "1 h"}, None),
        ({"changelog.time-retained": "2 h"}, ChangelogRetention(2 * HOUR, 10, None)),
        ({"changelog.time-retained": "2 h", "snapshot.time-retained": "2 h"}, None),
        ({"changelog.num-retained.min": "10"}, None),
        ({"changelog.num-retained.min": "11"}, ChangelogRetention(HOUR, 11, None)),
        ({"changelog.num-retained.max": "100"}, None),
        (
            {"changelog.num-retained.max": "100", "snapshot.num-retained.max": "50"},
            ChangelogRetention(HOUR, 10, 100),
        ),
        (
            {"changelog.time-retained": "2 h", "snapshot.num-retained.max": "50", "consumer.changelog-only": "TRUE"},
            ChangelogRetention(2 * HOUR, 10, 50, alone_consumed=True),
        ),
        ({"consumer.changelog-only": "true"}, None),
    ],
)
def test_changelogs_that_outlive_their_snapshots(options: dict[str, str], found: ChangelogRetention | None) -> None:
    assert changelog_retention(options, "t") == found
    # A retention that is asked for is about snapshots.
    assert retention_of(options, "t", 9 * DAY, allow_short=False).changelogs == found


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"changelog.time-retained": "long"}, "changelog.time-retained: 'long' is not a duration"),
        ({"changelog.num-retained.min": "0"}, "changelog.num-retained.min: '0' is not a number"),
        ({"changelog.num-retained.max": "many"}, "changelog.num-retained.max: 'many' is not a number"),
        (
            {"changelog.num-retained.max": "5", "changelog.time-retained": "2 h"},
            "changelog.num-retained.max: 5 is less than the minimum of 10",
        ),
        ({"consumer.changelog-only": "yes"}, "consumer.changelog-only: 'yes' is neither true nor false"),
        (
            {"changelog.time-retained": "2 h", "changelog-producer": "magic"},
            "changelog-producer: 'magic' is not one of",
        ),
    ],
)
def test_changelogs_refused(options: dict[str, str], error: str) -> None:
    with pytest.raises(RefusedError, match=error) as caught:
        retention_of(options, "t", None, allow_short=False)
    assert caught.value.next_step
