"""Runs in a real scheduler: by the clock, by hand with parameters, and backfills."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.airflow_stack import EVERY_SECONDS, Airflow, ended, eventually

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
