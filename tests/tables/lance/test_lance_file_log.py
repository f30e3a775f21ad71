"""What each version of a Lance table did to the live files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance import file_log
from dv_maintenance.tables.lance.log.versions import manifest_name
from dv_maintenance.tables.lance.table import LanceTable
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.rows import DeletedRows, RowChanges
from dv_maintenance.testing.backends import LanceBackend
from dv_maintenance.testing.file_logs import check_steps, check_windows
from dv_maintenance.testing.history import InterferingEngine, TableHistory


@pytest.fixture(scope="module")
def table(eventful: Path) -> LanceTable:
    return LanceTable(Storage(str(eventful)))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the manifests that are read from here on."""
    get, names = Storage.get, list[str]()

    def watched(storage: Storage, path: str) -> bytes:
        if path.endswith(".manifest"):
            names.append(Path(path).name)
        return get(storage, path)

    monkeypatch.setattr(Storage, "get", watched)
    return names


def test_every_operation(table: LanceTable) -> None:
    newest = table.version()
    check_windows(table, range(1, newest + 1))
    log = table.file_log(table.snapshot(), 0)
    history = {entry.version: entry for entry in table.history()}
    assert (log.base, log.complete, len(log.commits)) == (None, True, newest)
    for number, commit in enumerate(log.commits):
        entry = history[commit.version]
        assert (commit.operation, commit.data_changed) == (entry.operation, entry.data_changed)
        own = [row for row in log.changes.to_pylist() if row["commit"] == number]
        came, gone = ({row["dv_id"] for row in own if row["added"] is added} - {None} for added in (True, False))
        # Columns that come or go change a file, and leave its deletions.
        assert [len(came - gone), len(gone - came)] == [entry.dvs_added, entry.dvs_removed]
    unmarked = {"Rewrite", "ReserveFragments", "CreateIndex"}
    assert {commit.operation for commit in log.commits if commit.ours is None} == unmarked
    assert True not in {commit.ours for commit in log.commits}


def test_a_column_that_is_added_is_another_size_of_the_same_file(table: LanceTable) -> None:
    log = table.file_log(table.snapshot(), 0)
    (merge,) = [number for number, commit in enumerate(log.commits) if commit.operation == "Merge"]
    own = [row for row in log.changes.to_pylist() if row["commit"] == merge]
    sizes: dict[Any, list[int]] = {}
    for row in own:
        sizes.setdefault(FileKey(row["path"], row["dv_id"]), []).append(row["size"])
    assert sizes
    assert all(before < after for before, after in sizes.values())


def test_what_no_snapshot_shows_is_no_change(table: LanceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as row ids, in the record of a fragment."""
    newest = table.snapshot().manifest
    unknown = b"\x98\x06\x01"  # field 99
    records = tuple(record + unknown for record in newest.fragment_records)
    before = replace(newest, version=newest.version - 1, fragment_records=records)
    monkeypatch.setattr(file_log, "manifests", lambda *_, **__: iter([before]))
    log = table.file_log(table.snapshot(), newest.timestamp)
    assert ([commit.version for commit in log.commits], log.changes.num_rows) == ([newest.version], 0)


def test_older_manifests_are_not_read(table: LanceTable, read: list[str]) -> None:
    snapshot = table.snapshot()
    log = table.file_log(snapshot, 0)
    wanted = log.commits[-4]
    assert wanted.timestamp > log.commits[-5].timestamp
    read.clear()
    found = table.file_log(snapshot, wanted.timestamp)
    # The snapshot has its own; the version before the first commit is compared with it.
    newest = snapshot.version
    assert read == [manifest_name(version, snapshot.naming) for version in range(newest - 1, newest - 5, -1)]
    assert (len(found.commits), found.base, found.complete) == (4, newest - 4, True)


def test_versions_that_were_cleaned_up(table: LanceTable, tmp_path: Path) -> None:
    place = tmp_path / "t"
    storage = Storage(table.storage.local(""))
    for info in storage.walk():
        target = place / info.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(storage.get(info.path))
    table = LanceTable(Storage(str(place)))
    times = {entry.version: entry.timestamp for entry in table.history()}
    for version in (1, 2, 5):
        (place / "_versions" / manifest_name(version, table.snapshot().naming)).unlink()
    log = table.file_log(table.snapshot(), 0)
    assert (log.commits[0].version, log.base, log.complete) == (7, 6, False)
    check_steps(table, range(6, table.version() + 1))
    assert table.file_log(table.snapshot(), times[7]).complete
    # Of the oldest ones left nothing is known, but that they exist.
    log = table.file_log(table.snapshot(6), 0)
    assert (log.commits, log.changes.num_rows, log.base, log.complete) == ((), 0, 6, False)


def test_a_damaged_manifest_is_named(table: LanceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = table.snapshot()
    damaged = manifest_name(3, snapshot.naming)
    get = Storage.get
    monkeypatch.setattr(Storage, "get", lambda storage, path: get(storage, path)[: -9 if damaged in path else None])
    with pytest.raises(DamagedTableError, match=damaged) as error:
        table.file_log(snapshot, 0)
    assert (error.value.table, error.value.version) == (table.uri, 3)


def test_fragments_with_the_same_data_file_have_paths_of_their_own(pylance: ModuleType, tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    lance_dataset = pylance.write_dataset(pa.table({"id": range(10)}), place)
    fragments = pylance.fragment.write_fragments(pa.table({"id": range(10, 20)}), place)
    pylance.LanceDataset.commit(lance_dataset, pylance.LanceOperation.Append(fragments * 2), read_version=1)
    pylance.dataset(place).delete("id in (3, 13)")
    table = LanceTable(Storage(place))
    check_windows(table, range(1, 4))
    name = f"data/{fragments[0].files[0].path}"
    assert table.snapshot().files["path"].to_pylist()[1:] == [f"{name}#fragment-1", f"{name}#fragment-2"]


def test_our_own_commits_are_marked(pylance: ModuleType, tmp_path: Path) -> None:
    """A delete, and a rewrite with deletes that were carried over. Lance's library commits other rewrites."""
    history = TableHistory(LanceBackend(str(tmp_path / "t")))
    history.append("a", 10)
    history.append("a", 10)
    history.delete([0, 10])
    table = history.table
    assert isinstance(table, LanceTable)
    first = table.version()
    purge(table, InterferingEngine(LocalEngine(), lambda: history.delete([1])))
    snapshot = table.snapshot()
    last = FileKey(snapshot.files["path"][-1].as_py(), snapshot.files["dv_id"][-1].as_py())
    operation = {"name": "DELETE", "parameters": {}, "metrics": {}}
    changes = RowChanges((DeletedRows(last, DeletionVector.from_positions([3])),))
    table.commit_changes(snapshot, changes, operation=operation, reads=lambda _: False)
    purge(table, LocalEngine())
    log = table.file_log(table.snapshot(), 0)
    marks = {(commit.operation, commit.ours) for commit in log.commits if commit.version > first}
    assert marks == {
        ("Delete", False),
        ("Delete", True),
        ("Rewrite", True),
        ("Rewrite", None),
        ("ReserveFragments", None),
    }
