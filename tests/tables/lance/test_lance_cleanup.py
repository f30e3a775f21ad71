"""Vacuum of Lance tables: what goes, what stays, and what nobody may lose; pylance is the judge."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from effort import examples
from golden_tables import names_in
from hypothesis import given, settings
from hypothesis import strategies as st
from support.aged import (
    DAY,
    age,
    clock,
    foreign_of_every_kind,
    named_by,
    orphans_of_every_kind,
    own_files,
    plant,
    rows,
    set_time,
    touch,
)
from support.places import GOLDEN
from support.raw_manifest import newest_manifest, patch, without
from support.tables import lance_table as opened

from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.maintenance.fsck import fsck
from dv_maintenance.storage import Storage
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.lance.log.manifest import parse_manifest
from dv_maintenance.tables.lance.log.versions import manifest_name
from dv_maintenance.tables.lance.table import LanceTable
from dv_maintenance.tables.lance.vacuum import holders
from dv_maintenance.tables.lance.vacuum import run as cleanup
from dv_maintenance.tables.reports import VacuumReport

HINT = "_versions/latest_version_hint.json"
TABLES = names_in("lance", (path.parent.name for path in GOLDEN.glob("lance/*/_versions")))


def gone(result: VacuumReport) -> set[str]:
    return {file.path for file in result.expired.files}


def manifests(*versions: int) -> set[str]:
    return {f"_versions/{manifest_name(version, 'V2')}" for version in versions}


def files(place: Path) -> set[str]:
    return {str(path) for path in own_files(place)} - {HINT}


@pytest.fixture
def table(pylance: ModuleType, tmp_path: Path) -> Path:
    """Six versions, a day from one to the next, the first a hundred days ago: two fragments, then four deletes and an
    append.
    """
    place = tmp_path / "t"
    dataset = pylance.write_dataset(pa.table({"id": range(100)}), str(place), max_rows_per_file=50)
    for number in range(4):
        dataset.delete(f"id = {number}")
    pylance.write_dataset(pa.table({"id": [1000]}), str(place), mode="append")
    age(place)
    return place


# -- golden tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_golden(name: str, golden_copy: Callable[[str], Path], pylance: ModuleType) -> None:
    place = golden_copy(f"lance/{name}")
    bad = name.startswith("bad_")
    kept = {None, *(tag["version"] for tag in pylance.dataset(str(place)).tags.list().values())}
    before = {} if bad else {version: rows(pylance, place, version) for version in kept}
    now = clock() + 10_000 * DAY
    dry = opened(place).vacuum(VacuumRequest(now=now, dry_run=True))
    everything = files(place)
    result = opened(place).vacuum(VacuumRequest(now=now))
    assert (dry.dry_run, dry.deleted) == (True, 0)
    assert result.expired == dry.expired
    assert files(place) == everything - gone(result)
    assert result.deleted == len(gone(result))
    assert sum(result.expired.kept.values()) == len(files(place))
    dataset = pylance.dataset(str(place))
    assert {each["version"] for each in dataset.version_refs()} == kept - {None} | {dataset.version}
    if not bad:
        assert {version: rows(pylance, place, version) for version in kept} == before
        if not name.startswith("historic"):  # Lance rejects one of them before, and both under old names
            dataset.validate()
            assert files(place) == named_by(dataset)
    assert opened(place).vacuum(VacuumRequest(now=now)).expired.files == ()


def test_what_is_announced_goes_then(table: Path, pylance: ModuleType) -> None:
    """Each day a version falls out of the retention, with its deletion file and its transaction."""
    now = clock() - 92 * DAY
    dry = opened(table).vacuum(VacuumRequest(now=now, dry_run=True)).expired
    assert (dry.files, len(dry.expiring or ())) == ((), 5)
    announced = 0
    for each in dry.expiring or ():
        announced += each.bytes
        before = opened(table).vacuum(VacuumRequest(now=each.at, dry_run=True)).expired
        after = opened(table).vacuum(VacuumRequest(now=each.at + 2, dry_run=True)).expired
        assert len(before.files) < len(after.files)
        assert sum(file.size for file in after.files if file.kind != "manifest") == announced
    assert opened(table).vacuum(VacuumRequest(now=clock() + 10 * DAY, dry_run=True)).expired.expiring == ()
    pylance.dataset(str(table)).tags.create("keep", 2)
    assert opened(table).vacuum(VacuumRequest(now=now, dry_run=True)).expired.expiring is None, (
        "nobody knows until when"
    )


def test_what_a_run_may_delete(table: Path) -> None:
    before = files(table)
    dry = opened(table).vacuum(VacuumRequest(dry_run=True, guard=VacuumGuard(0.1)))
    assert "max_deleted_share allows 10%" in (dry.refused or "")
    with pytest.raises(RefusedError, match="max_deleted_share allows 10%"):
        opened(table).vacuum(VacuumRequest(guard=VacuumGuard(0.1)))
    with pytest.raises(RefusedError, match="tag the version that a reader uses"):
        opened(table).vacuum(VacuumRequest(guard=VacuumGuard(streams=("somewhere",))))
    with pytest.raises(RefusedError, match="version 9999 is to be protected, but does not exist"):
        opened(table).vacuum(VacuumRequest(guard=VacuumGuard(versions=(9999,))))
    assert files(table) == before
    assert opened(table).vacuum(VacuumRequest(guard=VacuumGuard(1))).deleted > 0


def test_files_that_no_version_knows(table: Path) -> None:
    """As if the manifests were read from an old backup."""
    for number in range(120):
        path = table / f"data/{number:032x}.lance"
        path.write_bytes(b"x" * 1000)
        os.utime(path, (0, 0))
    with pytest.raises(RefusedError, match="would delete 120 files that the table's history does not know"):
        opened(table).vacuum()
    assert len(files(table)) > 120
    assert opened(table).vacuum(VacuumRequest(guard=VacuumGuard(1))).deleted > 120


# -- which versions go ---------------------------------------------------------------------------------------------


def test_a_version_goes_by_how_long_it_has_been_superseded(table: Path, pylance: ModuleType) -> None:
    times = age(table)
    # Version 3 was superseded when version 4 was committed, so it stays until that is longer ago than the retention.
    at = times[4] + 14 * DAY
    assert gone(opened(table).vacuum(VacuumRequest(now=at, dry_run=True))) & manifests(*range(1, 7)) == manifests(1, 2)
    result = opened(table).vacuum(VacuumRequest(now=at + 1))
    assert gone(result) & manifests(*range(1, 7)) == manifests(1, 2, 3)
    assert (result.expired.cutoff, result.expired.retention) == (times[4] + 1, 14 * DAY)
    assert [each["version"] for each in pylance.dataset(str(table)).version_refs()] == [4, 5, 6]
    assert result.expired.kept[holders.CURRENT] > 0


def test_lance_goes_by_the_age_of_the_version_itself(table: Path, pylance: ModuleType) -> None:
    """Ours deletes nothing that Lance's own cleanup would keep, and keeps one more version, up to the newest one."""
    for days in range(92, 102):
        explained = pylance.dataset(str(table)).explain_cleanup_old_versions(
            older_than=timedelta(days=days, hours=12), include_files=True
        )
        theirs = {each.path.rpartition("/t/")[2] for each in explained.candidate_files}
        ours = gone(opened(table).vacuum(VacuumRequest(now=clock() - int((days + 0.5) * DAY) + 14 * DAY, dry_run=True)))
        assert ours <= theirs
        assert len(theirs & manifests(*range(1, 7))) - len(ours & manifests(*range(1, 7))) == (
            1 if 95 <= days + 1 <= 99 else 0
        )


def test_a_clock_that_is_behind_expires_nothing(table: Path) -> None:
    """The clock of version 5's writer was at 1970: version 4 is still recent."""
    times = age(table, manifests=False)  # a copy: storage knows nothing of the past
    set_time(table / f"_versions/{manifest_name(5, 'V2')}", 1)
    result = opened(table).vacuum(VacuumRequest(now=times[4] + 14 * DAY, dry_run=True))
    assert gone(result) & manifests(*range(1, 7)) == manifests(1, 2)


def test_a_manifest_that_does_not_say_when_is_as_old_as_its_file(table: Path) -> None:
    times = age(table, manifests=False)
    silent = table / f"_versions/{manifest_name(5, 'V2')}"
    set_time(silent, 0)
    now = times[5] + 14 * DAY + 1
    assert gone(opened(table).vacuum(VacuumRequest(now=now, dry_run=True))) & manifests(*range(1, 7)) == manifests(
        1, 2, 3
    )
    touch(silent, times[5])
    assert gone(opened(table).vacuum(VacuumRequest(now=now, dry_run=True))) & manifests(*range(1, 7)) == manifests(
        1, 2, 3, 4
    )


def test_a_copied_table_goes_by_what_its_manifests_say(table: Path) -> None:
    times = age(table, manifests=False)
    result = opened(table).vacuum(VacuumRequest(now=times[4] + 14 * DAY + 1, dry_run=True))
    assert gone(result) & manifests(*range(1, 7)) == manifests(1, 2, 3)


def test_the_newest_never_goes_and_tags_hold_theirs(table: Path, pylance: ModuleType) -> None:
    pylance.dataset(str(table)).tags.create("keep", 3)
    before = rows(pylance, table, "keep")
    result = opened(table).vacuum()
    assert gone(result) & manifests(*range(1, 7)) == manifests(1, 2, 4, 5)
    assert result.expired.kept[holders.TAGGED] == 3  # manifest, transaction, deletion file
    assert rows(pylance, table, "keep") == before
    pylance.dataset(str(table)).tags.delete("keep")
    assert gone(opened(table).vacuum()) & manifests(3) == manifests(3)
    assert rows(pylance, table).num_rows == 97


def test_the_config_says_how_long_and_how_many(table: Path, pylance: ModuleType) -> None:
    pylance.dataset(str(table)).update_config({
        "lance.auto_cleanup.older_than": "95days 12h", "lance.auto_cleanup.retain_versions": "4"
    })  # fmt: skip
    age(table)
    result = opened(table).vacuum(VacuumRequest(dry_run=True))
    assert result.expired.retention == int(95.5 * DAY)
    # Superseded before the 95.5 days: 1 to 3; the newest four of seven are 4 to 7.
    assert gone(result) & manifests(*range(1, 8)) == manifests(1, 2, 3)
    result = opened(table).vacuum(VacuumRequest(retention=0, allow_short_retention=True, dry_run=True))
    assert gone(result) & manifests(*range(1, 8)) == manifests(1, 2, 3)
    assert result.expired.kept[holders.AMONG_THE_NEWEST] > 0


@pytest.mark.parametrize(
    ("config", "retention", "error"),
    [
        ({}, -1, "negative"),
        ({}, 14 * DAY - 1, "shorter than the table's own 14d .Lance's default"),
        ({"lance.auto_cleanup.older_than": "20d"}, 14 * DAY, "shorter than the table's own 20d"),
        ({"lance.auto_cleanup.older_than": "two weeks"}, None, "older_than: 'two weeks' is not an age"),
        ({"lance.auto_cleanup.older_than": "2D"}, None, "'D' is not a unit"),
        ({"lance.auto_cleanup.retain_versions": "0"}, None, "retain_versions: '0'"),
    ],
)
def test_a_retention_that_is_too_short_or_makes_no_sense(
    table: Path, pylance: ModuleType, config: dict[str, str], retention: int | None, error: str
) -> None:
    if config:
        pylance.dataset(str(table)).update_config(config)
    before = files(table)
    with pytest.raises(DvMaintenanceError, match=error) as caught:
        opened(table).vacuum(VacuumRequest(retention=retention))
    assert isinstance(caught.value, UsageError if retention == -1 else RefusedError)
    assert "{" not in str(caught.value.next_step)
    assert files(table) == before


# -- which files go ------------------------------------------------------------------------------------------------


def test_orphans_by_age_also_behind_an_old_tag(table: Path, pylance: ModuleType) -> None:
    pylance.dataset(str(table)).tags.create("old", 1)
    old = plant(table, 15, orphans_of_every_kind("a"))
    young = plant(table, 13, orphans_of_every_kind("b"))
    foreign = plant(table, 50, foreign_of_every_kind())
    result = opened(table).vacuum()
    assert files(table) >= young | foreign
    assert not files(table) & old
    assert result.expired.kept[cleanup.FOREIGN] == len(foreign)
    assert result.expired.kept[cleanup.YOUNG] == len(young)
    assert not (table / "data/a").exists()
    assert not any((table / "_indices").glob("a*"))
    # Lance never lists the deletion files and transactions among those: its listing ends at the oldest kept version.
    left = plant(table, 15, orphans_of_every_kind("c"))
    explained = pylance.dataset(str(table)).explain_cleanup_old_versions(
        older_than=timedelta(days=14), error_if_tagged_old_versions=False, include_files=True
    )
    theirs = {each.path.rpartition("/t/")[2] for each in explained.candidate_files}
    assert {path.split("/")[0] for path in left - theirs} >= {"_deletions", "_transactions"}


def test_orphans_of_a_short_retention_are_kept_for_a_week(table: Path) -> None:
    old, young = plant(table, 7.1, orphans_of_every_kind("a")), plant(table, 6.9, orphans_of_every_kind("b"))
    result = opened(table).vacuum(VacuumRequest(retention=0, allow_short_retention=True))
    assert gone(result) >= old | manifests(1, 2, 3, 4, 5)
    assert files(table) >= young
    assert not gone(result) & young


def test_what_killed_writers_staged_goes_by_age_but_never_a_version_to_come(table: Path, pylance: ModuleType) -> None:
    """Six versions exist. A catalog may name the staged manifest of the seventh until somebody finishes it."""
    detached = f"d{2**63 + 5}"
    staged = [f"_versions/{manifest_name(number, 'V2')}-{uuid4()}" for number in (3, 6)]
    to_come = [f"_versions/{manifest_name(7, 'V2')}-{uuid4()}", f"_versions/{detached}.manifest-{uuid4()}"]
    temporary = ["_deletions/.tmpWljFbv", "_transactions/.tmpWljFbv", f"_transactions/.dvm-probe-{uuid4()}.tmp"]
    old, young = plant(table, 15, [*staged, *temporary]), plant(table, 13, [f"{each}0" for each in temporary])
    young |= plant(table, 1, [f"_versions/{manifest_name(6, 'V2')}-{uuid4()}"])
    live = plant(table, 1000, to_come)
    rows = pylance.dataset(str(table)).count_rows()
    assert not fsck(opened(table), deep=True).damage
    result = opened(table).vacuum()
    assert not files(table) & old
    assert files(table) >= young | live
    assert result.expired.kept[cleanup.UNFINISHED] == 2
    # The version is there now: its staged manifest is a copy, or lost.
    pylance.write_dataset(pa.table({"id": [1]}), str(table), mode="append")
    opened(table).vacuum()
    assert files(table) & live == {each for each in live if detached in each}
    assert pylance.dataset(str(table)).count_rows() == rows + 1


def test_what_belongs_together_is_as_old_as_its_youngest_part(table: Path) -> None:
    """An index that is built for weeks, and a data file whose blobs came first."""
    uuid = "a0000000-0000-4000-8000-000000000000"
    old = plant(table, 50, [f"_indices/{uuid}/part_0.lance", "data/k/01.blob"])
    plant(table, 1, [f"_indices/{uuid}/metadata.lance", "data/k.lance"])
    assert not gone(opened(table).vacuum()) & old


def test_a_file_that_an_expired_version_named_goes_at_once(table: Path, pylance: ModuleType) -> None:
    """However young storage says that it is: the table was copied yesterday."""
    times = age(table)
    for path in own_files(table):
        touch(table / path, clock() - DAY)
    strange = plant(table, 1, ["data/strange.lance"])
    result = opened(table).vacuum(VacuumRequest(now=times[6] + 14 * DAY + 1))
    assert gone(result) >= manifests(1, 2, 3, 4, 5)
    assert {file.kind for file in result.expired.files} == {"manifest", "transaction", "dv"}
    assert files(table) == named_by(pylance.dataset(str(table))) | strange


def test_expired_manifests_are_read_only_where_a_file_is_young(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    get = Storage.get

    def watched(self: Storage, path: str) -> bytes:
        read.append(path)
        return get(self, path)

    monkeypatch.setattr(Storage, "get", watched)
    expected = opened(table).vacuum(VacuumRequest(dry_run=True)).expired
    assert not set(read) & manifests(1, 2, 3, 4, 5)
    plant(table, 1, ["data/young.lance"])
    assert opened(table).vacuum(VacuumRequest(dry_run=True)).expired.files == expected.files
    assert set(read) >= manifests(1, 2, 3, 4, 5)


def test_output_of_a_compaction_that_is_not_committed_stays(table: Path, pylance: ModuleType) -> None:
    from lance.optimize import Compaction

    dataset = pylance.dataset(str(table))
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": 1000})
    results = [task.execute(dataset) for task in plan.tasks]
    before = rows(pylance, table)
    result = opened(table).vacuum()
    assert result.deleted > 0
    assert result.expired.kept[cleanup.YOUNG] == 1
    Compaction.commit(pylance.dataset(str(table)), results, {})
    assert sorted(rows(pylance, table)["id"].to_pylist()) == sorted(before["id"].to_pylist())
    assert len(pylance.dataset(str(table)).get_fragments()) == 1


def test_blobs_live_and_die_with_their_data_file(pylance: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "t"
    for number in range(2):
        blobs = pylance.blob_array([b"x" * 10, b"y" * 200_000, bytes([number]) * 5_000_000])
        pylance.write_dataset(
            pa.table({"id": [0, 1, 2], "b": blobs}), str(place), mode="overwrite", data_storage_version="2.2"
        )
    age(place)
    sidecars = set(place.glob("data/*/*.blob"))
    assert len(sidecars) == 4
    result = opened(place).vacuum()
    assert [file.kind for file in result.expired.files] == ["manifest", "transaction", "data", "data", "data"]
    dataset = pylance.dataset(str(place))
    assert [len(blob.read()) for blob in dataset.take_blobs("b", indices=[0, 1, 2])] == [10, 200_000, 5_000_000]
    assert len(list(place.glob("data/*/*.blob"))) == 2
    assert len([path for path in place.glob("data/*") if path.is_dir()]) == 1


@pytest.mark.parametrize("defer", [False, True])
def test_indices_of_kept_versions_stay(pylance: ModuleType, tmp_path: Path, defer: bool) -> None:
    place = tmp_path / "t"
    dataset = pylance.write_dataset(
        pa.table({"id": range(1000), "s": [f"word{i} the" for i in range(1000)]}), str(place), max_rows_per_file=100
    )
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("s", "INVERTED")
    dataset.delete("id < 50")
    dataset.optimize.compact_files(defer_index_remap=defer)
    dataset.create_scalar_index("id", "BTREE")
    age(place)
    old = set(place.glob("_indices/*"))
    result = opened(place).vacuum()
    assert "index" in {file.kind for file in result.expired.files}
    assert set(place.glob("_indices/*")) < old
    assert files(place) == named_by(pylance.dataset(str(place)))
    found = pylance.dataset(str(place))
    assert found.to_table(filter="id = 700")["id"].to_pylist() == [700]
    assert found.to_table(full_text_query="word700")["id"].to_pylist() == [700]


def test_a_detached_version_and_what_it_names_stays(table: Path, pylance: ModuleType) -> None:
    operation = pylance.LanceOperation.Append(pylance.fragment.write_fragments(pa.table({"id": [7]}), str(table)))
    detached = pylance.LanceDataset.commit(str(table), operation, read_version=6, detached=True)
    expected = rows(pylance, table, detached.version)
    assert expected.num_rows == 98
    pylance.write_dataset(pa.table({"id": [1]}), str(table), mode="overwrite")
    for path in own_files(table):
        touch(table / path, clock() - 90 * DAY)
    result = opened(table).vacuum()
    assert gone(result) >= manifests(1, 2, 3, 4, 5, 6)
    # Its manifest and transaction, four data files, one deletion file.
    assert result.expired.kept[holders.DETACHED] == 7
    assert rows(pylance, table, detached.version) == expected


# -- branches and clones -------------------------------------------------------------------------------------------


def test_branches_keep_what_they_share(table: Path, pylance: ModuleType) -> None:
    branch = pylance.dataset(str(table)).create_branch("dev/x", 3)
    branch.delete("id = 50")
    below = branch.create_branch("dev/y", ("dev/x", branch.version))
    below.delete("id = 51")
    before = {name: rows(pylance, table, (name, None)) for name in ("dev/x", "dev/y")}
    compacted = pylance.dataset(str(table)).optimize.compact_files()
    assert compacted.fragments_removed
    age(table, 200)
    tree = {path: path.stat().st_mtime_ns for path in (table / "tree").rglob("*")}
    refs = set((table / "_refs").rglob("*"))
    result = opened(table).vacuum()
    assert gone(result) & manifests(*range(1, 8)) == manifests(1, 2, 4, 5, 6, 7)
    assert result.expired.kept[holders.BRANCHED] > 0
    assert {name: rows(pylance, table, (name, None)) for name in before} == before
    assert {path: path.stat().st_mtime_ns for path in (table / "tree").rglob("*")} == tree
    assert set((table / "_refs").rglob("*")) == refs

    # The branch itself is vacuumed as a table of its own: what another branch came off stays, and what is tagged.
    place = table / "tree/dev/x"
    pylance.dataset(str(table)).checkout_version(("dev/x", None)).delete("id = 60")
    age(place, 200)
    before["dev/x"] = rows(pylance, table, ("dev/x", None))
    pylance.dataset(str(table)).tags.create("of_branch", ("dev/x", 3))
    assert gone(opened(place).vacuum()) == set()
    pylance.dataset(str(table)).tags.delete("of_branch")
    result = opened(place).vacuum()
    assert gone(result) & manifests(3, 4, 5) == manifests(3)
    assert {name: rows(pylance, table, (name, None)) for name in before} == before
    assert rows(pylance, table).num_rows == 97


def test_a_branch_without_a_file_that_names_it(table: Path, pylance: ModuleType) -> None:
    """As one is that somebody makes right now."""
    branch = pylance.dataset(str(table)).create_branch("dev/x", 1)
    (table / "_refs/branches/dev%2Fx.json").unlink()
    pylance.dataset(str(table)).optimize.compact_files()
    age(table, 200)
    before = branch.to_table()
    assert gone(opened(table).vacuum()) >= manifests(1, 2, 3)
    assert pylance.dataset(str(table / "tree/dev/x")).to_table() == before


def test_protected_clones_keep_what_they_share(table: Path, pylance: ModuleType, tmp_path: Path) -> None:
    clone = pylance.dataset(str(table)).shallow_clone(str(tmp_path / "c"), 3)
    clone.delete("id = 60")
    again = clone.shallow_clone(str(tmp_path / "cc"), clone.version)
    branch = clone.create_branch("of_clone")
    # All that is left of what the clone itself needed is in its branch.
    pylance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "c"), mode="overwrite")
    for manifest in set((tmp_path / "c/_versions").glob("*.manifest")) - {newest_manifest(tmp_path / "c")}:
        manifest.unlink()
    pylance.dataset(str(table)).optimize.compact_files()
    age(table, 200)
    before = [each.to_table() for each in (again, branch)]
    (tmp_path / "cc").rename(tmp_path / "moved")
    guarded = opened(table).protecting([str(tmp_path / "c")])
    result = guarded.vacuum()
    assert result.expired.kept[holders.CLONED] > 0
    assert result.deleted > 0
    places = [tmp_path / "moved", tmp_path / "c/tree/of_clone"]
    assert [rows(pylance, place) for place in places] == before
    # By any other name: what counts is what the clone's manifests name.
    (tmp_path / "link").symlink_to(tmp_path / "c")
    assert guarded.vacuum().expired.files == ()
    assert opened(table).protecting([str(tmp_path / "link")]).vacuum(VacuumRequest(dry_run=True)).expired.files == ()
    # Without protection they are lost: nothing in the table says that they exist.
    assert opened(table).vacuum().deleted > 0
    with pytest.raises((OSError, pa.ArrowInvalid), match=r"[Nn]ot found"):
        rows(pylance, tmp_path / "moved")


@pytest.mark.parametrize("damage", ["missing", "cut", "no table"])
def test_a_clone_that_cannot_be_read_stops_it(table: Path, pylance: ModuleType, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "c"
    if damage != "missing":
        place.mkdir()
    if damage == "cut":
        pylance.dataset(str(table)).shallow_clone(str(place / "x"), 3)
        place = place / "x"
        newest_manifest(place).write_bytes(b"LANC")
    before = files(table)
    with pytest.raises(DamagedTableError if damage == "cut" else RefusedError) as caught:
        opened(table).protecting([str(place)]).vacuum()
    assert str(place) in str(caught.value)
    assert files(table) == before
    with pytest.raises(UsageError, match="the table itself"):
        opened(table).protecting([str(table) + "/"]).vacuum()


# -- what is damaged or not understood -----------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["newest", "tagged", "expired", "branch"])
@pytest.mark.parametrize("damage", [b"", b"rubbish instead of a manifest", None])
def test_damaged_manifests_stop_it(table: Path, pylance: ModuleType, which: str, damage: bytes | None) -> None:
    pylance.dataset(str(table)).tags.create("keep", 2)
    pylance.dataset(str(table)).create_branch("dev", 5)
    plant(table, 1, ["data/young.lance"])  # for whose sake expired ones are read
    manifest = {
        "newest": newest_manifest(table),
        "tagged": table / f"_versions/{manifest_name(2, 'V2')}",
        "expired": table / f"_versions/{manifest_name(3, 'V2')}",
        "branch": newest_manifest(table / "tree/dev"),
    }[which]
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: len(whole) // 2] + whole[-16:] if damage is None else damage)
    before = files(table)
    with pytest.raises(DamagedTableError, match=r"_versions/") as caught:
        opened(table).vacuum()
    assert caught.value.table
    assert caught.value.done is None
    assert files(table) == before


@pytest.mark.parametrize("damage", ["tag", "branch", "no folder"])
def test_damaged_refs_stop_it(table: Path, pylance: ModuleType, damage: str) -> None:
    pylance.dataset(str(table)).tags.create("keep", 2)
    pylance.dataset(str(table)).create_branch("dev", 5)
    if damage == "no folder":
        shutil.rmtree(table / "tree")
    else:
        (table / ("_refs/tags/keep.json" if damage == "tag" else "_refs/branches/dev.json")).write_text("{")
    before = files(table)
    with pytest.raises(RefusedError if damage == "no folder" else DamagedTableError):
        opened(table).vacuum()
    assert files(table) == before


@pytest.mark.parametrize(("field", "flag"), [(9, 64), (9, 512), (9, 4096), (10, 1 << 20), (10, 131072)])
@pytest.mark.parametrize("which", ["newest", "tagged"])
def test_features_that_are_not_understood_stop_it(
    table: Path, pylance: ModuleType, field: int, flag: int, which: str
) -> None:
    pylance.dataset(str(table)).tags.create("keep", 2)
    manifest = table / f"_versions/{manifest_name(2 if which == 'tagged' else 6, 'V2')}"
    patch(manifest, lambda records: [*without(records, field), (field, 1 | flag)])
    before = files(table)
    with pytest.raises(UnsupportedFeatureError) as caught:
        opened(table).vacuum()
    assert caught.value.version == (2 if which == "tagged" else 6)
    assert files(table) == before
    if which == "newest" and field == 10:
        with pytest.raises(UnsupportedFeatureError):
            opened(table).check_writable(opened(table).snapshot(), "vacuum")


def test_row_ids_in_files_of_their_own_stop_it(table: Path) -> None:
    manifest = newest_manifest(table)
    parsed = parse_manifest(manifest.read_bytes())
    external = parsed.fragment_records[0] + b"\x32\x03\x0a\x01x"  # field 6, a message with the path "x"
    patch(manifest, lambda records: [*without(records, 2), (2, external)])
    with pytest.raises(UnsupportedFeatureError, match="row ids"):
        opened(table).vacuum()


# -- others at work ------------------------------------------------------------------------------------------------


def before_batch(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> None:
    """Something happens right before the ``number``-th check before a deletion."""
    catch_up, calls = cleanup._Rules.refresh, []

    def interfered(self: Any) -> None:
        calls.append(number)
        if len(calls) == number:
            do()
        catch_up(self)

    monkeypatch.setattr(cleanup._Rules, "refresh", interfered)


def check_all(pylance: ModuleType, place: Path) -> None:
    """Every version that is there can be read whole."""
    for each in pylance.dataset(str(place)).version_refs():
        rows(pylance, place, each["version"])


@pytest.mark.parametrize("number", [1, 2])
def test_a_restore_meanwhile(table: Path, pylance: ModuleType, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It commits before the manifest goes, or what it read in it just after that."""
    dataset = pylance.dataset(str(table), version=2)
    expected = dataset.to_table()
    opened_before = (table / f"_versions/{manifest_name(2, 'V2')}").read_bytes()

    def commit() -> None:
        if number == 1:
            dataset.restore()
        else:
            with pytest.raises(OSError, match=r"[Nn]ot found"):
                dataset.restore()
            new = table / f"_versions/{manifest_name(7, 'V2')}"
            new.write_bytes(opened_before)
            patch(new, lambda records: [*without(records, 3), (3, 7)])

    before_batch(monkeypatch, number, commit)
    result = opened(table).vacuum()
    assert result.deleted > 0
    assert rows(pylance, table) == expected
    check_all(pylance, table)


def test_an_old_file_that_is_committed_meanwhile(
    table: Path, pylance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    fragments = pylance.fragment.write_fragments(pa.table({"id": [7]}), str(table))
    path = table / "data" / fragments[0].files[0].path
    touch(path, clock() - 30 * DAY)
    operation = pylance.LanceOperation.Append(fragments)
    before_batch(monkeypatch, 2, lambda: pylance.LanceDataset.commit(str(table), operation, read_version=6))
    result = opened(table).vacuum()
    assert path.exists()
    assert f"data/{path.name}" not in gone(result)
    assert rows(pylance, table).num_rows == 98


def test_a_tag_and_a_branch_meanwhile(table: Path, pylance: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = pylance.dataset(str(table))
    expected = rows(pylance, table, 2), rows(pylance, table, 4)

    def do() -> None:
        dataset.tags.create("keep", 2)
        dataset.create_branch("dev", 4)

    before_batch(monkeypatch, 1, do)
    result = opened(table).vacuum()
    assert gone(result) & manifests(*range(1, 7)) == manifests(1, 3, 5)
    assert (rows(pylance, table, "keep"), rows(pylance, table, 4)) == expected
    assert rows(pylance, table, ("dev", None)) == expected[1]
    check_all(pylance, table)


def test_a_tag_that_comes_too_late(table: Path, pylance: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    late = table / "_refs/tags/late.json"

    def do() -> None:
        late.parent.mkdir(parents=True)
        late.write_text('{"branch":null,"version":2,"manifestSize":1}')

    before_batch(monkeypatch, 2, do)
    with pytest.raises(ConflictError, match="version 2 was deleted while a tag or a branch on it") as caught:
        opened(table).vacuum()
    assert "5 of" in str(caught.value)
    check_all(pylance, table)
    assert list(table.glob("_deletions/*")), "no file went"


def test_a_table_that_is_made_anew_meanwhile(table: Path, pylance: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def do() -> None:
        shutil.rmtree(table)
        pylance.write_dataset(pa.table({"id": [1]}), str(table))

    before_batch(monkeypatch, 1, do)
    with pytest.raises(ConflictError, match="recreated"):
        opened(table).vacuum()
    assert rows(pylance, table).num_rows == 1


def test_manifests_that_are_renamed_meanwhile(
    golden_copy: Callable[[str], Path], pylance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = golden_copy("lance/v1_manifests")
    before_batch(monkeypatch, 1, lambda: pylance.dataset(str(place)).migrate_manifest_paths_v2())
    with pytest.raises(ConflictError, match="renamed"):
        opened(place).vacuum(VacuumRequest(now=clock() + 1000 * DAY))
    check_all(pylance, place)


def test_manifests_that_cannot_be_deleted_keep_their_files(
    table: Path, pylance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = Storage.delete
    stuck, before = manifests(2), files(table)

    def refusing(self: Storage, paths: list[str]) -> int:
        if set(paths) & stuck:
            raise StorageError("storage failed")
        return delete(self, paths)

    monkeypatch.setattr(Storage, "delete", refusing)
    with pytest.raises(StorageError, match="storage failed") as caught:
        opened(table).vacuum()
    assert "4 of" in str(caught.value)
    assert {path.split("/")[0] for path in before - files(table)} == {"_versions"}
    check_all(pylance, table)
    monkeypatch.undo()
    opened(table).vacuum()
    assert files(table) == named_by(pylance.dataset(str(table)))


# -- histories -----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.sampled_from(
        ["append", "delete", "delete", "delete much", "compact", "tag", "branch", "restore", "index", "clone"]
    ),
    max_size=9,
)


def build(pylance: ModuleType, place: Path, steps: list[str]) -> list[Path]:
    """A table by these steps. Returns its clones."""
    uri, clones = str(place), []
    dataset = pylance.write_dataset(pa.table({"id": range(60)}), uri, max_rows_per_file=20)
    for number, step in enumerate(steps):
        dataset = pylance.dataset(uri)
        if step == "append":
            pylance.write_dataset(pa.table({"id": range(100 * number, 100 * number + 5)}), uri, mode="append")
        elif step == "delete":
            dataset.delete(f"id % 10 = {number}")
        elif step == "delete much":
            dataset.delete(f"id >= {20 + number} and id < {45 + number}")
        elif step == "compact":
            dataset.optimize.compact_files()
        elif step == "tag":
            dataset.tags.create(f"tag{number}", max(1, dataset.version - 1))
        elif step == "branch":
            branch = dataset.create_branch(f"b{number}", dataset.version)
            branch.delete(f"id = {number}")
        elif step == "restore":
            pylance.dataset(uri, version=max(1, dataset.version - 2)).restore()
        elif step == "index":
            dataset.create_scalar_index("id", "BTREE", replace=True)
        else:
            clone = place.parent / f"clone{number}"
            dataset.shallow_clone(str(clone), dataset.version).delete(f"id = {30 + number}")
            clones.append(clone)
    return clones


@settings(max_examples=examples(5))
@given(steps=STEPS, days=st.integers(0, 12), copied=st.booleans(), short=st.booleans())
def test_histories(
    pylance: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[str],
    days: int,
    copied: bool,
    short: bool,
) -> None:
    place = tmp_path_factory.mktemp("history") / "t"
    clones = build(pylance, place, steps)
    times = age(place, 30, manifests=not copied)
    old, young = plant(place, 29, orphans_of_every_kind("a")), plant(place, 1, orphans_of_every_kind("b"))
    foreign = plant(place, 50, foreign_of_every_kind())
    dataset = pylance.dataset(str(place))
    pinned = {tag["version"] for tag in dataset.tags.list().values()}
    pinned |= {branch["parent_version"] for branch in dataset.branches.list().values()}
    newest = max(times)
    retention = 0 if short else 14 * DAY
    now = clock() - 30 * DAY + days * DAY + 1000 + retention
    cutoff = now - retention
    # By the rule, from what pylance says and not from our own manifests.
    kept = {version for version in times if version == newest or version in pinned or times[version + 1] >= cutoff}
    others = [*place.glob("tree/*"), *clones]
    before = {version: rows(pylance, place, version) for version in kept}
    before_others = [rows(pylance, other) for other in others]

    guarded = opened(place).protecting([str(clone) for clone in clones])
    arguments: dict[str, Any] = {"retention": retention, "allow_short_retention": short, "now": now}
    dry = guarded.vacuum(VacuumRequest(dry_run=True, **arguments))
    everything = files(place)
    result = guarded.vacuum(VacuumRequest(**arguments))
    assert result.expired == dry.expired
    assert files(place) == everything - gone(result)

    dataset = pylance.dataset(str(place))
    assert {each["version"] for each in dataset.version_refs()} == kept
    assert {version: rows(pylance, place, version) for version in kept} == before
    assert [rows(pylance, other) for other in others] == before_others
    dataset.validate()
    orphans_go = clock() - 29 * DAY < now - max(retention, 7 * DAY)
    assert bool(files(place) & old) != orphans_go
    assert files(place) >= young | foreign
    needed_elsewhere = set().union(*(used_by(pylance, other, place) for other in others))
    left = files(place) - foreign - young - old
    assert left == named_by(dataset) | needed_elsewhere


def used_by(pylance: ModuleType, other: Path, place: Path) -> set[str]:
    """Files of the table that a branch or a clone names, by pylance; which leaves indices out of its list there."""
    dataset = pylance.dataset(str(other))
    tracked = dataset.tracked_files().read_all().to_pylist()
    indices = {segment.uuid for index in dataset.describe_indices() for segment in index.segments}
    shared = {str(path.relative_to(place)) for uuid in indices for path in (place / f"_indices/{uuid}").glob("*")}
    return {each["path"] for each in tracked if Path(each["base_uri"]) == place} | shared


def test_what_killed_writers_left_staged_in_refs_goes(pylance: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "t"
    dataset = pylance.write_dataset(pa.table({"id": [1]}), str(place))
    dataset.tags.create("keep", 1)
    now = clock()
    times = {
        "_refs/tags/keep.json#1": now - 30 * DAY,
        "_refs/branches/dev.json#7": now - 30 * DAY,
        "_refs/tags/young.json#1": now - DAY,
        "_refs/tags/notes#1": now - 30 * DAY,
        "_refs/tags/keep.json": now - 30 * DAY,
    }
    for path, at in times.items():
        (place / path).parent.mkdir(exist_ok=True)
        (place / path).touch()
        os.utime(place / path, (at / 1000, at / 1000))
    table = LanceTable(Storage(str(place)))
    left = list(times)[:2]
    assert gone(table.vacuum(VacuumRequest(now=now))) == set(left)
    assert [path for path in times if not (place / path).exists()] == left
    assert list(table.tags()) == ["keep"]


# -- object storage ------------------------------------------------------------------------------------------------


def test_in_object_storage(pylance: ModuleType, s3: tuple[str, dict[str, str]]) -> None:
    uri, options = s3
    place = f"{uri}/cleanup/t"
    dataset = pylance.write_dataset(pa.table({"id": range(100)}), place, max_rows_per_file=50, storage_options=options)
    for number in range(4):
        dataset.delete(
            f"id = {number}",
        )
    dataset.tags.create("keep", 2)
    branch = dataset.create_branch("dev", 3, storage_options=options)
    branch.delete("id = 50")
    clone = dataset.shallow_clone(f"{uri}/cleanup/c", 4, storage_options=options)
    before = [each.to_table() for each in (dataset, branch, clone)]
    storage = Storage(place, options)
    table = LanceTable(storage).protecting([f"{uri}/cleanup/c"])
    assert table.vacuum().expired.files == ()
    now = clock() + 100 * DAY
    dry = table.vacuum(VacuumRequest(now=now, dry_run=True))
    result = table.vacuum(VacuumRequest(now=now))
    assert result.expired == dry.expired
    assert gone(result) & manifests(*range(1, 6)) == manifests(1, 4)
    assert not any(storage.exists(path) for path in gone(result))
    places = [(place, 5), (place, ("dev", None)), (f"{uri}/cleanup/c", clone.version)]
    assert [
        pylance.dataset(each, storage_options=options).checkout_version(version).to_table() for each, version in places
    ] == before
