"""A thousand tables in one Dagster code location: how long its definitions and the sensor's ticks take.

    python benchmarks/bench_sensor.py [TABLES] [--latency 0.03]

Small local tables, all due for optimization at the first tick, and an instance on disk with the settings of
``sensors/dagster.yaml``. Limits to compare the times with: Dagster ends a tick after 60 seconds; by default the sensor
evaluates every 60 seconds. With ``--latency`` the tables are in an object store that takes so many seconds for each
answer (``slow_store.py``); only ticks are timed then.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import slow_store

from dv_maintenance.dagster import SparkResource, build_dv_assets, build_dv_job, build_dv_schedule, build_dv_sensor
from dv_maintenance.service.cursor import Cursor
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.testing.delta_builder import DeltaBuilder

TABLES = 1000
CHANGED = 100
SENSOR = "dv_accumulation"
T = TypeVar("T")


def build(folder: Path, count: int) -> list[TableSettings]:
    model = str(folder / "model")
    DeltaBuilder(model).create(pa.schema([("id", pa.int64())])).append(pa.table({"id": range(2000)}), files=2)
    delete(model, 2)
    places = [folder / f"t{number:04}" for number in range(count)]
    for place in places:
        shutil.copytree(model, place)
    return [TableSettings(name=f"lake/{place.name}", path=str(place)) for place in places]


def delete(path: str, bit: int) -> None:
    DeltaBuilder(path).delete(lambda rows: pc.not_equal(pc.bit_wise_and(rows["id"], bit), 0))


def load(tables: list[TableSettings]) -> dg.Definitions:
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


def on_disk(home: str) -> dg.DagsterInstance:
    shutil.copy(Path(__file__).parent.parent / "sensors" / "dagster.yaml", home)
    return dg.DagsterInstance.from_config(home)


def timed(what: str, work: Callable[[], T]) -> T:
    start = time.perf_counter()
    result = work()
    print(f"{what:56} {time.perf_counter() - start:7.2f} s")
    return result


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tables = build(Path(folder), count)
        defs = timed(f"load the definitions of {count} tables", lambda: load(tables))
        with tempfile.TemporaryDirectory() as home, on_disk(home) as instance:
            ticks = Ticks(defs, instance)
            requests = timed("first tick: every table is new", ticks.tick)
            print(f"  {len(requests)} runs requested, a cursor of {len(ticks.cursor or '') / 1000:.0f} kB")
            while requests:
                ticks.start(requests)
                requests = ticks.tick()
            timed(f"unchanged, all {count} due, their runs under way", ticks.tick)
        # Another instance, in which these runs never were: to end a thousand of them would take minutes.
        with tempfile.TemporaryDirectory() as home, on_disk(home) as instance:
            ticks = Ticks(defs, instance, ticks.cursor)
            timed("unchanged, all due, no run under way", ticks.tick)
            # As after maintenance.
            ticks.cursor = (ticks.cursor or "").replace('"o"', '""')
            timed("unchanged, nothing due", ticks.tick)
            for table in tables[:CHANGED]:
                delete(table.path, 4)
            timed(f"{min(CHANGED, count)} tables changed", ticks.tick)


def in_a_store(count: int, latency: float) -> None:
    """The first ticks share the work; then nothing changes."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home, on_disk(home) as instance:
        local = build(Path(folder), count)
        with slow_store.running(Path(folder), latency) as options:
            tables = [
                TableSettings(name=each.name, path=f"s3://lake/{Path(each.path).name}", storage_options=options)
                for each in local
            ]
            ticks = Ticks(load(tables), instance)
            number = 0
            while number == 0 or Cursor.from_json(ticks.cursor).tables.keys() != {table.name for table in tables}:
                number += 1
                timed(f"tick {number}", ticks.tick)
                print(f"  {len(Cursor.from_json(ticks.cursor).tables)} tables known")
            ticks.cursor = (ticks.cursor or "").replace('"o"', '""')
            slow_store.requests(options)
            timed(f"unchanged, nothing due in {count} tables", ticks.tick)
            print(f"  {slow_store.requests(options)}")


class Ticks:
    """A sensor's ticks, one after the other."""

    def __init__(self, defs: dg.Definitions, instance: dg.DagsterInstance, cursor: str | None = None) -> None:
        self.repository, self.sensor = defs.get_repository_def(), defs.resolve_sensor_def(SENSOR)
        self.instance, self.cursor = instance, cursor

    def tick(self) -> list[dg.RunRequest]:
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor, repository_def=self.repository)
        data = self.sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return list(data.run_requests or ())

    def start(self, requests: list[dg.RunRequest]) -> None:
        """What the daemon makes of requests."""
        for request in requests:
            self.instance.add_run(
                dg.DagsterRun(
                    job_name="__ASSET_JOB",
                    run_id=str(uuid4()),
                    tags=request.tags,
                    asset_selection=frozenset(request.asset_selection or ()),
                    status=dg.DagsterRunStatus.STARTED,
                )
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=int, nargs="?", default=TABLES)
    parser.add_argument("--latency", type=float, help="seconds")
    args = parser.parse_args()
    if args.latency is None:
        main(args.tables)
    else:
        in_a_store(args.tables, args.latency)
