"""Files that an attempt at a commit writes, and the one that makes it a version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from dv_maintenance.errors import StorageDeniedError, StorageError, StorageUnavailableError
from dv_maintenance.storage import FileExistsAlreadyError

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage


@dataclass(slots=True)
class NewFiles:
    """The files that one attempt wrote."""

    storage: Storage
    paths: list[str] = field(default_factory=list)

    def put(self, path: str, data: bytes) -> None:
        self.paths.append(path)
        self.storage.put(path, data)

    def discard(self) -> None:
        """Delete them, as far as the storage allows."""
        with suppress(StorageError):  # vacuum finds remaining files
            self.storage.delete(self.paths)


def create_once(
    storage: Storage, path: str, body: bytes, unsure: Callable[[str, str], StorageUnavailableError]
) -> bool:
    """Create a file whose existence is a version, and read it back. Returns whether this call created it.

    ``body`` must differ from that of every other writer. ``unsure``: the error for a path and a reason.

    Raises
    ------
    StorageDeniedError : it was not created.
    StorageUnavailableError : it is unknown whether this call created it. Then no file may be deleted that it might
        name.
    """
    staging = f"{path.rpartition('/')[0]}/.{path.rpartition('/')[2]}.{uuid4()}.tmp"
    failure: StorageError | None = None
    try:
        storage.create(path, body, staging=staging)
    except FileExistsAlreadyError:
        # By another writer, or by this one: storage clients repeat a request if its response was lost.
        try:
            return storage.get(path) == body
        except FileNotFoundError as error:
            raise unsure(path, "it existed, but was deleted before it could be read") from error
    except StorageDeniedError:
        raise
    except StorageError as error:
        failure = error
    try:
        found = storage.get(path)
    except FileNotFoundError:
        if failure is None:
            return True  # it has expired or was rolled back in the meantime
        found = b""
    except StorageError as error:
        raise unsure(path, str(error)) from error
    if found == body:
        return True
    if failure is not None:
        raise unsure(path, str(failure)) from failure
    raise unsure(path, "another writer overwrote our version")
