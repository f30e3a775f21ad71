"""Watched tables on real, small Delta tables, and the definitions around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_job, build_dv_schedule, build_dv_sensor
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.testing.delta_builder import DeltaBuilder

MakeTable = Callable[..., TableSettings]


@pytest.fixture(scope="session", autouse=True)
def migrations_read_once() -> Iterator[None]:
    """Every in-memory instance stamps its storages with Dagster's newest migration, and would import them all again."""
    from alembic.script import ScriptDirectory

    known: dict[str | None, ScriptDirectory] = {}
    read = ScriptDirectory.from_config

    def from_config(config: Any) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in known:
            known[place] = read(config)
        return known[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", from_config)
        yield


@pytest.fixture
def make_table(tmp_path: Path) -> MakeTable:
    """A watched table with 2 files of 1000 rows, by default half of the even ids deleted."""

    def make(
        name: str = "shop/orders", *, delete: bool = True, kept: str = "0 seconds", **settings: Any
    ) -> TableSettings:
        path = str(tmp_path / name.replace("/", "_"))
        builder = DeltaBuilder(path).create(
            pa.schema([("id", pa.int64())]), properties={"delta.deletedFileRetentionDuration": f"interval {kept}"}
        )
        builder.append(pa.table({"id": range(2000)}), files=2)
        if delete:
            delete_half(path)
        return WatchConfig.model_validate({"tables": [{"name": name, "path": path, **settings}]}).tables[0]

    return make


def delete_half(path: str, of: int = 2) -> int:
    """Delete every row whose id has that bit set; its version."""
    return DeltaBuilder(path).delete(lambda rows: pc.not_equal(pc.bit_wise_and(rows["id"], of), 0))


def definitions(*tables: TableSettings, resource: Any = None, **sensor: Any) -> dg.Definitions:
    job = build_dv_job(tables)
    return dg.Definitions(
        assets=build_dv_assets(tables),
        jobs=[job],
        schedules=[build_dv_schedule(job)],
        sensors=[build_dv_sensor(tables, **sensor)],
        resources={"spark": resource or SparkResource(engine="local")},
        executor=dg.in_process_executor,
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def make_definitions() -> Callable[..., dg.Definitions]:
    return definitions


@pytest.fixture
def delete_more() -> Callable[..., int]:
    return delete_half
