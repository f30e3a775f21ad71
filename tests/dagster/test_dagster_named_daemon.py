"""Tables of a catalog under a real Dagster daemon: the catalog is away, a permission is taken away, a name gets another
table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.dagster_deployment import Deployment, eventually
from support.managed import ALL
from support.named_lake import Away, NamedLake
from support.unity import TOKEN, Unity, unity

pytestmark = [pytest.mark.deep, pytest.mark.processes]

SENSOR = "dv_accumulation"


@pytest.fixture(scope="module")
def server() -> Iterator[Unity]:
    with unity() as made:
        yield made


@pytest.fixture(scope="module")
def lake(server: Unity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamedLake]:
    folder = tmp_path_factory.mktemp("named")
    (folder / "tables.yaml").write_text(
        f"catalogs:\n  uc: {{type: unity, uri: '{server.url}', token: '${{UC_TOKEN}}'}}\n"
        "defaults: {policy: {min_file_size: 0}}\n"
        "tables:\n- {table: uc.main.s.orders, name: orders}\n- {table: uc.main.s.refunds, name: refunds}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVM_CATALOGS", str(folder / "tables.yaml"))
        patch.setenv("UC_TOKEN", TOKEN)
        yield NamedLake(folder, server)


@pytest.fixture(scope="module")
def deployment(lake: NamedLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
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


def clean(lake: NamedLake, name: str) -> None:
    eventually(f"{name} is purged", lambda: lake.is_clean(name))
    assert lake.ids(name) == list(range(150, 400))


def said_since(deployment: Deployment, start: float, text: str) -> bool:
    return any(text in deployment.said(tick) for tick in deployment.ticks() if tick.timestamp >= start)


def test_what_is_due_is_purged_by_name(deployment: Deployment, lake: NamedLake) -> None:
    lake.delete("orders")
    clean(lake, "orders")
    (run,) = runs(deployment)
    assert deployment.finished(run.run_id).is_success


def test_a_catalog_that_is_away_is_said_and_the_work_is_done_later(
    deployment: Deployment, lake: NamedLake, server: Unity
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
    deployment: Deployment, lake: NamedLake, server: Unity
) -> None:
    before = len(runs(deployment))
    start = time.time()
    server.permit("main.s.refunds", "DATA_CLEANUP")
    lake.append("refunds")
    version = lake.version("refunds")
    lake.delete("refunds")
    eventually("a tick or a run says so", lambda: said_since(deployment, start, "DATA_REORGANIZATION"))
    assert lake.version("refunds") == version + 1
    for run in runs(deployment)[before:]:
        assert not deployment.finished(run.run_id).is_success
    server.permit("main.s.refunds", *ALL)
    deployment.later(3600)
    eventually("refunds is purged", lambda: lake.is_clean("refunds"))


def test_another_table_of_the_same_name(deployment: Deployment, lake: NamedLake) -> None:
    lake.tables["orders"] = lake.made("orders", "two")
    lake.delete("orders")
    clean(lake, "orders")
