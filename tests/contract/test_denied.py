"""A storage that denies the commit: known before the first file is rewritten, and said as what it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.read_only import read_only

from dv_maintenance.cli import main
from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import StorageDeniedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.storage import Storage
from dv_maintenance.storage.rehearsal import Rehearsal
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.rows import DeletedRows, RowChanges, RowLevelTable
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.history import TableHistory

# Each folder in which a commit creates a file.
CASES = [
    (DeltaBackend, "_delta_log"),
    (LanceBackend, "_transactions"),
    (LanceBackend, "_versions"),
    (PaimonBackend, "snapshot"),
    (PaimonBackend, "manifest"),
    (IcebergBackend, "metadata"),
]
# Commits of deletes, and of rewrites that carry rows over, also create files here.
ALSO = [(PaimonBackend, "index")]
Make = Callable[[str], TableBackend]


@pytest.fixture
def table(tmp_path: Path, backend: Make) -> Path:
    place = tmp_path / "table"
    history = TableHistory(backend(str(place)))
    for partition, rows in (("a", 6), ("a", 6), ("b", 4)):
        history.append(partition, rows)
    history.delete([0, 4, 12])
    return place


def stored(place: Path) -> dict[str, bytes]:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("backend", "folder"), [*CASES, *ALSO])
def test_nothing_is_rewritten_if_the_commit_would_be_denied(
    table: Path, backend: Make, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored(table)
    with read_only(table / folder):
        times = os.stat(table / folder).st_mtime_ns
        for dry_run in (["--dry-run"], []):
            assert main(["purge", str(table), "--engine", "local", "--json", *dry_run]) == 1
            assert os.stat(table / folder).st_mtime_ns == times, "the probe leaves a trace"
            said = json.loads(capsys.readouterr().out)
            expected = ("StorageDeniedError", "nothing was changed", False)
            assert (said["error"], said["done"], said["retryable"]) == expected
            assert folder in said["message"]
    assert stored(table) == before
    assert main(["purge", str(table), "--engine", "local"]) == 0


@pytest.mark.parametrize(("backend", "folder"), CASES)
def test_a_commit_that_is_denied_is_known_not_to_have_happened(
    table: Path, backend: Make, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right was taken away while the files were rewritten."""
    monkeypatch.setattr("dv_maintenance.maintenance.execution.round.check_committable", lambda _: None)
    before = stored(table)
    with read_only(table / folder), pytest.raises(StorageDeniedError) as caught:
        purge(backend(str(table)).open(), LocalEngine())
    assert "nothing was committed" in str(caught.value.done)
    assert "known" not in str(caught.value.done)
    left = {path for path in stored(table).keys() - before.keys() if not path.startswith("_transactions/")}
    assert not left, "new files that no commit names are deleted"
    assert main(["purge", str(table), "--engine", "local"]) == 0


@pytest.mark.parametrize("folder", ["_transactions", "_versions"])
@pytest.mark.parametrize("backend", [LanceBackend])
def test_so_is_a_delete_from_a_lance_table(table: Path, backend: Make, folder: str) -> None:
    opened = backend(str(table)).open()
    assert isinstance(opened, RowLevelTable)
    base = opened.snapshot()
    before = stored(table)
    row = base.files.select(["path", "dv_id"]).to_pylist()[-1]
    gone = DeletedRows(FileKey(row["path"], row["dv_id"]), DeletionVector.from_positions([1]), None)
    operation = {"name": "DELETE", "parameters": {"predicate": "id = 1"}}
    with read_only(table / folder), pytest.raises(StorageDeniedError) as caught:
        opened.commit_changes(base, RowChanges((gone,)), operation=operation, reads=lambda _: True)
    assert caught.value.done == "nothing was committed"
    assert caught.value.uncommitted
    left = {path for path in stored(table).keys() - before.keys() if not path.startswith("_transactions/")}
    assert not left


def test_a_bucket_is_asked_without_a_trace(s3: tuple[str, dict[str, str]]) -> None:
    """Once the store is known to have put-if-absent; before that, the test of it shows whether puts are allowed."""
    uri, options = s3
    storage = Storage(f"{uri}/asked", options)
    storage.prove_put_if_absent("_delta_log", anyhow=True)
    storage.check_creatable("_delta_log")
    assert storage.list("") == []


def test_a_dry_run_asks_only_a_bucket_that_leaves_no_trace(
    s3: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, options = s3
    asked: list[str] = []
    monkeypatch.setattr("dv_maintenance.storage.storage.try_to_put", lambda _, key: asked.append(key))
    monkeypatch.setattr("dv_maintenance.storage.guards._PROVEN", set())
    storage = Rehearsal.of(Storage(f"{uri}/rehearsed", options))
    storage.check_creatable("_delta_log")
    assert (asked, storage.list("")) == ([], [])
    Storage(f"{uri}/rehearsed", options).prove_put_if_absent("_delta_log", anyhow=True)
    storage.check_creatable("_delta_log")
    assert len(asked) == 1
