"""Whether the log of file changes agrees with the snapshots: the property that every format's ``file_log`` has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dv_maintenance.tables.file_log import FILE_CHANGES, FileLog, FileLogTable
from dv_maintenance.tables.model import FileKey, Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

_FAR = 1 << 60  # milliseconds


class LiveFile(NamedTuple):
    """What a log says of a file, in the order of FILE_CHANGES."""

    partition: str | None
    size: int | None
    physical_rows: int | None
    deleted_rows: int | None


def live_files(snapshot: Snapshot) -> dict[FileKey, LiveFile]:
    columns = ("path", "dv_id", *LiveFile._fields)
    rows = zip(*(snapshot.files[name].to_pylist() for name in columns), strict=True)
    return {FileKey(path, dv): LiveFile(*rest) for path, dv, *rest in rows}


def moved(
    live: Mapping[FileKey, LiveFile], log: FileLog, commits: range, *, strict: bool = True
) -> dict[FileKey, LiveFile]:
    """The live files after these commits of the log, given by their positions.

    strict : whether only live files are removed, only others are added, and a removed row agrees with the added one.
    """
    files = dict(live)
    for row in rows_of(log.changes):
        commit, added, path, dv, *rest = row
        if commit not in commits:
            continue
        key, file = FileKey(path, dv), LiveFile(*rest)
        assert not strict or (key in files) is not added, (log.commits[commit], row)
        if added:
            files[key] = file
        elif (before := files.pop(key, None)) is not None:
            assert not strict or all(says in (None, was) for says, was in zip(file, before, strict=True)), (row, before)
    return files


def check_steps(table: FileLogTable, versions: Sequence[int], *, strict: bool = True) -> FileLog:
    """The newest of these versions has a file log that leads from the live files of each of them to those of the next,
    and thereby of every later one. Returns it.

    versions : readable ones, oldest first.
    strict : see :func:`moved`.
    """
    log = table.file_log(table.snapshot(versions[-1]), -_FAR)
    check_shape(log, versions[-1])
    ends = {commit.version: place + 1 for place, commit in enumerate(log.commits)}
    assert versions[0] in ends or versions[0] == log.base
    done, live = 0, None
    if log.base is not None:
        live = live_files(table.snapshot(log.base))
    elif log.complete:
        live = {}
    for version in versions:
        after, end = live_files(table.snapshot(version)), ends.get(version, 0)
        if live is not None:
            found = moved(live, log, range(done, end), strict=strict)
            assert (found if strict else _uncounted(found, after)) == after, version
        done, live = end, after
    return log


def check_windows(table: FileLogTable, versions: Sequence[int], *, strict: bool = True) -> None:
    """As :func:`check_steps`, and logs of earlier versions and of less time are parts of that log."""
    whole = check_steps(table, versions, strict=strict)
    for version in versions:
        snapshot = table.snapshot(version)
        log = table.file_log(snapshot, -_FAR)
        check_shape(log, version)
        assert log.commits == whole.commits[: len(log.commits)]
        assert rows_of(log.changes) == rows_of(whole.changes.slice(0, log.changes.num_rows))
        future = table.file_log(snapshot, _FAR)
        check_shape(future, version)
        assert (future.commits, future.complete) == ((), True)
    newest = table.snapshot(versions[-1])
    for since in [commit.timestamp + more for commit in whole.commits for more in (0, 1)]:
        log = table.file_log(newest, since)
        check_shape(log, newest.version)
        older = whole.commits[: len(whole.commits) - len(log.commits)]
        assert log.commits == whole.commits[len(older) :]
        assert all(commit.timestamp >= since for commit in log.commits)
        assert not older or older[-1].timestamp < since
        kept = whole.changes.slice(whole.changes.num_rows - log.changes.num_rows)
        assert rows_of(log.changes.drop_columns(["commit"])) == rows_of(kept.drop_columns(["commit"]))
        known = whole.complete or bool(older)
        assert log.complete is (known or (log.base is not None and table.snapshot(log.base).timestamp < since))


def _uncounted(files: Mapping[FileKey, LiveFile], like: Mapping[FileKey, LiveFile]) -> dict[FileKey, LiveFile]:
    """The files without the statistics that ``like`` lacks: a checkpoint may leave them out."""
    bare = {key for key, file in like.items() if file.physical_rows is None}
    return {key: file._replace(physical_rows=None) if key in bare else file for key, file in files.items()}


def rows_of(changes: pa.Table) -> list[tuple[Any, ...]]:
    """The rows, whatever the dictionary of the partitions."""
    return list(zip(*(column.to_pylist() for column in changes.columns), strict=True))


def check_shape(log: FileLog, version: int) -> None:
    """What every log of a snapshot of this version has."""
    assert log.changes.schema == FILE_CHANGES
    log.changes.validate(full=True)
    if not log.commits:
        assert (log.changes.num_rows, log.base) == (0, version)
        return
    assert [each.version for each in log.commits][-1] == version
    order = list(zip(log.changes["commit"].to_pylist(), log.changes["added"].to_pylist(), strict=True))
    assert order == sorted(order)
    assert all(0 <= commit < len(log.commits) for commit, _ in order)
