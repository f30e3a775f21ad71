"""The watcher: once per data change that is due, whatever restarts it; never a storm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

# Runs the trigger as a triggerer does, with a store that outlives it. `steps` are what others do to the table.
SCRIPT = """
import asyncio, os, tempfile
import pyarrow as pa, pyarrow.compute as pc
from pydantic import JsonValue, TypeAdapter
from dv_maintenance.airflow import trigger as module
from dv_maintenance.airflow import DvTrigger
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.service import verbs
from dv_maintenance.airflow.tables import watched
from dv_maintenance.testing.delta_builder import DeltaBuilder

module._SECONDS_UNTIL_WRITTEN = 0.05
VALUES = TypeAdapter(JsonValue)

class Store:
    def __init__(self): self.kept, self.fails = {}, False
    async def aget(self, key, default=None): return self.kept.get(key, default)
    async def aset(self, key, value):
        if self.fails: raise OSError("the API server is away")
        self.kept[key] = VALUES.validate_json(VALUES.dump_json(VALUES.validate_python(value)))

def fresh():
    global table, store, events
    os.chdir(tempfile.mkdtemp(dir=HERE))
    schema = pa.schema([("id", pa.int64())])
    table = DeltaBuilder("orders").create(schema)
    table.append(pa.table({"id": range(1000)}, schema))
    store, events = Store(), []

def delete(below): table.delete(lambda rows: pc.less(rows["id"], below))
def optimize(): verbs.optimize(watched("orders"), verbs.opened(watched("orders")), LocalEngine)

def start(keeps=True):
    _, kwargs = DvTrigger("orders", every_seconds=0.05).serialize()
    trigger = DvTrigger(**kwargs)
    trigger.asset_state_store = store if keeps else None
    into = events
    async def watch():
        async for event in trigger.run(): into.append(event.payload)
    return asyncio.create_task(watch())

async def rest(): await asyncio.sleep(0.7)
async def kill(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

async def once_per_change_and_neither_twice_nor_never_after_a_restart():
    watcher = start()
    await rest(); assert events == [], "nothing is due"
    delete(100); await rest(); assert len(events) == 1, events
    await rest(); assert len(events) == 1, "the same change fired again"
    await kill(watcher); watcher = start()
    await rest(); assert len(events) == 1, "a restart fired again"
    optimize(); await rest(); assert len(events) == 1, "maintenance is no data change"
    await kill(watcher); delete(300); watcher = start()
    await rest(); assert len(events) == 2, "a change while nobody watched"
    delete(500); await rest(); assert len(events) == 3, "another change of a table that is still due"
    await kill(watcher)
    assert [each["data_version"] for each in events] == [2, 4, 5]
    assert all(each["due"] == ["optimize"] for each in events)

async def without_a_store_only_a_restart_repeats_what_is_still_due():  # Airflow before 3.3
    watcher = start(keeps=False); delete(100); await rest(); assert len(events) == 1, events
    await kill(watcher); watcher = start(keeps=False); await rest(); assert len(events) == 2, events
    optimize(); await kill(watcher); watcher = start(keeps=False); await rest(); assert len(events) == 2, events
    await kill(watcher)

async def a_store_that_fails_is_no_storm():
    # As a value did that the store does not take: the watcher ended, was started again, and fired again.
    store.fails = True; watcher = start(); delete(100); await rest(); assert len(events) == 1, events
    store.fails = False; await rest(); await kill(watcher); watcher = start(); await rest()
    assert len(events) == 1, "what failed was not written later"
    await kill(watcher)

async def a_table_that_cannot_be_read_does_not_end_the_watch():
    delete(100); os.rename("orders", "gone"); watcher = start(); await rest(); assert not watcher.done()
    os.rename("gone", "orders"); await rest(); assert len(events) == 1, events
    await kill(watcher)

async def main():
    for scenario in (
        once_per_change_and_neither_twice_nor_never_after_a_restart,
        without_a_store_only_a_restart_repeats_what_is_still_due,
        a_store_that_fails_is_no_storm,
        a_table_that_cannot_be_read_does_not_end_the_watch,
    ):
        fresh()
        await scenario()
        print("passed:", scenario.__name__)

asyncio.run(main())
"""


def test_scenarios(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    """All in one process: it takes seconds to import Airflow."""
    assert in_airflow(f"HERE = {str(tmp_path)!r}\n{SCRIPT}").count("passed:") == 4
