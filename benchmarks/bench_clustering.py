"""How much a query reads after `dvm cluster`, next to delta-spark's OPTIMIZE of the same clustered table.

    python benchmarks/bench_clustering.py [--rows 200000] [--files 32] [--queries 300] [--seed 7]

A query reads a file unless its statistics exclude it. `rows`: in the files that the queries read after ours, to those
after OPTIMIZE; `bytes`: the same, which also compares the compression. `share`: of the table's rows, that a query reads
after OPTIMIZE.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from peers.sessions import delta_spark

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.cluster import cluster
from dv_maintenance.tables import open_table

VALUES = 1_000_000
SKEWED = f"cast({VALUES} * pow(rand({{seed}}), 3) as int)"
UNIFORM = f"cast({VALUES} * rand({{seed}}) as int)"
TABLES = {
    "2 columns": (UNIFORM, UNIFORM),
    "2 columns, one skewed": (UNIFORM, SKEWED),
    "3 columns": (UNIFORM, UNIFORM, UNIFORM),
    "4 columns": (UNIFORM, UNIFORM, UNIFORM, UNIFORM),
}


Ranges = dict[str, tuple[int, int]]
"""A query: columns, and the first and the last value that it asks for."""


def queries(columns: int, count: int, seed: int) -> list[Ranges]:
    """On one or two of the columns: one value, a range of one hundredth, or of a tenth of the values."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        ranges = {}
        for at in draw.sample(range(columns), draw.randint(1, 2)):
            width = draw.choice((1, VALUES // 100, VALUES // 10))
            start = draw.randrange(VALUES - width)
            ranges[f"c{at}"] = (start, start + width - 1)
        found.append(ranges)
    return found


def made(session: Any, path: Path, values: Sequence[str], rows: int, seed: int) -> None:
    names = [f"c{at}" for at in range(len(values))]
    columns = ", ".join(f"{name} INT" for name in names)
    session.sql(f"CREATE TABLE delta.`{path}` (id BIGINT, {columns}) USING delta CLUSTER BY ({', '.join(names)})")
    drawn = ", ".join(text.format(seed=seed + at) for at, text in enumerate(values))
    session.sql(f"INSERT INTO delta.`{path}` SELECT id, {drawn} FROM range(0, {rows}, 1, 4)")


def opened(path: Path, asked: Sequence[Ranges]) -> tuple[int, int]:
    """Rows and bytes of the files whose statistics do not exclude the queries, added up."""
    files = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    hits = [
        file
        for ranges in asked
        for file in files
        if all(file[f"min.{name}"] <= last and file[f"max.{name}"] >= first for name, (first, last) in ranges.items())
    ]
    return sum(file["num_records"] for file in hits), sum(file["size_bytes"] for file in hits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    print(f"{'':24}{'rows':>7}{'bytes':>7}{'share':>7}{'files':>12}{'seconds':>13}")
    with tempfile.TemporaryDirectory() as home, delta_spark() as session:
        for name, values in TABLES.items():
            ours, theirs = Path(home) / f"{name} ours", Path(home) / f"{name} theirs"
            made(session, ours, values, args.rows, args.seed)
            shutil.copytree(ours, theirs)
            before = open_table(str(ours)).snapshot().files["size"].to_pylist()
            session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(sum(before) // args.files))
            began = time.perf_counter()
            session.sql(f"OPTIMIZE delta.`{theirs}`")
            middle = time.perf_counter()
            files = open_table(str(theirs)).snapshot().files.num_rows
            # As many files, whatever they compress to.
            rewritten = cluster(open_table(str(ours)), LocalEngine(), target_size=sum(before) // files)
            ended = time.perf_counter()
            assert rewritten.verified, rewritten.problems
            asked = queries(len(values), args.queries, args.seed)
            (rows, size), (peer_rows, peer_size) = opened(ours, asked), opened(theirs, asked)
            own = open_table(str(ours)).snapshot().files.num_rows
            print(
                f"{name:24}{rows / peer_rows:7.2f}{size / peer_size:7.2f}{peer_rows / args.queries / args.rows:7.0%}"
                f"{f'{own}, {files}':>12}{f'{ended - middle:.1f}, {middle - began:.1f}':>13}",
                flush=True,
            )


if __name__ == "__main__":
    main()
