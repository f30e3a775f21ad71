"""Purges of a Lance table against two processes that delete from it without a pause, and one that cleans up.

    python benchmarks/race_lance.py [--seconds 60] [--rows 400000] [--address]

Four processes: two deleters (each owns every other id and knows what it deleted), one that purges in a loop, one that
vacuums in a loop. At last the table is cleaned up for good and everything is compared: rows with what the deleters
left, by Lance itself; bytes on disk with what the newest version names; rewrites that were finished with those that
were committed. Ends with exit code 1 if anything differs. Beside it, for as long, Lance's own ``compact_files`` in
place of the purge counts the rewrites that it loses.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.lance.commit import rewrites as commit
from dv_maintenance.tables.table import CommitOutcome

FRAGMENT = 20_000
# Readers of ours and theirs open a version and are done with it sooner.
RETENTION = 10_000


def warm_up(place: str) -> None:
    """Begin with everybody there: long enough for each process to get one of these."""
    lance.dataset(place)
    time.sleep(2)


def deletes(place: str, number: int, end: float, rows: int) -> dict[str, Any]:
    draw, gone, counts = random.Random(number), set[int](), Counter[str]()
    while time.time() < end:
        start, width = draw.randrange(rows), draw.choice((4, 40, 400))
        lance.dataset(place).delete(f"id >= {start} and id < {start + width} and id % 2 = {number}")
        gone |= {n for n in range(start, min(start + width, rows)) if n % 2 == number}
        counts["deletes"] += 1
    return {"counts": counts, "gone": gone}


def purges(place: str, end: float) -> dict[str, Any]:
    counts = Counter[str]()
    outcomes: list[CommitOutcome] = []
    commits = commit.commit

    def noted(*args: Any, **options: Any) -> CommitOutcome:
        outcomes.append(commits(*args, **options))
        return outcomes[-1]

    commit.commit = noted
    while time.time() < end:
        try:
            report = purge(open_table(place), LocalEngine())
        except ConflictError:
            counts["lost"] += 1
            continue
        if not report.verified:
            raise AssertionError(report.problems)
        counts["purges"] += bool(report.steps)
        counts["rows purged"] += sum(step.rows_purged for step in report.steps)
        counts["deletes carried over"] += sum(step.rows_carried for step in report.steps)
    for outcome in outcomes:
        counts["rewrites finished"] += len(outcome.committed) + len(outcome.lost)
        counts["rewrites committed"] += len(outcome.committed)
        counts[f"lost: {outcome.reason}"] += len(outcome.lost)
    return {"counts": +counts}


def compacts(place: str, end: float) -> dict[str, Any]:
    counts = Counter[str]()
    while time.time() < end:
        dataset = lance.dataset(place)
        try:
            metrics = dataset.optimize.compact_files(
                target_rows_per_fragment=FRAGMENT, materialize_deletions_threshold=0.0, num_threads=1
            )
        except OSError:
            counts["lost"] += 1
        else:
            counts["purges"] += bool(metrics.fragments_removed)
    return {"counts": counts}


def cleans(place: str, end: float) -> dict[str, Any]:
    counts = Counter[str]()
    while time.time() < end:
        report = vacuum(open_table(place), VacuumRequest(retention=RETENTION, allow_short_retention=True))
        counts["vacuums"] += 1
        counts["files removed"] += report.deleted
        time.sleep(1)
    return {"counts": counts}


def race(place: str, seconds: float, rows: int, *, stable: bool, rewriter: Callable[..., Any]) -> tuple[Any, set[int]]:
    data = pa.table({"id": range(rows), "name": [f"name {n}" for n in range(rows)]})
    lance.write_dataset(data, place, max_rows_per_file=FRAGMENT, enable_stable_row_ids=stable)
    with mp.get_context("spawn").Pool(4) as pool:
        pool.map(warm_up, [place] * 4, chunksize=1)
        end = time.time() + seconds
        jobs = [pool.apply_async(deletes, (place, number, end, rows)) for number in (0, 1)]
        jobs += [pool.apply_async(rewriter, (place, end)), pool.apply_async(cleans, (place, end))]
        found = [job.get(seconds + 120) for job in jobs]
    counts = sum((each["counts"] for each in found), Counter[str]())
    return counts, found[0]["gone"] | found[1]["gone"]


def on_disk(place: str) -> Counter[str]:
    sizes = Counter[str]()
    for path in Path(place).rglob("*"):
        if path.is_file():
            sizes[path.relative_to(place).parts[0]] += path.stat().st_size
    return sizes


def named(place: str) -> Counter[str]:
    """What the newest version names."""
    sizes = Counter[str]()
    files = open_table(place).snapshot().files
    sizes["data"] = sum(files["size"].to_pylist())
    paths = [path for path in files["dv_id"].to_pylist() if path]
    sizes["_deletions"] = sum(os.path.getsize(Path(place, path)) for path in paths)
    return sizes


def check(place: str, rows: int, gone: set[int]) -> bool:
    ids = lance.dataset(place).to_table(columns=["id"])["id"].to_pylist()
    back, lost = len(set(ids) & gone), rows - len(gone) - len(set(ids) - gone)
    lance.dataset(place).validate()  # type: ignore[no-untyped-call]
    # A week later: what failed deletes of Lance wrote is nobody's by then.
    now = time.time_ns() // 1_000_000 + 8 * 86_400_000
    vacuum(open_table(place), VacuumRequest(retention=0, allow_short_retention=True, now=now))
    after = sorted(lance.dataset(place).to_table(columns=["id"])["id"].to_pylist()) == sorted(ids)
    disk, wanted = on_disk(place), named(place)
    kept = {folder: disk[folder] for folder in ("data", "_deletions")}
    print(f"  rows lost {lost}, back {back}, twice {len(ids) - len(set(ids))}; after cleanup the same: {after}")
    print(f"  bytes on disk {kept}, named by the newest version {dict(wanted)}")
    return not lost and not back and len(ids) == len(set(ids)) and after and kept == dict(wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--address", action="store_true", help="row ids that are addresses, not stable ones")
    wanted = parser.parse_args()
    fine = True
    with tempfile.TemporaryDirectory(prefix="race-lance-") as folder:
        for name, rewriter in (("ours", purges), ("compact_files", compacts)):
            place = str(Path(folder, name))
            counts, gone = race(place, wanted.seconds, wanted.rows, stable=not wanted.address, rewriter=rewriter)
            print(f"{name}, {wanted.seconds:g} s: {dict(sorted(counts.items()))}")
            if rewriter is purges:
                fine = check(place, wanted.rows, gone) and not counts["lost"]
                fine &= counts["rewrites committed"] == counts["rewrites finished"] > 0
    print("as it should be" if fine else "NOT as it should be")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
