"""Measure a case: both sides in turns, each time in a new process on a copy of the table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peers.cases import Case, Warm
from peers.tables import copy
from peers.watch import Watch

SIDES = ("ours", "theirs")
WARM_UPS = 3
SCRIPT = Path(__file__).parent.parent / "bench_peers.py"


def measured(case: Case, folder: Path, *, quick: bool, rounds: int) -> dict[str, Any]:
    """Ratios of ours to theirs (medians over the rounds; of wall time also the least and the greatest), and the medians
    of both sides: ``wall`` and ``cpu`` in seconds, ``peak`` in bytes, ``worker`` that of Spark's largest Python worker.

    Wall and CPU time are those of the work, with the imports that it needs; memory is that of all processes from start
    to end.
    """
    load = round(os.getloadavg()[0], 1)
    full, small = case.sizes
    size = small if quick else full
    tables = dict.fromkeys(SIDES, folder / "table")
    case.build(folder / "table", size)
    if case.other_table is not None:
        tables["theirs"] = folder / "other"
        case.other_table(folder / "other", size)
    if any(isinstance(side, Warm) for side in (case.ours, case.theirs)):
        case.build(folder / "small", small)
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(rounds):
        turn = folder / str(number)
        turn.mkdir()
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            place = tables[side] if case.read_only else copy(tables[side], turn / side)
            runs[side].append(run(case, side, place, folder / "small", turn))
        if not case.read_only and case.other_table is None:
            _check_rows(case, *(turn / side for side in SIDES))
    middle = {
        side: {key: statistics.median(each[key] for each in found) for key in found[0]} for side, found in runs.items()
    }
    pairs = [ours["wall"] / theirs["wall"] for ours, theirs in zip(runs["ours"], runs["theirs"], strict=True)]
    ratios = {
        key: round(value / middle["theirs"][key], 3) for key, value in middle["ours"].items() if key in middle["theirs"]
    }
    spread = {"least": round(min(pairs), 3), "greatest": round(max(pairs), 3)}
    sides_rounded = {
        side: {key: int(value) if key in ("peak", "worker") else round(value, 3) for key, value in found.items()}
        for side, found in middle.items()
    }
    return {
        "name": case.name,
        "what": case.what,
        "peer": case.peer,
        "goal": case.goal,
        "size": size,
        "rounds": rounds,
        "load": load,
        "ratio": ratios | spread,
        **sides_rounded,
    }


def run(case: Case, side: str, place: Path, small: Path, turn: Path) -> dict[str, float]:
    work = case.ours if side == "ours" else case.theirs
    command = [sys.executable, str(SCRIPT), "--side", case.name, side, str(place)]
    if isinstance(work, Warm):
        command += [str(copy(small, turn / f"{side}-small-{number}")) for number in range(WARM_UPS)]
    elif not callable(work):
        command = list(work) if work[1] == "-c" else [*work, str(place)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    watch = Watch(process.pid)
    watch.start()
    out, errors = process.communicate()
    wall = time.perf_counter() - started
    watch.finish()
    if process.returncode:
        raise SystemExit(f"{case.name}, {side}: failed\n{errors[-3000:]}")
    if not callable(work) and not isinstance(work, Warm):
        # Too short for samples.
        return {"wall": wall, "cpu": _cpu(command, environment)}
    wall, cpu = map(float, out.split()[-2:])
    found = {"wall": wall, "cpu": cpu, "peak": float(watch.peak)}
    return found | ({"worker": float(max(watch.workers.values()))} if watch.workers else {})


def _cpu(command: list[str], environment: dict[str, str]) -> float:
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=environment)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _check_rows(case: Case, *places: Path) -> None:
    """Both sides must leave as many rows as each other."""
    from dv_maintenance.tables import open_table

    counts = set()
    for place in places:
        files = open_table(str(place)).snapshot().files
        deleted = sum(each or 0 for each in files["deleted_rows"].to_pylist())
        counts.add(sum(files["physical_rows"].to_pylist()) - deleted)
    if len(counts) > 1:
        raise SystemExit(f"{case.name}: the sides leave {sorted(counts)} rows")


def environment() -> dict[str, Any]:
    """What the figures depend on: no names, no paths."""
    from importlib.metadata import version

    packages = ("dv-maintenance", "deltalake", "pyarrow", "pyspark", "dagster")
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "cores": len(os.sched_getaffinity(0)),
        "packages": {name: version(name) for name in packages},
    }


def as_json(results: list[dict[str, Any]]) -> str:
    return json.dumps({"environment": environment(), "cases": results}, indent=1) + "\n"
