"""DELETE with deletion vectors (DVs) against copy-on-write, by us and by delta-spark.

    python benchmarks/bench_dml.py [one-row | sweep | files ...] [--rows 10000000] [--sweep-rows 2000000]

All contenders work in one Spark session on two cores, each on a copy of the same table, after a warm-up on a small one.
Wall time is that of the statement, commit included, the best of several; CPU that of all processes. "rewrite" is what
copy-on-write comes to with our engine: a delete, and the purge of what it left.

one-row  one row of a single large file, as in "Delta Lake: Deletion Vectors" (10 million rows, about 236 MB).
sweep    from 0.001 % to 50 % of the rows, spread over one file: seconds to delete, seconds to read what is left (all
         columns, our reader), and after how many reads the DV has cost as much as the rewrite would have.
files    files written by a DELETE of 5 % of the rows in each of 100 files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).parent.parent
JARS = ROOT / ".cache" / "jars" / "delta-4.4.0"
CORES = 2
SHARES = (0.00001, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
WANTED_RATIO = 10
FILES, FILE_ROWS = 100, 10_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("first", pa.string()),
        ("middle", pa.string()),
        ("last", pa.string()),
        ("gender", pa.string()),
        ("born", pa.date32()),
        ("ssn", pa.int64()),
        ("salary", pa.int32()),
    ]
)

Delete = Callable[[Path, str], None]


# -- tables --------------------------------------------------------------------------------------------------------


def people(rows: int) -> pa.Table:
    rng = np.random.default_rng(7)
    names = pa.array([f"Name{number:06}" for number in range(100_000)])
    return pa.table(
        {
            "id": np.arange(rows),
            "first": names.take(pa.array(rng.integers(0, 100_000, rows))),
            "middle": names.take(pa.array(rng.integers(0, 100_000, rows))),
            "last": names.take(pa.array(rng.integers(0, 100_000, rows))),
            "gender": pa.array(["M", "F"]).take(pa.array(rng.integers(0, 2, rows))),
            "born": pa.array(rng.integers(-7_300, 11_000, rows), pa.int32()).cast(pa.date32()),
            "ssn": rng.integers(0, 10**9, rows),
            "salary": pa.array(rng.integers(20_000, 120_000, rows), pa.int32()),
        },
        schema=SCHEMA,
    )


def build(place: Path, rows: int, files: int = 1) -> Path:
    from dv_maintenance.testing.delta_builder import DeltaBuilder

    properties = {"delta.enableDeletionVectors": "true"}
    DeltaBuilder(str(place)).create(SCHEMA, properties=properties).append(people(rows), files=files)
    return place


def copy(table: Path, target: Path) -> Path:
    """Data files are shared, as nobody changes them; the log is not."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for file in table.glob("*.parquet"):
        os.link(file, target / file.name)
    shutil.copytree(table / "_delta_log", target / "_delta_log")
    return target


def written(table: Path, before: set[str]) -> tuple[int, int]:
    """Files beside the log that are new, and their bytes."""
    new = [file for file in table.iterdir() if file.is_file() and file.name not in before and file.name[0] != "."]
    return len(new), sum(file.stat().st_size for file in new)


# -- contenders ----------------------------------------------------------------------------------------------------


def session() -> Any:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(map(str, sorted(JARS.glob("*.jar")))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.databricks.delta.snapshotPartitions": str(CORES),
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"local[{CORES}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def contenders(spark: Any) -> dict[str, Delete]:
    from dv_maintenance.dml.delete import delete
    from dv_maintenance.engine.spark.engine import SparkEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    def ours(table: Path, condition: str) -> None:
        delete(open_table(str(table)), spark, condition)

    def rewrite(table: Path, condition: str) -> None:
        ours(table, condition)
        purge(open_table(str(table)), SparkEngine(spark))

    def delta_spark(table: Path, condition: str) -> None:
        spark.sql(f"DELETE FROM delta.`{table}` WHERE {condition}").collect()

    def delta_spark_copies(table: Path, condition: str) -> None:
        setting = "spark.databricks.delta.delete.deletionVectors.persistent"
        spark.conf.set(setting, "false")
        try:
            delta_spark(table, condition)
        finally:
            spark.conf.unset(setting)

    return {
        "ours, DV": ours,
        "ours, rewrite": rewrite,
        "delta-spark, DV": delta_spark,
        "delta-spark, copy": delta_spark_copies,
    }


@dataclass(frozen=True)
class Cost:
    """``seconds`` and ``cpu`` seconds of a statement; ``files`` and ``size`` of what it wrote beside the log."""

    seconds: float
    cpu: float
    files: int
    size: int


def best(delete: Delete, table: Path, target: Path, condition: str, repeat: int) -> Cost:
    """The least of ``repeat``; ``target`` is left as the delete left it."""
    costs = []
    for _ in range(repeat):
        copy(table, target)
        before = {file.name for file in target.iterdir()}
        cpu = cpu_seconds()
        seconds = timed(lambda: delete(target, condition))
        costs.append(Cost(seconds, cpu_seconds() - cpu, *written(target, before)))
    return Cost(min(cost.seconds for cost in costs), min(cost.cpu for cost in costs), costs[-1].files, costs[-1].size)


def cpu_seconds() -> float:
    """Of this process and all its descendants, the JVM and Spark's workers, from /proc."""
    stats: dict[int, list[str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # gone meanwhile
            stats[int(pid)] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    family = {os.getpid()}
    while grown := {pid for pid, stat in stats.items() if int(stat[1]) in family} - family:
        family |= grown
    # utime, stime, and both of children that have ended (proc(5)).
    ticks = sum(int(each) for pid in family for each in stats[pid][11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def read_seconds(table: Path) -> float:
    from dv_maintenance.maintenance.read import read
    from dv_maintenance.tables import open_table

    def scan() -> None:
        for _ in read(open_table(str(table)))[1]:
            pass

    return min(timed(scan) for _ in range(3))


def pays_for(saved: float, lost: float) -> str:
    """``saved`` seconds once, against ``lost`` seconds by each read."""
    if saved <= 0:
        return "no reads"
    return f"{saved / lost:.0f} reads" if lost > 0 else "any reads"


# -- what is measured ----------------------------------------------------------------------------------------------


def one_row(folder: Path, deletes: dict[str, Delete], rows: int, repeat: int) -> None:
    table = build(folder / "one", rows)
    size = sum(file.stat().st_size for file in table.glob("*.parquet"))
    print(f"\none row of {rows:,} in a single file of {size / 1e6:.0f} MB")
    print(f"{'':20}{'s':>8}{'CPU s':>8}{'MB written':>12}{'files':>7}")
    costs = {}
    for name, delete in deletes.items():
        cost = costs[name] = best(delete, table, folder / "copy", f"id = {rows // 2}", repeat)
        print(f"{name:20}{cost.seconds:8.2f}{cost.cpu:8.2f}{cost.size / 1e6:12.2f}{cost.files:7}", flush=True)
    dv = costs["ours, DV"]
    for name in ("ours, rewrite", "delta-spark, copy"):
        ratio, cpu = costs[name].seconds / dv.seconds, costs[name].cpu / dv.cpu
        verdict = "at least" if ratio >= WANTED_RATIO else "BELOW"
        print(f"{name} / ours, DV: {ratio:.1f}, CPU {cpu:.1f} ({verdict} {WANTED_RATIO})")
    copied, theirs = costs["delta-spark, copy"], costs["delta-spark, DV"]
    print(
        f"delta-spark, copy / delta-spark, DV: {copied.seconds / theirs.seconds:.1f}, CPU {copied.cpu / theirs.cpu:.1f}"
    )
    shutil.rmtree(table)


def sweep(folder: Path, deletes: dict[str, Delete], rows: int, repeat: int) -> None:
    table = build(folder / "sweep", rows)
    size = sum(file.stat().st_size for file in table.glob("*.parquet"))
    print(f"\na share of {rows:,} rows in a single file of {size / 1e6:.0f} MB")
    print(
        f"{'deleted':>9}{'DV: delete s':>14}{'read s':>8}{'DV kB':>8}{'rewrite: s':>12}{'read s':>8}{'copy: s':>9}",
        end="",
    )
    print(f"{'  DV pays for':>13}")
    for share in SHARES:
        condition, target = f"pmod(xxhash64(id), 100000) < {round(share * 100_000)}", folder / "copy"
        dv = best(deletes["ours, DV"], table, target, condition, repeat)
        dv_read = read_seconds(target)
        rewrite = best(deletes["ours, rewrite"], table, target, condition, repeat)
        rewritten_read = read_seconds(target)
        copied = best(deletes["delta-spark, copy"], table, target, condition, repeat)
        reads = pays_for(rewrite.seconds - dv.seconds, dv_read - rewritten_read)
        print(f"{share:9.3%}{dv.seconds:14.2f}{dv_read:8.2f}{dv.size / 1e3:8.1f}", end="")
        print(f"{rewrite.seconds:12.2f}{rewritten_read:8.2f}", end="")
        print(f"{copied.seconds:9.2f}{reads:>13}", flush=True)
    shutil.rmtree(table)


def files(folder: Path, deletes: dict[str, Delete], repeat: int) -> None:
    table = build(folder / "many", FILES * FILE_ROWS, FILES)
    print(f"\nfiles written by a DELETE of 5 % of the rows in each of {FILES} files")
    counts = {}
    for name in ("ours, DV", "delta-spark, DV", "delta-spark, copy"):
        condition = "pmod(xxhash64(id), 100) < 5"
        cost = best(deletes[name], table, folder / "copy", condition, repeat)
        counts[name] = cost.files
        print(f"{name:20}{cost.files:5} files {cost.size / 1e6:8.2f} MB {cost.seconds:8.2f} s", flush=True)
    verdict = "not above" if counts["ours, DV"] <= counts["delta-spark, copy"] else "ABOVE"
    print(f"ours {verdict} the rewrite's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="one-row, sweep, files (default: all)")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--sweep-rows", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    if not any(JARS.glob("*.jar")):
        raise SystemExit("delta-spark is missing: run 'make judges'")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session()
    deletes = contenders(spark)
    with tempfile.TemporaryDirectory(prefix="bench-dml-") as name:
        folder = Path(name)
        small = build(folder / "small", 10_000)
        for delete in deletes.values():
            delete(copy(small, folder / "copy"), "id = 17")
        parts = {
            "one-row": lambda: one_row(folder, deletes, args.rows, args.repeat),
            "sweep": lambda: sweep(folder, deletes, args.sweep_rows, args.repeat),
            "files": lambda: files(folder, deletes, args.repeat),
        }
        for part in args.parts or parts:
            parts[part]()
    spark.stop()


if __name__ == "__main__":
    main()
