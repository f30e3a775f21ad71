"""An evaluation of many tables: which runs it asks for, what it records, and that no table stops the others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.checks import Finding
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.service.decision import Attempts
from dv_maintenance.service.due import RunRequest, key_of, runs_of, together
from dv_maintenance.service.evaluation import Evaluation, Limits, evaluate
from dv_maintenance.service.inspection import Inspection
from dv_maintenance.service.observe import Observation, Observer
from dv_maintenance.service.tables_file import TableSettings, WatchConfig
from dv_maintenance.service.verbs.like_sensor import NoOrchestrator
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.units import format_instant

MakeTable = Callable[..., TableSettings]
HOUR = 3_600_000


def now() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Somewhere(NoOrchestrator):
    """An orchestrator that is none: the service needs no other."""

    at_work: dict[str, str] = field(default_factory=dict)
    asked: list[RunRequest] = field(default_factory=list)
    failed: dict[str, Attempts] = field(default_factory=dict)
    recorded: list[tuple[str, int | None, int | None]] = field(default_factory=list)
    checked: list[tuple[str, str | None]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    broken: str = ""

    def busy(self, table: TableSettings) -> str | None:
        return self.at_work.get(table.name)

    def attempts(self, request: RunRequest) -> Attempts:
        self.asked.append(request)
        return self.failed.get(f"{request.table}:{'+'.join(request.jobs)}", Attempts())

    def partition_keys(self, table: TableSettings) -> list[str]:
        return self.keys

    def record(self, table: TableSettings, observation: Observation) -> None:
        if table.name == self.broken:
            raise ZeroDivisionError("https://me:pass@host")
        self.recorded.append((table.name, observation.inspection.version, observation.data_version))

    def check(self, table: TableSettings, finding: Finding) -> None:
        self.checked.append((table.name, finding.severity))


class Evaluations:
    """One after the other, with the cursor of the last one."""

    def __init__(self, *, checks: bool = False) -> None:
        self.cursor: str | None = None
        self.observer = Observer(data_versions=True, checks=checks)

    def __call__(self, where: Somewhere, *tables: TableSettings, requests: int = 100, budget: float = 60) -> Evaluation:
        found = evaluate(tables, self.cursor, where, self.observer, Limits(budget, 10, requests))
        self.cursor = found.cursor.to_json()
        return found


@pytest.fixture
def again() -> Evaluations:
    return Evaluations()


@pytest.fixture
def make(tmp_path: Path) -> MakeTable:
    def make(name: str, **settings: Any) -> TableSettings:
        path = str(tmp_path / name)
        schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
        builder = DeltaBuilder(path).create(schema, partition_by=["day"])
        builder.append(pa.Table.from_pylist([{"id": at, "day": day} for at in range(4) for day in "ab"], schema))
        builder.delete(lambda rows: pa.compute.less(rows["id"], 2))
        listed = {"tables": [{"name": name, "path": path, "jobs": ["optimize"], **settings}]}
        return WatchConfig.model_validate(listed).tables[0]

    return make


def test_what_is_due_is_asked_for_under_one_key_until_it_is_done(make: MakeTable, again: Evaluations) -> None:
    where, table = Somewhere(), make("orders")
    (asked,) = again(where, table).requests
    assert (asked.table, asked.jobs, asked.version, asked.partitions) == ("orders", ("optimize",), 2, None)
    assert again(where, table).requests == (asked,)
    assert where.recorded == [("orders", 2, 2)]
    assert where.checked == [("orders", None)]
    maintain(open_table(table.path), LocalEngine())
    quiet = again(where, table)
    assert (quiet.requests, quiet.reason) == ((), "nothing is due in 1 table")
    assert where.recorded[1:] == [("orders", 3, 2)], "maintenance is not a new data version"


def test_a_table_that_is_worked_on_is_left_alone(make: MakeTable, again: Evaluations) -> None:
    where = Somewhere(at_work={"orders": "run 1a2b"})
    found = again(where, make("orders"))
    assert (found.requests, found.reason) == ((), "orders: optimize due, but run 1a2b is working on it")
    assert not where.asked, "a tick asks the orchestrator's storage nothing for each table that is being worked on"


def test_failures_change_the_key_and_wait_after_three(make: MakeTable, again: Evaluations) -> None:
    """Three failed runs were the last, and an outage of an hour left work undone until the next commit."""
    where, table, keys = Somewhere(), make("orders"), set()
    for failures in range(3):
        where.failed["orders:optimize"] = Attempts(failures, now())
        (asked,) = again(where, table).requests
        keys.add(asked.key)
    assert len(keys) == 3
    ended = now()
    where.failed["orders:optimize"] = Attempts(3, ended)
    stopped = again(where, table)
    assert stopped.requests == ()
    assert stopped.reason == (
        "orders: 3 runs of optimize at version 2 ended, the last one failed; waiting for a new version or "
        + format_instant(ended + HOUR)
    )
    where.failed["orders:optimize"] = Attempts(3, ended - HOUR)
    (asked,) = again(where, table).requests
    assert asked.key not in keys


def test_a_run_that_would_fail_again(make: MakeTable, again: Evaluations) -> None:
    table = make("orders")
    refused = Attempts(1, now() - 1000 * HOUR, refusal="Row tracking is not supported.")
    where = Somewhere(failed={"orders:optimize": refused})
    stopped = again(where, table)
    assert stopped.requests == ()
    assert stopped.reason == (
        "orders: optimize at version 2 failed, and would fail again; waiting for a new version, other settings or "
        "another release. Row tracking is not supported."
    )
    where.failed = {}
    assert len(again(where, table).requests) == 1


def test_a_damaged_table_gets_a_run_when_its_files_are_back(make: MakeTable) -> None:
    """At the version of the failed run: nothing in the log says that a file is back."""
    table, again = make("orders"), Evaluations(checks=True)
    where = Somewhere()
    assert again(where, table).requests
    (victim,) = Path(table.path).glob("*.bin")
    away = victim.rename(victim.with_suffix(".away"))
    ended = now()
    where.failed["orders:optimize"] = Attempts(1, ended, refusal="The file is missing.", damage=True)
    for _ in range(2):
        waiting = again(where, table)
        assert waiting.requests == ()
        said = f"orders: optimize due, but nothing is started on a damaged table: {victim.name}: it does not exist. "
        assert waiting.reason.startswith(said)
        assert waiting.reason.endswith(f"dvm.fsck('file://{table.path}') shows how to repair it")
    readable = [severity for table, severity in where.checked if table == "orders"]
    assert "error" in readable
    away.rename(victim)
    assert len(again(where, table).requests) == 1
    # It failed again: what is damaged is not what a look can see.
    ended = now() + 1
    where.failed["orders:optimize"] = Attempts(2, ended, refusal="A checksum is wrong.", damage=True)
    waiting = again(where, table)
    assert waiting.requests == ()
    assert waiting.reason == (
        "orders: optimize at version 2 failed, and would fail again; waiting for a new version, other settings, "
        f"another release, missing files or the right to read them to be back or {format_instant(ended + 2 * HOUR)}. "
        "A checksum is wrong."
    )
    where.failed["orders:optimize"] = Attempts(2, now() - 2 * HOUR - 1, refusal="A checksum is wrong.", damage=True)
    assert len(again(where, table).requests) == 1


def test_a_mistake_with_one_table_stops_no_other(
    make: MakeTable, again: Evaluations, caplog: pytest.LogCaptureFixture
) -> None:
    where = Somewhere(broken="bad")
    found = again(where, make("bad"), make("orders"))
    assert [asked.table for asked in found.requests] == ["orders"]
    assert where.checked == [("bad", "error"), ("orders", None)]
    assert "ZeroDivisionError" in found.reason
    assert "ZeroDivisionError" in caplog.text
    assert "me:pass" not in caplog.text + found.reason


def test_what_the_budget_or_the_number_of_runs_leaves_comes_first_next_time(
    make: MakeTable, again: Evaluations
) -> None:
    tables = [make("a"), make("b")]
    late = again(Somewhere(), *tables, budget=-1)
    assert (late.cursor.first, [asked.table for asked in late.requests]) == ("b", ["a"])
    full = again(Somewhere(), *tables, requests=1)
    assert ([asked.table for asked in full.requests], full.cursor.first) == (["b"], "a")
    assert "1 run left for the next tick, from a on" in full.reason


def test_a_run_takes_the_partitions_that_are_due(make: MakeTable, again: Evaluations) -> None:
    table = make("orders", partitions="day")
    (asked,) = again(Somewhere(keys=["a", "b", "c"]), table).requests
    assert asked.partitions == ("a", "b")
    (whole,) = Evaluations()(Somewhere(keys=["a"]), table).requests
    assert whole.partitions is None, "no key holds some of the work"


def test_a_damaged_cursor_means_starting_anew(
    make: MakeTable, again: Evaluations, caplog: pytest.LogCaptureFixture
) -> None:
    again.cursor = '{"form": 9}'
    assert len(again(Somewhere(), make("orders")).requests) == 1
    assert "starting over" in caplog.text


def test_a_vacuum_has_a_run_of_its_own() -> None:
    found = Inspection("t", version=7, due=("optimize", "vacuum", "manifest"), vacuum_checked=5)
    assert [run.jobs for run in runs_of(found)] == [("vacuum",), ("optimize", "manifest")]
    assert [run.vacuum_checked for run in runs_of(found)] == [5, 0], "time makes a vacuum due once more"
    assert [run.jobs for run in runs_of(found, last_vacuum=6)] == [("optimize", "manifest")], "it was done meanwhile"


def test_a_request_survives_as_json() -> None:
    asked = RunRequest("lake/orders", ("optimize", "manifest"), 7, ("a|x", "b|y"), 0, 2, "5e77")
    assert RunRequest.from_json(asked.to_json()) == asked
    assert asked.key == "lake/orders:7:optimize+manifest:0:2:5e77:a|x:b|y"
    with pytest.raises(UsageError, match="not a request for a run"):
        RunRequest.from_json({**asked.to_json(), "jobs": ["drop"]})


def test_vacuums_share_runs_and_nothing_else_does() -> None:
    vacuums = [RunRequest(f"t{at}", ("vacuum",), 1, vacuum_checked=5) for at in range(5)]
    optimize, failed = RunRequest("o", ("optimize",), 1), RunRequest("f", ("vacuum",), 1, vacuum_checked=5, failed=1)
    groups = together([vacuums[0], optimize, *vacuums[1:], failed], most=2)
    assert groups == [tuple(vacuums[:2]), (optimize,), tuple(vacuums[2:4]), (vacuums[4],), (failed,)]
    assert key_of([optimize]) == optimize.key
    assert key_of(vacuums) == key_of(vacuums[::-1]), "the same work, whatever its order"
    assert len({key_of(vacuums), key_of(vacuums[:4]), key_of([*vacuums[:4], failed])}) == 3


def test_a_table_that_was_created_again_starts_over(make: MakeTable, tmp_path: Path) -> None:
    """At the same version number: nothing of what was known holds, and no data version equals one of the old table."""
    again, where, table = Evaluations(checks=True), Somewhere(), make("orders")
    (asked,) = again(where, table).requests
    known = again.observer._open["orders"].table.version()
    shutil.rmtree(table.path)
    make("orders")
    assert open_table(table.path).version() == known
    where.checked.clear()
    found = again(where, table)
    assert [version for _, version, _ in where.recorded] == [2, 2]
    assert ("orders", None) in where.checked, "checks are evaluated again"
    state = found.cursor.tables["orders"]
    assert state.lineage
    assert found.requests[0].key != asked.key
    # From here on it is that table.
    assert again(where, table).cursor.tables["orders"].lineage == state.lineage
    assert len(where.recorded) == 2
