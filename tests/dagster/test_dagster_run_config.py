"""Runs that a person steers from the page: the run config of the maintenance assets, and jobs that fill it in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.automation import build_dv_presets
from dv_maintenance.dagster.night import _waiting
from dv_maintenance.maintenance.health import health
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

MakeTable = Callable[..., TableSettings]
Definitions = Callable[..., dg.Definitions]
Run = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def run(make_definitions: Definitions, instance: dg.DagsterInstance) -> Run:
    """Run some jobs of a table, each with a config."""

    def run(table: TableSettings, *, wanted: bool = True, **configs: Any) -> dg.ExecuteInProcessResult:
        found = (
            make_definitions(table)
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(
                instance=instance,
                asset_selection=naming.job_keys(table, configs),
                run_config={"ops": {naming.op_name(table, job): {"config": each} for job, each in configs.items()}},
                raise_on_error=False,
            )
        )
        assert found.success is wanted
        return found

    return run


def files(table: TableSettings) -> dict[str, int]:
    return {str(each): each.stat().st_mtime_ns for each in Path(table.path).rglob("*") if each.is_file()}


def with_dvs(table: TableSettings) -> int:
    return health(open_table(table.path).snapshot()).counts.files_with_dv


def planned(instance: dg.DagsterInstance, table: TableSettings, job: str) -> dict[str, Any]:
    key = naming.job_key(table, job)
    assert instance.get_latest_materialization_event(key) is None
    (record,) = instance.fetch_observations(key, limit=2).records
    assert record.asset_observation is not None
    return {name: entry.value for name, entry in record.asset_observation.metadata.items()}


def failure(found: dg.ExecuteInProcessResult) -> str:
    (event,) = [each for each in found.all_events if each.event_type_value == "STEP_FAILURE"]
    data = event.step_failure_data.user_failure_data
    assert data is not None
    return str(data.description)


def test_a_dry_run_of_each(make_table: MakeTable, run: Run, instance: dg.DagsterInstance) -> None:
    table = make_table(jobs=["optimize", "vacuum", "manifest"], policy={"max_deleted_ratio": 0.9, "min_file_size": 0})
    before = files(table)
    for job in ("optimize", "vacuum", "manifest"):
        run(table, **{job: {"dry_run": True}})
    assert files(table) == before
    assert planned(instance, table, "optimize")["reason"] == "Only planned; nothing was changed."
    assert "shop_orders" in planned(instance, table, "optimize")["explanation"]
    assert planned(instance, table, "vacuum")["reason"] == "No file has expired."
    assert planned(instance, table, "manifest")["reason"] == (
        "A run would purge the deletion vectors, then write manifests of the live files. Nothing was changed."
    )


def test_after_a_planned_rewrite_nothing_is_deleted(
    make_table: MakeTable, run: Run, instance: dg.DagsterInstance
) -> None:
    """The vacuum was configured for what the rewrite leaves behind."""
    table = make_table(jobs=["optimize", "vacuum"])
    before = files(table)
    run(table, optimize={"dry_run": True}, vacuum={})
    assert files(table) == before
    assert instance.get_latest_materialization_event(naming.job_key(table, "vacuum")) is None


def test_purge_and_policy(make_table: MakeTable, run: Run) -> None:
    settings: dict[str, Any] = {"jobs": ["optimize"], "policy": {"max_deleted_ratio": 0.9, "min_file_size": 0}}
    table = make_table(**settings)
    run(table, optimize={})
    assert with_dvs(table) == 2
    run(table, optimize={"purge": True})
    assert with_dvs(table) == 0
    table = make_table("other", **settings)
    run(table, optimize={"policy": {"max_deleted_ratio": 0.1, "max_files": 1}})
    assert with_dvs(table) == 1
    said = failure(run(table, wanted=False, optimize={"policy": {"max_deleted_ratoi": 0.1}}))
    assert "max_deleted_ratoi" in said
    assert "the run's config" in said


def test_retention(run: Run, tmp_path: Path) -> None:
    """As on the command line: one below the table's property has to be allowed."""
    path = str(tmp_path / "week")
    builder = DeltaBuilder(path).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(100)}))
    builder.delete(lambda rows: pc.less(rows["id"], 50))
    table = TableSettings(name="week", path=path)
    run(table, optimize={})
    before = files(table)
    said = failure(run(table, wanted=False, vacuum={"retention": "0s"}))
    assert "give at least retention: 7d in the policy of the table" in said
    assert "soon" in failure(run(table, wanted=False, vacuum={"retention": "soon"}))
    run(table, vacuum={"retention": "8d"})
    assert [each for each in before if not Path(each).exists()] == []
    run(table, vacuum={"retention": "0s", "allow_short_retention": True})
    assert len([each for each in before if not Path(each).exists()]) == 2


def test_presets_open_with_their_config(
    make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    tables = [make_table(name, policy={"max_deleted_ratio": 0.9, "min_file_size": 0}) for name in ("a", "b")]
    partitioned = TableSettings(name="days", path="/nowhere", partitions="day")
    plan, purge = build_dv_presets([*tables, partitioned], name="lake")
    assert (plan.name, purge.name) == ("lake_plan", "lake_purge")
    defs = make_definitions(*tables)
    defs = dg.Definitions(defs.assets, jobs=[plan, purge], resources=defs.resources)
    before = files(tables[0])
    assert defs.resolve_job_def("lake_plan").execute_in_process(instance=instance).success
    assert files(tables[0]) == before
    assert defs.resolve_job_def("lake_purge").execute_in_process(instance=instance).success
    assert [with_dvs(table) for table in tables] == [0, 0]
    assert build_dv_presets([partitioned]) == []


def test_a_dry_run_keeps_a_tables_place_in_the_queue(
    make_table: MakeTable, run: Run, instance: dg.DagsterInstance
) -> None:
    """The night reads from the newest observation since when a table waits."""
    table = make_table()
    since = dg.MetadataValue.timestamp(datetime(2026, 1, 2, tzinfo=UTC))
    waits = dg.AssetObservation(naming.job_key(table, "optimize"), metadata={"waiting_since": since})
    instance.report_runless_asset_event(waits)
    waiting = _waiting(instance, table)
    assert waiting is not None
    run(table, optimize={"dry_run": True})
    assert _waiting(instance, table) == waiting
