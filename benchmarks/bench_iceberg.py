"""Iceberg tables: purge, DELETE, looks and vacuums, against Iceberg's own procedures in Spark and against pyiceberg.

    python benchmarks/bench_iceberg.py [purge | delete | look | expire ...] [--rows 20000000] [--files 100000]

Both sides of a case work on equal tables, one after the other; those in Spark in one session on two cores, after a
warm-up on a small table. Prints seconds of wall time, and ours as a share of theirs.

purge    30 % of the rows of 8 files, deleted at random: purge, in this process and on Spark, against
         rewrite_data_files (rewrite-all).
delete   one row of a table of half as many rows: DELETE in this process and in the session, against Spark's.
look     the first snapshot of a table with so many files, 50 in a manifest, against the plan of pyiceberg's scan; and
         the one after ten commits.
expire   ten snapshots that each replaced all files, twice as many files in all as given, and a tenth as many orphans:
         expire and orphans in one vacuum, against expire_snapshots and remove_orphan_files.
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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bench_dml import people
from peers.sessions import ROOT
from peers.work import CORES

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.spark.engine import SparkEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

COLUMNS = {
    "id": "long",
    "first": "string",
    "middle": "string",
    "last": "string",
    "gender": "string",
    "born": "date",
    "ssn": "long",
    "salary": "int",
}
FILES, PER_MANIFEST, SNAPSHOTS = 8, 50, 10
WARM_UP = 20_000


@contextmanager
def session(warehouse: Path, slots: int = CORES) -> Iterator[Any]:
    """Spark with Iceberg's runtime; tables of its catalog ``ice`` are folders of the warehouse."""
    from pyspark.sql import SparkSession

    jars = sorted((ROOT / ".cache" / "jars").glob("iceberg-*/iceberg-spark-runtime-*.jar"))
    if not jars:
        raise SystemExit("Iceberg's runtime is missing: run 'make judges'")
    settings = {
        "spark.jars": str(jars[-1]),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(warehouse),
        "spark.sql.catalog.ice.cache-enabled": "false",
        "spark.driver.memory": "6g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{slots}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def timed(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def said(what: str, ours: float, theirs: float) -> None:
    print(f"{what}: {ours:.2f} s against {theirs:.2f} s: {ours / theirs:.2f}", flush=True)


def built(place: Path, rows: int, *, files: int = FILES, deleted: bool = True) -> str:
    builder = IcebergBuilder(place)
    modes = {f"write.{verb}.mode": "merge-on-read" for verb in ("delete", "update", "merge")}
    builder.create(COLUMNS, properties=modes)
    for at in range(files):
        table = people(rows // files)
        builder.append(table.set_column(0, "id", pc.add(table["id"], at * (rows // files))))
    if deleted:
        rng = np.random.default_rng(1)
        builder.delete(lambda batch: pa.array(rng.random(batch.num_rows) < 0.3))
    return str(place)


def bench_purge(warehouse: Path, rows: int) -> None:
    with session(warehouse) as spark:

        def theirs(name: str) -> None:
            options = "map('rewrite-all', 'true')"
            spark.sql(f"CALL ice.system.rewrite_data_files(table => 'db.{name}', options => {options})").collect()

        for size in (WARM_UP, rows):
            here, there, peer = (built(warehouse / "db" / f"{name}{size}", size) for name in ("here", "there", "peer"))
            ours = timed(purge, open_table(here), LocalEngine(CORES))
            on_spark = timed(purge, open_table(there), SparkEngine(spark))
            procedure = timed(theirs, Path(peer).name)
        said(f"purge, {rows:,} rows, in this process", ours, procedure)
        said(f"purge, {rows:,} rows, on Spark", on_spark, procedure)


def bench_delete(warehouse: Path, rows: int) -> None:
    from dv_maintenance.dml.delete import delete

    with session(warehouse) as spark:
        for size in (WARM_UP, rows):
            names = [f"{name}{size}" for name in ("one", "two", "three")]
            one, two, three = (built(warehouse / "db" / name, size, files=1, deleted=False) for name in names)
            condition = f"id = {size // 3}"
            ours = timed(delete, open_table(one), LocalEngine(CORES), condition)
            on_spark = timed(delete, open_table(two), spark, condition)
            theirs = timed(spark.sql, f"DELETE FROM ice.db.{Path(three).name} WHERE {condition}")
        said(f"one row of {rows:,} deleted, in this process", ours, theirs)
        said(f"one row of {rows:,} deleted, in the session", on_spark, theirs)


def nothing(builder: IcebergBuilder, files: int, prefix: str) -> list[dict[str, Any]]:
    """Entries of files that nobody reads."""
    file = {"134": 0, "101": "PARQUET", "103": 100, "104": 10_000, "102": {}}
    return [{**file, "100": f"{builder.location}/data/{prefix}-{at:09}.parquet"} for at in range(files)]


def bench_look(warehouse: Path, files: int) -> None:
    from pyiceberg.table import StaticTable

    place = warehouse / "db" / "look"
    builder = IcebergBuilder(place)
    builder.create({"id": "long"})
    builder.commit("append", added=nothing(builder, files, "a"), per_manifest=PER_MANIFEST)
    newest = next(place.glob("metadata/v3.metadata.json"))
    first = min(timed(lambda: open_table(str(place)).snapshot()) for _ in range(3))
    scan = StaticTable.from_metadata(str(newest)).scan()
    theirs = min(timed(lambda: sum(1 for _ in scan.plan_files())) for _ in range(2))
    said(f"first look at {files:,} files in {files // PER_MANIFEST:,} manifests, against plan_files", first, theirs)
    table = open_table(str(place))
    kept = table.snapshot()
    for number in range(10):
        builder.commit("append", added=nothing(builder, 1, f"b{number}"))
    again = timed(lambda: table.advanced(kept, table.version()))  # type: ignore[attr-defined]
    said("look after ten commits, against the first", again, first)


def bench_expire(warehouse: Path, files: int) -> None:
    def made(name: str, files: int) -> str:
        place = warehouse / "db" / name
        builder = IcebergBuilder(place)
        builder.create({"id": "long"})
        each, before = 2 * files // SNAPSHOTS, frozenset[str]()
        then = time.time() - 30 * 86_400
        for number in range(SNAPSHOTS):
            entries = nothing(builder, each, f"s{number}")
            builder.commit("overwrite", added=entries, removed=before, per_manifest=10_000)
            before = frozenset(entry["100"] for entry in entries)
            names = [*before, *(f"{place}/data/orphan-{number}-{at}.parquet" for at in range(each // 10))]
            (place / "data").mkdir(exist_ok=True)
            for path in names:
                with open(path, "wb") as file:
                    file.write(b"PAR1")
                os.utime(path, (then, then))
        return str(place)

    def ours(place: str) -> None:
        guard = VacuumGuard(max_deleted_share=1.0)
        now = int(time.time() * 1000) + 1000
        request = VacuumRequest(retention=0, allow_short_retention=True, guard=guard, now=now)
        open_table(place).vacuum(request)

    with session(warehouse) as spark:

        def theirs(name: str) -> None:
            expire = f"CALL ice.system.expire_snapshots(table => 'db.{name}', older_than => now(), retain_last => 1)"
            spark.sql(expire).collect()
            spark.sql(f"CALL ice.system.remove_orphan_files(table => 'db.{name}')").collect()

        for size in (1000, files):
            here, peer = made(f"here{size}", size), made(f"peer{size}", size)
            mine = timed(ours, here)
            procedures = timed(theirs, Path(peer).name)
            left = [sum(1 for _ in Path(each, "data").glob("*.parquet")) for each in (here, peer)]
            assert left[0] == left[1], left
        said(f"expire and orphans over {2 * files:,} files", mine, procedures)


def main() -> None:
    cases = {"purge": bench_purge, "delete": bench_delete, "look": bench_look, "expire": bench_expire}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *cases])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--files", type=int, default=100_000)
    options = parser.parse_args()
    sizes = {"purge": options.rows, "delete": options.rows // 2, "look": options.files, "expire": options.files}
    for name in options.cases or cases:
        place = Path(tempfile.mkdtemp(prefix="bench-iceberg-"))
        try:
            cases[name](place, sizes[name])
        finally:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
