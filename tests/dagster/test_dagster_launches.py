"""Runs that others launch, through the real GraphQL API as the page does it: the sensor sees them and keeps out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dagster._core.execution.backfill import BulkActionStatus

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_job, build_dv_sensor
from dv_maintenance.maintenance.health import health
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

Ask = Callable[..., dict[str, Any]]
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
SETTINGS = Path(__file__).parent.parent.parent / "sensors" / "dagster.yaml"
LOCATION = """
from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_job
from dv_maintenance.service.tables_file import WatchConfig
import dagster as dg

tables = WatchConfig.load({path!r}).tables
defs = dg.Definitions(
    assets=build_dv_assets(tables), jobs=[build_dv_job(tables)], resources={{"spark": SparkResource(engine="local")}}
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launches")


@pytest.fixture(scope="module")
def tables(folder: Path) -> tuple[TableSettings, ...]:
    return written(folder)


def written(folder: Path) -> tuple[TableSettings, ...]:
    """``orders``, and ``sales`` by day: half of its rows deleted on the 1st, 2nd, 4th and 20th of 20 days."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    for name, columns in (("orders", []), ("sales", ["day"])):
        rows = [{"id": number, "day": date(2024, 11, day)} for day in range(1, 21) for number in range(4)]
        builder = DeltaBuilder(str(folder / name)).create(schema, partition_by=columns)
        builder.append(pa.Table.from_pylist(rows, schema))
        days = pa.array([date(2024, 11, day) for day in (1, 2, 4, 20)])
        builder.delete(lambda rows, days=days: pc.and_(pc.less(rows["id"], 2), pc.is_in(rows["day"], days)))
    (folder / "tables.yaml").write_text(
        "defaults: {policy: {min_file_size: 0}, jobs: [optimize, vacuum]}\n"
        "tables:\n- {path: orders}\n"
        "- {path: sales, jobs: [optimize], partitions: {name: day, every: day, start: 2024-11-01}}\n"
    )
    return WatchConfig.load(str(folder / "tables.yaml")).tables


@pytest.fixture(scope="module")
def queued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """An instance with our example settings. Nobody takes runs from its queue."""
    home = tmp_path_factory.mktemp("home")
    (home / "dagster.yaml").write_text(SETTINGS.read_text())
    with dg.DagsterInstance.from_config(str(home)) as made:
        yield made


@pytest.fixture(scope="module")
def ask(queued: dg.DagsterInstance, folder: Path, tables: Any) -> Iterator[Ask]:
    """Send a mutation to the location; its one answer."""
    from dagster_graphql.test.utils import define_out_of_process_context, execute_dagster_graphql

    location = folder / "location.py"
    location.write_text(LOCATION.format(path=str(folder / "tables.yaml")))
    with define_out_of_process_context(str(location), None, queued) as context:

        def call(mutation: str, variables: dict[str, Any]) -> dict[str, Any]:
            ((_, answer),) = execute_dagster_graphql(context, mutation, variables).data.items()
            return answer

        yield call


def definitions(tables: tuple[TableSettings, ...]) -> dg.Definitions:
    return dg.Definitions(
        assets=build_dv_assets(tables),
        jobs=[build_dv_job(tables)],
        sensors=[build_dv_sensor(tables)],
        resources={"spark": SparkResource(engine="local")},
        executor=dg.in_process_executor,
    )


def tick(defs: dg.Definitions, instance: dg.DagsterInstance) -> Any:
    context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
    return defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context)


def launch(ask: Ask, job: str, assets: list[list[str]] | None) -> str:
    where = {"repositoryLocationName": "test_location", "repositoryName": "__repository__", "jobName": job}
    chosen = (
        {} if assets is None else {"assetSelection": [{"path": path} for path in assets], "assetCheckSelection": []}
    )
    answer = ask(
        "mutation($p: ExecutionParams!) {launchRun(executionParams: $p)"
        " {__typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}",
        {"p": {"selector": where | chosen, "mode": "default", "runConfigData": "{}"}},
    )
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])


@pytest.mark.parametrize(
    ("job", "assets"), [("__ASSET_JOB", [["orders", "dv", "orders_vacuum"]]), ("dv_maintenance", None)]
)
def test_a_run_from_the_page_is_a_run_in_flight(
    ask: Ask, queued: dg.DagsterInstance, tables: Any, job: str, assets: list[list[str]] | None
) -> None:
    defs = definitions(tables)
    run = launch(ask, job, assets)
    assert queued.get_run_by_id(run).status == dg.DagsterRunStatus.QUEUED
    data = tick(defs, queued)
    # The job for all leaves the partitioned table's optimize out: nobody is at work on that.
    assert [request.tags["dv/table"] for request in data.run_requests] == ["sales"]
    queued.delete_run(run)
    assert [request.tags["dv/table"] for request in tick(defs, queued).run_requests] == ["orders", "sales"]


def test_a_backfill_from_the_page_is_at_work_before_it_has_runs(
    ask: Ask, queued: dg.DagsterInstance, tables: Any
) -> None:
    answer = ask(
        "mutation($p: LaunchBackfillParams!) {launchPartitionBackfill(backfillParams: $p)"
        " {__typename ... on LaunchBackfillSuccess {backfillId} ... on PythonError {message}}}",
        {"p": {"assetSelection": [{"path": ["sales", "dv", "sales_optimize"]}], "partitionNames": ["2024-11-02"]}},
    )
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    assert queued.get_runs_count() == 0
    data = tick(definitions(tables[1:]), queued)
    assert data.run_requests == []
    assert f"sales: optimize due, but backfill {answer['backfillId']} is working on it" in data.skip_message
    backfill = queued.get_backfill(answer["backfillId"])
    queued.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
    assert len(tick(definitions(tables[1:]), queued).run_requests) == 1


def test_partitions_that_are_due_become_one_range(tmp_path: Path) -> None:
    defs = definitions(written(tmp_path)[1:])
    spans = []
    with dg.DagsterInstance.ephemeral() as instance:
        while requests := tick(defs, instance).run_requests:
            (request,) = requests
            spans.append((request.tags[START], request.tags[END]))
            assert request.run_key.endswith(":".join(spans[-1]))
            result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
                instance=instance, asset_selection=list(request.asset_selection), tags=dict(request.tags)
            )
            assert result.success
    # The 3rd has no work, and is passed over: cheaper than a run of its own for the 4th.
    assert spans == [("2024-11-01", "2024-11-04"), ("2024-11-20", "2024-11-20")]
    assert health(open_table(str(tmp_path / "sales")).snapshot()).counts.files_with_dv == 0


def test_the_example_settings_hold(queued: dg.DagsterInstance) -> None:
    settings = queued.get_concurrency_config()
    assert str(settings.pool_config.pool_granularity) == "PoolGranularity.OP"
    assert settings.pool_config.default_pool_limit == 1
    (limit,) = settings.run_queue_config.tag_concurrency_limits
    assert (limit["key"], limit["limit"], limit["value"]) == ("dv/table", 1, {"applyLimitPerUniqueValue": True})
    assert (queued.run_retries_enabled, queued.run_retries_retry_on_asset_or_op_failure) == (True, False)
