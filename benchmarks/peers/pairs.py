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

from peers.cases import Case
from peers.tables import copy
from peers.watch import Watch

SCRIPT = Path(__file__).parent.parent / "bench_peers.py"


def measured(case: Case, folder: Path, *, quick: bool, rounds: int) -> dict[str, Any]:
    """Ratios of ours to theirs (medians over the rounds; of wall time also the least and the greatest), and the medians
    of both sides: ``wall`` and ``cpu`` in seconds, ``peak`` in bytes.

    Wall time is that of the work, with the imports that it needs; CPU time and memory are those of the whole process.
    """
    table = folder / "table"
    size = case.quick if quick else case.size
    case.build(table, size)
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for number in range(rounds):
        sides = ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours")
        for side in sides:
            place = copied(table, folder / f"{side}{number}")
            runs[side].append(run(case, side, place))
        _check_rows(case, *(folder / f"{side}{number}" for side in ("ours", "theirs")))
    middle = {
        side: {key: statistics.median(each[key] for each in found) for key in found[0]} for side, found in runs.items()
    }
    pairs = [ours["wall"] / theirs["wall"] for ours, theirs in zip(runs["ours"], runs["theirs"], strict=True)]
    ratios = {key: round(middle["ours"][key] / middle["theirs"][key], 3) for key in middle["ours"]}
    spread = {"least": round(min(pairs), 3), "greatest": round(max(pairs), 3)}
    sides_rounded = {
        side: {key: round(value, 3) if key != "peak" else int(value) for key, value in found.items()}
        for side, found in middle.items()
    }
    return {
        "name": case.name,
        "what": case.what,
        "peer": case.peer,
        "goal": case.goal,
        "size": size,
        "rounds": rounds,
        "ratio": ratios | spread,
        **sides_rounded,
    }


def copied(table: Path, target: Path) -> Path:
    """A copy that may be changed; a table with folders is only read, and shared."""
    if any(each.is_dir() and each.name != "_delta_log" for each in table.iterdir()):
        target.symlink_to(table)
        return table
    return copy(table, target)


def run(case: Case, side: str, place: Path) -> dict[str, float]:
    work = case.ours if side == "ours" else case.theirs
    command = [sys.executable, str(SCRIPT), "--side", case.name, side, str(place)]
    if not callable(work):
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
    if not callable(work):
        # Too short for samples.
        return {"wall": wall, "cpu": _cpu(command, environment)}
    return {"wall": float(out.split()[-1]), "cpu": sum(watch.cpu.values()), "peak": float(watch.peak)}


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
        "load": round(os.getloadavg()[0], 1),
        "packages": {name: version(name) for name in packages},
    }


def as_json(results: list[dict[str, Any]]) -> str:
    return json.dumps({"environment": environment(), "cases": results}, indent=1) + "\n"
