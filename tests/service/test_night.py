"""One run for many tables, within a window and a budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.pool import OutOfTimeError, run_all, stopped_at
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.errors import StorageError
from dv_maintenance.maintenance.execution import batches
from dv_maintenance.maintenance.health import health
from dv_maintenance.service import night
from dv_maintenance.service.night import Window, by_policy, work_through
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.units import epoch_millis, parse_instant

NIGHT = Window.model_validate({"start": "01:00", "length": "1h"})
AT = parse_instant("2026-11-23T01:00:00Z")
Make = Callable[..., TableSettings]
QUICK = {"prices": {"shared_start": 0.1}}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def table(name: str, *, delete: bool = True, files: int = 1, **settings: Any) -> TableSettings:
        path = str(tmp_path / name)
        builder = DeltaBuilder(path).create(pa.schema([("id", pa.int64())]))
        builder.append(pa.table({"id": range(100)}), files=files)
        if delete:
            builder.delete(lambda rows: pc.less(rows["id"], 50))
        return WatchConfig.model_validate({"tables": [{"name": name, "path": path, **settings}]}).tables[0]

    return table


def run(*tables: TableSettings, at: int = AT, budget: int | None = None, engine: Any = LocalEngine, **more: Any) -> Any:
    found = list(work_through(tables, engine, **{"window": NIGHT, "budget": budget, "now": lambda: at, **more}))
    assert [each.table.name for each in found] == list(dict.fromkeys(each.table.name for each in found))
    return {each.table.name: each for each in found}


def with_dvs(table: TableSettings) -> int:
    return health(open_table(table.path).snapshot()).counts.files_with_dv


def test_every_table_gets_an_outcome_of_its_own(make: Make) -> None:
    one, two, clean = make("one"), make("two"), make("clean", delete=False)
    found = run(one, two, clean)
    assert found.keys() == {"one", "two", "clean"}
    assert (with_dvs(one), with_dvs(two)) == (0, 0)
    assert found["one"].outcome.numbers["rows_purged"] == 50
    assert found["one"].outcome.numbers["verified"] is True
    assert found["clean"].outcome.reason == "Nothing to do: no optimize is due."
    assert all(each.waited_since is None for each in found.values())


def test_a_table_that_fails_stops_no_other(make: Make, tmp_path: Path) -> None:
    one, gone = make("one"), make("gone").model_copy(update={"path": str(tmp_path / "gone2")})
    found = run(gone, one)
    assert found["gone"].error is not None
    assert found["gone"].outcome is None
    assert with_dvs(one) == 0


def test_while_the_window_is_closed_every_table_waits_and_no_engine_starts(make: Make) -> None:
    def none() -> LocalEngine:
        raise AssertionError("started")

    one = make("one")
    (found,) = work_through([one], none, window=NIGHT, budget=None, now=lambda: AT + 7_200_000)
    assert with_dvs(one) == 1
    assert found.outcome is not None
    assert found.outcome.reason.startswith("Waited: ")
    assert "the window opens again on 24 Nov" in found.outcome.reason
    assert found.waited_since == AT + 7_200_000


def test_nothing_starts_that_may_not_finish(make: Make) -> None:
    """The clock runs 400 seconds with every table: of a budget of 600 seconds, one gets its turn."""
    tables = [make(f"t{n}") for n in range(3)]
    times = {"now": AT}

    class Slow(LocalEngine):
        def run(self, *args: Any, **options: Any) -> Any:
            times["now"] += 400_000
            return super().run(*args, **options)

    found = {
        each.table.name: each
        for each in work_through(tables, Slow, window=NIGHT, budget=600_000, now=lambda: times["now"])
    }
    assert sorted(map(with_dvs, tables)) == [0, 1, 1]
    late = [each for each in found.values() if each.waited_since is not None]
    assert len(late) == 2
    assert all(each.outcome.reason.startswith("Waited: it may need") for each in late if each.outcome)
    assert times["now"] - AT <= 600_000


def test_steps_of_a_table_that_do_not_fit_are_left_with_the_reason(make: Make) -> None:
    table = make("one", files=3)

    def dear(watched: TableSettings, opened: Any, snapshot: Any, now: int) -> Any:
        plan = by_policy(watched, opened, snapshot, now)
        steps = [replace(step, cost=replace(step.cost, bytes_read=10**13)) for step in plan.steps]
        return replace(plan, steps=tuple(steps))

    found = run(table, plan_of=dear)["one"]
    assert with_dvs(table) > 0
    assert found.outcome.reason.startswith("Too large for the window")
    assert found.outcome.lines["alerts"]


def test_a_longer_wait_comes_first(make: Make) -> None:
    tables = [make(f"t{n}") for n in range(3)]
    found = run(*tables, budget=10_000, waiting={"t1": AT - 9 * 86_400_000})
    assert with_dvs(tables[1]) == 0
    assert found["t1"].waited_since is None


def test_an_error_says_what_was_done_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night, "_SLICE", 0.0)  # a step at a time
    schema = pa.schema([("id", pa.int64()), ("shop", pa.string())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema, partition_by=["shop"])
    builder.append(pa.table({"id": range(20), "shop": ["a", "b"] * 10}, schema))
    builder.delete(lambda rows: pc.less(rows["id"], 10))
    runs = []

    class Failing(LocalEngine):
        def run(self, *args: Any, **options: Any) -> Any:
            runs.append(args)
            if len(runs) == 2:
                raise StorageError("the cluster is gone")
            return super().run(*args, **options)

    (found,) = work_through(
        [TableSettings(path=str(tmp_path / "t"))], Failing, window=NIGHT, budget=None, now=lambda: AT
    )
    assert isinstance(found.error, StorageError)
    assert found.error.done is not None
    assert found.error.done.startswith("1 step committed before, up to version 3")


def test_a_deadline_to_come_is_known_and_waits(make: Make) -> None:
    table = make("one", policy={"erase_within": "30d", "reads_per_day": 0.001})
    found = run(table, at=epoch_millis(), window=None)["one"]
    assert with_dvs(table) == 1
    assert found.outcome.reason.startswith("Kept: readers have paid 0.0 of its cost so far; it must be done by ")
    assert found.waited_since is None
    assert found.outcome.numbers["steps_waiting"] == 1


def test_a_deadline_that_is_near_is_kept(make: Make) -> None:
    table = make("one", policy={"erase_within": "30d", "reads_per_day": 0.001})
    run(table, at=epoch_millis() + 19 * 86_400_000, window=None)
    assert with_dvs(table) == 0


def test_window_and_budget_in_a_file_of_tables(tmp_path: Path) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text(
        "window: {start: 22:30, length: 1h, timezone: Europe/Berlin, days: [mon, fri]}\n"
        "budget: 30m\ntables: [{path: t}]\n"
    )
    config = WatchConfig.load(str(file))
    assert config.window is not None
    assert (config.window.start, config.window.cron, config.budget) == ("22:30", "30 22 * * mon,fri", 1_800_000)


class Slow(LocalEngine):
    """Waits in the middle of a task, as a slow disk does, until it is told to stop."""

    def run(self, tasks: Any, *, on_done: Any = None, **more: Any) -> Any:
        over = Event()

        def run_one(numbered: Any) -> Any:
            def on_rows(_: int) -> None:
                if over.wait(60):
                    raise OutOfTimeError

            number, task = numbered
            yield number, rewrite(task, None, on_rows)

        return run_all(list(enumerate(tasks)), run_one, at_once=1, on_done=on_done, stop=over.set)


def test_what_is_slower_than_everything_before_is_stopped_before_the_end(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is estimated at nothing hangs: without an end it would run for a minute after the budget of one.

    The end that the pool is given is judged, since the time at which a busy machine notices it tells nothing.
    """
    ends: list[float] = []

    def noted(end: float) -> AbstractContextManager[None]:
        ends.append(end)
        return stopped_at(end)

    monkeypatch.setattr(night, "stopped_at", noted)
    slow, other = (make(name, policy=QUICK) for name in ("slow", "other"))
    before = {path: path.read_bytes() for path in (tmp_path / "slow").rglob("*") if path.is_file()}
    began = time.monotonic()
    found = run(slow, other, budget=2_000, now=epoch_millis, window=None, engine=Slow, plan_of=nearly_free)
    assert len(ends) == 1
    assert began < ends[0] <= began + 2.0
    assert {path: path.read_bytes() for path in (tmp_path / "slow").rglob("*") if path.is_file()} == before
    (alert,) = {line for each in found.values() for line in each.outcome.lines["alerts"]}
    assert "steps estimated at 0 s were stopped after" in alert
    stopped = [each for each in found.values() if "Stopped when the time was up" in each.outcome.reason]
    assert len(stopped) == 1
    assert all(each.error is None and each.waited_since is not None for each in found.values())


def nearly_free(watched: TableSettings, opened: Any, snapshot: Any, now: int) -> Any:
    plan = by_policy(watched, opened, snapshot, now)
    steps = [replace(step, cost=replace(step.cost, bytes_read=1, bytes_written=1, files_read=0)) for step in plan.steps]
    return replace(plan, steps=tuple(steps))


def test_steps_committed_before_the_end_stay_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("id", pa.int64()), ("shop", pa.string())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema, partition_by=["shop"])
    builder.append(pa.table({"id": range(20), "shop": ["a", "b"] * 10}, schema))
    builder.delete(lambda rows: pc.less(rows["id"], 10))
    monkeypatch.setattr(batches, "_SECONDS", 0.0)  # a commit for each step
    runs = []

    class SlowAtLast(LocalEngine):
        slots = 1

        def run(self, *args: Any, **options: Any) -> Any:
            runs.append(args)
            return (super() if len(runs) == 1 else Slow()).run(*args, **options)

    watched = TableSettings.model_validate({"path": str(tmp_path / "t"), "policy": QUICK})
    found = run(watched, budget=2_000, now=epoch_millis, window=None, engine=SlowAtLast, plan_of=nearly_free)["t"]
    assert len(runs) == 2
    assert found.outcome.numbers["steps"] == 1
    assert found.outcome.numbers["steps_waiting"] == 1
    assert with_dvs(watched) == 1
    assert "1 step left for another night. Stopped when the time was up" in found.outcome.reason
