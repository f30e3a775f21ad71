"""Random histories of Paimon append tables."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings

from dv_maintenance.testing.backends import PaimonBackend
from dv_maintenance.testing.stateful import HISTORIES, TableHistories


class PaimonHistories(TableHistories):
    def backend(self, place: Path) -> PaimonBackend:
        # Small index files: what is left of them is written anew more than once.
        return PaimonBackend(str(place), options={"deletion-vector.index-file.target-size": "60"})


TestPaimonHistories = PaimonHistories.TestCase
TestPaimonHistories.settings = settings(HISTORIES, max_examples=HISTORIES.max_examples * 3 // 5)
