"""The job of a window: one run, one materialization per table."""

# Without `from __future__ import annotations`: Dagster reads the annotations of ops.

import time
from collections.abc import Callable
from typing import Any

import dagster as dg

from dv_maintenance.dagster import SparkResource, naming, night
from dv_maintenance.dagster.night import build_dv_night
from dv_maintenance.maintenance.health import health
from dv_maintenance.service.night import Window
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table

MakeTable = Callable[..., TableSettings]
ALL_DAY = Window.model_validate({"start": "00:00", "length": "24h"})


def run(instance: dg.DagsterInstance, *tables: TableSettings, **options: Any) -> dg.ExecuteInProcessResult:
    job = build_dv_night(tables, **{"window": ALL_DAY, "budget": None, **options})
    resources = {"spark": SparkResource(engine="local")}
    return job.execute_in_process(instance=instance, resources=resources, raise_on_error=False)


def latest(instance: dg.DagsterInstance, table: TableSettings) -> dict[str, Any] | None:
    event = instance.get_latest_materialization_event(naming.job_key(table, "optimize"))
    if event is None or event.asset_materialization is None:
        return None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def test_one_run_materializes_each_table(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    tables = [make_table(f"shop/t{n}") for n in range(3)]
    assert run(instance, *tables).success
    for table in tables:
        found = latest(instance, table)
        assert found is not None
        assert (found["rows_purged"], found["verified"]) == (1000, True)
        assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0


def test_a_waiting_table_is_observed_and_keeps_its_place(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    key = naming.job_key(table, "optimize")
    since = []
    for _ in range(2):
        result = run(instance, table, budget=1)
        assert not result.success, "no window is long enough: somebody has to know"
        (event,) = result.get_step_failure_events()
        assert "Too large for the window" in str(event.step_failure_data.user_failure_data)
        (record,) = instance.fetch_observations(key, limit=1).records
        assert record.asset_observation is not None
        seen = record.asset_observation.metadata
        assert str(seen["reason"].value).startswith(("Waited: ", "Too large"))
        since.append(seen["waiting_since"].value)
    assert since[0] == since[1]
    assert latest(instance, table) is None


def test_a_table_that_fails_fails_the_run_after_the_others(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    gone, table = make_table("gone").model_copy(update={"path": "/nowhere/t"}), make_table("there")
    result = run(instance, gone, table)
    assert not result.success
    assert latest(instance, table) is not None
    assert latest(instance, gone) is None


def test_runs_of_one_window_share_its_budget(instance: dg.DagsterInstance) -> None:
    opened = int(time.time() * 1000) - 3_600_000

    @dg.op
    def spent(context: dg.OpExecutionContext) -> float:
        return night._spent(context, opened)

    @dg.job(executor_def=dg.in_process_executor)
    def lake_night() -> None:
        spent()

    first, second = (lake_night.execute_in_process(instance=instance).output_for_node("spent") for _ in range(2))
    (_, record) = instance.get_run_records()
    assert first == 0
    assert second > 0
    assert record.start_time is not None
    assert record.end_time is not None
    assert second == record.end_time - record.start_time
