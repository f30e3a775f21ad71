"""Our work against a peer's on the same tables, in turns: ratios below 1 say that we need less.

    python benchmarks/bench_peers.py [--quick] [--only CASE]... [--rounds N] [--json FILE]

A run of all cases writes benchmarks/peers/results.json, and from it the table and the picture of
docs/explanation/benchmarks.md.
``--quick`` takes small tables and writes none of them: it shows that every case works but those that need a JVM, which
it leaves out unless named.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from peers import page
from peers.cases import CASES, Case, Warm
from peers.pairs import as_json, measured
from peers.watch import cpu_seconds

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small tables, one round")
    parser.add_argument("--only", action="append", choices=[case.name for case in CASES], help="repeatable")
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}, or 1 with --quick")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there instead")
    parser.add_argument("--side", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        work_on(*args.side)
        return
    chosen = [case for case in CASES if case.name in (args.only or everything(quick=args.quick))]
    rounds = args.rounds or (1 if args.quick else ROUNDS)
    results = [compare(case, quick=args.quick, rounds=rounds) for case in chosen]
    if args.json is not None:
        args.json.write_text(as_json(results))
    elif not args.quick:
        page.RESULTS.write_text(as_json(results if args.only is None else updated(results)))
        page.write()


def everything(*, quick: bool) -> list[str]:
    left_out = [case.name for case in CASES if quick and case.jvm]
    if left_out:
        print(f"left out, since they need a JVM: {', '.join(left_out)}")
    return [case.name for case in CASES if case.name not in left_out]


def compare(case: Case, *, quick: bool, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = measured(case, Path(folder), quick=quick, rounds=rounds)
    ratio = found["ratio"]
    print(
        f"{case.what:32} {case.peer:24} wall {ratio['wall']:5.2f} ({ratio['least']:.2f} to {ratio['greatest']:.2f}), "
        f"goal {case.goal}; CPU {ratio['cpu']:.2f}; ours {found['ours']['wall']:.2f} s",
        flush=True,
    )
    return found


def updated(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of the last run, with these in their places."""
    last = {case["name"]: case for case in json.loads(page.RESULTS.read_text())["cases"]}
    last |= {case["name"]: case for case in results}
    return [last[case.name] for case in CASES if case.name in last]


def work_on(name: str, side: str, place: str, *small: str) -> None:
    """In a process of its own: prints the wall and CPU seconds of the work."""
    (case,) = (case for case in CASES if case.name == name)
    work = case.ours if side == "ours" else case.theirs
    if isinstance(work, Warm):
        with work.session() as session:
            # At once, or Spark would start only one worker.
            with ThreadPoolExecutor() as threads:
                list(threads.map(partial(work.work, session), small))
            timed(partial(work.work, session), place)
    else:
        assert callable(work)
        timed(work, place)


def timed(work: Callable[[str], object], place: str) -> None:
    started, used = time.perf_counter(), cpu_seconds()
    work(place)
    print(time.perf_counter() - started, cpu_seconds() - used)


if __name__ == "__main__":
    main()
