"""Rounds: order, time, and tables that hang."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from dv_maintenance.errors import StorageError
from dv_maintenance.service import budget
from dv_maintenance.service.budget import NOT_REACHED, NotReached, within_budget


def probe(table: object) -> str:
    return f"probed {table}"


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_answers_and_errors_in_order() -> None:
    def look(number: int, probed: str) -> int:
        assert probed == f"probed {number}"
        time.sleep(0.001 * (20 - number))
        return 1 // (number - 3)

    found = list(within_budget(range(20), probe, look, budget=60, patience=60))
    assert [number for number, _ in found] == list(range(20))
    assert [type(answer) for _, answer in found].count(ZeroDivisionError) == 1
    assert found[4] == (4, 1)


def test_one_that_hangs_stops_no_other(released: threading.Event) -> None:
    found = dict(
        within_budget("abcdefghijkl", probe, lambda name, _: name == "a" and released.wait(), budget=0.5, patience=0.5)
    )
    assert isinstance(found["a"], StorageError)
    assert "no answer within 0.5 seconds" in str(found["a"])
    assert all(found[name] is False for name in "bcdefghijkl")


def test_without_time_left_nothing_but_the_first_is_started() -> None:
    found = list(within_budget("abc", probe, lambda name, _: name.upper(), budget=-1, patience=60))
    assert found[0] == ("a", "A")
    assert [answer for _, answer in found[1:]] == [NOT_REACHED] * 2


def test_one_that_started_late_has_not_failed(released: threading.Event) -> None:
    order = count()

    def look(_: str, __: str) -> bool:
        # Eight at a time: the ninth, whichever that is, starts when these end.
        return released.wait(0.4 if next(order) < 8 else None)

    found = dict(within_budget("abcdefghi", probe, look, budget=0.8, patience=0.1))
    assert Counter(map(type, found.values())) == {bool: 8, NotReached: 1}


def test_a_probe_that_hangs_or_fails(released: threading.Event) -> None:
    def ask(name: str) -> str:
        if name == "c":
            raise StorageError("gone")
        if name == "b":
            released.wait()
        return name

    found = dict(within_budget("abcde", ask, lambda _, probed: probed, budget=0.3, patience=0.2))
    assert "no answer within 0.3 seconds" in str(found["b"])
    assert "gone" in str(found["c"])
    assert [found[name] for name in "ade"] == ["a", "d", "e"]


def test_more_probes_than_calls_at_once() -> None:
    """Probes only wait; calls may hold whole tables in memory."""
    together = threading.Barrier(16)
    running, most, lock = 0, 0, threading.Lock()

    def look(_: int, __: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    found = list(within_budget(range(16), lambda _: together.wait(30), look, budget=60, patience=60))
    assert all(answer is None for _, answer in found)
    assert most <= 8


def test_tables_are_not_probed_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_AHEAD", 20)
    probed: list[int] = []
    found = within_budget(range(200), probed.append, lambda *_: time.sleep(0.1), budget=0.25, patience=60)
    reached = [number for number, answer in found if not isinstance(answer, NotReached)]
    assert len(reached) <= len(probed) <= len(reached) + 20


def test_probes_that_fail_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_AHEAD", 2)

    def ask(number: int) -> int:
        return 1 // (number % 5)

    found = [answer for _, answer in within_budget(range(20), ask, lambda *_: 7, budget=60, patience=60)]
    assert [type(answer) for answer in found] == [ZeroDivisionError, int, int, int, int] * 4
