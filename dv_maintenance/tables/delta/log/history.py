"""The history of a table, read from its commits alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.log.commit_info import (
    bodies,
    commit_info,
    commit_time,
    data_changed,
    mapping,
    operation_of,
)
from dv_maintenance.tables.delta.log.segment import CommitFile, commit_files, read_commits
from dv_maintenance.tables.model import Change, Changes, HistoryEntry, OldestDv, Snapshot
from dv_maintenance.tables.versions import numbered_changes

# Commits read at once on the way back to the oldest DV.
_BATCH: Final = 64


def history(storage: Storage, limit: int | None = None) -> list[HistoryEntry]:
    """The commits that still exist, newest first, at most ``limit`` of them.

    Raises
    ------
    UsageError : ``limit`` is negative.
    TableNotFoundError, DamagedTableError : as ``segment.latest_version``, or a commit cannot be read.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"the limit is negative: {limit}", next_step="give 0 or more")
    files = commit_files(storage)[0][::-1][:limit]
    return [_entry(file, actions) for file, actions in read_commits(storage, files)]


def changes_since(storage: Storage, version: int | None) -> Changes:
    """Commits after ``version``. Lists only later log files and reads only new commits.

    A commit counts as data-changing if it adds or removes a file with ``dataChange``, or writes metadata that may alter
    the schema. Compactions, vacuums, properties and protocol upgrades do not count. Commits that log cleanup has
    already deleted are missing from ``commits``; they count as data-changing because their content is unknown.

    Raises
    ------
    UsageError : the table has no such version.
    TableNotFoundError, DamagedTableError : as ``segment.latest_version``, or a commit cannot be read.
    """
    files, newest = commit_files(storage, -1 if version is None else version)
    if version is not None and not -1 <= version <= newest:
        raise UsageError(
            f"version {version} does not exist",
            table=storage.uri,
            next_step=f"check whether the table was replaced: its newest version is {newest}",
        )
    commits = [
        Change(
            file.start,
            commit_time(file, commit_info(actions)),
            operation_of(commit_info(actions)),
            data_changed(actions),
        )
        for file, actions in read_commits(storage, files)
    ]
    return numbered_changes(version, newest, commits, first=0)


def oldest_dv(storage: Storage, snapshot: Snapshot, limit: int = 1000) -> OldestDv | None:
    """The earliest time at which a live file got its first DV; ``None`` if no file has one. Reads at most ``limit``
    commits, from the snapshot's version backwards, until the first DV of each file is found.

    Raises
    ------
    TableNotFoundError, DamagedTableError : as ``segment.latest_version``, or a commit cannot be read.
    """
    files = snapshot.files
    search = _FirstDvs(set(files["path"].filter(files["dv_id"].is_valid()).to_pylist()))
    if not search.wanted:
        return None
    commits = [file for file in commit_files(storage)[0][::-1] if file.start <= snapshot.version][:limit]
    timestamp = snapshot.timestamp
    for at in range(0, len(commits), _BATCH):
        for file, actions in read_commits(storage, commits[at : at + _BATCH]):
            timestamp = commit_time(file, commit_info(actions))
            added = {body.get("path"): _dv_id(body, storage, file) for body in bodies(actions, "add")}
            removed = {body.get("path"): _dv_id(body, storage, file) for body in bodies(actions, "remove")}
            search.commit(timestamp, added, removed)
            if not search.wanted:
                return OldestDv(search.oldest(timestamp), exact=True)
    return OldestDv(search.oldest(timestamp), exact=bool(commits) and commits[-1].start == 0)


class _FirstDvs:
    """Finds the first DV of each file; takes commits from the newest to the oldest.

    wanted : paths of files whose first DV has not been found yet.
    """

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self._found: list[int] = []
        # Files that a commit added with a DV but did not remove, so their earlier DV is unknown: a new file, a restored
        # one, new statistics. An earlier commit may list them with a DV.
        self._unsure: dict[str, int] = {}

    def commit(self, timestamp: int, added: Mapping[Any, str | None], removed: Mapping[Any, str | None]) -> None:
        """added, removed : DV ids by path, ``None`` without a DV."""
        for path in self.wanted & (added.keys() | removed.keys()):
            if path in added and added[path] is None:
                # No DV after this commit: a later one added it without removing the file first.
                self._found.append(self._unsure.pop(path, timestamp))
            elif path in added and path not in removed:
                self._unsure[path] = timestamp
                continue
            elif removed.get(path) is not None:
                self._unsure.pop(path, None)
                continue
            else:
                self._found.append(timestamp if path in added else self._unsure.pop(path, timestamp))
            self.wanted.discard(path)

    def oldest(self, reached: int) -> int:
        """Time of the oldest DV, in epoch milliseconds. ``reached``: time of the oldest commit read; DVs that were not
        found are at least that old.
        """
        older = [] if self.wanted <= self._unsure.keys() else [reached]
        return min([*self._found, *self._unsure.values(), *older])


def _dv_id(action: Mapping[str, Any], storage: Storage, file: CommitFile) -> str | None:
    try:
        return dv_id(action.get("deletionVector"))
    except TypeError as error:
        raise DamagedTableError(
            f"{file.path}: {error}",
            table=storage.uri,
            version=file.start,
            next_step="repair the commit with the tool that wrote it",
        ) from error


def _entry(file: CommitFile, actions: list[Action]) -> HistoryEntry:
    info = commit_info(actions)
    adds, removes = bodies(actions, "add"), bodies(actions, "remove")
    added, removed = _cardinalities(adds), _cardinalities(removes)
    engine = info.get("engineInfo")
    return HistoryEntry(
        version=file.start,
        timestamp=commit_time(file, info),
        operation=operation_of(info),
        parameters=mapping(info.get("operationParameters")),
        metrics=mapping(info.get("operationMetrics")),
        engine=engine if isinstance(engine, str) else None,
        files_added=len(adds),
        files_removed=len(removes),
        dvs_added=len(added),
        dvs_removed=len(removed),
        # A DV replaces its file's previous one, so only the growth counts.
        rows_deleted_by_dvs=sum(rows - removed.get(path, 0) for path, rows in added.items()),
        data_changed=data_changed(actions),
    )


def _cardinalities(bodies: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Cardinalities of DVs, by data file."""
    found = {}
    for body in bodies:
        if body.get("deletionVector") is not None:
            rows = mapping(body["deletionVector"]).get("cardinality")
            found[str(body.get("path"))] = rows if type(rows) is int else 0
    return found
