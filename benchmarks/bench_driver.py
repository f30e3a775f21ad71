"""What does a purge of many small files cost the driver, for each rewrite task?

    python benchmarks/bench_driver.py [--files 10000] [--workers 2]

Starts a Spark cluster on the loopback, so that executors are processes of their own. The table has one small file in
each partition, and so one task for each file. Prints the CPU time of the driver during the purge: of its Python process
with planning, gates and commits, and of its JVM with the scheduler. Goal: 5 ms a task.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import tables

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.spark_cluster import SETTINGS, spark_cluster

os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
TICKS = os.sysconf("SC_CLK_TCK")


def cpu(pid: int) -> float:
    """CPU seconds of a process, without its children."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, stat[11:13])) / TICKS


def process_of_java(session: Any) -> int:
    return int(session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001 - no public name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    from dv_maintenance.engine.spark.engine import SparkEngine
    from dv_maintenance.engine.spark.session import start_session
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        home = Path(folder)
        (home / "cluster").mkdir()
        for name, files in (("warm", 200), ("table", args.files)):
            tables.erased(home / name, files)
        with spark_cluster(home / "cluster", args.workers) as cluster:
            python = {"spark.sql.execution.pyspark.python": sys.executable, "spark.executorEnv.PYTHONPATH": ""}
            session = start_session(cluster.url, SETTINGS | python)
            java = process_of_java(session)
            purge(open_table(str(home / "warm")), SparkEngine(session))
            before, began = (cpu(os.getpid()), cpu(java)), time.perf_counter()
            report = purge(open_table(str(home / "table")), SparkEngine(session))
            wall = time.perf_counter() - began
            ours, scheduler = cpu(os.getpid()) - before[0], cpu(java) - before[1]
            session.stop()
    assert sum(step.rows_purged for step in report.steps) == args.files, report
    each = 1000 / args.files
    print(f"{args.files} tasks, {args.workers} executors of one core: {wall:.1f} s")
    print(f"the driver's CPU for each task: Python {ours * each:.2f} ms, JVM {scheduler * each:.2f} ms")


if __name__ == "__main__":
    main()
