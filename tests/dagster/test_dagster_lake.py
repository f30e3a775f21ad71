"""The report of all tables: one asset, refreshed when something changed, and at most every so often."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_lake_report, build_dv_sensor
from dv_maintenance.dagster.lake import refresh
from dv_maintenance.service.cursor import TableState
from dv_maintenance.service.inspection import Inspection
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def tables(tmp_path: Path) -> list[TableSettings]:
    for name, deleted in (("orders", 10), ("visits", 40)):
        builder = DeltaBuilder(str(tmp_path / name)).create(SCHEMA)
        builder.append(pa.table({"id": range(100)}, schema=SCHEMA))
        builder.delete(lambda rows, deleted=deleted: pc.less(rows["id"], deleted))
    names = ("orders", "visits", "missing")
    return [TableSettings.model_validate({"name": name, "path": str(tmp_path / name)}) for name in names]


def test_all_tables_are_one_asset(tables: list[TableSettings]) -> None:
    report = build_dv_lake_report(tables, name="lake/report")
    result = dg.materialize([report], instance=dg.DagsterInstance.ephemeral())
    (made,) = result.get_asset_materialization_events()
    entries: dict[str, Any] = dict(made.materialization.metadata)
    assert made.asset_key == dg.AssetKey(["lake", "report"])
    rows = [(row.data["table"], row.data["due"]) for row in entries["tables"].value.records]
    assert rows == [("missing", "ERROR"), ("visits", "optimize"), ("orders", "optimize")]
    assert (entries["deleted_rows"].value, entries["unreadable_tables"].value) == (50, 1)
    assert "40.0%" in entries["deleted_ratio_by_table"].value
    assert "missing: " in entries["errors"].value


def test_it_shows_failing_checks_with_links(tables: list[TableSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    report, instance = build_dv_lake_report(tables), dg.DagsterInstance.ephemeral()
    for name, passed in (("readable", True), ("deleted_ratio", True), ("deleted_ratio", False), ("oldest_dv", False)):
        event = dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey("visits"), check_name=name, passed=passed, description=f"{name} of visits"
        )
        instance.report_runless_asset_event(event)

    def made() -> dict[str, Any]:
        result = dg.materialize([report], instance=instance)
        return dict(result.get_asset_materialization_events()[0].materialization.metadata)

    entries = made()
    rows = {row.data["table"]: row.data for row in entries["tables"].value.records}
    assert {name: (row["readable"], row["failing checks"]) for name, row in rows.items()} == {
        "missing": ("no", "-"),
        "orders": ("yes", "-"),
        "visits": ("yes", "deleted_ratio, oldest_dv"),
    }
    assert (entries["tables_with_failing_checks"].value, entries["failing_checks"].value) == (1, 2)
    listed = entries["failing"].value
    assert listed.startswith("- [visits](/assets/visits?view=checks): **deleted_ratio**: deleted_ratio of visits; ")
    # Kept, and read later.
    assert re.fullmatch(r"\d{1,2} [A-Z][a-z]{2} \d{4}", rows["visits"]["oldest DV"])
    monkeypatch.setenv("DAGSTER_CLOUD_DEPLOYMENT_NAME", "prod")
    assert "(/prod/assets/visits?view=checks)" in made()["failing"].value


def test_the_check_knows_more_of_a_large_table(tables: list[TableSettings], monkeypatch: pytest.MonkeyPatch) -> None:
    """The report does not look for so many files; the check does, in a run of its own."""
    monkeypatch.setattr("dv_maintenance.service.lake.FEW", 0)
    report, instance = build_dv_lake_report(tables[:1]), dg.DagsterInstance.ephemeral()
    for version, readable in ((1, True), (2, False)):
        event = dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey("orders"),
            check_name="readable",
            passed=False,
            description="a.parquet: it does not exist",
            metadata={"version": version},
        )
        instance.report_runless_asset_event(event)
        result = dg.materialize([report], instance=instance)
        entries: dict[str, Any] = dict(result.get_asset_materialization_events()[0].materialization.metadata)
        assert (entries["unreadable_tables"].value == 0) is readable, version


def test_the_sensor_refreshes_it_after_a_change_but_not_more_often(tables: list[TableSettings]) -> None:
    report = build_dv_lake_report(tables)
    instance = dg.DagsterInstance.ephemeral()

    def due(version: int, at: float) -> dg.RunRequest | None:
        state = {"orders": TableState(Inspection("orders", version=version))}
        return refresh(instance, report, state, 3600, at)

    first = due(1, time.time())
    assert first is not None
    run = instance.create_run_for_job(dg.Definitions([report]).resolve_implicit_global_asset_job_def(), tags=first.tags)
    assert run.tags == {**run.tags, **first.tags}
    now = time.time()  # the run was made some time before, and longer on a busy machine
    assert due(1, now + 10 * 3600) is None  # nothing changed
    assert due(2, now + 60) is None  # too early
    later = due(2, now + 3601)
    assert later is not None
    assert later.run_key != first.run_key


def test_a_tick_requests_it(tables: list[TableSettings]) -> None:
    report = build_dv_lake_report(tables)
    sensor = build_dv_sensor(tables, report=report)
    defs = dg.Definitions([*build_dv_assets(tables), report], sensors=[sensor], resources={"spark": SparkResource()})
    instance = dg.DagsterInstance.ephemeral()
    with dg.build_sensor_context(instance=instance, repository_def=defs.get_repository_def()) as context:
        requests = sensor.evaluate_tick(context).run_requests or []
    assert [each.asset_selection for each in requests if "dv/lake_report" in each.tags] == [[report.key]]
