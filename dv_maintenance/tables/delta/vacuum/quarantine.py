"""Expired files set aside instead of deleted: ``_dvm_quarantine/TIME-ID/path``, until they expire there as well.

The folder's name begins with ``_``: readers and vacuums of Delta tables, ours among them, pass it by. TIME is when the
vacuum ran, in UTC, and decides alone when a batch expires; ID keeps two runs of one second apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dv_maintenance.errors import StorageError
from dv_maintenance.tables.capabilities import UndeleteResult
from dv_maintenance.tables.delta.log.segment import latest_version
from dv_maintenance.tables.sweep import delete_batch, remove_empty_folders

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

__all__ = ["QUARANTINE", "empty", "new_batch", "put_back", "set_aside", "undelete"]

QUARANTINE: Final = "_dvm_quarantine"
_FORMAT: Final = "%Y-%m-%dT%H-%M-%SZ"
_BATCH: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ)-[0-9a-f]{8}")
_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class _Batch:
    folder: str
    at: int  # epoch milliseconds


def new_batch(now: int) -> str:
    """The folder for what a vacuum sets aside at ``now``, epoch milliseconds."""
    return f"{QUARANTINE}/{datetime.fromtimestamp(now / 1000, UTC).strftime(_FORMAT)}-{uuid4().hex[:8]}"


def set_aside(storage: Storage, paths: Sequence[str], folder: str) -> tuple[int, StorageError | None]:
    """Move files into a batch; how many were moved, and the first failure. One that fails stops no other."""
    return _move(storage, ((path, f"{folder}/{path}") for path in paths))


def put_back(storage: Storage, paths: Iterable[str], folder: str) -> int:
    """Move files of a batch back to where they were. Raises StorageError."""
    moved, failure = _move(storage, ((f"{folder}/{path}", path) for path in paths))
    if failure is not None:
        raise failure
    return moved


def empty(storage: Storage, before: int) -> int:
    """Delete the batches from before ``before``, epoch milliseconds; how many files went. Raises StorageError."""
    deleted = 0
    for batch in _batches(storage):
        if batch.at >= before:
            continue
        paths = [info.path for info in storage.list(batch.folder)]
        for at in range(0, len(paths), _AT_ONCE):
            gone, failure = delete_batch(storage, paths[at : at + _AT_ONCE])
            deleted += gone
            if failure is not None:
                failure.done = f"{deleted} expired files in quarantine deleted"
                raise failure
        remove_empty_folders(storage, paths)
    return deleted


def undelete(
    storage: Storage, *, since: int | None = None, until: int | None = None, dry_run: bool = False
) -> UndeleteResult:
    """Put back what vacuums set aside from ``since`` to ``until``, epoch milliseconds; see ``UndeletableTable``."""
    version = latest_version(storage)
    done, size, taken, gone = 0, 0, 0, 0
    seen: set[str] = set()
    # What was set aside last is what was there last.
    for batch in sorted(_batches(storage), key=lambda batch: batch.at, reverse=True):
        if (since is not None and batch.at < since) or (until is not None and batch.at > until):
            continue
        files = storage.list(batch.folder)
        for info in files:
            path = info.path[len(batch.folder) + 1 :]
            if path in seen or storage.exists(path):
                taken += 1
                continue
            seen.add(path)
            if not (dry_run or storage.move(info.path, path)):
                gone += 1
                continue
            done, size = done + 1, size + info.size
        if not dry_run:
            remove_empty_folders(storage, (info.path for info in files))
    return UndeleteResult(version, dry_run, done, size, taken, gone)


def _move(storage: Storage, pairs: Iterable[tuple[str, str]]) -> tuple[int, StorageError | None]:
    moved, failure = 0, None
    for source, target in pairs:
        try:
            moved += storage.move(source, target)
        except StorageError as error:
            failure = failure or error
    return moved, failure


def _batches(storage: Storage) -> list[_Batch]:
    found = ((name, _BATCH.fullmatch(name)) for name in storage.folders(QUARANTINE))
    return [_Batch(f"{QUARANTINE}/{name}", _millis(match[1])) for name, match in found if match]


def _millis(text: str) -> int:
    return int(datetime.strptime(text, _FORMAT).replace(tzinfo=UTC).timestamp() * 1000)
