"""A Paimon table beside others: the same assets, sensor, checks and jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dv_maintenance.cli import main
from dv_maintenance.dagster import SparkResource, build_dv_assets
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.service.checks import check_names
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.tables import open_table

Definitions = Callable[..., dg.Definitions]
KEY = dg.AssetKey("orders")
OPTIMIZE, VACUUM = (dg.AssetKey(["orders", "dv", f"orders_{job}"]) for job in ("optimize", "vacuum"))


@pytest.fixture
def make_watched(golden_copy: Callable[[str], Path]) -> Callable[..., TableSettings]:
    """Partitions ``a`` and ``b`` of ``pt``; six files with deletion vectors."""
    place = str(golden_copy("paimon/append_dv_part") / "table")

    def make(**settings: Any) -> TableSettings:
        named = {"name": "orders", "path": place, **settings}
        return WatchConfig.model_validate({"tables": [named]}).tables[0]

    return make


Watched = Callable[..., TableSettings]


def rows(table: TableSettings) -> list[str]:
    _, batches = read(open_table(table.path))
    return sorted(repr(row) for batch in batches for row in batch.to_pylist())


def with_dv(table: TableSettings) -> dict[str, int]:
    parts = health(open_table(table.path).snapshot()).partitions
    return {str(each.partition["pt"]): each.counts.files_with_dv for each in parts}


def tick(defs: dg.Definitions, instance: dg.DagsterInstance) -> Any:
    context = dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def())
    return defs.resolve_sensor_def("dv_accumulation").evaluate_tick(context)


def test_the_sensor_asks_and_the_job_purges(
    make_watched: Watched, make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    table = make_watched(jobs=["optimize", "manifest"])
    before = rows(table)
    assert sum(with_dv(table).values()) == 6
    defs = make_definitions(table)
    (request,) = tick(defs, instance).run_requests
    assert list(request.asset_selection) == [OPTIMIZE], "Paimon writes its own manifests"
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=[OPTIMIZE]).success
    assert sum(with_dv(table).values()) == 0
    assert rows(table) == before
    event = instance.get_latest_materialization_event(OPTIMIZE)
    assert event is not None
    assert event.asset_materialization is not None
    numbers = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert (numbers["rows_purged"], numbers["verified"]) == (144, True)


def test_one_partition(make_watched: Watched, make_definitions: Definitions, instance: dg.DagsterInstance) -> None:
    table = make_watched(jobs=["optimize"], partitions={"name": "pt", "values": ["a", "b"]}, format="paimon")
    before, dvs = rows(table), with_dv(table)
    job = make_definitions(table).resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=[OPTIMIZE], partition_key="a").success
    assert with_dv(table) == {"a": 0, "b": dvs["b"]}
    assert rows(table) == before


def test_checks(make_watched: Watched, instance: dg.DagsterInstance) -> None:
    known, found_out = make_watched(format="paimon"), make_watched(jobs=["optimize", "manifest"])
    assert "deletion_files" not in check_names(known)
    defs = dg.Definitions(
        build_dv_assets([found_out]),
        jobs=[dg.define_asset_job("checks", dg.AssetSelection.all_asset_checks())],
        resources={"spark": SparkResource(engine="local")},
    )
    result = defs.resolve_job_def("checks").execute_in_process(instance=instance)
    assert result.success
    said = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert "exist, and are large enough" in str(said["deletion_files"].description)
    assert said["manifest_lag"].description == "Paimon writes its own manifests: nothing to generate"
    assert (said["readable"].passed, said["deleted_ratio"].passed) == (True, False)


def test_watching_a_folder(make_watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Path(make_watched().path).parent
    (tmp_path / "tables.yaml").write_text(f"folders: [{{path: {place}, jobs: [optimize, manifest]}}]")
    assert main(["watch", str(tmp_path / "tables.yaml"), "--once", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["tables"]
    assert (found["name"], found["version"], found["due"]) == ("table", 5, ["optimize"])


def test_what_paimon_alone_compacts_is_not_asked_for(
    golden_copy: Callable[[str], Path], make_definitions: Definitions, instance: dg.DagsterInstance
) -> None:
    place = golden_copy("paimon/pk_dv_b1") / "table"
    table = WatchConfig.model_validate({"tables": [{"name": "orders", "path": str(place)}]}).tables[0]
    data = tick(make_definitions(table), instance)
    assert [list(request.asset_selection) for request in data.run_requests or []] in ([], [[VACUUM]])
    (observed,) = [each for each in data.asset_events if isinstance(each, dg.AssetObservation)]
    assert "its writers compact it" in str(observed.metadata["warnings"].value)
