"""How fast is a table with a million live files and a thousand commits opened, against delta-rs?

    python benchmarks/bench_health.py [--files 1000000] [--commits 1000] [--actions 100] [--runs 3]

Builds the table's log (no data files: nothing here reads any), then times, each in processes of its own and in turns,

* ours: what ``dvm health`` does before it prints,
* delta-rs: ``DeltaTable(path)`` and ``get_add_actions()``,

and prints the medians of wall time, CPU time and peak memory, imports left out, and their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from simulated_log import SimulatedLog

OURS = """
from dv_maintenance.cli.access import lean_memory
from dv_maintenance.maintenance.health import health
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
import pyarrow.compute, pyarrow.parquet, obstore.store, dv_maintenance.tables.delta.rows.schema
start()
lean_memory()
result = health(load_snapshot(Storage(place)))
stop(result.counts.files)
"""

DELTA_RS = """
from deltalake import DeltaTable
import pyarrow
start()
adds = DeltaTable(place).get_add_actions()
stop(adds.num_rows)
"""

TIMER = """
import json, resource, sys, time
place = sys.argv[1]
def start():
    global at
    at = time.perf_counter(), time.process_time()
def stop(rows):
    wall, cpu = time.perf_counter() - at[0], time.process_time() - at[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": rows, "wall": wall, "cpu": cpu, "rss": peak}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--actions", type=int, default=100, help="per commit")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", help="build the table here, or use the one that is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or os.path.join(folder, "table")
        if not os.path.isdir(place):
            log = SimulatedLog(place, options.files)
            for _ in range(options.commits):
                log.commit(options.actions)
        results: dict[str, list[dict[str, float]]] = {"ours": [], "delta-rs": []}
        for _ in range(options.runs):
            for name, code in (("ours", OURS), ("delta-rs", DELTA_RS)):
                done = subprocess.run([sys.executable, "-c", TIMER + code, place], check=True, capture_output=True)
                results[name].append(json.loads(done.stdout))
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in results.items()
    }
    print(f"{'':10}{'files':>10}{'wall s':>10}{'CPU s':>10}{'peak MB':>10}")
    for name, values in medians.items():
        print(f"{name:10}{values['rows']:10.0f}{values['wall']:10.2f}{values['cpu']:10.2f}{values['rss']:10.0f}")
    ratios = [medians["ours"][key] / medians["delta-rs"][key] for key in ("wall", "cpu", "rss")]
    print(f"{'ratio':20}{ratios[0]:10.2f}{ratios[1]:10.2f}{ratios[2]:10.2f}")


if __name__ == "__main__":
    main()
