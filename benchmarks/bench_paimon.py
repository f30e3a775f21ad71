"""Purge of a Paimon append table against Paimon's own compaction, for each format of data files.

    python benchmarks/bench_paimon.py [--rows 2000000] [--rounds 3]

Files of about 16 MB with 30 % of their rows deleted at random. Each round purges a fresh copy by each contender, in
turn from either end; the least of each counts. Ours runs in this process, on as many threads as there are cores;
Paimon's compaction, of its engine in Java in the JVM of a warm Spark session, on one: compare CPU. ``not read back``:
ours without reading each new ORC file again before it is committed, which is what that costs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROOT = Path(__file__).parent.parent
JAR = ROOT / ".cache" / "jars" / "paimon-1.4.2" / "paimon-bundle-1.4.2.jar"
FORMATS = ("parquet", "orc")
FILES = 16
EVERY_DV = {"compaction.delete-ratio-threshold": "0", "compaction.min.file-num": "2"}
COLUMNS = {"id": "BIGINT", "count": "BIGINT", "value": "DOUBLE", "name": "STRING", "at": "TIMESTAMP(6)"}

sys.path.insert(0, str(ROOT / "tests"))


def build(place: Path, kind: str, rows: int, spark: Any) -> None:
    """Files of the format ``kind``, as a purge writes them, with a DV each."""
    from dv_maintenance.dml.delete import delete
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table
    from dv_maintenance.testing.paimon_builder import PaimonBuilder

    builder = PaimonBuilder(place)
    builder.create(COLUMNS, options={"file.format": kind, "target-file-size": "16 mb"})
    rng = np.random.default_rng(7)
    for number in range(FILES):
        builder.append(some(rng, number * (rows // FILES), rows // FILES))
    table = open_table(str(place))
    delete(table, spark, "id % 1000 = 7")
    purge(table, LocalEngine())
    delete(table, spark, "pmod(hash(id), 10) < 3")


def some(rng: np.random.Generator, first: int, count: int) -> pa.Table:
    noise = pa.array(rng.integers(0, 10**12, count)).cast(pa.string())
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "count": rng.integers(0, 2**40, count),
            "value": rng.normal(size=count),
            "name": pc.binary_join_element_wise("customer", pc.utf8_lpad(noise, 12, "0"), "-"),
            "at": pa.array(rng.integers(1_700_000_000_000_000, 1_760_000_000_000_000, count)).cast(pa.timestamp("us")),
        }
    )


# -- contenders ---------------------------------------------------------------------------------------------------


def ours(place: Path) -> None:
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    report = purge(open_table(str(place)), LocalEngine(threads=os.cpu_count() or 1))
    if not report.verified or not report.steps:
        raise AssertionError(report)


def not_read_back(place: Path) -> None:
    from dv_maintenance.engine.writer import RollingWriter

    with patch.object(RollingWriter, "_new_sums", lambda _: None):
        ours(place)


# -- measuring ----------------------------------------------------------------------------------------------------


def cpu(pid: int) -> float:
    """Seconds of a process so far, on all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _shared(source: str, target: str) -> None:
    """Hints are rewritten in place."""
    (os.link if "/bucket-" in source else shutil.copy)(source, target)


def timed(run: Callable[[Path], None], table: Path, pid: int) -> tuple[float, float]:
    """Wall and CPU seconds, on a copy of the table: data shared, since nobody changes it."""
    place = table.with_name("copy")
    shutil.copytree(table, place, copy_function=_shared)
    try:
        started, used = time.perf_counter(), cpu(pid)
        run(place)
        return time.perf_counter() - started, cpu(pid) - used
    finally:
        shutil.rmtree(place)


@contextmanager
def session(home: Path) -> Iterator[tuple[Any, Any, int]]:
    """Spark, Paimon's engine in its JVM, and that process."""
    from paimon_engine import PaimonEngine
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(home))
        .getOrCreate()
    )
    try:
        jvm: Any = spark._jvm  # noqa: SLF001 - where else would its process be
        yield spark, PaimonEngine(spark, JAR, home), int(jvm.java.lang.ProcessHandle.current().pid())
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, session(Path(scratch)) as (spark, engine, jvm):

        def paimon(place: Path) -> None:
            if not engine.compact(place, options=EVERY_DV):
                raise AssertionError("nothing was compacted")

        for kind in FORMATS:
            table = Path(scratch) / kind
            build(table, kind, arguments.rows, spark)
            contenders = {"ours": (ours, os.getpid()), "Paimon": (paimon, jvm)}
            if kind != "parquet":
                contenders["not read back"] = (not_read_back, os.getpid())
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
            for number in range(arguments.rounds + 1):
                for name in sorted(contenders, reverse=bool(number % 2)):
                    found[name].append(timed(contenders[name][0], table, contenders[name][1]))
            least = {name: [min(column) for column in zip(*times, strict=True)] for name, times in found.items()}
            size = sum(file.stat().st_size for file in table.glob("bucket-0/*"))
            print(f"\n{kind}, {arguments.rows:,} rows, {size / 1e6:.0f} MB: wall s, CPU s, and CPU to Paimon's")
            for name, (wall, used) in least.items():
                print(f"  {name:16}{wall:8.2f}{used:8.2f}{used / least['Paimon'][1]:8.2f}", flush=True)
            shutil.rmtree(table)


if __name__ == "__main__":
    main()
