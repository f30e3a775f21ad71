"""Tasks on a real Spark."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dv_maintenance import __version__
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.pool import OutOfTimeError, stopped_at
from dv_maintenance.engine.scan import scan
from dv_maintenance.engine.spark import SparkEngine, bundles, wire, workers
from dv_maintenance.engine.spark import engine as spark_engine
from dv_maintenance.engine.spark.workers import in_workers
from dv_maintenance.errors import DamagedDeletionVectorError, DvMaintenanceError, RefusedError
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import RewriteResult, ScanTask, SourceFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NESTED = pa.struct([("x", pa.int64()), ("l", pa.list_(pa.string()))])
TABLE = pa.table(
    {
        "id": range(1000),
        "s": pa.array([None if i % 7 == 0 else {"x": i, "l": [str(i)] * (i % 3)} for i in range(1000)], NESTED),
        "t": pa.array([dt.datetime(2024, 1, 1) + dt.timedelta(microseconds=i) for i in range(1000)]).cast(
            pa.timestamp("us", tz="UTC")
        ),
    }
)
STATS = (("id",), ("s", "x"), ("s", "l"), ("t",))


def comparable(result: RewriteResult) -> Any:
    """Without what differs from attempt to attempt."""
    outputs = tuple(replace(output, uri="", modified=0) for output in result.outputs)
    return replace(result, outputs=outputs, seconds=0)


def tasks_of(lake: Any, count: int) -> list[Any]:
    source = lake.write(TABLE, row_group_size=300)
    return [
        lake.task(
            [replace(source, dv=lake.dv(range(i, 1000, 3))), source], TABLE.schema, id=f"t{i}", stats_columns=STATS
        )
        for i in range(count)
    ]


def test_spark_and_local_give_the_same(lake: Any, spark: SparkSession) -> None:
    tasks = tasks_of(lake, 5)
    done: list[str] = []
    engine = SparkEngine(spark)
    assert engine.rows_read is None
    on_spark = engine.run(tasks, on_done=lambda result: done.append(result.task_id))
    assert engine.rows_read == sum(result.rows_written for result in on_spark)
    locally = LocalEngine().run(tasks)
    assert list(map(comparable, on_spark)) == list(map(comparable, locally))
    assert sorted(done) == [task.id for task in tasks]
    for one, other in zip(on_spark, locally, strict=True):
        assert lake.read(one.outputs[0].uri).equals(lake.read(other.outputs[0].uri))
    assert SparkEngine(spark).run([]) == []


def test_small_rewrites_travel_together(lake: Any, spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    tasks = tasks_of(lake, 50)
    assert [result.task_id for result in SparkEngine(spark).run(tasks)] == [task.id for task in tasks]
    [job] = set(tracker.getJobIdsForGroup(None)) - before
    [stage] = tracker.getJobInfo(job).stageIds
    assert tracker.getStageInfo(stage).numTasks == 1


def test_more_bundles_than_jobs_are_all_run(lake: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_engine, "_JOBS_IN_FLIGHT", 2)
    monkeypatch.setattr(bundles, "_LEAST", 0)
    tasks = tasks_of(lake, 5)
    assert [result.task_id for result in SparkEngine(spark).run(tasks)] == [task.id for task in tasks]


def test_storage_options_show_up_in_no_plan(lake: Any, spark: SparkSession) -> None:
    worker = in_workers(wire.run_bundles, {"aws_secret_access_key": "hunter2"})
    [task] = tasks_of(lake, 1)
    frame = spark.createDataFrame(wire.specs_of({0: task})).mapInArrow(worker, "outcomes string")
    plan = frame._jdf.queryExecution().toString()
    assert "MapInArrow" in plan
    assert "hunter2" not in plan


def test_an_error_in_a_worker_is_raised_as_what_it_is(lake: Any, spark: SparkSession) -> None:
    good, bad, *_ = tasks_of(lake, 2)
    source = bad.scan.sources[1]
    bad = replace(bad, scan=replace(bad.scan, sources=(replace(source, dv=lake.dv([5000])),)))
    with pytest.raises(DamagedDeletionVectorError, match="position 5000 is beyond the file's 1000 rows") as caught:
        SparkEngine(spark).run([good, bad])
    assert caught.value.file
    assert "Traceback" not in str(caught.value)


def test_an_unforeseen_error_is_one_line_and_fails_its_own_task(lake: Any, spark: SparkSession) -> None:
    tasks = tasks_of(lake, 4)
    alone = lake.write(TABLE, "alone.parquet")
    # A spec that no worker can read.
    tasks[1] = lake.task([alone], TABLE.schema, id="bad", target_bytes="not a number")
    done: list[RewriteResult] = []
    with pytest.raises(DvMaintenanceError, match=r"Spark could not finish the rewrite of .*: TypeError: ") as caught:
        SparkEngine(spark).run(tasks, on_done=done.append)
    assert f"the rewrite of {alone.uri}: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(result.task_id for result in done) == ["t0", "t2", "t3"]
    assert len(lake.outputs()) == 3


def killing(function: Any, *arguments: Any) -> Any:
    """Workers that die of one task, as of a library's fault or a lack of memory."""
    run = in_workers(function, *arguments)

    def dying(batches: Any) -> Any:
        import os

        from dv_maintenance.engine.spark import wire

        rewrite = wire.rewrite_retrying

        def deadly(task: Any, *more: Any) -> Any:
            if task.id == "deadly":
                os._exit(9)
            return rewrite(task, *more)

        wire.rewrite_retrying = deadly
        try:
            yield from run(batches)
        finally:
            wire.rewrite_retrying = rewrite

    return dying


def test_a_task_that_ends_its_worker_takes_no_other_with_it(
    lake: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spark_engine, "in_workers", killing)
    tasks = tasks_of(lake, 3)
    alone = lake.write(TABLE, "alone.parquet")
    deadly = lake.task([alone], TABLE.schema, id="deadly")
    done: list[RewriteResult] = []
    with pytest.raises(DvMaintenanceError) as caught:
        SparkEngine(spark).run([*tasks, deadly], on_done=done.append)
    assert f"the rewrite of {alone.uri}: " in str(caught.value)
    assert "Python worker exited unexpectedly" in str(caught.value)
    assert "They run again, in smaller bundles" in caplog.text
    # Each result once, with the files that it names.
    assert sorted(result.task_id for result in done) == ["t0", "t1", "t2"]
    assert all(lake.path(output.uri).exists() for result in done for output in result.outputs)


def test_workers_with_another_version_are_told_which(
    lake: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "__version__", "7.5.3")
    with pytest.raises(RefusedError, match=f"dv-maintenance {__version__} is installed there, 7.5.3 here"):
        SparkEngine(spark).run(tasks_of(lake, 2))


def test_workers_without_their_python_are_told_what_they_need(lake: Any, spark: SparkSession) -> None:
    setting = "spark.sql.execution.pyspark.python"
    spark.conf.set(setting, "/nowhere/python")
    try:
        with pytest.raises(RefusedError, match='Cannot run program "/nowhere/python"') as caught:
            SparkEngine(spark).run(tasks_of(lake, 1))
    finally:
        spark.conf.unset(setting)
    assert setting in (caught.value.next_step or "")
    assert "\n" not in str(caught.value)


def test_jobs_are_stopped_at_the_end(lake: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A classic session interrupts only what the calling thread tagged: jobs of other threads ran to their end."""

    def asleep(*_: Any) -> Any:
        def run(batches: Any) -> Any:
            time.sleep(120)
            yield from batches

        return run

    monkeypatch.setattr(spark_engine, "in_workers", asleep)
    began = time.monotonic()
    with pytest.raises(OutOfTimeError), stopped_at(began + 2):
        SparkEngine(spark).run(tasks_of(lake, 3))
    assert time.monotonic() - began < 40
    assert lake.outputs() == []


def test_a_session_that_was_given_or_found_is_left_running(lake: Any, spark: SparkSession) -> None:
    for engine in (SparkEngine(spark), SparkEngine()):
        with engine:
            assert engine.session is spark
            assert engine.slots == spark.sparkContext.defaultParallelism
        assert spark.range(3).count() == 3


@pytest.mark.jvm
def test_a_session_of_its_own_is_started_and_stopped(lake: Any, tmp_path: Path) -> None:
    program = """
import gc, json, sys
from dv_maintenance.engine.spark import engine as spark
from dv_maintenance.engine.spark import wire
from dv_maintenance.tables.work import RewriteTask

def watched(batches):
    for batch in wire.run_bundles(batches, {}):
        if "pandas" in sys.modules:
            raise ImportError("the worker has imported pandas")
        if any(place.endswith("pyspark.zip") for place in sys.path) or not gc.get_freeze_count():
            raise ImportError("the worker is not one of our daemon")
        yield batch

task = RewriteTask.from_json(json.load(sys.stdin))
with spark.SparkEngine(master="local[1]") as engine:
    [result] = engine.run([task])
    context = engine.session.sparkContext
    print(result.rows_written, context.pythonExec == sys.executable, context.uiWebUrl, context.master)
    engine.session.createDataFrame(wire.specs_of({0: task})).mapInArrow(watched, "outcomes string").collect()
from pyspark.sql import SparkSession
print(SparkSession.getActiveSession())
"""
    body = json.dumps(tasks_of(lake, 1)[0].to_json())
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program], input=body, capture_output=True, text=True, check=False, cwd=folder
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["1666 True None local[1,3]", "None"]), done.stderr
    # Nothing is left in the user's folder (but by PySpark 4.0.0 itself), and Spark has nothing to complain about.
    assert {each.name for each in folder.iterdir()} <= {"artifacts"}
    assert " ERROR " not in done.stderr
    assert " WARN " not in done.stderr


# -- Spark's own files -------------------------------------------------------------------------------------------


def test_spark_reads_what_is_written(lake: Any, spark: SparkSession) -> None:
    [result] = SparkEngine(spark).run(tasks_of(lake, 1))
    # Hadoop takes a path for what it is; percent signs of a URI are just characters to it.
    frame = spark.read.parquet(str(lake.outputs()[0]))
    assert frame.schema.simpleString() == "struct<id:bigint,s:struct<x:bigint,l:array<string>>,t:timestamp>"
    assert pa.table(frame.toArrow()).to_pylist() == lake.read(result.outputs[0].uri).to_pylist()


@pytest.mark.parametrize("legacy", ["false", "true"])
def test_what_spark_writes_is_read(lake: Any, spark: SparkSession, legacy: str) -> None:
    settings = {
        "spark.sql.parquet.writeLegacyFormat": legacy,
        "spark.sql.parquet.outputTimestampType": "INT96" if legacy == "true" else "TIMESTAMP_MICROS",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    }
    before = {key: spark.conf.get(key) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        spark.sql(
            """SELECT CAST(1 AS BYTE) b, CAST(1.25 AS DECIMAL(5, 2)) small, CAST(-1.25 AS DECIMAL(18, 2)) medium,
            CAST(1.25 AS DECIMAL(30, 2)) large, TIMESTAMP '0001-01-01 00:00:00' first,
            TIMESTAMP '9999-12-31 23:59:59.999999' last, array(1, NULL) l, array(named_struct('x', 1)) ls,
            map('k', array(1)) m, TIMESTAMP_NTZ '2024-01-01 00:00:00' n"""
        ).write.parquet(str(lake.root / "spark"))
    finally:
        for key, value in before.items():
            spark.conf.set(key, str(value))
    [file] = (lake.root / "spark").glob("*.parquet")
    utc = pa.timestamp("us", tz="UTC")
    schema = pa.schema(
        [
            ("b", pa.int16()),
            ("small", pa.decimal128(6, 3)),
            ("medium", pa.decimal128(18, 2)),
            ("large", pa.decimal128(38, 2)),
            ("first", utc),
            ("last", utc),
            ("l", pa.list_(pa.int64())),
            ("ls", pa.list_(pa.struct([("x", pa.int32())]))),
            ("m", pa.map_(pa.string(), pa.list_(pa.int32()))),
            ("n", pa.timestamp("us")),
        ]
    )
    [batch] = scan(ScanTask((SourceFile(FileKey("x"), f"file://{file}", 1, 1),), schema))
    assert batch.to_pylist() == [
        {
            "b": 1,
            "small": Decimal("1.250"),
            "medium": Decimal("-1.25"),
            "large": Decimal("1.25"),
            "first": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
            "last": dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
            "l": [1, None],
            "ls": [{"x": 1}],
            "m": [("k", [1])],
            "n": dt.datetime(2024, 1, 1),
        }
    ]
