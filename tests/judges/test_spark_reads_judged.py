"""Queries that real Spark ran, counted from the event logs that it wrote, in every form that it writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dv_maintenance import register
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.reads.spark_events import spark_reads
from dv_maintenance.maintenance.reads.state import SparkReads
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Settings of Spark's event log, by the name of a folder.
FORMS: dict[str, dict[str, str]] = {
    "as Spark does by default": {},
    "one plain file": {"rolling.enabled": "false", "compress": "false"},
    "plain, rolling": {"rolling.enabled": "true", "rolling.maxFileSize": "10m", "compress": "false"},
    "lz4": {"rolling.enabled": "false", "compress": "true", "compression.codec": "lz4"},
    "snappy": {"rolling.enabled": "false", "compress": "true", "compression.codec": "snappy"},
    "zstd": {"rolling.enabled": "false", "compress": "true", "compression.codec": "zstd"},
}


@contextmanager
def logged(spark: SparkSession, folder: Path, *forms: str) -> Iterator[Callable[[], None]]:
    """Event logs of a running session, one in each form; gives what waits until all events are written."""
    context: Any = spark.sparkContext._jsc.sc()
    jvm: Any = spark.sparkContext._jvm
    listeners = []
    for name, settings in ((name, FORMS[name]) for name in forms or FORMS):
        (folder / name).mkdir(parents=True)
        conf = context.getConf()
        for key, value in settings.items():
            conf.set(f"spark.eventLog.{key}", value)
        place = jvm.java.io.File(str(folder / name)).toURI()
        app, none = context.applicationId(), jvm.scala.Option.empty()
        listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
            app, none, place, conf, context.hadoopConfiguration()
        )
        listener.start()
        context.addSparkListener(listener)
        listeners.append(listener)
    try:
        yield lambda: context.listenerBus().waitUntilEmpty()
    finally:
        context.listenerBus().waitUntilEmpty()
        for listener in listeners:
            context.removeSparkListener(listener)
            listener.stop()


def counts(found: SparkReads, table: Path) -> tuple[int, dict[str, int]]:
    reads = found.of(str(table))
    assert reads is not None
    return len(reads.times), {name: len(times) for name, times in reads.by_partition.items()}


def add(to: dict[str, int], *names: str) -> None:
    for name in names:
        to[name] = to.get(name, 0) + 1


@pytest.mark.deep
def test_queries_are_counted_exactly(delta_spark: SparkSession, tmp_path: Path) -> None:
    spark = delta_spark
    register(spark)
    # What Hadoop's paths leave as it is, and URIs encode.
    delta, plain = tmp_path / "my délta%20, [1]", tmp_path / "plain"
    rows = spark.range(60).selectExpr(
        "id",
        "date_add(DATE '2026-01-01', CAST(id % 15 AS INT)) day",
        "CAST(id % 2 AS INT) shop",
        "concat('k ', id % 3) k",
    )
    delta_rows = rows.repartition(1).write.partitionBy("day", "shop").option("delta.enableDeletionVectors", "true")
    logs, state = tmp_path / "logs", str(tmp_path / "state.json")
    whole = {delta: 0, plain: 0}
    parts: dict[Path, dict[str, int]] = {delta: {}, plain: {}}

    with logged(spark, logs) as written:
        delta_rows.format("delta").save(str(delta))
        rows.repartition(1).write.partitionBy("k").parquet(str(plain))

        def query(table: Path) -> DataFrame:
            return spark.read.format("delta" if table == delta else "parquet").load(str(table))

        for adaptive in ("true", "false"):
            spark.conf.set("spark.sql.adaptive.enabled", adaptive)
            for table in (delta, plain):
                query(table).collect()
                query(table).where("id > 3").groupBy("id").count().collect()
                query(table).where("id > (SELECT 1)").collect()
                whole[table] += 3
                # Two scans of one query.
                query(table).alias("a").join(query(table).alias("b"), "id").collect()
                whole[table] += 2
                # The same scan twice: Spark reads once.
                same = query(table).groupBy("id").count()
                same.union(query(table).groupBy("id").count()).collect()
                whole[table] += 1
                # Read once, for the cache.
                cached = query(table).where("id % 2 = 1").cache()
                assert [cached.count(), cached.where("id > 30").count()] == [30, 15]
                cached.unpersist()
                whole[table] += 1
                query(table).explain()
            query(delta).where("day = DATE '2026-01-02'").collect()
            add(parts[delta], "day=2026-01-02")
            query(delta).where("day IN (DATE '2026-01-02', DATE '2026-01-03') AND shop = 1 AND id > 7").collect()
            add(parts[delta], "day=2026-01-02/shop=1", "day=2026-01-03/shop=1")
            days = [f"2026-01-{day:02}" for day in range(1, 13)]
            query(delta).where(f"CAST(day AS STRING) = '2026-01-04' OR day IN ({','.join(map(repr, days))})").collect()
            query(delta).where("day > DATE '2026-01-02'").collect()
            whole[delta] += 2
            query(delta).where(f"day IN ({','.join(f'DATE {day!r}' for day in days)})").collect()
            add(parts[delta], *(f"day={day}" for day in days))
            query(plain).where("k = 'k 1'").collect()
            add(parts[plain], "k=k 1")
        spark.conf.unset("spark.sql.adaptive.enabled")

        # A look while the session runs, and only what is new afterwards.
        written()
        for form in FORMS:
            found = spark_reads(str(logs / form), state=state + form)
            assert found.problems == [], form
            for table in (delta, plain):
                assert counts(found, table) == (whole[table], parts[table]), form

        # The readers of a writer read the table too.
        spark.sql(f"DELETE FROM delta.`{delta}` WHERE id = 3")
        whole[delta] += 1
        # Neither what a stream picks up, nor our own work, nor a source that does not show its table.
        stream = spark.readStream.format("delta").load(str(delta)).writeStream.format("noop")
        stream.option("checkpointLocation", str(tmp_path / "stream")).trigger(
            availableNow=True
        ).start().awaitTermination()
        purged = purge(open_table(str(delta)), engine=SparkEngine(spark))
        assert sum(step.dvs_removed for step in purged.steps) == 1
        assert spark.read.format("dv_delta").load(str(delta)).count() == 59
        # Spark starts a new file.
        spark.sparkContext.setLocalProperty("filler", "x" * (3 << 20))
        for _ in range(3):
            spark.sparkContext.parallelize([1], 1).count()
        spark.sparkContext.setLocalProperty("filler", None)
        query(plain).collect()
        whole[plain] += 1
    assert len(list((logs / "plain, rolling").glob("*/events_*"))) > 1

    for form in FORMS:
        for found in (spark_reads(str(logs / form), state=state + form), spark_reads(str(logs / form))):
            assert found.problems == [], form
            for table in (delta, plain):
                assert counts(found, table) == (whole[table], parts[table]), form
            assert found.unlocated() == {"dv_delta": 1}, form


def test_reads_of_a_session_and_a_merge(delta_spark: SparkSession, tmp_path: Path) -> None:
    spark, table = delta_spark, tmp_path / "target"
    rows = spark.range(10).selectExpr("id", "id % 2 k").write.partitionBy("k")
    rows.format("delta").option("delta.enableDeletionVectors", "true").save(str(table))
    logs = tmp_path / "logs"
    with logged(spark, logs, "as Spark does by default"):
        query = spark.read.format("delta").load(str(table))
        assert (len(query.collect()), len(query.where("k = 1").collect())) == (10, 5)
        merge = (
            "USING (SELECT 3 id) s ON t.id = s.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (1)"
        )
        spark.sql(f"MERGE INTO delta.`{table}` t {merge}")
    whole, parts = counts(spark_reads(str(logs)), table)
    # Delta looks for the matches, and may read the target again to write them.
    assert (whole, parts) == (2, {"k=1": 1})
