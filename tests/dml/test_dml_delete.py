"""DELETE, judged by delta-spark: the same statement on twins leaves the same table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.readers import with_deltalake
from support.twins import Twins, make_table

from dv_maintenance.dml.delete import delete
from dv_maintenance.errors import ConflictError, DamagedTableError, RefusedError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DV = "'delta.enableDeletionVectors' = 'true'"
PARTITIONED = f"""
    CREATE TABLE {{t}} (id BIGINT, name STRING, price DOUBLE, day DATE, shop STRING) USING delta
        PARTITIONED BY (day, shop) TBLPROPERTIES ({DV}, 'delta.enableChangeDataFeed' = 'true');
    INSERT INTO {{t}} SELECT id, IF(id % 10 = 0, NULL, concat('n', id)), id / 4,
        date_add(DATE '2026-01-01', CAST(id % 4 / 2 AS INT)),
        CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN 'a b' WHEN 2 THEN 'x/y=z%' ELSE 'é' END FROM range(400);
    DELETE FROM {{t}} WHERE id % 7 = 0;
    INSERT INTO {{t}} SELECT id, concat('n', id), id / 4, DATE '2026-02-01', 'late' FROM range(400, 500)
"""


@pytest.fixture(scope="module")
def made(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_table(delta_spark, tmp_path_factory.mktemp("delete") / "made", PARTITIONED)


@pytest.fixture
def twins(delta_spark: SparkSession, made: Path, tmp_path: Path) -> Twins:
    return Twins.of(delta_spark, made, tmp_path)


def no_spark() -> Any:
    """A delete that must not need a session."""

    class Nothing:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("Spark was asked for")

    return Nothing()


def test_deletes_on_twins(twins: Twins, tmp_path: Path) -> None:
    """One after the other, so that each finds the deletion vectors of those before it."""
    first = twins.table.version() + 1
    for condition in ("id % 5 = 1 OR name IS NULL", "day = '2026-02-01'"):
        report = delete(twins.table, twins.spark, condition)
        assert report.version_after == report.version_before + 1
        assert report.rows_deleted == same_metrics(twins, condition).get("numDeletedRows", report.rows_deleted)
    keys = tmp_path / "erase.parquet"
    pq.write_table(pa.table({"id": [*range(0, 400, 3), None, 10**12]}).append_column("more", pa.nulls(136)), keys)
    report = delete(twins.table, twins.spark, keys=str(keys), on=["id"])
    assert report.rows_deleted == same_metrics(twins, "id < 400 AND id % 3 = 0")["numDeletedRows"]
    twins.check_content()
    twins.check_changes(first, report.version_after)
    twins.check_deltalake()


def same_metrics(twins: Twins, condition: str) -> dict[str, int]:
    """Those of delta-spark's DELETE, which are those of ours."""
    twins.sql(f"DELETE FROM {{t}} WHERE {condition}")
    theirs, ours = twins.metrics()
    assert ours == theirs, condition
    return theirs


@pytest.mark.deep
def test_delta_spark_goes_on_with_our_dvs_and_we_with_its(twins: Twins) -> None:
    delete(twins.table, twins.spark, "id % 5 = 1")
    twins.sql("DELETE FROM {t} WHERE id % 5 = 1")
    for place in (twins.ours, twins.theirs):
        twins.spark.sql(f"DELETE FROM delta.`{place}` WHERE id % 5 = 2")
        twins.spark.sql(f"UPDATE delta.`{place}` SET name = 'new' WHERE id % 5 = 3")
    delete(twins.table, twins.spark, "id % 5 = 4")
    twins.sql("DELETE FROM {t} WHERE id % 5 = 4")
    assert len(twins.check_content())


def test_whole_partitions_and_whole_tables_go_unread(twins: Twins) -> None:
    for file in twins.ours.rglob("*.parquet"):
        if "_delta_log" not in str(file):
            file.write_bytes(b"nobody opens this")
    report = delete(twins.table, twins.spark, "weekday(day) = 3 AND shop <=> NULL")
    assert (report.files_removed, report.dvs_added) == (2, 0)
    report = delete(twins.table, no_spark())
    assert report.files_removed
    assert not twins.table.snapshot().files.num_rows
    assert delete(twins.table, no_spark()).version_after == report.version_after, "nothing is left to do"


def test_dry_run(twins: Twins) -> None:
    planned = delete(twins.table, twins.spark, "id < 200 OR id >= 450", dry_run=True)
    assert planned.version_after == planned.version_before == twins.table.version()
    done = delete(twins.table, twins.spark, "id < 200 OR id >= 450")
    assert (planned.rows_deleted, planned.dvs_added, planned.dvs_removed, planned.files_removed) == (
        done.rows_deleted,
        done.dvs_added,
        done.dvs_removed,
        done.files_removed,
    )


@pytest.mark.parametrize("condition", ["idd = 1", "id +", "id = (", "name"])
def test_what_spark_does_not_understand(twins: Twins, condition: str) -> None:
    before = twins.table.version()
    with pytest.raises(UsageError):
        delete(twins.table, twins.spark, condition)
    assert twins.table.version() == before


def test_a_damaged_file_is_said_to_be_one(twins: Twins) -> None:
    for file in twins.ours.rglob("day=2026-02-01/**/*.parquet"):
        file.unlink()
    with pytest.raises(DamagedTableError):
        delete(twins.table, twins.spark, "id % 2 = 0")


# -- keys --------------------------------------------------------------------------------------------------------


def test_keys_of_several_columns(twins: Twins) -> None:
    frame = twins.spark.createDataFrame([("n401", "late"), (None, "late"), ("n1", None)], "name string, shop string")
    assert delete(twins.table, twins.spark, keys=frame, on=["name", "shop"]).rows_deleted == 1, "null equals nothing"


def test_keys_open_only_files_that_may_have_them(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema)
    builder.append(pa.table({"id": range(100), "name": [f"{n:03}" for n in range(100)]}, schema=schema), files=10)
    files = sorted((pq.read_table(path)["id"][0].as_py(), path) for path in (tmp_path / "t").glob("*.parquet"))
    for first, path in files:
        if first not in (20, 70):
            path.write_bytes(b"nobody opens this")
    table = DeltaTable(Storage(str(tmp_path / "t")))
    keys = spark.createDataFrame([(25,), (71,), (10_000,), (-5,)], "id int")
    assert delete(table, spark, keys=keys, on=["id"]).rows_deleted == 2
    assert delete(table, spark, keys=spark.createDataFrame([("028",)], "name string"), on=["name"]).rows_deleted == 1
    assert delete(table, spark, keys=spark.createDataFrame([], "id long"), on=["id"]).rows_deleted == 0
    assert delete(table, spark, keys=spark.sql("SELECT NULL AS id"), on=["id"]).rows_deleted == 0


def test_keys_in_a_table_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int16())])
    for name, numbers in (("t", range(50)), ("keys", range(40, 60))):
        builder = DeltaBuilder(str(tmp_path / name)).create(schema)
        builder.append(pa.table({"id": numbers}, schema=schema))
    builder.delete(lambda batch: pc.less(batch["id"], 45))
    table = DeltaTable(Storage(str(tmp_path / "t")))
    assert delete(table, spark, keys=str(tmp_path / "keys"), on=["id"]).rows_deleted == 5, "deleted keys do not count"
    huge = spark.createDataFrame([(3,), (1 << 40,)], "id long")
    with pytest.raises(UsageError, match="no exact value for column id"):
        delete(table, spark, keys=huge, on=["id"])
    assert delete(table, spark, keys=huge.where("id < 9"), on=["id"]).rows_deleted == 1


# -- others ------------------------------------------------------------------------------------------------------


class Busy(DeltaTable):
    """Lets others in before each commit."""

    __slots__ = ("others",)

    def commit_changes(self, *args: Any, **more: Any) -> Any:
        if self.others:
            self.others.pop(0)()
        return DeltaTable.commit_changes(self, *args, **more)


def busy(place: Path, *others: Any) -> Busy:
    table = Busy(Storage(str(place)))
    object.__setattr__(table, "others", list(others))
    return table


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """40 rows in two files."""
    schema = pa.schema([("id", pa.int64()), ("price", pa.float64())])
    builder = DeltaBuilder(str(tmp_path / "small")).create(schema)
    builder.append(pa.table({"id": range(40), "price": [n / 4 for n in range(40)]}, schema=schema), files=2)
    return tmp_path / "small"


def rows_of(place: Path) -> list[tuple[int, float]]:
    return sorted((row["id"], row["price"]) for row in with_deltalake(place).to_pylist())


def test_rows_that_others_add_meanwhile_are_looked_for_again(delta_spark: SparkSession, small: Path) -> None:
    def change() -> None:
        delta_spark.sql(f"UPDATE delta.`{small}` SET price = 1000 WHERE id = 1")

    report = delete(busy(small, change), delta_spark, "price >= 5")
    assert report.attempts == 2
    assert rows_of(small) == [(n, n / 4) for n in range(20) if n != 1]


def test_a_compaction_meanwhile(delta_spark: SparkSession, small: Path) -> None:
    def compact() -> None:
        delta_spark.sql(f"OPTIMIZE delta.`{small}`")

    report = delete(busy(small, compact), delta_spark, "id % 2 = 0")
    assert report.attempts == 2
    assert rows_of(small) == [(n, n / 4) for n in range(1, 40, 2)]
    with pytest.raises(ConflictError, match="in 1 attempts"):
        others = [lambda: delta_spark.sql(f"UPDATE delta.`{small}` SET price = 7")]
        delete(busy(small, *others), delta_spark, "price < 9", max_attempts=1)


def test_without_deletion_vectors(delta_spark: SparkSession, tmp_path: Path) -> None:
    twins = Twins.make(
        delta_spark, tmp_path, "CREATE TABLE {t} (id INT) USING delta; INSERT INTO {t} SELECT id FROM range(9)"
    )
    with pytest.raises(RefusedError, match="does not allow deletion vectors"):
        delete(twins.table, delta_spark, "id = 1")
    with pytest.raises(UsageError):
        delete(twins.table, delta_spark, "id = 1", keys="x", on=["id"])
