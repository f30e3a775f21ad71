"""Purge a Delta table with deletion vectors on every file: ours against deltalake's compact and delta-spark's REORG.

    python benchmarks/bench_rewrite.py [--rows 20000000] [--files 16] [--deleted 0.3]

Every contender gets a copy of the same table and a process of its own on two cores. Wall time is that of the operation,
commit included, with a Spark session started before. CPU is that of all processes from start to end, a JVM's start
included; memory is the peak of all processes together. For ours both are given for the Python workers alone, too: they
do the work. Ratios below 1 say that we need less.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).parent.parent
JARS = ROOT / ".cache" / "jars" / "delta-4.4.0"
CORES = 2
TARGET = 128 << 20
MEMORY_LIMIT = 350 << 20
CONTENDERS = ("ours", "deltalake", "delta-spark")


# -- the table ---------------------------------------------------------------------------------------------------


def build(root: Path, rows: int, files: int, deleted: float) -> None:
    """A Delta table of one commit: ``files`` files, each with a DV of random positions."""
    from dv_maintenance.dv import DeletionVector, delta

    (root / "_delta_log").mkdir(parents=True)
    rng = np.random.default_rng(7)
    per_file = rows // files
    adds, vectors = [], []
    for number in range(files):
        name = f"part-{number:05}.parquet"
        pq.write_table(_rows(rng, number * per_file, per_file), root / name, store_schema=False)
        vectors.append(DeletionVector.from_mask(pa.array(rng.random(per_file) < deleted)))
        stats = {"numRecords": per_file, "tightBounds": False}
        adds.append({"path": name, "partitionValues": {}, "size": (root / name).stat().st_size, "stats": stats})
    descriptors = []
    for packed in delta.pack(vectors):
        (root / packed.path).write_bytes(packed.data)
        descriptors += packed.descriptors
    fields = {"id": "long", "count": "long", "value": "double", "name": "string", "at": "timestamp"}
    schema = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 0, "operation": "WRITE", "operationParameters": {}}},
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"],
            }
        },
        {
            "metaData": {
                "id": "7b8e2f0c-2f57-4f0e-9f0a-0d6f0f3f2a11",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": schema}),
                "partitionColumns": [],
                "configuration": {"delta.enableDeletionVectors": "true", "delta.targetFileSize": str(TARGET)},
                "createdTime": 0,
            }
        },
    ]
    for add, descriptor in zip(adds, descriptors, strict=True):
        stats = json.dumps(add.pop("stats"))
        body = {**add, "modificationTime": 0, "dataChange": True, "stats": stats}
        actions.append({"add": {**body, "deletionVector": descriptor.to_json()}})
    commit = root / "_delta_log" / "00000000000000000000.json"
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


def _rows(rng: np.random.Generator, first: int, count: int) -> pa.Table:
    ids = pa.array(np.arange(first, first + count))
    noise = pa.array(rng.integers(0, 10**12, count)).cast(pa.string())
    return pa.table(
        {
            "id": ids,
            "count": rng.integers(0, 2**40, count),
            "value": rng.normal(size=count),
            "name": pc.binary_join_element_wise("customer", pc.utf8_lpad(noise, 12, "0"), "-"),
            "at": pa.array(rng.integers(1_700_000_000_000_000, 1_760_000_000_000_000, count)).cast(
                pa.timestamp("us", tz="UTC")
            ),
        }
    )


def copy(table: Path, target: Path) -> Path:
    """Files that nobody changes are shared; the log is not."""
    target.mkdir()
    for file in table.iterdir():
        if file.is_file():
            os.link(file, target / file.name)
    shutil.copytree(table / "_delta_log", target / "_delta_log")
    return target


# -- the contenders, each in a process of its own ----------------------------------------------------------------


def run_ours(table: str) -> float:
    from dv_maintenance.engine.spark.engine import SparkEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    with SparkEngine(master=f"local[{CORES}]") as engine:
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


RUNNERS = dict(zip(CONTENDERS, (run_ours, run_deltalake, run_delta_spark), strict=True))


# -- watching them -----------------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """CPU seconds and peak memory of a process and all its descendants, from /proc."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.cpu: dict[int, float] = {}
        self.workers: dict[int, int] = {}
        self.peak = 0
        self._stop_now = threading.Event()

    def run(self) -> None:
        while not self._stop_now.wait(0.05):
            self.sample()

    def finish(self) -> None:
        self._stop_now.set()
        self.join()

    def sample(self) -> None:
        parents = {int(pid): self._parent(pid) for pid in os.listdir("/proc") if pid.isdigit()}
        family = {self.root}
        while grown := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= grown
        resident = 0
        for pid in family:
            try:
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                status = dict(
                    line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
                )
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # gone meanwhile
            self.cpu[pid] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
            resident += _bytes(status.get("VmRSS"))
            # The daemon only forks; its children are the workers.
            if b"pyspark.daemon" in command and parents.get(pid) in self.cpu and self._is_worker(pid, parents):
                self.workers[pid] = _bytes(status.get("VmHWM"))
        self.peak = max(self.peak, resident)

    @staticmethod
    def _is_worker(pid: int, parents: dict[int, int]) -> bool:
        try:
            return b"pyspark.daemon" in Path(f"/proc/{parents[pid]}/cmdline").read_bytes()
        except OSError:
            return False

    @staticmethod
    def _parent(pid: str) -> int:
        try:
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0


def _bytes(kilobytes: str | None) -> int:
    return int(kilobytes.split()[0]) << 10 if kilobytes else 0


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
    parser.add_argument("--run", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--table", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(RUNNERS[args.run](args.table))
        return
    with tempfile.TemporaryDirectory(prefix="bench-rewrite-") as folder:
        table = Path(folder) / "table"
        build(table, args.rows, args.files, args.deleted)
        print(f"{args.rows:,} rows in {args.files} files, {args.deleted:.0%} deleted at random, local[{CORES}]")
        print(f"{'':12}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}{'out MB':>8}")
        results = {}
        for contender in args.only or CONTENDERS:
            if contender == "delta-spark" and not any(JARS.glob("*.jar")):
                print("delta-spark  is missing: run 'make judges'")
                continue
            found = results[contender] = measure(contender, copy(table, Path(folder) / contender))
            megabytes = (found["peak"] >> 20, found["written"] >> 20)
            print(f"{contender:12}{found['wall']:8.1f}{found['cpu']:8.1f}{megabytes[0]:9}{megabytes[1]:8}", flush=True)
        ours = results.get("ours")
        if ours is None:
            return
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
