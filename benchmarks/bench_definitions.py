"""The definitions of many tables in one Dagster code location, against as many empty assets in Dagster itself.

    python benchmarks/bench_definitions.py [--tables 10000] [--rounds 3]

The peer has the same asset keys, checks, pools, job, schedule and sensor, each op with an empty body and nothing else:
what Dagster costs whatever the package does. A process for each, the two in turns. ``assets only`` leaves the checks
out. Load: from the list of tables until every definition is resolved and validated, as in the code server; snapshot:
what the code server then makes of it for Dagster's pages and daemon. Left: of 60,000 objects in cycles that the user's
own process makes and drops after the load, how many a full collection leaves, then and when 200,000 more are made.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any, ClassVar

WHO = ("ours", "empty", "assets only")


def tables_of(count: int) -> list[Any]:
    from dv_maintenance.service.tables_file import TableSettings

    return [TableSettings(name=f"lake/t{number:05}", path=f"/lake/t{number:05}") for number in range(count)]


def ours(tables: list[Any]) -> Any:
    import dagster as dg

    from dv_maintenance.dagster import (
        SparkResource,
        build_dv_assets,
        build_dv_checks,
        build_dv_job,
        build_dv_schedule,
        build_dv_sensor,
    )

    job = build_dv_job(tables)
    return dg.Definitions(
        assets=build_dv_assets(tables),
        asset_checks=build_dv_checks(tables),
        jobs=[job],
        schedules=[build_dv_schedule(job)],
        sensors=[build_dv_sensor(tables)],
        resources={"spark": SparkResource()},
        executor=dg.in_process_executor,
    )


def empty(tables: list[Any], *, checks: bool = True) -> Any:
    import warnings

    import dagster as dg

    from dv_maintenance.service.checks import FSCK, check_names

    warnings.simplefilter("ignore", dg.BetaWarning)
    assets: list[Any] = []
    asset_checks: list[Any] = []
    names = []
    for number, table in enumerate(tables):
        name = f"t{number:05}"
        key = dg.AssetKey(["lake", name])
        below = [dg.AssetKey(["lake", name, "dv", f"{name}_{job}"]) for job in ("optimize", "vacuum")]
        names += [key, *below]

        @dg.multi_observable_source_asset(  # type: ignore[untyped-decorator]
            name=f"{name}_observe", specs=[dg.AssetSpec(key)]
        )
        def observe() -> None:
            pass

        assets.append(observe)
        for job, spec in zip(
            ("optimize", "vacuum"),
            (dg.AssetSpec(below[0], deps=[key]), dg.AssetSpec(below[1], deps=[below[0]])),
            strict=True,
        ):

            @dg.multi_asset(name=f"{name}_{job}", specs=[spec], pool=f"pool_{name}")
            def work() -> None:
                pass

            assets.append(work)
        if not checks:
            continue
        for what, found in (("checks", check_names(table)), (FSCK, [FSCK])):
            specs = [
                dg.AssetCheckSpec(each, asset=key, additional_deps=[] if what == FSCK else below) for each in found
            ]

            @dg.multi_asset_check(name=f"{name}_{what}", specs=specs, can_subset=True)
            def look() -> Any:
                yield from ()

            asset_checks.append(look)
    job_def = dg.define_asset_job("all_tables", dg.AssetSelection.assets(*names), executor_def=dg.in_process_executor)

    @dg.sensor(name="sensor", asset_selection=dg.AssetSelection.assets(*names))
    def sensor() -> None:
        pass

    return dg.Definitions(
        assets=assets,
        asset_checks=asset_checks,
        jobs=[job_def],
        schedules=[dg.ScheduleDefinition(name="daily", job=job_def, cron_schedule="0 3 * * *")],
        sensors=[sensor],
        executor=dg.in_process_executor,
    )


class Own:
    """An object of the user's process, in a cycle."""

    alive: ClassVar[int] = 0

    def __init__(self) -> None:
        self.itself = self
        Own.alive += 1

    def __del__(self) -> None:
        Own.alive -= 1


def left() -> tuple[int, int]:
    """Of 60,000 that are dropped: how many a collection leaves, and how many the next one after more work."""
    own = [Own() for _ in range(60_000)]
    del own
    gc.collect()
    at_once = Own.alive
    work = [[number] for number in range(200_000)]
    gc.collect()
    del work
    return at_once, Own.alive


def run(who: str, count: int) -> dict[str, float]:
    from dagster._core.remote_representation.external_data import RepositorySnap

    def definitions(tables: list[Any]) -> Any:
        return ours(tables) if who == "ours" else empty(tables, checks=who == "empty")

    # Imports are not what is measured, and the first table needs them.
    definitions(tables_of(1)).get_repository_def().load_all_definitions()
    tables = tables_of(count)
    start, cpu = time.perf_counter(), time.process_time()
    defs = definitions(tables)
    built = time.perf_counter() - start
    repository = defs.get_repository_def()
    repository.load_all_definitions()
    load, load_cpu = time.perf_counter() - start, time.process_time() - cpu
    at_once, later = left()
    start = time.perf_counter()
    RepositorySnap.from_def(repository, defer_snapshots=True)
    snapshot = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {
        "build": built,
        "load": load,
        "CPU": load_cpu,
        "snapshot": snapshot,
        "peak MB": peak,
        "left": at_once,
        "later": later,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=WHO, action="append")
    parser.add_argument("--run", choices=WHO, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(run(args.run, args.tables)))
        return
    chosen = args.only or list(WHO)
    found: dict[str, list[dict[str, float]]] = {who: [] for who in chosen}
    for _ in range(args.rounds):
        for who, results in found.items():
            command = [sys.executable, __file__, "--tables", str(args.tables), "--run", who]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            results.append(json.loads(out.splitlines()[-1]))

    def middle(who: str, name: str) -> float:
        return median(each[name] for each in found[who])

    print(f"{args.tables:,} tables, medians of {args.rounds}; seconds")
    print("".join([f"{'':12}", *(f"{name:>10}" for name in found[chosen[0]][0])]))
    for who, results in found.items():
        print(f"{who:12}", *(f"{middle(who, name):9.2f}" for name in results[0]))
    if "ours" in found:
        for peer in chosen[1:]:
            both = (name for name in found[peer][0] if name not in {"left", "later"})
            ratios = (f"{name} {middle('ours', name) / middle(peer, name):.2f}" for name in both)
            print(f"ours / {peer}: {', '.join(ratios)}")


if __name__ == "__main__":
    main()
