"""How many statements of a table's writers fail because of compactions: ours, the engine's own, and none.

    python benchmarks/bench_aborts.py [delta | iceberg | lance | paimon ...] [--merge 300] [--rounds 2] [--every 60]
    python benchmarks/bench_aborts.py --quick [...]

Three equal tables in one session, side by side. Each has two writers, which are the format's own engine. One runs short
DELETE, UPDATE and MERGE statements without a pause, in three of four regions (partitions where the format has them).
The other runs one MERGE after the other in the fourth region, each of ``--merge`` seconds. Every ``--every`` seconds a
compaction begins: none on the first table, ours with the policy's defaults on the second, and the engine's own on the
third, which rewrites files from the same share of deleted rows on.

Every other MERGE finds enough deleted rows in its files for a compaction to rewrite them while it runs; the others
begin right after a compaction, with nothing left to do in their files.

The writers keep account of what they committed. In the end their engine reads every row: lost, back, twice or wrong
ones end the program with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from peers.work import CORES
from peers.writers import FILES, FORMATS, GONE, REGIONS, AbortedError, Change, Writers

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.tables import open_table

LANES = ("none", "ours", "theirs")
KINDS = ("delete", "update", "merge")
LONG = REGIONS - 1


@dataclass
class Lane:
    """A table, its writers' account, and what was counted.

    values : what each id holds.
    seconds : those of the short statements.
    merges : of each long MERGE, whether its files were due for a rewrite, and whether it was committed.
    compactions : those that rewrote files, those that lost to a writer, and the commits of the former.
    """

    name: str
    place: str
    writers: Writers
    values: Any
    statements: int = 0
    seconds: float = 0
    reasons: Counter[str] = field(default_factory=Counter)
    merges: list[tuple[bool, bool]] = field(default_factory=list)
    compactions: Counter[str] = field(default_factory=Counter)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def change(self, kind: str, low: int, width: int, seconds: int = 0) -> bool:
        """Whether the statement was committed."""
        now = self.values[low : low + width]
        after = np.where(now == GONE, 0 if kind == "merge" else GONE, GONE if kind == "delete" else now + 1)
        region = low // (FILES * self.writers.per_file)
        try:
            self.writers.run(self.place, Change(kind, region, low, low + width - 1, after.tolist(), seconds))
        except AbortedError as error:
            self.reasons[str(error)] += 1
            return False
        self.values[low : low + width] = after
        return True

    def short_statement(self, draw: random.Random) -> None:
        per_file = self.writers.per_file
        width = draw.randrange(per_file // 50, per_file // 8)
        low = draw.randrange(LONG * FILES) * per_file + draw.randrange(per_file - width)
        began = time.monotonic()
        self.change(draw.choice(KINDS), low, width)
        self.statements += 1
        self.seconds += time.monotonic() - began

    def long_merge(self, number: int, seconds: int) -> None:
        """In the second half of a file; what is due is in the first half of this and of another one."""
        per_file, due = self.writers.per_file, number % 2 == 0
        files = [LONG * FILES + (number // 2 + more) % FILES for more in (0, 1)]
        if due:
            for file in files:
                while not self.change("delete", file * per_file + number * per_file // 50, per_file // 8):
                    pass
        else:
            for _ in range(2):
                self.compact()
        low = files[0] * per_file + per_file // 2
        self.merges.append((due, self.change("merge", low, per_file // 50, seconds)))

    def compact(self) -> None:
        if self.name == "none":
            return
        with self.one_at_a_time:
            try:
                commits = self.maintained() if self.name == "ours" else int(self.writers.compact(self.place) > 0)
            except (AbortedError, ConflictError):
                self.compactions["lost"] += 1
            else:
                self.compactions["done"] += bool(commits)
                self.compactions["commits"] += commits

    def maintained(self) -> int:
        """Versions that our maintenance committed."""
        report = maintain(open_table(self.place), LocalEngine(CORES))
        if not report.verified:
            raise AssertionError(report.problems)
        self.compactions["rows carried over"] += sum(step.rows_carried for step in report.steps)
        return len({step.version for step in report.steps})

    def wrong(self) -> dict[str, int]:
        """Rows that are not what the writers left, as their engine reads them."""
        found = self.writers.read(self.place)
        ids, values = found["id"].to_numpy(), found["v"].to_numpy()
        times = np.bincount(ids, minlength=len(self.values))
        known = np.full(len(self.values), GONE)
        known[ids] = values
        lives, here = self.values != GONE, times > 0
        return {
            "lost": int((lives & ~here).sum()),
            "back": int((~lives & here).sum()),
            "twice": int((times > 1).sum()),
            "wrong": int((lives & here & (known != self.values)).sum()),
        }

    def rewritten(self) -> dict[str, int]:
        """What the commits of compactions replaced: files, and partitions, each counted once per commit."""
        table, found = open_table(self.place), Counter[str]()
        commits = table.changes_since(None).commits
        for before, commit in pairwise(commits):
            if not commit.data_changed:
                old, new = (table.snapshot(each.version).files for each in (before, commit))
                left = pc.invert(pc.is_in(old["path"], value_set=new["path"].combine_chunks()))
                found["commits"] += 1
                found["files"] += pc.sum(left).as_py() or 0
                found["partitions"] += len(old["partition"].filter(left).unique())
        return dict(found)

    def result(self) -> dict[str, Any]:
        short = sum(self.reasons.values()) - sum(not survived for _, survived in self.merges)
        survived = {due: [ok for was, ok in self.merges if was is due] for due in (True, False)}
        return {
            "statements": self.statements,
            "seconds": round(self.seconds / max(self.statements, 1), 2),
            "aborted": short,
            "per_1000": round(1000 * short / max(self.statements, 1), 1),
            "merges_due": [sum(survived[True]), len(survived[True])],
            "merges_not_due": [sum(survived[False]), len(survived[False])],
            "compactions": dict(self.compactions),
            "rewritten": self.rewritten() if self.name != "none" else {},
            "reasons": dict(self.reasons.most_common(4)),
            "rows": self.wrong(),
        }


def race(writers: Writers, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    rows = REGIONS * FILES * writers.per_file
    lanes = [Lane(name, str(writers.folder / name), writers, np.zeros(rows, dtype=np.int64)) for name in LANES]
    for lane in lanes:
        writers.create(lane.place)
    warm = Lane("ours", str(writers.folder / "warm"), writers, np.zeros(rows, dtype=np.int64))
    writers.create(warm.place)
    for kind in KINDS:
        warm.change(kind, 0, writers.per_file // 4)
    writers.compact(warm.place)
    warm.compact()

    ended, trouble = threading.Event(), list[BaseException]()

    def guarded(work: Any, *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 (raised where all are joined)
                trouble.append(error)
                ended.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def stream(lane: Lane) -> None:
        draw = random.Random(options.seed)
        while not ended.is_set():
            lane.short_statement(draw)

    def compactions(lane: Lane) -> None:
        began = time.monotonic()
        while not ended.wait(options.every - (time.monotonic() - began) % options.every):
            lane.compact()

    def long_merges(lane: Lane) -> None:
        for number in range(options.rounds):
            if not ended.is_set():
                lane.long_merge(number, options.merge)

    others = [guarded(work, lane) for lane in lanes for work in (stream, compactions)]
    for thread in [guarded(long_merges, lane) for lane in lanes]:
        thread.join()
    ended.set()
    for thread in others:
        thread.join()
    if trouble:
        raise trouble[0]
    return {lane.name: lane.result() for lane in lanes}


def table(format: str, own: str, found: dict[str, dict[str, Any]]) -> str:
    """Lines of the page's table."""
    lines = []
    for lane, what in zip(LANES, ("none", "ours", f"`{own}`"), strict=True):
        each, done = found[lane], found[lane]["compactions"]
        merges = [f"{ok} of {run}" for ok, run in (each["merges_not_due"], each["merges_due"])]
        cells = [format, what, each["statements"], each["seconds"], each["aborted"], each["per_1000"], *merges]
        cells += [done.get("done", 0), done.get("commits", 0), done.get("lost", 0), sum(each["rows"].values())]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", choices=[[], *FORMATS])
    parser.add_argument("--merge", type=int, default=300, help="seconds of each long MERGE")
    parser.add_argument("--rounds", type=int, default=2, help="long MERGEs on each table")
    parser.add_argument(
        "--every", type=float, default=60, help="seconds from the start of one compaction to that of the next"
    )
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="MERGEs of ten seconds on small tables")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    if options.quick:
        options.merge, options.every, options.rows = 10, 5, 2000
    results = {}
    for name in options.formats or FORMATS:
        with tempfile.TemporaryDirectory(prefix="bench-aborts-") as folder:
            began = time.monotonic()
            with FORMATS[name](Path(folder), options.rows) as writers:
                results[name] = race(writers, options)
        print(f"{name}: {time.monotonic() - began:.0f} s, MERGEs of {options.merge} s")
        print(table(name, writers.own, results[name]))
        for lane, each in results[name].items():
            print(f"  {lane}: {each['compactions']} {each['rewritten']} {each['reasons']} {each['rows']}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    return int(any(count for lanes in results.values() for each in lanes.values() for count in each["rows"].values()))


if __name__ == "__main__":
    sys.exit(main())
