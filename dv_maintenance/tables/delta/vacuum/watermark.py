"""The watermark of lite vacuums: the version up to which vacuums are done, and the files that later commits removed.

``_delta_log/_last_vacuum_info`` is delta-spark's own file for its ``VACUUM LITE``, so either tool continues where the
other stopped. Full vacuums advance it as well: otherwise a table whose first commits were cleaned up could never be
vacuumed from its log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from dv_maintenance.errors import DamagedDeletionVectorError, RefusedError
from dv_maintenance.storage import RawName
from dv_maintenance.tables.delta.commit.conflicts import logical_key
from dv_maintenance.tables.delta.log.segment import LOG, CommitFile, commit_path, read_commits, refuse_late_listing
from dv_maintenance.tables.delta.vacuum.names import dv_path, path_of

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.log.actions import Action
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_FILE = f"{LOG}/_last_vacuum_info"
_KEY = "latestCommitVersionOutsideOfRetentionWindow"
# Hadoop's checksum of the file on local disk. It would not match our file, so delta-spark could not read it.
_CHECKSUM = f"{LOG}/._last_vacuum_info.crc"


@dataclass(frozen=True, slots=True)
class Watermark:
    """Which commits vacuums have dealt with.

    covered : the version up to which earlier vacuums deleted removed files; -1 if there is none.
    settled : the version up to which this vacuum can, because all commits up to it are older than the cutoff; -1 if
        there is none.
    commits : the commits that are still in the log, by version.
    """

    covered: int
    settled: int
    commits: Mapping[int, CommitFile]


def read_watermark(storage: Storage, snapshot: DeltaSnapshot, cutoff: int) -> Watermark:
    """Where this vacuum starts. ``cutoff`` in epoch milliseconds. Raises StorageError."""
    commits = _commits(storage, snapshot.version)
    settled = -1
    for version in sorted(commits):
        if commits[version].modified >= cutoff:
            break
        settled = version
    return Watermark(_covered(storage), settled, commits)


def write_watermark(storage: Storage, mark: Watermark) -> None:
    """Record that every version up to ``settled`` is done. Never moves back: a longer retention undoes no vacuum."""
    if mark.settled > mark.covered:
        storage.put(_FILE, orjson.dumps({_KEY: mark.settled}) + b"\n")
        if storage.is_local:
            storage.delete([_CHECKSUM])


def removed_files(storage: Storage, snapshot: DeltaSnapshot, mark: Watermark) -> set[str]:
    """Data, DV and change files that the commits after ``covered``, up to ``settled``, name in removes and cdc actions.
    Some of them are live: a new DV on a file removes the file with its old DV.

    Raises
    ------
    RefusedError : commits that no vacuum covered are no longer in the log.
    DamagedTableError : a commit holds a line that is not an action.
    """
    first = mark.covered + 1
    missing = [version for version in range(first, snapshot.version + 1) if version not in mark.commits]
    if missing:
        raise RefusedError(
            f"commit {missing[0]} is no longer in the log, and no vacuum is known to have covered it, so a lite vacuum "
            "would never delete the files that it removed",
            at=snapshot,
            next_step="run a full vacuum once; lite ones can continue from there",
        )
    return _removed(storage, [mark.commits[version] for version in range(first, mark.settled + 1)])


def taken_out(storage: Storage, mark: Watermark) -> set[str]:
    """Paths that any commit in the log removed: data, DV and change files. Raises DamagedTableError."""
    return _removed(storage, list(mark.commits.values()))


def removed_since(storage: Storage, snapshot: DeltaSnapshot, mark: Watermark, cutoff: int) -> set[str]:
    """Paths that commits removed since the cutoff, read from the commits themselves. Needed for a retention longer than
    the table's own, because checkpoints drop tombstones after the table's own retention.

    Raises
    ------
    RefusedError : the log does not go back that far.
    """
    commits = mark.commits
    oldest = min(commits, default=None)
    if oldest is None or (oldest > 0 and commits[oldest].modified >= cutoff):
        raise RefusedError(
            "the log does not go back as far as the retention, so it cannot show which files were removed inside it",
            at=snapshot,
            next_step="give a shorter retention, or raise the table's delta.deletedFileRetentionDuration and "
            "delta.logRetentionDuration and wait until they have passed",
        )
    return _removed(storage, [commit for commit in commits.values() if commit.modified >= cutoff])


def _removed(storage: Storage, commits: Sequence[CommitFile]) -> set[str]:
    actions = ((action, file.path) for file, actions in read_commits(storage, commits) for action in actions)
    return {path for action, where in actions for path in _removed_by(storage, action, where)}


def _removed_by(storage: Storage, action: Action, where: str) -> Iterator[str]:
    body = action.get("remove") or action.get("cdc")
    if body is None:
        return
    yield logical_key(body, lambda name: path_of(storage, RawName(name)), where=where).path
    try:
        dv = dv_path(storage, body)
    except DamagedDeletionVectorError:
        return  # names no file to delete; a full vacuum finds the file, if there is one
    if dv is not None:
        yield dv


def _commits(storage: Storage, newest: int) -> dict[int, CommitFile]:
    """The commits in the log, from the newest back to the first gap. Raises StorageError."""
    found = {info.path: info for info in storage.list(LOG)}
    if commit_path(newest) not in found:
        refuse_late_listing(storage, newest)
    commits = {}
    for version in range(newest, -1, -1):
        info = found.get(commit_path(version))
        if info is None:
            break
        commits[version] = CommitFile(info.path, version, version, info.modified)
    return commits


def _covered(storage: Storage) -> int:
    try:
        body = orjson.loads(storage.get(_FILE))
    except (FileNotFoundError, orjson.JSONDecodeError):
        return -1
    version = body.get(_KEY) if isinstance(body, dict) else None
    return version if type(version) is int and version >= 0 else -1
