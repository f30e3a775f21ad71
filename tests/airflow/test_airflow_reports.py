"""Tasks that only read logs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dv_maintenance.testing.delta_builder import DeltaBuilder

RUN = """
import json
from dv_maintenance.airflow import DvReportOperator, DvSimulationOperator
pushed = {}
class Task:
    def xcom_push(self, key, value):
        pushed[key] = value
"""


@pytest.fixture
def run(in_airflow: Callable[[str], str], tmp_path: Path) -> Callable[[str], list[object]]:
    """What a task on two tables, of which one is damaged, returns, and the XCom that it pushes."""
    for name in ("orders", "events"):
        builder = DeltaBuilder(str(tmp_path / name)).create(pa.schema([("id", pa.int64())]))
        builder.append(pa.table({"id": range(100)}))
        builder.delete(lambda rows: pa.array([row < 40 for row in rows["id"].to_pylist()]))
    (tmp_path / "events" / "_delta_log" / f"{2:020d}.json").write_text("{")
    (tmp_path / "tables.yaml").write_text("name: lake\ntables:\n- {path: orders}\n- {path: events}\n")

    def run(task: str) -> list[object]:
        text = f"shown = {task}.execute({{'ti': Task()}})\nprint(json.dumps([shown, pushed]))"
        return list(json.loads(in_airflow(RUN + textwrap.dedent(text)).splitlines()[-1]))

    return run


def test_a_report_of_all_tables(run: Callable[[str], list[object]], tmp_path: Path) -> None:
    shown, pushed = run(
        "DvReportOperator(task_id='t', tables_file='tables.yaml', metrics='lake.prom', path='lake.json')"
    )
    assert isinstance(shown, dict)
    assert isinstance(pushed, dict)
    assert shown["reason"].startswith("2 tables: ")
    assert (shown["unreadable_tables"], shown["tables_with_dvs"], shown["due_tables"]) == (1, 1, 1)
    page = "\n".join(pushed["plan"])
    assert "events" in page.partition("orders")[0], "the worst first"
    assert "ERROR" in page
    assert "<1m" not in page, "who reads it later would take an age for today's"
    assert 'dvm_table_readable{table="events"' in (tmp_path / "lake.prom").read_text()
    rows = json.loads((tmp_path / "lake.json").read_text())["tables"]
    assert [(row["name"], row["error"] is None) for row in rows] == [("events", False), ("orders", True)]


def test_a_file_that_can_not_be_written(run: Callable[[str], list[object]]) -> None:
    with pytest.raises(AssertionError, match=r"cannot write gone/lake.json: No such file"):
        run("DvReportOperator(task_id='t', tables_file='tables.yaml', path='gone/lake.json')")


def test_a_simulation_of_chosen_tables(run: Callable[[str], list[object]]) -> None:
    shown, pushed = run(
        "DvSimulationOperator(task_id='t', tables_file='tables.yaml', policy={'max_deleted_ratio': 0.9})"
    )
    assert isinstance(shown, dict)
    assert isinstance(pushed, dict)
    assert shown["reason"] == "1 table simulated, 1 failed."
    assert "JSON" in shown["failed"]["events"]
    assert any("chosen" in line for line in pushed["plan"]), "the other policy beside the configured one"
    with pytest.raises(AssertionError, match="the file has no tables named nobody"):
        run("DvSimulationOperator(task_id='t', tables_file='tables.yaml', tables=['nobody'])")
    with pytest.raises(AssertionError, match="max_deleted_ration"):
        run("DvSimulationOperator(task_id='t', tables_file='tables.yaml', policy={'max_deleted_ration': 1})")
