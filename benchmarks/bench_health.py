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
import random
import statistics
import subprocess
import sys
import tempfile
import uuid

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


def build(place: str, files: int, commits: int, actions: int) -> None:
    """A checkpoint at version 0 and ``commits`` commits, half of whose actions put DVs on files of the checkpoint."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    log = os.path.join(place, "_delta_log")
    os.makedirs(log)
    rng = random.Random(7)
    schema = {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("day", "date"), ("id", "long"), ("name", "string"))
        ],
    }
    metadata = {
        "id": str(uuid.UUID(int=1)),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": ["day"],
        "configuration": {"delta.enableDeletionVectors": "true"},
        "createdTime": 1,
    }
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}

    def add(number: int) -> dict[str, object]:
        day = f"2026-{number % 12 + 1:02d}-{number % 28 + 1:02d}"
        stats = {
            "numRecords": 1000 + number % 977,
            "minValues": {"id": number, "name": f"alpha {number}"},
            "maxValues": {"id": number + 1000, "name": f"omega {number}"},
            "nullCount": {"id": 0, "name": number % 3},
        }
        return {
            "path": f"day={day}/part-00000-{uuid.UUID(int=rng.getrandbits(128))}-c000.snappy.parquet",
            "partitionValues": {"day": day},
            "size": 1_000_000 + number,
            "modificationTime": 1_760_000_000_000 + number,
            "dataChange": True,
            "stats": json.dumps(stats, separators=(",", ":")),
        }

    def write(version: int, lines: list[dict[str, object]]) -> None:
        with open(os.path.join(log, f"{version:020d}.json"), "w", encoding="utf-8") as out:
            out.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)

    text, pairs = pa.string(), pa.map_(pa.string(), pa.string())
    dv = pa.struct(
        [
            ("storageType", text),
            ("pathOrInlineDv", text),
            ("offset", pa.int32()),
            ("sizeInBytes", pa.int32()),
            ("cardinality", pa.int64()),
        ]
    )
    checkpoint = pa.schema(
        [
            ("txn", pa.struct([("appId", text), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
            (
                "add",
                pa.struct(
                    [
                        ("path", text),
                        ("partitionValues", pairs),
                        ("size", pa.int64()),
                        ("modificationTime", pa.int64()),
                        ("dataChange", pa.bool_()),
                        ("tags", pairs),
                        ("deletionVector", dv),
                        ("baseRowId", pa.int64()),
                        ("defaultRowCommitVersion", pa.int64()),
                        ("clusteringProvider", text),
                        ("stats", text),
                    ]
                ),
            ),
            ("remove", pa.struct([("path", text), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())])),
            (
                "metaData",
                pa.struct(
                    [
                        ("id", text),
                        ("name", text),
                        ("description", text),
                        ("format", pa.struct([("provider", text), ("options", pairs)])),
                        ("schemaString", text),
                        ("partitionColumns", pa.list_(text)),
                        ("configuration", pairs),
                        ("createdTime", pa.int64()),
                    ]
                ),
            ),
            (
                "protocol",
                pa.struct(
                    [
                        ("minReaderVersion", pa.int32()),
                        ("minWriterVersion", pa.int32()),
                        ("readerFeatures", pa.list_(text)),
                        ("writerFeatures", pa.list_(text)),
                    ]
                ),
            ),
        ]
    )
    write(0, [{"protocol": protocol}, {"metaData": metadata}])
    live: list[dict[str, object]] = []
    options = {
        **metadata,
        "configuration": list(metadata["configuration"].items()),
        "format": {"provider": "parquet", "options": []},
    }
    with pq.ParquetWriter(os.path.join(log, f"{0:020d}.checkpoint.parquet"), checkpoint) as writer:
        writer.write_table(pa.Table.from_pylist([{"protocol": protocol}, {"metaData": options}], schema=checkpoint))
        for start in range(0, files, 100_000):
            batch = [add(number) for number in range(start, min(start + 100_000, files))]
            live += rng.sample(batch, min(len(batch), 1 + commits * actions * 100_000 // max(files, 1)))
            rows = [{"add": {**body, "partitionValues": list(body["partitionValues"].items())}} for body in batch]
            writer.write_table(pa.Table.from_pylist(rows, schema=checkpoint))
    with open(os.path.join(log, "_last_checkpoint"), "w", encoding="utf-8") as out:
        json.dump({"version": 0, "size": files + 2}, out)
    rng.shuffle(live)
    number = files
    for version in range(1, commits + 1):
        lines: list[dict[str, object]] = [{"commitInfo": {"timestamp": version, "operation": "DELETE"}}]
        while len(lines) <= actions - 2:
            if live and rng.random() < 0.5:
                body = live.pop()
                name = {
                    "storageType": "u",
                    "pathOrInlineDv": f"{rng.getrandbits(60):020d}",
                    "offset": 1,
                    "sizeInBytes": 40,
                    "cardinality": rng.randrange(1, 900),
                }
                lines.append({"remove": {"path": body["path"], "deletionTimestamp": version, "dataChange": True}})
                lines.append({"add": {**body, "deletionVector": name}})
            else:
                lines.append({"add": add(number)})
                number += 1
        write(version, lines)


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
            build(place, options.files, options.commits, options.actions)
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
