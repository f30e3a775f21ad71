"""A real scheduler, triggerer, DAG processor and API server: one run per data change, whoever is killed."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.airflow_stack import EVERY_SECONDS, Airflow, due, ended, eventually, maintain, watched_up_to_now
from support.dagster_deployment import Deployment

from dv_maintenance.maintenance.read import read
from dv_maintenance.service import verbs
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.deep, pytest.mark.jvm]

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
IDLE = re.compile("Nothing (left )?to do")


def rows_of(path: Path) -> Counter[Any]:
    _, batches = read(open_table(str(path)))
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def test_a_backfill_by_command_purges_the_chosen_partitions_only(airflow: Airflow, tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=back) for back in range(8, 0, -1)]
    chosen = days[2:5]
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    place = tmp_path / "by_day"
    table = DeltaBuilder(str(place)).create(schema, partition_by=["day"])
    for day in days:
        table.append(pa.table({"id": range(1000), "day": [day] * 1000}, schema))
    table.delete(lambda rows: pc.less(rows["id"], 250))
    partitions = f"{{name: day, every: day, start: {days[0]}}}"
    file = tmp_path / "tables.yaml"
    file.write_text(
        "name: backfilled\nsensor: null\nspark: {engine: local}\n"
        f"tables: [{{path: by_day, partitions: {partitions}}}]\n"
    )
    (airflow.dags / "backfilled.py").write_text(
        f"from dv_maintenance.airflow import dv_maintenance_dags\n\ndv_maintenance_dags({str(file)!r})\n"
    )
    dag = "backfilled.by_day.partitions"
    before = files_by_day(place)
    airflow.unpause(dag)
    words = ("backfill", "create", "--dag-id", dag, "--from-date", str(chosen[0]), "--to-date", str(chosen[-1]))

    def created() -> bool:
        # SQLite refuses a transaction that read before another one wrote, and Airflow's command does not try again.
        for (backfill,) in airflow.rows("select id from backfill where completed_at is null"):
            airflow.api("PUT", f"/backfills/{backfill}/cancel")
        try:
            airflow.cli(*words, "--reprocess-behavior", "completed")
        except AssertionError as error:
            if "database is locked" not in str(error):
                raise
            return False
        return True

    eventually("the backfill is created", created)
    runs = ended(airflow, dag, 3)
    assert [(run["type"], run["state"]) for run in runs] == [("backfill", "success")] * 3
    done = [airflow.xcom(dag, run["run"], "optimize")["partitions"] for run in runs]
    assert sorted(day for found in done for day in found) == [str(day) for day in chosen]
    after = files_by_day(place)
    assert [day for day in before if before[day] != after[day]] == [str(day) for day in chosen]
    assert sum(rows_of(place).values()) == 8 * 750


def files_by_day(place: Path) -> dict[str, list[str]]:
    files = open_table(str(place)).snapshot().files
    found: dict[str, list[str]] = {}
    for path in sorted(map(unquote, files["path"].to_pylist())):
        found.setdefault(path.split("/")[0].removeprefix("day="), []).append(path)
    return found


def test_a_delete_by_delta_spark_starts_one_run_and_a_restart_none(
    airflow: Airflow, delta_spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "orders"
    delta_spark.sql(
        f"CREATE TABLE delta.`{place}` (id BIGINT, v STRING) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    delta_spark.range(0, 10_000, 1, 1).selectExpr("id", "'a' AS v").write.format("delta").mode("append").save(
        str(place)
    )
    maintain(airflow, tmp_path, "judged", "orders")
    assert airflow.events(due(place)) == []
    delta_spark.sql(f"DELETE FROM delta.`{place}` WHERE id % 5 = 0")
    runs = ended(airflow, "judged.orders", 1, place)
    assert len(runs) == 1, airflow.events(due(place))
    (run,) = runs
    assert run["state"] == "success"
    assert run["type"] == "asset_triggered"
    (event,) = airflow.events(due(place))
    assert (event["payload"]["version"], event["payload"]["due"]) == (2, ["optimize"])
    assert airflow.xcom("judged.orders", run["run"], "optimize")["rows_purged"] == 2_000

    airflow.kill("triggerer")
    # A version without a data change: when the watcher has seen it, it has decided.
    delta_spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('seen' = 'after the restart')")
    airflow.start("triggerer")
    watched_up_to_now(airflow, place)
    assert len(airflow.events(due(place))) == 1, "a restart fired again"

    airflow.kill("triggerer")
    delta_spark.sql(f"DELETE FROM delta.`{place}` WHERE id % 5 = 1")
    airflow.start("triggerer")
    assert len(ended(airflow, "judged.orders", 2, place)) == 2
    assert len(airflow.events(due(place))) == 2
    found = delta_spark.read.format("delta").load(str(place))
    assert (found.count(), found.where("id % 5 < 2").count()) == (6_000, 0)


class Purge:
    """A purge in a task, of a table with 12 large files, caught while it writes its files."""

    def __init__(self, airflow: Airflow, folder: Path, name: str) -> None:
        self.airflow = airflow
        self.dag = f"{name}.big_{name}"
        self.place = folder / f"big_{name}"
        schema = pa.schema([*SCHEMA, ("day", pa.string())])
        table = DeltaBuilder(str(self.place)).create(schema, partition_by=["day"])
        rows = 400_000
        for part in range(12):
            ids = pa.array(range(part * rows, (part + 1) * rows), pa.int64())
            values = pc.binary_join_element_wise("value", ids.cast(pa.string()), "-")
            table.append(pa.table([ids, values, pa.repeat(f"day {part}", rows)], schema=schema))
        maintain(airflow, folder, name, self.place.name)
        self.before = self.files()
        self.expected = Counter({row: count for row, count in rows_of(self.place).items() if row[0] % 4})
        table.delete(lambda batch: pc.equal(pc.bit_wise_and(batch["id"], 3), 0))
        eventually("it writes", lambda: len(self.files() - self.before) >= 3, seconds=180, every=0.02)

    def files(self) -> set[Path]:
        """Data files. Enough commits make a checkpoint, which is Parquet, too."""
        return {path for path in self.place.rglob("*.parquet") if path.parent.name != "_delta_log"}

    def task(self) -> dict[str, Any]:
        (found,) = [task for task in self.airflow.tasks(self.dag) if task["task"] == "optimize"]
        return found

    def live(self) -> set[Path]:
        files = open_table(str(self.place)).snapshot().files
        return {self.place / name for name in map(unquote, files["path"].to_pylist())}


def test_a_task_that_is_killed_in_the_middle_of_a_purge(airflow: Airflow, tmp_path: Path) -> None:
    purge = Purge(airflow, tmp_path, "killed")
    os.kill(purge.task()["pid"], signal.SIGKILL)
    written = purge.files() - purge.before
    assert rows_of(purge.place) == purge.expected

    (run,) = ended(airflow, purge.dag, 1, purge.place)
    assert run["state"] == "success"
    assert purge.task()["try"] == 2
    assert rows_of(purge.place) == purge.expected
    assert written - purge.live(), "nothing was left behind"
    verbs.vacuum(open_table(str(purge.place)), VacuumRequest(retention=0, allow_short_retention=True))
    assert purge.files() == purge.live()
    assert rows_of(purge.place) == purge.expected


def test_a_task_that_is_marked_failed_in_the_middle_of_a_purge(airflow: Airflow, tmp_path: Path) -> None:
    """As by the page's button. The watcher announces the same work once more."""
    purge = Purge(airflow, tmp_path, "stopped")
    task = purge.task()
    # The purge takes seconds, and Airflow may take longer to notice: it waits in the middle for the signal.
    os.kill(task["pid"], signal.SIGSTOP)
    version = open_table(str(purge.place)).version()
    run = quote(task["run"], safe="")
    airflow.api("PATCH", f"/dags/{purge.dag}?update_mask=is_paused", {"is_paused": True})
    airflow.api("PATCH", f"/dags/{purge.dag}/dagRuns/{run}/taskInstances/optimize", {"new_state": "failed"})
    eventually("Airflow asks it to end", lambda: is_pending(task["pid"], signal.SIGTERM), every=0.05)
    os.kill(task["pid"], signal.SIGCONT)
    eventually("its process has ended", lambda: not Path(f"/proc/{task['pid']}").exists(), every=0.1)
    assert open_table(str(purge.place)).version() == version
    assert purge.files() == purge.before | purge.live(), "what it wrote and did not commit is deleted"
    assert rows_of(purge.place) == purge.expected

    left = sum(filter(None, open_table(str(purge.place)).snapshot().files["deleted_rows"].to_pylist()))
    airflow.unpause(purge.dag)
    stopped, again = ended(airflow, purge.dag, 2, purge.place)
    assert (stopped["state"], again["state"]) == ("failed", "success")
    assert airflow.xcom(purge.dag, again["run"], "optimize")["rows_purged"] == left
    assert rows_of(purge.place) == purge.expected
    first, second = airflow.events(due(purge.place))
    # On a slow machine the first part of the plan was committed before: what is left is other work.
    unchanged = first["payload"]["version"] == version
    assert (first["payload"]["work"] == second["payload"]["work"]) is unchanged
    assert second["payload"]["attempt"] == (2 if unchanged else 1)
    eventually("what is no longer due is forgotten", lambda: not airflow.rows(_VARIABLES, "%stopped%"))


_VARIABLES = "select key from variable where key like ?"


def test_two_assets_with_equal_triggers(airflow: Airflow, tmp_path: Path) -> None:
    """Airflow runs one trigger for both."""
    table = DeltaBuilder(str(tmp_path / "twice")).create(SCHEMA)
    table.append(pa.table({"id": range(1000), "v": ["a"] * 1000}, SCHEMA))
    (airflow.dags / "twice.py").write_text(
        f"""
from datetime import UTC, datetime
from airflow.sdk import DAG, Asset, AssetWatcher
from dv_maintenance.airflow import DvOptimizeOperator, DvTrigger
for name in ("sales", "finance"):
    trigger = DvTrigger({str(tmp_path / "twice")!r}, jobs=["optimize"], every_seconds={EVERY_SECONDS})
    asset = Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])
    with DAG("twice_" + name, schedule=[asset], start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        DvOptimizeOperator(task_id="optimize", table={str(tmp_path / "twice")!r}, engine="local")
"""
    )
    airflow.unpause("twice_sales", "twice_finance")
    table.delete(lambda rows: pc.less(rows["id"], 300))
    runs = [run for name in ("sales", "finance") for run in ended(airflow, f"twice_{name}", 1)]
    assert [run["state"] for run in runs] == ["success"] * 2
    assert open_table(str(tmp_path / "twice")).history()[0].operation == "OPTIMIZE"
    assert sum(rows_of(tmp_path / "twice").values()) == 700


PRODUCER = """
from datetime import UTC, datetime
from airflow.sdk import DAG, Asset, task
from dv_maintenance.airflow import DvCheckOperator, DvDeleteOperator, DvOptimizeOperator
begin = {"start_date": datetime(2026, 1, 1, tzinfo=UTC)}
PLACE = "PATH"
orders = Asset("file://" + PLACE)
with DAG("producer", schedule=None, **begin):
    task(lambda: None, task_id="load", outlets=[orders])()
with DAG("consumer", schedule=[orders], **begin):
    task(lambda: None, task_id="reads")()
with DAG("by_hand", schedule=None, **begin, params={"where": "id < 0", "count": False}):
    mapped = DvOptimizeOperator.partial(task_id="mapped", engine="local").expand(table=[PLACE])
    delete = {"engine": "local", "where": "{{ params.where }}", "count_only": "{{ params.count }}"}
    mapped >> DvDeleteOperator(task_id="one", table=PLACE, **delete) >> DvCheckOperator(
        task_id="check", table=PLACE, fail_on=None)
with DAG("by_file", schedule=None, **begin, params={"where": "id < 0"}):
    DvDeleteOperator.partial(task_id="each", tables_file="FILE", engine="local", where="{{ params.where }}").expand(
        table=["foreign"])
"""


def test_assets_that_others_define_too_and_events_of_changes_only(airflow: Airflow, tmp_path: Path) -> None:
    """Airflow has one name for each URI: whoever came second failed, also the user's own producer."""
    place = tmp_path / "foreign"
    table = DeltaBuilder(str(place)).create(SCHEMA)
    table.append(pa.table({"id": range(1000), "v": ["a"] * 1000}, SCHEMA))
    file = maintain(airflow, tmp_path, "generated", "foreign")
    (airflow.dags / "foreign.py").write_text(PRODUCER.replace("PATH", str(place)).replace("FILE", str(file)))
    dags = ("producer", "consumer", "by_hand", "by_file")
    airflow.unpause(*dags)
    airflow.api("POST", "/dags/producer/dagRuns", {"logical_date": None})
    ended(airflow, "producer", 1)
    ended(airflow, "consumer", 1)
    table.delete(lambda rows: pc.less(rows["id"], 300))
    ended(airflow, "generated.foreign", 1, place)

    def start(dag: str, runs: int, **conf: Any) -> None:
        airflow.api("POST", f"/dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})
        ended(airflow, dag, runs)

    start("by_hand", 1, where="id < 0")
    start("by_hand", 2, where="id < 400", count=True)
    start("by_hand", 3, where="id < 400")
    start("by_file", 1, where="id < 0")
    start("by_file", 2, where="id < 900")
    ended(airflow, "generated.foreign", 2, place)
    assert len(ended(airflow, "consumer", 3)) == 3
    states = {(run["dag"], run["state"]) for run in airflow.runs() if run["dag"] in {*dags, "generated.foreign"}}
    assert {state for _, state in states} == {"success"}, states
    events = airflow.events(f"file://{place}")
    assert [event.get("rows_deleted") for event in events] == [None, 100, 500], events
    purged = [event["rows_purged"] for event in airflow.events(f"file://{place}?dv=optimize")]
    assert 0 not in purged, "an event of a run that found nothing to do"


def is_pending(pid: int, number: signal.Signals) -> bool:
    (mask,) = re.findall(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_both_faces_on_one_file(airflow: Airflow, tmp_path: Path) -> None:
    names = [f"shared{number}" for number in range(4)]
    tables = [DeltaBuilder(str(tmp_path / name)).create(SCHEMA) for name in names]
    for table in tables:
        table.append(pa.table({"id": range(1000), "v": ["a"] * 1000}, SCHEMA))
    file = maintain(airflow, tmp_path, "both", *names)
    dagster = Deployment(tmp_path / "dagster", file, sensors={"dv": ["optimize"]})
    try:
        dagster.start()
        dagster.switch_on("dv")
        for table in tables:
            table.delete(lambda rows: pc.less(rows["id"], 300))
        for name in names:
            (run,) = ended(airflow, f"both.{name}", 1, tmp_path / name)
            assert run["state"] == "success"
            done = airflow.xcom(run["dag"], run["run"], "optimize")
            commits = [each.operation for each in open_table(str(tmp_path / name)).history()]
            assert commits.count("OPTIMIZE") == 1, commits
            assert done["steps"] == 1 or IDLE.search(done["reason"]), done
            assert sum(rows_of(tmp_path / name).values()) == 700
        # Whoever came second says so.
        by_dagster = [
            shown for run in dagster.instance.get_runs() for shown in dagster.materialized(run.run_id).values()
        ]
        by_airflow = [
            airflow.xcom(run["dag"], run["run"], "optimize") for run in airflow.runs() if "both." in run["dag"]
        ]
        assert sum(shown["steps"] for shown in [*by_dagster, *by_airflow]) == len(names)
        idle = [shown["reason"] for shown in [*by_dagster, *by_airflow] if not shown["steps"]]
        assert all(map(IDLE.search, idle)), idle
    finally:
        dagster.stop()


def test_a_sensor_waits_in_the_triggerer(airflow: Airflow, tmp_path: Path) -> None:
    table = DeltaBuilder(str(tmp_path / "waited")).create(SCHEMA)
    table.append(pa.table({"id": range(1000), "v": ["a"] * 1000}, SCHEMA))
    (airflow.dags / "waiting.py").write_text(
        "from datetime import UTC, datetime\nfrom airflow.sdk import DAG\nfrom dv_maintenance.airflow import DvSensor\n"
        "with DAG('waiting', schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):\n"
        f"    DvSensor(task_id='due', table={str(tmp_path / 'waited')!r}, deferrable=True,\n"
        f"             poke_interval={EVERY_SECONDS})\n"
    )
    airflow.unpause("waiting")
    airflow.api("POST", "/dags/waiting/dagRuns", {"logical_date": None})
    eventually("it is deferred", lambda: [task["state"] for task in airflow.tasks("waiting")] == ["deferred"])
    table.delete(lambda rows: pc.less(rows["id"], 300))
    (run,) = ended(airflow, "waiting", 1)
    assert run["state"] == "success"
    assert airflow.xcom("waiting", run["run"], "due")["due"] == ["optimize"]
