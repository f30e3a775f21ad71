"""Commits of rewrites, where others were at the table meanwhile: what is carried over, and what is planned again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError, RefusedError, UnsupportedFeatureError
from dv_maintenance.maintenance.execution.apply import apply, purge
from dv_maintenance.maintenance.execution.report import ApplyReport
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table
from dv_maintenance.tables.lance.commit import rewrites as commit
from dv_maintenance.testing.history import InterferingEngine


@pytest.fixture(params=[False, True], ids=["address", "stable"])
def place(request: pytest.FixtureRequest, pylance: ModuleType, tmp_path: Path) -> str:
    """Three columns in four fragments of 100 rows, a quarter of each deleted."""
    place = str(tmp_path / "table")
    data = pa.table({"id": range(400), "name": [f"name {n}" for n in range(400)], "more": range(400)})
    dataset = pylance.write_dataset(data, place, max_rows_per_file=100, enable_stable_row_ids=request.param)
    dataset.delete("id % 4 = 0")
    return place


def ids(pylance: ModuleType, place: str) -> list[int]:
    dataset = pylance.dataset(place)
    dataset.validate()
    return sorted(dataset.to_table()["id"].to_pylist())


def purged_while(place: str, others: Callable[[], object]) -> tuple[ApplyReport, InterferingEngine]:
    engine = InterferingEngine(LocalEngine(), others)
    return purge(open_table(place), engine), engine


def carried(report: ApplyReport) -> int:
    return sum(step.rows_carried for step in report.steps)


def test_the_order_of_a_plan_s_inputs_does_not_matter(pylance: ModuleType, place: str) -> None:
    table = open_table(place)
    plan = build_plan(table.snapshot(), purge=True)
    plan = replace(plan, steps=tuple(replace(step, inputs=step.inputs[::-1]) for step in plan.steps))
    assert [len(step.inputs) for step in plan.steps] == [4]
    engine = InterferingEngine(LocalEngine(), lambda: pylance.dataset(place).delete("id >= 90 and id < 130"))
    report = apply(table, engine, plan)
    assert (report.verified, engine.runs, carried(report)) == (True, 1, 30)
    assert ids(pylance, place) == [n for n in range(400) if n % 4 and not 90 <= n < 130]


def test_appends_and_updates_are_carried_over(pylance: ModuleType, place: str) -> None:
    def others() -> None:
        pylance.write_dataset(pa.table({"id": [1000], "name": ["new"], "more": [0]}), place, mode="append")
        pylance.dataset(place).update({"name": "'changed'"}, where="id = 7")

    report, engine = purged_while(place, others)
    assert (report.verified, engine.runs, carried(report)) == (True, 1, 1)
    assert ids(pylance, place) == [*(n for n in range(400) if n % 4), 1000]
    assert pylance.dataset(place).to_table(filter="id = 7")["name"].to_pylist() == ["changed"]


def test_a_fragment_that_went_whole_stays_gone(pylance: ModuleType, place: str) -> None:
    report, engine = purged_while(place, lambda: pylance.dataset(place).delete("id >= 100 and id < 200"))
    assert (report.verified, engine.runs) == (True, 1)
    assert ids(pylance, place) == [n for n in range(400) if n % 4 and not 100 <= n < 200]


@pytest.mark.parametrize("index", [True, False], ids=["a new index", "a new column"])
def test_what_changes_more_than_rows(pylance: ModuleType, place: str, index: bool) -> None:
    def others() -> None:
        dataset = pylance.dataset(place)
        if index:
            dataset.create_scalar_index("id", "BTREE")
        else:
            dataset.add_columns({"twice": "id * 2"})

    report, engine = purged_while(place, others)
    # Rows keep what they are under a new index; a new column is not in the files that were written.
    assert (report.verified, engine.runs) == (True, 1 if index else 2)
    assert ids(pylance, place) == [n for n in range(400) if n % 4]
    if not index:
        assert pylance.dataset(place).to_table(filter="id = 7")["twice"].to_pylist() == [14]
    assert pylance.dataset(place).to_table(filter="id = 8 or id = 9")["id"].to_pylist() == [9]


def test_a_compaction_by_lance_is_not_undone(pylance: ModuleType, place: str) -> None:
    report, _ = purged_while(place, pylance.dataset(place).optimize.compact_files)
    assert report.verified
    assert ids(pylance, place) == [n for n in range(400) if n % 4]


def test_rows_that_a_restore_brings_back_are_not_lost(pylance: ModuleType, place: str) -> None:
    report, engine = purged_while(place, lambda: pylance.dataset(place, version=1).restore())
    assert (report.verified, engine.runs) == (True, 1)
    assert ids(pylance, place) == list(range(400))


def test_a_fragment_that_comes_back_between_two_attempts_is_not_there_twice(
    pylance: ModuleType, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pylance.dataset(place).version
    commits = pylance.LanceDataset.commit
    tries = 0

    def lost_once(*args: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            pylance.dataset(place, version=first).restore()
            raise OSError("Retryable commit conflict")
        return commits(*args, **options)

    monkeypatch.setattr(pylance.LanceDataset, "commit", lost_once)
    report, _ = purged_while(place, lambda: pylance.dataset(place).delete("id >= 100 and id < 200 or id = 1"))
    assert (report.verified, tries) == (True, 2)
    assert ids(pylance, place) == [n for n in range(400) if n % 4]


def test_values_that_others_change_in_place_are_not_undone(pylance: ModuleType, place: str) -> None:
    new = pa.table({"id": [7, 9], "name": ["changed", "changed"]})

    def others() -> None:
        dataset = pylance.dataset(place)
        updated, fields = dataset.get_fragment(0).update_columns(new, left_on="id")
        update = pylance.LanceOperation.Update(updated_fragments=[updated], fields_modified=fields)
        pylance.LanceDataset.commit(dataset, update, read_version=dataset.version)

    report, _ = purged_while(place, others)
    assert report.verified
    assert ids(pylance, place) == [n for n in range(400) if n % 4]
    assert pylance.dataset(place).to_table(filter="name = 'changed'")["id"].to_pylist() == [7, 9]


def test_a_table_that_was_made_anew_is_not_touched(pylance: ModuleType, place: str) -> None:
    new = pa.table({"id": range(50), "name": ["x"] * 50})
    report, _ = purged_while(place, lambda: pylance.write_dataset(new, place, mode="overwrite"))
    assert (report.verified, report.steps) == (True, ())
    assert ids(pylance, place) == list(range(50))


def test_a_race_that_is_always_lost_is_told(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise ConflictError("somebody was faster")

    monkeypatch.setattr(commit._Commit, "_commit_by_lance", lost)
    monkeypatch.setattr(commit._Commit, "_commit_by_us", lost)
    before = {path.name for path in Path(place, "data").iterdir()}
    with pytest.raises(ConflictError, match="lost all 200 attempts to other writers") as caught:
        purge(open_table(place), LocalEngine())
    assert "nothing was committed" in str(caught.value)
    assert {path.name for path in Path(place, "data").iterdir()} == before


@pytest.mark.parametrize("error", [RefusedError("both namings"), UnsupportedFeatureError("flag", features=("flag",))])
def test_what_is_committed_stays_whatever_happens_to_the_next(
    pylance: ModuleType, place: str, monkeypatch: pytest.MonkeyPatch, error: RefusedError
) -> None:
    table = open_table(place)
    plan = build_plan(table.snapshot(), Policy(target_file_size=1), purge=True)
    assert len(plan.steps) == 4
    runs = commit._Commit.run
    done = 0

    def run(self: Any) -> Any:
        nonlocal done
        done += 1
        if done == 2:
            error.uncommitted = True  # as ``publish`` says of what its rules raise
            raise error
        return runs(self)

    monkeypatch.setattr(commit._Commit, "run", run)
    report = apply(table, LocalEngine(), plan)
    assert (report.verified, len(report.steps)) == (True, 4)
    assert ids(pylance, place) == [n for n in range(400) if n % 4]


def test_indices_that_cannot_be_looked_at_are_a_problem_of_theirs(
    pylance: ModuleType, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RefusedError("both namings")

    monkeypatch.setattr("dv_maintenance.tables.lance.commit.indices.load_manifest", refuse)
    report = purge(open_table(place), LocalEngine())
    assert report.problems == ("the indices were not checked: both namings",)
    assert ids(pylance, place) == [n for n in range(400) if n % 4]
