"""The frame of a commit, under rules that follow a script: what is tried again, what is given up, how long it waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import pytest

from dv_maintenance.errors import ConflictError, StorageError
from dv_maintenance.tables.publish import Overtaken, Published, Rules, publish

TAKEN = Overtaken("taken")


@dataclass(slots=True)
class Scripted(Rules[str]):
    """``steps``: what becomes of each call to create: the new version, or what is raised. ``made``: the own version, as
    the history shows it after the call of that number.
    """

    recognises: ClassVar[bool] = False
    steps: list[int | Exception]
    made: dict[int, int] = field(default_factory=dict)
    lookable: Callable[[int], bool] = lambda creates: True
    drafts: list[str | None] = field(default_factory=lambda: ["draft"] * 20)
    creates: int = 0
    looks: int = 0

    @property
    def table(self) -> str:
        return "memory"

    def catch_up(self) -> int | None:
        self.looks += 1
        if not self.lookable(self.creates):
            raise StorageError("no answer")
        return self.made.get(self.creates)

    def draft(self) -> str | None:
        return self.drafts.pop(0)

    def create(self, draft: str) -> int:
        step = self.steps[self.creates]
        self.creates += 1
        if isinstance(step, Exception):
            raise step
        return step

    def defeat(self, attempts: int) -> ConflictError:
        return ConflictError(f"lost {attempts}")


class Recognising(Scripted):
    recognises: ClassVar[bool] = True

    def failed(self, failure: StorageError, *, unknown: bool) -> StorageError:
        failure.done = "unknown" if unknown else "nothing"
        return failure


def lost() -> StorageError:
    return StorageError("the answer got lost")


def test_the_first_attempt_commits() -> None:
    rules = Scripted([7])
    assert publish(rules, max_attempts=3) == Published(7, 1, "draft")
    assert (rules.looks, rules.creates) == (1, 1)


def test_nothing_left_commits_nothing() -> None:
    assert publish(Scripted([TAKEN], drafts=["draft", None]), max_attempts=3) == Published(None, 1)


@pytest.mark.parametrize("kind", [Scripted, Recognising])
def test_a_lost_race_is_run_again_up_to_the_limit(kind: type[Scripted]) -> None:
    assert publish(kind([TAKEN, TAKEN, 9]), max_attempts=3).version == 9
    rules = kind([TAKEN] * 3)
    with pytest.raises(ConflictError, match="lost 3"):
        publish(rules, max_attempts=3)
    assert rules.creates == 3


@pytest.mark.parametrize("step", [lost(), TAKEN], ids=["lost answer", "repeated by the client"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_an_own_commit_is_recognised(step: Exception, attempts: int) -> None:
    rules = Recognising([step], made={1: 5})
    assert publish(rules, max_attempts=attempts) == Published(5, 1, "draft")
    assert rules.creates == 1


def test_a_failed_call_that_created_nothing_is_repeated() -> None:
    assert publish(Recognising([lost(), 5]), max_attempts=3) == Published(5, 2, "draft")


@pytest.mark.parametrize("step", [lost(), TAKEN], ids=["lost answer", "repeated by the client"])
def test_an_outcome_is_unknown_until_the_history_was_read(step: Exception) -> None:
    rules = Recognising([step], made={1: 5}, lookable=lambda creates: not creates)
    with pytest.raises(StorageError) as caught:
        publish(rules, max_attempts=3)
    assert caught.value.done == "unknown"
    assert rules.creates == 1


def test_a_history_that_is_gone_after_a_lost_answer_leaves_the_outcome_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ConflictError says that nothing was committed, and its catcher deletes the new files."""
    gone = ConflictError("the history is gone", done="nothing was committed")
    rules = Recognising([lost()])

    def cleaned_up(self: Recognising) -> None:
        if self.creates:
            raise gone

    monkeypatch.setattr(Recognising, "catch_up", cleaned_up)
    with pytest.raises(StorageError, match="the history is gone") as caught:
        publish(rules, max_attempts=3)
    assert caught.value.done == "unknown"
    assert rules.creates == 1


def test_a_history_that_was_read_says_that_nothing_was_committed() -> None:
    with pytest.raises(StorageError, match="got lost") as caught:
        publish(Recognising([lost(), lost()]), max_attempts=2)
    assert caught.value.done == "nothing"


def test_without_recognition_a_failed_call_is_never_repeated() -> None:
    rules = Scripted([lost(), 5])
    with pytest.raises(StorageError, match="got lost"):
        publish(rules, max_attempts=3)
    assert (rules.creates, rules.looks) == (1, 1)


def test_attempts_wait_for_random_times_that_grow_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    # Other threads of the test run may sleep, too.
    monkeypatch.setattr("dv_maintenance.tables.publish.time", SimpleNamespace(sleep=waits.append))
    for _ in range(50):
        with pytest.raises(ConflictError):
            publish(Scripted([TAKEN] * 6), max_attempts=6, first_pause=1, longest_pause=10)
    longest = [max(waits[number::5]) for number in range(5)]
    assert all(most <= limit for most, limit in zip(longest, (2, 4, 8, 10, 10), strict=True))
    assert longest[3] > 4
    assert len(set(waits)) == len(waits) == 250
