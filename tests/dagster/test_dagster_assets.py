"""The assets of a table: what they do to it, what they report, and how errors reach Dagster."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pyarrow as pa
import pytest

from dv_maintenance.dagster import naming
from dv_maintenance.dagster.errors import MAX_RETRIES, in_dagster_terms
from dv_maintenance.dagster.resources import SparkResource, engine_of
from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    MissingSoftwareError,
    NotPermittedError,
    RefusedError,
    StorageDeniedError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.service.data_version import last_data_version
from dv_maintenance.service.progress import progress_log
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table

Definitions = Callable[..., dg.Definitions]
MakeTable = Callable[..., TableSettings]


def rows(table: TableSettings) -> list[int]:
    schema, batches = read(open_table(table.path))
    return sorted(pa.Table.from_batches(batches, schema)["id"].to_pylist())


def run_job(defs: dg.Definitions, instance: dg.DagsterInstance, **options: Any) -> dg.ExecuteInProcessResult:
    return defs.resolve_job_def("dv_maintenance").execute_in_process(instance=instance, **options)


def materialization(instance: dg.DagsterInstance, table: TableSettings, job: str) -> dg.AssetMaterialization:
    record = instance.get_latest_materialization_event(
        dg.AssetKey([*table.name.split("/"), "dv", f"{table.name.split('/')[-1]}_{job}"])
    )
    assert record is not None
    assert record.asset_materialization is not None
    return record.asset_materialization


def numbers(event: Any) -> dict[str, Any]:
    return {name: value.value for name, value in event.metadata.items()}


def test_the_job_watches_purges_vacuums_and_writes_manifests(
    make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    table = make_table(jobs=["optimize", "vacuum", "manifest"])
    before = rows(table)
    assert run_job(make_definitions(table), instance).success

    counts = health(open_table(table.path).snapshot()).counts
    assert (counts.files, counts.files_with_dv, counts.deleted_rows) == (1, 0, 0)
    assert rows(table) == before
    assert (Path(table.path) / "_symlink_format_manifest" / "manifest").exists()
    assert not list(Path(table.path).glob("*.bin"))

    optimized = numbers(materialization(instance, table, "optimize"))
    assert (optimized["rows_purged"], optimized["dvs_removed"], optimized["verified"]) == (1000, 2, True)
    assert (optimized["files_removed"], optimized["files_added"]) == (2, 1)
    assert "more than 5 %" in optimized["reason"]
    assert [step.data["rows_purged"] for step in optimized["plan"].records] == [1000]
    vacuumed = numbers(materialization(instance, table, "vacuum"))
    assert (vacuumed["data_files"], vacuumed["dv_files"]) == (2, 1)
    assert numbers(materialization(instance, table, "manifest"))["files"] == 1


def test_a_second_run_does_nothing(
    make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    table = make_table()
    defs = make_definitions(table)
    assert run_job(defs, instance).success
    version = open_table(table.path).version()
    assert run_job(defs, instance).success
    assert open_table(table.path).version() == version
    assert numbers(materialization(instance, table, "optimize"))["steps"] == 0


def test_the_data_version_is_that_of_the_last_change_of_data(
    make_table: MakeTable,
    make_definitions: Definitions,
    instance: dg.DagsterInstance,
    delete_more: Callable[..., int],
) -> None:
    table = make_table()
    defs = make_definitions(table)
    key = dg.AssetKey(["shop", "orders"])

    def observed() -> str:
        assert run_job(defs, instance).success
        record = instance.get_latest_data_version_record(key)
        assert record is not None
        return str((record.event_log_entry.asset_observation.tags)["dagster/data_version"])

    assert observed() == "2"
    assert open_table(table.path).version() > 2
    assert observed() == "2", "maintenance must not wake consumers"
    changed = delete_more(table.path, 4)
    assert observed() == str(changed)


def test_last_data_version_goes_on_from_an_earlier_look(make_table: MakeTable, delete_more: Callable[..., int]) -> None:
    table = open_table(make_table().path)
    assert last_data_version(table) == 2
    assert last_data_version(table, (2, 2)) == 2
    assert last_data_version(table, (2, 1)) == 1, "nothing new: what was known stays"
    changed = delete_more(table.uri[7:], 4)
    assert last_data_version(table, (2, 2)) == changed
    assert last_data_version(table, (99, 98)) == changed, "the table was replaced by a younger one"


def test_observations_have_numbers(
    make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    table = make_table()
    key = dg.AssetKey(["shop", "orders"])
    result = run_job(make_definitions(table), instance, asset_selection=[key])
    (event,) = result.get_asset_observation_events()
    observed = numbers(event.asset_observation_data.asset_observation)
    assert (observed["files"], observed["files_with_dv"], observed["deleted_rows"]) == (2, 2, 1000)
    assert (observed["deleted_ratio"], observed["dagster/row_count"]) == (0.5, 1000)


def test_a_table_need_not_exist_to_be_defined(
    make_definitions: Definitions, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    table = TableSettings(name="later", path=str(tmp_path / "later"))
    defs = make_definitions(table)
    result = run_job(defs, instance, raise_on_error=False)
    assert not result.success
    failure = result.failure_data_for_node("later__dv_observe")
    assert failure is not None
    assert "no table found here" in str(failure)


def test_a_refused_table_fails_once_and_says_why(
    golden_copy: Callable[[str], Path], make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    table = TableSettings(name="liquid", path=str(golden_copy("delta/table_with_liquid_clustering")))
    key = dg.AssetKey(["liquid", "dv", "liquid_optimize"])
    result = run_job(make_definitions(table), instance, asset_selection=[key], raise_on_error=False)
    assert not result.success
    assert not [event for event in result.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]
    (failed,) = [event for event in result.all_events if event.event_type_value == "STEP_FAILURE"]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    assert failure.metadata["error"].value == "UnsupportedFeatureError"
    assert "liquid" in str(failure.description)


def test_errors_in_dagsters_terms(instance: dg.DagsterInstance) -> None:
    def step(retry_number: int) -> Any:
        return SimpleNamespace(
            instance=instance,
            run=SimpleNamespace(tags={}),
            retry_number=retry_number,
            op_def=SimpleNamespace(retry_policy=policy),
        )

    policy: dg.RetryPolicy | None = None
    with pytest.raises(dg.RetryRequested) as retried, in_dagster_terms(step(1)):
        raise ConflictError("lost")
    assert (retried.value.max_retries, retried.value.seconds_to_wait) == (MAX_RETRIES, 10)
    with pytest.raises(dg.Failure) as exhausted, in_dagster_terms(step(MAX_RETRIES)):
        raise ConflictError("lost")
    assert exhausted.value.allow_retries is False
    with pytest.raises(dg.Failure) as refused, in_dagster_terms(step(0)):
        raise RefusedError("unsafe", table="t", next_step="stop")
    assert refused.value.allow_retries is False
    assert refused.value.metadata["next_step"].value == "stop"
    with pytest.raises(ZeroDivisionError), in_dagster_terms(step(0)):
        raise ZeroDivisionError
    policy = dg.RetryPolicy(max_retries=5, delay=30, backoff=dg.Backoff.LINEAR)
    with pytest.raises(dg.RetryRequested) as by_policy, in_dagster_terms(step(MAX_RETRIES)):
        raise ConflictError("lost")
    assert (by_policy.value.max_retries, by_policy.value.seconds_to_wait) == (5, 120)
    with pytest.raises(dg.Failure), in_dagster_terms(step(5)):
        raise ConflictError("lost")


@pytest.mark.parametrize(
    ("error", "tags"),
    [
        (DvMaintenanceError("Spark could not finish"), set()),
        (UnsupportedFeatureError("a feature", features=("x",)), {naming.REFUSED_TAG}),
        (NotPermittedError("ask the owner"), {naming.REFUSED_TAG, naming.RESTORABLE_TAG}),
        (MissingSoftwareError("no Java"), {naming.REFUSED_TAG, naming.RESTORABLE_TAG}),
        (StorageDeniedError("403"), {naming.REFUSED_TAG, naming.RESTORABLE_TAG, naming.DAMAGE_TAG}),
        (TableNotFoundError("away for a minute"), {naming.REFUSED_TAG, naming.RESTORABLE_TAG, naming.DAMAGE_TAG}),
        (DamagedTableError("gone"), {naming.REFUSED_TAG, naming.RESTORABLE_TAG, naming.DAMAGE_TAG}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_run_keeps_what_its_error_means_for_the_next_one(error: DvMaintenanceError, tags: set[str]) -> None:
    """Nobody knows whether a failure of Spark would recur."""
    kept: dict[str, str] = {}
    step = SimpleNamespace(
        instance=SimpleNamespace(add_run_tags=lambda _, tags: kept.update(tags)),
        run=SimpleNamespace(run_id="1", tags={naming.VERSION_TAG: "7"}),
        retry_number=0,
        op_def=SimpleNamespace(retry_policy=None),
    )
    with pytest.raises(dg.Failure), in_dagster_terms(cast("Any", step)):
        raise error
    assert set(kept) == tags


@pytest.mark.parametrize("names", [("a.b", "a_b"), ("a/b", "a__b"), ("sales-2026", "sales 2026")])
def test_names_that_look_alike_stay_apart(
    make_table: MakeTable, make_definitions: Definitions, names: tuple[str, str]
) -> None:
    first, second = (TableSettings(name=name, path="x") for name in names)
    assert naming.op_name(first, "plan") != naming.op_name(second, "plan")


def test_any_name_will_do(make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance) -> None:
    table = make_table("sales 2026/q4 (eu)")
    assert run_job(make_definitions(table), instance).success
    record = instance.get_latest_materialization_event(dg.AssetKey(["sales_2026", "q4__eu_", "dv", "q4__eu__optimize"]))
    assert record.asset_materialization.metadata["rows_purged"].value == 1000


def test_an_asset_of_somebody_else_is_left_to_them(
    make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    """A job that maintains the table must not make the table itself."""
    table = make_table(observe=False)
    made = []

    @dg.asset(key=["shop", "orders"])
    def orders() -> None:
        made.append(1)

    defs = dg.Definitions.merge(make_definitions(table), dg.Definitions(assets=[orders]))
    assert run_job(defs, instance).success
    assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0
    assert made == []
    context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
    events = defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context).asset_events
    (event,) = [each for each in events if isinstance(each, dg.AssetObservation)]
    assert event.asset_key == dg.AssetKey(["shop", "orders"])
    assert not event.tags, "its data version is not ours to say"


def test_maintained_within_is_a_freshness_policy(make_table: MakeTable, make_definitions: Definitions) -> None:
    table = make_table(jobs=["optimize", "vacuum"], policy={"checks": {"maintained_within": "8d"}}, delete=False)
    graph = make_definitions(table).resolve_asset_graph()
    policies = {key.path[-1]: graph.get(key).freshness_policy for key in graph.get_all_asset_keys()}
    within = policies["orders_optimize"]
    assert within.fail_window.to_timedelta() == timedelta(days=8)
    assert policies == {"orders": None, "orders_optimize": within, "orders_vacuum": within}


def test_a_run_tells_how_far_it_is() -> None:
    now, lines = [0.0], []
    log = logging.getLogger("test_a_run_tells_how_far_it_is")
    log.setLevel(logging.INFO)
    log.addFilter(lambda record: lines.append(record.getMessage()))
    tell = progress_log(log, lambda: now[0])
    for done in range(2001):
        tell(done, 2000)
        now[0] += 1 / 64
    assert lines == [f"{done} of 2,000 rewrites done" for done in ("640", "1,280", "1,920", "2,000")]


def test_definitions_of_one_location_share_its_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under whatever names, and however the path is written."""
    monkeypatch.chdir(tmp_path)
    written = [
        tmp_path / "orders",
        f"{tmp_path}/orders/",
        "orders",
        f"file://{tmp_path}/orders",
        f"../{tmp_path.name}/orders",
    ]
    pools = {naming.pool(TableSettings(name=f"t{n}", path=str(path))) for n, path in enumerate(written)}
    assert len(pools) == 1
    assert next(iter(pools)).startswith("dv_orders_")
    others = ["s3://lake/orders", "s3://other/orders", "s3://lake/orders 2", str(tmp_path / "archive" / "orders")]
    assert len({naming.pool(TableSettings(name="t", path=path)) for path in others} | pools) == 5


def test_ops_share_the_pool_of_their_table(make_table: MakeTable, make_definitions: Definitions) -> None:
    defs = make_definitions(make_table("one", delete=False), make_table("two", delete=False))
    pools: dict[str, set[str]] = {}
    for node in defs.resolve_job_def("dv_maintenance").graph.iterate_op_defs():
        pools.setdefault(node.name[:3], set()).add(str(node.pool))
    # The observation has none: looking harms nobody.
    assert {node: {pool.rpartition("_")[0] for pool in each} for node, each in pools.items()} == {
        "one": {"dv_one", ""},
        "two": {"dv_two", ""},
    }


def test_importing_the_face_imports_no_dagster() -> None:
    script = "import sys, dv_maintenance.dagster; assert 'dagster' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_whatever_has_a_spark_session_will_do() -> None:
    class Foreign:
        spark_session = object()

    engine = engine_of(Foreign())
    assert engine.name == "spark"
    assert engine.session is Foreign.spark_session
    assert engine_of(SparkResource(engine="local")).name == "local"


def test_on_spark(
    spark: Any, make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    """A resource uses the session that is there, and leaves it running."""
    table = make_table()
    before = rows(table)
    assert run_job(make_definitions(table, resource=SparkResource()), instance).success
    assert rows(table) == before
    assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0
    assert spark.range(3).count() == 3


def test_the_guards_of_a_vacuum(
    make_table: MakeTable, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    """By the policy, and on top of it by the run's config."""
    table = make_table(jobs=["optimize", "vacuum"], policy={"quarantine": True, "max_deleted_share": 1})
    defs = make_definitions(table)
    job = defs.resolve_implicit_global_asset_job_def()
    optimize, vacuum = (naming.job_key(table, each) for each in ("optimize", "vacuum"))
    assert job.execute_in_process(instance=instance, asset_selection=[optimize]).success

    def run(raise_on_error: bool = True, **config: Any) -> bool:
        ops = {naming.op_name(table, "vacuum"): {"config": config}}
        return job.execute_in_process(
            instance=instance, asset_selection=[vacuum], run_config={"ops": ops}, raise_on_error=raise_on_error
        ).success

    assert not run(raise_on_error=False, max_deleted_share=0.01)
    assert not run(raise_on_error=False, max_deleted_share=2.0)
    assert not run(raise_on_error=False, protect_streams=["/nowhere"])
    assert run(protect_versions=[1])
    found = materialization(instance, table, "vacuum").metadata
    assert found["files_set_aside"].value == 1, "the DV file; version 1 needs both data files"
    assert "The quarantine is _dvm_quarantine/" in str(found["reason"].value)
    assert "in version 1, which is pinned: 2 files" in str(found["protected"].value)
    assert not run(raise_on_error=False, quarantine_retention="soon")
    assert run(quarantine=False, quarantine_retention="0s")
    found = materialization(instance, table, "vacuum").metadata
    assert (found["files_deleted"].value, found["quarantine_emptied"].value) == (2, 1)
