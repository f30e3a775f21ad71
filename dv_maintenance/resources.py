"""What the system refuses a process: memory, threads, file handles. Libraries report it in many ways."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dv_maintenance.errors import DvMaintenanceError, OutOfResourcesError

_THREADS: Final = re.compile(
    r"can't start new thread|[Ff]ailed to (launch|spawn|create|start) [\w ]*thread|pthread_create failed"
    r"|Resource temporarily unavailable|code: 11, kind: WouldBlock"
)
_HANDLES: Final = re.compile(r"[Tt]oo many open files|\(os error 2[34]\)")
_MEMORY: Final = re.compile(
    r"(?:malloc|realloc|mmap|allocation) of (?:size )?(\d*)[^\n]{0,20} failed|[Cc]annot allocate memory"
    r"|std::bad_alloc|[Oo]ut of memory|failed to map segment|\(os error 12\)"
)
_ERRNO: Final = {errno.ENOMEM: "memory", errno.EMFILE: "handles", errno.ENFILE: "handles"}
_SAID: Final = {
    "threads": (
        "the system refused to start a thread",
        "raise the limit of processes (ulimit -u, the container's pids limit), or run less at the same time",
    ),
    "folder": (
        "no folder for temporary files can be written",
        "point TMPDIR to a folder on a disk with enough space",
    ),
    "handles": (
        "too many files are open",
        "raise the limit of open files (ulimit -n), or run less at the same time",
    ),
    "memory": (
        "the system refused memory",
        "give the process more memory (ulimit -v, the container's limit), or run less at the same time",
    ),
}


def out_of_resources(error: BaseException, subject: str | None = None) -> OutOfResourcesError | None:
    """The error for what the system refused, ``None`` if ``error`` is about something else. ``subject``: what was read.

    A single request for more memory than the machine has is not scarcity: damaged bytes claim such sizes.
    """
    what = _refused(error)
    if what is None:
        return None
    said, step = _SAID[what]
    return OutOfResourcesError(f"{said} while {subject} was read" if subject else said, next_step=step)


def raise_if_refused(error: BaseException, subject: str | None = None) -> None:
    """To be called before an error is taken for damage. Raises OutOfResourcesError; see :func:`out_of_resources`."""
    if (refused := out_of_resources(error, subject)) is not None:
        raise refused from error


@contextmanager
def system_errors() -> Iterator[None]:
    """Raise what the system refused, wherever that was noticed, as OutOfResourcesError."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if not isinstance(error, DvMaintenanceError):
            raise_if_refused(error)
        raise


def _refused(error: BaseException) -> str | None:
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
        return "folder"
    if isinstance(error, OSError) and error.errno is not None:
        return _ERRNO.get(error.errno)
    text = str(error)
    if _THREADS.search(text):
        return "threads"
    if _HANDLES.search(text):
        return "handles"
    found = _MEMORY.search(text)
    if found is None and not isinstance(error, MemoryError):
        return None
    return None if found and found[1] and int(found[1]) > _machine() else "memory"


def _machine() -> int:
    """Bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 40
