"""Rounds: order, time, and tables that hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from dv_maintenance.errors import StorageError
from dv_maintenance.service.budget import NOT_REACHED, NotReached, within_budget


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_answers_and_errors_in_order() -> None:
    def look(number: int) -> int:
        time.sleep(0.001 * (20 - number))
        return 1 // (number - 3)

    found = list(within_budget(range(20), look, budget=60, patience=60))
    assert [number for number, _ in found] == list(range(20))
    assert [type(answer) for _, answer in found].count(ZeroDivisionError) == 1
    assert found[4] == (4, 1)


def test_one_that_hangs_stops_no_other(released: threading.Event) -> None:
    found = dict(within_budget("abcdefghijkl", lambda name: name == "a" and released.wait(), budget=0.5, patience=0.5))
    assert isinstance(found["a"], StorageError)
    assert "no answer within 0.5 seconds" in str(found["a"])
    assert all(found[name] is False for name in "bcdefghijkl")


def test_without_time_left_nothing_but_the_first_is_started() -> None:
    found = list(within_budget("abc", str.upper, budget=-1, patience=60))
    assert found[0] == ("a", "A")
    assert [answer for _, answer in found[1:]] == [NOT_REACHED] * 2


def test_one_that_started_late_has_not_failed(released: threading.Event) -> None:
    def look(name: str) -> bool:
        # Eight at a time: the ninth starts when these end.
        return time.sleep(0.15) or True if name < "i" else released.wait()

    found = dict(within_budget("abcdefghi", look, budget=0.2, patience=0.1))
    assert [name for name, answer in found.items() if isinstance(answer, NotReached)] == ["i"]
