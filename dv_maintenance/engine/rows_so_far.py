"""How many rows the running tasks have read so far, for a progress line.

A task on a cluster has no cheap way to report before it ends: Spark sends the accumulators of Python workers with the
result of a task, and Connect has none. Workers on this machine write a number into a file that the driver reads.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

OnRows = Callable[[int], None]
"""Receives the rows that one task has read so far. Called once per batch."""

_NUMBER: Final = struct.Struct("<q")
_SECONDS_BETWEEN: Final = 0.5


class RowCounts:
    """A number for each task, in a temporary file that processes of this machine share."""

    def __init__(self, tasks: int) -> None:
        import tempfile

        self._handle, self.path = tempfile.mkstemp(prefix="dvm-rows-")
        os.ftruncate(self._handle, tasks * _NUMBER.size)

    def total(self) -> int:
        """The rows of all tasks."""
        size = os.fstat(self._handle).st_size
        return sum(number for (number,) in _NUMBER.iter_unpack(os.pread(self._handle, size, 0)))

    def set(self, task: int, rows: int) -> None:
        """The final number of a task."""
        os.pwrite(self._handle, _NUMBER.pack(rows), task * _NUMBER.size)

    def close(self) -> None:
        os.close(self._handle)
        with suppress(OSError):
            os.unlink(self.path)


def counting_in(path: str, task: int) -> OnRows:
    """The worker's side: writes the number of one task, at most twice a second. A file that is gone is ignored: a count
    must not fail a rewrite.
    """
    due = 0.0

    def on_rows(rows: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now < due:
            return
        due = now + _SECONDS_BETWEEN
        with suppress(OSError):
            handle = os.open(path, os.O_WRONLY)
            try:
                os.pwrite(handle, _NUMBER.pack(rows), task * _NUMBER.size)
            finally:
                os.close(handle)

    return on_rows
