"""Partitions of a table as Dagster partitions: which keys there are, and what a run over some of them does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from dv_maintenance.dagster import SparkResource, assets, build_dv_assets, build_dv_job, build_dv_sensor, naming
from dv_maintenance.dagster.partitions import backfill_policy, missing_partitions, nothing_to_do, partitions_def
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.partitioning import Partitioning
from dv_maintenance.service.partitions import partition_key
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.storage import absolute_uri
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import NULL_PARTITION
from dv_maintenance.testing.delta_builder import DeltaBuilder

Definitions = dg.Definitions
MakeTable = Callable[..., TableSettings]

BY_DAY = {"name": "day", "every": "day", "start": "2024-11-01"}
RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


@pytest.fixture
def sales(tmp_path: Path) -> MakeTable:
    """10 rows for each of 2024-11-01 to -05 in eu and us; half of them deleted, except on the 5th."""

    def make(name: str = "sales", **settings: Any) -> TableSettings:
        path = str(tmp_path / name)
        schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("region", pa.string())])
        rows = [
            {"id": number, "day": date(2024, 11, day), "region": region}
            for day in range(1, 6)
            for region in ("eu", "us")
            for number in range(10)
        ]
        builder = DeltaBuilder(path).create(schema, partition_by=["day", "region"])
        builder.append(pa.Table.from_pylist(rows, schema))
        builder.delete(
            lambda rows: pc.and_(pc.less(rows["id"], 5), pc.less(rows["day"], pa.scalar(date(2024, 11, 5)))),
        )
        listed = {"tables": [{"name": name, "path": path, "policy": {"min_file_size": 0}, **settings}]}
        return WatchConfig.model_validate(listed).tables[0]

    return make


def watched(columns: Any) -> TableSettings:
    return TableSettings.model_validate({"name": "t", "path": "p", "partitions": columns})


def definitions(*tables: TableSettings) -> Definitions:
    return dg.Definitions(
        assets=build_dv_assets(tables),
        jobs=[build_dv_job(tables)],
        resources={"spark": SparkResource(engine="local")},
        executor=dg.in_process_executor,
    )


def optimize(
    table: TableSettings,
    instance: dg.DagsterInstance,
    *,
    key: str | None = None,
    span: tuple[str, str] | None = None,
    defs: Definitions | None = None,
) -> dg.ExecuteInProcessResult:
    job = (defs or definitions(table)).resolve_implicit_global_asset_job_def()
    return job.execute_in_process(
        instance=instance,
        asset_selection=[naming.job_key(table, "optimize")],
        partition_key=key,
        tags=dict(zip(RANGE, span, strict=True)) if span else None,
    )


def materialized(instance: dg.DagsterInstance, table: TableSettings) -> dict[str | None, dict[str, Any]]:
    """Metadata of each partition's newest materialization."""
    records = instance.fetch_materializations(naming.job_key(table, "optimize"), limit=100, ascending=True).records
    events = [record.asset_materialization for record in records]
    return {each.partition: {name: value.value for name, value in each.metadata.items()} for each in events if each}


def with_dvs(table: TableSettings) -> set[str]:
    """Partitions with deletion vectors: `day/region`."""
    state = health(open_table(table.path).snapshot())
    return {"/".join(map(str, each.partition.values())) for each in state.partitions if each.counts.files_with_dv}


DIRTY = {f"2024-11-0{day}/{region}" for day in range(1, 5) for region in ("eu", "us")}


def of_days(*days: int) -> set[str]:
    return {f"2024-11-0{day}/{region}" for day in days for region in ("eu", "us")}


# -- runs ----------------------------------------------------------------------------------------------------------


def test_a_range_is_one_run_with_numbers_per_partition(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions=BY_DAY)
    result = optimize(table, instance, span=("2024-11-02", "2024-11-03"))
    assert with_dvs(table) == DIRTY - of_days(2, 3)
    found = materialized(instance, table)
    assert set(found) == {"2024-11-02", "2024-11-03"}
    for entries in found.values():
        assert (entries["rows_purged"], entries["dvs_removed"], entries["files_removed"]) == (10, 2, 2)
        own = ("partition_deleted_ratio", "dagster/partition_row_count", "partition_files")
        assert tuple(entries[name] for name in own) == (0, 10, 2)
        assert "deleted_ratio" not in entries, "the page would show it as the table's"
        assert entries["table_deleted_ratio"] == 0.25
        assert (entries["version_before"], entries["version_after"], entries["verified"]) == (2, 3, True)
        assert "more than 5 %" in entries["reason"]
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["dv/partitions"] == "2024-11-02...2024-11-03 (2)"
    # The plan covers the whole run, and is logged once.
    messages = [record.user_message for record in instance.all_logs(result.run_id)]
    (planned,) = [each for each in messages if each.startswith("# Maintenance of")]
    steps, _ = planned.split("## Left alone")
    assert [steps.count(f"day=2024-11-0{day}/") for day in range(1, 5)] == [0, 2, 2, 0]


def test_one_partition_and_no_other(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions=BY_DAY)
    result = optimize(table, instance, key="2024-11-04")
    assert with_dvs(table) == DIRTY - of_days(4)
    assert set(materialized(instance, table)) == {"2024-11-04"}
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert "dv/partitions" not in run.tags, "Dagster shows a single partition itself"


def test_partitions_with_nothing_to_do_say_so(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions=BY_DAY)
    # The 5th has no deletion vectors, the 6th no files, and both are in a run with the 4th.
    assert optimize(table, instance, span=("2024-11-04", "2024-11-06")).success
    found = materialized(instance, table)
    assert [found[f"2024-11-0{day}"]["steps"] for day in (4, 5, 6)] == [2, 0, 0]
    assert found["2024-11-05"]["reason"].startswith("Nothing to do: the plan left 2 files alone, 0 with")
    assert found["2024-11-06"]["reason"] == "Nothing to do: this partition has no live file."
    assert found["2024-11-06"]["dagster/partition_row_count"] == 0
    assert with_dvs(table) == DIRTY - of_days(4)


def test_no_live_partition_chosen_is_not_the_whole_table(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions=BY_DAY)
    assert optimize(table, instance, span=("2024-11-10", "2024-11-11")).success
    assert with_dvs(table) == DIRTY
    found = materialized(instance, table)
    assert found["2024-11-10"]["reason"] == "Nothing to do: this partition has no live file."
    assert (found["2024-11-10"]["version_before"], found["2024-11-10"]["version_after"]) == (2, 2)


@pytest.mark.skipif(Version(dg.__version__) < Version("1.12.20"), reason="Dagster has such runs from 1.12.20 on")
def test_no_partition_chosen_is_the_whole_table(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions=BY_DAY)
    assert optimize(table, instance).success
    assert with_dvs(table) == set()
    found = materialized(instance, table)
    assert list(found) == ["2024-11-01", "2024-11-02", "2024-11-03", "2024-11-04", None]
    entries = found.pop(None)
    assert (entries["rows_purged"], entries["dagster/row_count"], entries["deleted_ratio"]) == (40, 60, 0)
    assert {(each["rows_purged"], each["partition_deleted_ratio"]) for each in found.values()} == {(10, 0)}


def test_a_dagster_without_runs_on_the_whole_table_changes_nothing(
    sales: MakeTable, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "_RECORDS_WHOLE_TABLE", False)
    table = sales(partitions=BY_DAY)
    with pytest.raises(dg.Failure, match="choose partitions"):
        optimize(table, instance)
    assert with_dvs(table) == DIRTY
    whole = sales("whole")
    assert optimize(whole, instance).success


def test_the_policys_own_partitions_still_hold(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    policy = {"min_file_size": 0, "partitions": [{"region": "eu"}]}
    table = sales(partitions=BY_DAY, policy=policy)
    assert optimize(table, instance, span=("2024-11-01", "2024-11-02")).success
    assert with_dvs(table) == DIRTY - {"2024-11-01/eu", "2024-11-02/eu"}


def test_a_month_holds_its_days(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions={"name": "day", "every": "month", "start": "2024-10-15"})
    assert optimize(table, instance, key="2024-10-01").success
    assert with_dvs(table) == DIRTY
    assert optimize(table, instance, key="2024-11-01").success
    assert with_dvs(table) == set()
    assert materialized(instance, table)["2024-11-01"]["rows_purged"] == 40


def test_listed_values(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions={"name": "region", "values": ["eu", "us"]})
    assert optimize(table, instance, key="us").success
    assert with_dvs(table) == {each for each in DIRTY if each.endswith("eu")}


def test_two_columns_span_a_grid(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions=[BY_DAY, {"name": "region", "values": ["eu", "us"]}])
    assert isinstance(partitions_def(table), dg.MultiPartitionsDefinition)
    one = dg.MultiPartitionKey({"day": "2024-11-02", "region": "us"})
    assert optimize(table, instance, key=one).success
    assert with_dvs(table) == DIRTY - {"2024-11-02/us"}
    assert optimize(table, instance, span=("2024-11-03|eu", "2024-11-04|eu")).success
    assert with_dvs(table) == DIRTY - {"2024-11-02/us", "2024-11-03/eu", "2024-11-04/eu"}
    assert materialized(instance, table)["2024-11-04|eu"]["rows_purged"] == 5


def test_values_become_keys_as_they_turn_up(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions="region")
    snapshot = open_table(table.path).snapshot()
    (request,) = missing_partitions(table, snapshot, instance)
    assert list(request.partition_keys) == ["eu", "us"]
    defs = definitions(table)
    # Looking at the table adds them too.
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=[naming.table_key(table)]).success
    assert sorted(instance.get_dynamic_partitions(request.partitions_def_name)) == ["eu", "us"]
    assert missing_partitions(table, snapshot, instance) == []
    assert optimize(table, instance, key="eu", defs=defs).success
    assert with_dvs(table) == {each for each in DIRTY if each.endswith("us")}


def test_a_grid_with_a_column_as_found(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions=[BY_DAY, "region"])
    for request in missing_partitions(table, open_table(table.path).snapshot(), instance):
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    assert optimize(table, instance, key=dg.MultiPartitionKey({"day": "2024-11-01", "region": "eu"})).success
    assert with_dvs(table) == DIRTY - {"2024-11-01/eu"}


def test_three_columns_are_one_list_of_combinations(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string()), ("c", pa.string())])
    path = str(tmp_path / "cube")
    builder = DeltaBuilder(path).create(schema, partition_by=["a", "b", "c"])
    builder.append(pa.table([[1, 2, 3, 4], [1, 1, 2, 2], ["x/y", "x/y", None, None], ["z"] * 4], schema=schema))
    builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 1), 1))
    listed = {"tables": [{"path": path, "partitions": ["a", "b", "c"], "policy": {"min_file_size": 0}}]}
    table = WatchConfig.model_validate(listed).tables[0]
    (request,) = missing_partitions(table, open_table(path).snapshot(), instance)
    assert list(request.partition_keys) == ["a=1/b=x%2Fy/c=z", f"a=2/b={NULL_PARTITION}/c=z"]
    instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    assert optimize(table, instance, key=f"a=2/b={NULL_PARTITION}/c=z").success
    assert with_dvs(table) == {"1/x/y/z"}


def test_a_column_that_the_table_is_not_partitioned_by(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions="shop")
    with pytest.raises(UsageError, match="'shop' is not a partition column"):
        missing_partitions(table, open_table(table.path).snapshot(), instance)
    job = definitions(table).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, asset_selection=[naming.table_key(table)], raise_on_error=False)
    failure = result.failure_data_for_node("sales__dv_observe")
    assert failure is not None
    assert "use day, region" in str(failure.user_failure_data)


# -- status: what Dagster's partitions say --------------------------------------------------------------------------


def look(table: TableSettings, instance: dg.DagsterInstance, cursor: str | None = None) -> Any:
    """A tick of the sensor, recorded as the daemon does it."""
    defs = dg.Definitions.merge(definitions(table), dg.Definitions(sensors=[build_dv_sensor([table])]))
    context = dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=defs.get_repository_def())
    data = defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context)
    for request in data.dynamic_partitions_requests or ():
        if isinstance(request, dg.AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        else:
            for key in request.partition_keys:
                instance.delete_dynamic_partition(request.partitions_def_name, key)
    for event in data.asset_events:
        instance.report_runless_asset_event(event)
    return data


def status(table: TableSettings, instance: dg.DagsterInstance) -> tuple[bool, str, list[str]]:
    """Of the check `partitions`: passed, its description, and the partitions that it lists."""
    key = dg.AssetCheckKey(naming.table_key(table), "partitions")
    (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    evaluation = record.evaluation
    assert evaluation is not None
    rows: Any = evaluation.metadata.get("rows")
    listed = [row.data["partition"] for row in rows.records] if rows else []
    return evaluation.passed, str(evaluation.description), listed


def known(table: TableSettings, instance: dg.DagsterInstance) -> set[str]:
    definition = partitions_def(table)
    assert definition is not None
    return set(definition.get_partition_keys(dynamic_partitions_store=instance))


def test_a_check_says_which_partitions_have_work_now(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    """A day that was optimized once stayed green when rows of it were deleted again, and nothing else told."""
    table = sales(partitions=BY_DAY)
    cursor = look(table, instance).cursor
    days = [f"2024-11-0{day}" for day in range(1, 5)]
    said = f"4 of 5 partitions with files have work due: {', '.join(days)}"
    assert status(table, instance) == (False, said, days)
    assert optimize(table, instance, span=("2024-11-01", "2024-11-03")).success
    assert status(table, instance)[2] == ["2024-11-04"], "the run says it, without a look"
    assert optimize(table, instance, key="2024-11-04").success
    assert status(table, instance)[:2] == (True, "no work is due in the 5 partitions with files")
    cursor = look(table, instance, cursor).cursor
    assert look(table, instance, cursor).asset_events == []
    second = pa.scalar(date(2024, 11, 2))
    DeltaBuilder(table.path).delete(lambda rows: pc.and_(pc.less(rows["id"], 8), pc.equal(rows["day"], second)))
    look(table, instance, cursor)
    said = "1 of 5 partitions with files have work due: 2024-11-02"
    assert status(table, instance) == (False, said, ["2024-11-02"])


def quiet(table: TableSettings, instance: dg.DagsterInstance, due: set[str | None]) -> dict[str, str]:
    """Partitions that are recorded as without work, with the reason."""
    events = nothing_to_do(table, open_table(table.path).snapshot(), due, instance, 10_000)
    return {str(event.partition): str(event.metadata["reason"].value) for event in events}


def test_what_is_missing_has_work(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    """A day without rows was "missing" for ever."""
    table = sales(partitions={**BY_DAY, "start": "2024-10-30"})
    days: set[str | None] = {f"2024-11-0{day}" for day in range(1, 5)}
    found = quiet(table, instance, days)
    assert found["2024-10-30"] == "Nothing to do: this partition has no live files."
    assert found["2024-11-05"] == "Nothing to do: the policy requires no work in this partition."
    assert not days & set(found)
    assert datetime.now(UTC).date().isoformat() not in found, "today is not over"
    look(table, instance)
    newest = materialized(instance, table)
    assert len(newest) == 100
    assert not set(newest) & set(quiet(table, instance, days)), "each once"


def test_partitions_as_found_come_and_go_with_their_rows(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions="region")
    assert known(table, instance) == set()
    cursor = look(table, instance).cursor
    assert known(table, instance) == {"eu", "us"}
    DeltaBuilder(table.path).delete(lambda rows: pc.equal(rows["region"], "us"))
    # A run that was launched for it would not find its partition.
    defs = definitions(table)
    at_work = dg.DagsterRun(
        job_name="__ASSET_JOB",
        asset_selection=frozenset([naming.job_key(table, "optimize")]),
        status=dg.DagsterRunStatus.STARTED,
    )
    instance.add_run(at_work)
    look(table, instance, cursor)
    assert known(table, instance) == {"eu", "us"}
    assert materialized(instance, table) == {}, "the run's own come after its commit"
    instance.report_run_canceled(at_work)
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=[naming.table_key(table)]).success
    assert known(table, instance) == {"eu"}, "observing it keeps them in step, too"
    # A run of the whole job, which also vacuums, is not somebody else's.
    instance.add_dynamic_partitions("sales__dv_partitions/region", ["gone"])
    assert defs.resolve_job_def("dv_maintenance").execute_in_process(instance=instance).success
    assert known(table, instance) == {"eu"}


def test_a_grid_of_which_cells_are_empty(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales(partitions=[BY_DAY, {"name": "region", "values": ["eu", "us", "asia"]}])
    due: set[str | None] = {f"2024-11-0{day}|{region}" for day in range(1, 5) for region in ("eu", "us")}
    found = quiet(table, instance, due)
    assert not due & set(found)
    assert {"2024-11-05|eu", "2024-11-01|asia"} <= set(found)
    (one, *_) = nothing_to_do(table, open_table(table.path).snapshot(), due, instance, 1)
    assert isinstance(one.partition, dg.MultiPartitionKey)


def test_a_freshness_policy_counts_only_maintenance(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    policy = {"min_file_size": 0, "checks": {"maintained_within": "8d"}}
    table = sales(partitions=BY_DAY, policy=policy)
    look(table, instance)
    assert materialized(instance, table) == {}


@pytest.mark.parametrize(
    ("columns", "said"), [("region", True), (BY_DAY, False), ([BY_DAY, "region"], True), (["a", "b", "c"], True)]
)
def test_the_description_says_to_observe_first(columns: Any, said: bool) -> None:
    (_, asset, _) = build_dv_assets([watched(columns)])
    (description,) = asset.descriptions_by_key.values()
    assert ("observe `t` first" in str(description)) is said
    assert "check `partitions`" in str(description)


# -- definitions ---------------------------------------------------------------------------------------------------


def test_tables_partitioned_differently_live_together(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    tables = [
        sales("by_day", partitions=BY_DAY, jobs=["optimize", "vacuum", "manifest"]),
        sales("by_region", partitions="region"),
        sales("whole"),
    ]
    defs = definitions(*tables)
    dg.Definitions.validate_loadable(defs)
    job = defs.resolve_job_def("dv_maintenance")
    keys = {key.to_user_string() for key in job.asset_layer.executable_asset_keys}
    assert "whole/dv/whole_optimize" in keys
    assert "by_day/dv/by_day_vacuum" in keys
    assert "by_day/dv/by_day_optimize" not in keys, "no job can hold assets that are partitioned differently"
    # Vacuum stays a job on the whole table, beside a partitioned optimize.
    assert job.execute_in_process(instance=instance).success


def test_one_run_or_many(sales: MakeTable) -> None:
    assert backfill_policy(sales("a", partitions=BY_DAY)) == dg.BackfillPolicy.single_run()
    many = sales("b", partitions={"columns": [BY_DAY], "per_run": 2})
    assert backfill_policy(many) == dg.BackfillPolicy.multi_run(2)
    assert backfill_policy(sales("c")) is None
    (asset,) = [each for each in build_dv_assets([many]) if each.key == naming.job_key(many, "optimize")]
    assert isinstance(asset, dg.AssetsDefinition)
    assert asset.backfill_policy == dg.BackfillPolicy.multi_run(2)


@pytest.mark.parametrize("every", ["hour", "day", "month"])
def test_the_window_of_now_can_be_chosen(every: str) -> None:
    table = watched({"name": "t", "every": every, "start": "2024-10-31"})
    definition, partitioning = partitions_def(table), table.partitions
    assert definition is not None
    assert partitioning is not None
    before = datetime.now(UTC).isoformat()
    last = definition.get_partition_keys()[-1]
    # An hour may end in between.
    assert last in {partition_key(partitioning, {"t": moment}) for moment in (before, datetime.now(UTC).isoformat())}


def test_everything_is_described(sales: MakeTable) -> None:
    table = sales(partitions=[BY_DAY, "region"])
    graph = definitions(table).resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.description
        assert node.metadata["dagster/uri"] == absolute_uri(table.path)
    assert "by column day (one per day), column region (as found)" in str(
        graph.get(naming.job_key(table, "optimize")).description
    )


def test_observations_show_the_schema_and_a_bar_per_partition(sales: MakeTable, instance: dg.DagsterInstance) -> None:
    table = sales()
    job = definitions(table).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, asset_selection=[naming.table_key(table)])
    (event,) = result.get_asset_observation_events()
    entries = event.asset_observation_data.asset_observation.metadata
    columns = entries["dagster/column_schema"].value.columns
    assert [(column.name, column.type) for column in columns] == [
        ("id", "int64"),
        ("day", "date32[day]"),
        ("region", "string"),
    ]
    picture = entries["deleted_ratio_by_partition"].value
    assert picture.startswith("![Deleted rows by partition](<data:image/svg+xml,")
    assert picture.endswith("by `day`, `region`. 2 partitions without any.")
    table = entries["worst_partitions"].value.splitlines()
    assert table[2] == "| `day=2024-11-01/region=eu` | 50.00% | 5 | 1/1 |"
    assert len(table) == 2 + 8


# -- keys ----------------------------------------------------------------------------------------------------------


def by(columns: Any) -> Partitioning:
    partitioning = watched(columns).partitions
    assert partitioning is not None
    return partitioning


@pytest.mark.parametrize(
    ("every", "value", "key"),
    [
        ("day", "2024-11-20", "2024-11-20"),
        ("day", "2024-10-31", None),
        ("day", None, None),
        ("day", "yesterday", None),
        ("month", "2024-11-20", "2024-11-01"),
        ("hour", "2024-11-20T13:59:59.5Z", "2024-11-20-13:00"),
        ("hour", "2024-11-20 13:00:00", "2024-11-20-13:00"),
        ("hour", "2024-11-20T01:30:00+02:00", "2024-11-19-23:00"),
        # As transforms write periods; a month is in no single day.
        ("month", "2024-11", "2024-11-01"),
        ("day", "2024-11", None),
        ("hour", "2024-11-20-13", "2024-11-20-13:00"),
        ("day", "2024-11-20-13", "2024-11-20"),
    ],
)
def test_windows(every: str, value: str | None, key: str | None) -> None:
    assert partition_key(by({"name": "t", "every": every, "start": "2024-11-01"}), {"t": value}) == key


def test_other_spellings_of_time() -> None:
    hourly = by({"name": "t", "every": "hour", "start": "2024-11-01", "format": "%Y%m%d%H"})
    assert partition_key(hourly, {"t": "2024112013"}) == "2024-11-20-13:00"
    assert partition_key(hourly, {"t": "2024-11-20"}) is None


@given(st.lists(st.text(), unique=True, min_size=1))
def test_values_never_share_a_key(values: list[str]) -> None:
    keys = [partition_key(by("v"), {"v": value}) for value in values]
    assert len(set(keys)) == len(values)
    for key in keys:
        assert key is not None
        assert not set('|,[]/"\n\t\0') & set(key)
        assert "..." not in key


def test_dagster_takes_the_keys_of_strange_values() -> None:
    values = ["a...b", "x|y", "1,2", "[z]", "50%", "tab\t", "ü", None]
    column = {"name": "v", "values": values}
    definition = partitions_def(watched([column, "w"]))
    assert isinstance(definition, dg.MultiPartitionsDefinition)
    known = definition.get_partitions_def_for_dimension("v").get_partition_keys()
    assert [partition_key(by(column), {"v": value}) for value in values] == list(known)


@given(st.dates(date(2024, 1, 1), date(2024, 12, 31)), st.sampled_from(["day", "month", "hour"]))
def test_a_window_key_is_one_that_dagster_knows(day: date, every: str) -> None:
    column = {"name": "d", "every": every, "start": "2024-01-01"}
    definition = partitions_def(watched(column))
    assert isinstance(definition, dg.TimeWindowPartitionsDefinition)
    key = partition_key(by(column), {"d": day.isoformat()})
    assert key is not None
    assert definition.has_partition_key(key)
    window = definition.time_window_for_partition_key(key)
    assert window.start <= datetime(day.year, day.month, day.day, tzinfo=UTC) < window.end


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ([], "at least 1"),
        (["a", "a"], "listed twice"),
        ({"name": "a", "every": "week", "start": "2024-01-01"}, "'hour', 'day' or 'month'"),
        ({"name": "a", "every": "day"}, "need a start"),
        ({"name": "a", "start": "2024-01-01"}, "set every to"),
        ({"name": "a", "every": "day", "start": "2024-01-01", "values": ["x"]}, "give one of them"),
        ({"name": "a", "values": ["x", "x"]}, "listed twice"),
        ({"name": "a", "values": []}, "at least 1"),
        (["a", "b", {"name": "c", "values": ["x"]}], "more columns use"),
        ([BY_DAY, {**BY_DAY, "name": "b"}], "only one column"),
        ({"columns": ["a"], "per_run": 0}, "greater than 0"),
    ],
)
def test_settings_that_cannot_be(columns: Any, problem: str, tmp_path: Path) -> None:
    import json

    listed = tmp_path / "tables.yaml"
    listed.write_text(f"tables:\n- path: t\n  partitions: {json.dumps(columns)}\n")
    with pytest.raises(UsageError, match=problem) as raised:
        WatchConfig.load(str(listed))
    assert "tables.yaml line 3" in str(raised.value)


def test_settings_as_yaml_reads_them(tmp_path: Path) -> None:
    listed = tmp_path / "tables.yaml"
    listed.write_text(
        "defaults: {partitions: {name: day, every: day, start: 2024-01-01}}\n"
        "tables:\n- path: a\n- {path: b, partitions: [{name: c, values: [1, 2024-01-01, true, null]}]}\n"
        "- {path: c, partitions: null}\n"
    )
    a, b, c = (table.partitions for table in WatchConfig.load(str(listed)).tables)
    assert a is not None
    assert (a.columns[0].start, a.per_run) == (datetime(2024, 1, 1), None)
    assert b is not None
    assert b.columns[0].values == ("1", "2024-01-01", "true", NULL_PARTITION)
    assert c is None


@pytest.mark.parametrize("names", [("day", "region"), ("z", "a")])
def test_keys_of_two_columns_are_those_of_dagster(names: tuple[str, str]) -> None:
    """The service joins them without Dagster."""
    values = {names[0]: "x/1", names[1]: None}
    ours = partition_key(by(list(names)), values)
    keys = {name: partition_key(by(name), values) for name in names}
    assert ours == str(dg.MultiPartitionKey({name: key for name, key in keys.items() if key is not None}))
