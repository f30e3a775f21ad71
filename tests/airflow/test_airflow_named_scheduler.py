"""Tables of a catalog under a real scheduler, triggerer and DAG processor: the catalog is away, a permission is taken
away, a name gets another table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.airflow_stack import EVERY_SECONDS, Airflow, ended, eventually
from support.managed import ALL
from support.named_lake import Away, NamedLake
from support.unity import TOKEN, Unity, unity

pytestmark = [pytest.mark.deep, pytest.mark.processes]

DAGS = {"orders": "lake.orders", "refunds": "lake.s__refunds", "returns": "lake.s__returns"}
CATALOG = {"type": "unity", "token": TOKEN}


@pytest.fixture(scope="module")
def airflow(airflow_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Only a connection has the token."""
    extra = {"catalogs": {"uc": CATALOG}}
    connection = json.dumps({"conn_type": "dvstorage", "extra": extra})
    with Airflow(tmp_path_factory.mktemp("stack"), AIRFLOW_CONN_LAKE=connection) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[Unity]:
    with unity() as made:
        yield made


@pytest.fixture(scope="module")
def lake(airflow: Airflow, server: Unity, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamedLake]:
    folder = tmp_path_factory.mktemp("named")
    file, catalogs = folder / "tables.yaml", folder / "catalogs.yaml"
    catalogs.write_text(json.dumps({"catalogs": {"uc": {**CATALOG, "uri": server.url}}}))
    file.write_text(
        f"name: lake\nsensor: {{every_seconds: {EVERY_SECONDS}}}\nspark: {{engine: local}}\n"
        f"catalogs: {{uc: {{type: unity, uri: '{server.url}'}}}}\n"
        "defaults: {jobs: [optimize], policy: {min_file_size: 0}}\n"
        "tables: [{table: uc.main.s.orders, name: orders}]\n"
        "folders: [{schema: uc.main.s, name: s}]\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVM_CATALOGS", str(catalogs))
        made = NamedLake(folder, server)
        (airflow.dags / "lake.py").write_text(
            "from dv_maintenance.airflow import dv_maintenance_dags\n\n"
            f"dv_maintenance_dags({str(file)!r}, storage_conn_id='lake', fail_on=None)\n"
        )
        airflow.unpause(DAGS["orders"], DAGS["refunds"])
        yield made


def clean(lake: NamedLake, name: str, seconds: float = 120) -> None:
    eventually(f"{name} is purged", lambda: lake.is_clean(name), seconds=seconds)
    assert lake.ids(name) == list(range(150, 400))


class Triggerer:
    """What the triggerer says from now on."""

    def __init__(self, airflow: Airflow) -> None:
        self.log = airflow.home / "triggerer.log"
        self.start = self.log.stat().st_size

    def says(self, *texts: str) -> None:
        def said() -> bool:
            lines = self.log.read_bytes()[self.start :].decode().splitlines()
            return any(all(text in line for text in texts) for line in lines)

        eventually(f"the triggerer says {texts}", said)


def optimizations(airflow: Airflow, name: str) -> list[Any]:
    """States of the tasks, the newest last."""
    return [task["state"] for task in airflow.tasks(DAGS[name]) if task["task"] == "optimize"]


_PARSED = "select last_parsed_time from dag where dag_id = ?"


def later(airflow: Airflow, table: str, seconds: int) -> None:
    """The table's runs ended earlier."""
    for variable in airflow.api("GET", "/variables?limit=1000")["variables"]:
        if variable["key"].startswith(f"dv_maintenance.{table}.optimize."):
            run = json.loads(variable["value"])
            run["ended"] -= 1000 * seconds
            body = {"key": variable["key"], "value": json.dumps(run), "description": variable["description"]}
            airflow.api("PATCH", f"/variables/{variable['key']}", body)


def test_what_is_due_is_purged_by_name(airflow: Airflow, lake: NamedLake) -> None:
    for name in lake.tables:
        lake.delete(name)
    for name in lake.tables:
        clean(lake, name)
        (run,) = ended(airflow, DAGS[name], 1)
        assert (run["state"], run["type"]) == ("success", "asset_triggered")


def test_a_catalog_that_is_away_is_said_and_the_work_is_done_later(
    airflow: Airflow, lake: NamedLake, server: Unity
) -> None:
    airflow.kill("triggerer")
    lake.delete("orders")
    triggerer = Triggerer(airflow)
    server.faults = Away(["busy"])
    try:
        airflow.start("triggerer")
        triggerer.says("orders", "503")
        triggerer.says("uc.main.s could not be searched", "503")
        parsed = airflow.rows(_PARSED, DAGS["refunds"])
        eventually("its DAG is still there", lambda: airflow.rows(_PARSED, DAGS["refunds"]) > parsed)
        airflow.api("POST", f"/dags/{DAGS['orders']}/dagRuns", {"logical_date": None})
        eventually("a task waits for it", lambda: optimizations(airflow, "orders")[-1] == "up_for_retry")
    finally:
        server.faults = []
    clean(lake, "orders", 600)
    assert {run["state"] for run in ended(airflow, DAGS["orders"], 2)} == {"success"}
    assert not airflow.rows("select filename, stacktrace from import_error")
    lake.tables["returns"] = lake.made("returns")
    airflow.unpause(DAGS["returns"])
    lake.delete("returns")
    clean(lake, "returns")


def test_without_the_permission_nothing_is_written_and_with_it_the_work_is_done(
    airflow: Airflow, lake: NamedLake, server: Unity
) -> None:
    triggerer = Triggerer(airflow)
    server.permit("main.s.refunds", "DATA_CLEANUP")
    lake.append("refunds")
    version = lake.version("refunds")
    lake.delete("refunds")
    triggerer.says("s/refunds", "failed, and would fail again", "DATA_REORGANIZATION", "waiting for")
    assert optimizations(airflow, "refunds")[1:] == ["failed"]
    assert lake.version("refunds") == version + 1
    server.permit("main.s.refunds", *ALL)
    later(airflow, "s/refunds", 3600)
    eventually("refunds is purged", lambda: lake.is_clean("refunds"))


def test_another_table_of_the_same_name(airflow: Airflow, lake: NamedLake, server: Unity) -> None:
    runs = len(airflow.runs(DAGS["orders"]))
    triggerer = Triggerer(airflow)
    del server.tables["main.s.orders"]
    triggerer.says("orders", "does not exist")
    lake.tables["orders"] = lake.made("orders", "two")
    lake.delete("orders")
    clean(lake, "orders")
    assert ended(airflow, DAGS["orders"], runs + 1)[-1]["state"] == "success"
