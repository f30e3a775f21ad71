"""What rules of maintenance cost on lives of tables, against a lower bound, with the planner of real runs.

    python benchmarks/bench_policy.py [--days 30] [--seed 0] [--kind SUBSTRING] [--reads 1.0] [--erase] [--git FOLDER]

Lives are made from a seed, see benchmarks/research/traces.py. Costs are seconds of CPU: what readers pay for deleted
rows, deletion vectors and small files, what rewrites cost, and 25 s for each start of a run. "x" is the cost divided by
what a clairvoyant would have paid at least (simulation/bound.py). ``--reads``: the factor by which the declared rate of
reads is wrong. ``--git``: instead, the history of a Git repository as change data, a line being 2,000 rows.
``--erase``: with deadlines of 30 days, 7 of retention, and vacuums every day.
"""

from __future__ import annotations

import argparse
import subprocess
from math import exp, log

from research.rules import by_thresholds
from research.traces import KINDS, trace

from dv_maintenance.maintenance.meter.prices import Prices
from dv_maintenance.maintenance.planning import drafts
from dv_maintenance.maintenance.planning.deadlines import Erasure
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.reads import Reads
from dv_maintenance.maintenance.simulation.bound import clairvoyant
from dv_maintenance.maintenance.simulation.replay import Replayed, Rule, replay
from dv_maintenance.maintenance.simulation.rules import by_meter, never, purge_every_night
from dv_maintenance.maintenance.simulation.trace import Trace, TraceBuilder

DAY = 86_400_000
PRICES = Prices()
TARGET = 256 << 20
SMALL = TARGET * 3 // 4
START = PRICES.start
ERASURE = Erasure(30 * DAY, 7 * DAY, DAY)
# Five-minute statements make many events: a week of them says what a month would.
MOST_DAYS = {"CDC, 5 min": 7, "CDC, hourly": 21}


def rules(life: Trace, wrong: float) -> list[Rule]:
    plain = Policy()
    declared = Reads.declared(life.reads.per_day(life.end) * wrong)
    return [
        never(),
        purge_every_night(START),
        by_thresholds("thresholds, sensor", plain, nightly=False, start=START),
        by_thresholds("thresholds, nightly", plain, nightly=True, start=START),
        by_thresholds(
            "Iceberg's 5 files / 0.3", Policy(max_deleted_ratio=0.3, min_input_files=5), nightly=True, start=START
        ),
        by_meter("meter, sensor", plain, declared, nightly=False, start=START),
        by_meter("meter, nightly", plain, declared, nightly=True, start=START),
        by_meter("meter, small start", plain, declared, nightly=False, start=1.0),
        by_meter("meter, 30 d", plain, declared, nightly=False, start=START, erasure=ERASURE),
    ]


def run(life: Trace, rule: Rule, *, erase: bool) -> Replayed:
    # Merges before they waited for files of the same size together.
    waits, drafts.ABOUT_AS_LARGE = (
        drafts.ABOUT_AS_LARGE,
        1e9 if rule.name.startswith(("thresholds", "Iceberg")) else drafts.ABOUT_AS_LARGE,
    )
    try:
        within = ERASURE.erase_within - ERASURE.after_purge if erase else None
        return replay(life, rule, PRICES, target=TARGET, small=SMALL, purge_within=within)
    finally:
        drafts.ABOUT_AS_LARGE = waits


def of_git(folder: str) -> Trace:
    """Each commit adds its new lines as a file, and deletes the old ones from the files that added them."""
    command = ["git", "-C", folder, "log", "--reverse", "--no-merges", "--numstat", "--format=@%ct"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    times = sorted(int(line[1:]) for line in lines if line.startswith("@"))
    builder = TraceBuilder(f"git history of {len(times)} commits", times[0] * 1000 - 1)
    pieces: dict[str, list[int]] = {}
    time = times[0] * 1000
    new: dict[str, int] = {}

    def commit() -> None:
        if new:
            piece = builder.add(time, 2_000 * 100 * sum(new.values()), 2_000 * sum(new.values()))
            for path in new:
                pieces.setdefault(path, []).append(piece)
        new.clear()
        builder.statement()

    for line in lines:
        if line.startswith("@"):
            commit()
            time = max(time, int(line[1:]) * 1000)
        elif line and not line.startswith("-"):
            added, deleted, path = line.split("\t")
            left = 2_000 * int(deleted)
            for piece in reversed(pieces.get(path, [])):
                gone = min(left, builder.live_rows(piece))
                builder.delete(time, piece, gone)
                left -= gone
            if int(added):
                new[path] = int(added)
    commit()
    return builder.build(times[-1] * 1000 + 1, Reads.declared(200.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", default="")
    parser.add_argument("--reads", type=float, default=1.0)
    parser.add_argument("--erase", action="store_true")
    parser.add_argument("--git")
    args = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    worse: list[str] = []
    chosen = [kind for kind in KINDS if args.kind in kind]
    lives = (trace(kind, days=min(args.days, MOST_DAYS.get(kind, args.days)), seed=args.seed) for kind in chosen)
    for life in [of_git(args.git)] if args.git else lives:
        kind = life.name
        least = clairvoyant(life, PRICES, target=TARGET, small=SMALL, start=START)
        print(f"\n{kind}: {life.statements} statements, {(life.end - life.start) // DAY} days, at least {least:.0f} s")
        found = [run(life, rule, erase=args.erase) for rule in rules(life, args.reads)]
        nightly = next(each.cost for each in found if each.rule == "thresholds, nightly")
        for each in found:
            ratios.setdefault(each.rule, []).append(each.cost / least)
            amplification = 1 + each.written / life.appended if life.appended > TARGET else 1.0
            print(
                f"  {each.rule:24} x{each.cost / least:6.2f}  {each.cost:8.0f} s: read {each.reading:8.0f}, "
                f"rewrite {each.rewriting:7.0f}, start {each.starting:7.0f}; runs {each.runs:5}, amplification "
                f"{amplification:6.2f}, disturbed {each.disturbed:4} of {life.statements}, late {each.late_days:.1f} d",
                flush=True,
            )
            if each.rule in {"meter, sensor", "meter, nightly"} and each.cost > 1.1 * nightly:
                worse.append(f"{each.rule} on {kind}: {each.cost / nightly:.2f} times the nightly thresholds")
    print("\ngeometric mean, worst:")
    for rule, values in ratios.items():
        print(f"  {rule:24} {exp(sum(map(log, values)) / len(values)):6.2f} {max(values):7.2f}")
    print("more than 10 % above the nightly thresholds:", "; ".join(worse) or "nowhere")


if __name__ == "__main__":
    main()
