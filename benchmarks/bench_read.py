"""Reading through deletion vectors (DVs) against reading the same file without: 1, 10 and 50 % deleted, at random and
in a stretch.

    python benchmarks/bench_read.py [--rows 6000000] [--rounds 15] [--spark] [--instructions]

``--spark`` reads the tables by ``spark.read.format("dv_delta")`` into nowhere, one after the other, with the CPU of all
processes, JVM included; the file without DVs is read twice a round, and what the second series says shows the noise.
Bytes are those of the column chunks that are read (row groups without a live row are not), and of the DV.
``--instructions`` counts what one core executes for the same stretch of each file, by valgrind's callgrind: slow, but
blind to whatever else the machine does. Ratios above 1 say what DVs cost. At last a server on the loopback counts what
is asked of an object store. ``bench_peers.py`` has scans without Spark.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peers.watch import cpu_seconds

ROW_GROUP = 1 << 20
LIMIT = 1.1
AGAIN = "no DV, again"
SHARES = (0.01, 0.10, 0.50)
COUNTED, BATCH = 16, 1 << 16


# -- the tables --------------------------------------------------------------------------------------------------


def build(root: Path, rows: int) -> dict[str, Path]:
    """The same Parquet file in tables of their own: without a DV, and with one of each kind."""
    from dv_maintenance.dv import DeletionVector
    from dv_maintenance.testing.delta_builder import DeltaBuilder

    rng = np.random.default_rng(7)
    data = pa.table(
        {
            "id": np.arange(rows),
            "count": rng.integers(0, 2**40, rows),
            "value": rng.normal(size=rows),
            "name": pa.DictionaryArray.from_arrays(
                pa.array(rng.integers(0, 50_000, rows).astype(np.int32)),
                pa.array([f"customer-{number:012}" for number in rng.integers(0, 10**12, 50_000)]),
            ).cast(pa.string()),
        }
    )
    tables = {}
    kinds: dict[str, Any] = {"no DV": None}
    for share in SHARES:
        kinds[f"{share:.0%} random"] = rng.random(rows) < share
        clustered = np.zeros(rows, bool)
        clustered[int(rows * 0.3) : int(rows * (0.3 + share))] = True
        kinds[f"{share:.0%} clustered"] = clustered
    first: Path | None = None
    for kind, deleted in kinds.items():
        path = root / kind.replace(" ", "-").replace("%", "")
        builder = DeltaBuilder(str(path)).create(data.schema)
        builder.append(data, rows_per_row_group=ROW_GROUP)
        [file] = path.glob("*.parquet")
        if first is None:
            first = file
        else:  # one file on disk, so that no table is in the page cache more than another
            file.unlink()
            os.link(first, file)
        if deleted is not None:
            positions = DeletionVector.from_mask(pa.array(deleted)).positions()
            builder.delete({file.name: positions})
        tables[kind] = path
    return tables


def bytes_read(table: Path) -> int:
    """Column chunks of row groups with a live row, and the DV."""
    from dv_maintenance.tables import open_table
    from dv_maintenance.tables.dv_codecs import load

    handle = open_table(str(table))
    [task] = handle.scan_tasks(handle.snapshot())
    [source] = task.sources
    footer = pq.read_metadata(next(table.glob("*.parquet")))
    dv = None if source.dv is None else load(source.dv, handle.storage.get_range)
    total, first = 0 if source.dv is None else source.dv.size, 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        if dv is None or dv.range_cardinality(first, first + group.num_rows) < group.num_rows:
            total += sum(group.column(leaf).total_compressed_size for leaf in range(group.num_columns))
        first += group.num_rows
    return total


# -- reading -----------------------------------------------------------------------------------------------------


def by_spark(spark: Any, table: Path) -> Callable[[], tuple[float, float]]:
    """Wall and CPU seconds of one read through Spark: of this process and all that it started."""

    def run() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), cpu_seconds()
        spark.read.format("dv_delta").load(str(table)).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - wall, cpu_seconds() - cpu

    return run


def instructions(table: Path, batches: int) -> int:
    """What a process executes that reads so many batches, from its start to its end."""
    scan = (
        "import sys, pyarrow as pa; from itertools import islice; pa.set_cpu_count(1); "
        "from dv_maintenance.engine.scan import scan; from dv_maintenance.tables import open_table; "
        "table = open_table(sys.argv[1]); [task] = table.scan_tasks(table.snapshot()); "
        "print(sum(1 for _ in islice(scan(task), int(sys.argv[2]))))"
    )
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-c", scan]
    done = subprocess.run([*command, str(table), str(batches)], capture_output=True, text=True, check=True)
    if int(done.stdout) != batches:
        raise AssertionError(done.stdout)
    return int(re.findall(r"Collected : (\d+)", done.stderr)[0])


def compare_instructions(tables: dict[str, Path]) -> bool:
    """Print what the batches of one row group take, decoding and leaving out; whether DVs stay within the limit. A
    stretch that is deleted whole has other batches to read, and is left out.
    """
    print(f"\ninstructions for {COUNTED} batches of {BATCH} rows")
    base, fine = 0, True
    for kind, table in tables.items():
        if "clustered" in kind:
            continue
        count = instructions(table, COUNTED + 1) - instructions(table, 1)
        base = base or count
        fine &= count / base <= LIMIT
        print(f"{kind:16}{count / (COUNTED * BATCH):8.0f} a row{count / base:9.3f}")
    return fine


def least_of(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), min(one[1], other[1])


def compare(name: str, runs: dict[str, Callable[[], tuple[float, float]]], sizes: dict[str, int], rounds: int) -> bool:
    """Print the figures; whether what DVs cost stays within the limit."""
    least = {kind: run() for kind, run in runs.items()}
    again = least["no DV"]
    for number in range(rounds):
        for kind in sorted(runs, reverse=bool(number % 2)):
            least[kind] = least_of(least[kind], runs[kind]())
        again = least_of(again, runs["no DV"]())
    print(f"\n{name}: the least of {rounds} rounds")
    print(f"{'':16}{'MB':>8}{'wall s':>9}{'CPU s':>9}{'wall':>9}{'CPU':>7}{'wall/byte':>11}{'CPU/byte':>10}")
    base, fine = least["no DV"], True
    for kind, (wall, cpu) in [*least.items(), (AGAIN, again)]:
        size = sizes.get(kind, sizes["no DV"])
        by_wall, by_cpu, per_byte = wall / base[0], cpu / base[1], sizes["no DV"] / size
        fine &= by_cpu * min(per_byte, 1) <= LIMIT
        print(
            f"{kind:16}{size / 1e6:8.1f}{wall:9.3f}{cpu:9.3f}{by_wall:9.2f}{by_cpu:7.2f}"
            f"{by_wall * per_byte:11.2f}{by_cpu * per_byte:10.2f}"
        )
    return fine


# -- requests ----------------------------------------------------------------------------------------------------


class _Counting(BaseHTTPRequestHandler):
    """Serves ranges of the files below ``root``, and counts requests by method and by whether they are for a DV."""

    root: Path
    counts: Counter[str]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.root / unquote(self.path.lstrip("/"))
        kind = "DV" if path.suffix == ".bin" else "data"
        self.counts[f"{self.command} {kind}"] += 1
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, size - 1
        if asked:
            first = int(asked[1]) if asked[1] else size - int(asked[2])
            last = min(int(asked[2]), last) if asked[1] and asked[2] else last
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Last-Modified", formatdate(0, usegmt=True))
        self.send_header("ETag", f'"{size}"')
        self.end_headers()
        if body:
            with path.open("rb") as file:
                file.seek(first)
                self.wfile.write(file.read(last - first + 1))

    def log_message(self, *_: Any) -> None:
        pass


def count_requests(root: Path, tables: dict[str, Path]) -> bool:
    """Print what one scan asks of an object store; whether DVs take at most one GET more per data file."""
    from dv_maintenance.engine.scan import scan
    from dv_maintenance.tables import open_table

    handler: Any = type("Handler", (_Counting,), {"root": root, "counts": Counter()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"

    def moved(uri: str) -> str:
        return uri.replace(f"file://{root}", here)

    print("\nrequests of one scan")
    asked = {}
    for kind, path in tables.items():
        table = open_table(str(path))
        handler.counts.clear()
        for task in table.scan_tasks(table.snapshot()):
            [source] = task.sources
            dv = source.dv and replace(source.dv, uri=source.dv.uri and moved(source.dv.uri))
            for _ in scan(
                replace(task, sources=(replace(source, uri=moved(source.uri), dv=dv),)), {"allow_http": "true"}
            ):
                pass
        asked[kind] = handler.counts.total()
        print(f"{kind:16}{asked[kind]:4}   {dict(sorted(handler.counts.items()))}")
    server.shutdown()
    return all(count <= asked["no DV"] + 1 for count in asked.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--spark", action="store_true", help="through Spark as well")
    parser.add_argument("--instructions", action="store_true", help="count instructions as well (needs valgrind)")
    wanted = parser.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="bench-read-") as place:
        tables = build(Path(place), wanted.rows)
        sizes = {kind: bytes_read(table) for kind, table in tables.items()}
        fine = True
        if wanted.spark:
            from dv_maintenance import register
            from dv_maintenance.engine.spark.session import start_session

            os.environ["PYSPARK_PYTHON"] = sys.executable
            spark = start_session("local[2]", {})
            register(spark, push_filters=True)
            runs = {kind: by_spark(spark, table) for kind, table in tables.items()}
            fine &= compare("Spark, local[2]", runs, sizes, wanted.rounds)
            spark.stop()
        if wanted.instructions:
            fine &= compare_instructions(tables)
        one_more = count_requests(Path(place), tables)
    print(f"\nCPU within {LIMIT}: {'yes' if fine else 'NO'}; at most one request more: {'yes' if one_more else 'NO'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
