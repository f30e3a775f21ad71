"""Random histories with storage that fails, judged by the model alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dv_maintenance.tables.delta.commit import publish as delta_publish
from dv_maintenance.tables.paimon.commit import publish as paimon_publish
from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.disturbed import DISTURBED, DisturbedHistories


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_publish, "_FIRST_PAUSE", 0.0)
        patch.setattr(paimon_publish, "_FIRST_PAUSE", 0.0)
        yield


class DisturbedDelta(DisturbedHistories):
    def backend(self, place: Path) -> TableBackend:
        return DeltaBackend(str(place), properties={"delta.checkpointInterval": "3"})


class DisturbedLance(DisturbedHistories):
    def backend(self, place: Path) -> TableBackend:
        return LanceBackend(str(place))


class DisturbedPaimon(DisturbedHistories):
    def backend(self, place: Path) -> TableBackend:
        return PaimonBackend(str(place), properties={"deletion-vector.index-file.target-size": "60"})


TestDisturbedDelta = DisturbedDelta.TestCase
TestDisturbedDelta.settings = DISTURBED
TestDisturbedLance = DisturbedLance.TestCase
TestDisturbedLance.settings = DISTURBED
TestDisturbedPaimon = DisturbedPaimon.TestCase
TestDisturbedPaimon.settings = DISTURBED
