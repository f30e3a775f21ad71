"""How fast is a Paimon table with a million live files opened, against its manifests read by fastavro?

    python benchmarks/bench_manifests.py [--files 1000000] [--runs 3] [--codecs deflate zstandard snappy]

Builds a table of 365 partitions with manifests of 20,000 entries in blocks of 64 KB, as Paimon's writers cut them
(there are no data files: nothing here reads any). Each entry has statistics of eight columns. Then times, each in
processes of its own and in turns,

* ours: the whole snapshot of the table, files and warnings included; also only its entries,
* records: the entries, with each manifest read by ``container.read_records``, that is by fastavro,

and prints the medians of wall time, CPU time and peak memory, imports left out, and their ratios. Arrow and NumPy are
held to one thread.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

ENTRIES_OF_A_MANIFEST = 20_000
BLOCK = 64_000
DAYS = 365
COLUMNS = {
    "day": "DATE",
    "id": "BIGINT",
    "customer": "STRING",
    "price": "DOUBLE",
    "count": "INT",
    "at": "TIMESTAMP(6)",
    "paid": "BOOLEAN",
    "note": "STRING",
}

WHOLE = """
from dv_maintenance.storage import Storage
from dv_maintenance.tables.paimon.snapshot import load_snapshot
import pyarrow.compute, fastavro
start()
stop(load_snapshot(Storage(place)).files.num_rows)
"""

ENTRIES = """
from dv_maintenance.storage import Storage
from dv_maintenance.tables.paimon.layout import table_layout
from dv_maintenance.tables.paimon.log import manifests
from dv_maintenance.tables.paimon.log.schema import newest_schema
from dv_maintenance.tables.paimon.log.snapshots import load_snapshot_file
from dv_maintenance.tables.paimon.rows.partitions import Partitions
import pyarrow.compute, fastavro
layout = table_layout(Storage(place))
schema = newest_schema(layout)
file = load_snapshot_file(layout, None)
if RECORDS:
    manifests.read_columns = lambda *_: None
start()
stop(manifests.live_entries(layout, file, Partitions(schema.partition_fields(), schema.options)).entries.num_rows)
"""

TIMER = """
import json, resource, sys, time
import pyarrow
pyarrow.set_cpu_count(1)
place = sys.argv[1]
def start():
    global at
    at = time.perf_counter(), time.process_time()
def stop(rows):
    wall, cpu = time.perf_counter() - at[0], time.process_time() - at[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": rows, "wall": wall, "cpu": cpu, "rss": peak}))
"""

CONTENDERS = {
    "snapshot": WHOLE,
    "entries": "RECORDS = False\n" + ENTRIES,
    "records": "RECORDS = True\n" + ENTRIES,
}


def build(places: dict[str, str], files: int) -> None:
    """The same table once for each codec: ``places`` by codec."""
    from dv_maintenance.files.avro.container import header_bytes, library
    from dv_maintenance.files.avro.writer import block_bytes, template_of, write_records
    from dv_maintenance.tables.paimon.log.entries import read_whole
    from dv_maintenance.testing.paimon_builder import PaimonBuilder

    builders = {codec: PaimonBuilder(place) for codec, place in places.items()}
    rng = random.Random(7)
    first = next(iter(builders.values()))
    for builder in builders.values():
        builder.create(COLUMNS, partition_by=["day"])
        builder.commit("APPEND", [entry(rng, 0)])  # its lists and its manifest are what all others look like
    newest = json.loads(first.storage.get(first.layout.snapshot(2)))
    (known,) = read_whole(first.layout, newest["deltaManifestList"], 2)[1]
    template = template_of(first.storage.get(first.layout.manifest(known["_FILE_NAME"])))
    fastavro = library()
    schema = fastavro.parse_schema(json.loads(template.schema))
    sync = rng.randbytes(16)
    named: dict[str, list[dict[str, Any]]] = {codec: [] for codec in places}
    for number in range(0, files, ENTRIES_OF_A_MANIFEST):
        count = min(ENTRIES_OF_A_MANIFEST, files - number)
        parts = {codec: [header_bytes(template.schema, codec, sync)] for codec in places}
        block, records = io.BytesIO(), 0
        for place in range(count):
            fastavro.schemaless_writer(block, schema, entry(rng, number + place))
            records += 1
            if block.tell() >= BLOCK or place == count - 1:
                for codec, found in parts.items():
                    found.append(block_bytes(block.getvalue(), records, codec, sync))
                block, records = io.BytesIO(), 0
        for codec, found in parts.items():
            name = f"manifest-{UUID(int=rng.getrandbits(128))}-0"
            data = b"".join(found)
            builders[codec].storage.put(builders[codec].layout.manifest(name), data)
            added = {"_FILE_NAME": name, "_FILE_SIZE": len(data), "_NUM_ADDED_FILES": count}
            named[codec].append({**known, **added})
    for codec, builder in builders.items():
        newest = json.loads(builder.storage.get(builder.layout.snapshot(2)))
        lists = builder.layout.manifest(newest["deltaManifestList"])
        name = f"manifest-list-{UUID(int=rng.getrandbits(128))}-0"
        old = builder.storage.get(lists)
        builder.storage.put(builder.layout.manifest(name), write_records(template_of(old), named[codec]))
        body = {**newest, "id": 3, "deltaManifestList": name, "totalRecordCount": 0}
        builder.storage.put(builder.layout.snapshot(3), json.dumps(body).encode())
        builder.storage.put("snapshot/LATEST", b"3")


def entry(rng: random.Random, number: int) -> dict[str, Any]:
    from dv_maintenance.tables.paimon.commit.value_stats import EMPTY_ROW
    from dv_maintenance.tables.paimon.log.binary_row import encode_row
    from dv_maintenance.tables.paimon.rows.types import parse_type

    day = 19_000 + number % DAYS
    low = rng.getrandbits(40)
    types = [parse_type(COLUMNS[name]) for name in ("id", "price", "count")]
    least, most = ([low + each, rng.random(), rng.getrandbits(20)] for each in (0, 100_000))
    stats = {
        "_MIN_VALUES": encode_row(least, types) + rng.randbytes(48),
        "_MAX_VALUES": encode_row(most, types) + rng.randbytes(48),
        "_NULL_COUNTS": [0, 0, 0, rng.getrandbits(10), 0, 0, 0, rng.getrandbits(14)],
    }
    none = {"_MIN_VALUES": EMPTY_ROW, "_MAX_VALUES": EMPTY_ROW, "_NULL_COUNTS": []}
    return {
        "_VERSION": 2,
        "_KIND": 0,
        "_PARTITION": encode_row([day], [parse_type("DATE")]),
        "_BUCKET": 0,
        "_TOTAL_BUCKETS": -1,
        "_FILE": {
            "_FILE_NAME": f"data-{UUID(int=rng.getrandbits(128))}-{number % 7}.parquet",
            "_FILE_SIZE": rng.randrange(1 << 20, 1 << 27),
            "_ROW_COUNT": rng.randrange(1, 1 << 21),
            "_MIN_KEY": EMPTY_ROW,
            "_MAX_KEY": EMPTY_ROW,
            "_KEY_STATS": none,
            "_VALUE_STATS": stats,
            "_MIN_SEQUENCE_NUMBER": low,
            "_MAX_SEQUENCE_NUMBER": low + 100_000,
            "_SCHEMA_ID": 0,
            "_LEVEL": 0,
            "_EXTRA_FILES": [],
            "_CREATION_TIME": 1_760_000_000_000 + number,
            "_DELETE_ROW_COUNT": 0,
            "_EMBEDDED_FILE_INDEX": None,
            "_FILE_SOURCE": 0,
            "_VALUE_STATS_COLS": None,
            "_EXTERNAL_PATH": None,
            "_FIRST_ROW_ID": None,
        },
    }


def timed(name: str, place: str) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TIMER + CONTENDERS[name], place],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--codecs", nargs="+", default=["deflate", "zstandard", "snappy"])
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--keep", help="a folder for the tables, which is used again if it is there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        places = {codec: str(Path(arguments.keep or scratch) / codec) for codec in arguments.codecs}
        missing = {codec: place for codec, place in places.items() if not Path(place).exists()}
        if missing:
            build(missing, arguments.files)
        for codec, place in places.items():
            size = sum(file.stat().st_size for file in Path(place).glob("manifest/*"))
            print(f"\n{codec}, {arguments.files:,} entries, {size / 1e6:.0f} MB: wall s, CPU s, peak MB, us an entry")
            found: dict[str, list[dict[str, float]]] = {name: [] for name in arguments.only}
            for number in range(arguments.runs):
                for name in arguments.only[:: -1 if number % 2 else 1]:
                    found[name].append(timed(name, place))
                    if found[name][-1]["rows"] != arguments.files:
                        raise AssertionError(found[name])
            for name, runs in found.items():
                wall, cpu, peak = (statistics.median(each[key] for each in runs) for key in ("wall", "cpu", "rss"))
                print(f"  {name:10}{wall:8.2f}{cpu:8.2f}{peak:8.0f}{cpu / arguments.files * 1e6:8.2f}", flush=True)


if __name__ == "__main__":
    main()
