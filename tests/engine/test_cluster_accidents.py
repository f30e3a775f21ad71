"""What happens to a run on a cluster when its processes die or hang: no row is lost or doubled, and a vacuum finds all
that is left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.spark_cluster import Cluster
from test_cluster import page_config

from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.delta_builder import DeltaBuilder

pytestmark = [pytest.mark.deep, pytest.mark.jvm]

SCHEMA = pa.schema([("day", pa.int32()), ("id", pa.int64()), ("v", pa.float64()), ("text", pa.string())])
ROWS = 1_500_000  # a file takes some seconds
PATIENCE = 180

PURGE = """
import sys
from dv_maintenance.dagster.resources import spark_resource
from dv_maintenance.service import verbs
from dv_maintenance.service.tables_file import WatchConfig

config = WatchConfig.load(sys.argv[1])
resource = spark_resource(config.spark)
outcome = verbs.rewrite(verbs.opened(config.tables[0]), resource.get_engine, verbs.PURGE)
resource.get_engine().close()
assert not outcome.problems, outcome.problems
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Four partitions with a file each."""
    place = tmp_path / "orders"
    builder = DeltaBuilder(str(place)).create(SCHEMA, partition_by=["day"])
    numbers = np.arange(ROWS)
    texts = pa.array(numbers).cast(pa.string())
    builder.append(
        pa.table(
            {
                "day": pa.repeat(pa.scalar(day, pa.int32()), ROWS),
                "id": numbers + day * ROWS,
                "v": numbers * 0.7,
                "text": texts,
            },
            schema=SCHEMA,
        )
        for day in range(4)
    )
    builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 7), 3))
    return place


@contextmanager
def purging(cluster: Cluster, config: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver at work, until it has begun to write."""
    place = config.parent / "orders"
    before = files(place)
    driver = subprocess.Popen(
        [sys.executable, "-c", PURGE, str(config)], stderr=subprocess.PIPE, text=True, env=cluster.environment()
    )
    try:
        awaited(lambda: files(place) - before or driver.poll() is not None)
        assert driver.poll() is None
        yield driver
    finally:
        driver.kill()
        driver.communicate()


def files(place: Path) -> set[str]:
    return {str(each.relative_to(place)) for each in place.rglob("*.parquet") if "_delta_log" not in each.parts}


def awaited(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def finished(driver: subprocess.Popen[str]) -> None:
    _, errors = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, errors[-5000:]


def ids(place: Path) -> list[int]:
    schema, batches = read(open_table(str(place)), columns=["id"])
    found: list[int] = pa.Table.from_batches(batches, schema)["id"].to_pylist()
    return sorted(found)


def left_behind(place: Path) -> set[str]:
    """Files that no version knows; and a vacuum finds them all once they are old."""
    known = set(open_table(str(place)).snapshot().files["path"].to_pylist())
    known |= set(open_table(str(place)).snapshot(2).files["path"].to_pylist())
    orphans = files(place) - known
    for name in orphans:
        os.utime(place / name, (0, 0))
    found = vacuum(open_table(str(place)), VacuumRequest(dry_run=True))
    assert orphans <= set(found.paths), (orphans, found.paths)
    return orphans


def sound(place: Path, expected: list[int]) -> None:
    assert ids(place) == expected
    assert fsck(open_table(str(place))).clean


@pytest.fixture
def expected(table: Path) -> list[int]:
    found = ids(table)
    assert len(found) == len(set(found)) == 4 * ROWS * 7 // 8
    return found


def test_an_executor_is_killed(cluster: Cluster, table: Path, expected: list[int]) -> None:
    with purging(cluster, page_config(cluster, table.parent)) as driver:
        os.kill(cluster.executors()[0], signal.SIGKILL)
        finished(driver)
    sound(table, expected)
    assert health(open_table(str(table)).snapshot()).counts.files_with_dv == 0
    left_behind(table)


def test_a_worker_hangs_and_spark_speculates(cluster: Cluster, table: Path, expected: list[int]) -> None:
    """The copy of a task finishes first. The first attempt is ended, and its file is no one's."""
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.task.duration.threshold": "3s",
    }
    with purging(cluster, page_config(cluster, table.parent, **settings)) as driver:
        # Those of one executor: the other one has to do the work.
        hanging = awaited(lambda: cluster.python_workers(cluster.executors()[0]))
        for pid in hanging:
            os.kill(pid, signal.SIGSTOP)
        try:
            finished(driver)
        finally:
            for pid in hanging:
                with suppress(ProcessLookupError):  # Spark ends the attempt that lost
                    os.kill(pid, signal.SIGCONT)
    sound(table, expected)
    assert health(open_table(str(table)).snapshot()).counts.files_with_dv == 0
    assert left_behind(table)


def test_the_driver_is_killed_and_the_next_run_finishes(cluster: Cluster, table: Path, expected: list[int]) -> None:
    config = page_config(cluster, table.parent)
    with purging(cluster, config) as driver:
        driver.kill()
        awaited(lambda: not cluster.executors() and not cluster.python_workers())
    sound(table, expected)
    assert open_table(str(table)).version() == 2
    assert left_behind(table)
    with purging(cluster, config) as driver:
        finished(driver)
    sound(table, expected)
    assert health(open_table(str(table)).snapshot()).counts.files_with_dv == 0
    assert left_behind(table)
