"""Executors that held the source of a change are gone, and computed again it would have other rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dv_maintenance.dml.caching import LostRowsError
from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.source import Values
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.tables.table import Table

pytestmark = pytest.mark.jvm

FIRST, THEN = "01\n02\n", "11\n12\n"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Ids 0 to 9 in one file, 10 to 19 in another."""
    place = str(tmp_path / "table")
    DeltaBuilder(place).create(pa.schema([("id", pa.int64())])).append(pa.table({"id": range(20)}), files=2)
    return open_table(place)


@pytest.fixture
def source(tmp_path: Path, spark: SparkSession) -> DataFrame:
    (tmp_path / "source.csv").write_text(FIRST)
    return spark.read.csv(str(tmp_path / "source.csv"), schema="id bigint")


@pytest.fixture
def losing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, source: DataFrame
) -> Callable[[int], None]:
    """Lets what Spark stored of the source be lost when its values are known, in so many attempts."""
    narrow = Values.narrow
    # mypy knows only the part of a session that Connect has, too.
    context: Any = spark.sparkContext
    first = context._jsc.sc().newRddId()

    def losing(times: int) -> None:
        left = [times]

        def narrowed(self: Values, *given: Any) -> Any:
            found = narrow(self, *given)
            if left[0]:
                left[0] -= 1
                (tmp_path / "source.csv").write_text(THEN)
                blocks = context._jvm.org.apache.spark.SparkEnv.get().blockManager()
                for rdd in range(first, context._jsc.sc().newRddId()):
                    blocks.removeRdd(rdd)
            return found

        monkeypatch.setattr(Values, "narrow", narrowed)

    return losing


def ids(table: Table) -> list[int]:
    _, batches = read(table)
    return sorted(pa.Table.from_batches(batches)["id"].to_pylist())


def test_a_merge_inserts_no_row_that_is_there(
    table: Table, spark: SparkSession, source: DataFrame, losing: Callable[[int], None]
) -> None:
    """Rows 11 and 12 are in a file that the first source had ruled out."""
    losing(1)
    begun = merge(table, spark, source, "target.id = source.id")
    report = begun.when_matched_update_all().when_not_matched_insert_all().execute()
    assert (report.rows_updated, report.rows_inserted) == (2, 0)
    assert ids(table) == [*range(20)]


def test_a_delete_by_keys_is_of_one_list(
    table: Table, spark: SparkSession, source: DataFrame, losing: Callable[[int], None]
) -> None:
    losing(1)
    report = delete(table, spark, keys=source, on=["id"])
    assert report.rows_deleted == 2
    assert ids(table) == [*range(11), *range(13, 20)]


def test_in_every_attempt(table: Table, spark: SparkSession, source: DataFrame, losing: Callable[[int], None]) -> None:
    losing(9)
    with pytest.raises(LostRowsError, match="nothing was changed") as caught:
        delete(table, spark, keys=source, on=["id"])
    assert caught.value.next_step == "run it again, on executors that live until it ends"
    assert table.version() == 1
