"""Tables that a catalog names. The contract suite runs over one, too: see ``NamedMemoryBackend``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dv_maintenance.errors import ConflictError, UnsupportedFeatureError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.tables.registry import formats
from dv_maintenance.testing.backends import MemoryBackend, NamedMemoryBackend
from dv_maintenance.testing.contract import TableContract
from dv_maintenance.testing.history import InterferingEngine


def test_a_name_that_belongs_to_another_table(tmp_path: Path) -> None:
    backend = NamedMemoryBackend(tmp_path / "t")
    table = TableContract.begun(backend)
    before = backend.catalog.locate("sales.orders")
    with pytest.raises(ConflictError, match=r"the name lake\.sales\.orders belongs to another table now"):
        purge(table.table, InterferingEngine(backend.engine(), backend.recreate))
    assert backend.catalog.locate("sales.orders").catalog != before.catalog
    assert backend.open().snapshot().files.num_rows == 0


def test_a_handle_opens_what_other_handles_committed(tmp_path: Path) -> None:
    backend = NamedMemoryBackend(tmp_path / "t")
    table = TableContract.begun(backend)
    early = backend.open()
    purge(backend.open(), backend.engine())
    assert early.version() != table.version
    assert isinstance(backend, MemoryBackend)
    assert early.probe() == backend.open().probe()


@pytest.mark.parametrize("name", ["delta", "lance", "paimon"])
def test_formats_that_ask_no_catalog(name: str, tmp_path: Path) -> None:
    """A catalog may decide which commits count: such a table is neither read nor written by its files alone."""
    (found,) = (each for each in formats() if each.name == name)
    with pytest.raises(UnsupportedFeatureError, match=r"lake\.sales\.orders is a table of a catalog"):
        found.open(NamedMemoryBackend(tmp_path / "t").catalog.locate("sales.orders"))
