"""The checks as Dagster runs them: results, severities, and that they never block a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_checks, build_dv_job
from dv_maintenance.maintenance.checks import CHECKS
from dv_maintenance.maintenance.health import health
from dv_maintenance.service.checks import check_names
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table

MakeTable = Callable[..., TableSettings]
WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


def definitions(*tables: TableSettings) -> dg.Definitions:
    return dg.Definitions(
        assets=build_dv_assets(tables),
        asset_checks=build_dv_checks(tables),
        jobs=[build_dv_job(tables), dg.define_asset_job("checks", dg.AssetSelection.all_asset_checks())],
        resources={"spark": SparkResource(engine="local")},
    )


def run(defs: dg.Definitions, job: str, instance: dg.DagsterInstance, **options: Any) -> dict[str, Any]:
    """Its evaluations by check; the run itself must succeed."""
    result = defs.resolve_job_def(job).execute_in_process(instance=instance, **options)
    assert result.success
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def test_alone_they_tell_how_the_table_is(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    made = make_table(jobs=["optimize", "manifest"], policy={"erase_within": "30d"})
    found = run(definitions(made), "checks", instance)
    assert set(found) == set(CHECKS)
    assert {name for name, each in found.items() if not each.passed} == {"deleted_ratio", "retention", "manifest_lag"}
    ratio = found["deleted_ratio"]
    assert (ratio.severity, ratio.metadata["deleted_ratio"].value) == (ERROR, 0.5)
    assert ratio.description == (
        "50.00% of the rows are deleted, in 2 of 2 files; the limit is 30% (checks.deleted_ratio.error)"
    )
    assert "; the lower limit is 1h (checks.retention.error)" in str(found["retention"].description)
    assert not any(each.blocking for each in found.values())


def test_with_the_work_they_come_last(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    """A table that fails its check is maintained all the same, and the check sees what became of it."""
    table = make_table(jobs=["optimize"])
    defs = definitions(table)
    assert not run(defs, "checks", instance)["deleted_ratio"].passed
    found = run(defs, "dv_maintenance", instance)
    assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0
    assert found["deleted_ratio"].passed
    assert found["oldest_dv"].description == "there are no deletion vectors"


def test_severities_follow_the_policy(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    policy = {"checks": {"deleted_ratio": {"warn": 0.1}, "retention": {"warn": None}}}
    found = run(definitions(make_table(policy=policy)), "checks", instance)
    assert (found["deleted_ratio"].passed, found["deleted_ratio"].severity) == (False, WARN)
    assert found["retention"].passed


def test_a_table_that_cannot_be_read_fails_one_check(
    make_table: MakeTable, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    lost, fine = TableSettings(name="lost", path=str(tmp_path / "lost")), make_table(delete=False)
    result = definitions(lost, fine).resolve_job_def("checks").execute_in_process(instance=instance)
    assert result.success
    evaluations = [each for each in result.get_asset_check_evaluations() if each.asset_key == dg.AssetKey("lost")]
    assert [(each.check_name, each.passed, each.severity) for each in evaluations] == [("readable", False, ERROR)]
    assert "no table found here" in str(evaluations[0].description)
    assert evaluations[0].metadata["error"].value == "TableNotFoundError"
    assert len(result.get_asset_check_evaluations()) == 1 + len(check_names(fine)) + 1


def test_an_observation_that_fails_tells_why_in_its_check(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    defs = definitions(TableSettings(name="lost", path=str(tmp_path / "lost")))
    job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection={dg.AssetKey("lost")})
    spark = {"spark": SparkResource(engine="local")}
    result = job.execute_in_process(instance=instance, resources=spark, raise_on_error=False)
    assert not result.success
    (found,) = result.get_asset_check_evaluations()
    assert (found.check_name, found.passed) == ("readable", False)
    assert "no table found here" in str(found.description)


def test_checks_beside_work_do_not_hold_it_up(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    """The table's op also evaluates its checks, and observes nothing then: the work below it runs all the same."""
    table = make_table(jobs=["optimize"])
    optimize = dg.AssetKey(["shop", "orders", "dv", "orders_optimize"])
    job = definitions(table).resolve_implicit_global_asset_job_def()
    asked = {dg.AssetCheckKey(dg.AssetKey(["shop", "orders"]), name) for name in ("deleted_ratio", "small_files")}
    subset = job.get_subset(asset_selection={optimize}, asset_check_selection=asked)
    result = subset.execute_in_process(instance=instance, resources={"spark": SparkResource(engine="local")})
    assert result.success
    assert [each.asset_key for each in result.get_asset_materialization_events()] == [optimize]
    assert {each.check_name for each in result.get_asset_check_evaluations()} >= {"deleted_ratio", "small_files"}
    # What the rewrite left is observed by the rewrite.
    assert [each.step_key for each in result.get_asset_observation_events()] == ["shop__orders__dv_optimize"]
    assert health(open_table(table.path).snapshot()).counts.files_with_dv == 0


def test_the_asset_of_another_keeps_its_op_and_gets_checks(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table(observe=False)

    @dg.asset(key=["shop", "orders"])
    def orders() -> None: ...

    (checks,) = build_dv_checks([table])
    assert checks.node_def.name.endswith("__dv_checks")
    assert not build_dv_checks([table.model_copy(update={"observe": True})])
    defs = definitions(table)
    defs = dg.Definitions.merge(defs, dg.Definitions(assets=[orders]))
    found = run(defs, "checks", instance)
    assert set(found) == {*check_names(table), "fsck"}
    assert not found["deleted_ratio"].passed


def test_chosen_checks_only(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    defs = definitions(table)
    key = dg.AssetCheckKey(dg.AssetKey(["shop", "orders"]), "oldest_dv")
    job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_check_selection={key}, asset_selection=set())
    result = job.execute_in_process(instance=instance, resources={"spark": SparkResource(engine="local")})
    assert [each.check_name for each in result.get_asset_check_evaluations()] == ["oldest_dv"]


@pytest.mark.parametrize(("jobs", "expected"), [(["optimize"], False), (["manifest"], True)])
def test_manifests_are_checked_where_they_matter(jobs: Any, expected: bool) -> None:
    assert ("manifest_lag" in check_names(TableSettings(name="t", path="t", jobs=jobs))) is expected


def test_missing_files_fail_the_checks(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    table = make_table()
    defs = definitions(table)
    files = sorted(Path(table.path).glob("deletion_vector_*.bin"))
    assert files
    for each in files:
        each.unlink()
    found = run(defs, "checks", instance)
    for name in ("readable", "deletion_files", "fsck"):
        assert (found[name].passed, found[name].severity) == (False, ERROR)
        assert files[0].name in str(found[name].description) or files[-1].name in str(found[name].description)
    assert "shows how to repair it" in str(found["readable"].description)
    assert "Copy each file back" in str(found["fsck"].description)
    (row, *_) = found["fsck"].metadata["rows"].records
    assert (row.data["kind"], row.data["fault"]) == ("dv", "missing")


def test_fsck_runs_alone(make_table: MakeTable, instance: dg.DagsterInstance) -> None:
    """Not with maintenance, and not for somebody who observes a table: it reads every file."""
    table = make_table()
    defs = definitions(table)
    assert "fsck" not in run(defs, "dv_maintenance", instance)
    key = dg.AssetKey(["shop", "orders"])
    job = defs.resolve_implicit_global_asset_job_def()
    spark = {"spark": SparkResource(engine="local")}
    both = job.get_subset(asset_selection={key}).execute_in_process(instance=instance, resources=spark)
    assert both.success
    assert "readable" in {each.check_name for each in both.get_asset_check_evaluations()}
    assert "fsck" not in {each.check_name for each in both.get_asset_check_evaluations()}
    alone = job.get_subset(asset_selection=set(), asset_check_selection={dg.AssetCheckKey(key, "fsck")})
    found = alone.execute_in_process(instance=instance, resources=spark).get_asset_check_evaluations()
    assert [(each.check_name, each.passed) for each in found] == [("fsck", True)]
