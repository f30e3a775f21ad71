"""RepeatedChecks: cheap where nothing changed, right where something did, and one bad table stops no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.maintenance.execution.apply import maintain
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.service.inspection import inspect_table, inspect_tables
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.memory import MemoryTable
from dv_maintenance.testing.memory_engine import MemoryEngine

HOUR = 3_600_000
WEEK = 7 * 24 * HOUR


@pytest.fixture
def table(tmp_path: Path) -> MemoryTable:
    table = MemoryTable(tmp_path / "orders")
    table.delete(table.append("", list(range(10))), [0, 1])
    return table


def test_a_first_look(table: MemoryTable) -> None:
    found = inspect_table(table, name="orders", now=table.now)
    assert (found.name, found.version, found.changed, found.deleted_ratio) == ("orders", 2, True, 0.2)
    assert found.due == ("optimize",)
    assert found.reasons["optimize"][1] == "deletion vectors to purge: 1"


def test_an_unchanged_table_costs_one_probe(table: MemoryTable) -> None:
    first = inspect_table(table, now=table.now)
    loaded = table.snapshots
    again = inspect_table(table, last=first, now=table.now + 1)
    assert table.snapshots == loaded
    assert (again.changed, again.due, again.deleted_ratio) == (False, ("optimize",), 0.2)


def test_work_done_is_no_longer_due(table: MemoryTable) -> None:
    first = inspect_table(table, now=table.now)
    maintain(table, MemoryEngine())
    again = inspect_table(table, last=first, now=table.now)
    assert (again.changed, again.due, again.reasons, again.deleted_ratio) == (True, (), {}, 0.0)


def test_other_settings_are_looked_at_anew(table: MemoryTable) -> None:
    first = inspect_table(table, now=table.now)
    again = inspect_table(table, Policy(max_deleted_ratio=0.5), first, now=table.now)
    assert (again.changed, again.due) == (False, ())


def test_time_makes_a_vacuum_due(table: MemoryTable) -> None:
    maintain(table, MemoryEngine())
    first = inspect_table(table, now=table.now)
    assert first.due == ()
    soon = inspect_table(table, last=first, now=table.now + WEEK // 7 - 1)
    assert soon.vacuum_checked == first.vacuum_checked
    late = inspect_table(table, last=soon, now=table.now + WEEK + HOUR)
    assert (late.changed, late.due) == (False, ("vacuum",))
    assert late.reasons["vacuum"] == ("1 file (1 B) unneeded for more than 7d",)
    # Stays due until somebody does it, however often one looks, and then no longer.
    table.now += WEEK + HOUR
    assert inspect_table(table, last=late, now=table.now).due == ("vacuum",)
    table.vacuum()
    assert inspect_table(table, last=late, now=table.now + 2).due == ()


def test_a_vacuum_that_is_refused_is_a_warning(table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: VacuumRequest) -> None:
        raise RefusedError("not with this log")

    monkeypatch.setattr(table, "vacuum", refuse)
    found = inspect_table(table, now=table.now)
    assert found.due == ("optimize",)
    assert found.warnings == ("vacuum: not with this log",)
    assert inspect_table(table, last=found, now=table.now + 2 * WEEK).warnings == found.warnings


def test_manifests_older_than_the_table_are_due(table: MemoryTable) -> None:
    first = inspect_table(table, jobs=["manifest"], now=table.now)
    assert first.reasons == {"manifest": ("there are no manifests", "1 file with DVs: purge first")}
    maintain(table, MemoryEngine())
    table.write_manifests(table.snapshot())
    second = inspect_table(table, jobs=["manifest"], last=first, now=table.now)
    assert second.due == ()
    table.now = 4_000_000_000_000  # well after the manifest
    table.append("", [1])
    third = inspect_table(table, jobs=["manifest"], last=second, now=table.now)
    assert third.reasons == {"manifest": ("the table is newer than its manifests",)}


def test_manifests_are_outdated_by_files_alone(table: MemoryTable) -> None:
    maintain(table, MemoryEngine())
    table.write_manifests(table.snapshot())
    first = inspect_table(table, jobs=["manifest"], now=table.now)
    table.now = 4_000_000_000_000  # well after the manifest
    # As many commits that touch no file as it takes to read the whole log.
    for _ in range(10):
        table._add(table._files, "VACUUM END", data_changed=False)
    second = inspect_table(table, jobs=["manifest"], last=first, now=table.now)
    assert (second.changed, second.due) == (True, ())
    table.append("", [1])
    third = inspect_table(table, jobs=["manifest"], last=second, now=table.now)
    assert third.due == ("manifest",)
    # Stays due without another snapshot, until there are manifests.
    loaded = table.snapshots
    fourth = inspect_table(table, jobs=["manifest"], last=third, now=table.now)
    assert (fourth.due, fourth.reasons, table.snapshots) == (("manifest",), third.reasons, loaded)


def test_a_vacuum_has_to_be_worth_it(table: MemoryTable) -> None:
    maintain(table, MemoryEngine())
    late = table.now + WEEK + HOUR
    assert inspect_table(table, Policy(vacuum_min_bytes=2), now=late).due == ()
    assert inspect_table(table, Policy(vacuum_min_bytes=1), now=late).due == ("vacuum",)


def test_an_inspection_as_json(table: MemoryTable) -> None:
    found = inspect_table(table, name="t", now=table.now)
    assert {"name", "version", "changed", "deleted_ratio", "due"} <= found.to_json().keys()


def test_many_tables(golden: Path, tmp_path: Path) -> None:
    for name in ("basic-dv-no-checkpoint", "made-inline-dv"):
        shutil.copytree(golden / "delta" / name, tmp_path / name)
    (tmp_path / "tables.yaml").write_text(
        """
        defaults:
          policy: {max_deleted_ratio: 0.9, min_file_size: 0}
        tables:
          - path: basic-dv-no-checkpoint
          - name: eager
            path: made-inline-dv
            policy: {max_deleted_ratio: 0}
          - {name: gone, path: gone}
        """
    )
    config = WatchConfig.load(str(tmp_path / "tables.yaml"))
    looks, state = inspect_tables(config)
    basic, eager, gone = looks
    assert (basic.name, basic.version, basic.changed, basic.error) == ("basic-dv-no-checkpoint", 1, True, None)
    assert "optimize" not in basic.due
    assert "optimize" in eager.due
    assert (gone.version, gone.changed, gone.due) == (None, False, ())
    assert "no table found here" in str(gone.error)
    again, _ = inspect_tables(config, state)
    assert [each.changed for each in again] == [False] * 3
    assert [each.due for each in again] == [each.due for each in looks]
    shutil.rmtree(tmp_path / "made-inline-dv")
    eager = inspect_tables(config, state)[0][1]
    assert (eager.version, eager.changed) == (1, False)
    assert eager.error


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no tables: name some"),
        ("tables: []", "tables"),
        ("tables: [{name: x}]", "tables.0: give either a path or a table of a catalog .*line 1"),
        ("tables:\n- {path: x, polcy: {}}", "tables.0.polcy: unknown key: did you mean policy. .*line 2"),
        ("tables:\n- path: x\n  policy: {max_tasks: 0}", "tables.0.policy.max_tasks: .*line 3"),
        ("defaults:\n  policy: {max_tasks: 0}\ntables: [{path: x}]", "defaults.policy.max_tasks: .*line 2"),
        ("tables: [{path: a/x}, {path: b/x}]", "two tables are called 'x'"),
        ("tables: [{path: x, jobs: [dance]}]", "tables.0.jobs.0"),
        ("tables: [{path: x, storage_options: {key: '${DVM_NOT_SET}'}}]", "DVM_NOT_SET is not set"),
        ("tables: [{path: x, storage_options: {key: [hunter2]}}]", "storage_options"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "tables.yaml").write_text(text)
    with pytest.raises(UsageError, match=complaint) as caught:
        WatchConfig.load(str(tmp_path / "tables.yaml"))
    assert "hunter2" not in str(caught.value)


def test_options_come_from_the_environment_and_stay_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVM_TEST_SECRET", "hunter2")
    (tmp_path / "tables.yaml").write_text(
        "defaults: {storage_options: {region: eu, key: '${DVM_TEST_SECRET}'}}\n"
        "tables: [{path: 's3://b/x', storage_options: {region: us}}]"
    )
    config = WatchConfig.load(str(tmp_path / "tables.yaml"))
    assert config.tables[0].storage_options == {"region": "us", "key": "hunter2"}
    assert config.tables[0].path == "s3://b/x"
    assert "hunter2" not in repr(config)
