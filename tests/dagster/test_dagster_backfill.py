"""A backfill as the page launches it: through GraphQL, then the daemon, in a real code location."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from dagster._core.test_utils import create_test_daemon_workspace_context, instance_for_test
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster_graphql.test.utils import execute_dagster_graphql

from dv_maintenance.maintenance.health import health
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

LOCATION = """
import dagster as dg
from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_backfills
from dv_maintenance.service.tables_file import WatchConfig

TABLES = WatchConfig.load({tables!r}).tables
defs = dg.Definitions(
    assets=build_dv_assets(TABLES),
    jobs=[build_dv_backfills(TABLES)],
    resources={{"spark": SparkResource(engine="local")}},
    executor=dg.in_process_executor,
)
"""
LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
RUN = """
mutation Run($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""
TEST_INSTANCE: dict[str, Any] = {
    "run_launcher": {
        "module": "dagster._core.launcher.sync_in_memory_run_launcher",
        "class": "SyncInMemoryRunLauncher",
    },
    "run_coordinator": {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"},
}


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Tables `merged` and `split`, each with half of the rows of 2024-11-01 to -05 deleted."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    rows = [{"id": number, "day": date(2024, 11, day)} for day in range(1, 6) for number in range(10)]
    for name in ("merged", "split"):
        builder = DeltaBuilder(str(tmp_path / name)).create(schema, partition_by=["day"])
        builder.append(pa.Table.from_pylist(rows, schema))
        builder.delete(lambda batch: pc.less(batch["id"], 5))
    day = {"name": "day", "every": "day", "start": "2024-11-01"}
    listed = tmp_path / "tables.yaml"
    listed.write_text(
        yaml.safe_dump(
            {
                "tables": [
                    {"path": "merged", "partitions": day},
                    {"path": "split", "partitions": {"columns": [day], "per_run": 1}},
                ]
            }
        )
    )
    module = tmp_path / "location.py"
    module.write_text(LOCATION.format(tables=str(listed)))
    return module


@pytest.fixture
def workspace(location: Path) -> Iterator[Any]:
    target = PythonFileTarget(
        python_file=str(location), attribute=None, working_directory=str(location.parent), location_name="tables"
    )
    with (
        instance_for_test(overrides=TEST_INSTANCE) as instance,
        create_test_daemon_workspace_context(target, instance) as context,
    ):
        yield context


def backfill(workspace: Any, table: str, keys: list[str]) -> list[dg.DagsterRun]:
    """Its runs, oldest first."""
    params = {"assetSelection": [{"path": [table, "dv", f"{table}_optimize"]}], "partitionNames": keys, "title": table}
    answer = execute_dagster_graphql(workspace.create_request_context(), LAUNCH, {"params": params})
    return finished(workspace, answer.data["launchPartitionBackfill"]["backfillId"])


def finished(workspace: Any, backfill_id: str) -> list[dg.DagsterRun]:
    for _ in range(10):
        errors = [error for error in execute_backfill_iteration(workspace, logging.getLogger("backfill")) if error]
        assert errors == []
        if workspace.instance.get_backfill(backfill_id).status.value.startswith("COMPLETED"):
            break
    runs = workspace.instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": backfill_id}), ascending=True)
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    return list(runs)


def days_with_dvs(path: Path) -> set[str | None]:
    state = health(open_table(str(path)).snapshot())
    return {each.partition["day"] for each in state.partitions if each.counts.files_with_dv}


def launch_backfills(workspace: Any, *tables: str) -> dg.DagsterRun:
    selector = {
        "repositoryLocationName": "tables",
        "repositoryName": "__repository__",
        "pipelineName": "dv_backfills",
    }
    config = {"ops": {"dv_backfills_op": {"config": {"tables": list(tables)}}}} if tables else {}
    params = {"selector": selector, "runConfigData": config, "mode": "default"}
    answer = execute_dagster_graphql(workspace.create_request_context(), RUN, {"params": params})
    run = workspace.instance.get_run_by_id(answer.data["launchRun"]["run"]["runId"])
    assert run is not None
    return run


@pytest.mark.processes
def test_chosen_partitions_in_as_few_runs_as_there_are_gaps_or_one_by_one(workspace: Any, location: Path) -> None:
    chosen = ["2024-11-01", "2024-11-02", "2024-11-09"]
    # The 9th is in no table: it has a run of its own all the same, which ends well.
    labels = [run.tags["dv/partitions"] for run in backfill(workspace, "merged", chosen)]
    assert sorted(labels) == ["2024-11-01...2024-11-02 (2)", "2024-11-09"]
    assert len(backfill(workspace, "split", chosen)) == 3
    for name in ("merged", "split"):
        assert days_with_dvs(location.parent / name) == {"2024-11-03", "2024-11-04", "2024-11-05"}
        records = workspace.instance.fetch_materializations(
            dg.AssetKey([name, "dv", f"{name}_optimize"]), limit=10
        ).records
        assert {record.asset_materialization.partition for record in records} == set(chosen)
    # The job chooses those that still have work. In full: the next test.
    assert launch_backfills(workspace, "merged").status == dg.DagsterRunStatus.SUCCESS
    assert "merged: 3 partitions with work" in {begun.title for begun in workspace.instance.get_backfills()}


@pytest.mark.deep
@pytest.mark.processes
def test_a_job_backfills_the_partitions_that_have_work_and_no_others(workspace: Any, location: Path) -> None:
    """Missing partitions in the page are those that were never done: it can't choose those that have work again."""
    instance = workspace.instance
    dirty = days_with_dvs(location.parent / "merged")
    assert launch_backfills(workspace).status == dg.DagsterRunStatus.SUCCESS
    found = {each.title: each for each in instance.get_backfills()}
    assert sorted(found) == ["merged: 5 partitions with work", "split: 5 partitions with work"]
    # Nothing twice: that backfill is at work.
    assert launch_backfills(workspace, "merged").status == dg.DagsterRunStatus.SUCCESS
    assert len(instance.get_backfills()) == 2
    (run,) = finished(workspace, found["merged: 5 partitions with work"].backfill_id)
    assert run.tags["dv/partitions"] == f"{min(map(str, dirty))}...{max(map(str, dirty))} (5)"
    assert days_with_dvs(location.parent / "merged") == set()
    # Rows of one day are deleted again: its partition is green, and has work.
    DeltaBuilder(str(location.parent / "merged")).delete(
        lambda rows: pc.and_(pc.less(rows["id"], 8), pc.equal(rows["day"], pa.scalar(date(2024, 11, 2))))
    )
    assert launch_backfills(workspace, "merged").status == dg.DagsterRunStatus.SUCCESS
    (last,) = (each for each in instance.get_backfills() if each.title == "merged: 1 partition with work")
    (run,) = finished(workspace, last.backfill_id)
    assert run.tags["dv/partitions"] == "2024-11-02"
    assert days_with_dvs(location.parent / "merged") == set()
    # Nothing is left, and a name that isn't there is no silent success.
    assert launch_backfills(workspace, "merged").status == dg.DagsterRunStatus.SUCCESS
    assert len(instance.get_backfills()) == 3
    assert launch_backfills(workspace, "orders").status == dg.DagsterRunStatus.FAILURE
