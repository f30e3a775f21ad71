"""Rounds: order, time, and tables that hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from dv_maintenance.dagster.ranges import merged
from dv_maintenance.dagster.rounds import NOT_REACHED, NotReached, go_round
from dv_maintenance.errors import StorageError


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_answers_and_errors_in_order() -> None:
    def look(number: int) -> int:
        time.sleep(0.001 * (20 - number))
        return 1 // (number - 3)

    found = list(go_round(range(20), look, budget=60, patience=60))
    assert [number for number, _ in found] == list(range(20))
    assert [type(answer) for _, answer in found].count(ZeroDivisionError) == 1
    assert found[4] == (4, 1)


def test_one_that_hangs_stops_no_other(released: threading.Event) -> None:
    found = dict(go_round("abcdefghijkl", lambda name: name == "a" and released.wait(), budget=0.5, patience=0.5))
    assert isinstance(found["a"], StorageError)
    assert "no answer within 0.5 seconds" in str(found["a"])
    assert all(found[name] is False for name in "bcdefghijkl")


def test_without_time_left_nothing_but_the_first_is_started() -> None:
    found = list(go_round("abc", str.upper, budget=-1, patience=60))
    assert found[0] == ("a", "A")
    assert [answer for _, answer in found[1:]] == [NOT_REACHED] * 2


def test_one_that_started_late_has_not_failed(released: threading.Event) -> None:
    def look(name: str) -> bool:
        # Eight at a time: the ninth starts when these end.
        return time.sleep(0.15) or True if name < "i" else released.wait()

    found = dict(go_round("abcdefghi", look, budget=0.2, patience=0.1))
    assert [name for name, answer in found.items() if isinstance(answer, NotReached)] == ["i"]


def test_ranges_pass_over_short_gaps_only() -> None:
    order = [f"{number:02}" for number in range(40)]
    assert merged(order, ["00", "01", "03", "11", "20", "39"]) == [(4, "00", "11"), (1, "20", "20"), (1, "39", "39")]
    assert merged(order, []) == []
    assert merged(order, order) == [(40, "00", "39")]
