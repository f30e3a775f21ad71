"""Random conditions and assignments in sessions of random settings mean here what they mean to delta-spark.

Most conditions are put to both in batches: a query that returns for each row which conditions it fulfils, over
delta-spark's table and over the rows as DELETE, UPDATE and MERGE get them; and for each of them the files and row
groups that are left out here hold no such row. Every so often the operation itself is run on a twin.

``DVM_PREDICATES``: how many conditions the deep form takes, other ones each time unless ``DVM_SEED`` says which.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random, randrange
from typing import TYPE_CHECKING, Any, Final

import pytest
from support.predicate_judging import Count, Judged, session_with
from support.random_sql import COLUMNS, FILES, NESTED, PARTITIONED, ROWS, assignment, condition, rows_of_file, settings
from support.sessions import cheap
from support.twins import Twins

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREDICATES: Final = int(os.environ.get("DVM_PREDICATES", "1000"))
SEED: Final = int(os.environ.get("DVM_SEED", randrange(1 << 30)))
BATCH: Final = 50
SCHEMA: Final = ", ".join(
    ["id INT", *(f"{each.name} {each.type}" for each in COLUMNS), *(f"{name} {kind}" for name, kind, _ in NESTED)]
)
# As text: Python has no values for the first and the last times.
EVERYTHING: Final = "concat_ws('|', CAST(struct(*) AS STRING), hex(x), hex(c), hex(v))"
UTC_VALUES: Final = "spark.databricks.delta.write.utcTimestampPartitionValues"


def make(spark: SparkSession, place: Path, random: Random, partitioned: bool, rows: int) -> Path:
    by = f"PARTITIONED BY ({', '.join(PARTITIONED)})" if partitioned else ""
    dvs = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    spark = cheap(spark)
    spark.sql(f"CREATE TABLE delta.`{place}` ({SCHEMA}) USING delta {by} {dvs}")
    files = [rows_of_file(random, number, rows) for number in range(FILES)]
    # Some values of partitions are texts without a zone, of whichever session.
    for in_utc, rows in (("true", files[::2]), ("false", files[1::2])):
        with session_with(spark, {UTC_VALUES: in_utc}):
            spark.sql(f"INSERT INTO delta.`{place}` {' UNION ALL '.join(f'({each})' for each in rows)}")
    spark.sql(f"DELETE FROM delta.`{place}` WHERE id % 7 = 3")
    return place


def operate(twins: Twins, random: Random, count: Count, label: str) -> None:
    """One DELETE, UPDATE or MERGE on both twins."""
    sql = condition(random)
    sets = dict(assignment(random) for _ in range(2))
    clause = ", ".join(f"{name} = {value}" for name, value in sets.items())
    kind = random.choice(("DELETE", "UPDATE", "UPDATE", "MERGE"))
    ours, spark = twins.table, twins.spark
    before = ours.version()
    if kind == "DELETE":
        statement = f"DELETE FROM {{t}} WHERE {sql}"
        run: Callable[[], Any] = partial(delete, ours, spark, sql)
    elif kind == "UPDATE":
        statement = f"UPDATE {{t}} SET {clause} WHERE {sql}"
        run = partial(update, ours, spark, sets, sql)
    else:
        source = "SELECT id AS key, CAST(id AS STRING) AS word, 'ab' AS short FROM range(0, 60, 2)"
        on = random.choice(("t.id = s.key", "t.id = s.key AND t.num > 0", "t.c = s.short AND t.id = s.key"))
        statement = f"MERGE INTO {{t}} t USING ({source}) s ON {on} WHEN MATCHED THEN UPDATE SET {clause}"
        begun = merge(ours, spark, source, on, target_alias="t", source_alias="s")
        run = begun.when_matched_update(sets).execute
    count.operations += 1
    count.see(kind, statement)
    problem = refused = None
    try:
        run()
    except DvMaintenanceError as error:
        problem, refused = str(error), isinstance(error, RefusedError) and "breaks" not in str(error)
    theirs = error_of(twins, statement)
    count.refused += bool(refused)
    count.failed += problem is not None and not refused
    wrong = None
    if (problem is None) != (theirs is None):
        wrong = None if refused else f"{label}: {statement}: {theirs} there, {problem} here"
    elif problem is None:
        rows = [set(contents(spark, place).values()) for place in (twins.theirs, twins.ours)]
        if rows[0] != rows[1]:
            wrong = f"{label}: {statement}: {sorted(rows[0] ^ rows[1])[:2]}"
    if wrong is None:
        return
    # Its MERGE cannot compare a CHAR column with the source's text.
    unplanned = theirs is not None and "DELTA_MERGE_RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT" in theirs
    alone = unplanned or (problem is None and kind != "MERGE" and as_select_finds(twins, before, sql, kind))
    (count.theirs_alone if alone else count.differences).append(wrong)


def error_of(twins: Twins, statement: str) -> str | None:
    """Of a statement on delta-spark's twin."""
    try:
        twins.sql(statement.replace("{", "{{").replace("}", "}}").replace("{{t}}", "{t}"))
    except Exception as error:  # noqa: BLE001 - of Py4J and PySpark, of many kinds
        # PySpark cannot render delta-spark's error classes.
        origin = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
        return (origin.toString() if origin else str(error)).splitlines()[0][:300]
    return None


def contents(spark: SparkSession, place: Path, version: int | None = None) -> dict[int, str]:
    """A table's rows by their ids."""
    reader = spark.read.format("delta")
    rows = (reader if version is None else reader.option("versionAsOf", version)).load(str(place))
    return {row["id"]: row[1] for row in rows.selectExpr("id", EVERYTHING).collect()}


def as_select_finds(twins: Twins, before: int, sql: str, kind: str) -> bool:
    """Whether ours deleted, or changed at most, the rows that fulfil a condition if Spark asks each of them."""
    from pyspark.errors import PySparkException

    whole = twins.spark.read.format("delta").option("versionAsOf", before).load(str(twins.ours)).localCheckpoint()
    try:
        found = {row[0] for row in whole.where(sql).select("id").collect()}
    except PySparkException:
        return False
    was, now = (contents(twins.spark, twins.ours, version) for version in (before, None))
    changed = {number for number in was if was[number] != now.get(number)}
    return changed == found if kind == "DELETE" else changed <= found and was.keys() == now.keys()


def judge(
    spark: SparkSession,
    folder: Path,
    seed: int,
    predicates: int,
    operations: int,
    partitioned: Sequence[bool],
    rows: int = ROWS,
) -> Count:
    """``partitioned``: a table each; ``rows`` of each of its files, nearly all in partitions of their own."""
    count = Count()
    random = Random(seed)
    tables = [make(spark, folder / f"t{number}", random, each, rows) for number, each in enumerate(partitioned)]
    batch = min(BATCH, max(1, predicates // 2))
    for number in range(0, predicates, batch):
        wanted = settings(random)
        with session_with(spark, wanted):
            place = tables[number // batch % len(tables)]
            rows = partial(spark.read.format("delta").load, str(place))
            conditions = [condition(random) for _ in range(batch)]
            Judged(spark, DeltaTable(Storage(str(place))), rows, count).check(conditions, f"{wanted}")
    for number in range(operations):
        wanted = settings(random)
        twins = Twins.of(spark, tables[number % len(tables)], folder / f"twins{number}")
        with session_with(spark, wanted):
            operate(twins, random, count, f"{wanted}")
    return count


def test_some_conditions(delta_spark: SparkSession, tmp_path: Path) -> None:
    judge(delta_spark, tmp_path, 15, 8, 1, [True], rows=3).check(15)


@pytest.mark.deep
def test_many_conditions(delta_spark: SparkSession, tmp_path: Path) -> None:
    judge(delta_spark, tmp_path, SEED, PREDICATES, PREDICATES // 25, [False, True]).check(SEED)
