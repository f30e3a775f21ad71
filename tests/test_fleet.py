"""A short form of benchmarks/bench_window.py: many tables, one window."""

from __future__ import annotations

import pytest
from research.fleet import Result, by_allocation, by_benefit, by_deadline, run

SHORT = {"tables": 30, "nights": 24}
AMPLE, SCARCE = 324.0, 60.0


@pytest.fixture(scope="module")
def scarce() -> Result:
    return run(by_allocation, budget=SCARCE, **SHORT)


def test_a_feasible_window_is_kept_and_so_is_every_deadline():
    found = run(by_allocation, budget=AMPLE, **SHORT)
    assert (found.over(AMPLE), found.starved, found.late_files) == (0, set(), 0)
    assert found.infeasible_on is None


def test_an_infeasible_window_is_said_on_the_first_night(scarce):
    assert scarce.infeasible_on == 0
    assert scarce.alert.startswith("Deadlines until")
    assert scarce.over(SCARCE) == 0
    assert scarce.lost == 0


def test_under_overload_more_deadlines_are_met_than_by_the_plain_rules(scarce):
    others = [run(rule, budget=SCARCE, **SHORT) for rule in (by_benefit, by_deadline)]
    assert scarce.late_files < min(each.late_files for each in others)


def test_steps_that_take_far_longer_than_estimated_do_not_overrun_the_window():
    found = run(by_allocation, budget=AMPLE, slow=0.01, **SHORT)
    assert max(found.used) == AMPLE, "one was stopped at the very end"
    assert found.lost > 0
    assert (found.over(AMPLE), found.starved, found.late_files) == (0, set(), 0)
