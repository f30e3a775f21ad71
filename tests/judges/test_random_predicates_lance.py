"""Random conditions on Lance tables mean to DELETE what they mean to Spark over the same rows, in sessions of random
settings: its condition is Spark SQL, whatever the format. pylance says what rows there are, before and after.

``DVM_PREDICATES`` and ``DVM_SEED``: see ``test_random_predicates``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random, randrange
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from support.predicate_judging import Count, Judged, session_with
from support.random_sql import COLUMNS, FILES, NESTED, condition, rows_of_file, settings

from dv_maintenance.dml.delete import delete
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.table import LanceTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREDICATES: Final = int(os.environ.get("DVM_PREDICATES", "1000")) // 2
SEED: Final = int(os.environ.get("DVM_SEED", randrange(1 << 30)))
BATCH: Final = 50
# Lance has texts of any length only, and no maps.
TYPES: Final = {"c": "STRING", "v": "STRING"}
NAMES: Final = ["id", *(each.name for each in COLUMNS), *(name for name, _, _ in NESTED if name != "m")]


def make(pylance: ModuleType, spark: SparkSession, place: Path, random: Random) -> None:
    """A fragment for each file, and a row of each fragment deleted."""
    kinds = {"id": "INT"} | {each.name: TYPES.get(each.name, each.type) for each in COLUMNS}
    kinds |= {name: kind for name, kind, _ in NESTED}
    columns = [f"CAST(col{at} AS {kinds[name]}) AS {name}" for at, name in enumerate(kinds, start=1) if name in NAMES]
    files = [f"SELECT {', '.join(columns)} FROM ({rows_of_file(random, number)})" for number in range(FILES)]
    rows = spark.sql(" UNION ALL ".join(files)).sort("id").toArrow()
    nullable = pa.schema([field.with_nullable(True) for field in rows.schema])
    # Lance takes aligned buffers only: a copy.
    rows = rows.cast(nullable).take(list(range(rows.num_rows)))
    pylance.write_dataset(rows, str(place), max_rows_per_file=rows.num_rows // FILES)
    assert len(pylance.dataset(str(place)).get_fragments()) == FILES
    pylance.dataset(str(place)).delete("id % 7 = 3")


def read_by_pylance(pylance: ModuleType, spark: SparkSession, place: Path) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    rows: pa.Table = pylance.dataset(str(place)).to_table()
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


def deleted(
    pylance: ModuleType, spark: SparkSession, made: Path, place: Path, rows: DataFrame, sql: str, count: Count
) -> None:
    """A DELETE, and the rows that pylance finds after it."""
    shutil.copytree(made, place)
    count.operations += 1
    count.see("DELETE", sql)
    try:
        fulfil = {row.id for row in rows.where(sql).select("id").collect()}
    except Exception:  # noqa: BLE001 - of Py4J and PySpark, of many kinds
        count.failed += 1
        return
    before, table = pylance.dataset(str(place)).to_table(columns=["id"]), LanceTable(Storage(str(place)))
    try:
        delete(table, spark, sql)
    except DvMaintenanceError as error:
        count.differences.append(f"{sql}: {error}")
        return
    left = pylance.dataset(str(place)).to_table(columns=["id"])
    if {*before["id"].to_pylist()} - {*left["id"].to_pylist()} != fulfil:
        count.differences.append(f"{sql}: not {fulfil}")


def check(pylance: ModuleType, spark: SparkSession, folder: Path, seed: int, predicates: int, deletes: int) -> None:
    print(f"seed {seed}")
    random, count, place = Random(seed), Count(), folder / "made"
    make(pylance, spark, place, random)
    # Handed over once, in a session of no special settings.
    rows = read_by_pylance(pylance, spark, place)
    judged = Judged(spark, LanceTable(Storage(str(place))), lambda: rows, count)

    def a_condition() -> str:
        while True:
            sql = condition(random)
            if "m[" not in sql:
                return sql

    batch = min(BATCH, max(1, predicates // 2))
    for _ in range(0, predicates, batch):
        wanted = settings(random)
        with session_with(spark, wanted):
            judged.check([a_condition() for _ in range(batch)], f"{wanted}")
    for number in range(deletes):
        with session_with(spark, settings(random)):
            deleted(pylance, spark, place, folder / f"t{number}", rows, a_condition(), count)
    count.check(seed)


def test_a_constant_that_spark_cannot_compute(pylance: ModuleType, spark: SparkSession, tmp_path: Path) -> None:
    """No row needs its value, but Spark computes it while it plans a DELETE."""
    count, place = Count(), tmp_path / "made"
    make(pylance, spark, place, Random(17))
    rows = read_by_pylance(pylance, spark, place)
    judged = Judged(spark, LanceTable(Storage(str(place))), lambda: rows, count)
    keeps = {"spark.sql.ansi.enabled": "true", "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "true"}
    with session_with(spark, keeps):
        judged.check(["id >= 0 OR wide <=> 12345678901234567890123456789012345678BD"], "")
    assert (count.errors, count.differences) == (1, [])


def test_some_conditions_on_lance(pylance: ModuleType, spark: SparkSession, tmp_path: Path) -> None:
    check(pylance, spark, tmp_path, 17, 24, 1)


@pytest.mark.deep
def test_many_conditions_on_lance(pylance: ModuleType, spark: SparkSession, tmp_path: Path) -> None:
    check(pylance, spark, tmp_path, SEED, PREDICATES, PREDICATES // 25)
