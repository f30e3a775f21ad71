"""Purge a Delta table with deletion vectors on every file: ours against deltalake's compact and delta-spark's REORG.

    python benchmarks/bench_rewrite.py [--rows 20000000] [--files 16] [--deleted 0.3] [--workers]

Every contender gets a copy of the same table and a process of its own on two cores. Wall time is that of the operation,
commit included, with a Spark session started before. CPU is that of all processes from start to end, a JVM's start
included; memory is the peak of all processes together. For ours both are given for the Python workers alone, too: they
do the work. ``JVM s`` is its share of the CPU time. Ratios below 1 say that we need less. ``--workers`` also
runs ours with one worker, and says how much faster two are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers.tables import TARGET, at_random, build, copy
from peers.watch import Watch

ROOT = Path(__file__).parent.parent
JARS = ROOT / ".cache" / "jars" / "delta-4.4.0"
CORES = 2
MEMORY_LIMIT = 350 << 20
CONTENDERS = ("ours", "deltalake", "delta-spark")
ONE = "one worker"


# -- the contenders, each in a process of its own ----------------------------------------------------------------


def run_ours(table: str, cores: int = CORES) -> float:
    from dv_maintenance.engine.spark.engine import SparkEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    with SparkEngine(master=f"local[{cores}]") as engine:
        engine.session.range(1).count()
        started = time.perf_counter()
        purge(open_table(table), engine)
        return time.perf_counter() - started


def run_deltalake(table: str) -> float:
    from deltalake import DeltaTable

    started = time.perf_counter()
    DeltaTable(table).optimize.compact(target_size=TARGET, max_concurrent_tasks=CORES)
    return time.perf_counter() - started


def run_delta_spark(table: str) -> float:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(map(str, sorted(JARS.glob("*.jar")))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.optimize.maxFileSize": str(TARGET),
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
    session = builder.getOrCreate()
    session.range(1).count()
    started = time.perf_counter()
    session.sql(f"REORG TABLE delta.`{table}` APPLY (PURGE)").collect()
    seconds = time.perf_counter() - started
    session.stop()
    return seconds


RUNNERS = {
    **dict(zip(CONTENDERS, (run_ours, run_deltalake, run_delta_spark), strict=True)),
    ONE: lambda table: run_ours(table, 1),
}


# -- watching them -----------------------------------------------------------------------------------------------


def measure(contender: str, table: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--run", contender, "--table", str(table)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    watch = Watch(process.pid)
    watch.start()
    out, errors = process.communicate()
    watch.finish()
    if process.returncode:
        raise SystemExit(f"{contender} failed:\n{errors[-3000:]}")
    live = sum(json.loads(line)["add"]["size"] for line in _last_commit(table) if '"add"' in line)
    return {
        "wall": float(out.split()[-1]),
        "cpu": sum(watch.cpu.values()),
        "jvm": sum(watch.cpu[pid] for pid in watch.jvms),
        "peak": watch.peak,
        "workers": sorted(watch.workers.values()),
        "worker_cpu": sum(watch.cpu[pid] for pid in watch.workers),
        "written": live,
    }


def _last_commit(table: Path) -> list[str]:
    return max((table / "_delta_log").glob("*.json")).read_text().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--deleted", type=float, default=0.3, help="share of rows, at random")
    parser.add_argument("--only", choices=CONTENDERS, action="append")
    parser.add_argument("--workers", action="store_true")
    parser.add_argument("--run", choices=(*CONTENDERS, ONE), help=argparse.SUPPRESS)
    parser.add_argument("--table", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(RUNNERS[args.run](args.table))
        return
    with tempfile.TemporaryDirectory(prefix="bench-rewrite-") as folder:
        table = Path(folder) / "table"
        build(table, args.rows, args.files, at_random(args.deleted))
        print(f"{args.rows:,} rows in {args.files} files, {args.deleted:.0%} deleted at random, local[{CORES}]")
        print(f"{'':12}{'wall s':>8}{'CPU s':>8}{'JVM s':>8}{'peak MB':>9}{'out MB':>8}")
        results = {}
        for contender in [*(args.only or CONTENDERS), *([ONE] if args.workers else [])]:
            if contender == "delta-spark" and not any(JARS.glob("*.jar")):
                print("delta-spark  is missing: run 'make judges'")
                continue
            found = results[contender] = measure(contender, copy(table, Path(folder) / contender))
            megabytes = (found["peak"] >> 20, found["written"] >> 20)
            seconds = "".join(f"{found[key]:8.1f}" for key in ("wall", "cpu", "jvm"))
            print(f"{contender:12}{seconds}{megabytes[0]:9}{megabytes[1]:8}", flush=True)
        ours = results.get("ours")
        if ours is None:
            return
        if ONE in results:
            print(f"two workers against one: {results[ONE]['wall'] / ours['wall']:.2f} times as fast")
        for peer in CONTENDERS[1:]:
            if peer in results:
                ratios = (f"{key} {ours[key] / results[peer][key]:.2f}" for key in ("wall", "cpu", "peak"))
                print(f"ours / {peer}: {', '.join(ratios)}")
        for peer in CONTENDERS[1:]:
            if peer in results:
                print(f"CPU of our workers / {peer}: {ours['worker_cpu'] / results[peer]['cpu']:.2f}")
        workers = ", ".join(f"{peak >> 20} MB" for peak in ours["workers"])
        verdict = "within" if max(ours["workers"]) <= MEMORY_LIMIT else "ABOVE"
        print(f"peak memory of our Python workers: {workers} ({verdict} {MEMORY_LIMIT >> 20} MB)")


if __name__ == "__main__":
    main()
