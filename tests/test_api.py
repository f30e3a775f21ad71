"""The Python API: each verb on a table, what its results say to people, and which engines it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dv_maintenance as dvm
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000


@pytest.fixture
def orders(tmp_path: Path) -> Any:
    return dvm.example_table(str(tmp_path / "orders"), rows=ROWS)


def test_a_table_from_the_first_look_to_the_last_file(orders: Any) -> None:
    assert dvm.health(orders).counts.files_with_dv == 2
    plan = dvm.plan(orders, dvm.Policy(max_deleted_ratio=0.3))
    assert [step.partition for step in plan.steps] == ["country=AT", "country=DE"]
    assert dvm.plan(orders, dvm.Policy(max_deleted_ratio=0.6)).steps == ()
    report = dvm.apply(orders.uri, plan, engine="local")
    assert report.verified
    assert dvm.health(orders.uri).counts.files_with_dv == 0
    assert dvm.health(orders, 2).counts.files_with_dv == 2
    assert dvm.read(orders).read_all().num_rows == ROWS * 3 // 4
    assert dvm.read(orders, 1, columns=["id"], limit=7).read_all().shape == (7, 1)
    assert dvm.fsck(orders, deep=True).clean
    assert [entry.version for entry in dvm.history(orders, 2)] == [3, 2]
    assert dvm.checkpoint(orders).written
    assert dvm.recount(orders).wrong == 0
    with pytest.raises(RefusedError):
        dvm.vacuum(orders, retention="1h")
    expired = dvm.vacuum(orders, retention="1h", allow_short_retention=True, dry_run=True)
    assert expired.data_files == 0
    assert dvm.restore(orders, 1).verified
    assert dvm.changes(orders, 2, 2).read_all().num_rows == ROWS // 4
    assert dvm.undelete(orders, since="2026-01-01T00:00:00Z").files == 0


def test_a_purge_of_one_partition(orders: Any) -> None:
    planned = dvm.plan(orders, purge=True, partitions=["country=AT"])
    done = dvm.purge(orders, [{"country": "AT"}], engine="auto")
    assert len(planned.steps) == len(done.steps) == 1
    assert dvm.health(orders).counts.files_with_dv == 1


def test_a_mistyped_partition_does_not_look_like_success(orders: Any) -> None:
    with pytest.raises(UsageError, match="no live file is in country=XX"):
        dvm.purge(orders, ["country=XX"], engine="local")
    with pytest.raises(UsageError, match="missing_ok=True accepts it"):
        dvm.plan(orders, purge=True, partitions=["country=XX"])
    assert not dvm.purge(orders, ["country=XX"], missing_ok=True, engine="local").steps


def test_results_are_for_people_and_for_programs(orders: Any) -> None:
    found: list[Any] = [dvm.health(orders), dvm.fsck(orders), dvm.vacuum(orders, dry_run=True), dvm.recount(orders)]
    for each in found:
        assert isinstance(each, Report)
        assert json.loads(json.dumps(each.to_json()))["table"] == orders.uri
        text = repr(each)
        assert text.startswith(f"{type(each).__name__} of {orders.uri}\n")
        assert "dataclass" not in text
        assert each._repr_html_().startswith(f"<b>{type(each).__name__} of")
    assert "  live_rows                750" in repr(found[0])
    assert "files_with_unknown_rows" in found[0]._repr_html_()
    assert repr(dvm.plan(orders)).startswith(f"# Maintenance of {orders.uri}")


def test_names_in_html_are_escaped(tmp_path: Path) -> None:
    orders = dvm.example_table(str(tmp_path / "<b>orders"), rows=10)
    assert "<b>orders" not in dvm.health(orders)._repr_html_()


def test_rows_change_on_any_spark(orders: Any, spark: SparkSession) -> None:
    assert dvm.delete(orders, "id = 999", engine=spark).rows_deleted == 1
    engine = dvm.SparkEngine(spark)
    assert dvm.update(orders, {"total": "0"}, "id = 998", engine=engine).rows_updated == 1
    source = "SELECT 997L AS id, 'DE' AS country, 1.5D AS total"
    begun = dvm.merge(orders, source, "target.id = source.id", engine=spark)
    assert begun.when_matched_update_all().execute().rows_updated == 1
    assert dvm.delete(orders, "id > 990", engine=spark, dry_run=True).dry_run
    assert not spark.sparkContext._jsc.sc().isStopped(), "a session of the caller stays open"


def test_a_simple_condition_needs_no_spark(orders: Any) -> None:
    """As on the command line. It was refused."""
    assert dvm.delete(orders, "id = 996", engine="local").rows_deleted == 1


def test_engines_that_cannot_do_it_are_refused(orders: Any) -> None:
    with pytest.raises(UsageError, match="the local engine can't evaluate this condition"):
        dvm.delete(orders, "id LIKE '1%'", engine="local")
    with pytest.raises(UsageError, match="can't find rows by Spark SQL"):
        dvm.delete(orders, keys="keys.csv", on=["id"], engine="local")
    with pytest.raises(UsageError, match="can't find rows by Spark SQL"):
        dvm.update(orders, {"total": "0"}, engine="local")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not an engine: int"):
        dvm.purge(orders, engine=7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown engine"):
        dvm.purge(orders, engine="flink")
    with pytest.raises(UsageError, match="there is a table already"):
        dvm.example_table(orders.uri)


def test_arguments_of_the_usual_kinds(orders: Any) -> None:
    path = Path(orders.uri.removeprefix("file://"))
    assert dvm.health(path).table == orders.uri
    assert dvm.read(path, columns="id").schema.names == ["id"]
    assert len(dvm.plan(path, purge=True, partitions="country=AT").steps) == 1
    assert len(dvm.plan(path, purge=True, partitions={"country": "AT"}).steps) == 1  # type: ignore[arg-type]
    week = 7 * 24 * 3600 * 1000
    assert dvm.vacuum(path, retention=week, dry_run=True).retention == week
    ordered = dvm.zorder(path, "id", engine="local")
    assert ordered.verified
    assert ordered.steps


def test_arguments_of_other_kinds_are_refused(orders: Any) -> None:
    before = orders.snapshot().version
    with pytest.raises(UsageError, match="not a table: NoneType"):
        dvm.health(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a duration: 'soon'"):
        dvm.vacuum(orders, retention="soon")
    with pytest.raises(UsageError, match="the retention is negative"):
        dvm.vacuum(orders, retention=-1)
    with pytest.raises(UsageError, match="not a policy: dict"):
        dvm.plan(orders, {"max_deleted_ratio": 0.1})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a policy: str"):
        dvm.apply(orders, "purge", engine="local")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="name 1 to 16 different columns"):
        dvm.zorder(orders, [], engine="local")
    with pytest.raises(UsageError, match="exactly one of 'where' and 'keys'"):
        dvm.delete(orders)
    assert orders.snapshot().version == before


def test_an_error_of_row_changes_names_the_table_and_its_version(orders: Any, spark: SparkSession) -> None:
    with pytest.raises(dvm.errors.UsageError, match="no column 'nope'") as caught:
        dvm.delete(orders, "nope = 1", engine=spark)
    assert (caught.value.table, caught.value.version) == (orders.uri, 2)
