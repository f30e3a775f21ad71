"""Simulations of a table's past, from its own log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.execution.apply import apply
from dv_maintenance.maintenance.meter.of_table import decide_for
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.reads import Reads
from dv_maintenance.maintenance.simulation.from_log import past_of
from dv_maintenance.service import verbs
from dv_maintenance.service.inspection import inspect_table
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

DAY = 86_400_000
SCHEMA = pa.schema([("id", pa.int64())])


def ids(first: int, last: int) -> pa.Table:
    return pa.table({"id": np.arange(first, last)})


def between(first: int, last: int) -> Callable[[pa.Table], pa.ChunkedArray]:
    return lambda rows: pc.and_(pc.greater_equal(rows["id"], first), pc.less(rows["id"], last))


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Ten days: two files, then every day a delete from the first one."""
    now = time.time_ns() // 1_000_000
    clock: Iterator[int] = iter(range(now - 10 * DAY, now + DAY, DAY))
    moment = [next(clock)]
    builder = DeltaBuilder(str(tmp_path / "orders"), clock=lambda: moment[0]).create(SCHEMA)
    builder.append(ids(0, 50_000))
    builder.append(ids(50_000, 100_000))
    for day in range(1, 9):
        moment[0] = next(clock)
        builder.delete(between(0, day * 1000))
    return str(tmp_path / "orders")


def test_the_life_of_a_table(place: str) -> None:
    table = open_table(place)
    past = past_of(table, table.snapshot(), 0, Reads.declared(1))
    trace = past.trace
    assert (len(trace.size), trace.statements) == (2, 10)
    assert trace.deleted.tolist() == [-1, -1, *range(1000, 9000, 1000)]
    assert (past.happened.runs, past.happened.written, past.complete) == (0, 0, True)


def test_a_rewrite_in_between_is_undone(place: str) -> None:
    """Later deletes hit the file that the writer wrote, whatever it was merged into."""
    table = open_table(place)
    apply(table, LocalEngine(), decide_for(table, table.snapshot(), Policy(max_deleted_ratio=0.01)))
    DeltaBuilder(place).delete(between(0, 20_000))
    past = past_of(table, table.snapshot(), 0, Reads.declared(1))
    assert past.happened.runs == 1
    assert past.happened.written > 0
    assert past.trace.deleted[past.trace.deleted > 0].tolist() == [*range(1000, 9000, 1000), 20_000]


def test_policies_are_compared(place: str) -> None:
    eager, lazy = Policy(max_deleted_ratio=0), Policy(max_deleted_ratio=0.5)
    found = verbs.simulate(
        open_table(place), [("eager", eager), ("lazy", lazy)], since=30 * DAY, reads=Reads.declared(100)
    )
    by_name = {each["policy"]: each for each in found.report["policies"]}
    assert [*by_name] == ["eager", "lazy", "never", "nightly REORG PURGE"]
    # The files are small: a delete, and a merge of the two at the first of them.
    assert (by_name["eager"]["runs"], by_name["lazy"]["runs"], by_name["never"]["runs"]) == (9, 1, 0)
    assert by_name["eager"]["reading"] < by_name["lazy"]["reading"] < by_name["never"]["reading"]
    assert all(each["cpu_seconds"] >= found.report["least_cpu_seconds"] * 0.999 for each in by_name.values())
    assert found.picture is not None


def test_deadlines_are_judged(place: str) -> None:
    policy = Policy.from_mapping({"erase_within": "12d", "retention": "7d", "reads_per_day": 0.001})
    found = verbs.simulate(open_table(place), [("legal", policy)], since=30 * DAY)
    by_name = {each["policy"]: each for each in found.report["policies"]}
    assert by_name["legal"]["late_rows"] == 0
    assert by_name["never"]["late_rows"] > 0
    assert by_name["never"]["late_days"] >= 3


def test_the_command_line(place: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "eager.yaml"
    file.write_text("max_deleted_ratio: 0\n")
    picture = tmp_path / "costs.svg"
    assert main(["simulate", place, "--policy", str(file), "--set", "reads_per_day=40", "-o", str(picture)]) == 0
    text = capsys.readouterr().out
    assert f"{file}: " in text
    assert "reads: 40 reads a day (declared)" in text
    assert picture.read_text().startswith("<svg")
    tables = tmp_path / "tables.yaml"
    tables.write_text(f"tables: [{{path: {place}}}, {{path: {tmp_path}/none, name: gone}}]\n")
    assert main(["simulate", str(tables), "--json"]) == 1, "one of the tables does not exist"
    report = json.loads(capsys.readouterr().out)["tables"]
    assert report[0]["policies"][0]["policy"] == "configured"
    assert "gone" in report[1]["table"]


def test_nothing_to_simulate(place: str) -> None:
    with pytest.raises(UsageError, match="no policy"):
        verbs.simulate(open_table(place), [], since=DAY)


def test_what_is_predicted_happens(tmp_path: Path) -> None:
    """A policy is run for real, commit by commit; then the log is replayed under the same policy."""
    random = np.random.default_rng(4)
    place = str(tmp_path / "t")
    builder = DeltaBuilder(place).create(SCHEMA)
    policy = Policy.from_mapping({"target_file_size": "1MiB", "max_deleted_ratio": 0.1})
    end, runs, last = 0, 0, None
    for number in range(40):
        if number < 3 or random.random() < 0.5:
            more = int(random.integers(1_000, 20_000))
            builder.append(ids(end, end + more))
            end += more
        else:
            first = int(random.integers(0, end))
            builder.delete(between(first, first + end // 25))
        table = open_table(place)
        last = inspect_table(table, policy, last, jobs=["optimize"])
        if "optimize" in last.due:
            apply(table, LocalEngine(), decide_for(table, table.snapshot(), policy))
            runs += 1
            last = inspect_table(table, policy, last, jobs=["optimize"])
    found = verbs.simulate(open_table(place), [("the same", policy)], since=DAY)
    happened, predicted = found.report["happened"], found.report["policies"][0]
    assert happened["runs"] == runs
    assert predicted["runs"] == pytest.approx(runs, rel=0.15)
    assert predicted["amplification"] == pytest.approx(happened["amplification"], rel=0.15)
