"""Assets that depend on a table: each run of one is a read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_sensor
from dv_maintenance.dagster.downstream import asset_graph, reads_downstream
from dv_maintenance.maintenance.meter import of_table
from dv_maintenance.service import inspection
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.testing.delta_builder import DeltaBuilder


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def table() -> TableSettings:
    return WatchConfig.model_validate({"tables": [{"name": "shop/orders", "path": "s3://lake/orders"}]}).tables[0]


def graph(*assets: Any) -> Any:
    return dg.Definitions(assets=assets, resources={"spark": SparkResource()}).get_repository_def().asset_graph


def test_only_direct_downstream_assets_count(instance: dg.DagsterInstance, table: TableSettings) -> None:
    days = dg.StaticPartitionsDefinition(["1", "2", "3"])

    @dg.asset(deps=[dg.AssetKey(["shop", "orders"])])
    def report() -> None: ...

    @dg.asset(deps=[report])
    def mail() -> None: ...

    @dg.asset(deps=[dg.AssetKey(["shop", "orders"])], partitions_def=days)
    def daily() -> Iterator[Any]:
        for key in days.get_partition_keys():
            yield dg.AssetMaterialization("daily", partition=key)

    @dg.asset
    def other() -> None: ...

    whole = graph(*build_dv_assets([table]), report, mail, daily, other)
    now = round(time.time() * 1000)
    assert reads_downstream(instance, whole, table, now) is None
    for _ in range(3):
        dg.materialize([report, mail, other], instance=instance)
    for key in ("1", "2"):
        instance.report_runless_asset_event(dg.AssetMaterialization("daily", partition=key))
    for key in (["shop", "orders", "dv", "orders_optimize"], ["shop", "orders"], ["other"]):
        instance.report_runless_asset_event(dg.AssetMaterialization(key))
    now = round(time.time() * 1000)
    reads = reads_downstream(instance, whole, table, now)
    assert reads is not None
    assert reads.source == "downstream assets"
    assert len(reads.times) == 5
    assert reads_downstream(instance, whole, table, now + 31 * 86_400_000) is None
    assert reads_downstream(instance, graph(other), table, now) is None


def test_many_materializations_are_read_page_by_page(
    instance: dg.DagsterInstance, table: TableSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dv_maintenance.dagster.downstream._PAGE", 2)

    @dg.asset(deps=[dg.AssetKey(["shop", "orders"])])
    def report() -> None: ...

    for _ in range(5):
        dg.materialize([report], instance=instance)
    whole = graph(*build_dv_assets([table]), report)
    reads = reads_downstream(instance, whole, table, round(time.time() * 1000))
    assert reads is not None
    assert len(reads.times) == 5


def test_sensors_and_runs_know_the_assets_of_their_location(instance: dg.DagsterInstance, table: TableSettings) -> None:
    @dg.asset(deps=[dg.AssetKey(["shop", "orders"])])
    def report() -> None: ...

    seen: list[Any] = []

    @dg.op
    def work(context) -> None:
        graph = asset_graph(context)
        seen.append((graph is not None, reads_downstream(instance, graph, table, round(time.time() * 1000))))

    @dg.job
    def location_job() -> None:
        work()

    dg.materialize([report], instance=instance)
    location_job.execute_in_process(instance=instance)
    assert seen == [(False, None)]

    defs = dg.Definitions(
        assets=[*build_dv_assets([table]), report], jobs=[location_job], resources={"spark": SparkResource()}
    )
    context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
    reads = reads_downstream(instance, asset_graph(context), table, round(time.time() * 1000))
    assert reads is not None
    assert len(reads.times) == 1
    assert asset_graph(dg.build_sensor_context(instance=instance)) is None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The reads that each decision was made by."""
    found: list[Any] = []
    for module, name in ((inspection, "due_for"), (of_table, "decide_for")):
        honest = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, _do=honest, **more: (found.append(more["reads"]), _do(*args, **more))[1]
        )
    return found


def test_the_sensor_and_runs_decide_by_downstream_assets(
    instance: dg.DagsterInstance, tmp_path: Path, seen: list[Any]
) -> None:
    place = str(tmp_path / "orders")
    DeltaBuilder(place).create(pa.schema([("id", pa.int64())])).append(pa.table({"id": [1]}))
    table = WatchConfig.model_validate({"tables": [{"name": "orders", "path": place}]}).tables[0]

    @dg.asset(deps=["orders"])
    def report() -> None: ...

    assets = [*build_dv_assets([table]), report]
    spark = SparkResource(engine="local")
    defs = dg.Definitions(assets=assets, sensors=[build_dv_sensor([table])], resources={"spark": spark})
    dg.materialize([report], instance=instance)
    context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
    defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context)
    assert [(each.source, len(each.times)) for each in seen] == [("downstream assets", 1)]
    # Without the code location around it.
    chosen = dg.AssetSelection.assets(["orders", "dv", "orders_optimize"])
    assert dg.materialize(assets, selection=chosen, instance=instance, resources={"spark": spark}).success
    assert seen[1:] == [None]
