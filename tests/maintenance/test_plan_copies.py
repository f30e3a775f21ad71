"""What a plan says of row groups before anything is read, and what the run did with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.parquet import surgery
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.service.verbs import purging, state
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

GROUPS = 10


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(surgery, "_LARGE_ROWS", 100)
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
    done = purging.purge(table, lambda: LocalEngine(1))
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
