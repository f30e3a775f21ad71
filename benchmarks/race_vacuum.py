"""Verbs that bring files back, and a vacuum of the same table, as two processes, again and again, in each format.

    python benchmarks/race_vacuum.py [runs] [files] [pair ...]

Each run copies a table of that many small files, with versions older than the retention, and starts the two a bit
apart, another bit in each run. Afterwards every row of the newest version must be there: those before the race, or
those that were brought back. Ends with exit code 1 if a table can't be read, or reads otherwise. Without names all
pairs run; ``race_restore.py`` is the one of Delta's restore, with more files.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend, TableBackend

RUNS, FILES = 20, 300
DELAYS = [number / 10 for number in range(-10, 15)]  # seconds that the verb starts after the vacuum
RETENTION = 30  # seconds; longer than a verb takes on a busy machine
_KEPT = "RETENTION"  # stands for RETENTION
_DVM = "import sys; from dv_maintenance.cli import main; sys.exit(main(sys.argv[1:]))"
_VACUUM = ("vacuum", "--retention", _KEPT, "--allow-short-retention", "--max-deleted-share", "1")
_LANCE_RESTORE = """
import sys, lance
lance.dataset(sys.argv[1], version=int(sys.argv[2])).restore()
"""
# As Paimon's rollback: the hint, then the snapshots from the newest down.
_OLD = "OLD"  # stands for a version of two thirds of the files
_PAIMON_ROLLBACK = """
import pathlib, sys
place, to = pathlib.Path(sys.argv[1], "snapshot"), int(sys.argv[2])
if not (place / f"snapshot-{to}").exists():
    sys.exit(3)
(place / "LATEST").write_text(str(to))
for number in sorted((int(each.name[9:]) for each in place.glob("snapshot-*")), reverse=True):
    if number > to:
        (place / f"snapshot-{number}").unlink(missing_ok=True)
"""

# As a catalog of a folder commits: the next number's file appears whole, or another writer's stays.
_ICEBERG_ROLLBACK = """
import json, os, pathlib, sys, time
place, to = pathlib.Path(sys.argv[1], "metadata"), int(sys.argv[2])
while True:
    newest = max(int(each.name[1:].split(".")[0]) for each in place.glob("v*.metadata.json"))
    body = json.loads((place / f"v{newest}.metadata.json").read_text())
    if all(each["snapshot-id"] != to for each in body["snapshots"]):
        sys.exit(3)
    now = max(int(time.time() * 1000), body["last-updated-ms"])
    body["refs"]["main"]["snapshot-id"] = body["current-snapshot-id"] = to
    body["snapshot-log"].append({"snapshot-id": to, "timestamp-ms": now})
    body["last-updated-ms"] = now
    staged = place / f"staged-{os.getpid()}"
    staged.write_text(json.dumps(body))
    try:
        os.link(staged, place / f"v{newest + 1}.metadata.json")
    except FileExistsError:
        continue
    finally:
        staged.unlink()
    (place / "version-hint.text").write_text(str(newest + 1))
    break
"""

Command = list[str]


@dataclass(frozen=True)
class Pair:
    """``verb`` and ``vacuum``: what the two processes run on a folder."""

    build: Callable[[Path, int], TableBackend]
    open: Callable[[Path], TableBackend]
    verb: Callable[[Path, int], Command]
    vacuum: Callable[[Path, int], Command]


def dvm(verb: str, *options: str) -> Callable[[Path, int], Command]:
    return lambda folder, old: [sys.executable, "-c", _DVM, verb, str(folder), *_with(options, old)]


def script(text: str, *options: str) -> Callable[[Path, int], Command]:
    return lambda folder, old: [sys.executable, "-c", text, str(folder), *_with(options, old)]


def _with(options: tuple[str, ...], old: int) -> Command:
    values = {_OLD: str(old), _KEPT: f"{RETENTION}s"}
    return [values.get(option, option) for option in options]


def _history(backend: TableBackend, files: int) -> TableBackend:
    """One file a commit, deletes in each tenth, then all but a few rows are rewritten by deletes."""
    backend.create()
    for number in range(files):
        backend.append("a", [(number * 10 + each, "a", "x") for each in range(10)])
    for number in range(0, files, 50):
        backend.delete([number * 10 + each for each in range(5)])
    return backend


def delta(folder: Path, files: int = 0) -> TableBackend:
    backend = DeltaBackend(str(folder))
    return _history(backend, files) if files else backend


def lance(folder: Path, files: int = 0) -> TableBackend:
    backend = LanceBackend(str(folder))
    return _history(backend, files) if files else backend


def paimon(folder: Path, files: int = 0) -> TableBackend:
    backend = PaimonBackend(str(folder))
    return _history(backend, files) if files else backend


def iceberg(folder: Path, files: int = 0) -> TableBackend:
    backend = IcebergBackend(str(folder))
    return _history(backend, files) if files else backend


def folder_of_parquet(folder: Path, files: int) -> TableBackend:
    folder.mkdir(parents=True)
    for number in range(files):
        pq.write_table(pa.table({"id": [number], "p": ["a"], "v": ["x"]}), folder / f"part-{number:05d}.parquet")
    return DeltaBackend(str(folder))


def purged(make: Callable[[Path, int], TableBackend]) -> Callable[[Path, int], TableBackend]:
    """Purged already, so that what was there before is what a vacuum takes and a restore brings back."""

    def build(folder: Path, files: int) -> TableBackend:
        from dv_maintenance.maintenance.execution.apply import purge

        backend = make(folder, files)
        purge(backend.open(), backend.engine())
        return backend

    return build


def aside(make: Callable[[Path, int], TableBackend]) -> Callable[[Path, int], TableBackend]:
    """With versions in quarantine already, and some more that are unneeded."""

    def build(folder: Path, files: int) -> TableBackend:
        from dv_maintenance.maintenance.vacuum import vacuum
        from dv_maintenance.tables.guard import VacuumGuard

        backend = purged(make)(folder, files)
        _wait()
        vacuum(
            backend.open(),
            VacuumRequest(
                retention=RETENTION * 1000, allow_short_retention=True, guard=VacuumGuard(1, quarantine=True)
            ),
        )
        backend.delete([11, 12])
        return backend

    return build


PURGE = dvm("purge", "--engine", "local")
VACUUM, ASIDE = dvm(*_VACUUM), dvm(*_VACUUM, "--quarantine")
PAIRS = {
    "delta-restore": Pair(purged(delta), delta, dvm("restore", "--version", _OLD), VACUUM),
    "delta-purge": Pair(delta, delta, PURGE, VACUUM),
    "delta-convert": Pair(folder_of_parquet, delta, dvm("convert", "--engine", "local"), VACUUM),
    "delta-undelete": Pair(aside(delta), delta, dvm("undelete"), ASIDE),
    "delta-vacuum": Pair(purged(delta), delta, ASIDE, VACUUM),
    "lance-restore": Pair(purged(lance), lance, script(_LANCE_RESTORE, _OLD), VACUUM),
    "lance-purge": Pair(lance, lance, PURGE, VACUUM),
    "lance-undelete": Pair(aside(lance), lance, dvm("undelete"), ASIDE),
    "lance-vacuum": Pair(purged(lance), lance, ASIDE, VACUUM),
    "paimon-rollback": Pair(purged(paimon), paimon, script(_PAIMON_ROLLBACK, _OLD), VACUUM),
    "paimon-purge": Pair(paimon, paimon, PURGE, VACUUM),
    "paimon-undelete": Pair(aside(paimon), paimon, dvm("undelete"), ASIDE),
    "paimon-vacuum": Pair(purged(paimon), paimon, ASIDE, VACUUM),
    "iceberg-rollback": Pair(purged(iceberg), iceberg, script(_ICEBERG_ROLLBACK, _OLD), VACUUM),
    "iceberg-purge": Pair(iceberg, iceberg, PURGE, VACUUM),
    "iceberg-vacuum": Pair(purged(iceberg), iceberg, VACUUM, VACUUM),
}


def _wait() -> None:
    time.sleep(RETENTION + 1)


def rows(backend: TableBackend) -> int | str:
    """How many, or what is wrong."""
    try:
        return len(backend.rows())
    except Exception as error:  # noqa: BLE001 - whatever keeps a table from being read
        return f"{type(error).__name__}: {str(error)[:200]}"


def race(pair: Pair, folder: Path, old: int, delay: float) -> tuple[int, int, str]:
    """Exit codes of the verb and of the vacuum, and what they said."""
    commands = [pair.verb(folder, old), pair.vacuum(folder, old)]
    at = int(delay > 0)
    with _run(commands[at]) as first:
        time.sleep(abs(delay))
        with _run(commands[1 - at]) as second:
            said = [process.communicate()[1].decode().strip()[-200:] for process in (first, second)]
    codes = [first.returncode, second.returncode]
    return codes[at], codes[1 - at], " | ".join(said)


def _run(command: Command) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def soak(name: str, runs: int, files: int) -> int:
    """How many tables can't be read, or read otherwise."""
    pair, wrong, old = PAIRS[name], 0, files * 2 // 3
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        # Iceberg's files are named with the place where they were written.
        template, folder = Path(place, "template"), Path(place, "table")
        backend = pair.build(folder, files)
        before = files if pair.build is folder_of_parquet else rows(backend)
        allowed = {before}
        if pair.open is iceberg:
            old = backend.between(None, backend.open().version())[old]
        if name.endswith(("-restore", "-rollback")):
            allowed.add(len(backend.rows(old)))
        folder.rename(template)
        _wait()
        for run in range(runs):
            shutil.copytree(template, folder, copy_function=_copy)
            verb, vacuum, said = race(pair, folder, old, DELAYS[run % len(DELAYS)])
            not_begun = pair.build is folder_of_parquet and not (folder / "_delta_log").exists()
            after = files if not_begun else rows(pair.open(folder))
            bad = after not in allowed
            wrong += bad
            outcomes[f"verb {verb}, vacuum {vacuum}{', WRONG' if bad else ''}"] += 1
            # 2: there was no table yet to vacuum.
            if bad or verb not in {0, 3} or vacuum not in ({0, 2, 3} if pair.build is folder_of_parquet else {0, 3}):
                print(f"  {name} run {run + 1}: verb {verb} vacuum {vacuum} rows {after} of {allowed}: {said[:400]}")
            shutil.rmtree(folder)
    summary = "; ".join(f"{count} times {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{name}: {runs} runs of {files} files, {wrong} unreadable or wrong: {summary}", flush=True)
    return wrong


def _copy(source: str, target: str) -> str:
    shutil.copyfile(source, target)
    found = os.stat(source)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    return target


def main(runs: int, files: int, names: list[str]) -> int:
    wrong = sum(soak(name, runs, files) for name in names)
    print(f"{wrong} of {runs * len(names)} tables unreadable or wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    given = sys.argv[1:]
    numbers = [int(text) for text in given[:2]]
    runs, files = [*numbers, *(RUNS, FILES)[len(numbers) :]]
    sys.exit(main(runs, files, given[2:] or list(PAIRS)))
