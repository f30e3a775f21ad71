"""The contract of table formats, on local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from dv_maintenance.testing.backends import DeltaBackend, LanceBackend, MemoryBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.contract import TableContract

DELTA = {
    "plain": {},
    # Other names in the files than in the schema, times of its own in the log, a checkpoint every second commit.
    "mapped": {
        "delta.columnMapping.mode": "name",
        "delta.enableInCommitTimestamps": "true",
        "delta.checkpointInterval": "2",
    },
}


class TestDelta(TableContract):
    @pytest.fixture(params=["mapped", pytest.param("plain", marks=pytest.mark.deep)])
    def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> TableBackend:
        return DeltaBackend(str(tmp_path / "a table"), properties=DELTA[request.param])


class TestMemory(TableContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> TableBackend:
        return MemoryBackend(tmp_path / "table")


class TestLance(TableContract):
    @pytest.fixture(params=["stable", pytest.param("address", marks=pytest.mark.deep)])
    def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> TableBackend:
        return LanceBackend(str(tmp_path / "a table"), enable_stable_row_ids=request.param == "stable")


class TestPaimon(TableContract):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> TableBackend:
        # Small index files: what is left of them is rewritten more than once.
        return PaimonBackend(str(tmp_path / "a table"), options={"deletion-vector.index-file.target-size": "40"})
