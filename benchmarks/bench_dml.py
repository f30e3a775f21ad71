"""DELETE with deletion vectors (DVs) against copy-on-write, by us and by delta-spark.

    python benchmarks/bench_dml.py [sweep | files ...] [--sweep-rows 2000000]

All contenders work in one Spark session on two cores, each on a copy of the same table, after a warm-up on a small one.
Wall time is that of the statement, commit included, the best of several. "rewrite" is what copy-on-write comes to with
our engine: a delete, and the purge of what it left. ``bench_peers.py`` has the DELETE of one row of a large file.

sweep    from 0.001 % to 50 % of the rows, spread over one file: seconds to delete, seconds to read what is left (all
         columns, our reader), and after how many reads the DV has cost as much as the rewrite would have.
files    files written by a DELETE of 5 % of the rows in each of 100 files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from peers.sessions import delta_spark

SHARES = (0.00001, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
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
    """``seconds`` of a statement; ``files`` and ``size`` of what it wrote beside the log."""

    seconds: float
    files: int
    size: int


def best(delete: Delete, table: Path, target: Path, condition: str, repeat: int) -> Cost:
    """The least of ``repeat``; ``target`` is left as the delete left it."""
    costs = []
    for _ in range(repeat):
        copy(table, target)
        before = {file.name for file in target.iterdir()}
        seconds = timed(lambda: delete(target, condition))
        costs.append(Cost(seconds, *written(target, before)))
    return Cost(min(cost.seconds for cost in costs), costs[-1].files, costs[-1].size)


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
    parser.add_argument("parts", nargs="*", metavar="PART", help="sweep, files (default: both)")
    parser.add_argument("--sweep-rows", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    with delta_spark() as spark, tempfile.TemporaryDirectory(prefix="bench-dml-") as name:
        deletes = contenders(spark)
        folder = Path(name)
        small = build(folder / "small", 10_000)
        for delete in deletes.values():
            delete(copy(small, folder / "copy"), "id = 17")
        parts = {
            "sweep": lambda: sweep(folder, deletes, args.sweep_rows, args.repeat),
            "files": lambda: files(folder, deletes, args.repeat),
        }
        for part in args.parts or parts:
            parts[part]()


if __name__ == "__main__":
    main()
