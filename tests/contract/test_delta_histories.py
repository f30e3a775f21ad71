"""Random histories, judged by other readers."""

from __future__ import annotations

from pathlib import Path

from readers import READERS

from dv_maintenance.testing.backends import DeltaBackend, MemoryBackend, TableBackend
from dv_maintenance.testing.stateful import HISTORIES, TableHistories


class DeltaHistories(TableHistories):
    judges = READERS

    def backend(self, place: Path) -> TableBackend:
        return DeltaBackend(str(place))


class MemoryHistories(TableHistories):
    def backend(self, place: Path) -> TableBackend:
        return MemoryBackend(place)


TestDeltaHistories = DeltaHistories.TestCase
TestDeltaHistories.settings = HISTORIES
TestMemoryHistories = MemoryHistories.TestCase
TestMemoryHistories.settings = HISTORIES
