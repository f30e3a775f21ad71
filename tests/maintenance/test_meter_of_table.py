"""Decisions for tables with a history: limits over a day, work that time makes due, small appends."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.meter.decide import is_due
from dv_maintenance.maintenance.meter.measure import DAY
from dv_maintenance.maintenance.meter.of_table import decide_for, due_for
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.run_limits import Spent, spent_in
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.tables.model import FILES_SCHEMA, Snapshot
from dv_maintenance.tables.partition_spec import by_columns
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.testing.memory_engine import MemoryEngine


def test_small_appends_are_rewritten_about_twice() -> None:
    """The rule of the sensor after each of 120 appends of a 64th of a full file: it was 117 runs, 23 times the data."""
    unit, target = 4 << 20, 256 << 20
    files: dict[str, int] = {}
    runs = written = 0
    for number in range(120):
        files[f"a{number}"] = unit
        rows = [
            {"path": path, "partition": "", "size": size, "physical_rows": 1000, "deleted_rows": 0, "modified": 0}
            for path, size in files.items()
        ]
        snapshot = Snapshot(
            table="t",
            format="memory",
            version=number,
            timestamp=0,
            schema=pa.schema([]),
            specs=by_columns(),
            properties={},
            files=pa.Table.from_pylist(rows, schema=FILES_SCHEMA),
        )
        plan = build_plan(snapshot, Policy(target_file_size=target))
        runs += bool(plan.steps)
        for at, step in enumerate(plan.steps):
            size = sum(files.pop(each.path) for each in step.inputs)
            files[f"m{number}-{at}"] = size
            written += size
    assert written <= 2 * 120 * unit
    assert runs <= 12
    assert len(files) <= 40


@pytest.fixture
def table(tmp_path: Path) -> MemoryTable:
    """Three files, each in a partition of its own, with a third of its rows deleted."""
    table = MemoryTable(tmp_path / "table")
    for part in range(3):
        table.delete(table.append(f"p={part}", list(range(30))), list(range(10)))
    return table


def test_limits_hold_over_a_day(table: MemoryTable) -> None:
    """Run after run stayed within max_files, and all of them together rewrote the whole table."""
    policy = Policy(max_files=2)
    first = decide_for(table, table.snapshot(), policy, now=table.now + 1)
    assert sum(len(step.inputs) for step in first.steps) == 2
    apply(table, MemoryEngine(), first)
    again = decide_for(table, table.snapshot(), policy, now=table.now + 1)
    assert not again.steps
    assert again.left_alone[-1].reason == (
        "over the daily limit: max_files is 2, of which 2 were spent in the last 24 hours"
    )
    tomorrow = decide_for(table, table.snapshot(), policy, now=table.now + DAY + 1)
    assert sum(len(step.inputs) for step in tomorrow.steps) == 1


def test_what_others_and_writers_did_is_not_spent(table: MemoryTable) -> None:
    snapshot = table.snapshot()
    assert spent_in(table.file_log(snapshot, 0), table.now + 1) == Spent()
    apply(table, MemoryEngine(), build_plan(snapshot))
    newest = table.snapshot()
    spent = spent_in(table.file_log(newest, 0), table.now + 1)
    assert (spent.files, spent.bytes) == (3, sum(snapshot.files["size"].to_pylist()))


def test_time_alone_makes_a_run_due(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers go on paying without any commit; the inspection says when to look again."""
    policy = Policy.from_mapping({"reads_per_day": 1000, "prices": {"start": 0}})
    now = table.now
    found = inspect_table(table, policy, jobs=["optimize"], now=now)
    assert found.due == ()
    assert found.next_due_at is not None
    read: list[int | None] = []
    honest = table.snapshot
    monkeypatch.setattr(table, "snapshot", lambda version=None: (read.append(version), honest(version))[1])
    between = inspect_table(table, policy, found, jobs=["optimize"], now=now + 1)
    assert (between.due, between.next_due_at, read) == ((), found.next_due_at, [])
    looks = 0
    later = found
    while not later.due and later.next_due_at is not None and looks < 3:
        # At first an upper bound says when, then the log.
        later = inspect_table(table, policy, later, jobs=["optimize"], now=later.next_due_at)
        looks += 1
    assert later.due == ("optimize",)
    assert later.reasons["optimize"][-1].endswith("1000 reads a day (declared)")


def test_an_inspection_reads_the_log_only_if_it_may_matter(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    honest = table.file_log
    monkeypatch.setattr(table, "file_log", lambda snapshot, since: (read.append(since), honest(snapshot, since))[1])
    policy = Policy.from_mapping({"reads_per_day": 1})
    assert not is_due(due_for(table, table.snapshot(), policy, now=table.now + DAY), table.now + DAY)
    assert read == []
    decide_for(table, table.snapshot(), policy, now=table.now + DAY)
    assert len(read) == 1
