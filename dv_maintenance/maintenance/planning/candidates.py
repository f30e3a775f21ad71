"""Which files are worth rewriting, and why: by the thresholds of a policy, or all that have a deletion vector (DV)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from dv_maintenance.maintenance.planning.deadlines import Deadlines
from dv_maintenance.maintenance.planning.facts import FileFacts, Ints
from dv_maintenance.maintenance.planning.steps import Why

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.policy import Policy

Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]

KEEP: Final = 0
WHYS: Final[tuple[Why, ...]] = (
    "deleted_ratio",
    "unknown_rows",
    "deletion_vector",
    "small",
    "wholly_deleted",
    "paid",
    "along",
    "deadline",
)
RATIO, UNKNOWN, DV, SMALL, EMPTY, PAID, ALONG, DEADLINE = range(1, len(WHYS) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Metering:
    """What the meter says of each file; see ``meter.measure``.

    paid : seconds of CPU that readers have paid so far.
    cost : seconds of CPU that a rewrite costs.
    since : from when on they paid, epoch milliseconds.
    ripe_at : when they will have paid for a rewrite, epoch milliseconds; the largest integer if never.
    """

    paid: Floats
    cost: Floats
    since: Ints
    ripe_at: Ints

    @property
    def share(self) -> Floats:
        """What readers have paid, as a share of what a rewrite costs."""
        return self.paid / np.maximum(self.cost, 1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """One entry per file of the snapshot.

    why : a code of WHYS, one-based; ``KEEP``: the file stays as it is.
    metering : ``None`` if thresholds decide.
    deadlines : ``None`` without ``Policy.erase_within``.
    """

    why: Codes
    metering: Metering | None = None
    deadlines: Deadlines | None = None


def every_dv(facts: FileFacts) -> Candidates:
    """Every file with a DV."""
    return Candidates(mark_empty(facts, np.where(facts.has_dv, DV, KEEP).astype(np.int8)))


def by_ratio(facts: FileFacts, policy: Policy, smallest: int) -> Candidates:
    """By the thresholds of a policy. Later rules win.

    smallest : a file with fewer live bytes is small.
    """
    why = np.full(len(facts), KEEP, np.int8)
    why[facts.live_bytes < smallest] = SMALL
    rows = np.flatnonzero(facts.has_dv)
    known = facts.known[rows]
    # Strictly greater, as Delta's maxDeletedRowsRatio.
    ratio = facts.deleted[rows] / np.maximum(facts.physical[rows], 1)
    why[rows[known & (ratio > policy.max_deleted_ratio)]] = RATIO
    why[rows[~known]] = UNKNOWN
    return Candidates(mark_empty(facts, why))


def mark_empty(facts: FileFacts, why: Codes) -> Codes:
    """The same codes, with those of wholly deleted files replaced: they are removed without being read.

    Only with a DV: writers need not record row counts of files without one, so these never justify dropping data.
    """
    rows = np.flatnonzero(facts.has_dv)
    physical = facts.physical[rows]
    found = why.copy()
    found[rows[facts.known[rows] & (physical > 0) & (facts.deleted[rows] == physical)]] = EMPTY
    return found
