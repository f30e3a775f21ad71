"""What a vacuum of a Lance table sets aside, what comes back, and versions that are pinned; pylance is the judge."""

from __future__ import annotations

import os
import shutil
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from support.aged import DAY, age, clock, own_files, rows
from support.tables import lance_table as opened

from dv_maintenance.cli import main
from dv_maintenance.errors import ConflictError
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.storage import Storage
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.lance.vacuum import undelete as undeleting
from dv_maintenance.tables.quarantine import QUARANTINE

ASIDE = VacuumGuard(1, quarantine=True)


def files(place: Path) -> set[str]:
    return {str(path) for path in own_files(place) if path.parts[0] != QUARANTINE}


def aside(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in (place / QUARANTINE).rglob("*") if path.is_file()}


def versions(pylance: ModuleType, place: Path) -> set[int]:
    return {each["version"] for each in pylance.dataset(str(place)).version_refs()}


@pytest.fixture
def table(pylance: ModuleType, tmp_path: Path) -> Path:
    """Version 1 has two fragments, 2 to 4 delete a row each, 5 replaces all rows; all of it is long ago."""
    place = tmp_path / "t"
    dataset = pylance.write_dataset(pa.table({"id": range(100)}), str(place), max_rows_per_file=50)
    for number in range(3):
        dataset.delete(f"id = {number}")
    pylance.write_dataset(pa.table({"id": [1000]}), str(place), mode="overwrite")
    age(place)
    return place


def test_there_and_back(table: Path, pylance: ModuleType) -> None:
    before, read = files(table), {version: rows(pylance, table, version) for version in range(1, 6)}
    result = opened(table).vacuum(VacuumRequest(guard=ASIDE))
    assert result.quarantine is not None
    assert result.deleted == len(aside(table)) > 8
    assert versions(pylance, table) == {5}
    dry = opened(table).undelete(dry_run=True)
    done = opened(table).undelete()
    assert (dry.files, dry.bytes, dry.held) == (done.files, done.bytes, done.held)
    assert (done.files, done.held) == (result.deleted, {})
    assert files(table) == before
    assert {version: rows(pylance, table, version) for version in range(1, 6)} == read
    pylance.dataset(str(table)).validate()
    assert opened(table).undelete().files == 0


def test_without_it_they_are_gone(table: Path, pylance: ModuleType) -> None:
    opened(table).vacuum(VacuumRequest(guard=VacuumGuard(1)))
    assert opened(table).undelete().files == 0
    assert versions(pylance, table) == {5}


def test_its_time_and_lances_own_cleanup(table: Path, pylance: ModuleType) -> None:
    now = clock()
    count = opened(table).vacuum(VacuumRequest(now=now, guard=ASIDE)).deleted
    for path in aside(table):
        os.utime(table / path, (0, 0))
    dataset = pylance.dataset(str(table))
    dataset.insert(pa.table({"id": [1]}))
    dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert opened(table).vacuum(VacuumRequest(now=now + 7 * DAY - 2000)).emptied == 0
    assert len(aside(table)) == count
    assert opened(table).vacuum(VacuumRequest(now=now + 7 * DAY + 2000)).emptied == count
    assert aside(table) == set()


def test_a_version_without_its_files_stays_aside(table: Path, pylance: ModuleType) -> None:
    """Its files went with a later run, whose batch is not put back."""
    now = clock()
    # Version 4 is superseded later than 1 to 3, and needs the data files of all.
    opened(table).vacuum(VacuumRequest(now=now, guard=VacuumGuard(1, versions=(4,), quarantine=True)))
    opened(table).vacuum(VacuumRequest(now=now + DAY, guard=ASIDE))
    found = opened(table).undelete(until=now + 1000)
    assert found.held == {undeleting.LACKING: 3}
    assert versions(pylance, table) == {5}
    assert opened(table).undelete().held == {}
    assert versions(pylance, table) == {1, 2, 3, 4, 5}
    assert len(rows(pylance, table, 1)) == 100


def test_a_vacuum_takes_versions_that_were_just_put_back(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last listing and the read of a manifest. Without it a version is gone: no file is missed."""
    opened(table).vacuum(VacuumRequest(guard=ASIDE))
    before, real, taken = files(table), Storage.get, []

    def get(storage: Storage, path: str) -> bytes:
        if path.startswith("_versions/") and path not in before and (table / path).exists():
            (table / path).unlink()
            taken.append(path)
        return real(storage, path)

    monkeypatch.setattr(Storage, "get", get)
    assert opened(table).undelete().files > 8
    assert len(taken) == 4
    assert files(table) & set(taken) == set()


def test_a_vacuum_takes_files_of_versions_that_were_just_put_back(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(table).vacuum(VacuumRequest(guard=ASIDE))
    real = undeleting.LanceUndeleteRules.settle

    def settle(rules: undeleting.LanceUndeleteRules, paths: list[str]) -> None:
        for path in paths:
            if path.startswith("_deletions/"):
                (table / path).unlink()
        real(rules, paths)

    monkeypatch.setattr(undeleting.LanceUndeleteRules, "settle", settle)
    with pytest.raises(ConflictError, match="version 4 was restored, but a concurrent vacuum deleted"):
        opened(table).undelete()


def test_manifests_that_would_break_the_table_stay_aside(
    table: Path, pylance: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(table).vacuum(VacuumRequest(guard=ASIDE))
    kept = tmp_path / "kept"
    shutil.move(table / QUARANTINE, kept)
    shutil.rmtree(table)
    pylance.write_dataset(pa.table({"id": [7]}), str(table))
    shutil.copytree(kept, table / QUARANTINE)
    assert main(["undelete", str(table)]) == 0
    assert undeleting.NEWER in capsys.readouterr().out
    assert (versions(pylance, table), rows(pylance, table, 1)) == ({1}, rows(pylance, table))


def test_another_naming(pylance: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "v1"
    dataset = pylance.write_dataset(pa.table({"id": range(10)}), str(place), enable_v2_manifest_paths=False)
    dataset.delete("id = 1")
    dataset.delete("id = 2")
    age(place)
    opened(place).vacuum(VacuumRequest(guard=ASIDE))
    pylance.dataset(str(place)).migrate_manifest_paths_v2()
    found = opened(place).undelete()
    assert found.held == {undeleting.NAMING: 2}
    assert len(pylance.dataset(str(place)).to_table()) == 8


def test_a_pinned_version_stays(table: Path, pylance: ModuleType) -> None:
    wanted = rows(pylance, table, 2)
    report = vacuum(opened(table), VacuumRequest(guard=VacuumGuard(1, versions=(2,))))
    assert versions(pylance, table) == {2, 5}
    assert rows(pylance, table, 2) == wanted
    assert report.protected == ("in version 2, which is pinned: 5 files",)
    assert report.kept["in version 2, which is pinned"] == 5
    vacuum(opened(table), VacuumRequest(guard=VacuumGuard(1)))
    assert versions(pylance, table) == {5}, "without the pin it goes"


def test_tags_and_branches_stay(table: Path, pylance: ModuleType) -> None:
    """The table itself knows them, so they need not be named."""
    dataset = pylance.dataset(str(table))
    dataset.tags.create("audit", 2)
    opened(table).vacuum(VacuumRequest(guard=ASIDE))
    assert versions(pylance, table) == {2, 5}
    dataset.tags.delete("audit")
    opened(table).vacuum(VacuumRequest(guard=VacuumGuard(1)))
    assert versions(pylance, table) == {5}, "without the tag it goes"
