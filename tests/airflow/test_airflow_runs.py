"""Runs in a real scheduler: by the clock, by hand with parameters, and backfills."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.airflow_stack import EVERY_SECONDS, Airflow, due, ended, eventually, watched_up_to_now

from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

pytestmark = [pytest.mark.deep]

TODAY = datetime.now(UTC)
DAYS = [str(TODAY.date() - timedelta(days=back)) for back in range(8, 0, -1)]
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def built(place: Path) -> DeltaBuilder:
    table = DeltaBuilder(str(place)).create(SCHEMA, partition_by=["day"])
    for day in DAYS:
        table.append(pa.table({"id": range(1000), "day": [day] * 1000}, SCHEMA))
    table.delete(lambda rows: pc.less(rows["id"], 250))
    return table


def dag_file(airflow: Airflow, folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.yaml").write_text(f"name: {name}\nspark: {{engine: local}}\n{text}")
    (airflow.dags / f"{name}.py").write_text(
        "from dv_maintenance.airflow import dv_maintenance_dags\n\n"
        f"dv_maintenance_dags({str(folder / f'{name}.yaml')!r}, retries=0)\n"
    )


def started(airflow: Airflow, dag: str, runs: int, **conf: Any) -> dict[str, Any]:
    eventually(f"{dag} is there", lambda: airflow.rows("select 1 from dag where dag_id = ?", dag))
    airflow.api("POST", f"/dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})
    return ended(airflow, dag, runs)[-1]


def states(airflow: Airflow, run: dict[str, Any]) -> dict[str, str]:
    return {task["task"]: task["state"] for task in airflow.tasks(run["dag"]) if task["run"] == run["run"]}


def log_of(airflow: Airflow, run: dict[str, Any], task: str) -> str:
    folder = airflow.home / "logs" / f"dag_id={run['dag']}" / f"run_id={run['run']}" / f"task_id={task}"
    return "".join(path.read_text() for path in sorted(folder.rglob("*.log")))


def with_dvs(place: Path) -> int:
    return open_table(str(place)).snapshot().files.filter(pc.field("dv_id").is_valid()).num_rows


def test_unpausing_starts_what_is_due_and_no_missed_run(airflow: Airflow, tmp_path: Path) -> None:
    built(tmp_path / "clocked")
    missed = (TODAY - timedelta(hours=2)).hour
    dag_file(
        airflow,
        tmp_path,
        "missed",
        f"sensor: {{every_seconds: {EVERY_SECONDS}}}\nschedule: {{cron: '0 {missed} * * *'}}\n"
        "tables: [{path: clocked, jobs: [optimize]}]\n",
    )
    airflow.unpause("missed.clocked")
    runs = ended(airflow, "missed.clocked", 1, tmp_path / "clocked")
    assert [(run["type"], run["state"]) for run in runs] == [("asset_triggered", "success")]
    assert with_dvs(tmp_path / "clocked") == 0


def test_a_run_by_hand_with_parameters_and_checks_after_a_failure(airflow: Airflow, tmp_path: Path) -> None:
    built(tmp_path / "orders")
    dag_file(
        airflow,
        tmp_path,
        "hand",
        "sensor: null\ntables: [{path: orders, jobs: [optimize, vacuum], policy: {max_deleted_ratio: 0.9}, "
        f"partitions: {{name: day, every: day, start: {DAYS[0]}}}}}]\n",
    )
    before = open_table(str(tmp_path / "orders")).version()
    run = started(airflow, "hand.orders", 1, dry_run=True, purge=True)
    assert states(airflow, run) == {"optimize": "success", "vacuum": "success", "check": "success", "done": "success"}
    assert open_table(str(tmp_path / "orders")).version() == before
    plan = airflow.xcom("hand.orders", run["run"], "optimize", "plan")
    assert isinstance(plan, list), "the page shows a text as one line"
    assert any("step-1" in line for line in plan)

    run = started(airflow, "hand.orders", 2, policy={"max_deleted_ratoi": 0.1})
    assert states(airflow, run) == {
        "optimize": "failed",
        "vacuum": "success",
        "check": "success",
        "done": "upstream_failed",
    }
    assert run["state"] == "failed", "a check that passes does not hide what failed"
    found = airflow.xcom("hand.orders", run["run"], "check", "deleted_ratio")
    assert found["reason"], found

    run = started(airflow, "hand.orders", 3, purge=True, partitions=DAYS[:2])
    assert run["state"] == "success"
    assert sorted(airflow.xcom("hand.orders", run["run"], "optimize")["partitions"]) == DAYS[:2]
    assert with_dvs(tmp_path / "orders") == len(DAYS) - 2

    run = started(airflow, "hand_plan", 1)
    assert (run["state"], with_dvs(tmp_path / "orders")) == ("success", len(DAYS) - 2), "a plan changes nothing"
    run = started(airflow, "hand_purge", 1)
    assert (run["state"], with_dvs(tmp_path / "orders")) == ("success", 0)
    names = airflow.rows("select rendered_map_index from task_instance where dag_id = ? and map_index = 0", run["dag"])
    assert names == [("orders",)]


def test_backfills_never_overlap_and_a_run_without_a_date_says_what_to_choose(airflow: Airflow, tmp_path: Path) -> None:
    built(tmp_path / "by_day")
    dag_file(
        airflow,
        tmp_path,
        "back",
        f"sensor: null\ntables: [{{path: by_day, partitions: {{name: day, every: day, start: {DAYS[0]}}}}}]\n",
    )
    dag = "back.by_day.partitions"
    run = started(airflow, dag, 1)
    assert run["state"] == "failed"
    assert "no partition was chosen" in (text := log_of(airflow, run, "optimize")), text[-3000:]
    body = {
        "dag_id": dag,
        "from_date": f"{DAYS[1]}T00:00:00Z",
        "to_date": f"{DAYS[6]}T00:00:00Z",
        "max_active_runs": 6,
        "run_backwards": False,
        "dag_run_conf": {},
    }

    def created() -> bool:
        # SQLite refuses a transaction that read before another one wrote, and the API does not try again.
        for (backfill,) in airflow.rows("select id from backfill where completed_at is null"):
            airflow.api("PUT", f"/backfills/{backfill}/cancel")
        try:
            airflow.api("POST", "/backfills", {**body, "reprocess_behavior": "completed"})
        except HTTPError as error:
            if error.code != 500:
                raise
            return False
        return True

    eventually("the backfill is created", created)
    runs = [run for run in ended(airflow, dag, 7) if run["type"] == "backfill"]
    assert len(runs) == 6
    assert {run["state"] for run in runs} == {"success"}
    tasks = sorted((task["start"], task["end"]) for task in airflow.tasks(dag) if task["state"] == "success")
    assert all(end <= start for (_, end), (start, _) in pairwise(tasks)), tasks
    assert with_dvs(tmp_path / "by_day") == 2


def test_a_new_table_appears_and_a_folder_that_cannot_be_searched_stops_nothing(
    airflow: Airflow, tmp_path: Path
) -> None:
    built(tmp_path / "lake" / "first")
    (tmp_path / "denied").mkdir(mode=0)
    dag_file(
        airflow,
        tmp_path,
        "folders",
        f"sensor: {{every_seconds: {EVERY_SECONDS}}}\n"
        "folders: [{path: lake, jobs: [optimize]}, {path: missing, name: other}, {path: denied, name: closed}]\n",
    )
    airflow.unpause("folders.first")
    (run,) = ended(airflow, "folders.first", 1, tmp_path / "lake" / "first")
    assert run["state"] == "success"
    searched = airflow.rows("select count(*) from variable where key like 'dv_maintenance.folders.%'")
    assert searched == [(1,)]
    built(tmp_path / "lake" / "second")
    airflow.unpause("folders.second")
    (run,) = ended(airflow, "folders.second", 1, tmp_path / "lake" / "second")
    assert run["state"] == "success"


def test_a_run_that_failed_waits_for_a_change_and_the_log_says_so(airflow: Airflow, tmp_path: Path) -> None:
    place = tmp_path / "again"
    built(place)
    text = f"sensor: {{every_seconds: {EVERY_SECONDS}}}\ntables: [{{path: again, jobs: [optimize], policy: POLICY}}]\n"
    dag_file(airflow, tmp_path, "retried", text.replace("POLICY", "{max_deleted_ratio: 0.01}"))
    folders = [path for path in place.iterdir() if path.is_dir()]
    for folder in folders:
        folder.chmod(0o555)
    dag, due_events = "retried.again", f"file://{place}?dv=due&name=%"
    airflow.unpause(dag)
    (run,) = ended(airflow, dag, 1)
    assert run["state"] == "failed"
    why = "again: optimize at version 9 failed, and would fail again; waiting for a new version, other settings"
    eventually("the watcher says what it waits for", lambda: why in (airflow.home / "triggerer.log").read_text())
    assert "Permission denied" in (airflow.home / "triggerer.log").read_text()
    for folder in folders:
        folder.chmod(0o755)
    assert len(airflow.events(due_events)) == 1, "a storm"
    dag_file(airflow, tmp_path, "retried", text.replace("POLICY", "{max_deleted_ratio: 0.02}"))
    runs = ended(airflow, dag, 2, place)
    assert [run["state"] for run in runs] == ["failed", "success"]
    assert len(airflow.events(due_events)) == 2
    assert with_dvs(place) == 0


def test_nothing_starts_on_damaged_files_until_they_are_back_and_a_renamed_table_is_maintained(
    airflow: Airflow, tmp_path: Path
) -> None:
    place = tmp_path / "hurt"
    table = built(place)
    text = f"sensor: {{every_seconds: {EVERY_SECONDS}}}\ntables: [{{path: hurt, NAME, jobs: [optimize]}}]\n"
    dag_file(airflow, tmp_path, "hurt", text.replace("NAME", "name: old"))
    away = {dv: tmp_path / f"{number}.away" for number, dv in enumerate(place.rglob("*.bin"))}
    assert away
    for dv, elsewhere in away.items():
        dv.rename(elsewhere)
    airflow.unpause("hurt.old")
    why = "old: optimize due, but nothing is started on a damaged table"
    eventually("the watcher says why", lambda: why in (airflow.home / "triggerer.log").read_text())
    for dv, elsewhere in away.items():
        assert not airflow.runs("hurt.old")
        elsewhere.rename(dv)
    (run,) = ended(airflow, "hurt.old", 1, place)
    assert (run["state"], with_dvs(place)) == ("success", 0)

    dag_file(airflow, tmp_path, "hurt", text.replace("NAME", "name: new"))
    gone = "hurt.yaml has no table 'old'"
    eventually("its watcher says so", lambda: gone in (airflow.home / "triggerer.log").read_text())
    # Both DAGs are scheduled on the asset of this place.
    stale = "select 1 from dag where dag_id = 'hurt.old' and is_stale"
    eventually("its DAG is gone", lambda: airflow.rows(stale), seconds=300)
    table.delete(lambda rows: pc.less(rows["id"], 500))
    airflow.unpause("hurt.new")
    (run,) = ended(airflow, "hurt.new", 1, place)
    assert (run["state"], with_dvs(place)) == ("success", 0)
    assert len(airflow.runs("hurt.old")) == 1


def test_what_is_wrong_with_a_dag_shows_in_the_page(airflow: Airflow, tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text("name: incomplete\nsensor: null\ntables: [{path: orders}]\n")
    (airflow.dags / "incomplete.py").write_text(
        "from dv_maintenance.airflow import dv_maintenance_dags\n\n"
        f"dv_maintenance_dags({str(tmp_path / 'tables.yaml')!r}, storage_conn_id='nowhere', pool='no_pool')\n"
    )
    wrong = airflow.dags / "wrong.py"
    wrong.write_text(
        "from airflow.sdk import DAG\nfrom dv_maintenance.airflow import DvCheckOperator\n"
        "with DAG('wrong', schedule=None):\n"
        f"    DvCheckOperator(task_id='check', table={str(tmp_path / 'orders')!r}, checks=['deleted_ratoi'])\n"
    )

    def said(what: str, path: str, key: str, field: str) -> bool:
        return any(what in each[field] for each in airflow.api("GET", path)[key])

    misspelled = ("checks can't be 'deleted_ratoi'", "/importErrors", "import_errors", "stack_trace")
    eventually("a misspelled check", lambda: said(*misspelled))
    dag = "incomplete.orders"
    airflow.unpause(dag)
    assert "There is no connection `nowhere`" in airflow.api("GET", f"/dags/{dag}/details")["doc_md"]
    run = airflow.api("POST", f"/dags/{dag}/dagRuns", {"logical_date": None})["dag_run_id"]
    task = f"/dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/optimize/dependencies"
    no_pool = ("non-existent pool 'no_pool'", task, "dependencies", "reason")
    eventually("its pool is missing", lambda: said(*no_pool))
    wrong.unlink()


def test_a_run_in_the_queue_does_what_comes_meanwhile(airflow: Airflow, tmp_path: Path) -> None:
    """Events that came while it waited started another one, which found nothing to do."""
    place = tmp_path / "crowded"
    table = built(place)
    airflow.cli("pools", "set", "narrow", "0", "has no slots yet")
    dag_file(
        airflow,
        tmp_path,
        "queue",
        f"sensor: {{every_seconds: {EVERY_SECONDS}}}\ntables: [{{path: crowded, jobs: [optimize], pool: narrow}}]\n",
    )
    airflow.unpause(dag := "queue.crowded")
    for below in (300, 400, 500):
        eventually("a run waits for the pool", lambda: airflow.runs(dag))
        watched_up_to_now(airflow, place)
        table.delete(lambda rows, below=below: pc.less(rows["id"], below))
    watched_up_to_now(airflow, place)
    airflow.cli("pools", "set", "narrow", "1", "has one")
    ended(airflow, dag, 1, place)
    left = "select 1 from asset_dag_run_queue where target_dag_id = ?"
    eventually("no event waits for a run", lambda: not airflow.rows(left, dag))
    runs = ended(airflow, dag, 1, place)
    assert with_dvs(place) == 0
    assert [airflow.xcom(dag, run["run"], "optimize")["steps"] > 0 for run in runs] == [True]
    assert len(airflow.events(due(place))) == 1


NAMED = """
from datetime import UTC, datetime
from airflow.sdk import DAG, Asset, task
from dv_maintenance.airflow import DvDeleteOperator
begin = {"start_date": datetime(2026, 1, 1, tzinfo=UTC)}
orders = Asset(name="orders of sales", uri="file://PATH")
with DAG("named_producer", schedule=None, **begin):
    task(lambda: None, task_id="load", outlets=[orders])()
with DAG("named_consumer", schedule=[orders], **begin):
    task(lambda: None, task_id="reads")()
with DAG("named_delete", schedule=None, **begin):
    DvDeleteOperator(task_id="delete", table="named", tables_file="FILE", engine="local", where="id < 500")
"""


def test_an_asset_that_its_users_have_named(airflow: Airflow, tmp_path: Path) -> None:
    place = tmp_path / "named"
    built(place)
    dag_file(airflow, tmp_path, "called", "sensor: null\ntables: [{path: named, asset: orders of sales}]\n")
    text = NAMED.replace("PATH", str(place)).replace("FILE", str(tmp_path / "called.yaml"))
    (airflow.dags / "named.py").write_text(text)
    airflow.unpause("named_producer", "named_consumer", "named_delete", "called.named")
    for dag in ("named_producer", "called.named", "named_delete"):
        assert started(airflow, dag, 1)["state"] == "success", dag
    assert [run["state"] for run in ended(airflow, "named_consumer", 2)] == ["success"] * 2
    assert [event.get("rows_deleted") for event in airflow.events("orders of sales")] == [None, 250 * len(DAYS)]


def test_a_night_whose_tables_are_checked_by_nobody_else(airflow: Airflow, tmp_path: Path) -> None:
    for name in ("one", "other"):
        built(tmp_path / name)
    dag_file(
        airflow,
        tmp_path,
        "late",
        "sensor: null\nbudget: 30m\ndefaults: {jobs: [optimize]}\ntables: [{path: one}, {path: other}]\n",
    )
    run = started(airflow, "late_night", 1)
    assert run["state"] == "success"
    assert [with_dvs(tmp_path / name) for name in ("one", "other")] == [0, 0]
    checked = airflow.rows(
        "select t.rendered_map_index, x.value from task_instance t join xcom x on x.dag_id = t.dag_id "
        "and x.run_id = t.run_id and x.task_id = t.task_id and x.map_index = t.map_index "
        "where t.dag_id = 'late_night' and t.task_id = 'checks' and x.key = 'deleted_ratio' order by 1"
    )
    assert [name for name, _ in checked] == ["one", "other"]
    assert all(json.loads(found)["severity"] == "ok" for _, found in checked), checked
