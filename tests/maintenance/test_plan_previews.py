"""What a plan says of row groups and codecs before anything is rewritten, and what the run made of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.parquet import preview, row_group_copy
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.service.verbs import rewriting, state
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

GROUPS = 10


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", 100)
    builder = DeltaBuilder(str(tmp_path)).create(pa.schema([("id", pa.int64())]))
    builder.append(pa.table({"id": range(GROUPS * 100)}), rows_per_row_group=100)
    (path,) = (file.name for file in tmp_path.glob("*.parquet"))
    builder.delete({path: [5, 910, *range(300, 400)]})
    return open_table(str(tmp_path))


def test_the_plan_and_the_run_say_the_same(table: Any, tmp_path: Path) -> None:
    plan = state.plan(table, Policy())
    (step,) = plan.report["steps"]
    # Two row groups lose a row, one loses all of them.
    assert (step["cost"]["row_groups"], step["cost"]["row_groups_copied"]) == (GROUPS, 7)
    assert "7 of 10 row groups copied" in plan.texts["explanation"]
    assert MaintenancePlan.from_json(plan.report).steps[0].cost.bytes_copied == step["cost"]["bytes_copied"] > 0
    done = rewriting.rewrite(table, lambda: LocalEngine(1), rewriting.PURGE)
    (reported,) = done.report["steps"]
    assert (reported["row_groups"], reported["row_groups_copied"]) == (GROUPS, 7)
    assert reported["bytes_copied"] == step["cost"]["bytes_copied"]
    assert any("7 of 10 row groups copied" in line for line in done.details)
    assert done.report["cost"]["bytes_copied"] == reported["bytes_copied"]
    (new,) = table.snapshot().files["path"].to_pylist()
    assert pq.read_table(tmp_path / new)["id"].to_pylist() == [
        row for row in range(GROUPS * 100) if row not in {5, 910, *range(300, 400)}
    ]


def test_a_plan_of_files_that_are_gone(table: Any, tmp_path: Path) -> None:
    """What is missing is the run's to say."""
    (file,) = tmp_path.glob("*.parquet")
    assert pq.read_metadata(file).num_row_groups == GROUPS
    file.unlink()
    plan = state.plan(table, Policy())
    assert plan.report["steps"][0]["cost"]["row_groups"] is None
    assert "row groups copied" not in plan.texts["explanation"]


TEXTS = 30_000


@pytest.fixture
def texts(tmp_path: Path) -> Any:
    """In snappy, in two files, each with a deletion vector."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema)
    words = [f"{row * 7919 % 10007} and {row * row % 10009} of {row}" for row in range(TEXTS)]
    builder.append(pa.table({"id": range(TEXTS), "text": words}), files=2)
    builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 7), 0))
    return open_table(str(tmp_path / "t"))


def test_what_another_codec_saves(texts: Any, tmp_path: Path) -> None:
    plan = state.plan(texts, Policy(compression="zstd"))
    (step,) = plan.report["steps"]
    ((source, target, before, after),) = [tuple(each.values()) for each in step["recoded"]]
    assert (source, target) == ("snappy", "zstd")
    text = f"zstd instead of snappy: about {round(100 - 100 * after / before)} % smaller, "
    assert plan.texts["explanation"].count(text) == 2
    assert MaintenancePlan.from_json(plan.report).to_json() == plan.report
    # The live rows of both files, in the new codec.
    assert step["expected"]["bytes_after"] == step["cost"]["bytes_written"]
    assert before == pytest.approx(sum(texts.snapshot().files["size"].to_pylist()) * 7 / 8, rel=0.05)
    # That is what the codec makes of it.
    kept = open_table(str(shutil.copytree(tmp_path / "t", tmp_path / "kept")))
    sizes = [
        rewriting.rewrite(each, lambda: LocalEngine(1), rewriting.RewriteRequest(policy)).numbers["bytes_out"]
        for each, policy in ((kept, Policy()), (texts, Policy(compression="zstd")))
    ]
    assert after / before == pytest.approx(sizes[1] / sizes[0], rel=0.05)
    assert after < 0.9 * before


def test_a_plan_that_keeps_the_codec_reads_no_row(texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def sampled(*_: Any) -> float:
        raise AssertionError("nothing changes its codec")

    monkeypatch.setattr(preview, "sampled_ratio", sampled)
    for policy in (Policy(), Policy(compression="snappy")):
        plan = state.plan(texts, policy)
        assert plan.report["steps"][0]["recoded"] == []
        assert "instead of" not in plan.texts["explanation"]


def test_what_is_copied_keeps_its_codec(table: Any) -> None:
    """The row groups that are decoded change theirs only where the policy or the table names another one."""
    assert state.plan(table, Policy()).report["steps"][0]["recoded"] == []
    (step,) = state.plan(table, Policy(compression="gzip")).report["steps"]
    assert step["cost"]["row_groups_copied"] == 0
    assert [(each["source"], each["target"]) for each in step["recoded"]] == [("snappy", "gzip")]


def test_a_sample_that_can_not_be_read(texts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged is the run's to say."""

    def sampled(*_: Any) -> float:
        raise DamagedTableError("the file is damaged")

    monkeypatch.setattr(preview, "sampled_ratio", sampled)
    plan = state.plan(texts, Policy(compression="zstd"))
    assert plan.report["steps"][0]["recoded"] == []
    assert plan.report["steps"][0]["cost"]["row_groups"] == 2
