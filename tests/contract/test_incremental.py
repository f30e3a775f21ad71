"""An inspection that builds on the last one: same result in every format, and it reads only what is new."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.storage import Storage
from dv_maintenance.tables.incremental import AdvancingTable
from dv_maintenance.tables.lance.log import manifest
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.history import TableHistory
from dv_maintenance.testing.incremental import check_advanced

FORMATS: dict[str, Callable[[str], TableBackend]] = {
    "delta": DeltaBackend,
    "lance": LanceBackend,
    "paimon": PaimonBackend,
    "iceberg": IcebergBackend,
}


@pytest.mark.parametrize("name", FORMATS)
def test_looks_build_on_each_other(name: str, tmp_path: Path) -> None:
    history = TableHistory(FORMATS[name](str(tmp_path / "table")))
    kept = None
    for number in range(3):
        history.append("a", 8)
        history.append("b", 8)
        history.delete_where(lambda row, number=number: row % 5 == number)
        kept = check_advanced(history.table, kept)
        opened = history.table
        assert isinstance(opened, AdvancingTable)
        assert opened.advanced(kept, opened.version()) is not None
    purge(history.table, history.backend.engine())
    check_advanced(history.table, kept)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("name", FORMATS)
def test_a_table_created_again_is_another_one(name: str, more: int, tmp_path: Path) -> None:
    """Whether its newest version has the number of the last inspection, or a later one."""

    def create(rows: int) -> TableHistory:
        history = TableHistory(FORMATS[name](str(tmp_path / "table")))
        history.append("a", rows)
        history.delete_where(lambda row: row % 2 == 0)
        return history

    history = create(8)
    first = inspect_table(history.table)
    history.append("b", 3)
    grown = inspect_table(history.table, last=first)
    assert (grown.changed, grown.another) == (True, False)
    assert not inspect_table(history.table, last=grown).another

    shutil.rmtree(tmp_path / "table")
    history = create(9)
    for _ in range(1 + more):
        history.append("c", 3)
    found = inspect_table(history.table, last=grown)
    assert name == "iceberg" or found.version == grown.version + more
    assert (found.changed, found.another) == (True, True)


def test_paimon_reads_no_manifest_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = TableHistory(PaimonBackend(str(tmp_path / "table")))
    for _ in range(4):
        history.append("a", 2)
    kept = history.table.snapshot(history.version)
    history.append("a", 2)
    asked: list[str] = []
    get = Storage.get

    def noted(self: Storage, path: str) -> bytes:
        asked.append(path)
        return get(self, path)

    monkeypatch.setattr(Storage, "get", noted)
    opened = history.table
    assert isinstance(opened, AdvancingTable)
    assert opened.advanced(kept, history.version) is not None
    assert sum("/manifest-" in path and "list" not in path for path in asked) == 1


def test_lance_parses_no_fragment_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = TableHistory(LanceBackend(str(tmp_path / "table")))
    for _ in range(4):
        history.append("a", 2)
    kept = history.table.snapshot(history.version)
    history.append("a", 2)
    parsed: list[bytes] = []
    parse = manifest.parse_fragment

    def noted(record: bytes) -> manifest.Fragment:
        parsed.append(record)
        return parse(record)

    monkeypatch.setattr(manifest, "parse_fragment", noted)
    opened = history.table
    assert isinstance(opened, AdvancingTable)
    assert opened.advanced(kept, history.version) is not None
    assert len(parsed) == 1
