"""The night and the vacuums of many tables: the operators themselves, on tables in their own process, with what a
task instance gives them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.scheduling.window import DAYS
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.units import epoch_millis

SCRIPT = """
import asyncio, json
from types import SimpleNamespace
from airflow.sdk.execution_time.context import OutletEventAccessors
from dv_maintenance.airflow import (
    DvNightOperator, DvTablesCheckOperator, DvVacuumsOperator, DvVacuumsTrigger, dv_maintenance_dags, trigger
)
trigger._SECONDS_UNTIL_WRITTEN = 0.05

class Instance:
    try_number, max_tries, dag_id, run_id = 1, 0, "lake", "asset_triggered__1"
    def __init__(self): self.kept = {}
    def xcom_push(self, key, value): self.kept[key] = json.loads(json.dumps(value))
    def xcom_pull(self, task_ids=None, key="return_value", include_prior_dates=False): return self.kept.get(key)

def night(file, instance, **options):
    return run(DvNightOperator(task_id="night", tables_file=file, engine="local", **options), instance)

def run(task, instance, **context):
    events = OutletEventAccessors()
    error = shown = None
    try:
        shown = type(task).execute.__wrapped__(task, {"ti": instance, "outlet_events": events, **context})
        instance.kept["return_value"] = shown
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    made = {event.dest_asset_key.name: event.extra for each in events.values() for event in each.asset_alias_events}
    return {"shown": shown, "error": error, "events": made, "kept": instance.kept.get("night")}

def check(instance, **options):
    task = DvTablesCheckOperator(task_id="check", of="night", **options)
    try:
        DvTablesCheckOperator.execute.__wrapped__(task, {"ti": instance})
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}"

async def watched():
    fired = []
    async def watch():
        async for event in DvVacuumsTrigger("vacuums.yaml", every_seconds=0.05).run(): fired.append(event.payload)
    task = asyncio.create_task(watch())
    for _ in range(600):
        await asyncio.sleep(0.05)
        if fired: break
    await asyncio.sleep(0.5)  # a second event would be wrong
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return fired

fired = asyncio.run(watched())
events = {"asset": [SimpleNamespace(extra={"from_trigger": True, "payload": payload}) for payload in fired]}
vacuums = DvVacuumsOperator(task_id="vacuum", tables_file="vacuums.yaml", only_if_due="True", fail=False)
first, short = Instance(), Instance()
found = {
    "fired": fired,
    "vacuums": run(vacuums, Instance(), triggering_asset_events=events),
    "short": night("short.yaml", short, fail=False),
    "again": night("short.yaml", short),
    "check": check(short), "quiet": check(short, alerts=False),
    "all": night("all.yaml", first, fail=False), "broken": check(first, alerts=False),
    "alone": night("all.yaml", Instance()),
    "closed": night("closed.yaml", Instance()),
    "dags": {dag.dag_id: [type(dag.timetable).__name__, sorted(dag.task_ids)] for dag in
             dv_maintenance_dags("closed.yaml") + dv_maintenance_dags("short.yaml")},
}
print(json.dumps(found))
"""
NEVER = "window: {start: '00:00', length: 1m, days: [DAY]}\n"


def table(folder: Path, name: str, clock: Callable[[], int] | None = None) -> DeltaBuilder:
    builder = DeltaBuilder(str(folder / name), clock=clock).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(1000)}))
    builder.delete(lambda rows: pc.less(rows["id"], 400))
    return builder


def with_dvs(folder: Path, name: str) -> int:
    return health(open_table(str(folder / name)).snapshot()).counts.files_with_dv


def test_a_night_and_vacuums(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    """In one process: it takes seconds to import Airflow."""
    for name in ("a", "b", "c"):
        table(tmp_path, name)
    clean = DeltaBuilder(str(tmp_path / "clean")).create(pa.schema([("id", pa.int64())]))
    clean.append(pa.table({"id": [1]}))
    for name in ("old", "older"):
        # The first deletion vector is unneeded since ten days.
        old = table(tmp_path, name, lambda: epoch_millis() - 10 * 86_400_000)
        old.delete(lambda rows: pc.less(rows["id"], 500))
    (tmp_path / "vacuums.yaml").write_text("tables: [{path: old}, {path: a}, {path: gone}, {path: older}]\n")
    (tmp_path / "short.yaml").write_text("name: short\nbudget: 1ms\ntables: [{path: c}]\n")
    (tmp_path / "all.yaml").write_text(
        "budget: 30m\ntables: [{path: a}, {path: gone}, {path: b}, {path: clean}, {path: c, jobs: [vacuum]}]\n"
    )
    day = DAYS[(datetime.now(UTC).weekday() + 2) % 7]
    (tmp_path / "closed.yaml").write_text("name: closed\n" + NEVER.replace("DAY", day) + "tables: [{path: c}]\n")
    found: dict[str, Any] = json.loads(in_airflow(SCRIPT).splitlines()[-1])

    lake = f"file://{tmp_path}"
    (fired,) = found["fired"]
    assert [each["table"] for each in fired["tables"]] == ["old", "older"], "one event for those due at one look"
    vacuums = found["vacuums"]
    assert vacuums["error"] is None
    assert list(vacuums["shown"]["tables"]) == ["old", "older"]
    assert [vacuums["events"][f"{lake}/{name}?dv=vacuum"]["files_deleted"] for name in ("old", "older")] == [1, 1]

    short, again = found["short"], found["again"]
    assert short["events"] == {}, "a table that waits is not maintained"
    assert short["shown"]["reason"] == "0 tables of 1 had work done, 1 waits, 0 failed."
    (alert,) = short["shown"]["alerts"]
    assert "Too large for the window" in alert
    assert short["kept"]["waiting"] == again["kept"]["waiting"], "it lost its place"
    assert again["kept"]["spent"] > short["kept"]["spent"] > 0, "two runs of a window share its budget"
    assert again["error"] == f"AirflowFailException: {alert}"
    assert found["check"] == again["error"]
    assert found["quiet"] is None

    every = found["all"]
    assert every["error"] is None
    assert every["events"].keys() == {f"{lake}/{name}?dv=optimize" for name in ("a", "b")}, "and none for the clean one"
    assert every["events"][f"{lake}/a?dv=optimize"]["rows_purged"] == 400
    assert every["shown"]["tables"]["clean"] == "Nothing to do: no optimize is due."
    assert found["broken"].startswith("AirflowFailException: gone: file:///")
    assert found["alone"]["error"] == found["broken"]
    assert [with_dvs(tmp_path, name) for name in ("a", "b", "c")] == [0, 0, 1]

    assert found["closed"]["shown"]["tables"]["c"].startswith("Waited: ")
    assert found["dags"] == {
        "closed.c": ["NullTimetable", ["check", "done", "vacuum"]],
        "closed_night": ["Clock", ["check", "checks", "night"]],
        "closed_vacuum": ["AssetTriggeredTimetable", ["check", "vacuum"]],
        "short.c": ["NullTimetable", ["check", "done", "vacuum"]],
        "short_night": ["NullTimetable", ["check", "checks", "night"]],
        "short_vacuum": ["AssetTriggeredTimetable", ["check", "vacuum"]],
    } | {
        f"{name}_{preset}": ["NullTimetable", [preset, "tables"]]
        for name in ("closed", "short")
        for preset in ("plan", "purge")
    } | {
        f"{name}_{what}": ["NullTimetable", [what]] for name in ("closed", "short") for what in ("report", "simulation")
    }
