"""A vacuum's dry run over a table of many files, against deltalake's full dry run on the same table.

    python benchmarks/bench_vacuum.py [FILES]

Nine tenths of the files are live, every eighth of those with a DV; the rest was removed long ago or never committed.
The log is JSON commits only, and then ends in a checkpoint, as one of a table of this size does.
Ratios are of wall time, the best of a few runs taken in turns: single times on a shared machine mean little.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

from dv_maintenance.dv import z85
from dv_maintenance.dv.descriptor import dv_file_path
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint
from dv_maintenance.tables.guard import VacuumRequest

FILES = 200_000
ROUNDS = 3
OLD = time.time() - 30 * 86_400
PARTITIONS = 50


def build(path: Path, files: int) -> None:
    log = path / "_delta_log"
    log.mkdir(parents=True)
    schema = {"type": "struct", "fields": [field("id", "long"), field("p", "integer")]}
    features = ["deletionVectors"]
    actions: list[dict[str, object]] = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {
            "metaData": {
                "id": str(uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": ["p"],
                "configuration": {"delta.enableDeletionVectors": "true"},
            }
        },
    ]
    removes: list[dict[str, object]] = []
    for number in range(files):
        partition = number % PARTITIONS
        name = f"p={partition}/part-{number:05d}-{uuid4()}-c000.snappy.parquet"
        touch(path / name)
        if number % 10:
            add = {
                "path": name,
                "partitionValues": {"p": str(partition)},
                "size": 1,
                "modificationTime": int(OLD * 1000),
                "dataChange": True,
                "stats": '{"numRecords":100,"tightBounds":false}',
            }
            if number % 8 == 0:
                uuid = uuid4()
                touch(path / dv_file_path("", uuid))
                add["deletionVector"] = descriptor(uuid)
            actions.append({"add": add})
        elif number % 20:
            removes.append({"remove": {"path": name, "deletionTimestamp": int(OLD * 1000), "dataChange": True}})
        # The rest was never committed.
    for version, commit in enumerate((actions, removes)):
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, commit)))


def field(name: str, type: str) -> dict[str, object]:
    return {"name": name, "type": type, "nullable": True, "metadata": {}}


def touch(file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY))
    os.utime(file, (OLD, OLD))


def descriptor(uuid: UUID) -> dict[str, object]:
    return {
        "storageType": "u",
        "pathOrInlineDv": z85.encode(uuid.bytes),
        "offset": 1,
        "sizeInBytes": 34,
        "cardinality": 1,
    }


def ours(path: Path) -> int:
    return len(open_table(str(path)).vacuum(VacuumRequest(dry_run=True)).expired.files)


def theirs(path: Path) -> int:
    from deltalake import DeltaTable

    return len(DeltaTable(str(path)).vacuum(dry_run=True, full=True))


def timed(call: Callable[[Path], int], path: Path) -> tuple[float, float, int]:
    wall, cpu = time.perf_counter(), time.process_time()
    found = call(path)
    return time.perf_counter() - wall, time.process_time() - cpu, found


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        build(path, files)
        compare(path, "JSON commits only")
        storage = Storage(str(path))
        write_checkpoint(storage, load_snapshot(storage))
        compare(path, "with a checkpoint")
    print("(deltalake also lists the files of live DVs: it would delete them)")


def compare(path: Path, log: str) -> None:
    runs: dict[str, list[tuple[float, float, int]]] = {"ours": [], "deltalake": []}
    for _ in range(ROUNDS):
        runs["ours"].append(timed(ours, path))
        runs["deltalake"].append(timed(theirs, path))
    print(log)
    best = {name: min(times) for name, times in runs.items()}
    for name, (wall, cpu, found) in best.items():
        print(f"{name:>10}: {wall:6.2f} s wall, {cpu:6.2f} s CPU, {found:,} files to delete")
    wall, cpu = (best["ours"][column] / best["deltalake"][column] for column in (0, 1))
    print(f"{'ratio':>10}: {wall:6.2f}   wall, {cpu:6.2f}   CPU")


if __name__ == "__main__":
    main()
