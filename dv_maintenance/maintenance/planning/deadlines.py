"""When deleted rows must be gone from storage, and until when each step towards that can wait.

A deleted row is gone only after three steps: a rewrite leaves it out of the live files, the retention of the old files
passes, and a vacuum deletes them. With a quarantine that vacuum only sets them aside: a later one deletes them. This
module only counts; ``maintenance.deadlines`` finds out what a table has still to erase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from dv_maintenance.units import DAY, day_of, format_duration

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.facts import Bools, Ints
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

NEVER: Final = int(np.iinfo(np.int64).max)
"""A time that does not come, epoch milliseconds."""

MARGIN: Final = 2 * DAY
"""What must be left when a purge is due: two nightly windows, milliseconds. One of them may be missed."""


@dataclass(frozen=True, slots=True, eq=False)
class Deadlines:
    """When deleted rows must be gone from each file, epoch milliseconds.

    purge_by : when the file must be rewritten at the latest; ``NEVER`` if it has no deleted rows.
    since : when the first of its rows were deleted.
    """

    purge_by: Ints
    since: Ints


@dataclass(frozen=True, slots=True)
class Erasure:
    """How long each step towards an erasure may take, milliseconds.

    erase_within : rows must be gone this long after their delete.
    retention : how long the files that a purge replaced are kept.
    vacuum_every : how long it takes at most until a vacuum finds them.
    quarantine : how long that vacuum sets them aside, and the next one needs to delete them; 0 without a quarantine.
    """

    erase_within: int
    retention: int
    vacuum_every: int
    quarantine: int = 0

    @property
    def after_purge(self) -> int:
        """The longest time from a purge until its old files are deleted."""
        return self.retention + self.vacuum_every + self.quarantine

    @property
    def purge_within(self) -> int:
        """The time from a delete until its rewrite must be committed. 0 if none could be early enough: every day that
        it comes later, the rows are gone a day later.
        """
        return max(self.erase_within - self.after_purge, 0)

    def purge_by(self, oldest_delete: Ints) -> Ints:
        """The last moment at which a rewrite must be committed, for each time of an oldest delete; epoch milliseconds.
        The margin is not part of it: begin earlier.
        """
        return np.asarray(oldest_delete, np.int64) + self.purge_within

    def vacuum_by(self, oldest_delete: Ints) -> Ints:
        """The last moment at which a vacuum must remove the old files; epoch milliseconds."""
        return np.asarray(oldest_delete, np.int64) + (self.erase_within - self.quarantine)

    def gone_by(self, oldest_delete: Ints) -> Ints:
        """The deadline itself, epoch milliseconds."""
        return np.asarray(oldest_delete, np.int64) + self.erase_within

    def of_files(self, oldest_delete: Ints, has_dv: Bools) -> Deadlines:
        """The deadlines of live files for a plan. ``oldest_delete``: of each file, meaningful where ``has_dv``."""
        return Deadlines(np.where(has_dv, self.purge_by(oldest_delete), NEVER), np.asarray(oldest_delete, np.int64))

    @property
    def problem(self) -> str | None:
        """Why no purge could ever be early enough, and what to change; ``None`` if there is time for one."""
        needed = self.after_purge + MARGIN
        if needed < self.erase_within:
            return None
        steps = {"retention": self.retention, "vacuum_every": self.vacuum_every, "quarantine": self.quarantine}
        named = ", ".join(f"{name} {format_duration(step)}" for name, step in steps.items() if step)
        shorter = ["turn the quarantine off"] if self.quarantine else []
        shorter.append(f"shorten {'the retention or ' if self.retention else ''}vacuum_every")
        return (
            f"erase_within {format_duration(self.erase_within)} can't be kept: {named} and a margin of "
            f"{format_duration(MARGIN)} take {format_duration(needed)}, even if rows are purged at once. Next: "
            f"{', '.join(shorter)}, or set erase_within above {format_duration(needed)}"
        )

    def sentence(self, oldest_delete: int, *, exact: bool = True) -> str:
        """The deadline of a purge, with its arithmetic. Not ``exact``: rows were deleted then or earlier.

        >>> day = 86_400_000
        >>> Erasure(30 * day, 7 * day, day).sentence(1795248115190)
        'must go by 13 Dec 2026: rows deleted on 21 Nov 2026; 30d - 7d retention - 1d vacuum'
        """
        by = day_of(oldest_delete + self.purge_within)
        quarantine = f" - {format_duration(self.quarantine)} quarantine" if self.quarantine else ""
        earlier = "" if exact else " or earlier"
        return (
            f"must go by {by}: rows deleted on {day_of(oldest_delete)}{earlier}; "
            f"{format_duration(self.erase_within)} - {format_duration(self.retention)} retention - "
            f"{format_duration(self.vacuum_every)} vacuum{quarantine}"
        )


def erasure_of(table: Table, snapshot: Snapshot, policy: Policy) -> Erasure | None:
    """The steps of an erasure under the retention in force: the policy's or, without one, the table's. ``None`` without
    ``erase_within``. Raises RefusedError if the table's property of the retention is invalid.
    """
    if policy.erase_within is None:
        return None
    return policy.erasure(table.retention(snapshot) if policy.retention is None else policy.retention)
