"""The sensor tick by tick: what it sees, asks for, remembers, and when it keeps still."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from support.attempts import CASES

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.active_runs import defined_elsewhere
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.cursor import Cursor, TableState
from dv_maintenance.service.inspection import Inspection
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.testing.delta_builder import DeltaBuilder

Definitions = Callable[..., dg.Definitions]
MakeTable = Callable[..., TableSettings]
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


def observations(data: Any) -> list[dg.AssetObservation]:
    return [event for event in data.asset_events if isinstance(event, dg.AssetObservation)]


def evaluations(data: Any) -> list[dg.AssetCheckEvaluation]:
    found = [event for event in data.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    assert not any(each.blocking for each in found)
    return found


def checks(data: Any) -> list[tuple[str, bool]]:
    """Of the check ``readable``."""
    found = [each for each in evaluations(data) if each.check_name == "readable"]
    return [(each.asset_key.to_user_string(), each.passed) for each in found]


def failed(data: Any) -> dict[str, bool]:
    """Whether each other check failed."""
    return {each.check_name: not each.passed for each in evaluations(data) if each.check_name != "readable"}


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
    assert keys(request) == ["shop/orders/dv/orders_optimize"]
    assert request.tags["dv/table"] == "shop/orders"
    # Not yet taken up: the same key again, which Dagster runs only once.
    (again,) = tick(defs).run_requests
    assert again.run_key == request.run_key
    assert run(defs, instance, request)
    # Optimized; with a retention of zero seconds the old files are due for vacuum at once.
    (request,) = tick(defs).run_requests
    assert keys(request) == ["shop/orders/dv/orders_vacuum"]
    assert run(defs, instance, request)
    quiet = tick(defs)
    assert quiet.run_requests == []
    assert quiet.skip_message == "nothing is due in 1 table"


def test_rewrites_wait_for_the_window(make_table: MakeTable, make_definitions: Definitions, tick: Tick) -> None:
    table = make_table(jobs=["optimize", "manifest"])
    seen = tick(make_definitions(table, rewrites=False))
    assert [keys(request) for request in seen.run_requests] == [["shop/orders/dv/orders_manifest"]]
    assert len(observations(seen)) == 1


def test_it_observes_what_changed_and_only_that(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, delete_more: Callable[..., int]
) -> None:
    table = make_table()
    defs = make_definitions(table, make_table("other", delete=False))
    events = observations(tick(defs))
    assert [event.asset_key.to_user_string() for event in events] == ["shop/orders", "other"]
    orders = events[0]
    assert orders.metadata["deleted_ratio"].value == 0.5
    assert orders.metadata["version"].value == 2
    assert "**optimize**" in orders.metadata["due"].value
    assert orders.tags["dagster/data_version"] == "2"
    assert tick(defs).asset_events == []
    changed = delete_more(table.path, 4)
    (event,) = observations(tick(defs))
    assert event.tags["dagster/data_version"] == str(changed)


def test_it_says_by_when_deleted_rows_must_go(make_table: MakeTable, make_definitions: Definitions, tick: Tick) -> None:
    table = make_table(policy={"erase_within": "30d"})
    (event,) = observations(tick(make_definitions(table)))
    deleted = open_table(table.path).snapshot().timestamp
    by = event.metadata["deleted_rows_must_go_by"].value
    assert by == pytest.approx(deleted / 1000 + 29 * 86_400, abs=60), "no retention, and a day for the vacuum"
    assert "must go by" in str(event.metadata["deadlines"].value)


def test_a_deadline_that_can_not_be_kept_ends_nothing(
    make_table: MakeTable, make_definitions: Definitions, tick: Tick
) -> None:
    """The check ``readable`` failed, no other was evaluated, and the table was never purged or vacuumed again."""
    table = make_table(kept="7 days", policy={"erase_within": "8d"})
    found = tick(make_definitions(table))
    assert [run.tags["dv/jobs"] for run in found.run_requests] == ["optimize"]
    assert failed(found) | {"readable": False} == {
        "deleted_ratio": True,
        "oldest_dv": False,
        "small_files": False,
        "retention": False,
        "erase_within": True,
        "readable": False,
    }
    (event,) = observations(found)
    assert "take 10d, even if rows are purged at once" in str(event.metadata["warnings"].value)


def test_checks_follow_the_table_without_runs_of_their_own(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, delete_more: Callable[..., int]
) -> None:
    """With only the sensor on they were never evaluated; a purge left "failed, 50%" until somebody ran the check."""
    table = make_table(policy={"checks": {"retention": {}}})
    defs = make_definitions(table)
    assert failed(tick(defs)) == {"deleted_ratio": True, "oldest_dv": False, "small_files": False, "retention": False}
    assert evaluations(tick(defs)) == [], "an unchanged table has no new result"
    maintain(open_table(table.path), LocalEngine(), Policy(max_deleted_ratio=0))
    cured = tick(defs)
    assert not any(failed(cured).values())
    assert {each.description for each in evaluations(cured) if each.check_name == "oldest_dv"} == {
        "there are no deletion vectors"
    }
    delete_more(table.path, 4)
    assert failed(tick(defs))["deleted_ratio"]
    # Other limits are another question.
    (lenient,) = [table.model_copy(update={"policy": Policy.from_mapping({"checks": {"deleted_ratio": {}}})})]
    assert not failed(tick(make_definitions(lenient)))["deleted_ratio"]


def test_a_look_reads_the_table_once(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks and Dagster's partitions take the snapshot of the look, which builds on the last one. The age of the
    oldest deletion vector is only searched for again after a purge.
    """
    table = make_table(jobs=["optimize"])
    asked: list[str] = []
    for name in ("snapshot", "advanced", "oldest_dv", "vacuum"):
        monkeypatch.setattr(DeltaTable, name, _noted(asked, name, getattr(DeltaTable, name)))
    defs = make_definitions(table)
    tick(defs)
    assert asked == ["snapshot", "oldest_dv"]
    DeltaBuilder(table.path).append(pa.table({"id": [1]}))
    tick(defs)
    assert asked[2:] == ["advanced"]
    maintain(open_table(table.path), LocalEngine(), Policy(max_deleted_ratio=0))
    asked.clear()
    tick(defs)
    assert asked == ["advanced", "oldest_dv"]


def test_a_limit_that_time_crosses_is_noticed_once(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs = make_definitions(make_table(jobs=["optimize"]))
    assert not failed(tick(defs))["oldest_dv"]
    clock = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: clock() + 8 * 86400 * 10**9)
    assert failed(tick(defs))["oldest_dv"]
    assert evaluations(tick(defs)) == []


def test_a_run_evaluates_the_checks_of_its_table(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    defs = make_definitions(make_table())
    key = dg.AssetCheckKey(dg.AssetKey(["shop", "orders"]), "deleted_ratio")

    def results() -> list[tuple[bool, bool]]:
        """Newest first: whether it passed, and whether a run evaluated it."""
        records = instance.event_log_storage.get_asset_check_execution_history(key, limit=9)
        return [(each.status.value == "SUCCEEDED", bool(each.run_id)) for each in records]

    (request,) = tick(defs).run_requests
    assert results() == [], "the daemon stores what a tick found"
    assert run(defs, instance, request)
    assert results() == [(True, True)]


def test_maintenance_is_observed_without_a_new_data_version(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    defs = make_definitions(make_table())
    (request,) = tick(defs).run_requests
    assert run(defs, instance, request)
    (event,) = observations(tick(defs))
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
        assert f"run {made.run_id[:8]} is working on it" in data.skip_message
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
    assert "3 runs of optimize at version 2 ended, the last one failed (run " in data.skip_message
    assert "waiting for a new version or 20" in data.skip_message


_ENDS = {
    "failed": dg.DagsterRunStatus.FAILURE,
    "unknown": dg.DagsterRunStatus.FAILURE,
    "refused": dg.DagsterRunStatus.FAILURE,
    "not permitted": dg.DagsterRunStatus.FAILURE,
    "lost": dg.DagsterRunStatus.CANCELED,
    "idle": dg.DagsterRunStatus.SUCCESS,
}
_SAID = {
    "refused": {naming.REFUSED_TAG: "no"},
    "not permitted": {naming.REFUSED_TAG: "no", naming.RESTORABLE_TAG: "true"},
}


@pytest.mark.parametrize(("endings", "after"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_every_case_as_in_the_other_orchestrator(
    tick: Tick,
    make_table: MakeTable,
    make_definitions: Definitions,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    endings: list[str],
    after: int | None,
) -> None:
    """Dagster drops a request under the key of a run that it knows, and says nothing about it."""
    defs = make_definitions(make_table(jobs=["optimize"]))
    data = tick(defs)
    seen = {data.run_requests[0].run_key}

    def later(seconds: float) -> None:
        monkeypatch.setattr(
            "dv_maintenance.service.evaluation.epoch_millis", lambda: int((time.time() + seconds) * 1000)
        )

    job = defs.resolve_implicit_global_asset_job_def()
    for how in endings:
        tags = {**data.run_requests[0].tags, **_SAID.get(how, {})}
        instance.create_run_for_job(job, tags=tags, status=_ENDS[how])
    if after is None or after > 0:
        later((after or 1000 * 3600) - 60)
        waits = tick(defs)
        assert waits.run_requests == []
        assert "waiting for" in waits.skip_message
    if after is not None:
        later(after + 60)
        (again,) = tick(defs).run_requests
        assert (again.run_key in seen) == (endings == [])


def test_what_would_fail_again_is_not_asked_for_again(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance, delete_more: Any
) -> None:
    """Not on a damaged table, whatever its settings; at once when its files are back."""
    table = make_table(jobs=["optimize"])
    defs = make_definitions(table)
    (request,) = tick(defs).run_requests
    missing = next(Path(table.path).glob("*.bin"))
    missing.rename(missing.with_suffix(".away"))
    assert not run(defs, instance, request, raise_on_error=False)
    data = tick(defs)
    assert data.run_requests == []
    said = f"shop/orders: optimize due, but nothing is started on a damaged table: {missing.name}: it does not exist"
    assert data.skip_message.startswith(said)
    assert f"'dvm fsck file://{table.path}'" in data.skip_message
    other = make_definitions(table.model_copy(update={"policy": Policy(max_deleted_ratio=0.01)}))
    assert tick(other).run_requests == [], "it would fail under any settings"
    missing.with_suffix(".away").rename(missing)
    (again,) = tick(defs).run_requests
    assert run(defs, instance, again)


def test_a_vacuum_goes_first_and_holds_nothing_up_for_good(
    tick: Tick,
    make_table: MakeTable,
    make_definitions: Definitions,
    instance: dg.DagsterInstance,
    delete_more: Callable[..., int],
) -> None:
    table = make_table()
    maintain(open_table(table.path), LocalEngine(), Policy(max_deleted_ratio=0))
    delete_more(table.path, 4)
    defs = make_definitions(table)
    for _ in range(3):
        (request,) = tick(defs).run_requests
        assert keys(request) == ["shop/orders/dv/orders_vacuum"]
        job = defs.resolve_implicit_global_asset_job_def()
        instance.create_run_for_job(job, tags=request.tags, status=dg.DagsterRunStatus.FAILURE)
    (request,) = tick(defs).run_requests
    assert keys(request) == ["shop/orders/dv/orders_optimize"]
    assert run(defs, instance, request)
    # A new version is a new chance, and so is the next search for expired files.
    (request,) = tick(defs).run_requests
    assert keys(request) == ["shop/orders/dv/orders_vacuum"]
    assert run(defs, instance, request)
    assert tick(defs).run_requests == []


def test_vacuums_share_a_run(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    """Each started a run of its own: 200 tables, 200 starts."""
    tables = [make_table(name, jobs=["vacuum"], policy={"vacuum_every": "1d"}) for name in ("a", "b/c", "d")]
    for table in tables:
        maintain(open_table(table.path), LocalEngine(), Policy(max_deleted_ratio=0))
    defs = make_definitions(*tables)
    (request,) = tick(defs).run_requests
    assert keys(request) == ["a/dv/a_vacuum", "b/c/dv/c_vacuum", "d/dv/d_vacuum"]
    (again,) = tick(defs).run_requests
    assert again.run_key == request.run_key

    broken = Path(tables[1].path, "_delta_log")
    broken.rename(broken.with_name("elsewhere"))
    assert not run(defs, instance, request, raise_on_error=False)
    broken.with_name("elsewhere").rename(broken)
    done = {table.name: instance.get_latest_materialization_event(naming.job_key(table, "vacuum")) for table in tables}
    assert {name for name, event in done.items() if event is not None} == {"a", "d"}

    # What failed is counted for its table alone, and has a run of its own.
    (alone,) = tick(defs).run_requests
    assert (keys(alone), alone.tags["dv/table"], alone.run_config) == (["b/c/dv/c_vacuum"], "b/c", {})
    assert run(defs, instance, alone)
    assert tick(defs).run_requests == []


def test_a_shared_run_stays_in_its_process(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    """Dagster's default executor starts a process for each step. Another executor has a config of its own."""
    tables = [make_table(name, jobs=["vacuum"]) for name in ("a", "b")]
    for table in tables:
        maintain(open_table(table.path), LocalEngine(), Policy(max_deleted_ratio=0))
    chosen = make_definitions(*tables)
    assert chosen.executor is dg.in_process_executor
    (request,) = tick(chosen).run_requests
    assert request.run_config == {}
    (request,) = tick(dg.Definitions(chosen.assets, sensors=chosen.sensors, resources=chosen.resources)).run_requests
    assert request.run_config == {"execution": {"config": {"in_process": {}}}}


def test_no_vacuum_starts_twice_when_others_join(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    """The key of a shared run changes with its tables. After one that was canceled, each gets a run of its own."""
    tables = [make_table(name, jobs=["vacuum"], policy={"vacuum_every": "1d"}) for name in ("a", "b", "c")]
    for table in tables:
        maintain(open_table(table.path), LocalEngine(), Policy(max_deleted_ratio=0))
    few = make_definitions(*tables[:2])
    (request,) = tick(few).run_requests
    job = few.resolve_implicit_global_asset_job_def()
    underway = instance.create_run_for_job(job, tags=request.tags, status=dg.DagsterRunStatus.STARTED)
    (joined,) = tick(make_definitions(*tables)).run_requests
    assert keys(joined) == ["c/dv/c_vacuum"]
    instance.report_run_canceled(underway)
    runs = tick(make_definitions(*tables)).run_requests
    assert sorted(map(keys, runs)) == [["a/dv/a_vacuum"], ["b/dv/b_vacuum"], ["c/dv/c_vacuum"]]


def test_a_lost_table_fails_its_check_and_stops_no_other(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, tmp_path: Path
) -> None:
    lost = TableSettings(name="lost", path=str(tmp_path / "lost"))
    defs = make_definitions(lost, make_table())
    data = tick(defs)
    assert [request.tags["dv/table"] for request in data.run_requests] == ["shop/orders"]
    assert [event.asset_key.to_user_string() for event in observations(data)] == ["shop/orders"]
    assert checks(data) == [("lost", False), ("shop/orders", True)]
    assert checks(tick(defs)) == [], "said once"
    DeltaBuilder(lost.path).create(pa.schema([("id", pa.int64())]))
    data = tick(defs)
    assert checks(data) == [("lost", True)]
    assert [event.asset_key.to_user_string() for event in observations(data)] == ["lost"]
    alone = tick(make_definitions(TableSettings(name="gone", path=str(tmp_path / "gone"))))
    assert "no table found here" in alone.skip_message


def test_a_table_that_is_lost_for_a_while_is_not_observed_again(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions
) -> None:
    table = make_table()
    defs = make_definitions(table)
    tick(defs)
    Path(table.path).rename(table.path + "-away")
    assert checks(tick(defs)) == [("shop/orders", False)]
    Path(table.path + "-away").rename(table.path)
    data = tick(defs)
    assert checks(data) == [("shop/orders", True)]
    assert observations(data) == []


@pytest.mark.parametrize("where", ["service.observe.inspect_table", "dagster.sensor.of_inspection"])
def test_our_own_mistakes_stop_no_other_table(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    target = "dv_maintenance." + where
    module, name = target.rsplit(".", 1)
    original = getattr(importlib.import_module(module), name)

    def fails_for_one(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        if "bad" in {options.get("name"), getattr(arguments[0], "name", None)}:
            raise ZeroDivisionError("secret")
        return found

    monkeypatch.setattr(target, fails_for_one)
    data = tick(make_definitions(make_table("bad"), make_table()))
    assert ("bad", False) in checks(data)
    assert "secret" not in str(data.asset_events)
    assert [request.tags["dv/table"] for request in data.run_requests] == ["shop/orders"]


def test_an_unchanged_table_costs_one_listing(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs = make_definitions(make_table(), make_table("other", delete=False))
    tick(defs)
    asked = []
    for name in ("list", "get", "get_range", "head", "walk", "exists"):
        monkeypatch.setattr(Storage, name, _noted(asked, name, getattr(Storage, name)))
    assert tick(defs).asset_events == []
    assert asked == ["list", "list"]


def _noted(asked: list[str], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        asked.append(name)
        return method(*arguments, **options)

    return call


def test_out_of_time_the_next_tick_goes_on_from_there(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions
) -> None:
    defs = make_definitions(*(make_table(name) for name in "abc"), budget_seconds=-1)
    data = [tick(defs) for _ in range(4)]
    assert [each.run_requests[0].tags["dv/table"] for each in data] == ["a", "b", "c", "a"]
    assert [json.loads(each.cursor)["first"] for each in data] == ["b", "c", "a", "b"]


def test_a_limit_of_requests_per_tick_goes_round(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dv_maintenance.dagster.sensor._MAX_REQUESTS", 2)
    defs = make_definitions(*(make_table(name) for name in "abc"))
    first, second = tick(defs), tick(defs)
    assert [request.tags["dv/table"] for request in first.run_requests] == ["a", "b"]
    assert len(observations(first)) == 3, "looked at all the same"
    assert [request.tags["dv/table"] for request in second.run_requests] == ["c", "a"]


@pytest.mark.parametrize(
    "cursor",
    [
        "{}",
        "[]",
        "nonsense",
        '{"form": 1, "first": null, "settings": [], "tables": {}}',
        '{"form": 2, "first": 3, "settings": [], "tables": {}}',
        '{"form": 2, "first": null, "settings": [], "tables": {"shop/orders": [2, 2, "", null, 0, 1]}}',
        '{"form": 2, "first": null, "settings": ["x"], "tables": {"shop/orders": ["2", 2, "", null, 0, 1]}}',
        '{"form": 2, "first": null, "settings": ["x"], "tables": {"shop/orders": [2, 2, "?", null, 0, 1]}}',
    ],
)
def test_a_damaged_cursor_means_starting_anew(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, cursor: str
) -> None:
    data = tick(make_definitions(make_table()), cursor=cursor)
    assert len(data.run_requests) == 1
    assert json.loads(data.cursor)["tables"]["shop/orders"][:3] == [2, 2, "o"]


def test_the_cursor_survives_and_stays_small(make_table: MakeTable) -> None:
    one = Inspection("t", version=7, due=("optimize", "manifest"), vacuum_checked=1_795_248_115_190, settings="ab" * 8)
    state = Cursor(
        {f"lake/t{n:04}": TableState(replace(one, name=f"lake/t{n:04}"), n, n % 2) for n in range(1000)},
        "lake/t0500",
    )
    assert Cursor.from_json(state.to_json()) == state
    assert len(state.to_json()) < 60_000


@pytest.mark.parametrize(
    ("jobs", "asked", "events"), [(["vacuum"], [["shop/orders/dv/orders_vacuum"]], 0), (["optimize"], [], 2)]
)
def test_a_sensor_for_some_of_the_jobs(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions, jobs: list[str], asked: Any, events: int
) -> None:
    table = make_table(policy={"max_deleted_ratio": 0.9, "min_file_size": 0})
    maintain(open_table(table.path), LocalEngine(), Policy(max_deleted_ratio=0))
    data = tick(make_definitions(table, make_table("other", jobs=["manifest"]), jobs=jobs))
    assert [keys(request) for request in data.run_requests] == asked
    assert len(observations(data)) + len(checks(data)) == events


def test_only_the_jobs_of_the_table(tick: Tick, make_table: MakeTable, make_definitions: Definitions) -> None:
    (request,) = tick(make_definitions(make_table(jobs=["manifest"]))).run_requests
    assert keys(request) == ["shop/orders/dv/orders_manifest"]


def test_a_policy_that_is_content_asks_for_nothing(
    tick: Tick, make_table: MakeTable, make_definitions: Definitions
) -> None:
    data = tick(make_definitions(make_table(policy={"max_deleted_ratio": 0.6, "min_file_size": 0})))
    assert data.run_requests == []


def test_everything_is_stopped_until_somebody_starts_it(make_table: MakeTable, make_definitions: Definitions) -> None:
    defs = make_definitions(make_table())
    assert defs.resolve_sensor_def("dv_accumulation").default_status == dg.DefaultSensorStatus.STOPPED
    assert defs.resolve_schedule_def("dv_daily").default_status == dg.DefaultScheduleStatus.STOPPED


def test_a_tick_has_no_time_for_a_large_table(
    make_definitions: Definitions, make_table: MakeTable, tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dv_maintenance.maintenance.checks.FEW", 1)
    table = make_table()
    next(Path(table.path).glob("*.parquet")).unlink()
    assert checks(tick(make_definitions(table))) == [("shop/orders", True)]


def test_a_missing_file_fails_the_check_until_it_is_back(
    make_definitions: Definitions, make_table: MakeTable, tick: Tick
) -> None:
    """The log of such a table can be read, and every look at it was green."""
    table = make_table()
    (gone, *_) = sorted(Path(table.path).glob("deletion_vector_*.bin"))
    data = gone.read_bytes()
    gone.unlink()
    defs = make_definitions(table)
    found = tick(defs)
    assert checks(found) == [("shop/orders", False)]
    (said,) = [each.description for each in evaluations(found) if each.check_name == "readable"]
    assert f"{gone.name}: it does not exist" in str(said)
    assert checks(tick(defs)) == []
    gone.write_bytes(data)
    assert checks(tick(defs)) == [("shop/orders", True)]
    assert checks(tick(defs)) == []


def test_two_definitions_of_one_location_are_noticed(
    tick: Tick,
    make_table: MakeTable,
    make_definitions: Definitions,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take turns, and the tick says that somebody else maintains the table."""
    table = make_table(jobs=["optimize"])
    twin = table.model_copy(update={"name": "twin"})
    both = make_definitions(table, twin)
    graph = both.resolve_asset_graph()
    said = defined_elsewhere([table, make_table("other")], instance, graph)
    assert said == {table.name: "the asset twin/dv/twin_optimize"}
    alone = make_definitions(table)
    assert defined_elsewhere([table], instance, alone.resolve_asset_graph()) == {}

    # Another code location: what is known of it are its runs.
    (request,) = tick(make_definitions(twin)).run_requests
    job = alone.resolve_implicit_global_asset_job_def()
    underway = instance.create_run_for_job(job, tags=request.tags, status=dg.DagsterRunStatus.STARTED)
    data = tick(alone)
    assert data.run_requests == []
    assert f"optimize due, but run {underway.run_id[:8]} is working on it" in data.skip_message
    # Dagster's default launcher does not notice that a host crashed.
    monkeypatch.setattr("dv_maintenance.dagster.active_runs._SILENT", 0)
    message = tick(alone).skip_message
    assert f"run {underway.run_id[:8]}, which has logged nothing for " in message
    assert "Force termination immediately" in message
    instance.report_run_canceled(underway)
    assert len(tick(alone).run_requests) == 1
    said = defined_elsewhere([table, make_table("more")], instance, alone.resolve_asset_graph())
    assert said == {table.name: f"the table twin (run {underway.run_id[:8]})"}
