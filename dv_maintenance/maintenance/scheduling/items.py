"""The work that wants to run, and how well its duration is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Before a run has finished anything, a step may take this many times its estimate.
_UNPROVEN: Final = 1.5
_MARGIN: Final = 1.15
# Short steps say little about long ones: these count at least that much of their estimate.
_FASTEST: Final = 0.25
# So many finished items replace the guess.
_ENOUGH: Final = 5


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A step of a table's plan, or several that run together.

    seconds : estimated duration.
    paid, cost : what the meter says: seconds of CPU that readers have paid, and that the work costs. Where thresholds
        decide instead of the meter, they are equal.
    deadline : when it must be committed at the latest, epoch milliseconds; ``None`` without one.
    since : when it became due, epoch milliseconds.
    files : that it replaces.
    """

    table: str
    id: str
    seconds: float
    paid: float
    cost: float
    deadline: int | None
    since: int
    files: int = 1

    @property
    def ripe(self) -> bool:
        """Whether readers have paid for it. Other work runs only because of its deadline."""
        return self.paid >= self.cost


@dataclass(frozen=True, slots=True)
class Reserve:
    """How long work takes in relation to its estimate, from what this run has finished.

    expected : the usual factor, with which a night is filled.
    worst : the factor that a step must have time for, or it does not start.
    """

    expected: float = 1.0
    worst: float = _UNPROVEN

    @classmethod
    def learnt(cls, finished: Sequence[tuple[float, float]]) -> Reserve:
        """From estimated and actual seconds of each finished item.

        The worst factor so far, and some more, replaces the guess of 1.5 once there are five. One item above it raises
        it at once. It is never below 1.
        """
        known = [(estimated, actual) for estimated, actual in finished if estimated > 0]
        if not known:
            return cls()
        worst = _MARGIN * max(actual / estimated for estimated, actual in known)
        # Total by total: short items, whose estimates are the worst, count little.
        expected = math.fsum(actual for _, actual in known) / math.fsum(estimated for estimated, _ in known)
        worst = worst if len(known) >= _ENOUGH else max(worst, _UNPROVEN)
        return cls(max(expected, _FASTEST), max(worst, 1.0))
