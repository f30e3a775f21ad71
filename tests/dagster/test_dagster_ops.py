"""Ops for jobs of one's own, on real tables; and the erasure job from the keys to the last byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.clustered import clustered

from dv_maintenance.dagster import (
    SparkResource,
    build_erasure_job,
    checkpoint_op,
    cluster_op,
    delete_rows_op,
    engine_sql_op,
    naming,
    restore_op,
    zorder_op,
)
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTable = Callable[..., TableSettings]
MakeOp = Callable[[TableSettings], dg.OpDefinition]


def ids(table: TableSettings) -> list[int]:
    schema, batches = read(open_table(table.path))
    return sorted(pa.Table.from_batches(batches, schema)["id"].to_pylist())


def on_disk(table: TableSettings) -> set[int]:
    """Ids in all data files that are there, live or not, deleted or not."""
    return {value for file in Path(table.path).glob("*.parquet") for value in pq.read_table(file)["id"].to_pylist()}


def job_of(*ops: dg.OpDefinition, resource: Any = None) -> dg.JobDefinition:
    """One after the other."""

    @dg.job(resource_defs={"spark": resource or SparkResource(engine="local")}, executor_def=dg.in_process_executor)
    def chain() -> None:
        last: dict[str, Any] = {}
        for op in ops:
            last = {"after": op(**last)}

    return chain


def run(
    op: dg.OpDefinition, instance: dg.DagsterInstance, config: dict[str, Any], resource: Any = None
) -> dg.ExecuteInProcessResult:
    return job_of(op, resource=resource).execute_in_process(
        run_config={"ops": {op.name: {"config": config}}}, instance=instance, raise_on_error=False
    )


def failure(result: dg.ExecuteInProcessResult, op: dg.OpDefinition) -> str:
    assert not result.success
    assert not [event for event in result.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]
    return str(result.failure_data_for_node(op.name).user_failure_data.description)


def logged(result: dg.ExecuteInProcessResult, op: str) -> dict[str, Any]:
    (event,) = [event for event in result.events_for_node(op) if event.event_type_value == "STEP_OUTPUT"]
    found = event.step_output_data.metadata.items()
    return {name: value.records if isinstance(value, dg.TableMetadataValue) else value.value for name, value in found}


def observation(instance: dg.DagsterInstance, table: TableSettings) -> dg.AssetObservation:
    records = instance.fetch_observations(dg.AssetKey(table.name.split("/")), limit=1).records
    assert records[0].asset_observation is not None
    return records[0].asset_observation


# -- every op --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [delete_rows_op, zorder_op, cluster_op, restore_op, checkpoint_op, engine_sql_op])
def test_ops_hold_a_slot_of_their_table_s_pool(make: MakeOp) -> None:
    table = TableSettings(name="shop/orders", path="nowhere")
    op = make(table)
    assert op.pool == naming.pool(table)
    assert op.tags == {"dv/table": "shop/orders"}
    assert op.name.startswith("shop__orders__dv_")
    needs = op.required_resource_keys == {"spark"}
    assert needs == (make not in {restore_op, checkpoint_op})


def test_ops_run_one_behind_the_other(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    order, back, summed = zorder_op(table), restore_op(table), checkpoint_op(table)
    config = {order.name: {"columns": ["id"]}, back.name: {"version": 1}, summed.name: {}}
    result = job_of(order, back, summed).execute_in_process(
        run_config={"ops": {name: {"config": each} for name, each in config.items()}}, instance=instance
    )
    assert result.success
    assert ids(table) == list(range(2000))
    assert result.output_for_node(order.name)["steps"][0]["rows_purged"] == 1000
    assert result.output_for_node(back.name)["restored"] == 1
    assert result.output_for_node(summed.name)["written"] is True


def test_a_vacuum_that_died_is_named_to_the_restore(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    start = commit_info_only(Storage(table.path), "VACUUM START", {"defaultRetentionMillis": 0}, {})
    back = restore_op(table)

    def restored(**config: Any) -> bool:
        run_config = {"ops": {back.name: {"config": {"version": 1, **config}}}}
        return job_of(back).execute_in_process(run_config=run_config, instance=instance, raise_on_error=False).success

    assert not restored()
    assert restored(vacuums_over=[start])


def test_the_sensor_keeps_out_while_an_op_is_at_work(
    make_table: MakeTable, make_definitions: Callable[..., dg.Definitions], instance: dg.DagsterInstance
) -> None:
    table = make_table()
    defs = make_definitions(table)

    def tick() -> Any:
        context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
        return defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context)

    made = instance.create_run_for_job(job_of(restore_op(table)), status=dg.DagsterRunStatus.STARTED)
    data = tick()
    assert not data.run_requests
    assert f"run {made.run_id[:8]} is working on it" in data.skip_message
    instance.report_run_canceled(made)
    assert len(tick().run_requests) == 1


# -- zorder, restore, checkpoint, engine-sql -------------------------------------------------------------------------


def test_zorder_tells_what_it_did(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    before, op = ids(table), zorder_op(table)
    planned = run(op, instance, {"columns": ["id"], "dry_run": True})
    assert logged(planned, op.name)["reason"] == "Only planned; nothing was changed."
    assert open_table(table.path).version() == 2

    result = run(op, instance, {"columns": ["id"]})
    done = logged(result, op.name)
    assert next(iter(done)) == "reason"
    assert done["reason"] == "2 files were rewritten as 1, without their 1,000 deleted rows."
    assert (done["rows_purged"], done["verified"]) == (1000, True)
    assert ids(table) == before

    again = logged(run(op, instance, {"columns": ["id"]}), op.name)
    assert again["reason"] == "There was nothing to do."


def test_cluster_takes_the_table_s_own_columns(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    schema = pa.schema([("id", pa.int64())])
    builder = clustered(DeltaBuilder(str(tmp_path / "t")), schema, ["id"])
    builder.append(pa.table({"id": range(400)}, schema), files=4)
    table = TableSettings(name="orders", path=builder.storage.uri)
    op = cluster_op(table)
    planned = logged(run(op, instance, {"dry_run": True}), op.name)
    assert planned["reason"] == "Only planned; nothing was changed."
    done = logged(run(op, instance, {}), op.name)
    assert (done["reason"].split(",")[0], done["verified"]) == ("4 files were rewritten as 1.", True)
    assert logged(run(op, instance, {}), op.name)["reason"] == "There was nothing to do."
    DeltaBuilder(str(tmp_path / "p")).create(schema)
    op = cluster_op(TableSettings(name="plain", path=str(tmp_path / "p")))
    assert "cluster" in failure(run(op, instance, {}), op)


def test_the_table_s_page_shows_how_the_table_is_then(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    assert run(zorder_op(table), instance, {"columns": ["id"]}).success
    seen = observation(instance, table)
    assert seen.metadata["deleted_rows"].value == 0
    assert seen.metadata["dagster/row_count"].value == 1000
    assert [column.name for column in seen.metadata["dagster/column_schema"].value.columns] == ["id"]
    assert seen.tags["dagster/data_version"] == "2", "ordering wakes no consumer"

    assert run(restore_op(table), instance, {"version": 1}).success
    assert observation(instance, table).tags["dagster/data_version"] == "4", "a restore does"


def test_of_an_asset_of_somebody_else_the_data_version_is_not_ours_to_say(
    make_table: MakeTable, instance: dg.DagsterInstance
) -> None:
    table = make_table(observe=False)
    assert run(checkpoint_op(table), instance, {}).success
    assert "dagster/data_version" not in observation(instance, table).tags


def test_restore_to_a_time(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    op = restore_op(make_table())
    assert "is not a time with a zone" in failure(run(op, instance, {"timestamp": "2026-01-01"}), op)
    result = run(op, instance, {"timestamp": "2999-01-01T00:00:00Z", "dry_run": True})
    assert logged(result, op.name)["reason"] == "Version 2 would be restored; nothing was changed."
    again = logged(run(op, instance, {"version": 2}), op.name)
    assert again["reason"] == "There was nothing to do: the table already equals version 2."


def test_what_does_not_read_back_as_it_should_fails(
    make_table: MakeTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dv_maintenance.maintenance.restore._differences", lambda *_: ("a file too many",))
    op = restore_op(make_table())
    assert "not verified: a file too many" in failure(run(op, instance, {"version": 1}), op)


def test_an_op_that_is_refused_fails_once_and_says_why(
    golden_copy: Callable[[str], Path], instance: dg.DagsterInstance
) -> None:
    table = TableSettings(name="liquid", path=str(golden_copy("delta/table_with_liquid_clustering")))
    op = zorder_op(table)
    assert "liquid" in failure(run(op, instance, {"columns": ["id"]}), op)


def test_checkpoint_says_what_it_would_do(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    op = checkpoint_op(make_table())
    dry = run(op, instance, {"clean_log": True, "dry_run": True})
    assert re.fullmatch(
        r"A checkpoint of version 2 would be written, with \d live files?: there is none yet, and "
        r"readers replay 3 commits\. No log file would be deleted: later versions need all those from before \S+ "
        r"Nothing was changed\.",
        logged(dry, op.name)["reason"],
    )
    assert logged(run(op, instance, {}), op.name)["reason"].startswith("The checkpoint of version 2 was written")
    assert logged(run(op, instance, {}), op.name)["reason"].startswith("The checkpoint of version 2 existed already")


def test_engine_sql_needs_an_engine(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    op = engine_sql_op(make_table())
    assert "the local engine has no SQL" in failure(run(op, instance, {"job": "purge"}), op)


def test_engine_sql_is_checked_by_our_reader(
    delta_spark: SparkSession, make_table: MakeTable, instance: dg.DagsterInstance
) -> None:
    table = make_table()
    before, op = ids(table), engine_sql_op(table)
    done = logged(run(op, instance, {"job": "purge"}, SparkResource()), op.name)
    assert done["reason"] == "The table's engine ran its purge: version 2 became 3, checked by content."
    assert (done["dvs_before"], done["dvs_after"], done["verified"]) == (2, 0, True)
    assert ids(table) == before


# -- deleting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [{}, {"where": "id = 1", "keys": "keys.parquet", "on": ["id"]}])
def test_which_rows_to_delete_must_be_said(
    make_table: MakeTable, instance: dg.DagsterInstance, config: dict[str, Any]
) -> None:
    op = delete_rows_op(make_table())
    assert "exactly one of 'where' and 'keys' selects the rows" in failure(run(op, instance, config), op)


def test_only_simple_conditions_need_no_spark(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    op = delete_rows_op(table)
    assert "the local engine can't evaluate this condition" in failure(run(op, instance, {"where": "id + 0 = 1"}), op)
    assert run(op, instance, {"where": "id = 1"}).success


def test_rows_are_deleted_by_a_condition(
    spark: SparkSession, make_table: MakeTable, instance: dg.DagsterInstance
) -> None:
    table = make_table(delete=False)
    op = delete_rows_op(table)
    counted = logged(run(op, instance, {"where": "id < 10", "dry_run": True}, SparkResource()), op.name)
    assert counted["reason"] == "10 rows would be deleted; nothing was changed."
    assert len(ids(table)) == 2000

    result = run(op, instance, {"where": "id < 10"}, SparkResource())
    assert result.output_for_node(op.name)["rows_deleted"] == 10
    assert logged(result, op.name)["reason"].startswith(
        "10 rows deleted: 0 files were removed whole, 1 got a deletion vector"
    )
    assert ids(table) == list(range(10, 2000))
    assert observation(instance, table).tags["dagster/data_version"] == "2"
    assert spark.range(3).count() == 3, "the session of others is left running"


def test_rows_of_lance_tables_are_deleted(
    spark: SparkSession, instance: dg.DagsterInstance, keys: str, tmp_path: Path, pylance: ModuleType
) -> None:
    path = str(tmp_path / "lance")
    pylance.write_dataset(pa.table({"id": range(2000)}), path, max_rows_per_file=1000)
    table = TableSettings(name="lance", path=path)
    op = delete_rows_op(table)
    config = {"keys": keys, "on": ["id"]}
    counted = logged(run(op, instance, {**config, "dry_run": True}, SparkResource()), op.name)
    assert counted["reason"].startswith("3 rows would be deleted; nothing was changed.")
    result = run(op, instance, config, SparkResource())
    assert result.output_for_node(op.name)["rows_deleted"] == 3
    assert logged(result, op.name)["reason"].startswith(
        "3 rows deleted: 0 files were removed whole, 1 got a deletion vector"
    )
    assert ids(table) == [each for each in range(2000) if each not in {1, 5, 13}]
    assert observation(instance, table).tags["dagster/data_version"] == "2"
    assert run(op, instance, {"where": "id < 1000"}, SparkResource()).success
    assert ids(table) == [*range(1000, 2000)]
    pylance.dataset(path).validate()


# -- erasure ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """Of rows with odd ids, in the first file of a table, and in none."""
    path = tmp_path / "erase.parquet"
    pq.write_table(pa.table({"id": [1, 5, 13, 99_999], "customer": [7, 7, 7, 7]}), path)
    return str(path)


def erasure_job(*tables: TableSettings, **settings: Any) -> dg.JobDefinition:
    job = build_erasure_job(tables, **settings)
    return dg.Definitions(jobs=[job], resources={"spark": SparkResource()}).resolve_job_def(job.name)


def erase(instance: dg.DagsterInstance, *tables: TableSettings, **config: Any) -> dg.ExecuteInProcessResult:
    job = erasure_job(*tables, columns={table.name: ["id"] for table in tables})
    return job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)


def test_erased_rows_are_in_no_live_file_and_after_the_vacuum_in_none(
    spark: SparkSession, make_table: MakeTable, instance: dg.DagsterInstance, keys: str
) -> None:
    one, two = make_table("one", policy={"retention": "2d"}), make_table("two", delete=False)
    result = erase(instance, one, two, keys=keys)
    assert result.success

    assert {1, 5, 13}.isdisjoint(ids(one))
    assert {1, 5, 13}.isdisjoint(ids(two))
    table = open_table(one.path)
    assert health(table.snapshot()).counts.files_with_dv == 1, "files that hold none of the keys are left alone"
    assert {1, 5, 13} <= on_disk(one), "the old files are there until a vacuum"

    erased = result.output_for_node("one__dv_purge_erased")
    assert (erased["rows_deleted"], erased["verified"]) == (3, True)
    moment, two_days = erased["expires_at"], 172_800_000
    assert moment == pytest.approx(table.snapshot().timestamp + two_days, abs=60_000)
    vacuum(table, VacuumRequest(retention=two_days, now=moment - 60_000))
    assert {1, 5, 13} <= on_disk(one), "a vacuum before that keeps them"
    vacuum(table, VacuumRequest(retention=two_days, now=moment + 1))
    assert {1, 5, 13}.isdisjoint(on_disk(one))

    total = logged(result, "dv_erasure_report")
    assert total["reason"].startswith("6 rows of 2 tables were deleted. Vacuums may delete the last of the old files")
    assert total["rows_deleted"] == 6
    assert [row.data["table"] for row in total["tables"]] == ["one", "two"]


def test_a_second_run_finds_nothing_and_says_what_it_does_not_know(
    spark: SparkSession, make_table: MakeTable, instance: dg.DagsterInstance, keys: str
) -> None:
    table = make_table("one")
    deleted = delete_rows_op(table)
    assert run(deleted, instance, {"keys": keys, "on": ["id"]}, SparkResource()).success
    version = open_table(table.path).version()

    done = logged(erase(instance, table, keys=keys), "one__dv_purge_erased")
    assert "Rows deleted before this run remain in their files: purge_all purges them." in done["reason"]
    assert open_table(table.path).version() == version

    assert erase(instance, table, keys=keys, purge_all=True).success
    assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0


def test_a_delete_that_was_tried_twice_leaves_nothing(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    """Its first try may have committed, whatever the storage answered: then the second finds no rows."""
    table = make_table("one")
    (_, purge), *_ = [build_erasure_job([table]).graph.node_defs[:2]]
    found_nothing = {"dry_run": False, "rows_deleted": 0, "version_before": 2, "version_after": 2, "retried": True}

    @dg.op
    def second_try() -> dict[str, Any]:
        return found_nothing

    @dg.job(resource_defs={"spark": SparkResource(engine="local")}, executor_def=dg.in_process_executor)
    def retried() -> None:
        purge(second_try())

    result = retried.execute_in_process(instance=instance)
    assert logged(result, purge.name)["rows_purged"] == 1000
    assert result.output_for_node(purge.name)["expires_at"] is not None


def test_a_dry_run_counts_and_changes_nothing(
    spark: SparkSession, make_table: MakeTable, instance: dg.DagsterInstance, keys: str
) -> None:
    table = make_table("one")
    result = erase(instance, table, keys=keys, dry_run=True)
    assert logged(result, "dv_erasure_report")["reason"] == "3 rows of 1 table would be deleted."
    assert open_table(table.path).version() == 2


def test_a_table_that_fails_stops_no_other(
    spark: SparkSession, make_table: MakeTable, instance: dg.DagsterInstance, keys: str, tmp_path: Path
) -> None:
    gone, there = TableSettings(name="gone", path=str(tmp_path / "gone")), make_table("there")
    result = erase(instance, gone, there, keys=keys)
    assert not result.success
    assert "no table found here" in str(result.failure_data_for_node("gone__dv_delete_rows"))
    assert result.output_for_node("there__dv_purge_erased")["rows_deleted"] == 3


@pytest.mark.parametrize("columns", [{"one": ["id"]}, {"one": ["id"], "two": ["id"], "three": ["id"]}])
def test_no_table_is_forgotten(columns: dict[str, list[str]]) -> None:
    job = erasure_job(*(TableSettings(name=name, path=name) for name in ("one", "two")))
    with pytest.raises(dg.DagsterError) as raised:
        job.execute_in_process(run_config={"keys": "k.parquet", "columns": columns})
    assert "must name exactly the tables of this job" in str(raised.value.__cause__)
