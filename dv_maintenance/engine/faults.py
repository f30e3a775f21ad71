"""Errors of Arrow, the operating system and storage clients, as errors of this package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.resources import raise_if_refused
from dv_maintenance.storage.failures import NotAFileError, storage_failure

_RESTORE: Final = "restore the file, or remove it from the table"


@contextmanager
def reading(uri: str, kind: str = "Parquet") -> Iterator[None]:
    """Context for all access to a source file. ``kind``: the expected file format, for messages."""
    try:
        yield
    except FileNotFoundError as error:
        folder, gone = "is named by the table's log, but is a folder", "is named by the table's log, but does not exist"
        raise DamagedTableError(
            f"{uri} {folder if isinstance(error, NotAFileError) else gone}",
            next_step="restore the file; if a vacuum removed it, restore an older version of the table",
        ) from error
    except (pa.ArrowException, MemoryError, RuntimeError, OSError) as error:
        raise_if_refused(error, uri)
        if isinstance(error, RuntimeError):
            raise
        # Arrow's own errors about bytes have no errno; the system's errors about a disk have one.
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_failure(uri, error) from error
        raise DamagedTableError(f"{uri} cannot be read as {kind}: {error}", next_step=_RESTORE) from error
    except UnicodeDecodeError as error:
        raise DamagedTableError(
            f"{uri} cannot be read as {kind}: a name in it is not text", next_step=_RESTORE
        ) from error
    except RefusedError as error:
        if uri in error.message:
            raise
        raise RefusedError(f"{uri} can't be read: {error.message}", next_step=error.next_step) from error
    except Exception as error:
        if _is_storage_client(error):
            raise storage_failure(uri, error) from error
        raise


@contextmanager
def decoding(uri: str) -> Iterator[None]:
    """Context for code that parses the bytes of a file without knowing its name: adds the name to its errors."""
    try:
        yield
    except DamagedTableError as damage:
        if uri in damage.message:
            raise
        raise DamagedTableError(f"{uri} is damaged: {damage.message}", next_step=_RESTORE) from damage


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """Context for all access to an output file."""
    try:
        yield
    except OSError as error:
        raise storage_failure(uri, error) from error
    except Exception as error:
        if _is_storage_client(error):
            raise storage_failure(uri, error) from error
        raise


def _is_storage_client(error: Exception) -> bool:
    # Whoever raises one has loaded the client. An import here could meet that of another thread halfway.
    clients = sys.modules.get("obstore.exceptions")
    return isinstance(error, getattr(clients, "BaseError", ()))
