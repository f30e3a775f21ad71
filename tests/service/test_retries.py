from itertools import pairwise

import pytest

from dv_maintenance.service.retries import Failures, next_try

HOUR = 3_600_000
DAY = 24 * HOUR


def waits(*, refusal: str | None = None, damage: bool = False) -> list[int | None]:
    """Before the next run, hours by number of failures from 1 on."""
    tries = [next_try(Failures(count, 10, refusal, damage), None, 3) for count in range(1, 10)]
    return [None if each is None else max(0, each - 10) // HOUR for each in tries]


def test_errors_that_may_pass() -> None:
    assert waits() == [0, 0, 1, 2, 4, 8, 16, 24, 24]
    assert next_try(Failures(), None, 3) == 0


def test_refusals_wait_for_a_change() -> None:
    assert waits(refusal="It uses a feature.") == [None] * 9


def test_damage_waits_from_the_first_failure() -> None:
    found = waits(refusal="A file is missing.", damage=True)
    assert found == [1, 2, 4, 8, 16, 24, 24, 24, 24]
    assert all(one <= other for one, other in pairwise(wait for wait in found if wait is not None))


@pytest.mark.parametrize(("readable_since", "at_once"), [(None, False), (0, False), (10, False), (11, True)])
def test_damage_that_was_seen_to_be_gone(readable_since: int | None, at_once: bool) -> None:
    failures = Failures(5, 10, "A file is missing.", damage=True)
    assert (next_try(failures, readable_since, 3) == 0) is at_once


def test_any_number_of_failures() -> None:
    assert next_try(Failures(10**6, 10), None, 3) == 10 + DAY
