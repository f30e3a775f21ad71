"""A process that opens files with mutated footers, verb by verb, and tells of each before the next; it may die of one.

``python -m support.footer_victim FOLDER NUMBER``: FOLDER has a Delta table in ``table``, and the footers in a pickle.
"""

from __future__ import annotations

import pickle
import re
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.files.parquet_footer import framed
from dv_maintenance.maintenance.convert import convert
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck import fsck
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.table import DeltaTable

SECONDS = 60  # of CPU time, for one verb on a file of two kilobytes
BYTES = 4 << 30  # of memory


def verbs(table: str, files: str) -> dict[str, Callable[[], object]]:
    return {
        "health": lambda: health(open_table(table).snapshot()),
        "read": lambda: list(read(open_table(table))[1]),
        "fsck": lambda: fsck(open_table(table), deep=True),
        "convert": lambda: convert(DeltaTable(Storage(files))),
        "zorder": lambda: zorder(open_table(table), LocalEngine(1), ["i", "s"]),
        "purge": lambda: purge(open_table(table), LocalEngine(1)),
    }


def main(folder: Path, first: int) -> None:
    footers: list[tuple[str, bytes]] = pickle.loads((folder / "footers.pickle").read_bytes())
    (data,) = (folder / "table").glob("*.parquet")
    size = data.stat().st_size
    rows = data.read_bytes()
    body = rows[: size - 8 - int.from_bytes(rows[-8:-4], "little")]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    for number in range(first, len(footers)):
        used = resource.getrusage(resource.RUSAGE_SELF)
        end = int(used.ru_utime + used.ru_stime) + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (end, resource.RLIM_INFINITY))
        mutated = body + framed(footers[number][1])
        for verb in verbs("", ""):
            work = folder / "work"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(folder / "table", work / "table")
            (work / "table" / data.name).write_bytes(mutated)
            for commit in (work / "table" / "_delta_log").glob("*.json"):
                commit.write_text(re.sub(rf'"size":{size}\b', f'"size":{len(mutated)}', commit.read_text()))
            (work / "files").mkdir()
            (work / "files" / data.name).write_bytes(mutated)
            print(number, verb, end=" ", flush=True)
            try:
                verbs(str(work / "table"), str(work / "files"))[verb]()
            except DvMaintenanceError as error:
                print(type(error).__name__, flush=True)
            except BaseException as error:  # noqa: BLE001 (a panic, too, is an outcome)
                print("RAW", type(error).__name__, str(error).replace("\n", " ")[:200], flush=True)
            else:
                print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
