"""Purges of a table in an object store, against deltalake's compact on the same store.

    python benchmarks/bench_store.py [--latency 0.03] [--rate 80] [--rounds 5] [--quick]

``slow_store.py`` answers each request after the latency and gives each connection its rate, in MB a second, either way.
It runs as a process of its own: CPU time is that of the two sides. Both use two cores, and stay with Snappy. The first
table has 30 % of its rows deleted at random. The second has deleted rows in 2 of 10 row groups of 4 MB; the others are
copied here, and read back.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import slow_store
from peers import tables
from peers.work import CORES

TABLE = "s3://lake/table"
FILES = 16
CASES = {"30 % at random": (tables.at_random(0.3), 1), "2 of 10 row groups": (tables.in_groups(0.3, 2, 10), 10)}


def ours(options: dict[str, str]) -> None:
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.maintenance.execution.apply import purge
    from dv_maintenance.tables import open_table

    report = purge(open_table(TABLE, storage_options=options), LocalEngine(threads=CORES))
    if not report.verified:
        raise AssertionError(report)


def deltalake(options: dict[str, str]) -> None:
    from deltalake import DeltaTable, WriterProperties

    # Without this it would not take the store's word for a commit.
    table = DeltaTable(TABLE, storage_options={**options, "aws_conditional_put": "etag"})
    snappy = WriterProperties(compression="SNAPPY")
    table.optimize.compact(target_size=tables.TARGET, max_concurrent_tasks=CORES, writer_properties=snappy)


SIDES = {"ours": ours, "deltalake": deltalake}


def run(side: str, folder: Path, latency: float, rate: float) -> dict[str, Any]:
    with slow_store.running(folder, latency, rate=rate) as options:
        before, started = os.times(), time.perf_counter()
        subprocess.run([sys.executable, __file__, "--side", side, "--options", repr(options)], check=True)
        wall, after = time.perf_counter() - started, os.times()
        asked = ast.literal_eval(slow_store.requests(options))
    asked.pop("connections")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": wall, "CPU": cpu, "requests": sum(asked.values())}


def compare(name: str, rows: int, args: argparse.Namespace) -> dict[str, Any]:
    deleted, groups = CASES[name]
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        base = Path(folder) / "base"
        tables.build(base / "table", rows, FILES, deleted, group=rows // FILES // groups)
        for number in range(args.rounds):
            for side in list(SIDES)[:: 1 if number % 2 == 0 else -1]:
                place = Path(folder) / side
                shutil.copytree(base, place)
                found[side].append(run(side, place, args.latency, args.rate))
                shutil.rmtree(place)
    middle = {
        side: {what: statistics.median(each[what] for each in turns) for what in turns[0]}
        for side, turns in found.items()
    }
    pairs = [mine["wall"] / theirs["wall"] for mine, theirs in zip(*found.values(), strict=True)]
    for side, figures in middle.items():
        wall, cpu, requests = figures.values()
        print(f"{name:20} {side:10} {wall:6.2f} s, CPU {cpu:5.2f} s, {requests:.0f} requests", flush=True)
    ratios = {what: middle["ours"][what] / middle["deltalake"][what] for what in middle["ours"]}
    print(
        f"{name:20} {'ratio':10} {ratios['wall']:6.2f} ({min(pairs):.2f} to {max(pairs):.2f}), CPU {ratios['CPU']:.2f}"
    )
    return {"case": name, "rows": rows, **middle, "ratio": ratios, "least": min(pairs), "greatest": max(pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.03, help="seconds")
    parser.add_argument("--rate", type=float, default=80, help="MB a second")
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--quick", action="store_true", help="a small table, one round: shows that it works")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--options", type=ast.literal_eval, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        SIDES[args.side](args.options)
        return
    if args.quick:
        args.rows, args.rounds, args.latency = 200_000, 1, 0.0
    found = [compare(name, args.rows, args) for name in args.only or CASES]
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
