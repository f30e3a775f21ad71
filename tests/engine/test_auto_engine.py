"""Little work in this process, the rest on Spark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.engine import get_engine, rows_read_of, slots_of
from dv_maintenance.engine.auto import AutoEngine
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.service import verbs
from dv_maintenance.service.engines import spark_of
from dv_maintenance.tables import open_table
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.delta_builder import DeltaBuilder


class Elsewhere:
    """Stands for Spark: counts the runs that reach it."""

    name: ClassVar[str] = "elsewhere"
    slots = 7
    rows_read = 1000

    def __init__(self) -> None:
        self.runs, self.closed = 0, False

    def run(self, tasks: Sequence[Any], **options: Any) -> list[Any]:
        self.runs += 1
        return LocalEngine().run(tasks, **options)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def builder(tmp_path: Path) -> DeltaBuilder:
    found = DeltaBuilder(str(tmp_path / "t")).create(pa.schema([("id", pa.int64())]))
    found.append(pa.table({"id": range(100)}), files=2)
    return found


def purged(builder: DeltaBuilder, engine: AutoEngine, *gone: int) -> Table:
    builder.delete(lambda rows: pc.is_in(rows["id"], pa.array(gone, pa.int64())))
    table = open_table(builder.storage.uri)
    assert not verbs.rewrite(table, lambda: engine, verbs.PURGE).problems
    assert table.snapshot().files["dv_id"].null_count == table.snapshot().files.num_rows
    return table


def test_little_work_starts_nothing(builder: DeltaBuilder, caplog: pytest.LogCaptureFixture) -> None:
    spark = Elsewhere()
    engine = AutoEngine(spark)
    with caplog.at_level(logging.INFO, "dv_maintenance.engine"):
        purged(builder, engine, *range(10))
    assert spark.runs == 0
    assert rows_read_of(engine) == 40
    [said] = [record.getMessage() for record in caplog.records if record.name.endswith("auto")]
    assert said.startswith("engine auto: in this process, since it reads ")
    assert said.endswith(" B, at most 1 GiB")


def test_much_work_goes_to_spark_and_all_that_follows(builder: DeltaBuilder, caplog: pytest.LogCaptureFixture) -> None:
    spark = Elsewhere()
    size = max(open_table(builder.storage.uri).snapshot().files["size"].to_pylist())
    engine = AutoEngine(spark, in_process=size)
    purged(builder, engine, *range(10))
    assert spark.runs == 0, "as much as the limit"
    with caplog.at_level(logging.INFO, "dv_maintenance.engine"):
        purged(builder, engine, 20, 90)
    assert spark.runs == 1, "two files"
    assert any("on Spark, since it reads " in record.getMessage() for record in caplog.records)
    purged(builder, engine, 91)
    assert spark.runs == 2, "it has started"
    assert rows_read_of(engine) == 1040
    engine.close()
    assert spark.closed


def test_slots_are_those_of_spark() -> None:
    assert slots_of(AutoEngine(Elsewhere())) == 7


def test_what_needs_a_session_gets_spark(builder: DeltaBuilder) -> None:
    from dv_maintenance.engine.spark import SparkEngine

    engine = get_engine("auto")
    assert isinstance(engine, AutoEngine)
    table = open_table(builder.storage.uri)
    assert isinstance(spark_of(lambda: engine, table, "has no session"), SparkEngine)
    with pytest.raises(UsageError, match="the elsewhere engine has no session"):
        spark_of(lambda: AutoEngine(Elsewhere()), table, "has no session")
    engine.close()
