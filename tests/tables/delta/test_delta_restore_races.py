"""Restores and vacuums of one table at the same time, stopped at every call to the storage: no live file is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.interleaving import Process, Watched
from support.raw_log import HOUR, SIZE, LogWriter, add, remove

from dv_maintenance.errors import ConflictError, DamagedTableError, DvMaintenanceError, RefusedError
from dv_maintenance.maintenance.convert import convert
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.commit import publish
from dv_maintenance.tables.delta.commit.publish import Draft, operation_info
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.tables.delta.vacuum.names import named_in
from dv_maintenance.tables.delta.vacuum.run import vacuum
from dv_maintenance.tables.delta.verbs.restore import restore
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.reports import RestoreReport, VacuumReport

FILES = 4
SEEN = 20  # interleavings of each kind in the default suite
NEVER = 1 << 30


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "_FIRST_PAUSE", 0.0)
        patch.setattr("dv_maintenance.tables.vacuum.BATCH", 2)
        yield


def make(folder: Path) -> LogWriter:
    """Version 1 has some files, one of them with a deletion vector; version 2 replaced them by another, long ago."""
    old = time.time_ns() // 1_000_000 - 1000 * HOUR
    table = LogWriter(folder, at=old)
    paths = [table.data(old) for _ in range(FILES)]
    dv = table.dv(old)
    path = table.dv_path(dv)
    assert path is not None
    table.touch(path, old, "x" * 40)
    table.append(add(paths[0], dv), *map(add, paths[1:]), at=old)
    table.append(
        remove(paths[0], dv, at=old), *(remove(path, at=old) for path in paths[1:]), add(table.data(old)), at=old + HOUR
    )
    return table


def lost(folder: Path) -> set[str]:
    """Files that the newest version needs and that are not there."""
    storage = Storage(str(folder))
    snapshot = load_snapshot(storage)
    return {path for path in named_in(storage, snapshot.files).paths if not (folder / path).exists()}


def restores(storage: Storage) -> RestoreReport:
    return restore(storage, version=1)


def vacuums(storage: Storage) -> VacuumReport:
    return vacuum(storage)


def calls_of(folder: Path, work: Callable[[Storage], object]) -> int:
    make(folder)
    process = Process(str(folder), work).finish()
    assert process.error is None
    return process.storage.calls


def check(folder: Path, restored: Process[RestoreReport], vacuumed: Process[VacuumReport]) -> None:
    assert lost(folder) == set()
    assert vacuumed.error is None
    if restored.error is None:
        assert load_snapshot(Storage(str(folder))).files.num_rows == FILES
    else:
        assert isinstance(restored.error, RefusedError), repr(restored.error)
        assert load_snapshot(Storage(str(folder))).files.num_rows == 1


def interleavings(tmp_path: Path) -> list[tuple[int, int]]:
    one, other = calls_of(tmp_path / "one", restores), calls_of(tmp_path / "other", vacuums)
    assert one > 10
    assert other > 15
    return [(first, second) for first in range(1, one + 2) for second in range(1, other + 2)]


def race(folder: Path, first: int, second: int) -> tuple[Process[RestoreReport], Process[VacuumReport]]:
    """The restore runs up to a call, the vacuum up to another one, then the restore to its end, then the vacuum."""
    make(folder)
    restored, vacuumed = Process(str(folder), restores), Process(str(folder), vacuums)
    restored.until(first)
    vacuumed.until(second)
    restored.finish()
    vacuumed.finish()
    return restored, vacuumed


def test_a_restore_beside_a_vacuum(tmp_path: Path) -> None:
    found = random.Random(6).sample(interleavings(tmp_path), SEEN)
    for number, (first, second) in enumerate(found):
        check(tmp_path / str(number), *race(tmp_path / str(number), first, second))


@pytest.mark.deep
def test_a_restore_beside_a_vacuum_at_every_moment(tmp_path: Path) -> None:
    outcomes = set()
    for number, (first, second) in enumerate(interleavings(tmp_path)):
        restored, vacuumed = race(tmp_path / str(number), first, second)
        check(tmp_path / str(number), restored, vacuumed)
        outcomes.add(type(restored.error))
    assert outcomes == {type(None), RefusedError}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.deep)])
@pytest.mark.parametrize("inner", [restores, vacuums])
def test_one_in_the_middle_of_the_other(tmp_path: Path, inner: Callable[[Storage], Any], every: int) -> None:
    """At so many calls of the outer one."""
    outer = vacuums if inner is restores else restores
    for call in range(1, calls_of(tmp_path / "alone", outer) + 1, every):
        folder = tmp_path / str(call)
        make(folder)
        begun = Process(str(folder), outer).until(call)
        inside = Process(str(folder), inner).finish()
        begun.finish()
        check(folder, *((inside, begun) if inner is restores else (begun, inside)))


# -- vacuums that do not say so ----------------------------------------------------------------------------------------


def test_a_vacuum_that_is_not_in_the_log_is_undone(tmp_path: Path) -> None:
    """It decided what to delete before the restore, and deletes at every moment of it."""
    outcomes = set()
    for call in range(1, calls_of(tmp_path / "alone", restores) + 1):
        folder = tmp_path / str(call)
        table = make(folder)
        doomed = [folder / path for path in table.files() - set(load_snapshot(table.storage).files["path"].to_pylist())]
        begun = Process(str(folder), restores).until(call)
        for path in doomed:
            path.unlink()
        begun.finish()
        assert isinstance(begun.error, RefusedError)
        assert lost(folder) == set()
        snapshot = load_snapshot(Storage(str(folder)))
        assert snapshot.files.num_rows == 1
        outcomes.add((snapshot.version, begun.error.done))
    assert outcomes == {
        (2, None),
        (4, "version 3 restored version 1, version 4 reverted that: the table is as it was at version 2"),
    }


def first_files(table: LogWriter) -> list[str]:
    return [action["add"]["path"] for action in read_commit(table.storage, 1) if "add" in action]


def test_what_others_committed_since_is_not_undone(tmp_path: Path) -> None:
    """An append on top stays; where a restored file was changed by others nothing can be taken back."""
    alone = calls_of(tmp_path / "alone", restores)
    for name, change in (("append", "add"), ("delete", "remove")):
        folder = tmp_path / name
        table = make(folder)
        begun = Process(str(folder), restores).until(alone - FILES)
        table.version = load_snapshot(table.storage).version
        assert table.version == 3, "right before its last check"
        paths = first_files(table)
        (folder / paths[1]).unlink()
        now = time.time_ns() // 1_000_000
        table.append(add(table.data(now)) if change == "add" else remove(paths[2], at=now), at=now)
        begun.finish()
        if change == "add":
            assert isinstance(begun.error, RefusedError)
            assert load_snapshot(table.storage).files.num_rows == 2
            assert lost(folder) == set()
        else:
            assert isinstance(begun.error, DamagedTableError)
            assert "could not be reverted: another writer changed the table" in begun.error.message
            assert load_snapshot(table.storage).version == 4


# -- vacuums that died -------------------------------------------------------------------------------------------------


def test_a_vacuum_without_end_is_waited_for(tmp_path: Path) -> None:
    table = make(tmp_path)
    start = commit_info_only(table.storage, "VACUUM START", {}, {})
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match="a running vacuum may be deleting") as caught:
            restore(table.storage, version=1, dry_run=dry_run)
        assert f"vacuums_over={start}" in str(caught.value)
    with pytest.raises(RefusedError, match="a running vacuum may be deleting"):
        restore(table.storage, version=1, vacuums_over=[start - 1])
    assert restore(table.storage, version=1, vacuums_over=[start]).version_after == start + 1


def test_a_vacuum_that_ended_is_not(tmp_path: Path) -> None:
    table = make(tmp_path)
    for operation in ("VACUUM START", "VACUUM START", "VACUUM END"):
        commit_info_only(table.storage, operation, {}, {})
    with pytest.raises(RefusedError, match="VACUUM START at version 3"):
        restore(table.storage, version=1)
    commit_info_only(table.storage, "VACUUM END", {}, {})
    assert restore(table.storage, version=1).files_after == FILES


# -- others that bring files back beside a vacuum ----------------------------------------------------------------------


def bring_back(table: LogWriter) -> int:
    """A restore without any check, as other tools do it."""
    table.version = load_snapshot(table.storage).version
    actions = [action for action in read_commit(table.storage, 1) if "add" in action]
    return table.append(*actions, at=time.time_ns() // 1_000_000, operation="RESTORE")


def test_a_vacuum_sees_what_comes_back_between_its_batches(tmp_path: Path) -> None:
    outcomes = set()
    for call in range(2, calls_of(tmp_path / "alone", vacuums) + 1, 2):
        folder = tmp_path / str(call)
        table = make(folder)
        begun = Process(str(folder), vacuums).until(call)
        there = sum((folder / path).exists() for path in first_files(table))
        version = bring_back(table)
        begun.finish()
        gone = lost(folder)
        if load_snapshot(table.storage).version == version:
            continue  # it was over, and does nothing after this
        if gone:
            # Either it was too late already, or between a check and the delete after it.
            assert isinstance(begun.error, DamagedTableError)
            assert f"version {version} names {len(gone)} files" in begun.error.message
            assert len(gone) <= FILES + 1 - there + 2
        else:
            assert not isinstance(begun.error, DamagedTableError)
        outcomes.add(len(gone))
    assert outcomes >= {0, 2, 4}


# -- new files beside a vacuum that keeps nothing ----------------------------------------------------------------------


def adds_new_file(storage: Storage) -> int | None:
    base = load_snapshot(storage)
    path = Path(storage.local("part-new.parquet"))
    path.write_text("x" * SIZE)
    info = operation_info(base, "WRITE", {}, {}, blind=True)
    return publish.publish(storage, base, lambda _: Draft(info, [add(path.name)]), writes="rewrite").version


def test_new_files_beside_a_vacuum_that_keeps_nothing(tmp_path: Path) -> None:
    def everything(storage: Storage) -> VacuumReport:
        return vacuum(
            storage, VacuumRequest(retention=0, allow_short_retention=True, now=time.time_ns() // 1_000_000 + HOUR)
        )

    ends = set()
    alone, theirs = calls_of(tmp_path / "alone", adds_new_file), calls_of(tmp_path / "other", everything)
    for at in (alone - 1, alone, NEVER):
        for until in (*range(theirs - 18, theirs, 2), NEVER):
            folder = tmp_path / f"{at}-{until}"
            make(folder)
            writer, vacuumer = Process(str(folder), adds_new_file), Process(str(folder), everything)
            writer.until(at)
            vacuumer.until(until)
            writer.finish()
            vacuumer.finish()
            assert lost(folder) == set()
            assert writer.error is None or isinstance(writer.error, ConflictError), repr(writer.error)
            ends.add(writer.error.message.partition(":")[0] if isinstance(writer.error, DvMaintenanceError) else "")
    assert "" in ends
    assert any(text.startswith("a vacuum deleted new files") for text in ends)
    assert any(text.startswith("the vacuum that began") for text in ends)


def test_young_files_are_committed_beside_any_other_vacuum(tmp_path: Path) -> None:
    calls = calls_of(tmp_path / "alone", vacuums)
    for until in range(1, calls + 1, 4):
        folder = tmp_path / str(until)
        make(folder)
        vacuumer = Process(str(folder), vacuums)
        started = False

        def before(call: int, vacuumer: Process[VacuumReport] = vacuumer, until: int = until) -> None:
            nonlocal started
            if call == 5 and not started:
                started = True
                vacuumer.until(until)

        assert adds_new_file(Watched(str(folder), before)) is not None
        vacuumer.finish()
        assert lost(folder) == set()


# -- files that become a table -----------------------------------------------------------------------------------------


def test_files_that_go_while_they_become_a_table(tmp_path: Path) -> None:
    def convert_to(storage: Storage) -> object:
        return convert(DeltaTable(storage))

    def parquet(folder: Path) -> list[Path]:
        folder.mkdir()
        paths = [folder / f"{number}.parquet" for number in range(3)]
        for path in paths:
            pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), path)
        return paths

    parquet(tmp_path / "alone")
    calls = Process(str(tmp_path / "alone"), convert_to).finish().storage.calls
    outcomes = set()
    for call in range(1, calls - 1):
        folder = tmp_path / str(call)
        paths = parquet(folder)
        begun = Process(str(folder), convert_to).until(call)
        for path in paths[1:]:
            path.unlink(missing_ok=True)
        begun.finish()
        if (folder / "_delta_log").exists():
            assert lost(folder) == set()
            assert load_snapshot(Storage(str(folder))).files["path"].to_pylist() == ["0.parquet"]
        outcomes.add(begun.error.done if isinstance(begun.error, RefusedError) else type(begun.error))
    done = "version 0 added all of them to a new table; version 1 removed the lost files again and keeps the rest"
    assert done in outcomes
