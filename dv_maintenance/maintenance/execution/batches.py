"""Divide the steps of a run into batches. Each is committed before the next one begins, so a run that is killed loses
only the batch in progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.maintenance.meter.prices import Prices

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.steps import PlanStep

# Seconds of work in a batch.
_SECONDS: Final = 300.0
# A run with this many rewrites is divided into this many batches, however fast it is.
_MANY: Final = 10
_PARTS: Final = 5
# A batch lasts at least this many times as long as a commit, if commits are slow: on a table of a million files, or one
# with a vector index that is retrained, reading back and indexing may take longer than the rewrites.
_PER_COMMIT: Final = 4
_SLOW_COMMIT_SECONDS: Final = 1.0

# An estimate for any table: what the first batch does corrects it.
_PRICES: Final = Prices()


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a run, estimated at first and measured from its first batch on.

    slots : tasks that the engine runs at the same time; 1 if unknown.
    work : estimated CPU seconds of the rewrites done so far.
    seconds : what they took.
    commit_seconds : time of the last commit, with reading it back.
    """

    slots: int = 1
    work: float = 0.0
    seconds: float = 0.0
    commit_seconds: float = 0.0

    @property
    def seconds_per_work(self) -> float:
        return self.seconds / self.work if self.work and self.seconds else 1 / self.slots

    def after(self, work: float, seconds: float, commit_seconds: float) -> Pace:
        """The pace after one more batch."""
        return replace(self, work=self.work + work, seconds=self.seconds + seconds, commit_seconds=commit_seconds)


def work_of(step: PlanStep) -> float:
    """Estimated CPU seconds of a step: it decodes what it reads, and encodes what it writes."""
    read = step.cost.bytes_read + _PRICES.open_bytes * step.cost.files_read
    return _PRICES.decoding(read) + _PRICES.encoding(step.cost.bytes_written)


def removals_first(steps: Sequence[PlanStep]) -> list[PlanStep]:
    """The steps in their order, those before the others that read nothing."""
    return sorted(steps, key=lambda step: step.action == "rewrite")


def largest_share(steps: Sequence[PlanStep]) -> float:
    """How much work of a run may be in one batch, so that a crash costs about a fifth of a run of many rewrites."""
    many = sum(step.action == "rewrite" for step in steps) >= _MANY
    return sum(map(work_of, steps)) / _PARTS if many else float("inf")


def next_batch(steps: Sequence[PlanStep], pace: Pace, share: float) -> int:
    """How many of the ``steps``, from the first, are the next batch. At least one, if there are any.

    It has about five minutes of work, but not more than ``share``: the end is where it is closest to the smaller of the
    two. Whatever the limits, it has as many rewrites as the engine has slots, so that none of these is idle; and no
    step that only removes files waits for another batch.
    """
    most = min(_SECONDS / pace.seconds_per_work, share)
    if pace.commit_seconds > _SLOW_COMMIT_SECONDS:
        most = max(most, _PER_COMMIT * pace.commit_seconds / pace.seconds_per_work)
    rewrites, done = 0, 0.0
    for count, step in enumerate(steps):
        if step.action != "rewrite":
            continue
        more = work_of(step)
        if rewrites >= max(pace.slots, 1) and done + more / 2 > most:
            return count
        rewrites += 1
        done += more
    return len(steps)
