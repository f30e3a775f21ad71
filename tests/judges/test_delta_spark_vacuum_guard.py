"""Vacuums beside what Spark keeps outside of the log: real streams that were stopped, and its own VACUUM."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dv_maintenance.maintenance.undelete import undelete
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.deep


@pytest.mark.parametrize("started", ["in the first state", "after it"])
def test_a_stream_goes_on_after_a_vacuum(delta_spark: SparkSession, tmp_path: Path, started: str) -> None:
    """Batches of one file each; the table is overwritten and vacuumed while the stream is down."""
    source, sink, checkpoint = (str(tmp_path / name) for name in ("source", "sink", "checkpoint"))
    for number in range(3):
        delta_spark.range(10 * number, 10 * number + 10, 1, 1).write.format("delta").mode("append").save(source)
    ids = set(range(30))

    def run(batches: int | None) -> None:
        reader = delta_spark.readStream.format("delta").option("maxFilesPerTrigger", "1")
        writer = reader.option("skipChangeCommits", "true").load(source).writeStream.format("delta")
        writer = writer.option("checkpointLocation", checkpoint)
        if batches is None:
            writer.trigger(availableNow=True).start(sink).awaitTermination()
            return
        query = writer.start(sink)
        until = time.monotonic() + 60
        while len(list(Path(checkpoint, "commits").glob("[0-9]*"))) < batches and time.monotonic() < until:
            time.sleep(0.02)
        query.stop()

    run(1)
    if started == "after it":
        run(None)
        for number in range(3, 6):
            delta_spark.range(10 * number, 10 * number + 10, 1, 1).write.format("delta").mode("append").save(source)
        ids |= set(range(30, 60))
    version = open_table(source).version()
    delta_spark.sql(f"DELETE FROM delta.`{source}`")
    now = time.time_ns() // 1_000_000 + 30 * 86_400_000
    report = vacuum(open_table(source), VacuumRequest(now=now, guard=VacuumGuard(streams=(checkpoint,))))
    assert report.protected
    assert version < report.version_after or not report.deleted
    run(None)
    assert {row.id for row in delta_spark.read.format("delta").load(sink).collect()} == ids
    vacuum(open_table(source), VacuumRequest(now=now))
    assert not list(Path(source).glob("*.parquet")), "without the protection all of it would have gone"


def test_its_vacuum_passes_the_quarantine_by(delta_spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "t")
    delta_spark.range(10).write.format("delta").save(source)
    delta_spark.range(5).write.format("delta").mode("overwrite").save(source)
    now = time.time_ns() // 1_000_000 + 30 * 86_400_000
    report = vacuum(open_table(source), VacuumRequest(now=now, guard=VacuumGuard(quarantine=True)))
    assert report.deleted
    for path in Path(source, "_dvm_quarantine").rglob("*.parquet"):
        os.utime(path, (0, 0))
    delta_spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        delta_spark.sql(f"VACUUM delta.`{source}` RETAIN 0 HOURS")
    finally:
        delta_spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert delta_spark.read.format("delta").load(source).count() == 5
    assert undelete(open_table(source)).files == report.deleted
    assert delta_spark.read.format("delta").option("versionAsOf", 0).load(source).count() == 10
