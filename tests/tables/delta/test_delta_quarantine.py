"""Files that a vacuum quarantines: passed by others, brought back by ``undelete``, deleted when their time is over."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pytest
from support.interleaving import Process
from support.raw_log import HOUR, SIZE, LogWriter, add, remove

from dv_maintenance.cli import main
from dv_maintenance.errors import RefusedError, StorageError
from dv_maintenance.maintenance.undelete import undelete
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.commit import publish
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.delta.vacuum import run as vacuuming
from dv_maintenance.tables.delta.verbs.restore import restore
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.quarantine import QUARANTINE
from dv_maintenance.testing.memory import MemoryTable

DAY = 24 * HOUR
NOW = time.time_ns() // 1_000_000
OLD = NOW - 100 * DAY
ASIDE = VacuumGuard(quarantine=True)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr("dv_maintenance.tables.vacuum.BATCH", 2)
    return iter(())


@pytest.fixture
def table(tmp_path: Path) -> LogWriter:
    return make(tmp_path / "t")


def make(folder: Path) -> LogWriter:
    """Three files, one in a folder of its own and one with a deletion vector, were replaced by another long ago."""
    table = LogWriter(folder, at=OLD)
    paths, dv = [table.data(OLD, folder) for folder in ("", "", "p=1")], table.dv(OLD)
    place = table.dv_path(dv)
    assert place is not None
    table.touch(place, OLD, "x" * 40)
    table.append(add(paths[0], dv), *map(add, paths[1:]), at=OLD)
    table.append(
        remove(paths[0], dv, at=OLD), *(remove(path, at=OLD) for path in paths[1:]), add(table.data(OLD)), at=OLD
    )
    return table


def aside(table: LogWriter) -> set[str]:
    return {path for path in table.files() if path.startswith(QUARANTINE)}


def test_there_and_back(table: LogWriter) -> None:
    before = table.files()
    report = vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=ASIDE))
    assert report.quarantine is not None
    assert report.deleted == 4
    moved = {path.removeprefix(f"{report.quarantine}/") for path in aside(table)}
    assert len(moved) == 4
    assert (table.files() - aside(table)) | moved == before
    with pytest.raises(RefusedError, match="no longer exist"):
        restore(table.storage, version=1)
    dry = undelete(open_table(str(table.path)), dry_run=True)
    done = undelete(open_table(str(table.path)))
    assert (dry.files, dry.bytes) == (done.files, done.bytes) == (4, 3 * SIZE + 40)
    assert table.files() == before
    assert not (table.path / QUARANTINE / report.quarantine.rpartition("/")[2]).exists()
    assert restore(table.storage, version=1).files_after == 3


def test_without_it_they_are_gone(table: LogWriter) -> None:
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW))
    assert undelete(open_table(str(table.path))).files == 0
    with pytest.raises(RefusedError, match="no longer exist"):
        restore(table.storage, version=1)


def test_a_failure_says_where_files_are(table: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    move, moved = Storage.move, list[str]()

    def once(self: Storage, source: str, target: str) -> bool:
        if moved:
            raise StorageError(f"{source} could not be moved")
        moved.append(target)
        return move(self, source, target)

    with monkeypatch.context() as patch, pytest.raises(StorageError) as caught:
        patch.setattr(Storage, "move", once)
        vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=ASIDE))
    folder = "/".join(moved[0].split("/")[:2])
    assert caught.value.done == f"1 of 4 expired files quarantined in {folder}"
    assert aside(table) == set(moved)


def test_later_vacuums_pass_it_by_until_its_time_is_over(table: LogWriter) -> None:
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=ASIDE))
    for path in aside(table):
        os.utime(table.path / path, (0, 0))
    found = aside(table)
    later = vacuum(open_table(str(table.path)), VacuumRequest(now=NOW + 7 * DAY - 2000))
    assert (later.deleted, later.emptied) == (0, 0)
    assert vacuum(open_table(str(table.path)), VacuumRequest(now=NOW + 8 * DAY, dry_run=True)).emptied == 0
    assert aside(table) == found
    assert vacuum(open_table(str(table.path)), VacuumRequest(now=NOW + 8 * DAY)).emptied == 4
    assert aside(table) == set()
    assert sorted(path.name for path in table.path.iterdir() if path.is_dir()) == ["_delta_log"]


def test_deltalakes_vacuum_passes_it_by(table: LogWriter) -> None:
    table.storage.delete([f"_delta_log/{0:020d}.json"])
    schema = {"type": "struct", "fields": [{"name": "id", "type": "string", "nullable": True, "metadata": {}}]}
    metadata = {
        "id": "x", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema),
        "partitionColumns": [], "configuration": {},
    }  # fmt: skip
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    table.touch(f"_delta_log/{0:020d}.json", OLD, "\n".join(map(json.dumps, actions)))
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=ASIDE))
    for path in aside(table):
        os.utime(table.path / path, (0, 0))
    found = aside(table)
    table.data(OLD)
    for full in (False, True):
        gone = deltalake.DeltaTable(str(table.path)).vacuum(
            0, dry_run=False, enforce_retention_duration=False, full=full
        )
        assert not any(QUARANTINE in path for path in gone)
    assert aside(table) == found


def test_only_what_is_asked_for_comes_back(table: LogWriter) -> None:
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW - 3 * DAY, guard=ASIDE))
    late = table.data(OLD)
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW - DAY, guard=ASIDE))
    assert undelete(open_table(str(table.path)), since=NOW - 2 * DAY).files == 1
    assert late in table.files()
    assert undelete(open_table(str(table.path)), until=NOW - 4 * DAY).files == 0
    assert main(["undelete", str(table.path), "--until", "2100-01-01T00:00:00Z"]) == 0
    assert aside(table) == set()


def test_no_file_is_written_over(table: LogWriter) -> None:
    path = table.data(OLD)
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=ASIDE))
    table.touch(path, NOW, "somebody else's")
    assert undelete(open_table(str(table.path))).taken == 1
    assert (table.path / path).read_text() == "somebody else's"
    assert len(aside(table)) == 1
    with pytest.raises(FileExistsAlreadyError):
        table.storage.move(aside(table).pop(), path)


def test_nothing_goes_through_a_link(table: LogWriter, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (table.path / QUARANTINE).symlink_to(tmp_path / "elsewhere")
    before = table.files()
    with pytest.raises((RefusedError, StorageError)):
        vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=ASIDE))
    assert table.files() == before
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert undelete(open_table(str(table.path))).files == 0


def test_what_others_bring_back_meanwhile_is_put_back(tmp_path: Path) -> None:
    """Without a quarantine it would be too late."""
    calls = Process(str(make(tmp_path / "alone").path), run).finish().storage.calls
    put_back = 0
    for call in range(2, calls + 1, 2):
        table = make(tmp_path / str(call))
        begun = Process(str(table.path), run).until(call)
        put_back += bool(aside(table))
        table.version = load_snapshot(table.storage).version
        version = table.append(*(each for each in read_commit(table.storage, 1) if "add" in each), at=NOW)
        begun.finish()
        if load_snapshot(table.storage).version > version:
            assert begun.error is None
            assert not {
                path for path in load_snapshot(table.storage).files["path"].to_pylist() if path not in table.files()
            }
    assert put_back > 1


def run(storage: Storage) -> object:
    return vacuuming.vacuum(storage, VacuumRequest(now=NOW, guard=ASIDE))


def test_formats_without_a_quarantine_say_so(tmp_path: Path) -> None:
    table = MemoryTable(tmp_path)
    with pytest.raises(RefusedError, match="can't set files aside"):
        vacuum(table, VacuumRequest(guard=ASIDE))
    with pytest.raises(RefusedError, match="have no quarantine"):
        undelete(table)


def test_an_object_store_copies_and_deletes() -> None:
    from obstore.store import MemoryStore

    storage, store = Storage("memory:///t"), MemoryStore()
    storage._stores[storage.uri] = store
    store.put("a", b"one")
    assert storage.move("a", "_q/a")
    store.put("a", b"one")  # the answer to the delete got lost
    assert storage.move("a", "_q/a")
    assert [meta["path"] for batch in store.list() for meta in batch] == ["_q/a"]
    assert not storage.move("a", "_q/a")
    store.put("a", b"another")
    with pytest.raises(FileExistsAlreadyError):
        storage.move("a", "_q/a")


def test_two_at_once(tmp_path: Path) -> None:
    """Every file is quarantined by one of the two, and comes back."""
    calls = Process(str(make(tmp_path / "alone").path), run).finish().storage.calls
    for call in range(2, calls + 1, 4):
        table = make(tmp_path / str(call))
        before = table.files()
        begun = Process(str(table.path), run).until(call)
        vacuuming.vacuum(table.storage, VacuumRequest(now=NOW, guard=ASIDE))
        begun.finish()
        assert begun.error is None
        assert len(aside(table)) == 4
        assert undelete(open_table(str(table.path))).files == 4
        assert table.files() == before


def test_a_folder_of_that_name_in_a_partition_is_no_quarantine(table: LogWriter) -> None:
    inner = table.touch(f"p=1/{QUARANTINE}/2026-01-01T00-00-00Z-00000000/part-x.parquet", OLD)
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW, guard=ASIDE))
    assert undelete(open_table(str(table.path))).files == 4
    assert inner in table.files()
    vacuum(open_table(str(table.path)), VacuumRequest(now=NOW + 30 * DAY))
    assert inner in table.files()
