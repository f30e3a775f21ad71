"""Failures of disks and object stores, as errors of this package."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from dv_maintenance.errors import (
    DvMaintenanceError,
    RefusedError,
    StorageDeniedError,
    StorageError,
    StorageUnavailableError,
    redacted,
)
from dv_maintenance.storage.diagnosis import diagnose, without_answers

_Bytes = TypeVar("_Bytes", bytes, memoryview)


NO_FILE: Final = frozenset({errno.ENAMETOOLONG, errno.ELOOP})
"""Numbers of errors of names that no file can have: too long, or a link that leads to itself."""


class FileExistsAlreadyError(StorageUnavailableError, FileExistsError):
    """A put-if-absent found the name taken."""


class NotAFileError(FileNotFoundError):
    """A folder has the name of a file. Where the file is needed, it is missing."""


class Cause(Exception):  # noqa: N818 - it represents an error of another library
    """The error of a storage client, redacted: causes are printed and stored with the errors that they led to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(redacted(f"{type(error).__name__}: {without_answers(str(error))}"))


def name_taken(table: str, path: str) -> RefusedError:
    """A folder has the name of a file that has to be written."""
    return RefusedError(
        f"{path} is a folder, and a file of this name has to be written",
        table=table,
        done="nothing was committed",
        next_step="move the folder to another place; then run again",
    )


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Raise storage failures as errors of this package; FileNotFoundError passes unchanged."""
    try:
        yield
    except (FileNotFoundError, DvMaintenanceError):
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(path) from error
    except IsADirectoryError as error:
        raise NotAFileError(path) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_FILE:
            raise FileNotFoundError(path) from error
        if _is_name_taken(error):
            raise FileExistsAlreadyError(f"{path} exists already") from error
        raise storage_failure(path or "the table", error) from Cause(error)


def storage_failure(path: str, error: BaseException, **context: Any) -> StorageError:
    """The error for a failure of the system or of obstore. ``context``: of ``DvMaintenanceError``."""
    found = diagnose(error)
    kind = StorageDeniedError if found.permanent else StorageUnavailableError
    return kind(f"storage failed on {path}: {found.what}", next_step=found.next_step, **context)


def _is_name_taken(error: Exception) -> bool:
    """Whether a store refused a put-if-absent because the name exists."""
    # Whoever raises one has loaded the client. An import here may lack what a disk lacks, such as free file handles, or
    # meet that of another thread halfway.
    clients = sys.modules.get("obstore.exceptions")
    return isinstance(error, getattr(clients, "AlreadyExistsError", ()))


def whole(data: _Bytes, expected: int, path: str) -> _Bytes:
    """``data``, read from ``path``, if it has all of the ``expected`` bytes. A response that breaks off does not mean
    that the file is damaged.

    Raises
    ------
    StorageUnavailableError : bytes are missing, although the file has them.
    """
    if len(data) < expected:
        raise StorageUnavailableError(
            f"only {len(data)} of {expected} bytes of {path} arrived, although the file has all of them",
            next_step="run again; if this happens again, check the network and any proxy in front of the store",
        )
    return data


class Handle:
    """An obstore reader or writer as the Python file that Arrow expects (with ``closed`` as a property). A failure
    while reading or writing is a StorageError, as on opening.
    """

    def __init__(self, path: str, inner: Any) -> None:
        self._path, self._inner = path, inner
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, size: int = -1) -> bytes:
        with storage_errors(self._path):
            left = self._inner.size - self._inner.tell()
            return whole(bytes(self._inner.read(size)), left if size < 0 else min(size, left), self._path)

    def write(self, data: Any) -> Any:
        with storage_errors(self._path):
            # Arrow's own buffers are of signed bytes, which obstore refuses.
            return self._inner.write(memoryview(data).cast("B"))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with storage_errors(self._path):
                self._inner.close()
