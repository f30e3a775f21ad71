"""A restore and a vacuum of one Delta table as two processes, again and again: is every live file there afterwards?

    python benchmarks/race_restore.py [runs] [files]

Each run makes a table whose version 1 has that many small files; version 2 replaced all of them by one, two weeks ago.
The vacuum is to delete what the restore is to bring back, so one of the two has to give way. The restore starts a bit
before the vacuum or after it, another bit in each run. Ends with exit code 1 if a table can't be read.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import commit_path

RUNS, FILES = 25, 4000
WEEK = 7 * 86_400_000
DELAYS = [number / 50 for number in range(-10, 15)]  # seconds that the restore starts after the vacuum
_DVM = "import sys; from dv_maintenance.cli import main; sys.exit(main(sys.argv[1:]))"


def build(folder: Path, files: int) -> None:
    """See above. The files are of one byte: neither of the two opens them."""
    storage, old = Storage(str(folder)), time.time_ns() // 1_000_000 - 2 * WEEK
    paths = [f"part-{number:05d}-{uuid4()}.parquet" for number in range(files)]
    kept = f"part-kept-{uuid4()}.parquet"
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    metadata = {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": orjson.dumps(schema).decode(),
        "partitionColumns": [],
        "configuration": {},
    }
    removes = [{"remove": {"path": path, "deletionTimestamp": old, "dataChange": True}} for path in paths]
    versions: tuple[list[dict[str, Any]], ...] = (
        [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}],
        [_add(path, old) for path in paths],
        [*removes, _add(kept, old)],
    )
    for path in (*paths, kept):
        _touch(folder / path, b"x", old)
    for version, actions in enumerate(versions):
        info = {"commitInfo": {"timestamp": old + version, "operation": "WRITE", "operationParameters": {}}}
        body = b"\n".join(map(orjson.dumps, (info, *actions)))
        _touch(Path(storage.local(commit_path(version))), body, old + version)


def _add(path: str, at: int) -> dict[str, object]:
    body = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": at, "dataChange": True}
    return {"add": {**body, "stats": '{"numRecords":1}'}}


def _touch(path: Path, body: bytes, at: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    os.utime(path, ns=(at * 1_000_000, at * 1_000_000))


def race(folder: Path, delay: float) -> tuple[int, int, str]:
    """Exit codes of the restore and the vacuum, and what the restore said."""
    commands = [("restore", "--version", "1"), ("vacuum",)]
    if delay > 0:
        commands.reverse()
    with _dvm(folder, *commands[0]) as first:
        time.sleep(abs(delay))
        with _dvm(folder, *commands[1]) as second:
            said = [process.communicate()[1].decode().strip() for process in (first, second)]
    codes, at = [first.returncode, second.returncode], int(delay > 0)
    return codes[at], codes[1 - at], said[at]


def _dvm(folder: Path, verb: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _DVM, verb, str(folder), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def missing(folder: Path) -> int:
    """Live files that are not there."""
    storage = Storage(str(folder))
    return sum(not (folder / path).exists() for path in load_snapshot(storage).files["path"].to_pylist())


def main(runs: int, files: int) -> int:
    outcomes: Counter[str] = Counter()
    unreadable = 0
    for run in range(runs):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, "table")
            build(folder, files)
            delay = DELAYS[run % len(DELAYS)]
            restored, vacuumed, said = race(folder, delay)
            lost = missing(folder)
            unreadable += bool(lost)
            outcomes[f"restore {restored}, vacuum {vacuumed}{', UNREADABLE' if lost else ''}"] += 1
            print(f"{run + 1:3d}  {delay:+.2f} s  restore {restored}  vacuum {vacuumed}  missing {lost}  {said[:120]}")
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:3d} times: exit codes {outcome}")
    print(f"{unreadable} of {runs} tables unreadable")
    return 1 if unreadable else 0


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    sys.exit(main(*given, *(RUNS, FILES)[len(given) :]))
