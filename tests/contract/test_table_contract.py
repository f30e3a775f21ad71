"""The contract of table formats, on local disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dv_maintenance.testing.backends import (
    DeltaBackend,
    IcebergBackend,
    LanceBackend,
    MemoryBackend,
    NamedMemoryBackend,
    PaimonBackend,
    TableBackend,
)
from dv_maintenance.testing.contract import TableContract
from dv_maintenance.testing.history import TableHistory

DELTA = {
    "plain": {},
    # Other names in the files than in the schema, times of its own in the log, a checkpoint every second commit.
    "mapped": {
        "delta.columnMapping.mode": "name",
        "delta.enableInCommitTimestamps": "true",
        "delta.checkpointInterval": "2",
    },
}


class Copied(TableContract):
    """The table to start from is made once for each backend; the tests have copies."""

    _MADE: ClassVar[dict[tuple[str, str], tuple[Path, TableHistory]]] = {}

    @pytest.fixture
    def table(
        self, backend: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> TableHistory:
        callspec = getattr(request.node, "callspec", None)
        key = type(self).__name__, str(callspec and callspec.params.get("backend"))
        if key not in self._MADE:
            history = self.begun(backend)
            place = tmp_path_factory.mktemp("made") / "table"
            shutil.copytree(backend.place, place)
            self._MADE[key] = place, history
        else:
            shutil.copytree(self._MADE[key][0], backend.place)
        return self._MADE[key][1].copied_to(backend)


class TestDelta(Copied):
    @pytest.fixture(params=["mapped", pytest.param("plain", marks=pytest.mark.deep)])
    def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> TableBackend:
        return DeltaBackend(str(tmp_path / "a table"), properties=DELTA[request.param])


class TestMemory(TableContract):
    @pytest.fixture(params=[MemoryBackend, NamedMemoryBackend])
    def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> TableBackend:
        found: TableBackend = request.param(tmp_path / "table")
        return found


class TestLance(Copied):
    @pytest.fixture(params=["stable", pytest.param("address", marks=pytest.mark.deep)])
    def backend(self, request: pytest.FixtureRequest, tmp_path: Path) -> TableBackend:
        return LanceBackend(str(tmp_path / "a table"), enable_stable_row_ids=request.param == "stable")


class TestPaimon(Copied):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> TableBackend:
        # Small index files: what is left of them is rewritten more than once.
        return PaimonBackend(str(tmp_path / "a table"), properties={"deletion-vector.index-file.target-size": "40"})


class TestIceberg(Copied):
    """At one place, one test after the other: its metadata has absolute paths."""

    @pytest.fixture(params=["3", "2"])
    def backend(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TableBackend:
        place = tmp_path_factory.getbasetemp() / "iceberg" / "a table"
        shutil.rmtree(place, ignore_errors=True)
        return IcebergBackend(str(place), properties={"format-version": request.param})
