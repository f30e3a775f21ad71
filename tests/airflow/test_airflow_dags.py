"""DAGs from the file of tables: the same keys and the same errors as Dagster's component."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

FILE = """
type: dv_maintenance.DvMaintainedTablesComponent
attributes:
  name: lake
  defaults: {owners: ["team:sales"], group_name: raw}
  tables:
    - path: orders
      name: sales/orders
      jobs: [optimize, vacuum, manifest]
      partitions: {name: day, every: day, start: 2026-01-01}
      tags: {tier: gold}
    - {path: events, pool: shared}
  schedule: {cron: "0 3 * * *", vacuum_cron: "0 5 * * *", fsck_cron: "0 6 * * 0"}
  sensor: {every_seconds: 7}
  spark: {master: "sc://spark:15002", conf: {spark.executor.memory: 2g}}
"""

SHOW = """
import json
from dv_maintenance.airflow import dv_maintenance_dags
def shown(dag):
    return {
        "assets": [[asset.name, asset.uri] for asset in dag.timetable.asset_condition.objects]
                  if getattr(dag.timetable, "asset_condition", None) else [],
        "inlets": [str(inlet) for task in dag.tasks for inlet in task.inlets],
        "schedule": type(dag.timetable).__name__, "tags": sorted(dag.tags), "runs": dag.max_active_runs,
        "tasks": {task.task_id: [sorted(task.downstream_task_ids), task.owner, task.pool] for task in dag.tasks},
        "watches": [watcher.trigger.serialize()[1] for asset in dag.timetable.asset_condition.objects
                    for watcher in asset.watchers] if getattr(dag.timetable, "asset_condition", None) else [],
        "params": sorted(dag.params), "paused": dag.is_paused_upon_creation,
        "after failures": [task.task_id for task in dag.tasks if task.trigger_rule == "all_done"],
        "limits": {task.task_id: task.max_active_tis_per_dag for task in dag.tasks},
        "spark": {task.task_id: [task.conn_id, task.config_kwargs] for task in dag.tasks
                  if hasattr(task, "conn_id") and not task.is_mapped},
    }
print(json.dumps({dag.dag_id: shown(dag) for dag in dv_maintenance_dags("tables.yaml", ARGUMENTS)}))
"""


def test_a_dag_for_each_table_and_each_schedule(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text(FILE)
    dags = json.loads(in_airflow(SHOW.replace("ARGUMENTS", "pool='dv_{table}'")).splitlines()[-1])
    name, orders, backfills = "sales__orders", "lake.sales__orders", "lake.sales__orders.partitions"
    fscks = {f"lake_fsck.{name}", "lake_fsck.events"}
    presets = {"lake_plan", "lake_purge", "lake_report", "lake_simulation"}
    assert dags.keys() == {orders, "lake.events", "lake_vacuum", backfills} | fscks | presets
    assert dags["lake_simulation"]["params"] == ["policy", "since", "tables"]
    assert dags["lake_fsck.events"]["tasks"] == {"fsck": [[], "team:sales", "shared"]}
    assert dags["lake_fsck.events"]["schedule"] == "Clock"
    assert dags["lake_plan"]["params"] == ["dry_run", "policy", "purge", "tables"]
    assert {name for name, dag in dags.items() if dag["paused"] is False} == {backfills, *presets}
    assert dags[backfills]["limits"] == {"optimize": 1}, "a backfill has its own limit of runs"
    assert dags[orders]["params"] == ["dry_run", "partitions", "policy", "purge"]
    assert dags["lake_vacuum"]["params"] == ["dry_run", "retention"]
    assert dags[orders]["after failures"] == ["check"]
    of_orders = dags[orders]
    assert of_orders["tasks"] == {
        "optimize": [["check", "done", "manifest"], "team:sales", f"dv_{name}"],
        "manifest": [["check", "done"], "team:sales", f"dv_{name}"],
        "check": [["done"], "team:sales", f"dv_{name}"],
        "done": [[], "team:sales", "default_pool"],
    }
    assert list(dags["lake_vacuum"]["tasks"]) == ["vacuum", "check"]
    assert dags["lake_vacuum"]["schedule"] == "AssetOrTimeSchedule"
    (vacuums,) = dags["lake_vacuum"]["watches"]
    assert (vacuums["name"], vacuums["every_seconds"]) == ("lake", 7)
    assert of_orders["tags"] == ["dv_maintenance", "raw", "tier:gold"]
    assert of_orders["schedule"] == "AssetOrTimeSchedule"
    assert of_orders["runs"] == 1
    (watch,) = of_orders["watches"]
    assert (watch["table"], watch["jobs"], watch["every_seconds"]) == ("sales/orders", ["optimize", "manifest"], 7)
    assert of_orders["spark"]["optimize"] == [None, {"spark.remote": "sc://spark:15002", "spark.executor.memory": "2g"}]
    assert list(dags[backfills]["tasks"]) == ["optimize"]
    assert of_orders["assets"] == [[f"file://{tmp_path}/orders?dv=due&name=lake"] * 2], "called by its URI"
    assert not any(dag["inlets"] for dag in dags.values()), "an inlet that nobody else uses may be inactive in Airflow"


MORE = """
import json
import airflow.serialization.serialized_objects as stored
from dv_maintenance.airflow import dv_maintenance_dags

dag, *_ = dv_maintenance_dags("all.yaml", per_table=False, spark_conn_id="cluster")
task = dag.get_task("orders.optimize")
print(json.dumps([sorted(dag.task_ids), len(dag.timetable.asset_condition.objects), task.conn_id, task.config_kwargs]))
try:
    dv_maintenance_dags("wrong.yaml")
except Exception as error:
    print(type(error).__name__, error)
serialization = getattr(stored, "DagSerialization", None) or stored.SerializedDAG  # the latter: Airflow 3.1
print(json.dumps([serialization.to_dict(dag) for dag in dv_maintenance_dags("secret.yaml")]))

# As the scheduler does it: from the database, asked for its own run and then for those of a backfill.
from airflow.timetables.base import TimeRestriction
from pendulum import datetime
(days,) = [dag for dag in dv_maintenance_dags("days.yaml") if dag.dag_id.endswith(".partitions")]
timetable = serialization.from_dict(serialization.to_dict(days)).timetable
scheduled = TimeRestriction(datetime(2026, 1, 1), None, days.catchup)
own = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=scheduled)
runs, last = [], None
while True:
    chosen = TimeRestriction(datetime(2026, 2, 3), datetime(2026, 2, 5), catchup=True)
    found = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=chosen)
    if found is None:
        break
    runs, last = [*runs, found.data_interval.start.isoformat()], found.data_interval
print(json.dumps([timetable.periodic, own and own.data_interval.start.isoformat(), runs]))

# A clock, at 08:36: paused since the day before, new, and ten minutes late.
from types import SimpleNamespace
from airflow.timetables import trigger
from airflow.timetables.base import DataInterval
from dv_maintenance.airflow import timetable as ours
(clocked,) = [dag for dag in dv_maintenance_dags("clock.yaml") if dag.dag_id == "lake.orders"]
clock = serialization.from_dict(serialization.to_dict(clocked)).timetable
def next_run(now, last):
    trigger.utcnow, ours.datetime = (lambda: now), SimpleNamespace(now=lambda zone: now)
    found = clock.next_dagrun_info(
        last_automated_data_interval=last and DataInterval.exact(last),
        restriction=TimeRestriction(datetime(2020, 1, 1), None, False))
    return found.run_after.isoformat()
yesterday = datetime(2026, 11, 24, 3)
print(json.dumps([clocked.is_paused_upon_creation, next_run(datetime(2026, 11, 26, 8, 36), yesterday),
                  next_run(datetime(2026, 11, 26, 8, 36), None),
                  next_run(datetime(2026, 11, 26, 3, 10), yesterday)]))

from dv_maintenance.airflow import DvDeleteOperator
try:
    DvDeleteOperator(task_id="rendered", table="orders", where="id = 1", count_only="yes").work(None, None)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_one_dag_for_all_errors_secrets_and_backfills(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    """In one process: it takes seconds to import Airflow."""
    (tmp_path / "all.yaml").write_text("name: lake\ntables: [{path: orders}, {path: events}]\n")
    (tmp_path / "wrong.yaml").write_text("tables:\n- path: orders\n  job: [optimize]\n")
    options = "storage_options: {aws_secret_access_key: hush-hush}"
    (tmp_path / "secret.yaml").write_text(f"tables: [{{path: 's3://lake/orders', {options}}}]\n")
    days = "{name: day, every: day, start: 2026-01-01}"
    (tmp_path / "days.yaml").write_text(f"tables: [{{path: orders, partitions: {days}}}]\n")
    (tmp_path / "clock.yaml").write_text(
        "name: lake\ndefault_status: running\nschedule: {cron: '0 3 * * *'}\ntables: [{path: orders}]\n"
    )
    of_all, error, stored, backfill, clock, unclear = in_airflow(MORE).splitlines()[-6:]
    tasks = sorted(
        f"{table}.{job}" for table in ("orders", "events") for job in ("optimize", "vacuum", "check", "done")
    )
    assert json.loads(of_all) == [tasks, 2, "cluster", {}]
    assert error.startswith("UsageError")
    assert "wrong.yaml line 3" in error
    assert "DvTrigger" in stored
    assert "hush-hush" not in stored, "Airflow stores it in its database"
    three = [f"2026-02-{day:02}T00:00:00+00:00" for day in (3, 4, 5)]
    assert json.loads(backfill) == [True, None, three], "a DAG for backfills has no run of its own"
    after, today = "2026-11-27T03:00:00+00:00", "2026-11-26T03:00:00+00:00"
    assert json.loads(clock) == [False, after, after, today], "a missed run is not made up for when a DAG is unpaused"
    refused = "UsageError count_only must be true or false, not 'yes'"
    assert unclear.startswith(refused), "it counted as false, and rows were deleted"
