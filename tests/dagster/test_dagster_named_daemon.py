"""Tables of a catalog under a real Dagster daemon: the catalog is away, a permission is taken away, a name gets another
table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.dagster_deployment import Deployment, eventually
from support.managed import ALL, ManagedBackend
from support.unity import TOKEN, Unity, unity

from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read

pytestmark = [pytest.mark.deep, pytest.mark.processes]

SENSOR = "dv_accumulation"
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.string())])
ROWS = pa.table({"id": range(400), "p": ["a"] * 400, "v": ["x"] * 400}, SCHEMA)


class Away(list[str]):
    """The faults of a server that answers nobody."""

    def pop(self, _index: Any = -1) -> str:
        return self[0]


class Lake:
    """The managed tables ``orders`` and ``refunds`` of a schema, each with 400 rows."""

    def __init__(self, folder: Path, server: Unity) -> None:
        self.folder, self.server = folder, server
        self.tables = {name: self.made(name) for name in ("orders", "refunds")}

    def made(self, name: str, generation: str = "one") -> ManagedBackend:
        table = ManagedBackend(self.folder / generation / name, self.server)
        table.create()
        self.server.tables[table.table]["metadata"]["table-uuid"] = f"{name} {generation}"
        table.join()
        table._builder.append(ROWS, files=2)
        return table

    def delete(self, name: str) -> None:
        """The first 150 rows: three quarters of a file."""
        self.tables[name]._builder.delete(lambda rows: pc.less(rows["id"], 150))

    def is_clean(self, name: str) -> bool:
        return not health(self.tables[name].open().snapshot()).counts.files_with_dv

    def ids(self, name: str) -> list[int]:
        _, batches = read(self.tables[name].open())
        return sorted(row["id"] for batch in batches for row in batch.to_pylist())


@pytest.fixture(scope="module")
def server() -> Iterator[Unity]:
    with unity() as made:
        yield made


@pytest.fixture(scope="module")
def lake(server: Unity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("named")
    (folder / "tables.yaml").write_text(
        f"catalogs:\n  uc: {{type: unity, uri: '{server.url}', token: '${{UC_TOKEN}}'}}\n"
        "defaults: {policy: {min_file_size: 0}}\n"
        "tables:\n- {table: uc.main.s.orders, name: orders}\n- {table: uc.main.s.refunds, name: refunds}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVM_CATALOGS", str(folder / "tables.yaml"))
        patch.setenv("UC_TOKEN", TOKEN)
        yield Lake(folder, server)


@pytest.fixture(scope="module")
def deployment(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(
        tmp_path_factory.mktemp("deployment"), lake.folder / "tables.yaml", sensors={SENSOR: ["optimize"]}
    )
    try:
        made.start()
        made.switch_on(SENSOR)
        yield made
    finally:
        made.stop()


def runs(deployment: Deployment) -> list[Any]:
    return list(reversed(deployment.instance.get_runs()))


def clean(lake: Lake, name: str) -> None:
    eventually(f"{name} is purged", lambda: lake.is_clean(name))
    assert lake.ids(name) == list(range(150, 400))


def said_since(deployment: Deployment, start: float, text: str) -> bool:
    return any(text in deployment.said(tick) for tick in deployment.ticks() if tick.timestamp >= start)


def test_what_is_due_is_purged_by_name(deployment: Deployment, lake: Lake) -> None:
    lake.delete("orders")
    clean(lake, "orders")
    (run,) = runs(deployment)
    assert deployment.finished(run.run_id).is_success


def test_a_catalog_that_is_away_is_said_and_the_work_is_done_later(
    deployment: Deployment, lake: Lake, server: Unity
) -> None:
    start = time.time()
    server.faults = Away(["busy"])
    try:
        eventually("a tick says so", lambda: said_since(deployment, start, "503"))
    finally:
        server.faults = []
    lake.delete("refunds")
    clean(lake, "refunds")


def test_without_the_permission_nothing_is_written_and_with_it_the_work_is_done(
    deployment: Deployment, lake: Lake, server: Unity
) -> None:
    before = len(runs(deployment))
    start = time.time()
    server.permit("main.s.refunds", "DATA_CLEANUP")
    table = lake.tables["refunds"]
    table._builder.append(ROWS, files=2)
    version = table.open().snapshot().version
    table._builder.delete(lambda rows: pc.less(rows["id"], 150))
    eventually("a tick or a run says so", lambda: said_since(deployment, start, "DATA_REORGANIZATION"))
    assert table.open().snapshot().version == version + 1
    for run in runs(deployment)[before:]:
        assert not deployment.finished(run.run_id).is_success
    server.permit("main.s.refunds", *ALL)
    deployment.later(3600)
    eventually("refunds is purged", lambda: lake.is_clean("refunds"))


def test_another_table_of_the_same_name(deployment: Deployment, lake: Lake) -> None:
    lake.tables["orders"] = lake.made("orders", "two")
    lake.delete("orders")
    clean(lake, "orders")
