"""What inspections keep from one tick to the next: the last snapshot of each table, in the memory of this process.

If a table's log grew by a few commits, an inspection builds on the kept snapshot (``tables.incremental``). Decisions
are never kept: health and plan are computed from the snapshot, no matter what it was built from. Runs do not use it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import UsageError
from dv_maintenance.tables.incremental import AdvancingTable
from dv_maintenance.units import parse_size

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

LIMIT: Final = 1 << 30
"""Bytes of all kept snapshots of a process, unless ``DVM_KEPT_MEMORY`` says otherwise. One table may take half."""
_VARIABLE: Final = "DVM_KEPT_MEMORY"
# How long inspections build on each other until one reads the whole log again.
_FULL_AFTER: Final = 86_400.0
# Columns that inspections compute: see ``planning.facts`` and ``delta.log.fingerprints``.
_DERIVED_BYTES: Final = 66
_OTHER_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """``full_at``: when the whole log was read, by the clock of :class:`KeptSnapshots`."""

    snapshot: Snapshot
    full_at: float
    bytes: int


class KeptSnapshots:
    """The last snapshots; the least recently used are dropped first. Thread-safe.

    limit : bytes of all; one that needs more than half is not kept.
    clock : seconds.
    """

    def __init__(self, limit: int = LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.clock = clock
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self._kept.values())

    def snapshot(self, table: Table, version: int) -> Snapshot:
        """The table at its newest version. Raises as ``table.snapshot``."""
        if not isinstance(table, AdvancingTable) or not self.limit:
            return table.snapshot(version)
        key = table.format, table.uri
        with self._lock:
            # Taken out: if anything fails now, the next inspection starts afresh.
            kept = self._kept.pop(key, None)
        now = self.clock()
        if kept is not None and now - kept.full_at < _FULL_AFTER:
            found = table.advanced(kept.snapshot, version)
            if found is not None:
                self._keep(key, found, kept.full_at)
                return found
        # Two snapshots of a large table at a time would double the memory.
        del kept
        found = table.snapshot(version)
        self._keep(key, found, now)
        return found

    def _keep(self, key: tuple[str, str], snapshot: Snapshot, full_at: float) -> None:
        size = snapshot.bytes + _DERIVED_BYTES * snapshot.files.num_rows + _OTHER_BYTES
        if size > self.limit // 2:
            return
        with self._lock:
            self._kept[key] = _Kept(snapshot, full_at, size)
            while self.bytes > self.limit:
                self._kept.popitem(last=False)


@cache
def kept_snapshots() -> KeptSnapshots:
    """Those of this process. Raises UsageError: the environment variable is not a size."""
    text = os.environ.get(_VARIABLE)
    if not text:
        return KeptSnapshots()
    try:
        return KeptSnapshots(parse_size(text))
    except ValueError as error:
        raise UsageError(f"{_VARIABLE}: {error}", next_step="set it to a size such as 512MiB, or to 0") from error
