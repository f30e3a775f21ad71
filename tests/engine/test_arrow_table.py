"""Arrow's batch size of the session: 0 is Spark's word for no limit, and PySpark cuts tables by it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.update import update
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.engine.spark.arrow_table import rows_of
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def unlimited(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(LIMIT, "0")
    yield spark
    assert spark.conf.get(LIMIT) == "0"
    spark.conf.unset(LIMIT)


def test_threads_leave_the_sessions_setting(unlimited: SparkSession) -> None:
    table = pa.table({"n": range(3)})
    with ThreadPoolExecutor(8) as pool:
        frames = [*pool.map(lambda _: rows_of(unlimited, table), range(16))]
    assert frames[-1].count() == 3


def test_every_verb_without_a_limit(unlimited: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema, partition_by=["at"])
    builder.append(pa.table({"id": range(40), "at": [day * 86_400_000_000 for day in range(4)] * 10}, schema=schema))
    # Without its zone: the session's.
    log = tmp_path / "t/_delta_log" / f"{1:020}.json"
    log.write_text(log.read_text().replace("00:00:00Z", "00:00:00"))
    table = DeltaTable(Storage(str(tmp_path / "t")))
    keys = tmp_path / "keys.csv"
    keys.write_text("id\n1\n2\n99\n")
    assert delete(table, unlimited, "day(at) = 4 AND at < now()").rows_deleted == 10
    assert delete(table, unlimited, keys=str(keys), on=["id"]).rows_deleted == 2
    assert update(table, unlimited, {"id": "id + 100"}, "id % 4 = 0").rows_updated == 10
    assert purge(table, SparkEngine(unlimited)).verified
