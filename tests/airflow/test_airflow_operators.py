"""The operators in a DAG run, and one that is stopped."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.airflow_stack import Airflow
from support.connect_server import connect_server

from dv_maintenance.maintenance.health import health
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
HEAD = """
from datetime import UTC, datetime
from airflow.sdk import DAG, task
from dv_maintenance.airflow import *
from dv_maintenance.airflow import (
    DvCheckOperator, DvDeleteOperator, DvErasureOperator, DvManifestOperator, DvTablesCheckOperator, DvNightOperator,
    DvOptimizeOperator, DvSensor, DvVacuumOperator,
)
with DAG("one", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), params={"lake": LAKE}):
"""
LOCAL = (
    HEAD
    + """
    due = DvSensor(task_id="due", table="{{ params.lake }}/a", storage_conn_id="lake", deferrable=False)
    tables = DvOptimizeOperator.partial(task_id="tables", engine="local").expand(table=[LAKE + "/a", LAKE + "/b"])
    days = DvOptimizeOperator.partial(
        task_id="days", table={"path": LAKE + "/c", "partitions": ["day"]}, engine="local"
    ).expand(partitions=[["day 0"], ["{{ 'day 1' }}"]])
    again = DvOptimizeOperator(task_id="again", table=LAKE + "/a")
    vacuum = DvVacuumOperator(task_id="vacuum", table=LAKE + "/a", only_if_due="{{ True }}")
    manifest = DvManifestOperator(task_id="manifest", table=LAKE + "/a", engine="local")
    named = {"path": LAKE + "/f", "asset": {"name": "of customers"}}
    counts = DvDeleteOperator(task_id="counts", table=named, engine="local", where="id < 600", count_only=True)
    deletes = DvDeleteOperator(task_id="deletes", table=named, engine="local", where="id < 500")
    nothing = DvDeleteOperator(task_id="nothing", table=named, engine="local", where="id < 500")
    counts >> deletes >> nothing
    warns = DvCheckOperator(task_id="warns", table=LAKE + "/d", fail_on=None)
    fails = DvCheckOperator(task_id="fails", table=LAKE + "/d", retries=2)
    night = DvNightOperator(task_id="night", tables_file=LAKE + "/night.yaml", engine="local", fail=False)
    after = DvTablesCheckOperator(task_id="after", of="night")
    due >> tables >> days >> again >> vacuum >> manifest >> warns >> night >> after >> fails
"""
)
SHORT = (
    HEAD
    + """
    tables = DvOptimizeOperator.partial(task_id="tables", engine="local").expand(table=["{{ params.lake }}/a"])
    named = {"path": LAKE + "/f", "asset": {"name": "of customers"}}
    deletes = DvDeleteOperator(task_id="deletes", table=named, engine="local", where="id < 500")
    fails = DvCheckOperator(task_id="fails", table=LAKE + "/f", retries=2)

    @task.dv_optimize(engine="local", partitions=["day 2"])
    def chosen(day, params):
        return {"table": {"path": params["lake"] + "/c", "partitions": ["day"]}, "partitions": [day]}

    @task.dv_delete(engine="local")
    def selected() -> dict:
        return {"table": LAKE + "/c", "where": "id < 500"}

    tables >> deletes >> chosen.expand(day=["day 0"]) >> selected() >> fails
"""
)
ON_SPARK = (
    HEAD
    + """
    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    spark = {"conn_id": "spark_here", "config_kwargs": conf}
    optimize = DvOptimizeOperator(task_id="optimize", table=LAKE + "/a", **spark)
    delete = DvDeleteOperator(task_id="delete", table=LAKE + "/b", where="id < {{ 500 }}", **spark)
    erase = DvErasureOperator(task_id="erase", table=LAKE + "/b", where="id < 600", **spark)
    local = DvOptimizeOperator(task_id="local", table=LAKE + "/c")
    night = DvNightOperator(task_id="night", tables_file=LAKE + "/night.yaml", **spark)
    optimize >> delete >> erase >> local >> night
"""
)
ON_CONNECT = (
    HEAD
    + """
    DvOptimizeOperator(task_id="optimize", table=LAKE + "/a", conn_id="spark_there")
"""
)


def build(lake: Path, *names: str) -> None:
    for name in names:
        table = DeltaBuilder(str(lake / name)).create(SCHEMA, partition_by=["day"])
        for day in range(3):
            table.append(pa.table({"id": range(1000), "day": [f"day {day}"] * 1000}, SCHEMA))
        table.delete(lambda rows: pc.less(rows["id"], 400))


def run(airflow: Airflow, lake: Path, dag: str) -> dict[tuple[str, int], tuple[str, Any]]:
    """State and XCom by task and map index."""
    (airflow.dags / "one.py").write_text(f"LAKE = {str(lake)!r}\n{dag}")
    airflow.cli("db", "migrate")
    airflow.cli("dags", "test", "one", check=False)
    database = sqlite3.connect(airflow.home / "airflow.db")
    xcoms = database.execute("select task_id, map_index, value from xcom where key = 'return_value'")
    values = {(task, index): json.loads(value) for task, index, value in xcoms}
    tasks = database.execute("select task_id, map_index, state from task_instance").fetchall()
    return {(task, index): (state, values.get((task, index))) for task, index, state in tasks}


def outputs(events: str) -> dict[str, list[tuple[str, Any]]]:
    """Tables that tasks wrote, by OpenLineage's events of their ends."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for event in map(json.loads, events.splitlines()):
        if event["eventType"] == "COMPLETE" and event["job"]["name"].startswith("one."):
            task = event["job"]["name"].removeprefix("one.")
            found.setdefault(task, []).extend((each["name"], each["outputFacets"]) for each in event["outputs"])
    return found


def with_dvs(lake: Path, name: str) -> list[str | None]:
    found = health(open_table(str(lake / name)).snapshot())
    return [each.partition["day"] for each in found.partitions if each.counts.files_with_dv]


def test_a_run_of_some(airflow_environment: Path, tmp_path: Path) -> None:
    """The short form of the next test: mapped and not, with events, one that fails."""
    build(tmp_path, "a", "c", "f")
    lineage = {"type": "file", "log_file_path": str(tmp_path / "lineage"), "append": True}
    airflow = Airflow(tmp_path / "home", AIRFLOW__OPENLINEAGE__TRANSPORT=json.dumps(lineage))
    done = run(airflow, tmp_path, SHORT)
    assert {key: state for key, (state, _) in done.items()} == {
        ("tables", 0): "success",
        ("deletes", -1): "success",
        ("chosen", 0): "success",
        ("selected", -1): "success",
        ("fails", -1): "failed",
    }
    assert list(done["chosen", 0][1]["partitions"]) == ["day 0"]
    assert done["selected", -1][1]["rows_deleted"] == 300
    assert done["tables", 0][1]["rows_purged"] == 1200
    assert "deleted_ratio: 50.00%" in done["fails", -1][1]["reason"]
    assert [event["rows_deleted"] for event in airflow.events("of customers")] == [300]
    written = outputs((tmp_path / "lineage").read_text())
    assert {task: [name for name, _ in tables] for task, tables in written.items() if tables} == {
        "tables": [str(tmp_path / "a")],
        "deletes": [str(tmp_path / "f")],
        "chosen": [str(tmp_path / "c")],
        "selected": [str(tmp_path / "c")],
    }


@pytest.mark.deep
def test_a_run_of_each(airflow_environment: Path, tmp_path: Path) -> None:
    build(tmp_path, "a", "b", "c", "d", "e", "f")
    (tmp_path / "night.yaml").write_text("budget: 30m\ntables: [{path: e}, {path: a}]\n")
    connection = json.dumps({"conn_type": "dvstorage", "extra": {"some_option": "x"}})
    lineage = {"type": "file", "log_file_path": str(tmp_path / "lineage"), "append": True}
    airflow = Airflow(
        tmp_path / "home", AIRFLOW_CONN_LAKE=connection, AIRFLOW__OPENLINEAGE__TRANSPORT=json.dumps(lineage)
    )
    done = run(airflow, tmp_path, LOCAL)
    assert {key: state for key, (state, _) in done.items() if state != "success"} == {("fails", -1): "failed"}
    shown = {key: value for key, (_, value) in done.items()}
    assert all(next(iter(value)) == "reason" for key, value in shown.items() if value and key[0] != "due")
    assert shown["due", -1]["due"] == ["optimize"]
    assert [shown["tables", index]["rows_purged"] for index in (0, 1)] == [1200, 1200]
    assert list(shown["days", 1]["partitions"]) == ["day 1"]
    assert with_dvs(tmp_path, "c") == ["day 2"]
    assert shown["again", -1]["reason"].startswith("- Nothing to do."), "and without Java"
    assert shown["vacuum", -1]["reason"].startswith("Nothing to do: no vacuum is due")
    assert shown["manifest", -1]["files"] == 3
    assert [event["rows_purged"] for event in airflow.events(f"file://{tmp_path}/e?dv=optimize")] == [1200]
    assert len(airflow.events(f"file://{tmp_path}/a?dv=optimize")) == 1, "neither the sensor's nor the night's table"
    rows = airflow.events("of customers")
    assert [event["rows_deleted"] for event in rows] == [300], rows
    assert with_dvs(tmp_path, "e") == []
    assert "deleted_ratio: 40.00%" in shown["fails", -1]["reason"]
    assert shown["warns", -1]["reason"] == shown["fails", -1]["reason"]
    written = outputs((tmp_path / "lineage").read_text())
    assert {task: sorted(name for name, _ in tables) for task, tables in written.items() if tables} == {
        "tables": [str(tmp_path / "a"), str(tmp_path / "b")],
        "days": [str(tmp_path / "c")] * 2,
        "manifest": [str(tmp_path / "a")],
        "deletes": [str(tmp_path / "f")],
        "night": [str(tmp_path / "e")],
    }
    assert all(facets["outputStatistics"]["fileCount"] == 1 for _, facets in written["days"])


@pytest.mark.deep
@pytest.mark.jvm
def test_on_a_connection_to_spark_and_on_none(airflow_environment: Path, tmp_path: Path) -> None:
    build(tmp_path, "a", "b", "c", "d", "e")
    (tmp_path / "night.yaml").write_text("budget: 30m\ntables: [{path: a}, {path: d}, {path: e}]\n")
    done = run(
        Airflow(tmp_path / "home", AIRFLOW_CONN_SPARK_HERE='{"conn_type": "spark", "host": "local[1]"}'),
        tmp_path,
        ON_SPARK,
    )
    assert {state for state, _ in done.values()} == {"success"}
    assert done["optimize", -1][1]["rows_purged"] == 1200
    assert done["delete", -1][1]["rows_deleted"] == 300
    assert done["erase", -1][1]["rows_deleted"] == 300
    assert done["erase", -1][1]["expires_at"]
    assert done["local", -1][1]["rows_purged"] == 1200
    assert done["night", -1][1]["reason"] == "2 tables of 3 had work done, 0 wait, 0 failed."
    assert [with_dvs(tmp_path, name) for name in "abcde"] == [[]] * 5


@pytest.mark.deep
@pytest.mark.jvm
def test_on_a_connection_to_a_connect_server(airflow_environment: Path, tmp_path: Path) -> None:
    build(tmp_path, "a")
    with connect_server(tmp_path, airflow_environment / "bin" / "python") as port:
        there = json.dumps({"conn_type": "spark_connect", "host": "127.0.0.1", "port": port})
        done = run(Airflow(tmp_path / "home", AIRFLOW_CONN_SPARK_THERE=there), tmp_path, ON_CONNECT)
    (state, shown) = done["optimize", -1]
    assert (state, shown["rows_purged"]) == ("success", 1200)
    assert with_dvs(tmp_path, "a") == []


def test_a_task_that_is_stopped_leaves_the_table_as_it_was(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    """As the task runner does on SIGTERM: it calls ``on_kill`` in the middle of ``execute``."""
    build(tmp_path, "a")
    before = sorted((tmp_path / "a").rglob("*"))
    script = f"""
import os, signal
from dv_maintenance.airflow import DvOptimizeOperator
from dv_maintenance.engine.local import LocalEngine
task = DvOptimizeOperator(task_id="optimize", table={str(tmp_path / "a")!r}, engine="local")
signal.signal(signal.SIGTERM, lambda number, frame: task.on_kill())
killed = []
class Stopped(LocalEngine):
    def run(self, tasks, *, on_done=None, **more):
        def done(result):
            on_done(result)
            if not killed:
                killed.append(result)
                os.kill(os.getpid(), signal.SIGTERM)
        return super().run(tasks, on_done=done, **more)
from dv_maintenance.airflow import spark
spark.LocalEngine = Stopped
class Instance: try_number = 1
try:
    DvOptimizeOperator.execute.__wrapped__(task, {{"ti": Instance()}})
except SystemExit as error:
    print("stopped:", error)
"""
    assert "stopped: killed" in in_airflow(script)
    assert sorted((tmp_path / "a").rglob("*")) == before


def test_the_keys_of_a_delete_are_an_input_also_if_it_could_not_be_verified(in_airflow: Callable[[str], str]) -> None:
    script = """
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from dv_maintenance.airflow import DvDeleteOperator, operators
from dv_maintenance.service.outcome import Outcome

class Instance:
    try_number = 1
    def xcom_push(self, **more): pass
class Events:
    def __getitem__(self, asset): return self  # Airflow 3.1 can't hash an alias
    def add(self, *given, **more): pass
def deleted(*given, **more):
    return Outcome("done", numbers={"dvs_added": 1, "rows_deleted": 3}, report={"dry_run": False, "rows_deleted": 3},
                   problems=("rows are missing",))
operators.verbs.opened = lambda table: None
operators.verbs.delete_rows = deleted
task = DvDeleteOperator(task_id="delete", table="s3://lake/orders", keys="/lake/gone.csv", on="id")
context = {"ti": Instance(), "outlet_events": Events()}
try:
    DvDeleteOperator.execute.__wrapped__(task, context)
except Exception as error:
    print(error)
found = DefaultExtractor(task).extract_on_failure(None)
print([each.name for each in found.inputs], [(each.namespace, each.name) for each in found.outputs])
"""
    said, shown = in_airflow(script).splitlines()[-2:]
    assert said == "not verified: rows are missing"
    assert shown == "['orders', '/lake/gone.csv'] [('s3://lake', 'orders')]"
