"""Random histories, judged by other readers."""

from __future__ import annotations

from pathlib import Path

from effort import examples
from hypothesis import settings
from support.readers import READERS

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
# Two other readers read every version, which is most of the cost of a history.
TestDeltaHistories.settings = settings(HISTORIES, max_examples=examples(2))
TestMemoryHistories = MemoryHistories.TestCase
TestMemoryHistories.settings = settings(HISTORIES, max_examples=examples(10))
