"""What is ordered and what is left alone; the same rows before and after."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.clustered import clustered

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.maintenance.planning.ordered_steps import ordered_steps
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.zorder import plan_zorder, zorder
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("part", pa.string())])
TARGET = 6000
SMALL = Policy(target_file_size=TARGET)


def rows(first: int, last: int, part: str = "p") -> pa.Table:
    numbers = range(first, last)
    return pa.table(
        {
            "a": [n * 7919 % 5000 for n in numbers],
            "b": [f"v{n * 104729 % 5000:05}" for n in numbers],
            "part": [part] * len(numbers),
        },
        SCHEMA,
    )


@pytest.fixture
def orders(tmp_path: Path) -> DeltaBuilder:
    builder = DeltaBuilder(str(tmp_path / "orders")).create(SCHEMA, partition_by=["part"])
    builder.append(rows(0, 5000), files=4)
    builder.append(rows(0, 500, "q"), files=2)
    builder.delete(lambda batch: pc.less(batch["a"], 300))
    return builder


def content(table: Any) -> list[dict[str, Any]]:
    _, batches = read(table)
    found = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["part"], row["b"], row["a"]))


def run(builder: DeltaBuilder, columns: list[str], policy: Policy = SMALL) -> Any:
    return zorder(open_table(builder.storage.uri), LocalEngine(), columns, policy)


def last_commit(builder: DeltaBuilder, version: int) -> list[dict[str, Any]]:
    path = Path(builder.storage.uri.removeprefix("file://")) / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_stay_dvs_go_and_history_says_so(orders: DeltaBuilder) -> None:
    table = open_table(orders.storage.uri)
    before = content(table)
    report = run(orders, ["A", "b"])
    assert report.verified
    assert content(table) == before
    files = table.snapshot().files
    assert files["dv_id"].null_count == files.num_rows > 3
    actions = last_commit(orders, report.version_after)
    info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
    assert info["operation"] == "OPTIMIZE"
    assert info["operationParameters"] == {"predicate": "[]", "zOrderBy": '["a","b"]'}
    assert int(info["operationMetrics"]["numAddedFiles"]) == files.num_rows
    assert all(not action["add"]["dataChange"] for action in actions if "add" in action)


def test_a_second_run_has_nothing_to_do(orders: DeltaBuilder) -> None:
    version = run(orders, ["a", "b"]).version_after
    again = run(orders, ["a", "b"])
    assert (again.version_after, again.steps) == (version, ())
    assert again.left_alone[0].reason == "ordered by a, b, with nothing new in its range"
    # Another order is another matter.
    assert run(orders, ["b"]).version_after == version + 1


def test_many_small_files_are_ordered_together(orders: DeltaBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step spans all values, so steps of few files would each be read by most queries."""
    table, tiny = open_table(orders.storage.uri), Policy(target_file_size=100)
    together = plan_zorder(table, table.snapshot(), ["a", "b"], tiny)
    assert len({step.partition for step in together.steps}) == len(together.steps) == 2
    assert together.steps[0].expected.files_after > 32
    monkeypatch.setattr("dv_maintenance.maintenance.zorder.ordered_steps", partial(ordered_steps, step_bytes=0))
    apart = plan_zorder(table, table.snapshot(), ["a", "b"], tiny)
    assert len(apart.steps) > 2


def test_new_files_take_those_along_that_they_overlap(orders: DeltaBuilder) -> None:
    run(orders, ["a"])
    table = open_table(orders.storage.uri)
    before = table.snapshot()
    new = pa.table({"a": [10, 20], "b": ["x", "y"], "part": ["p", "p"]}, SCHEMA)
    orders.append(new)
    plan = plan_zorder(table, table.snapshot(), ["a"], SMALL)
    [step] = plan.steps
    assert step.partition == "part=p"
    # Row 10 and 20 are below what the first file holds, since everything below 300 is deleted.
    assert [each.why for each in step.inputs] == ["unordered"]
    assert 0 < len(step.inputs) < before.files.num_rows
    assert MaintenancePlan.from_json(plan.to_json()) == plan
    expected = content(table)
    assert run(orders, ["a"]).verified
    assert content(table) == expected


def test_deleted_rows_bring_an_ordered_file_back(orders: DeltaBuilder) -> None:
    run(orders, ["a"])
    orders.delete(lambda batch: pc.and_(pc.less(batch["a"], 600), pc.equal(batch["part"], "p")))
    table = open_table(orders.storage.uri)
    steps = plan_zorder(table, table.snapshot(), ["a"], SMALL).steps
    assert {each.why for step in steps for each in step.inputs} == {"deleted_ratio"}
    assert {step.partition for step in steps} == {"part=p"}


def test_partitions_are_chosen(orders: DeltaBuilder) -> None:
    report = run(orders, ["a"], SMALL.model_copy(update={"partitions": ({"part": "q"},)}))
    assert {step.partition for step in report.steps} == {"part=q"}
    assert "outside the selected partitions" in {each.reason for each in report.left_alone}


def test_a_delete_meanwhile_costs_another_round(orders: DeltaBuilder) -> None:
    table = open_table(orders.storage.uri)

    class Meanwhile(LocalEngine):
        rounds = 0

        def run(self, *args: Any, **options: Any) -> Any:
            done = LocalEngine.run(self, *args, **options)
            Meanwhile.rounds += 1
            if Meanwhile.rounds == 1:
                orders.delete(lambda batch: pc.greater(batch["a"], 4900))
            return done

    report = zorder(table, Meanwhile(), ["a"], SMALL)
    assert report.verified
    assert Meanwhile.rounds == 2
    assert all(300 <= row["a"] <= 4900 for row in content(table))
    assert zorder(table, LocalEngine(), ["a"], SMALL).steps == ()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "1 to 16 different columns"),
        (["a", "A"], "different columns"),
        (["nope"], "no column 'nope'"),
        (["part"], "is a partition column"),
    ],
)
def test_columns_that_make_no_order(orders: DeltaBuilder, columns: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(orders, columns)


def test_a_clustered_table_is_left_alone(tmp_path: Path) -> None:
    builder = clustered(DeltaBuilder(str(tmp_path / "t")), SCHEMA, ["a", "b"])
    with pytest.raises(RefusedError, match="clustered by a, b"):
        run(builder, ["a"])


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns(tmp_path: Path, mode: str) -> None:
    builder = DeltaBuilder(str(tmp_path / "t"))
    builder.create(SCHEMA, partition_by=["part"], properties={"delta.columnMapping.mode": mode})
    builder.append(rows(0, 1000), files=3)
    before = content(open_table(builder.storage.uri))
    assert run(builder, ["b"]).verified
    assert content(open_table(builder.storage.uri)) == before


def test_the_verb(orders: DeltaBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["zorder", orders.storage.uri, "--columns", "a,b", "--target-file-size", "6000", "--engine", "local"]
    assert main([*words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["order_by"] == ["a", "b"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"]
    assert main(words) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["zorder", orders.storage.uri, "--columns", "part"]) == 2
