"""The sensor tick by tick: what it sees, asks for, remembers, and when it keeps still."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dv_maintenance.maintenance.tables_file import WatchedTable
from dv_maintenance.testing.delta_builder import DeltaBuilder

Definitions = Callable[..., dg.Definitions]
MakeTable = Callable[..., WatchedTable]
Tick = Callable[..., Any]


@pytest.fixture
def tick(instance: dg.DagsterInstance) -> Tick:
    """Evaluate the sensor once; the cursor goes along from tick to tick, unless one is given."""
    cursors: list[str | None] = [None]

    def evaluate(defs: dg.Definitions, cursor: str | None = None) -> Any:
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor or cursors[-1], repository_def=defs.get_repository_def()
        )
        data = defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context)
        cursors.append(data.cursor)
        return data

    return evaluate


def keys(request: Any) -> list[str]:
    return sorted(key.to_user_string() for key in request.asset_selection)


def run(defs: dg.Definitions, instance: dg.DagsterInstance, request: Any, **options: Any) -> bool:
    job = defs.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        instance=instance, asset_selection=list(request.asset_selection), tags=dict(request.tags), **options
    )
    return result.success


def test_it_asks_once_for_what_is_due(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    defs = make_definitions(make_table(policy={"vacuum_every": "1ms"}))
    first = tick(defs)
    (request,) = first.run_requests
    assert keys(request) == ["shop/orders/dv/optimize"]
    assert request.tags["dv/table"] == "shop/orders"
    # Not yet taken up: the same key again, which Dagster runs only once.
    (again,) = tick(defs).run_requests
    assert again.run_key == request.run_key
    assert run(defs, instance, request)
    # Optimized; with a retention of zero seconds the old files are due for vacuum at once.
    (request,) = tick(defs).run_requests
    assert keys(request) == ["shop/orders/dv/vacuum"]
    assert run(defs, instance, request)
    quiet = tick(defs)
    assert quiet.run_requests == []
    assert quiet.skip_message == "nothing is due"


def test_it_observes_what_changed_and_only_that(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, delete_more: Callable[..., int]
) -> None:
    table = make_table()
    defs = make_definitions(table, make_table("other", delete=False))
    events = tick(defs).asset_events
    assert [event.asset_key.to_user_string() for event in events] == ["shop/orders", "other"]
    orders = events[0]
    assert orders.metadata["deleted_ratio"].value == 0.5
    assert orders.metadata["version"].value == 2
    assert "**optimize**" in orders.metadata["due"].value
    assert orders.tags["dagster/data_version"] == "2"
    assert tick(defs).asset_events == []
    changed = delete_more(table.path, 4)
    (event,) = tick(defs).asset_events
    assert event.tags["dagster/data_version"] == str(changed)


def test_maintenance_is_observed_without_a_new_data_version(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    defs = make_definitions(make_table())
    (request,) = tick(defs).run_requests
    assert run(defs, instance, request)
    (event,) = tick(defs).asset_events
    assert event.metadata["version"].value == 3
    assert event.tags["dagster/data_version"] == "2"


@pytest.mark.parametrize("how", ["the sensor", "the assets page", "the job"])
def test_one_run_at_a_time_per_table_whoever_launched_it(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance, how: str
) -> None:
    defs = make_definitions(make_table(), make_table("other"))
    (orders, _) = tick(defs).run_requests
    job = defs.resolve_job_def("dv_maintenance") if how == "the job" else defs.resolve_implicit_global_asset_job_def()
    # As the daemon does it: without step keys, and without a selection where the whole job is to run.
    made = instance.create_run(
        job_name=job.name,
        run_id=None,
        run_config={},
        status=dg.DagsterRunStatus.STARTED,
        tags=orders.tags if how == "the sensor" else {},
        root_run_id=None,
        parent_run_id=None,
        step_keys_to_execute=None,
        execution_plan_snapshot=None,
        job_snapshot=job.get_job_snapshot(),
        parent_job_snapshot=None,
        asset_selection=None if how == "the job" else frozenset(orders.asset_selection),
        asset_check_selection=None,
        resolved_op_selection=None,
        op_selection=None,
        remote_job_origin=None,
        job_code_origin=None,
        asset_graph=job.asset_layer.asset_graph,
    )
    data = tick(defs)
    requested = [request.tags["dv/table"] for request in data.run_requests]
    assert requested == ([] if how == "the job" else ["other"])
    if how == "the job":
        assert f"run {made.run_id[:8]} is at work" in data.skip_message
    instance.report_run_canceled(made)
    assert len(tick(defs).run_requests) == 2


def test_a_failed_run_is_asked_for_again_but_not_for_ever(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    defs = make_definitions(make_table())
    seen = set()
    for _ in range(3):
        (request,) = tick(defs).run_requests
        seen.add(request.run_key)
        failed = instance.create_run_for_job(
            defs.resolve_implicit_global_asset_job_def(), tags=request.tags, status=dg.DagsterRunStatus.FAILURE
        )
        assert failed.is_failure
    assert len(seen) == 3
    data = tick(defs)
    assert data.run_requests == []
    assert "3 runs failed at version 2" in data.skip_message


def test_a_lost_table_stops_no_other(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, tmp_path: Path
) -> None:
    lost = WatchedTable(name="lost", path=str(tmp_path / "lost"))
    defs = make_definitions(lost, make_table())
    data = tick(defs)
    assert [request.tags["dv/table"] for request in data.run_requests] == ["shop/orders"]
    assert [event.asset_key.to_user_string() for event in data.asset_events] == ["shop/orders"]
    alone = tick(make_definitions(lost), cursor="{}")
    assert "no table found here" in alone.skip_message
    # It turns up later.
    import pyarrow as pa

    DeltaBuilder(lost.path).create(pa.schema([("id", pa.int64())]))
    assert [event.asset_key.to_user_string() for event in tick(make_definitions(lost)).asset_events] == ["lost"]


def test_out_of_time_the_next_tick_goes_on_from_there(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions
) -> None:
    defs = make_definitions(*(make_table(name) for name in "abc"), budget_seconds=-1)
    order = [tick(defs).run_requests[0].tags["dv/table"] for _ in range(4)]
    assert order == ["a", "b", "c", "a"]


@pytest.mark.parametrize("cursor", ["{}", "[]", "nonsense", '{"looks": 1, "data_versions": {}, "first": null}'])
def test_a_damaged_cursor_means_starting_anew(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, cursor: str
) -> None:
    data = tick(make_definitions(make_table()), cursor=cursor)
    assert len(data.run_requests) == 1
    assert json.loads(data.cursor)["data_versions"] == {"shop/orders": 2}


def test_only_the_jobs_of_the_table(tick: Tick, make_table: MakeTable, make_definitions: Definitions) -> None:
    (request,) = tick(make_definitions(make_table(jobs=["manifest"]))).run_requests
    assert keys(request) == ["shop/orders/dv/manifest"]


def test_a_policy_that_is_content_asks_for_nothing(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions
) -> None:
    data = tick(make_definitions(make_table(policy={"max_deleted_ratio": 0.6, "min_file_size": 0})))
    assert data.run_requests == []


def test_everything_is_stopped_until_somebody_starts_it(make_table: MakeTable, make_definitions: Definitions) -> None:
    defs = make_definitions(make_table())
    assert defs.resolve_sensor_def("dv_accumulation").default_status == dg.DefaultSensorStatus.STOPPED
    assert defs.resolve_schedule_def("dv_daily").default_status == dg.DefaultScheduleStatus.STOPPED
