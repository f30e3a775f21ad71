"""The contract of table formats, and what else maintenance promises, in object stores."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from support.object_stores import Store

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck import fsck
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.fsck import FsckTable
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.contract import TableContract
from dv_maintenance.testing.history import InterferingEngine, TableHistory

pytestmark = pytest.mark.processes

WRITERS = 8
ATOMIC = ["s3", pytest.param("azure", marks=pytest.mark.deep)]
STORES = [*ATOMIC, pytest.param("other_s3", marks=pytest.mark.deep)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    return found


def delta_on(store: Store) -> TableBackend:
    bucket, options = store
    return DeltaBackend(f"{bucket}/{uuid4()}/a table", storage_options=options)


def paimon_on(store: Store) -> TableBackend:
    bucket, options = store
    return PaimonBackend(f"{bucket}/{uuid4()}/a table", storage_options=options)


def iceberg_on(store: Store) -> TableBackend:
    bucket, options = store
    return IcebergBackend(f"{bucket}/{uuid4()}/a table", storage_options=options)


# The contract runs on local disk by default; what storage decides (races, listings, times) has its own tests below.
@pytest.mark.deep
class TestDeltaInStores(TableContract):
    @pytest.fixture
    def backend(self, store: Store) -> TableBackend:
        return delta_on(store)


@pytest.mark.deep
class TestPaimonInStores(TableContract):
    @pytest.fixture
    def backend(self, store: Store) -> TableBackend:
        return paimon_on(store)


@pytest.mark.deep
class TestIcebergInStores(TableContract):
    @pytest.fixture
    def backend(self, store: Store) -> TableBackend:
        return iceberg_on(store)


@pytest.fixture
def backend(request: pytest.FixtureRequest, store: Store) -> TableBackend:
    return getattr(request, "param", delta_on)(store)


@pytest.mark.parametrize("store", ATOMIC, indirect=True)
def test_one_of_many_puts_wins(store: Store) -> None:
    uri, options = store
    together = threading.Barrier(WRITERS, timeout=60)

    def put(number: int, path: str) -> bool:
        storage = Storage(f"{uri}/{place}", options)
        together.wait()
        try:
            storage.create(path, str(number).encode())
        except FileExistsAlreadyError:
            return False
        return True

    place = str(uuid4())
    with ThreadPoolExecutor(WRITERS) as pool:
        for turn in range(10):
            won = list(pool.map(put, range(WRITERS), [str(turn)] * WRITERS))
            assert won.count(True) == 1
            assert Storage(f"{uri}/{place}", options).get(str(turn)) == str(won.index(True)).encode()


@pytest.mark.parametrize("store", ATOMIC, indirect=True)
@pytest.mark.parametrize("backend", [delta_on, paimon_on, iceberg_on], indirect=True)
@pytest.mark.parametrize("runs", [2, pytest.param(4, marks=pytest.mark.deep)])
def test_one_of_many_concurrent_runs_does_the_work(backend: TableBackend, runs: int) -> None:
    """Put-if-absent decides: all of them rewrite, one commits, and the others leave no files."""
    table = TableHistory(backend)
    table.append("a", 10)
    table.delete([1, 2])
    together = threading.Barrier(runs, timeout=60)

    def run(_: int) -> tuple[int, int]:
        report = purge(backend.open(), InterferingEngine(backend.engine(), together.wait))
        return len(report.steps), report.version_after

    with ThreadPoolExecutor(runs) as pool:
        reports = list(pool.map(run, range(runs)))
    table.sync()
    assert sorted(steps for steps, _ in reports) == [0] * (runs - 1) + [1]
    assert len(backend.between(None, table.version)) == 4
    assert table.read() == table.expected()
    assert table.stored() == table.needs(table.version) | table.needs(table.table.parent_of(table.version))


def test_uncommitted_files_expire(backend: TableBackend) -> None:
    table = TableHistory(backend)
    table.append("a", 10)
    orphans = ["p=a/part-0.parquet", f"deletion_vector_{uuid4()}.bin"]
    foreign = ["_other/x.parquet", "notes.txt"]
    for path in orphans + foreign:
        table.table.storage.put(path, b"?")
    assert vacuum(table.table).deleted == 0
    # These stores tell times in whole seconds.
    later = table.moment().time + 1000 + backend.retention
    said = vacuum(table.table, VacuumRequest(now=later, dry_run=True))
    assert sorted(said.paths or ()) == sorted(orphans)
    assert vacuum(table.table, VacuumRequest(now=later)).deleted == len(orphans)
    assert table.stored() == table.needs(table.version) | {"notes.txt"}
    assert table.table.storage.exists("_other/x.parquet")
    assert table.read() == table.expected()


def test_no_secret_is_shown(s3: Store) -> None:
    bucket, options = s3
    wrong = {**options, "aws_endpoint": "http://127.0.0.1:9", "timeout": "1s", "connect_timeout": "1s"}
    wrong |= {"max_retries": "0", "aws_secret_access_key": "do-not-show-me"}
    backend = DeltaBackend(f"{bucket}/{uuid4()}", storage_options=wrong)
    with pytest.raises(DvMaintenanceError) as caught:
        purge(backend.open(), backend.engine())
    shown = [str(caught.value), repr(caught.value), json.dumps(caught.value.to_json())]
    assert not any("do-not-show-me" in text for text in shown)


@pytest.mark.parametrize("backend", [delta_on, pytest.param(paimon_on, marks=pytest.mark.deep)], indirect=True)
def test_fsck_looks_for_objects(backend: TableBackend) -> None:
    table = TableHistory(backend)
    table.append("a", 10)
    table.delete([1])
    opened = table.table
    assert isinstance(opened, FsckTable)
    assert fsck(opened, deep=True).clean
    needed = opened.needed_files(opened.snapshot()).to_pylist()
    storage = opened.storage
    for kind in ("data", "dv"):
        path = min(row["path"] for row in needed if row["kind"] == kind)
        data = storage.get(path)
        storage.delete([path])
        assert [(each.path, each.fault) for each in fsck(opened).damage] == [(path, "missing")]
        storage.put(path, data[:-1])
        assert [(each.path, each.fault) for each in fsck(opened).damage] == [(path, "size")]
        storage.put(path, data)
    assert fsck(opened).clean
