"""Ages as Lance's config spells them: those that pylance takes, and those that it takes for errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.tables.lance.vacuum.retention import parse_age

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("14days", 14 * 24 * HOUR),
        ("1w", 7 * 24 * HOUR),
        ("2weeks", 14 * 24 * HOUR),
        ("1M", round(30.44 * 24 * HOUR)),
        ("1y", round(365.25 * 24 * HOUR)),
        ("1h 30m", 90 * 60_000),
        ("1.5h", 90 * 60_000),
        ("1day2h", 26 * HOUR),
        (" 7d ", 7 * 24 * HOUR),
        ("01d", 24 * HOUR),
        ("3600s", HOUR),
        ("3600000ms", HOUR),
        ("0s", 0),
        ("5us", 0),
    ],
)
def test_ages(text: str, millis: int) -> None:
    assert parse_age(text) == millis


@pytest.mark.parametrize("text", ["", " ", "7", "-1d", "1D", "P7D", "d", "1d 2", "1 fortnight", "1d;", "1..5h", "٣d"])
def test_no_ages(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an? (age|unit)"):
        parse_age(text)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["d", "h", "min", "s", "ms"])), min_size=1, max_size=4)
)
def test_terms_add_up(terms: list[tuple[int, str]]) -> None:
    texts = [f"{number}{unit}" for number, unit in terms]
    assert parse_age(" ".join(texts)) == pytest.approx(sum(map(parse_age, texts)), abs=1)
