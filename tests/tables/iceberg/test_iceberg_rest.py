"""Commits through a REST catalog: what the server is asked, and what becomes of refusals and lost answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.iceberg_rest import RestCatalog, serving

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import StorageUnavailableError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.testing.backends import IcebergBackend
from dv_maintenance.testing.verbs import row_work

pytest.importorskip("pyiceberg.catalog.rest")
FAR = 4_102_444_800_000  # 2100


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestCatalog]:
    """Twenty rows in two files, three of them deleted."""
    backend = IcebergBackend(str(tmp_path / "t"))
    backend.create()
    backend.append("a", [(at, "a", "old") for at in range(10)])
    backend.append("b", [(at, "b", "old") for at in range(10, 20)])
    backend.delete([0, 1, 10])
    found = RestCatalog(tmp_path / "t")
    with serving(found) as uri:
        monkeypatch.setenv("PYICEBERG_CATALOG__R__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__R__URI", uri)
        yield found


def opened() -> IcebergTable:
    table = open_table("iceberg:r.ns.t")
    assert isinstance(table, IcebergTable)
    return table


def rows() -> dict[int, tuple[Any, ...]]:
    _, batches = read(opened(), None, columns=["id", "v", "_row_id", "_last_updated_sequence_number"])
    return {row["id"]: tuple(row.values())[1:] for batch in batches for row in batch.to_pylist()}


def erase(condition: str) -> None:
    delete(opened(), LocalEngine(), condition)


def test_every_verb(catalog: RestCatalog) -> None:
    before = rows()
    assert purge(opened(), LocalEngine()).verified
    assert (rows(), catalog.commits) == (before, 1)
    delete(opened(), LocalEngine(), "id = 2", dry_run=True)
    assert catalog.commits == 1
    erase("id = 2")
    table = opened()
    base = table.snapshot()
    work = row_work(table, base, lambda _: ({4}, [(3, "a", "new"), (77, "a", "inserted")]))
    assert table.commit_changes(base, work.changes, operation={"name": "MERGE"}, reads=work.reads).files_added == 1
    after = rows()
    assert (after[3][:2], after[77][0]) == (("new", before[3][1]), "inserted")
    assert sorted(after) == [3, *range(5, 10), *range(11, 20), 77]
    request = VacuumRequest(now=FAR, retention=0, allow_short_retention=True, guard=VacuumGuard(max_deleted_share=1.0))
    opened().vacuum(request)
    assert (rows(), len(opened().snapshot().metadata.snapshots)) == (after, 1)


def test_a_delete_that_the_server_makes_first(catalog: RestCatalog) -> None:
    """It answers 409, and the delete is carried over."""
    catalog.before = lambda: erase("id IN (5, 12)")
    assert purge(opened(), LocalEngine()).verified
    assert catalog.commits == 2
    assert sorted(rows()) == [2, 3, 4, *range(6, 10), 11, *range(13, 20)]
    catalog.before = lambda: erase("id = 6")
    erase("id = 7")
    assert sorted(rows()) == [2, 3, 4, 8, 9, 11, *range(13, 20)]


@pytest.mark.parametrize("status", [500, 503, 504, None])
def test_a_lost_answer(catalog: RestCatalog, status: int | None) -> None:
    """The commit was made. It is found, and nothing that it names is deleted."""
    before = rows()
    catalog.failures = [(status, True)]
    assert purge(opened(), LocalEngine()).verified
    assert (rows(), catalog.commits) == (before, 1)
    catalog.failures = [(status, True)]
    erase("id = 2")
    assert (2 in rows(), catalog.commits) == (False, 2)


@pytest.mark.parametrize("status", [500, 503, None])
def test_a_failure(catalog: RestCatalog, status: int | None) -> None:
    """The commit was not made. Either it is made in another attempt, or the error says that it is unknown."""
    before = rows()
    catalog.failures = [(status, False)]
    try:
        erase("id = 2")
    except StorageUnavailableError:
        assert rows() == before
        erase("id = 2")
    assert sorted(rows()) == sorted({*before} - {2})


def test_the_first_snapshot(tmp_path: Path, catalog: RestCatalog) -> None:
    """The branch does not exist yet, and must not exist when the server commits."""
    document = Path(catalog.location)

    body = json.loads(document.read_text())
    body |= {"snapshots": [], "snapshot-log": [], "refs": {}, "current-snapshot-id": None}
    document.write_text(json.dumps(body))
    table = opened()
    base = table.snapshot()
    work = row_work(table, base, lambda _: (set(), [(1, "a", "x")]))
    assert table.commit_changes(base, work.changes, operation={"name": "MERGE"}, reads=work.reads).version is not None
    assert list(rows()) == [1]
