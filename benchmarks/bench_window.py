"""One window, many tables: which rule keeps budget and deadlines, and starves no table.

    python benchmarks/bench_window.py [--tables 200] [--nights 42] [--budget 2160 540] [--seed 7] [--slow 0.01]

The tables are synthetic (`research/fleet.py`) and the same for every rule. `over`: nights over budget.
`starved`: tables that had work worth its cost for seven nights in a row and got nothing. `late`: tables and files whose
deadline passed. `cost`: seconds of CPU of readers and rewrites, by the first rule. Steps take 0.75 to 1.35 of their
estimate; `--slow`: this share of them takes 20 times as long.
"""

from __future__ import annotations

import argparse
import time

from research.fleet import RULES, run

COLUMNS = ("over", "most", "starved", "late", "files", "runs", "lost s", "cost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--nights", type=int, default=42)
    parser.add_argument("--budget", type=float, nargs="+", default=[2160.0, 540.0])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--slow", type=float, default=0.0)
    args = parser.parse_args()
    for budget in args.budget:
        print(f"\n{args.tables} tables, {args.nights} nights, {budget:g} CPU-s a night")
        print(
            f"{'rule':32}{'over':>5}{'most':>8}{'starved':>9}{'late':>6}{'files':>7}{'runs':>7}{'lost s':>8}{'cost':>7}"
        )
        first = 0.0
        for name, rule in RULES.items():
            began = time.perf_counter()
            found = run(rule, tables=args.tables, nights=args.nights, budget=budget, seed=args.seed, slow=args.slow)
            cost = found.reading + found.rewriting
            first = first or cost
            print(
                f"{name:32}{found.over(budget):8}{max(found.used):8.0f}{len(found.starved):8}{len(found.late):8}"
                f"{found.late_files:8}{found.runs:8}{found.lost:8.0f}{cost / first:8.2f}"
                f"   ({time.perf_counter() - began:.1f} s)"
            )
            if found.alert:
                print(f"  night {(found.infeasible_on or 0) + 1}: {found.alert}")


if __name__ == "__main__":
    main()
