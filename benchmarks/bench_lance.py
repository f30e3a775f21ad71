"""Purge of a Lance table through Spark against Lance's own ``compact_files`` in one process; and on a cluster.

    python benchmarks/bench_lance.py [--rounds 5] [--cluster]

Two tables of ten fragments with 30 % of the rows deleted: a large one of 10M rows and a small one of 1M. Each round
purges a fresh copy of either by each contender, in turn from either end; the least wall time of each counts. The Spark
session is there before, and its Python workers are warm. ``compact_files`` runs with one thread and with as many as
there are cores; ratios are to the faster of the two. ``--cluster`` starts a standalone master and two workers of one
core each on the loopback, and purges the large table there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

LIMIT = 1.6
FRAGMENTS = 10
SIZES = {"large": 10_000_000, "small": 1_000_000}


def build(place: Path, rows: int) -> None:
    """Six columns; 30 % of the rows of each fragment deleted, at random."""
    rng = np.random.default_rng(7)
    per_fragment = rows // FRAGMENTS
    for number in range(FRAGMENTS):
        data = pa.table(
            {
                "id": np.arange(number * per_fragment, (number + 1) * per_fragment),
                "count": rng.integers(0, 2**40, per_fragment),
                "value": rng.normal(size=per_fragment),
                "name": [f"customer-{n:012}" for n in rng.integers(0, 10**12, per_fragment)],
                "kind": rng.integers(0, 50, per_fragment).astype(np.int32),
                "draw": rng.random(per_fragment).astype(np.float32),
            }
        )
        mode = "append" if number else "create"
        dataset = lance.write_dataset(data, str(place), mode=mode, max_rows_per_file=per_fragment)
    dataset.delete("draw < 0.3")


def by_compact_files(threads: int) -> Callable[[str], None]:
    def run(place: str) -> None:
        lance.dataset(place).optimize.compact_files(num_threads=threads)

    return run


def by_spark(session: Any) -> Callable[[str], None]:
    from dv_maintenance.engine.spark.engine import SparkEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    def run(place: str) -> None:
        report = purge(open_table(place), SparkEngine(session))
        if not report.verified or not report.steps:
            raise AssertionError(report)

    return run


def timed(run: Callable[[str], None], table: Path) -> float:
    """Wall seconds on a copy of the table: data shared, since nobody changes it."""
    place = table.with_name("copy")
    shutil.copytree(table, place, copy_function=os.link)
    try:
        started = time.perf_counter()
        run(str(place))
        return time.perf_counter() - started
    finally:
        shutil.rmtree(place)


def compare(name: str, table: Path, runs: dict[str, Callable[[str], None]], rounds: int) -> bool:
    least = {kind: timed(run, table) for kind, run in runs.items()}
    for number in range(rounds):
        for kind in sorted(runs, reverse=bool(number % 2)):
            least[kind] = min(least[kind], timed(runs[kind], table))
    base = min(seconds for kind, seconds in least.items() if kind.startswith("compact_files"))
    print(f"\n{name}, the least of {rounds + 1}:")
    for kind, seconds in least.items():
        print(f"  {kind:34}{seconds:8.3f} s{seconds / base:8.2f}")
    ours = max(seconds / base for kind, seconds in least.items() if not kind.startswith("compact_files"))
    return ours <= LIMIT


def warm_up(session: Any, workers: int) -> None:
    """Until so many Python workers are there at the same time."""

    def name(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        time.sleep(1)
        yield pa.RecordBatch.from_pylist([{"worker": os.getpid()}])

    tasks = session.range(workers, numPartitions=workers).mapInArrow(name, "worker long")
    while len({row.worker for row in tasks.collect()}) < workers:
        pass


@contextmanager
def cluster() -> Iterator[str]:
    """A standalone master and two workers of one core each, on the loopback. Yields the master's URL."""
    import pyspark

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Path(pyspark.__file__).parent
    master = f"spark://127.0.0.1:{port}"
    launch = [str(home / "bin" / "spark-class")]
    deploy = "org.apache.spark.deploy"
    bound = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [[*launch, f"{deploy}.master.Master", *bound, "--port", str(port)]]
    commands += [[*launch, f"{deploy}.worker.Worker", *bound, "--cores", "1", "--memory", "1g", master]] * 2
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    with tempfile.TemporaryDirectory(prefix="spark-cluster-") as work:
        started = [
            subprocess.Popen(command, env=environment, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for command in commands
        ]
        try:
            yield master
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)


def on_cluster(table: Path, runs: dict[str, Callable[[str], None]], rounds: int) -> bool:
    from dv_maintenance.engine.spark.session import start_session

    with cluster() as master:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.sql.execution.pyspark.python": sys.executable,
        }
        session = start_session(master, settings)
        warm_up(session, workers=2)
        fine = compare(
            "standalone cluster, two workers", table, {**runs, "ours, on the cluster": by_spark(session)}, rounds
        )
        session.stop()
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cluster", action="store_true", help="the large table on a standalone cluster as well")
    parser.add_argument("--only", choices=sorted(SIZES))
    wanted = parser.parse_args()
    from dv_maintenance.engine.spark.session import start_session

    cores = os.cpu_count() or 1
    peers = {f"compact_files, {n} thread{'s'[: n > 1]}": by_compact_files(n) for n in sorted({1, cores})}
    fine = True
    with tempfile.TemporaryDirectory(prefix="bench-lance-") as folder:
        session = start_session(f"local[{cores}]", {})
        warm_up(session, cores)
        for name, rows in SIZES.items():
            if wanted.only in (None, name):
                build(Path(folder, name), rows)
                runs = {**peers, f"ours, Spark local[{cores}]": by_spark(session)}
                fine &= compare(f"{name}, {rows:,} rows", Path(folder, name), runs, wanted.rounds)
        session.stop()
        if wanted.cluster:
            fine &= on_cluster(Path(folder, "large"), peers, wanted.rounds)
    print(f"\nwithin {LIMIT}: {'yes' if fine else 'NO'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
