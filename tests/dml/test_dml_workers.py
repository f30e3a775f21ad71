"""Row changes in Spark's Python workers: which Python they need, and how many tasks they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dv_maintenance import __version__
from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.read import matching_rows
from dv_maintenance.dml.update import update
from dv_maintenance.engine.spark import workers
from dv_maintenance.errors import RefusedError
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.tables.table import Table

PYTHON = "spark.sql.execution.pyspark.python"
SHUFFLE = "spark.sql.shuffle.partitions"


def by_keys(table: Table, spark: SparkSession) -> Any:
    keys = Path(table.uri.removeprefix("file://")) / "keys.csv"
    keys.write_text("id\n3\n")
    return delete(table, spark, keys=str(keys), on=["id"])


def merged(table: Table, spark: SparkSession) -> Any:
    source = spark.range(3).withColumnRenamed("id", "number")
    return merge(table, spark, source, "target.id = source.number").when_matched_delete().execute()


def rows_of(table: Table, spark: SparkSession) -> Any:
    snapshot = table.snapshot()
    return list(matching_rows(table, spark, "id % 10 = 3", snapshot, snapshot.schema))


VERBS: dict[str, Callable[[Table, SparkSession], Any]] = {
    "delete": lambda table, spark: delete(table, spark, "id % 10 = 3"),
    "delete by keys": by_keys,
    "update": lambda table, spark: update(table, spark, {"id": "id + 1"}, "id = 3"),
    "merge": merged,
    "read": rows_of,
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    DeltaBuilder(str(tmp_path)).create(pa.schema([("id", pa.int64())])).append(pa.table({"id": range(10)}), files=2)
    return open_table(str(tmp_path))


@pytest.fixture(params=VERBS)
def verb(request: pytest.FixtureRequest) -> Callable[[Table, SparkSession], Any]:
    return VERBS[request.param]


def test_workers_without_their_python(table: Table, spark: SparkSession, verb: Callable[..., Any]) -> None:
    spark.conf.set(PYTHON, "/nowhere/python")
    try:
        with pytest.raises(RefusedError, match='Cannot run program "/nowhere/python"') as caught:
            verb(table, spark)
    finally:
        spark.conf.unset(PYTHON)
    assert PYTHON in (caught.value.next_step or "")
    assert "\n" not in str(caught.value)
    assert table.version() == 1


@pytest.mark.parametrize("name", ["delete by keys", "update"])
def test_workers_with_another_version(
    table: Table, spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "__version__", "7.5.3")
    with pytest.raises(RefusedError, match=f"dv-maintenance {__version__} is installed there, 7.5.3 here"):
        VERBS[name](table, spark)
    assert table.version() == 1


@pytest.fixture
def many_partitions(spark: SparkSession) -> Iterator[SparkSession]:
    """And with adaptive planning, as by default."""
    wanted = {SHUFFLE: "200", "spark.sql.adaptive.enabled": "true"}
    before = {name: str(spark.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def test_a_short_list_of_keys_is_one_partition(table: Table, many_partitions: SparkSession) -> None:
    """Each of several queries ran 200 tasks for it."""
    tracker = many_partitions.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    assert by_keys(table, many_partitions).rows_deleted == 1
    stages = [
        tracker.getStageInfo(stage)
        for job in set(tracker.getJobIdsForGroup(None)) - before
        for stage in tracker.getJobInfo(job).stageIds
    ]
    assert 0 < sum(stage.numTasks for stage in stages if stage is not None) < 50
