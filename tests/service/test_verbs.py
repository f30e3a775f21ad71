"""Verbs of the service: one outcome for every face, and what each face makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.cli.render import text
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.service import reading, verbs
from dv_maintenance.service.outcome import Outcome
from dv_maintenance.service.policies import load
from dv_maintenance.service.tables_file import TableSettings
from dv_maintenance.tables import open_table
from dv_maintenance.tables.table import Table
from dv_maintenance.testing.delta_builder import DeltaBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("shop", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Version 2: half of the rows of shop a are deleted."""
    properties = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    builder = DeltaBuilder(str(tmp_path / "t")).create(SCHEMA, partition_by=["shop"], properties=properties)
    builder.append(pa.table({"id": range(20), "shop": ["a", "b"] * 10}, SCHEMA))
    builder.delete(lambda rows: pc.and_(pc.less(rows["id"], 10), pc.equal(rows["shop"], "a")))
    return open_table(str(tmp_path / "t"))


def test_every_name_has_a_home() -> None:
    assert all(getattr(verbs, name) is not None for name in verbs.__all__)
    with pytest.raises(AttributeError):
        verbs.nothing  # noqa: B018


def test_a_purge_has_its_plan_its_steps_and_its_numbers(table: Table) -> None:
    outcome = verbs.rewrite(table, LocalEngine, verbs.PURGE)
    assert outcome.reason == "1 file was rewritten as 1, without their 5 deleted rows."
    assert not outcome.numbers.keys() & outcome.tables.keys(), "a page shows both under their names"
    assert (outcome.numbers["rows_purged"], outcome.numbers["verified"]) == (5, True)
    assert [row["partition"] for row in outcome.tables["plan"]] == ["shop=a"]
    assert [(row["files"], row["rows purged"]) for row in outcome.tables["rewrites"]] == [("1 -> 1", 5)]
    assert verbs.rewrite(table, LocalEngine, verbs.PURGE).reason == "There was nothing to do."


def test_a_purge_of_nothing_says_what_its_plan_would_and_starts_no_engine(table: Table) -> None:
    verbs.rewrite(table, LocalEngine, verbs.PURGE)
    snapshot = table.snapshot()
    planned = verbs.apply_plan(table, LocalEngine, build_plan(snapshot, purge=True), None, snapshot)
    assert verbs.rewrite(table, no_engine, verbs.PURGE) == replace(planned, texts={})


def no_engine() -> LocalEngine:
    raise AssertionError("no engine is needed: no work is due")


def test_a_job_that_is_not_due_says_so(table: Table) -> None:
    watched = TableSettings(path=table.uri)
    assert verbs.nothing_due(watched, table, "optimize") is None
    verbs.rewrite(table, LocalEngine, verbs.PURGE)
    outcome = verbs.nothing_due(watched, table, "optimize")
    assert outcome is not None
    assert (outcome.reason, outcome.numbers) == ("Nothing to do: no optimize is due at version 3.", {"version": 3})


def test_a_dry_run_starts_no_engine(table: Table) -> None:
    def none() -> LocalEngine:
        raise AssertionError("started")

    planned = verbs.rewrite(table, none, verbs.RewriteRequest(load(), dry_run=True))
    assert planned.reason == "Only planned; nothing was changed."
    assert planned.report == verbs.plan(table, load(None, ["max_deleted_ratio=0.05"])).report


def test_a_terminal_shows_every_fact_once() -> None:
    outcome = Outcome(
        "It was done.",
        {"hidden": 1},
        moments={"cutoff": 0},
        tables={"plan": ({"files": 1},), "rewrites": ({"partition": "day=1", "files": "1 -> 2", "rows": 4000},)},
        texts={"explanation": "# long"},
        details=("a detail",),
        lines={"kept": ("2 files: young",)},
        report={"table": "t", "version_before": 3, "version_after": 4},
    )
    assert text(outcome).splitlines() == [
        "t  version 3 -> 4",
        "It was done.",
        "partition   files   rows",
        "---------  ------  -----",
        "day=1      1 -> 2  4,000",
        "cutoff: 1970-01-01T00:00:00.000Z",
        "a detail",
        "kept:",
        "  2 files: young",
    ]
    wrong = replace(outcome, problems=("a file too many",), report={"table": "t", "version": 4})
    assert text(wrong).splitlines()[0] == "t  version 4"
    assert text(wrong).endswith("NOT VERIFIED:\n  a file too many")


def test_row_changes_name_what_selects_the_rows(table: Table) -> None:
    with pytest.raises(UsageError, match="exactly one of"):
        verbs.delete_rows(table, LocalEngine)
    with pytest.raises(UsageError, match="the local engine can't evaluate Spark SQL"):
        verbs.update_rows(table, LocalEngine, [("id", "1")])
    with pytest.raises(UsageError, match="set twice"):
        verbs.update_rows(table, LocalEngine, [("id", "1"), ("id", "2")])


def test_rows_and_changes_are_counted_or_written(table: Table, tmp_path: Path) -> None:
    assert reading.rows(table).report == {"rows": 15, "output": None}
    written = reading.rows(table, str(tmp_path / "r.jsonl"), limit=3)
    assert written.reason == f"Wrote 3 rows to {tmp_path}/r.jsonl."
    changed = reading.changes(table, 1, 2)
    assert (changed.reason, changed.report["changes"]) == (
        "25 changes (5 delete, 20 insert).",
        {"insert": 20, "delete": 5},
    )
    assert reading.changes(table, 1, 2, str(tmp_path / "c.jsonl"), limit=7).report["rows"] == 7


def test_a_run_whose_work_somebody_else_did_says_so(table: Table) -> None:
    """Two orchestrators on one table: the plan's reason would be that of work which this run has not done."""
    watched = TableSettings(name="t", path=table.uri)

    class Late(LocalEngine):
        def run(self, tasks: Any, **more: Any) -> Any:
            assert verbs.optimize(watched, verbs.opened(watched), LocalEngine).numbers["steps"] == 1
            return super().run(tasks, **more)

    outcome = verbs.optimize(watched, table, Late)
    assert outcome.numbers["steps"] == 0
    assert outcome.reason.startswith("Nothing left to do: while this run was working, other writers")
    assert "the files of 1 planned step" in outcome.reason
