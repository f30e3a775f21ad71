"""Batches of a run: nothing is lost or moved, no batch is too large, and none leaves slots idle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.maintenance.execution.batches import Pace, largest_share, next_batch, removals_first, work_of
from dv_maintenance.maintenance.planning.steps import Action, Cost, Effect, PlanStep

GB = 10**9
SIZES = st.integers(0, 50 * GB)


def step(number: int, size: int, action: Action = "rewrite") -> PlanStep:
    read = size if action == "rewrite" else 0
    effect = Effect(files_after=1, dvs_removed=1, rows_purged=1, live_rows=None, bytes_after=read)
    return PlanStep(f"step-{number}", action, "", "", (), effect, Cost(read, read, int(action == "rewrite")))


def steps_of(*sizes: int) -> list[PlanStep]:
    return [step(number, size) for number, size in enumerate(sizes)]


def divided(steps: list[PlanStep], pace: Pace, real: float | None = None, commit: float = 0.0) -> list[list[PlanStep]]:
    """All batches of a run whose work takes ``real`` seconds per estimated CPU second, and its commits ``commit``."""
    left, share = removals_first(steps), largest_share(steps)
    found = []
    while left:
        count = next_batch(left, pace, share)
        found.append(left[:count])
        left = left[count:]
        work = sum(map(work_of, found[-1]))
        pace = pace.after(work, work * (1 / pace.slots if real is None else real), commit)
    return found


def work(batch: list[PlanStep]) -> float:
    return sum(map(work_of, batch))


@given(
    sizes=st.lists(st.tuples(SIZES, st.sampled_from(["rewrite", "rewrite", "remove"])), max_size=40),
    slots=st.integers(1, 8),
    real=st.none() | st.floats(1e-3, 1e3),
)
@settings(max_examples=examples(60))
def test_every_step_is_in_one_batch_of_a_bounded_size(
    sizes: list[tuple[int, Action]], slots: int, real: float | None
) -> None:
    steps = [step(number, size, action) for number, (size, action) in enumerate(sizes)]
    batches = divided(steps, Pace(slots), real)
    assert [each for batch in batches for each in batch] == removals_first(steps)
    assert all(each.action == "rewrite" for batch in batches[1:] for each in batch)
    for batch in batches[:-1]:
        assert sum(each.action == "rewrite" for each in batch) >= slots
    per_work = 1 / slots
    for number, batch in enumerate(batches):
        most = min(300 / per_work, largest_share(steps))
        rewrites = [each for each in batch if each.action == "rewrite"]
        # The last step may pass the limit by half of itself.
        assert len(rewrites) <= slots or work(rewrites) - work_of(rewrites[-1]) / 2 <= most * 1.000001, number
        per_work = 1 / slots if real is None else real


def test_what_only_removes_files_comes_first_and_keeps_its_order() -> None:
    steps = [step(0, 5), step(1, 5, "remove"), step(2, 5), step(3, 5, "remove")]
    assert [each.id for each in removals_first(steps)] == ["step-1", "step-3", "step-0", "step-2"]
    only = [step(number, 5, "remove") for number in range(30)]
    assert divided(only, Pace()) == [only]


@pytest.mark.parametrize("size", [0, 1000, GB // 10])
@pytest.mark.parametrize(
    ("rewrites", "slots", "expected"),
    [
        (1, 2, [1]),
        (9, 2, [9]),
        (10, 1, [2, 2, 2, 2, 2]),
        (10, 2, [2, 2, 2, 2, 2]),
        (10, 4, [4, 4, 2]),
        (10, 16, [10]),
        (11, 2, [2, 2, 2, 2, 2, 1]),
        (40, 4, [8, 8, 8, 8, 8]),
    ],
)
def test_equal_steps(rewrites: int, slots: int, expected: list[int], size: int) -> None:
    assert [len(batch) for batch in divided(steps_of(*[size] * rewrites), Pace(slots))] == expected


@given(sizes=st.lists(SIZES, min_size=10, max_size=60))
@settings(max_examples=examples(60))
def test_a_crash_costs_little_more_than_a_fifth(sizes: list[int]) -> None:
    """At most a fifth of the work, and half of the step that ends the batch."""
    steps = steps_of(*sizes)
    for batch in divided(steps, Pace()):
        assert len(batch) == 1 or work(batch) <= work(steps) / 5 + work_of(batch[-1]) / 2 + 1e-6


def test_five_minutes_of_work() -> None:
    """6.7 CPU seconds per GB: on four slots five minutes are 179 GB."""
    steps = steps_of(*[GB] * 2000)
    assert [len(batch) for batch in divided(steps, Pace(4))][:3] == [179, 179, 179]
    # A few large steps, too.
    assert [len(batch) for batch in divided(steps_of(*[100 * GB] * 8), Pace(4))] == [4, 4]
    assert [len(batch) for batch in divided(steps_of(*[100 * GB] * 3), Pace(1))] == [1, 1, 1]


def test_the_first_batch_corrects_the_estimate() -> None:
    steps = steps_of(*[GB] * 2000)
    slow = [len(batch) for batch in divided(steps, Pace(4), real=1.0)]
    fast = [len(batch) for batch in divided(steps, Pace(4), real=0.125)]
    assert slow[:3] == [179, 45, 45]
    assert fast[:3] == [179, 357, 357]


def test_slow_commits_make_larger_batches() -> None:
    """A commit that takes a minute gets four minutes of work, one of half a second none."""
    steps = steps_of(*[GB] * 100)
    assert [len(batch) for batch in divided(steps, Pace(1), real=1.0, commit=60.0)] == [20, 36, 36, 8]
    assert [len(batch) for batch in divided(steps, Pace(1), real=1.0, commit=0.5)] == [20] * 5


def test_a_pace_without_any_work_keeps_the_first_guess() -> None:
    assert Pace(4).after(0.0, 0.0, 3.0) == replace(Pace(4), commit_seconds=3.0)
    assert Pace(4).after(0.0, 0.0, 3.0).seconds_per_work == 0.25
