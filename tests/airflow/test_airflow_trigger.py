"""The watcher: once per run that is due, whatever restarts it; again after a run that failed; never a storm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.places import ROOT

# Runs the trigger as a triggerer does, with a store that outlives it, and operators as a worker does. Airflow's API is
# the only double: variables, and the states of DAG runs. `steps` are what others do to the table.
HEAD = """
import asyncio, os, sys, tempfile, time
sys.path.insert(0, TESTS)
from types import SimpleNamespace
import pyarrow as pa, pyarrow.compute as pc
from pydantic import JsonValue, TypeAdapter
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagRunStateResult, DRCount, GetDRCount
from dv_maintenance.airflow import outcomes, trigger as module
from dv_maintenance.airflow import DvTrigger, DvVacuumsTrigger
from dv_maintenance.airflow.tables import in_airflow_terms, watched
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError, DvMaintenanceError, NotPermittedError, RefusedError
from dv_maintenance.service import evaluation, verbs
from dv_maintenance.testing.delta_builder import DeltaBuilder
from support.attempts import CASES

module._SECONDS_UNTIL_WRITTEN = 0.02
VALUES = TypeAdapter(JsonValue)

class Store:
    def __init__(self): self.kept, self.fails = {}, False
    async def aget(self, key, default=None):
        if self.fails: raise OSError("the API server is away")
        return self.kept.get(key, default)
    async def aset(self, key, value):
        if self.fails: raise OSError("the API server is away")
        self.kept[key] = VALUES.validate_json(VALUES.dump_json(VALUES.validate_python(value)))

class Variables:
    kept, fails = {}, False
    @classmethod
    def asked(cls):
        if cls.fails: raise OSError("the API server is away")
    @classmethod
    def get(cls, key, default): cls.asked(); return cls.kept.get(key, default)
    @classmethod
    def set(cls, key, value, description): cls.asked(); cls.kept[key] = value
    @classmethod
    def delete(cls, key): cls.asked(); del cls.kept[key]

states = {}
outcomes.Variable = Variables
# Answers have the types of Airflow's API.
def answer(msg):
    if isinstance(msg, GetDRCount): return DRCount(count=sum(state in msg.states for state in states.values()))
    return DagRunStateResult(state=states[msg.run_id])
task_runner.SUPERVISOR_COMMS = SimpleNamespace(send=answer)

def fresh():
    global table, store, events
    os.chdir(tempfile.mkdtemp(dir=HERE))
    table = created()
    store, events = Store(), []
    Variables.kept, Variables.fails = {}, False
    states.clear()

def created():
    schema = pa.schema([("id", pa.int64())])
    made = DeltaBuilder("orders").create(schema)
    made.append(pa.table({"id": range(1000)}, schema))
    return made

def delete(below): table.delete(lambda rows: pc.less(rows["id"], below))
def optimize(): verbs.optimize(watched("orders"), verbs.opened(watched("orders")), LocalEngine)

def worker(event, run_id, work, tries_left=False):
    # A task of a run that the event started.
    states[run_id] = "running"
    ti = SimpleNamespace(dag_id="lake.orders", run_id=run_id, try_number=1, max_tries=1 if tries_left else 0)
    extra = {"from_trigger": True, "payload": event}
    context = {"ti": ti, "triggering_asset_events": {"orders/dv/due": [SimpleNamespace(extra=extra)]}}
    with in_airflow_terms(), outcomes.recorded(context, watched("orders"), "optimize"): work()

def ends(event, run_id, how):
    def work():
        if how == "failed": raise ConflictError("lost the race")
        if how == "unknown": raise DvMaintenanceError("Spark could not finish it")
        if how == "refused": raise RefusedError("this is refused")
        if how == "not permitted": raise NotPermittedError("the catalog does not permit it")
        if how == "lost": raise SystemExit("killed")
    try: worker(event, run_id, work)
    except (Exception, SystemExit): pass
    states[run_id] = "success" if how == "idle" else "failed"

def start(keeps=True, **stores):
    _, kwargs = DvTrigger("orders", jobs=["optimize"], every_seconds=0.02, dag_id=stores.get("dag_id")).serialize()
    trigger = DvTrigger(**kwargs)
    trigger.asset_state_store = (stores.get("stores") or store) if keeps else None
    into = events
    async def watch():
        async for event in trigger.run(): into.append(event.payload)
    return asyncio.create_task(watch())

looks = 0
def looked(*args, **kwargs):
    global looks
    found = evaluate(*args, **kwargs)
    looks += 1
    return found
evaluate, module.evaluate = module.evaluate, looked

async def rest():
    # Until two looks have begun and ended, however busy the machine is, and an event has been written down.
    begun, until = looks, time.monotonic() + 30
    while looks < begun + 3 and time.monotonic() < until: await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
async def kill(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

class later:
    def __init__(self, seconds): self.seconds = seconds
    def __enter__(self): self.by(self.seconds)
    def __exit__(self, *_): self.by(0)
    def by(self, seconds): evaluation.epoch_millis = module._now = lambda: int((time.time() + seconds) * 1000)

async def main(*scenarios):
    for scenario in scenarios:
        fresh()
        await scenario()
        print("passed:", scenario.__name__)
"""

EVENTS = """
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
    assert (events[0]["checks"], events[-1]["checks"]) == ({}, {"deleted_ratio": "error"}), events

async def without_a_store_only_a_restart_repeats_what_is_still_due():  # Airflow before 3.3
    watcher = start(keeps=False); delete(100); await rest(); assert len(events) == 1, events
    await kill(watcher); watcher = start(keeps=False); await rest(); assert len(events) == 2, events
    optimize(); await kill(watcher); watcher = start(keeps=False); await rest(); assert len(events) == 2, events
    await kill(watcher)

async def a_store_that_fails_is_no_storm_and_no_end():
    # A watcher that ends is started again at once, and fires again.
    store.fails = Variables.fails = True
    watcher = start(); delete(100); await rest(); assert len(events) == 1, events
    store.fails = Variables.fails = False
    await rest(); await kill(watcher); watcher = start(); await rest()
    assert len(events) == 1, "what failed was not written later"
    await kill(watcher)

async def two_assets_with_equal_triggers_share_one():
    class Accessors:  # as of Airflow 3.3: it answers only for each asset
        _by_name, _by_uri = {"sales": Store(), "finance": Store()}, {}
        async def aget(self, key, default=None): raise ValueError("Task has 2 concrete inlets and outlets")
        aset = aget
    both = Accessors()
    watcher = start(stores=both); delete(100); await rest(); assert len(events) == 1, events
    await kill(watcher); watcher = start(stores=both); await rest(); assert len(events) == 1, "a restart fired again"
    await kill(watcher)
    del both._by_name["sales"]  # the other one stays
    watcher = start(stores=both); await rest(); assert len(events) == 1, "half of the assets are gone"
    await kill(watcher)

async def a_table_that_cannot_be_read_does_not_end_the_watch():
    delete(100); os.rename("orders", "gone"); watcher = start(); await rest(); assert not watcher.done()
    os.rename("gone", "orders"); await rest(); assert len(events) == 1, events
    await kill(watcher)

async def a_table_created_again_is_another_one():
    global table
    delete(100); watcher = start(); await rest(); assert len(events) == 1, events
    import shutil; shutil.rmtree("orders"); table = created(); delete(101); await rest()
    assert len(events) == 2 and events[0]["version"] == events[1]["version"], events
    assert events[0]["work"] != events[1]["work"]
    await kill(watcher)

async def nothing_fires_on_a_damaged_table_until_its_files_are_back():
    delete(100); (dv,) = [each for each in os.listdir("orders") if each.endswith(".bin")]
    os.rename(f"orders/{dv}", "away"); watcher = start(); await rest(); assert events == [], events
    os.rename("away", f"orders/{dv}"); await rest(); assert len(events) == 1, events
    await kill(watcher)

asyncio.run(main(
    once_per_change_and_neither_twice_nor_never_after_a_restart,
    without_a_store_only_a_restart_repeats_what_is_still_due,
    a_store_that_fails_is_no_storm_and_no_end,
    two_assets_with_equal_triggers_share_one,
    a_table_that_cannot_be_read_does_not_end_the_watch,
    a_table_created_again_is_another_one,
    nothing_fires_on_a_damaged_table_until_its_files_are_back,
))
"""

OUTCOMES = """
async def a_run_at_work_holds_back_events_and_one_that_failed_is_announced_again():
    watcher = start(); delete(100); await rest(); assert len(events) == 1
    def long(): states["r1"] = "running"
    worker(events[0], "r1", long); await rest()  # a look that asked before the run began may see the next version
    delete(200); await rest(); assert len(events) == 1, "its run is at work"
    states["r1"] = "success"; await rest(); assert len(events) == 2, "what came meanwhile"
    for number in (2, 3):
        ends(events[-1], f"r{number}", "failed"); await rest()
        assert len(events) == number + 1, events
        assert events[-1]["attempt"] == number
    ends(events[-1], "r4", "failed"); await rest(); assert len(events) == 4, "a storm"
    await kill(watcher); watcher = start(); await rest(); assert len(events) == 4, "a restart forgot the failures"
    delete(300); await rest(); assert len(events) == 5, "a new version is new work"
    def purge(): optimize()
    worker(events[-1], "r5", purge); states["r5"] = "success"; await rest()
    assert len(events) == 5 and Variables.kept == {}, "what is no longer due is forgotten"
    await kill(watcher)

async def a_task_that_airflow_will_retry_is_at_work():
    watcher = start(); delete(100); await rest()
    def fail(): raise ConflictError("lost the race")
    try: worker(events[0], "r1", fail, tries_left=True)
    except ConflictError: pass
    await rest(); assert len(events) == 1
    assert '"error":null' in next(iter(Variables.kept.values()))
    states["r1"] = "failed"; await rest(); assert len(events) == 2, "marked as failed in between"
    await kill(watcher)

async def a_run_in_the_queue_will_do_what_comes_meanwhile():
    watcher = start(dag_id="lake.orders"); delete(100); await rest(); assert len(events) == 1
    states["queued"] = "queued"
    for below in (200, 300): delete(below); await rest(); assert len(events) == 1, "the next run would find nothing"
    await kill(watcher); watcher = start(dag_id="lake.orders"); await rest(); assert len(events) == 1, "a restart"
    del states["queued"]; await rest(); assert len(events) == 2, "it was deleted"
    optimize(); await rest(); await kill(watcher)
    delete(400); states["by hand"] = "running"
    watcher = start(dag_id="lake.orders"); await rest(); assert len(events) == 2, "it is at work"
    states["by hand"] = "success"; await rest(); assert len(events) == 3, "nobody asked again"
    await kill(watcher)

async def an_event_that_nothing_came_of_fires_again_after_an_hour():
    watcher = start(); delete(100); await rest(); await rest(); assert len(events) == 1
    with later(3590): await rest()
    assert len(events) == 1
    with later(3620): await rest()
    assert len(events) > 1
    await kill(watcher)

async def a_run_that_somebody_else_started_is_not_recorded():
    ti = SimpleNamespace(dag_id="lake.orders", run_id="by hand", try_number=1, max_tries=0)
    with outcomes.recorded({"ti": ti}, watched("orders"), "optimize"): pass
    assert Variables.kept == {}

async def every_case_as_in_the_other_orchestrator():
    delete(100); watcher = start(); await rest(); await kill(watcher)
    (event,) = events; fired = store.kept["dv_maintenance"]
    for name, endings, after in CASES:
        Variables.kept.clear(); events.clear()
        for number, how in enumerate(endings): ends(event, f"{name} {number}", how)
        store.kept["dv_maintenance"] = {**fired, "fired": {}}
        if after is None or after > 0:
            watcher = start()
            with later((after or 1000 * 3600) - 60): await rest()
            await kill(watcher); assert events == [], (name, events)
        if after is not None:
            watcher = start()
            with later(after + 60): await rest()
            await kill(watcher); assert len(events) == 1, (name, events)
            found = name, events[0]["attempt"], events[0]["work"]
            assert found == (name, len(endings) + 1, event["work"]), (found, event["work"])

asyncio.run(main(
    a_run_at_work_holds_back_events_and_one_that_failed_is_announced_again,
    a_task_that_airflow_will_retry_is_at_work,
    a_run_in_the_queue_will_do_what_comes_meanwhile,
    an_event_that_nothing_came_of_fires_again_after_an_hour,
    a_run_that_somebody_else_started_is_not_recorded,
    every_case_as_in_the_other_orchestrator,
))
"""


def test_events(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    """All in one process: it takes seconds to import Airflow."""
    assert in_airflow(_script(tmp_path, EVENTS)).count("passed:") == 7


def test_outcomes(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    assert in_airflow(_script(tmp_path, OUTCOMES)).count("passed:") == 6


def _script(folder: Path, scenarios: str) -> str:
    return f"HERE, TESTS = {str(folder)!r}, {str(ROOT / 'tests')!r}\n{HEAD}{scenarios}"


TWO = """
import logging
lines = []
class Handler(logging.Handler):
    def emit(self, record): lines.append(record.getMessage())
logging.getLogger().addHandler(Handler())

async def two_definitions():
    fresh()
    tasks = []
    for name in ("one", "other"):
        trigger = DvTrigger({"path": "orders", "name": name}, jobs=["optimize"], every_seconds=0.02)
        trigger._log = logging.getLogger("watchers")
        trigger.asset_state_store = Store()
        async def watch(trigger=trigger):
            async for event in trigger.run(): events.append(event.payload)
        tasks.append(asyncio.create_task(watch()))
    await rest(); await rest()
    delete(400)
    await rest(); await rest(); await rest()
    assert len(events) == 1, events
    optimize()
    await rest(); await rest()
    assert len(events) == 1, "there is nothing left for the other one"
    from dv_maintenance.airflow import watchers
    assert watchers._AT
    for task in tasks: await kill(task)
    await rest()  # a look may be at work in its thread
    assert not watchers._AT, "who has ended is in nobody's way"
asyncio.run(two_definitions())
said = [line for line in lines if "is watched as" in line]
print(len(said), said[0])
"""


def test_two_definitions_of_a_table_take_turns(in_airflow: Callable[[str], str], tmp_path: Path) -> None:
    head = HEAD.replace("TESTS", repr(str(ROOT / "tests"))).replace("HERE", repr(str(tmp_path)))
    count, said = in_airflow(head + TWO).splitlines()[-1].split(" ", 1)
    assert int(count) == 2, "each says it once"
    assert "orders is watched as" in said
    assert "keep one definition" in said
