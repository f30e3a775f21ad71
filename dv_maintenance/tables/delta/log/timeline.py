"""Commit times of versions, as time travel defines them.

Commits with in-commit timestamps record their own time. For all others, the modification time of the commit file
counts, moved to just after that of the previous commit if a clock went back. (protocol: In-Commit Timestamps, "Reader
Requirements")
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.tables.delta.features import check_stamped
from dv_maintenance.tables.delta.log.segment import CommitFile, commit_files, read_actions
from dv_maintenance.units import parse_count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

CLOCK_SLACK: Final = 100
"""How many earlier commits may push the time of a commit forward. The reference implementation has the same limit, so
both report the same times for a log of any length."""


def modified_times(commits: Iterable[CommitFile]) -> dict[int, int]:
    """Epoch milliseconds by version, strictly ascending. ``commits``: without compacted ranges, oldest first."""
    times: dict[int, int] = {}
    latest = None
    for commit in commits:
        latest = commit.modified if latest is None else max(commit.modified, latest + 1)
        times[commit.start] = latest
    return times


def version_at(storage: Storage, snapshot: DeltaSnapshot, timestamp: int) -> int:
    """The newest version up to ``snapshot``'s that was committed at or before ``timestamp``, in epoch milliseconds.

    Raises
    ------
    UsageError : the log does not go back that far.
    DamagedTableError : a commit lacks the in-commit timestamp that it must have.
    """
    commits = [commit for commit in commit_files(storage)[0] if commit.start <= snapshot.version]
    stamped_from = _stamped_from(snapshot)
    stamped = [commit for commit in commits if stamped_from is not None and commit.start >= stamped_from]
    if stamped and in_commit_timestamp(storage, stamped[0]) <= timestamp:
        # In-commit timestamps ascend, so a binary search reads only a few commits.
        after = bisect_right(stamped, timestamp, key=lambda commit: in_commit_timestamp(storage, commit))
        return stamped[after - 1].start
    times = modified_times(commits[: len(commits) - len(stamped)])
    found = max((version for version, time in times.items() if time <= timestamp), default=None)
    if found is None:
        oldest = min(times.values(), default=None)
        raise UsageError(
            f"the log does not go back to {_iso(timestamp)}",
            table=storage.uri,
            next_step="name a version"
            if oldest is None
            else f"give a time from {_iso(oldest)}, its oldest commit, or later",
        )
    return found


def _stamped_from(snapshot: DeltaSnapshot) -> int | None:
    """The first version with an in-commit timestamp that counts; ``None`` if the table has none."""
    check_stamped(snapshot)
    if snapshot.in_commit_timestamp is None:
        return None
    return parse_count(snapshot.metadata.configuration.get("delta.inCommitTimestampEnablementVersion", "0")) or 0


def in_commit_timestamp(storage: Storage, commit: CommitFile) -> int:
    """Epoch milliseconds. Raises DamagedTableError if the commit has none."""
    for action in read_actions(storage, commit.path):
        info = action.get("commitInfo")
        stamp = info.get("inCommitTimestamp") if isinstance(info, dict) else None
        if type(stamp) is int:
            return stamp
    raise DamagedTableError(
        f"{commit.path} has no in-commit timestamp, though the table has them",
        table=storage.uri,
        version=commit.start,
        next_step="repair the commit with the tool that wrote it, or name a version instead of a time",
    )


def _iso(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
