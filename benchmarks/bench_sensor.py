"""A thousand tables in one Dagster code location: how long its definitions and the sensor's ticks take.

    python benchmarks/bench_sensor.py [TABLES]

Small local tables, all due for optimization in the first look. Limits to hold the times against: Dagster ends a tick
after 60 seconds; the sensor looks every 60 by default.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_job, build_dv_schedule, build_dv_sensor
from dv_maintenance.maintenance.tables_file import WatchedTable
from dv_maintenance.testing.delta_builder import DeltaBuilder

TABLES = 1000
CHANGED = 100
SENSOR = "dv_accumulation"
T = TypeVar("T")


def build(folder: Path, count: int) -> list[WatchedTable]:
    model = str(folder / "model")
    DeltaBuilder(model).create(pa.schema([("id", pa.int64())])).append(pa.table({"id": range(2000)}), files=2)
    delete(model, 2)
    places = [folder / f"t{number:04}" for number in range(count)]
    for place in places:
        shutil.copytree(model, place)
    return [WatchedTable(name=f"lake/{place.name}", path=str(place)) for place in places]


def delete(path: str, bit: int) -> None:
    DeltaBuilder(path).delete(lambda rows: pc.not_equal(pc.bit_wise_and(rows["id"], bit), 0))


def load(tables: list[WatchedTable]) -> dg.Definitions:
    job = build_dv_job(tables)
    defs = dg.Definitions(
        assets=build_dv_assets(tables),
        jobs=[job],
        schedules=[build_dv_schedule(job)],
        sensors=[build_dv_sensor(tables, name=SENSOR)],
        resources={"spark": SparkResource()},
        executor=dg.in_process_executor,
    )
    defs.get_repository_def().load_all_definitions()
    return defs


def timed(what: str, work: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = work()
    print(f"{what:56} {time.perf_counter() - start:7.2f} s")
    return result


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.ephemeral() as instance:
        tables = build(Path(folder), count)
        defs = timed(f"load the definitions of {count} tables", lambda: load(tables))
        repository, sensor = defs.get_repository_def(), defs.resolve_sensor_def(SENSOR)
        cursors: list[str | None] = [None]

        def tick() -> list[dg.RunRequest]:
            context = dg.build_sensor_context(instance=instance, cursor=cursors[-1], repository_def=repository)
            data = sensor.evaluate_tick(context)
            cursors.append(data.cursor)
            return list(data.run_requests or ())

        requests = timed("first tick: every table is new", tick)
        print(f"  {len(requests)} runs requested, a cursor of {len(cursors[-1] or '') / 1000:.0f} kB")
        while requests:
            # What the daemon makes of them.
            for request in requests:
                instance.add_run(
                    dg.DagsterRun(
                        job_name="__ASSET_JOB",
                        run_id=str(uuid4()),
                        tags=request.tags,
                        asset_selection=frozenset(request.asset_selection or ()),
                        status=dg.DagsterRunStatus.STARTED,
                    )
                )
            requests = tick()
        timed(f"unchanged, all {count} due, their runs under way", tick)
        for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
            instance.delete_run(run.run_id)
        timed("unchanged, all due again, no run under way", tick)
        for table in tables[:CHANGED]:
            delete(table.path, 4)
        timed(f"{min(CHANGED, count)} tables changed", tick)
        # As after maintenance.
        cursors.append((cursors[-1] or "").replace('"o"', '""'))
        timed("unchanged, nothing due", tick)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TABLES)
