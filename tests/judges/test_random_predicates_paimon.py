"""Random conditions on append tables of Paimon mean to DELETE what they mean to Spark, in sessions of random settings.

Paimon's connector for this Spark is on no registry. What it gives Spark are the table's rows, as its own engine reads
them, with CHARs named as such, and Spark does the rest: pads them (as it does with Paimon's connector for Spark 3.5,
which was run) and computes the condition. So Spark is given the same Parquet files as a table of its catalog, and
Paimon's engine says that these are the rows.

``DVM_PREDICATES`` and ``DVM_SEED``: see ``test_random_predicates``.
"""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path
from random import Random, randrange
from typing import TYPE_CHECKING, Final

import pytest
from paimon_judging import judge_rows, opened
from support.paimon_engine import DV, PaimonEngine
from support.predicate_judging import Count, Judged, session_with
from support.random_sql import COLUMNS, FILES, condition, rows_of_file, settings

from dv_maintenance.dml.delete import delete
from dv_maintenance.errors import DvMaintenanceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PREDICATES: Final = int(os.environ.get("DVM_PREDICATES", "1000")) // 2
SEED: Final = int(os.environ.get("DVM_SEED", randrange(1 << 30)))
BATCH: Final = 50
# As Paimon spells them where it is not as Spark does.
TYPES: Final = {
    "STRING": "STRING",
    "BINARY": "BYTES",
    "TIMESTAMP": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    "TIMESTAMP_NTZ": "TIMESTAMP(6)",
}
# A column of nothing but nulls has no type, and nothing can be cast to one of limited length.
PLAIN: Final = [re.sub(r"(VAR)?CHAR.*", "STRING", each.type) for each in COLUMNS]


def make(engine: PaimonEngine, spark: SparkSession, place: Path, random: Random) -> None:
    columns = {"id": "INT", **{each.name: TYPES.get(each.type, each.type) for each in COLUMNS}}
    engine.create(place, columns, options=DV)
    stored = [f"CAST(col{at} AS {kind}) AS col{at}" for at, kind in enumerate(PLAIN, start=2)]
    for number in range(FILES):
        rows = spark.sql(rows_of_file(random, number)).selectExpr("col1", *stored).toArrow()
        engine.append(place, [tuple(row.values()) for row in rows.to_pylist()])
    judge_rows(engine, place)


def of_paimon(spark: SparkSession) -> DataFrame:
    """Spark keeps a table's columns as a session with ``charVarcharAsString`` read them: without CHAR."""
    spark.catalog.refreshTable("of_paimon")
    return spark.table("of_paimon")


def deleted(engine: PaimonEngine, spark: SparkSession, made: Path, place: Path, sql: str, count: Count) -> None:
    """A DELETE, and the rows that Paimon's engine finds after it."""
    shutil.copytree(made, place)
    count.operations += 1
    count.see("DELETE", sql)
    before = {row["id"] for row in engine.rows(place)}
    try:
        fulfil = {row.id for row in of_paimon(spark).where(sql).select("id").collect()}
    except Exception:  # noqa: BLE001 - of Py4J and PySpark, of many kinds
        count.failed += 1
        return
    try:
        delete(opened(place), spark, sql)
    except DvMaintenanceError as error:
        count.differences.append(f"{sql}: {error}")
        return
    if before - {row["id"] for row in judge_rows(engine, place)} != fulfil:
        count.differences.append(f"{sql}: not {fulfil}")


def check(engine: PaimonEngine, spark: SparkSession, folder: Path, seed: int, predicates: int, deletes: int) -> None:
    random, count, place = Random(seed), Count(), folder / "made"
    make(engine, spark, place, random)
    types = ", ".join(["id INT", *(f"{each.name} {each.type}" for each in COLUMNS)])
    spark.sql("DROP TABLE IF EXISTS of_paimon")
    spark.sql(f"CREATE TABLE of_paimon ({types}) USING parquet LOCATION '{place}/bucket-0'")
    batch = min(BATCH, max(1, predicates // 2))
    try:
        for _ in range(0, predicates, batch):
            wanted = settings(random)
            with session_with(spark, wanted):
                conditions = [condition(random, nested=False) for _ in range(batch)]
                Judged(spark, opened(place), partial(of_paimon, spark), count).check(conditions, f"{wanted}")
        for number in range(deletes):
            with session_with(spark, settings(random)):
                deleted(engine, spark, place, folder / f"t{number}", condition(random, nested=False), count)
    finally:
        spark.sql("DROP TABLE of_paimon")
    count.check(seed)


def test_some_conditions_on_paimon(paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path) -> None:
    check(paimon_engine, spark, tmp_path, 16, 24, 1)


@pytest.mark.deep
def test_many_conditions_on_paimon(paimon_engine: PaimonEngine, spark: SparkSession, tmp_path: Path) -> None:
    check(paimon_engine, spark, tmp_path, SEED, PREDICATES, PREDICATES // 25)
