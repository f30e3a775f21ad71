"""The watcher: once per data change that is due, whatever restarts it; never a storm."""

from __future__ import annotations

from collections.abc import Callable

# Runs the trigger as a triggerer does, with a store that outlives it. `steps` are what others do to the table.
SCRIPT = """
import asyncio, json
import pyarrow as pa, pyarrow.compute as pc
from pydantic import JsonValue, TypeAdapter
from dv_maintenance.airflow import trigger as module
from dv_maintenance.airflow import DvTrigger
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.service import verbs
from dv_maintenance.airflow.tables import watched
from dv_maintenance.testing.delta_builder import DeltaBuilder

module._SECONDS_UNTIL_WRITTEN = 0.05

class Store:
    def __init__(self): self.kept, self.fails = {}, False
    async def aget(self, key, default=None): return self.kept.get(key, default)
    async def aset(self, key, value):
        if self.fails: raise OSError("the API server is away")
        self.kept[key] = json.loads(TypeAdapter(JsonValue).dump_json(TypeAdapter(JsonValue).validate_python(value)))

schema = pa.schema([("id", pa.int64())])
table = DeltaBuilder("orders").create(schema)
table.append(pa.table({"id": range(1000)}, schema))
store, events, log = Store(), [], []

def delete(below): table.delete(lambda rows: pc.less(rows["id"], below))
def optimize(): verbs.optimize(watched("orders"), verbs.opened(watched("orders")), LocalEngine)

def start(keeps=True, **settings):
    _, kwargs = DvTrigger("orders", every_seconds=0.05, **settings).serialize()
    trigger = DvTrigger(**kwargs)
    trigger.asset_state_store = store if keeps else None
    async def watch():
        async for event in trigger.run(): events.append(event.payload)
    return asyncio.create_task(watch())

async def rest(seconds=0.8): await asyncio.sleep(seconds)
async def kill(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

async def main():
%s
asyncio.run(main())
print(json.dumps(events))
"""


def events(run: Callable[[str], str], steps: str) -> list[dict[str, object]]:
    import json
    import textwrap

    found: list[dict[str, object]] = json.loads(run(SCRIPT % textwrap.indent(steps, "    ")).splitlines()[-1])
    return found


def test_it_fires_once_per_data_change_and_neither_twice_nor_never_after_a_restart(
    in_airflow: Callable[[str], str],
) -> None:
    found = events(
        in_airflow,
        """
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
        """.replace("\n        ", "\n"),
    )
    assert [(each["data_version"], each["due"]) for each in found] == [
        (2, ["optimize"]),
        (4, ["optimize"]),
        (5, ["optimize"]),
    ]


def test_without_a_store_only_a_restart_repeats_what_is_still_due(in_airflow: Callable[[str], str]) -> None:
    """Airflow before 3.3."""
    found = events(
        in_airflow,
        """
        watcher = start(keeps=False); delete(100); await rest(); assert len(events) == 1, events
        await kill(watcher); watcher = start(keeps=False); await rest(); assert len(events) == 2, events
        optimize(); await kill(watcher); watcher = start(keeps=False); await rest(); assert len(events) == 2, events
        await kill(watcher)
        """.replace("\n        ", "\n"),
    )
    assert [each["data_version"] for each in found] == [2, 2]


def test_a_store_that_fails_is_no_storm(in_airflow: Callable[[str], str]) -> None:
    """As a value did that the store does not take: the watcher ended, was started again, and fired again."""
    found = events(
        in_airflow,
        """
        store.fails = True; watcher = start(); delete(100); await rest(); assert len(events) == 1, events
        store.fails = False; await rest(); await kill(watcher); watcher = start(); await rest()
        assert len(events) == 1, "what failed was not written later"
        await kill(watcher)
        """.replace("\n        ", "\n"),
    )
    assert len(found) == 1


def test_a_table_that_cannot_be_read_does_not_end_the_watch(in_airflow: Callable[[str], str]) -> None:
    found = events(
        in_airflow,
        """
        import os
        delete(100); os.rename("orders", "gone"); watcher = start(); await rest(); assert not watcher.done()
        os.rename("gone", "orders"); await rest(); assert len(events) == 1, events
        await kill(watcher)
        """.replace("\n        ", "\n"),
    )
    assert [each["table"] for each in found] == ["orders"]
