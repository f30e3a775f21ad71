"""Vacuum of Paimon tables: which files go, which stay, why, and what stops it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import sampled
from golden_tables import names_in
from support.avro_files import avro_file
from support.paimon_lake import DAY, HOUR, Lake, before_each_call, entry_schema, gone, lake
from support.paimon_writer import DataFile, index_schema, list_schema, optional
from support.places import GOLDEN

from dv_maintenance.cli import main
from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    DvMaintenanceError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
    VerificationError,
)
from dv_maintenance.files.avro.container import read_records, writer_schema
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumGuard, VacuumRequest
from dv_maintenance.tables.paimon.table import PaimonTable
from dv_maintenance.tables.paimon.vacuum import decision, reached
from dv_maintenance.tables.paimon.vacuum import run as vacuum
from dv_maintenance.tables.paimon.vacuum.expiry import AMONG_THE_NEWEST, CONSUMED, CURRENT, RECENT, SHOWN
from dv_maintenance.tables.paimon.vacuum.files import file_kind
from dv_maintenance.tables.paimon.vacuum.holders import Branch, Ref, moved
from dv_maintenance.tables.reach.needed import Needed

TABLES = names_in("paimon", (path.parent.parent.name for path in GOLDEN.glob("paimon/*/table/snapshot")))
UUID = "00000000-dead-4000-8000-00000000000"


def millis() -> int:
    return time.time_ns() // 1_000_000


def set_options(place: Path, **options: str) -> None:
    newest = max((place / "schema").glob("schema-*"))
    body = json.loads(newest.read_text())
    body["options"] |= {name.replace("__", "-").replace("_", "."): value for name, value in options.items()}
    newest.write_text(json.dumps(body))


def snapshots(result: Any) -> list[int]:
    prefix = "snapshot/snapshot-"
    return sorted(int(path.removeprefix(prefix)) for path in gone(result) if path.startswith(prefix))


# -- golden tables ------------------------------------------------------------------------------------------------


def records(place: Path, name: str) -> list[Any]:
    data = (place / "manifest" / name).read_bytes()
    fields = [each["name"] for each in writer_schema(data)["fields"]]
    return list(read_records(data, dict.fromkeys(fields)))


def first_manifest(table: Lake, ref: str) -> str:
    body = table.body(ref)
    lists = [records(table.path, body[name]) for name in ("deltaManifestList", "baseManifestList")]
    return str(next(record for each in lists for record in each)["_FILE_NAME"])


def referenced(place: Path) -> set[str]:
    """Names of the files that snapshots and tags need, straight from their manifests."""

    found = set()
    for path in (*place.glob("snapshot/snapshot-*"), *place.glob("tag/tag-*")):
        body = json.loads(path.read_text())
        lists = [body["baseManifestList"], body["deltaManifestList"]]
        manifests = [record["_FILE_NAME"] for name in lists for record in records(place, name)]
        live: Counter[Any] = Counter()
        for record in (record for name in manifests for record in records(place, name)):
            file = record["_FILE"]
            live[record["_PARTITION"], file["_LEVEL"], file["_FILE_NAME"]] += 1 - 2 * record["_KIND"]
        found |= {*lists, *manifests, *(key[2] for key, count in live.items() if count > 0)}
        if body.get("indexManifest"):
            found |= {body["indexManifest"], *(each["_FILE_NAME"] for each in records(place, body["indexManifest"]))}
    return found


def observed(place: Path) -> list[Any]:
    """Health of the newest snapshot and of every tag, and the rows where they can be read."""
    table = open_table(str(place))
    assert isinstance(table, PaimonTable)
    found: list[Any] = []
    for version in (None, *(tag.snapshot.id for tag in table.tags().values())):
        report = health(table.snapshot(version)).to_json()
        del report["warnings"]
        found.append(report)
        try:
            rows = [row for batch in read(table, version)[1] for row in batch.to_pylist()]
        except RefusedError:
            continue
        found.append(sorted(rows, key=repr))
    return found


@pytest.mark.parametrize("name", sampled(TABLES, 3))
def test_golden(name: str, golden_copy: Callable[[str], Path]) -> None:
    """Down to one snapshot, by Paimon's rule; then there is nothing but what that one and the tags need."""
    place = golden_copy(f"paimon/{name}/table")
    set_options(place, snapshot_num__retained_min="1")
    before = observed(place)
    now = millis() + 10 * DAY
    table = open_table(str(place))
    dry = table.vacuum(VacuumRequest(now=now, dry_run=True))
    result = table.vacuum(VacuumRequest(now=now))
    assert (result.expired, result.deleted) == (dry.expired, len(gone(dry)))
    assert observed(place) == before
    assert [path.name for path in place.glob("snapshot/snapshot-*")] == [f"snapshot-{table.version()}"]
    files = {path.name for path in place.rglob("*") if path.is_file() and path.parent.name not in ("schema", "tag")}
    assert files == referenced(place) | {f"snapshot-{table.version()}", "LATEST", "EARLIEST"}
    assert (place / "snapshot/EARLIEST").read_text() == str(table.version())
    for lite in (False, True):
        assert table.vacuum(VacuumRequest(now=now, lite=lite)).expired.files == ()


def test_orphans_as_paimons_own_cleaner_names_them(golden_copy: Callable[[str], Path]) -> None:
    place = golden_copy("paimon/append_dv_orphans/table")
    orphans = json.loads((GOLDEN / "paimon/append_dv_orphans/expected.json").read_text())["orphans"]
    now = millis()
    for path in orphans:
        os.utime(place / path, (now / 1000 - 5 * 86400,) * 2)
    table = open_table(str(place))
    before = observed(place)
    assert table.vacuum(VacuumRequest(lite=True, dry_run=True)).expired.files == ()
    dry = table.vacuum(VacuumRequest(dry_run=True))
    assert sorted(gone(dry)) == orphans
    assert Counter(file.kind for file in dry.expired.files) == {"data": 1, "index": 1, "other": 3}
    # Less than five days, by the retention that is asked for.
    young = table.vacuum(VacuumRequest(retention=6 * DAY, dry_run=True))
    assert (young.expired.files, young.expired.kept[vacuum.YOUNG]) == ((), 5)
    table.vacuum()
    assert not any((place / path).exists() for path in orphans)
    assert observed(place) == before


def test_on_the_command_line(golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    place = golden_copy("paimon/append_dv_compacted/table")
    set_options(place, snapshot_num__retained_min="1", snapshot_time__retained="1 ms")
    before = sorted(str(path) for path in place.rglob("*"))
    assert main(["vacuum", str(place), "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sorted(str(path) for path in place.rglob("*")) == before
    counts = ("version_files", "data_files", "dv_files", "change_files", "index_files", "other_files", "deleted")
    assert [report[each] for each in counts] == [7, 6, 1, 0, 0, 15, 0]
    assert len(report["paths"]) == 29
    assert report["bytes"] == sum((place / path).stat().st_size for path in report["paths"])
    assert report["kept"] == {CURRENT: 12}
    assert main(["vacuum", str(place), "--retention", "0s"]) == 3
    assert "give --allow-short-retention" in capsys.readouterr().err
    assert main(["vacuum", str(place)]) == 0
    assert "6 data, 1 DV, 7 version, 15 other" in capsys.readouterr().out


# -- which snapshots go -------------------------------------------------------------------------------------------


def test_what_a_run_may_delete(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    table.compact([table.add_file() for _ in range(3)])
    before = table.everything()
    with pytest.raises(RefusedError, match="max_deleted_share allows 10%"):
        table.vacuum(guard=VacuumGuard(0.1))
    with pytest.raises(RefusedError, match="consumer-id"):
        table.vacuum(guard=VacuumGuard(streams=("somewhere",)))
    assert table.everything() == before
    assert "max_deleted_share" in (table.vacuum(guard=VacuumGuard(0.1), dry_run=True).refused or "")
    assert table.vacuum(guard=VacuumGuard(1)).deleted > 0


def test_a_snapshot_goes_by_how_long_it_has_been_superseded(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    for _ in range(5):
        table.add_file()
    # The fourth was committed a second before the fifth, and was the newest until then.
    assert snapshots(table.vacuum(now=table.now + HOUR, dry_run=True)) == [1, 2, 3]
    assert snapshots(table.vacuum(now=table.now + HOUR + 1, dry_run=True)) == [1, 2, 3, 4]
    result = table.vacuum(now=table.now + HOUR - 1000, dry_run=True)
    assert snapshots(result) == [1, 2]
    assert (result.expired.cutoff, result.expired.retention) == (table.now - 1000, HOUR)
    assert result.expired.kept[RECENT] == 2 * 3


def test_how_many_are_retained(tmp_path: Path) -> None:
    table = lake(tmp_path / "t", options={"snapshot.num-retained.min": "2", "snapshot.num-retained.max": "3"})
    for _ in range(6):
        table.add_file()
    assert snapshots(table.vacuum(dry_run=True)) == [1, 2, 3, 4]
    # Too many for the table, however young; who asks for a time has them kept for that.
    assert snapshots(table.vacuum(now=table.now, dry_run=True)) == [1, 2, 3]
    assert snapshots(table.vacuum(now=table.now, retention=HOUR, dry_run=True)) == []
    result = table.vacuum(retention=0, allow_short_retention=True)
    assert snapshots(result) == [1, 2, 3, 4]
    assert {CURRENT, AMONG_THE_NEWEST} == set(result.expired.kept)


def test_consumers_and_tags(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    files = [table.add_file() for _ in range(3)]
    table.compact(files)
    table.add_file()
    table.tag("keep", 2)
    table.consume("c", 4)
    result = table.vacuum()
    assert snapshots(result) == [1, 2, 3]
    assert set(result.expired.kept) == {CURRENT, CONSUMED, decision.TAGGED}
    assert (table.path / "bucket-0" / files[1].name).exists()
    assert not (table.path / "bucket-0" / files[2].name).exists()
    table.check()
    table.untag("keep")
    table.consume("c", 5)
    table.vacuum(lite=True)
    # What only the tag needed is nobody's any more, and was no expired snapshot's.
    assert (table.path / "bucket-0" / files[1].name).exists()
    assert not (table.path / "bucket-0" / files[1].name).exists() if table.vacuum().deleted else False
    assert table.stored() == table.root_needs()


def test_branches(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    files = [table.add_file() for _ in range(3)]
    branch = table.branch_off("b", 2)
    assert branch is not None
    branch.compact(files[:2])
    branch.add_file()
    table.compact(files)
    assert set(table.vacuum().expired.kept) == {CURRENT, decision.BRANCHED}
    table.check()
    assert branch.numbers() == [2, 3, 4]
    tmp = f"branch/branch-b/snapshot/.snapshot-9.{UUID}1.tmp"
    branch.put(tmp.removeprefix("branch/branch-b/"), b"")
    # The branch is a table of its own; files that nothing needs are found by a vacuum of the table itself.
    branch.put(f"manifest/manifest-{UUID}2-0", b"orphan")
    result = branch.vacuum(now=branch.now + 2 * DAY)
    assert {path for path in gone(result) if path.startswith("branch")} == {
        "branch/branch-b/snapshot/snapshot-2", "branch/branch-b/snapshot/snapshot-3", tmp
    }  # fmt: skip
    assert (table.path / "bucket-0" / files[0].name).exists() is False
    assert (branch.numbers(), (table.path / "branch/branch-b/snapshot/EARLIEST").read_text()) == ([4], "4")
    assert gone(table.vacuum(now=branch.now + 2 * DAY)) == {f"manifest/manifest-{UUID}2-0"}
    table.check()


def test_tags_of_branches(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    files = [table.add_file() for _ in range(2)]
    branch = table.branch_off("b", 2)
    assert branch is not None
    branch.tag("of_branch", 2)
    branch.compact(files)
    branch.expire(1)
    table.compact(files)
    table.add_file()
    assert snapshots(table.vacuum()) == [1, 2, 3]
    table.check()
    assert (table.path / "bucket-0" / files[0].name).exists()


# -- which files go -----------------------------------------------------------------------------------------------


def test_files_of_every_kind(tmp_path: Path) -> None:
    columns = {"id": "BIGINT", "day": "DATE", "p": "STRING"}
    table = lake(tmp_path / "t", columns=columns, partition_keys=["day", "p"])
    first = table.add_file((19_000, "a b/c"), extra=2)
    table.put("day=19000/p=a b%2Fc/bucket-0/x", b"")
    for name in first.name, *dict(first.entry)["_EXTRA_FILES"]:
        (table.path / "day=19000/p=a b/c/bucket-0" / name).rename(table.path / "day=19000/p=a b%2Fc/bucket-0" / name)
    index, other = table.name("index"), f"btree-global-index-{UUID}7.index"
    for name in (index, other):
        table.put(f"index/{name}", b"x")
    table.write_index([
        table.index_entry(index, None, (19_000, "a b/c"), _INDEX_TYPE="HASH"),
        table.index_entry(other, None, (19_000, "a b/c"), _INDEX_TYPE="btree"),
    ])  # fmt: skip
    table.commit("APPEND")
    second = table.add_file((None, ""), bucket=-2)
    (table.path / "day=None").rename(table.path / "day=__DEFAULT_PARTITION__")
    (table.path / "day=__DEFAULT_PARTITION__/p=").rename(
        table.path / "day=__DEFAULT_PARTITION__/p=__DEFAULT_PARTITION__"
    )
    bucket = table.path / "day=__DEFAULT_PARTITION__/p=__DEFAULT_PARTITION__/bucket--2"
    bucket.rename(bucket.with_name("bucket-postpone"))
    table.mark(first, 1)
    change = table.new_file((19_001, "z"), kind="changelog")
    manifest, changes = table.manifest([table.entry(0, change)]), table.name("manifest-list")
    table.put_avro(changes, list_schema(table.writer), [manifest])
    table.commit("APPEND", changelogManifestList=changes)
    table.analyze()
    table.merge_manifests()
    table.write_index([])
    table.dvs.clear()
    table._index = None
    table.commit("OVERWRITE", delete=[first, second])
    table.merge_manifests()
    table.commit("COMPACT")
    table.commit("COMPACT")
    lite = table.vacuum(lite=True, dry_run=True)
    result = table.vacuum()
    assert gone(lite) <= gone(result)
    assert any(path.startswith("statistics/") for path in gone(lite))
    kinds = Counter(file.kind for file in lite.expired.files)
    assert {kind: kinds[kind] for kind in ("data", "change", "dv", "index", "manifest")} == {
        "data": 4, "change": 1, "dv": 1, "index": 2, "manifest": 8
    }  # fmt: skip
    places = {path for path in gone(lite) if "bucket" in path}
    assert {path.rpartition("/")[0] for path in places} == {
        "day=19000/p=a b%2Fc/bucket-0",
        "day=__DEFAULT_PARTITION__/p=__DEFAULT_PARTITION__/bucket-postpone",
        "day=19001/p=z/bucket-0",
    }
    # What is not named as Paimon names its files was not touched.
    assert [str(path.relative_to(table.path)) for path in table.path.rglob("bucket*/*")] == [
        "day=19000/p=a b%2Fc/bucket-0/x"
    ]


def test_statistics_stay_with_their_snapshot(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    table.add_file()
    table.analyze()
    assert snapshots(table.vacuum()) == [1]
    table.check()
    assert len(list((table.path / "statistics").iterdir())) == 1


def test_a_file_that_changed_its_level_is_the_same_file(tmp_path: Path) -> None:
    table = lake(tmp_path / "t", primary_keys=["id"], options={"bucket": "1"})
    file = table.add_file()
    table.upgrade(file)
    # It is in both snapshots, and the report names the newest one.
    assert table.vacuum(now=table.now, dry_run=True).expired.kept == {CURRENT: 6, RECENT: 3}
    table.compact(list(table.files.values()))
    table.add_file()
    paths = [each.path for each in table.vacuum(dry_run=True).expired.files]
    assert paths.count(f"bucket-0/{file.name}") == 1
    assert len(set(paths)) == len(paths)
    table.add_file()
    result = table.vacuum()
    assert (result.deleted, set(result.expired.kept)) == (len(gone(result)), {CURRENT})
    table.check()


def test_a_delete_entry_without_its_add_deletes_nothing(tmp_path: Path) -> None:
    """The same name on another level, which readers do not mind."""
    table = lake(tmp_path / "t", primary_keys=["id"], options={"bucket": "1"})
    file = table.add_file()
    table.commit("COMPACT", delete=[DataFile(file.name, 10, level=7)])
    table.files[file.key] = file
    table.add_file()
    table.vacuum()
    table.check()
    assert (table.path / "bucket-0" / file.name).exists()


def test_a_file_that_was_added_twice_stays(tmp_path: Path) -> None:
    """As damage has it: deleted once, it is still there once."""
    table = lake(tmp_path / "t")
    file = table.add_file()
    table.commit("APPEND", add=[file])
    table.commit("COMPACT", delete=[file])
    table.add_file()
    with pytest.raises(DamagedTableError, match="added twice"):
        table.vacuum()
    assert (table.path / "bucket-0" / file.name).exists()


def test_index_files_in_buckets(tmp_path: Path) -> None:
    table = lake(tmp_path / "t", options={"index-file-in-data-file-dir": "true", "data-file.path-directory": "data"})
    file = table.add_file()
    table.mark(file, 1)
    (table.path / "data").mkdir()
    (table.path / "bucket-0").rename(table.path / "data/bucket-0")
    for path in table.path.glob("index/*"):
        path.rename(table.path / "data/bucket-0" / path.name)
    table.commit("OVERWRITE", delete=[file])
    table.dvs.clear()
    table._index = None
    table.merge_manifests()
    table.commit("OVERWRITE")
    result = table.vacuum(lite=True)
    kinds = Counter(file.kind for file in result.expired.files)
    assert (kinds["data"], kinds["dv"]) == (1, 1)
    assert list((table.path / "data/bucket-0").iterdir()) == []


def test_files_outside_of_the_table(tmp_path: Path) -> None:
    """They go only where the table's options say that it has files: nothing else vouches for a path."""
    own, foreign = tmp_path / "own dir", tmp_path / "foreign"
    options = {"data-file.external-paths": f"file://{tmp_path}/x,{own}"}
    table = lake(tmp_path / "t", options=options)
    places = []
    for folder in (own / "bucket-0", foreign, own / "../foreign", tmp_path / "t/schema"):
        folder.mkdir(parents=True, exist_ok=True)
        file = table.new_file()
        (folder / file.name).write_bytes(b"x")
        (table.path / "bucket-0" / file.name).unlink()
        places.append(folder / file.name)
        path = f"{folder}/{file.name}"
        outside = type(file)(file.name, 10, entry=(("_EXTERNAL_PATH", path),))
        table.commit("APPEND", add=[outside])
    named_otherwise = type(file)(table.new_file().name, 10, entry=(("_EXTERNAL_PATH", f"{own}/other"),))
    (own / "other").write_bytes(b"x")
    table.commit("APPEND", add=[named_otherwise])
    table.commit("OVERWRITE", delete=list(table.files.values()))
    table.commit("COMPACT")
    result = table.vacuum(lite=True)
    assert [place.exists() for place in places] == [False, True, True, True]
    assert (own / "other").exists()
    assert result.expired.kept[reached.OUTSIDE] == 4


def test_files_that_are_not_orphans(tmp_path: Path) -> None:
    table = lake(tmp_path / "t", columns={"id": "BIGINT", "p": "STRING"}, partition_keys=["p"])
    table.add_file(("a",))
    table.add_file(("a",))
    left = [
        f"data-{UUID}1-0.parquet", f"bucket-0/data-{UUID}1-0.parquet", f"p=a/data-{UUID}1-0.parquet",
        f"p=a/bucket-0/sub/data-{UUID}1-0.parquet", f"q=a/bucket-0/data-{UUID}1-0.parquet",
        f"p=a/bucket-x/data-{UUID}1-0.parquet", f"p=a/q=b/bucket-0/data-{UUID}1-0.parquet",
        f"manifest/sub/manifest-{UUID}1-0", "manifest/notes.txt", "index/index-1", "statistics/mine",
        "p=a/bucket-0/_SUCCESS", f"p=a/bucket-0/blob-{UUID}1-0.managed.blob",
        f"p=a/bucket-0/data-{UUID}1-0.parquet.bak",
        f"schema/schema-{UUID}1", f"service/{UUID}1", f"consumer/{UUID}1", f"tag/{UUID}1", f"changelog/{UUID}1",
        f"branch/{UUID}1", f"other/data-{UUID}1-0.parquet", "snapshot/snapshot-x",
    ]  # fmt: skip
    went = [
        f"p=a/bucket-0/data-{UUID}1-0.parquet", f"p=a/bucket-0/data-{UUID}1-0.parquet.index",
        f"p=b/bucket-7/data-{UUID}2-3.zstd.orc", f"p=b/bucket-postpone/mine-u-x-s-1-w-{UUID}3-0.avro",
        f"p=b/bucket-0/index-{UUID}4-0", f"p=b/bucket-0/changelog-{UUID}5-0.parquet", f"index/index-{UUID}6-0",
        f"index/btree-global-index-{UUID}7.index", f"statistics/stat-{UUID}8-0", f"statistics/stats-{UUID}8-1",
        f"manifest/manifest-{UUID}9-0", f"manifest/manifest-list-{UUID}9-0", f"manifest/index-manifest-{UUID}9",
        f"manifest/.manifest-{UUID}9-0.crc", f"snapshot/.snapshot-3.{UUID}1.tmp", "snapshot/.snapshot-1.crc",
    ]  # fmt: skip
    own = "snapshot/.snapshot-2.crc"
    for path in [*left, *went, own]:
        table.put(path, b"?")
    young = f"p=a/bucket-0/data-{UUID}8-0.parquet"
    table.now += DAY
    table.put(young, b"?")
    table.now -= DAY
    result = table.vacuum()
    assert gone(result) >= {*went, "snapshot/snapshot-1"}
    files = {str(path.relative_to(table.path)) for path in table.path.rglob("*") if path.is_file()}
    assert files >= {*left, own, young}
    assert not files & set(went)
    assert result.expired.kept[vacuum.YOUNG] == 1
    assert result.expired.kept[vacuum.FOREIGN] == 6
    (table.path / "snapshot/snapshot-x").unlink()
    table.check()


@pytest.mark.parametrize(
    ("folder", "name", "kind"),
    [
        ("bucket", f"data-{UUID}1-0.parquet", "data"),
        ("bucket", f"data-{UUID}1-0-2.index", "data"),
        ("bucket", f"data-{UUID}1-0.blob", "data"),
        ("bucket", f"data-{UUID}1-0.managed.blob", None),
        ("bucket", f".data-{UUID}1-0.parquet.crc", "other"),
        ("bucket", f"changelog-{UUID}1-0.orc", "change"),
        ("bucket", "data-1.parquet", None),
        ("manifest", f"index-manifest-{UUID}1-0", "other"),
        ("manifest", f"data-{UUID}1-0.parquet", None),
        ("index", f"index-{UUID}1-0", "index"),
        ("snapshot", "LATEST", None),
        ("snapshot", "snapshot-7", None),
        ("snapshot", f".snapshot-7.{UUID}1.tmp", "other"),
        ("snapshot", "LATEST#1", "other"),
        ("manifest", f"manifest-{UUID}1-0#1", "other"),
        ("index", "mine#1", None),
    ],
)
def test_kinds_by_name(folder: str, name: str, kind: str | None) -> None:
    assert file_kind(folder, name) == kind


def test_a_table_that_nobody_wrote_to(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    table.new_file()
    result = table.vacuum(now=table.now + 9 * DAY)
    assert (result.expired.files, result.expired.kept, result.version_after) == ((), {vacuum.NO_SNAPSHOT: 1}, 0)


def test_manifests_are_read_once(tmp_path: Path) -> None:
    table = lake(tmp_path / "t")
    for _ in range(12):
        table.add_file()
    table.tag("t", 5)
    read: Counter[str] = Counter()

    def note(_: int, name: str, path: Any) -> None:
        if name == "get":
            read[path] += 1

    with before_each_call(note):
        table.vacuum(dry_run=True)
    assert max(read.values()) == 1
    assert len([path for path in read if path.startswith("manifest/manifest-0")]) == 12


# -- what stops it ------------------------------------------------------------------------------------------------


def stopped(table: Lake, error: type[DvMaintenanceError], match: str, **options: Any) -> DvMaintenanceError:
    before = table.everything()
    with pytest.raises(error, match=match) as caught:
        table.vacuum(**options)
    assert table.everything() == before
    assert (caught.value.table is not None, caught.value.done) == (True, None)
    assert caught.value.next_step or "format-table" in match
    return caught.value


@pytest.fixture
def table(tmp_path: Path) -> Lake:
    """Four snapshots, of which three can go; a tag, a branch, and a file that nothing needs."""
    found = lake(tmp_path / "t")
    files = [found.add_file() for _ in range(2)]
    found.tag("t", 1)
    branch = found.branch_off("b", 2)
    assert branch is not None
    found.mark(files[0], 1)
    found.compact(files)
    found.put(f"manifest/manifest-{UUID}1-0", b"orphan")
    return found


@pytest.mark.parametrize("which", ["newest", "tag", "branch", "expired"])
@pytest.mark.parametrize("part", ["ref", "list", "manifest"])
def test_damage_stops_it(table: Lake, which: str, part: str) -> None:
    ref = {
        "newest": "snapshot/snapshot-4", "tag": "tag/tag-t", "branch": "branch/branch-b/snapshot/snapshot-2",
        "expired": "snapshot/snapshot-3",
    }[which]  # fmt: skip
    name = table.body(ref)["deltaManifestList"] if part != "manifest" else None
    if part == "manifest":
        name = first_manifest(table, ref)
    path = ref if part == "ref" else f"manifest/{name}"
    (table.path / path).write_bytes(b"{")
    stopped(table, DamagedTableError, path)


@pytest.mark.parametrize("which", ["list", "manifest", "index"])
def test_what_a_kept_snapshot_lacks_stops_it(table: Lake, which: str) -> None:
    body = table.body("snapshot/snapshot-4")
    name = {"list": body["baseManifestList"], "index": body["indexManifest"], "manifest": None}[which]
    if name is None:
        name = first_manifest(table, "snapshot/snapshot-4")
    (table.path / "manifest" / name).unlink()
    stopped(table, DamagedTableError, f"snapshot/snapshot-4 needs manifest/{name}, which does not exist")


def test_what_an_expired_snapshot_lacks_does_not(table: Lake) -> None:
    table.lakes.clear()
    shutil.rmtree(table.path / "branch")
    for number in (2, 3):
        (table.path / "manifest" / table.body(f"snapshot/snapshot-{number}")["deltaManifestList"]).unlink()
    table.vacuum()
    table.check()


def test_lists_of_changes_may_be_missing(tmp_path: Path) -> None:
    """Paimon deletes them with their snapshot, though a tag names them."""
    table = lake(tmp_path / "t")
    table.add_with_changelog()
    table.tag("t", 1)
    table.add_file()
    name = table.body("snapshot/snapshot-1")["changelogManifestList"]
    (table.path / "manifest" / name).unlink()
    assert snapshots(table.vacuum()) == [1]


def rewrite(table: Lake, name: str, schema: Any, **values: Any) -> None:
    """The first record of an Avro file has other fields."""
    changed = [{**record, **values} for record in records(table.path, name)]
    (table.path / "manifest" / name).write_bytes(avro_file(schema, changed))


def with_field(schema: Any, name: str, kind: Any) -> Any:
    return {**schema, "fields": [*schema["fields"], {"name": name, "type": kind}]}


@pytest.mark.parametrize("kind", ["list", "entry", "index"])
@pytest.mark.parametrize("change", ["version", "text", "files", "number"])
def test_what_is_not_known(table: Lake, kind: str, change: str) -> None:
    body = table.body("snapshot/snapshot-4")
    schema = {"list": list_schema, "entry": entry_schema, "index": index_schema}[kind](table.writer)
    name = {"list": body["deltaManifestList"], "index": body["indexManifest"], "entry": None}[kind]
    if name is None:
        name = first_manifest(table, "snapshot/snapshot-4")
    if kind == "index":
        table.dvs = {}
        entry = table.index_entry("index-1", None)
        (table.path / "manifest" / name).write_bytes(avro_file(schema, [entry]))
    if change == "version":
        rewrite(table, name, schema, _VERSION=9)
        error = stopped(table, UnsupportedFeatureError, f"{name}: it has format version 9")
        assert error.exit_code == 3
        return
    types = {"text": optional("string"), "files": {"type": "array", "items": "string"}, "number": optional("long")}
    rewrite(
        table, name, with_field(schema, "_NEW", types[change]), _NEW={"text": "x", "files": [], "number": 1}[change]
    )
    if change == "number":
        table.vacuum()
    else:
        stopped(table, UnsupportedFeatureError, f"{name}: it has a field _NEW that this release does not know")


@pytest.mark.parametrize("path", ["snapshot/snapshot-1", "snapshot/snapshot-4", "tag/tag-t"])
def test_fields_of_snapshots_that_are_not_known(table: Lake, path: str) -> None:
    table.change(path, newNumber=7, newText="x", newFlags=[True, {"a": "b"}])
    table.vacuum(dry_run=True)
    table.change(path, newList=[{"name": f"manifest-list-{UUID}1-0"}])
    assert stopped(table, UnsupportedFeatureError, f"{path} has a field 'newList'").to_json()["features"] == ["newList"]
    table.change(path, newList=None, version=4)
    stopped(table, UnsupportedFeatureError, "format version 4")


def test_gaps_and_hints_without_snapshots(table: Lake) -> None:
    body = (table.path / "snapshot/snapshot-2").read_bytes()
    (table.path / "snapshot/snapshot-2").unlink()
    stopped(table, DamagedTableError, "snapshot/snapshot-2 is missing, which leaves a gap")
    (table.path / "snapshot/snapshot-2").write_bytes(body)
    for path in table.path.glob("snapshot/snapshot-*"):
        path.unlink()
    stopped(table, DamagedTableError, "snapshot has a hint, but no snapshot")


def test_branches_with_unknown_needs_stop_it(table: Lake) -> None:
    (table.path / "branch/branch-new/tag").mkdir(parents=True)
    stopped(table, DamagedTableError, "neither schemas nor snapshots")
    (table.path / "branch/branch-new/tag").rmdir()
    (table.path / "branch/branch-new").rmdir()
    (table.path / "branch/branch-b").rename(table.path / "elsewhere")
    (table.path / "branch/branch-b").symlink_to(table.path / "elsewhere")
    with pytest.raises(RefusedError, match="symbolic link"):
        table.vacuum()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"changelog.time-retained": "ever"}, "changelog.time-retained"),
        ({"type": "format-table"}, "format-table"),
        ({"data-file.path-directory": "../other"}, "points outside the table"),
        ({"snapshot.time-retained": "soon"}, "'soon' is not a duration"),
    ],
)
def test_options_that_stop_it(table: Lake, options: dict[str, str], match: str) -> None:
    table.options = {**table.options, **options}
    table.write_schema()
    stopped(table, RefusedError, match)
    with pytest.raises(RefusedError, match=match):
        vacuum.check_cleanable(table.table().layout)


def test_changelogs_of_a_branch_keep_their_files(table: Lake) -> None:
    """As an expiry leaves them: without the lists that are no longer needed."""
    branch = table.lakes["b"]
    delta = table.body("snapshot/snapshot-2")["deltaManifestList"]
    body: dict[str, Any] = {"version": 1, "id": 1, "schemaId": 0, "timeMillis": 1, "commitKind": "APPEND"}
    body |= {"deltaManifestList": delta, "baseManifestList": f"manifest-list-{UUID}9-0", "indexManifest": "gone"}
    branch.put("changelog/changelog-1", json.dumps(body).encode())
    for path in (table.path / "branch/branch-b/snapshot").iterdir():
        path.unlink()
    branch.write_schema()
    table.lakes.clear()
    result = table.vacuum()
    # Its list and its data file; the manifest is in the newest snapshot, too. Indexes are no changes.
    assert result.expired.kept[decision.CHANGELOG] == 2
    manifest = records(table.path, delta)[0]["_FILE_NAME"]
    assert (table.path / "manifest" / manifest).exists()
    table.check()


def test_the_gate_holds_if_the_plan_is_wrong(table: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the plan is wrong, nothing is deleted."""
    monkeypatch.setattr(Needed, "add", lambda *_, **__: None)
    table.put(f"bucket-0/data-{UUID}1-0.parquet", b"orphan")
    before = table.everything()
    with pytest.raises(VerificationError, match="the newest snapshot needs it"):
        table.vacuum()
    assert table.everything() == before


def test_an_entry_that_deletes_where_its_list_says_that_it_adds(table: Lake) -> None:
    """With one changed bit of a manifest, a live file seems unneeded."""
    name = first_manifest(table, "snapshot/snapshot-4")
    rewrite(table, name, entry_schema(table.writer), _KIND=1)
    stopped(table, DamagedTableError, f"{name}: it adds 0 files and deletes 3, but its list records 1 and 2")


def test_a_missing_live_file_stops_it(table: Lake) -> None:
    """It may be there under another name, if that is what is damaged."""
    (file,) = table.files.values()
    (table.path / "bucket-0" / file.name).rename(table.path / f"bucket-0/data-{UUID}1-0.parquet")
    stopped(table, DamagedTableError, f"bucket-0/{file.name}, which the newest snapshot needs, does not exist")


# -- what fails ---------------------------------------------------------------------------------------------------


def test_a_snapshot_file_that_cannot_be_deleted(table: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def refuse(place: str, aside: str) -> None:
        if place.endswith("snapshot-2"):
            raise PermissionError(13, "Permission denied")
        rename(place, aside)

    monkeypatch.setattr(os, "rename", refuse)
    before = table.stored()
    with pytest.raises(StorageError, match="storage failed on snapshot/snapshot-2: Permission denied") as caught:
        table.vacuum()
    assert "1 of" in str(caught.value)
    assert "snapshots up to 1 among them" in str(caught.value)
    assert (table.numbers(), table.stored()) == ([2, 3, 4], before)
    monkeypatch.undo()
    table.vacuum()
    table.check()
    assert table.stored() == table.root_needs()


def test_files_that_cannot_be_deleted(table: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Storage._unlink

    def refuse(self: Storage, path: str) -> int:
        if "bucket" in path or "list" in path:
            raise StorageError("storage failed")
        return unlink(self, path)

    monkeypatch.setattr(Storage, "_unlink", refuse)
    with pytest.raises(StorageError, match="storage failed") as caught:
        table.vacuum()
    assert "files deleted, snapshots up to 3 among them" in str(caught.value)
    assert table.numbers() == [4]
    table.check()


def test_a_table_that_others_expire_faster_than_it_can_be_read(table: Lake) -> None:
    def expire(_: int, name: str, path: Any) -> None:
        if name == "get" and str(path).startswith("manifest/"):
            table.compact(list(table.files.values()))
            table.expire(1)

    with before_each_call(expire), pytest.raises(ConflictError, match="while it was being vacuumed") as caught:
        table.vacuum()
    assert caught.value.done is None
    table.check()


def test_a_plan_is_repeated_when_others_expire(table: Lake) -> None:
    """With a single snapshot retained and a busy writer, each commit takes the one that was just read."""
    done = []

    def expire(_: int, name: str, path: Any) -> None:
        if name == "get" and str(path).startswith("manifest/") and not done:
            done.append(path)
            table.add_file()
            table.expire(1)

    with before_each_call(expire):
        result = table.vacuum()
    assert result.version_after == table.version == 5
    assert gone(result) >= {f"manifest/manifest-{UUID}1-0"}
    table.check()


@pytest.mark.parametrize(
    ("options", "expired"),
    [
        ({}, 4),
        ({"scan_snapshot__id": "3"}, 2),
        ({"scan_version": "3"}, 2),
        ({"scan_version": "keep"}, 4),
        ({"scan_snapshot__id": "99"}, 4),
        ({"scan_timestamp__millis": "third"}, 2),
        ({"scan_timestamp__millis": "1"}, 4),
        ({"scan_tag__name": "keep"}, 4),
        ({"scan_timestamp": "2026-01-01"}, 0),
        ({"incremental__between": "2,3"}, 0),
        ({"scan_mode": "compacted-full"}, 0),
        ({"scan_mode": "latest"}, 4),
        ({"scan_file__creation__time__millis": "1"}, 4),
    ],
)
def test_a_snapshot_that_the_options_show(tmp_path: Path, options: dict[str, str], expired: int) -> None:
    table = lake(tmp_path / "t")
    for number in range(5):
        if number == 3:
            third = table.now
        table.add_file()
    table.tag("keep", 2)
    set_options(table.path, **{name: value.replace("third", str(third + 1)) for name, value in options.items()})
    result = table.vacuum()
    assert snapshots(result) == list(range(1, expired + 1))
    assert (SHOWN in result.expired.kept) == (expired < 4)
    table.check()


def between(table: Lake, do: Callable[[], object]) -> Any:
    """Something happens between the plan and its execution: before the first read that is not the plan's."""
    reads = []

    def act(_: int, name: str, path: Any) -> None:
        if name == "folders" and path == "branch":
            reads.append(path)
            if len(reads) == 2:
                do()

    return before_each_call(act)


def test_a_consumer_meanwhile(table: Lake) -> None:
    with between(table, lambda: table.consume("c", 3)):
        result = table.vacuum()
    assert (snapshots(result), table.numbers()) == ([1, 2], [3, 4])
    assert result.expired.kept[CONSUMED] == 5
    assert result.deleted == len(gone(result))
    table.check()


def test_a_rollback_meanwhile(table: Lake) -> None:
    """It is planned again, for what is the newest snapshot now."""
    with between(table, lambda: table.rollback(3)):
        result = table.vacuum()
    assert (result.version_before, snapshots(result), table.numbers()) == (3, [1, 2], [3])
    table.check()


def test_a_rollback_and_a_commit_meanwhile(table: Lake) -> None:
    def do() -> None:
        table.rollback(2)
        table.add_file()
        table.add_file()

    with between(table, do):
        result = table.vacuum()
    # What is the fourth snapshot now is a young one.
    assert (snapshots(result), table.numbers()) == ([1, 2, 3], [4])
    table.check()


def test_how_a_branch_moves() -> None:
    def branch(first: int, last: int, mark: bytes = b"") -> Branch:
        names = (None,) * 5
        refs = {n: Ref(str(n), n, n, *names, {}, b"%d" % n + mark) for n in range(first, last + 1)}
        return Branch(refs)

    before = branch(3, 6)
    assert moved(before, before) is None
    assert moved(branch(1, 0), before) is None
    assert moved(before, branch(3, 9)) is None
    assert moved(before, branch(5, 9)) is None
    assert moved(before, branch(6, 6)) is None
    assert "the branch has no snapshot" in str(moved(before, branch(1, 0)))
    assert "rolled back" in str(moved(before, branch(3, 5)))
    assert "expired by another process" in str(moved(before, branch(7, 9)))
    assert "was replaced" in str(moved(before, branch(3, 6, b"!")))
    assert "snapshot 2 came back" in str(moved(before, branch(2, 7)))


def test_a_rollback_to_the_snapshot_that_is_deleted_last(table: Lake) -> None:
    """Both have met: it is put back, and nothing that it needs was touched."""
    before = table.stored()

    def roll_back(_: int, name: str, path: Any) -> None:
        if name == "rename" and path.endswith("snapshot-3"):
            table.rollback(3)

    with before_each_call(roll_back), pytest.raises(ConflictError, match="which has been restored") as caught:
        table.vacuum()
    assert (table.numbers(), table.stored()) == ([3], before)
    assert "2 of" in str(caught.value.done)
    table.check()


def test_a_rollback_while_snapshots_are_deleted(table: Lake) -> None:
    """None is taken any more of a history that is another one by now."""

    def roll_back(_: int, name: str, path: Any) -> None:
        if name == "rename" and path.endswith("snapshot-1"):
            table.rollback(2)
            table.add_file()

    with before_each_call(roll_back), pytest.raises(ConflictError, match="was deleted or replaced"):
        table.vacuum()
    assert table.numbers() == [2, 3]
    table.check()


def test_an_old_file_that_is_committed_at_the_last_moment(table: Lake) -> None:
    """Written long ago by a job that took its time: an orphan to anybody, until it is committed."""
    file = table.new_file()
    table.add_file()

    def commit(_: int, name: str, path: Any) -> None:
        if name == "rename" and path.endswith("snapshot-4"):
            table.commit("APPEND", add=[file])

    with before_each_call(commit):
        result = table.vacuum()
    assert f"bucket-0/{file.name}" not in gone(result)
    assert result.deleted == len(gone(result))
    table.check()


def test_in_object_storage(table: Lake, s3: tuple[str, dict[str, str]]) -> None:
    uri, options = s3
    place = f"{uri}/vacuum/db.db/t"
    storage = Storage(place, options)
    for path, data in table.everything().items():
        storage.put(path, data)
    # Everything is as young as can be there.
    now = millis() + 2 * DAY
    remote = PaimonTable(storage)
    dry = remote.vacuum(VacuumRequest(now=now, dry_run=True))
    result = remote.vacuum(VacuumRequest(now=now))
    assert (result.expired, result.deleted) == (dry.expired, len(gone(dry)))
    assert f"manifest/manifest-{UUID}1-0" in gone(result)
    table.vacuum(now=now)
    assert {info.path for info in storage.list()} == set(table.everything())
    assert remote.vacuum(VacuumRequest(now=now)).expired.files == ()
