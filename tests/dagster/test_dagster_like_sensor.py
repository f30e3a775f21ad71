"""``dvm plan TABLES.yaml NAME`` and the sensor, on the same tables: one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.sensor import _Dagster
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.service.night import Window
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.service.verbs import plan_like_sensor
from dv_maintenance.tables import open_table

MakeTable = Callable[..., TableSettings]
NOW_AND_THEN = Window.model_validate({"start": "02:00", "length": "1h"})


@dataclass
class Case:
    """``jobs``: of the run that is requested. ``kind``: of the decision. ``says``: part of the reason."""

    jobs: list[str]
    kind: str
    says: str = ""
    settings: Any = None
    prepare: Callable[[Any], object] = lambda _: None
    window: bool = False
    spent: str = ""


@dataclass
class Place:
    """What a case may change before both are asked."""

    table: TableSettings
    defs: dg.Definitions
    instance: dg.DagsterInstance

    def run(self, status: dg.DagsterRunStatus, **tags: str) -> None:
        job = self.defs.resolve_implicit_global_asset_job_def()
        (request,) = sensed(self.defs, self.instance).run_requests
        keys = set(request.asset_selection)
        self.instance.create_run_for_job(
            job, tags={**request.tags, **tags}, status=status, asset_selection=frozenset(keys)
        )


def sensed(defs: dg.Definitions, instance: dg.DagsterInstance) -> Any:
    context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
    return defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context)


def lose_a_file(place: Place) -> None:
    next(Path(place.table.path).glob("*.bin")).unlink()


def maintained(place: Place) -> None:
    maintain(open_table(place.table.path), LocalEngine(), place.table.policy)


FAILED, STARTED = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED
CASES = {
    "due": Case(["optimize"], "new", settings={"jobs": ["optimize"]}),
    "not due": Case([], "nothing", settings={"jobs": ["optimize"]}, prepare=maintained),
    "two jobs": Case(["optimize", "manifest"], "new", settings={"jobs": ["optimize", "manifest"]}),
    "a vacuum first": Case(["vacuum"], "new", settings={"policy": {"vacuum_every": "1ms"}}, prepare=maintained),
    "reads too rare": Case([], "nothing", settings={"policy": {"reads_per_day": 0.001}, "jobs": ["optimize"]}),
    "limit spent": Case(
        [],
        "nothing",
        settings={"policy": {"max_files": 1, "max_deleted_ratio": 0.1, "min_file_size": 0}, "jobs": ["optimize"]},
        prepare=maintained,
        spent="over the daily limit: max_files is 1, of which 1 were spent in the last 24 hours",
    ),
    "waits for the window": Case([], "new", "", {"jobs": ["optimize"]}, window=True),
    "the rest before the window": Case(["manifest"], "new", "", {"jobs": ["optimize", "manifest"]}, window=True),
    "damaged": Case([], "damaged", "nothing is started on a damaged table", {"jobs": ["optimize"]}, lose_a_file),
    "busy": Case([], "busy", "is working on it", {"jobs": ["optimize"]}, lambda place: place.run(STARTED)),
    "failed before": Case(["optimize"], "retry", "attempt 2", {"jobs": ["optimize"]}, lambda place: place.run(FAILED)),
    "backs off": Case(
        [],
        "waits",
        "waiting for a new version or ",
        {"jobs": ["optimize"]},
        lambda place: [place.run(FAILED) for _ in range(3)],
    ),
    "refused before": Case(
        [],
        "refused",
        "Row tracking",
        {"jobs": ["optimize"]},
        lambda place: place.run(FAILED, **{naming.REFUSED_TAG: "Row tracking"}),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_answer(case: Case, make_table: MakeTable, make_definitions: Any, instance: dg.DagsterInstance) -> None:
    table = make_table(**(case.settings or {}))
    config = WatchConfig(tables=(table,), window=NOW_AND_THEN if case.window else None)
    defs = make_definitions(table, rewrites=not config.at_night)
    case.prepare(Place(table, defs, instance))
    sensor = sensed(defs, instance)
    asked = [job for request in sensor.run_requests for job in request.tags[naming.JOBS_TAG].split("+")]
    found = plan_like_sensor([config], table.name, orchestrator=_Dagster(instance))
    report = found.report
    assert [job for run in report["requested"] for job in run["jobs"]] == asked == case.jobs
    assert report["decision"]["kind"] == case.kind
    assert case.says in report["decision"]["reason"]
    if report["decision"]["reason"] and not asked:
        assert sensor.skip_message == f"{table.name}: {report['decision']['reason']}"
    assert bool(report["held"]) == case.window
    assert bool(found.damage) == (case.kind == "damaged")
    assert report["unknown"] == []
    if case.spent:
        assert case.spent in found.texts["explanation"]


def test_what_is_not_known_is_named(make_table: MakeTable, make_definitions: Any, instance: dg.DagsterInstance) -> None:
    """Without an orchestrator nobody knows of the run at work."""
    table = make_table(jobs=["optimize"])
    Place(table, make_definitions(table), instance).run(STARTED)
    report = plan_like_sensor([WatchConfig(tables=(table,))], table.name).report
    assert report["requested"] == [{"jobs": ["optimize"], "partitions": None}]
    assert "runs at work" in report["unknown"]


def test_the_cursor_counts(make_table: MakeTable, make_definitions: Any, instance: dg.DagsterInstance) -> None:
    """By its cursor a sensor knows when it last searched for expired files."""
    table = make_table(jobs=["vacuum"], delete=False)
    cursor = sensed(make_definitions(table), instance).cursor
    maintain(open_table(table.path), LocalEngine(), purge=True)
    config = WatchConfig(tables=(table,))
    assert plan_like_sensor([config], table.name, cursor=cursor).report["requested"] == []


def test_a_table_that_cannot_be_read(make_table: MakeTable) -> None:
    table = make_table()
    next(Path(table.path, "_delta_log").glob("*1.json")).write_text("no JSON")
    with pytest.raises(DamagedTableError, match="JSON"):
        plan_like_sensor([WatchConfig(tables=(table,))], table.name)
