"""Apply: what a query returns never changes, whatever happens in between, and no new file stays without a commit."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import (
    ConflictError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
    UsageError,
    VerificationError,
)
from dv_maintenance.maintenance.execution.apply import apply, maintain, purge
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.planning.steps import MaintenancePlan
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.tables.work import RewriteResult
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.testing.memory_engine import MemoryEngine


@pytest.fixture
def table(tmp_path: Path) -> MemoryTable:
    """Three partitions: dirty, wholly deleted and clean, two small clean ones."""
    table = MemoryTable(tmp_path / "table")
    dirty = table.append("p=1", list(range(10)))
    dead = table.append("p=2", list(range(3)))
    table.append("p=2", list(range(100, 110)))
    table.append("p=3", list(range(5)))
    table.append("p=3", list(range(5, 8)))
    table.delete(dirty, [0, 3, 9])
    table.delete(dead, [0, 1, 2])
    return table


def unchanged(table: MemoryTable) -> Callable[[], None]:
    """A check that the table has the versions, rows and files that it has now."""
    before = (table.version(), table.rows(), table.stored())

    def check() -> None:
        assert (table.version(), table.rows(), table.stored()) == before

    return check


def no_orphans(table: MemoryTable) -> None:
    ever = {row["path"] for version in range(table.version() + 1) for row in table.snapshot(version).files.to_pylist()}
    assert table.stored() == ever


def test_a_plan_is_run(table: MemoryTable) -> None:
    rows, version = table.rows(), table.version()
    progress: list[tuple[int, int]] = []
    plan = build_plan(table.snapshot())
    report = apply(table, MemoryEngine(), plan, on_progress=lambda *each: progress.append(each))

    assert table.rows() == rows
    assert report.verified, report.problems
    assert (report.version_before, report.version_after, table.version()) == (version, version + 1, version + 1)
    assert table.operations[-1] == "OPTIMIZE"
    assert progress == [(0, 2), (1, 2), (2, 2)]
    done = {step.partition: step for step in report.steps}
    assert (done["p=1"].action, done["p=1"].files_removed, done["p=1"].files_added) == ("rewrite", 1, 1)
    assert (done["p=1"].dvs_removed, done["p=1"].rows_purged) == (1, 3)
    assert (done["p=2"].action, done["p=2"].files_removed, done["p=2"].files_added) == ("remove", 1, 0)
    assert (done["p=2"].bytes_out, done["p=2"].rows_purged) == (0, 3)
    assert (done["p=3"].files_removed, done["p=3"].files_added, done["p=3"].dvs_removed) == (2, 1, 0)
    assert all(step.version == version + 1 and step.attempts == 1 for step in report.steps)
    assert [each.files for each in report.left_alone] == [1]
    assert json.loads(json.dumps(report.to_json()))["steps"][0]["id"] == "step-1"
    no_orphans(table)


def test_a_second_run_does_nothing(table: MemoryTable) -> None:
    engine = MemoryEngine()
    maintain(table, engine)
    check = unchanged(table)
    again = maintain(table, engine)
    assert (again.steps, again.verified, again.version_before, again.version_after) == (
        (),
        True,
        table.version(),
        table.version(),
    )
    assert engine.runs == 1
    check()


def test_a_saved_plan_does_what_the_plan_does(table: MemoryTable) -> None:
    plan = build_plan(table.snapshot())
    report = apply(table, MemoryEngine(), MaintenancePlan.from_json(json.loads(json.dumps(plan.to_json()))))
    assert [step.id for step in report.steps] == [step.id for step in plan.steps]


def test_purge_takes_every_deletion_vector_and_nothing_else(table: MemoryTable) -> None:
    rows = table.rows()
    report = purge(table, MemoryEngine())
    assert table.rows() == rows
    assert all(key.dv_id is None for key in table.keys)
    assert {step.partition for step in report.steps} == {"p=1", "p=2"}
    assert table.operations[-1] == "REORG"
    assert table.history(1)[0].parameters == {"predicate": [], "applyPurge": True}
    assert purge(table, MemoryEngine()).steps == ()


@pytest.mark.parametrize("selection", [[{"p": "1"}], ["p=1"]])
def test_purge_of_chosen_partitions(table: MemoryTable, selection: Any) -> None:
    report = purge(table, MemoryEngine(), selection)
    assert {step.partition for step in report.steps} == {"p=1"}
    assert any(key.dv_id for key in table.keys)
    with pytest.raises(UsageError, match="not a partition column"):
        purge(table, MemoryEngine(), [{"q": "1"}])


def test_a_file_without_row_count(tmp_path: Path) -> None:
    table = MemoryTable(tmp_path)
    table.delete(table.append("", [1, 2, 3], counted=False), [1])
    report = purge(table, MemoryEngine())
    assert report.verified
    assert report.steps[0].rows_purged == 1
    assert table.rows() == ['["", 1]', '["", 3]']


# -- what fails before the commit ----------------------------------------------------------------------------------


def loses_a_row(result: RewriteResult, storage: Storage) -> RewriteResult:
    return replace(result, rows_written=result.rows_written - 1)


def purges_too_much(result: RewriteResult, storage: Storage) -> RewriteResult:
    return replace(result, rows_written=result.rows_written - 1, rows_purged=result.rows_purged + 1)


def purges_too_much_and_says_so(result: RewriteResult, storage: Storage) -> RewriteResult:
    outputs = tuple(replace(output, rows=output.rows - 1) for output in result.outputs)
    return replace(purges_too_much(result, storage), outputs=outputs)


def reads_another_file(result: RewriteResult, storage: Storage) -> RewriteResult:
    outputs = tuple(replace(output, rows=output.rows + 1) for output in result.outputs)
    return replace(result, outputs=outputs, rows_read=result.rows_read + 1, rows_written=result.rows_written + 1)


def counts_wrongly(result: RewriteResult, storage: Storage) -> RewriteResult:
    return replace(result, outputs=tuple(replace(output, rows=output.rows + 1) for output in result.outputs))


def mixes_sources_up(result: RewriteResult, storage: Storage) -> RewriteResult:
    return replace(result, source_rows=tuple(rows + 1 for rows in result.source_rows))


def mixes_dvs_up(result: RewriteResult, storage: Storage) -> RewriteResult:
    return replace(result, source_purged=tuple(rows + 1 for rows in result.source_purged))


def forgets_a_source(result: RewriteResult, storage: Storage) -> RewriteResult:
    return replace(result, source_rows=(*result.source_rows, 0))


def writes_less_than_it_says(result: RewriteResult, storage: Storage) -> RewriteResult:
    return replace(result, outputs=tuple(replace(output, size=output.size + 1) for output in result.outputs))


def loses_its_file(result: RewriteResult, storage: Storage) -> RewriteResult:
    storage.delete([storage.path_of_uri(output.uri) for output in result.outputs])
    return result


def takes_another_name(result: RewriteResult, storage: Storage) -> RewriteResult:
    return replace(result, task_id="step-1") if result.task_id != "step-1" else result


@pytest.mark.parametrize(
    "spoil",
    [
        loses_a_row,
        purges_too_much,
        purges_too_much_and_says_so,
        reads_another_file,
        counts_wrongly,
        mixes_sources_up,
        mixes_dvs_up,
        forgets_a_source,
        writes_less_than_it_says,
        loses_its_file,
    ],
)
def test_what_does_not_pass_its_gate_is_deleted(
    table: MemoryTable, spoil: Callable[[RewriteResult, Storage], RewriteResult]
) -> None:
    check = unchanged(table)
    with pytest.raises(VerificationError) as caught:
        maintain(table, MemoryEngine(spoil))
    assert caught.value.table == table.uri
    assert caught.value.done == "the new files were deleted, nothing was committed"
    check()


def test_an_engine_that_answers_for_another_task(table: MemoryTable) -> None:
    version, rows = table.version(), table.rows()
    with pytest.raises(VerificationError, match="tasks other than"):
        maintain(table, MemoryEngine(takes_another_name))
    assert (table.version(), table.rows()) == (version, rows)


def test_an_engine_that_fails_halfway(table: MemoryTable) -> None:
    check = unchanged(table)
    done: list[str] = []

    def fail(result: RewriteResult, storage: Storage) -> RewriteResult:
        done.append(result.task_id)
        if len(done) == 2:
            storage.delete([storage.path_of_uri(output.uri) for output in result.outputs])  # as the engine's tasks do
            raise MemoryError("too much")
        return result

    with pytest.raises(MemoryError):
        maintain(table, MemoryEngine(fail))
    assert len(done) == 2
    check()


def test_a_table_that_may_not_be_rewritten(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(snapshot: Snapshot, operation: str) -> None:
        raise UnsupportedFeatureError(f"no {operation} here", features=("magic",))

    monkeypatch.setattr(table, "check_writable", refuse)
    engine = MemoryEngine()
    check = unchanged(table)
    with pytest.raises(UnsupportedFeatureError, match="no rewrite here"):
        maintain(table, engine)
    with pytest.raises(UnsupportedFeatureError):
        apply(table, engine, build_plan(table.snapshot()))
    assert engine.runs == 0
    check()


# -- what fails at the commit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConflictError("too slow"), RefusedError("no"), VerificationError("no")])
def test_a_commit_that_certainly_failed_leaves_nothing(table: MemoryTable, error: Exception) -> None:
    check = unchanged(table)

    def fail() -> None:
        raise error

    table.before_commit = fail
    with pytest.raises(type(error)) as caught:
        maintain(table, MemoryEngine())
    assert "nothing was committed" in str(caught.value)
    check()


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
def test_a_commit_of_unknown_outcome_keeps_the_new_files(table: MemoryTable, point: str) -> None:
    """The answer got lost: the files may be live. Deleting them would lose rows; vacuum finds those that are not."""
    rows = table.rows()

    def fail() -> None:
        raise StorageError("timeout")

    setattr(table, point, fail)
    with pytest.raises(StorageError, match="unknown whether the commit"):
        maintain(table, MemoryEngine())
    assert table.rows() == rows


# -- other writers -------------------------------------------------------------------------------------------------


def once(action: Callable[[], object]) -> Callable[[], None]:
    left = [action]

    def run() -> None:
        if left:
            left.pop()()

    return run


def one_more_each_time(table: MemoryTable, positions: list[int]) -> Callable[[], None]:
    left = iter(positions)

    def delete() -> None:
        table.delete("data-0.json", [next(left)])

    return delete


def test_steps_whose_inputs_changed_are_planned_anew(table: MemoryTable) -> None:
    plan = build_plan(table.snapshot())
    table.delete("data-0.json", [1])
    table.append("p=1", [77])
    rows = table.rows()
    report = apply(table, MemoryEngine(), plan)
    assert table.rows() == rows
    assert all(key.dv_id is None for key in table.keys)
    renewed = next(step for step in report.steps if step.partition == "p=1")
    assert (renewed.id, renewed.rows_purged, renewed.files_removed) == ("step-1.1", 4, 2)
    assert table.operations.count("OPTIMIZE") == 1
    assert report.verified


def test_steps_that_others_did_are_not_done_again(table: MemoryTable) -> None:
    plan = build_plan(table.snapshot())
    purge(table, MemoryEngine())
    report = apply(table, MemoryEngine(), plan)
    assert {step.partition for step in report.steps} == {"p=3"}
    check = unchanged(table)
    assert apply(table, MemoryEngine(), plan).steps == ()
    check()


def test_a_delete_in_the_meantime_is_carried_over(table: MemoryTable) -> None:
    table.before_commit = once(lambda: table.delete("data-0.json", [1, 2]))
    engine = MemoryEngine()
    report = maintain(table, engine)
    assert report.verified, report.problems
    assert engine.runs == 1
    done = {step.partition: step for step in report.steps}
    assert (done["p=1"].attempts, done["p=1"].rows_purged, done["p=1"].rows_carried) == (1, 3, 2)
    assert done["p=3"].rows_carried == 0
    assert len(table.rows()) == (10 - 3 - 2) + 10 + 8
    assert sum(key.dv_id is not None for key in table.keys) == 1
    no_orphans(table)


def test_new_files_of_which_nothing_is_left_are_deleted(tmp_path: Path) -> None:
    table = MemoryTable(tmp_path)
    for start in (0, 10):
        table.delete(table.append("", list(range(start, start + 10))), [0])
    rows = table.rows()
    table.before_commit = once(lambda: table.delete_where(lambda _, row: row < 10))
    report = purge(table, MemoryEngine())
    assert report.verified, report.problems
    assert table.rows() == [row for row in rows if int(row.strip('[]"').split(",")[1]) >= 10]
    no_orphans(table)


def test_what_is_lost_to_another_writer_is_planned_anew(table: MemoryTable) -> None:
    table.carries = False
    table.before_commit = once(lambda: table.delete("data-0.json", [1, 2]))
    engine = MemoryEngine()
    report = maintain(table, engine)
    assert report.verified, report.problems
    assert engine.runs == 2
    done = {step.partition: step for step in report.steps}
    assert (done["p=3"].attempts, done["p=1"].attempts, done["p=1"].rows_purged) == (1, 2, 5)
    assert report.version_after == done["p=1"].version > done["p=3"].version
    assert len(table.rows()) == (10 - 3 - 2) + 10 + 8
    assert all(key.dv_id is None for key in table.keys)
    no_orphans(table)


def test_a_writer_that_always_wins(table: MemoryTable) -> None:
    table.carries = False
    table.before_commit = one_more_each_time(table, [1, 2, 4])
    with pytest.raises(ConflictError) as caught:
        maintain(table, MemoryEngine(), max_attempts=3)
    assert caught.value.exit_code == 4
    assert "2 steps" in str(caught.value)
    assert "not committed: step-1.3" in str(caught.value)
    assert len(table.rows()) == 10 - 3 - 3 + 10 + 8
    no_orphans(table)


def test_a_writer_that_always_wins_everything(tmp_path: Path) -> None:
    table = MemoryTable(tmp_path)
    table.carries = False
    table.delete(table.append("", list(range(9))), [0])
    table.before_commit = one_more_each_time(table, [1, 2])
    with pytest.raises(ConflictError, match=r"nothing was committed; not committed: step-1\.2"):
        maintain(table, MemoryEngine(), max_attempts=2)
    assert "OPTIMIZE" not in table.operations
    no_orphans(table)


def test_appends_in_between_do_not_disturb(table: MemoryTable) -> None:
    table.before_commit = once(lambda: table.append("p=1", [1000]))
    engine = MemoryEngine()
    report = maintain(table, engine)
    assert engine.runs == 1
    assert report.verified, report.problems
    assert '["p=1", 1000]' in table.rows()


def test_what_is_planned_anew_may_cost_what_was_lost(tmp_path: Path) -> None:
    table = MemoryTable(tmp_path)

    def dirty_files(partition: str, count: int) -> None:
        for _ in range(count):
            table.delete(table.append(partition, list(range(20))), list(range(10)))

    dirty_files("p=1", 2)
    dirty_files("p=2", 2)
    plan = build_plan(table.snapshot(), Policy(max_files=4))
    assert len(plan.steps) == 2
    table.delete("data-0.json", [11])
    dirty_files("p=1", 4)
    report = apply(table, MemoryEngine(), plan)
    assert sum(step.files_removed for step in report.steps) == 4


@given(st.data())
@settings(max_examples=examples(12))
def test_whatever_others_do_no_row_comes_or_goes(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = MemoryTable(Path(folder))
        numbers = itertools.count()

        def write() -> None:
            """Some appends and deletes, of any writer, at any time."""
            for _ in range(data.draw(st.integers(0, 3))):
                # By what is in them: the names of rewritten files are random.
                live = sorted(table.keys, key=lambda key: table.storage.get(key.path))
                rows = [next(numbers) for _ in range(data.draw(st.integers(1, 4)))]
                if not live or data.draw(st.booleans()):
                    partition = data.draw(st.sampled_from(["p=1", "p=2"]))
                    table.append(partition, rows, counted=data.draw(st.booleans()))
                    expected.extend(json.dumps([partition, row]) for row in rows)
                else:
                    before = table.rows()
                    path = data.draw(st.sampled_from(live)).path
                    stored = len(json.loads(table.storage.get(path)))
                    table.delete(path, data.draw(st.lists(st.integers(0, stored - 1), min_size=1)))
                    for row in before:
                        if row not in table.rows():
                            expected.remove(row)

        expected: list[str] = []
        for _ in range(3):
            write()
        plan = build_plan(
            table.snapshot(),
            Policy(target_file_size=data.draw(st.sampled_from([10, 100]))),
            purge=data.draw(st.booleans()),
        )
        write()
        table.before_commit = write
        try:
            report = apply(table, MemoryEngine(), plan)
        except ConflictError:
            pass
        else:
            assert report.verified, report.problems
        assert table.rows() == sorted(expected)
        no_orphans(table)


# -- several batches -----------------------------------------------------------------------------------------------


@pytest.fixture
def long(tmp_path: Path) -> MemoryTable:
    """Ten partitions of one file each, with deleted rows, and one wholly deleted file: five batches."""
    table = MemoryTable(tmp_path / "long")
    for number in range(10):
        table.delete(table.append(f"p={number}", [number * 10 + row for row in range(10)]), [0])
    table.delete(table.append("p=dead", [1000]), [0])
    return table


def at_commit(table: MemoryTable, number: int, action: Callable[[], object]) -> None:
    """Do something right before the ``number``-th commit from here."""
    left = itertools.count(1)

    def run() -> None:
        if next(left) == number:
            action()

    table.before_commit = run


def test_an_interrupted_run_knows_what_it_committed(long: MemoryTable) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    rows = long.rows()
    at_commit(long, 3, stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        apply(long, MemoryEngine(), build_plan(long.snapshot(), purge=True))
    (note,) = stopped.value.__notes__
    assert re.fullmatch(r"\d+ steps? committed in version \d+, \d+; not committed: step-.*", note)
    assert long.rows() == rows


def test_a_long_run_is_committed_in_batches(long: MemoryTable) -> None:
    rows, version, engine = long.rows(), long.version(), MemoryEngine()
    progress: list[tuple[int, int]] = []
    plan = build_plan(long.snapshot(), purge=True)
    report = apply(long, engine, plan, on_progress=lambda *each: progress.append(each))

    assert long.rows() == rows
    assert report.verified, report.problems
    assert (report.version_before, report.version_after) == (version, version + 5)
    assert (engine.runs, long.operations[-5:]) == (5, ["REORG"] * 5)
    assert progress == [(done, 10) for done in range(11)]
    assert {step.id for step in report.steps} == {step.id for step in plan.steps}
    assert {step.attempts for step in report.steps} == {1}
    assert [sum(step.version == version + each for step in report.steps) for each in range(1, 6)] == [3, 2, 2, 2, 2]
    # What costs nothing does not wait for what may fail.
    assert next(step.version for step in report.steps if step.action == "remove") == version + 1
    no_orphans(long)


def test_each_batch_begins_at_the_version_that_was_read_back(
    long: MemoryTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int | None] = []
    honest = long.snapshot

    def count(version: int | None = None) -> Snapshot:
        read.append(version)
        return honest(version)

    monkeypatch.setattr(long, "snapshot", count)
    version = long.version()
    assert purge(long, MemoryEngine()).verified
    assert [each for each in read if each is not None] == list(range(version + 1, version + 6))
    assert read.count(None) == 1


def test_deletes_before_a_batch_begins_are_part_of_it(long: MemoryTable) -> None:
    """No rewrite is lost, none is done twice, and no attempt is spent, however busy the other writer is."""
    last = build_plan(long.snapshot(), purge=True).steps[9]
    deleted = iter(range(1, 9))
    long.before_commit = lambda: long.delete(last.inputs[0].path, [next(deleted)]) if last else None
    engine = MemoryEngine()
    report = maintain(long, engine, purge=True, max_attempts=1)
    assert report.verified, report.problems
    assert engine.runs == 5
    done = next(step for step in report.steps if step.id == last.id)
    assert (done.rows_purged, done.rows_carried, done.attempts) == (5, 1, 1)
    assert len(long.rows()) == 10 * 9 - 5
    no_orphans(long)


def test_files_that_are_gone_before_their_batch_begins(long: MemoryTable) -> None:
    plan = build_plan(long.snapshot(), purge=True)
    gone, emptied = (plan.steps[index].partition for index in (8, 9))
    at_commit(long, 2, lambda: (purge(long, MemoryEngine(), [gone]), long.delete_where(lambda p, _: p == emptied)))
    rows = [row for row in long.rows() if not row.startswith(f'["{emptied}"')]
    report = apply(long, MemoryEngine(), plan)
    assert report.verified, report.problems
    assert long.rows() == rows
    assert {step.partition for step in report.steps} == {step.partition for step in plan.steps} - {gone, emptied}
    assert all(key.dv_id is None for key in long.keys)
    no_orphans(long)


def test_a_batch_that_loses_does_not_delay_the_others(long: MemoryTable) -> None:
    long.carries = False
    first = build_plan(long.snapshot(), purge=True).steps[1]
    long.before_commit = once(lambda: long.delete(first.inputs[0].path, [5]))
    version, engine = long.version(), MemoryEngine()
    report = purge(long, engine)
    assert report.verified, report.problems
    assert engine.runs == 6
    again = report.steps[-1]
    assert (again.partition, again.attempts, again.rows_purged) == (first.partition, 2, 2)
    assert again.version == long.version() == version + 1 + 6
    assert {step.attempts for step in report.steps[:-1]} == {1}
    no_orphans(long)


def test_a_later_batch_that_fails_says_what_was_committed(long: MemoryTable) -> None:
    version, rows = long.version(), long.rows()
    plan = build_plan(long.snapshot(), purge=True)
    fifth = [step.id for step in plan.steps if step.action == "rewrite"][4]

    def spoil(result: RewriteResult, storage: Storage) -> RewriteResult:
        return loses_a_row(result, storage) if result.task_id == fifth else result

    with pytest.raises(VerificationError) as caught:
        apply(long, MemoryEngine(spoil), plan)
    done = caught.value.done or ""
    assert done.startswith(f"5 steps committed in version {version + 1}, {version + 2}; not committed: {fifth}, ")
    assert done.endswith(f"{plan.steps[-1].id}; the new files of this batch were deleted")
    assert (long.version(), long.rows()) == (version + 2, rows)
    no_orphans(long)


def test_a_later_commit_of_unknown_outcome_says_what_was_committed(long: MemoryTable) -> None:
    version = long.version()

    def fail() -> None:
        raise StorageError("timeout")

    at_commit(long, 3, fail)
    with pytest.raises(StorageError, match=f"5 steps committed in version {version + 1}, {version + 2}; ") as caught:
        purge(long, MemoryEngine())
    assert "it is unknown whether the commit" in str(caught.value)
    assert long.version() == version + 2


def test_a_table_that_may_not_be_rewritten_any_more(long: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    version = long.version()

    def refuse(snapshot: Snapshot, operation: str) -> None:
        if snapshot.version > version + 1:
            raise UnsupportedFeatureError(f"no {operation} here", features=("magic",))

    monkeypatch.setattr(long, "check_writable", refuse)
    with pytest.raises(UnsupportedFeatureError, match="5 steps committed"):
        purge(long, MemoryEngine())
    assert long.version() == version + 2
    no_orphans(long)


def test_a_commit_that_is_not_verified_ends_the_run(long: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    version, honest = long.version(), long.snapshot

    def fail(wanted: int | None = None) -> Snapshot:
        if wanted == version + 2:
            raise StorageError("gone for lunch")
        return honest(wanted)

    monkeypatch.setattr(long, "snapshot", fail)
    report = purge(long, MemoryEngine())
    assert not report.verified
    assert len(report.steps) == 5
    assert "could not be read back" in report.problems[0]
    assert report.problems[1] == "the run ended there: 6 steps not carried out"
    assert long.version() == version + 2


# -- plans that are not for this table -----------------------------------------------------------------------------


def test_plans_for_something_else_are_refused(table: MemoryTable, tmp_path: Path) -> None:
    plan = build_plan(table.snapshot())
    check = unchanged(table)
    other = MemoryTable(tmp_path / "other")
    with pytest.raises(UsageError, match="the plan is for the memory table"):
        apply(other, MemoryEngine(), plan)
    with pytest.raises(UsageError, match="version 99, which this table does not have"):
        apply(table, MemoryEngine(), replace(plan, version=99))
    check()


def test_plans_that_contradict_the_log_are_refused(table: MemoryTable) -> None:
    """Among them one that would drop live rows by calling a file wholly deleted."""
    plan = build_plan(table.snapshot())
    step = next(step for step in plan.steps if step.partition == "p=1")
    lies = [
        replace(step, action="remove", inputs=tuple(replace(each, physical_rows=3) for each in step.inputs)),
        replace(step, inputs=tuple(replace(each, path="elsewhere") for each in step.inputs)),
        replace(step, inputs=tuple(replace(each, dv_id="other") for each in step.inputs)),
        replace(step, inputs=tuple(replace(each, deleted_rows=0) for each in step.inputs)),
        replace(step, partition="p=3"),
    ]
    check = unchanged(table)
    for lie in lies:
        with pytest.raises(UsageError, match="does not match the table"):
            apply(table, MemoryEngine(), replace(plan, steps=(lie,)))
    with pytest.raises(UsageError, match="would remove"):
        apply(table, MemoryEngine(), replace(plan, steps=(replace(step, action="remove"),)))
    check()


def test_a_lie_about_an_older_version_drops_nothing(table: MemoryTable) -> None:
    plan = build_plan(table.snapshot())
    step = next(step for step in plan.steps if step.partition == "p=1")
    lie = replace(step, action="remove", inputs=tuple(replace(each, physical_rows=3) for each in step.inputs))
    table.append("p=9", [1])
    rows = table.rows()
    apply(table, MemoryEngine(), replace(plan, steps=(lie,)))
    assert table.rows() == rows


# -- after the commit ----------------------------------------------------------------------------------------------


def test_a_commit_that_did_something_else_is_reported(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = table.commit

    def also_append(*args: Any, **kwargs: Any) -> Any:
        outcome = honest(*args, **kwargs)
        version = table._versions.pop()
        table.append("p=1", ["intruder"])
        files = {**version.files, **table._versions.pop().files}
        table._versions.append(replace(version, files=files))
        return outcome

    monkeypatch.setattr(table, "commit", also_append)
    report = maintain(table, MemoryEngine())
    assert not report.verified
    assert report.problems[0].startswith(f"version {report.version_after}: ")


def test_a_version_that_cannot_be_read_back_is_reported(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = table.snapshot
    before = table.version()

    def fail(version: int | None = None) -> Snapshot:
        if version == before + 1:
            raise StorageError("gone for lunch")
        return honest(version)

    monkeypatch.setattr(table, "snapshot", fail)
    report = maintain(table, MemoryEngine())
    assert not report.verified
    assert "could not be read back: gone for lunch" in report.problems[0]
    assert len(report.steps) == 3


# -- a real table --------------------------------------------------------------------------------------------------


def test_a_delta_table(golden_copy: Callable[[str], Path]) -> None:
    table = open_table(str(golden_copy("delta/dv-with-columnmapping")))
    before = table.snapshot()
    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    assert (sum(step.dvs_removed for step in report.steps), report.version_after) == (2, before.version + 1)
    after = table.snapshot()
    assert after.files["dv_id"].null_count == after.files.num_rows == before.files.num_rows
    assert purge(table, LocalEngine()).steps == ()
