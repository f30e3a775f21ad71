"""Delete files of a table, as many as possible, and the folders that become empty."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dv_maintenance.errors import RefusedError, StorageError

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

_log = logging.getLogger(__name__)


def delete_batch(storage: Storage, paths: Sequence[str]) -> tuple[int, StorageError | None]:
    """Delete files. Returns how many were deleted, and the first failure. A failure does not stop the rest.

    Raises
    ------
    RefusedError : see ``Storage.delete``.
    """
    try:
        return storage.delete(paths), None
    except StorageError as error:
        _log.warning("%s: a batch of %d files failed, deleting one by one: %s", storage.uri, len(paths), error)
    gone, failure = 0, None
    for path in paths:
        try:
            storage.delete([path])
        except StorageError as error:
            failure = failure or error
        else:
            gone += 1
    if failure is not None and not gone:
        failure.done = f"it is not known how many of a batch of {len(paths)} files were deleted"
    return gone, failure


def remove_empty_folders(storage: Storage, paths: Iterable[str], *, below: str = "") -> int:
    """Remove the folders of deleted files that are empty now, deepest first, but not ``below`` itself.

    Returns how many; object stores have none.
    """
    if not storage.is_local:
        return 0
    folders = set()
    for path in paths:
        while (path := posixpath.dirname(path)) not in folders and path != below:
            folders.add(path)
    removed = 0
    for folder in sorted(folders, key=lambda folder: folder.count("/"), reverse=True):
        try:
            storage.check_target(folder)
            storage.access.rmdir(storage.local(folder))
        except (OSError, RefusedError, StorageError):
            continue  # in use, which is the rule rather than the exception
        removed += 1
    return removed
