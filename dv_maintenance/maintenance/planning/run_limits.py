"""Which of the possible steps fit into the limits of a policy, which hold over a day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from dv_maintenance.files.arrays import int64s
from dv_maintenance.maintenance.planning.facts import Ints
from dv_maintenance.units import DAY, format_size

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.drafts import Draft
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.tables.file_log import FileLog

MOST_FILES: Final = 500_000
"""Files to replace in one plan: each is an object, and with them and their JSON a plan takes a gigabyte."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What runs of this package have read and replaced in a table within the last 24 hours.

    bytes : size of the files that they replaced.
    files : number of these files.
    tasks : commits, each with at least one rewrite task.
    """

    bytes: int = 0
    files: int = 0
    tasks: int = 0


NOTHING_SPENT = Spent()


def spent_in(log: FileLog, now: int) -> Spent:
    """What was spent in the 24 hours before ``now`` (epoch milliseconds) according to a log. A rewrite of unknown
    origin (Lance) counts: at worst, work waits for the next day.
    """
    ours = [
        number
        for number, commit in enumerate(log.commits)
        if commit.ours is not False and not commit.data_changed and now - DAY < commit.timestamp <= now
    ]
    if not ours:
        return NOTHING_SPENT
    changes = log.changes
    wanted = pc.is_in(changes["commit"], value_set=int64s(ours))
    chosen = changes.filter(wanted)
    removed = chosen.filter(pc.invert(chosen["added"]))
    kept = chosen.filter(chosen["added"])["path"]
    # A commit that moves a deletion vector removes and adds the same file, without reading it.
    removed = removed.filter(pc.invert(pc.is_in(removed["path"], value_set=kept)))
    commits = pc.count_distinct(removed["commit"]).as_py()
    return Spent(pc.sum(removed["size"]).as_py() or 0, removed.num_rows, commits)


def within_limits(
    drafts: list[Draft], policy: Policy, spent: Spent = NOTHING_SPENT, most: int | None = None
) -> tuple[list[Draft], dict[str, Ints]]:
    """The steps of this run, and the steps beyond the limits, by reason. A smaller step may take the place of one that
    does not fit. A file above ``max_bytes`` gets a run without other rewrites, once nothing else needs a rewrite and
    nothing was spent: otherwise no run would ever take it.

    most : files of the plan, regardless of the policy.
    """
    limits = {"max_bytes": policy.max_bytes, "max_files": policy.max_files, "max_tasks": policy.max_tasks}
    before = {"max_bytes": spent.bytes, "max_files": spent.files, "max_tasks": spent.tasks}
    used = dict(before)
    chosen: list[Draft] = []
    large: list[Draft] = []
    cut: dict[str, list[Ints]] = {}
    files = 0
    for draft in drafts:
        if is_above_limit(draft, policy):
            large.append(draft)
            continue
        takes = {
            "max_bytes": draft.bytes_read,
            "max_files": len(draft.rows),
            "max_tasks": int(draft.action == "rewrite"),
        }
        over = next(
            (
                name
                for name, limit in limits.items()
                if limit is not None and takes[name] and used[name] + takes[name] > limit
            ),
            None,
        )
        if over is None and most is not None and files and files + len(draft.rows) > most:
            reason = (
                f"beyond the {most:,} files of one plan, left for the next one; 'partitions' chooses which come first"
            )
            cut.setdefault(reason, []).append(draft.rows)
        elif over is None:
            chosen.append(draft)
            files += len(draft.rows)
            used = {name: used[name] + takes[name] for name in used}
        else:
            cut.setdefault(_beyond(over, limits[over] or 0, before[over]), []).append(draft.rows)
    room = policy.max_files is None or used["max_files"] < policy.max_files
    if large and room and not spent.bytes and not any(draft.action == "rewrite" for draft in chosen):
        chosen.append(large.pop(0))
    if large:
        reason = f"larger than max_bytes, {format_size(policy.max_bytes or 0)}: waits for a day without other work"
        cut[reason] = [draft.rows for draft in large]
    return chosen, {reason: np.concatenate(rows) for reason, rows in cut.items()}


def is_above_limit(draft: Draft, policy: Policy) -> bool:
    """Whether a step can't keep ``max_bytes``. Bins do, so it is a single file's."""
    return policy.max_bytes is not None and draft.bytes_read > policy.max_bytes


def _beyond(name: str, limit: int, spent: int) -> str:
    def shown(value: int) -> str:
        return format_size(value) if name == "max_bytes" else f"{value}"

    already = f", of which {shown(spent)} were spent in the last 24 hours" if spent else ""
    return f"over the daily limit: {name} is {shown(limit)}{already}"
