"""What happened to a table, commit by commit, read from the commits alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.delta.log.bulk import dv_id
from dv_maintenance.tables.delta.log.segment import CommitFile, commit_files, read_commits
from dv_maintenance.tables.model import Change, Changes, HistoryEntry, OldestDv, Snapshot

__all__ = ["changes_since", "history", "oldest_dv"]

# Commits read at once on the way back to the oldest DV.
_BATCH: Final = 64

# Operations that write metadata and leave schema and rows as they are.
_HARMLESS_METADATA: Final = frozenset(
    {
        "ADD CONSTRAINT",
        "CLUSTER BY",
        "DROP CONSTRAINT",
        "DROP FEATURE",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "UPGRADE PROTOCOL",
    }
)


def history(storage: Storage, limit: int | None = None) -> list[HistoryEntry]:
    """The commits that still exist, newest first, at most ``limit`` of them.

    Raises
    ------
    UsageError : ``limit`` is negative.
    TableNotFoundError, DamagedTableError : as ``log.latest_version``, or a commit cannot be read.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"a limit of {limit} makes no sense", next_step="give 0 or more")
    files = commit_files(storage)[0][::-1][:limit]
    return [_entry(file, actions) for file, actions in read_commits(storage, files)]


def changes_since(storage: Storage, version: int) -> Changes:
    """Commits after ``version``. Lists only what follows it and reads only new commits.

    A commit counts as data-changing if it adds or removes a file with ``dataChange``, or writes metadata that may alter
    the schema; compaction, vacuum, properties and protocol upgrades do not. Commits that are cleaned up already are not
    in ``commits``, and count as data-changing since that can no longer be known.

    Raises
    ------
    UsageError : the table has no such version.
    TableNotFoundError, DamagedTableError : as ``log.latest_version``, or a commit cannot be read.
    """
    files, newest = commit_files(storage, version)
    if not -1 <= version <= newest:
        raise UsageError(
            f"version {version} does not exist",
            table=storage.uri,
            next_step=f"check whether the table was replaced: its newest version is {newest}",
        )
    commits = tuple(
        Change(file.start, _timestamp(file, _info(actions)), _operation(_info(actions)), _data_changed(actions))
        for file, actions in read_commits(storage, files)
    )
    changed = [change.version for change in commits if change.data_changed]
    unseen = set(range(version + 1, newest + 1)) - {change.version for change in commits}
    return Changes(version, newest, max([*changed, *unseen], default=None), commits)


def oldest_dv(storage: Storage, snapshot: Snapshot, limit: int) -> OldestDv | None:
    """Read at most ``limit`` commits, from the snapshot's version backwards, until each of its DVs was found.

    Raises
    ------
    TableNotFoundError, DamagedTableError : as ``log.latest_version``, or a commit cannot be read.
    """
    wanted = set(snapshot.files["dv_id"].drop_null().to_pylist())
    if not wanted:
        return None
    files = [file for file in commit_files(storage)[0][::-1] if file.start <= snapshot.version][:limit]
    timestamp = snapshot.timestamp
    for at in range(0, len(files), _BATCH):
        for file, actions in read_commits(storage, files[at : at + _BATCH]):
            timestamp = _timestamp(file, _info(actions))
            wanted -= {_dv_id(body, storage, file) for body in _bodies(actions, "add")}
            if not wanted:
                return OldestDv(timestamp, exact=True)
    return OldestDv(timestamp, exact=False)


def _dv_id(add: Mapping[str, Any], storage: Storage, file: CommitFile) -> str | None:
    try:
        return dv_id(add.get("deletionVector"))
    except TypeError as error:
        raise DamagedTableError(
            f"{file.path}: {error}",
            table=storage.uri,
            version=file.start,
            next_step="repair the commit with the tool that wrote it",
        ) from error


def _entry(file: CommitFile, actions: list[Action]) -> HistoryEntry:
    info = _info(actions)
    adds, removes = _bodies(actions, "add"), _bodies(actions, "remove")
    added, removed = _cardinalities(adds), _cardinalities(removes)
    engine = info.get("engineInfo")
    return HistoryEntry(
        version=file.start,
        timestamp=_timestamp(file, info),
        operation=_operation(info),
        parameters=_mapping(info.get("operationParameters")),
        metrics=_mapping(info.get("operationMetrics")),
        engine=engine if isinstance(engine, str) else None,
        files_added=len(adds),
        files_removed=len(removes),
        dvs_added=len(added),
        dvs_removed=len(removed),
        # A DV replaces the one its file had: what counts is by how much it grew.
        rows_deleted_by_dvs=sum(rows - removed.get(path, 0) for path, rows in added.items()),
        data_changed=_data_changed(actions),
    )


def _info(actions: Iterable[Action]) -> Mapping[str, Any]:
    return next((_mapping(action["commitInfo"]) for action in actions if "commitInfo" in action), {})


def _bodies(actions: Iterable[Action], kind: str) -> list[Mapping[str, Any]]:
    return [_mapping(action[kind]) for action in actions if kind in action]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _operation(info: Mapping[str, Any]) -> str:
    operation = info.get("operation")
    return operation if isinstance(operation, str) else "UNKNOWN"


def _timestamp(file: CommitFile, info: Mapping[str, Any]) -> int:
    in_commit = info.get("inCommitTimestamp")
    return in_commit if type(in_commit) is int else file.modified


def _cardinalities(bodies: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Rows that DVs name, by data file."""
    found = {}
    for body in bodies:
        if body.get("deletionVector") is not None:
            rows = _mapping(body["deletionVector"]).get("cardinality")
            found[str(body.get("path"))] = rows if type(rows) is int else 0
    return found


def _data_changed(actions: list[Action]) -> bool:
    if any(body.get("dataChange") is not False for kind in ("add", "remove") for body in _bodies(actions, kind)):
        return True
    return bool(_bodies(actions, "metaData")) and _operation(_info(actions)) not in _HARMLESS_METADATA
