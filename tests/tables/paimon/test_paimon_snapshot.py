"""Snapshots: golden tables by what is expected of them, others by what was written, damaged ones by the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden_tables import names_in
from support.paimon_writer import NEW, OLD, DataFile, PaimonWriter
from support.places import GOLDEN
from support.tables import paimon_table as opened

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import (
    DamagedDeletionVectorError,
    DamagedTableError,
    StorageError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.maintenance.health import health
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.model import FILES_SCHEMA
from dv_maintenance.tables.paimon.layout import Layout
from dv_maintenance.tables.paimon.rows.files import FILES
from dv_maintenance.tables.paimon.snapshot import PaimonSnapshot
from dv_maintenance.tables.paimon.table import PaimonTable
from dv_maintenance.tables.work import DvRef

EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted((GOLDEN / "paimon").glob("*/expected.json"))
}
NAMES = names_in("paimon", EXPECTED)


def dvs(table: PaimonTable, snapshot: PaimonSnapshot) -> dict[str, list[int]]:
    """Deleted positions by the name of the data file, by our own codec."""
    found = {}
    for row in snapshot.files.to_pylist():
        if row["dv_id"]:
            uri = table.storage.uri_of(row["dv_file"])
            ref = DvRef("paimon", row["deleted_rows"], row["dv_length"], uri, row["dv_offset"])
            dv = load(ref, table.storage.get_range, rows=row["physical_rows"])
            found[row["file_name"]] = dv.positions().tolist()
    return found


# -- golden -------------------------------------------------------------------------------------------------------


def judge(table: PaimonTable, snapshot: PaimonSnapshot, state: dict[str, Any]) -> None:
    rows = {row["file_name"]: row for row in snapshot.files.to_pylist()}
    assert len(rows) == snapshot.files.num_rows
    assert sorted(rows) == sorted(file["file"] for file in state["files"])
    for file in state["files"]:
        row = rows[file["file"]]
        assert row["physical_rows"] == file["row_count"]
        assert (table.storage.uri_of(row["path"]).startswith(table.uri)) == ("://" not in row["path"])
        assert table.storage.head(row["path"]).size == row["size"]
        for name in ("bucket", "level"):
            assert name not in file or row[name] == file[name]
        dv = file["dv"]
        place = (row["dv_file"], row["dv_offset"], row["dv_length"])
        assert place == ((f"index/{dv['index_file']}", dv["offset"], dv["length"]) if dv else (None, None, None))
    expected = {file["file"]: file["dv"]["deleted_positions"] for file in state["files"] if file["dv"]}
    assert dvs(table, snapshot) == expected
    counts = health(snapshot).counts
    assert (counts.files_with_dv, counts.deleted_rows) == (state["dv_count"], state["deleted_rows"])
    assert counts.live_rows == state["row_count"]


@pytest.mark.parametrize("name", NAMES)
def test_golden_tables(golden: Path, name: str) -> None:
    table = opened(golden / "paimon" / name / "table")
    expected = EXPECTED[name]
    snapshot = table.snapshot()
    assert snapshot.version == expected.get("snapshot", 4)
    assert snapshot.schema.names[: len(expected["columns"])] == expected["columns"]
    assert snapshot.files.schema.equals(FILES)
    assert snapshot.files.select(FILES_SCHEMA.names).schema.equals(FILES_SCHEMA)
    judge(table, snapshot, expected)
    for version, state in (expected.get("at_snapshot") or {}).items():
        judge(table, table.snapshot(int(version)), state)


def warned(golden: Path, name: str) -> str:
    return "\n".join(opened(golden / "paimon" / name / "table").snapshot().warnings)


def test_warnings_of_golden_tables(golden: Path) -> None:
    assert "1 file with 20 rows" in warned(golden, "pk_dv_l0_hidden")
    assert "no batch query sees them" in warned(golden, "pk_dv_l0_hidden")
    assert "data files that are not live have 1 deletion vector, the first is that of" in warned(
        golden, "append_dv_dangling_entry"
    )
    assert "4 files with more than 20% of the rows deleted" in warned(golden, "append_dv")
    assert "2 index files (668 B) are not used" in warned(golden, "append_dv")
    assert "1 file with deletion vectors that Paimon's compaction keeps" in warned(golden, "data_evolution_dv")
    assert warned(golden, "pk_dv_part") == ""


def test_snapshots_that_pile_up(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", options={"bucket": "-1"})
    for _ in range(10):
        written.commit("APPEND")
    assert not opened(written.path).snapshot().warnings
    written.commit("APPEND")
    (warning,) = opened(written.path).snapshot().warnings
    assert warning.startswith("11 snapshots are kept, the oldest of 2023-11-14T22:13:21Z")
    # An older version is looked at as it was.
    assert not opened(written.path).snapshot(11).warnings
    written.options = {"snapshot.num-retained.min": "11"}
    written.write_schema()
    assert not opened(written.path).snapshot().warnings


def test_level_0_is_known_but_no_file_of_a_reader(golden: Path) -> None:
    snapshot = opened(golden / "paimon" / "pk_dv_l0_hidden" / "table").snapshot()
    assert snapshot.hidden["level"].to_pylist() == [0]
    assert set(snapshot.files["level"].to_pylist()) == {19, 20}


@pytest.mark.parametrize("kind", ["global_index", "vector", "full_text"])
def test_other_indexes_are_no_deletion_vectors(golden: Path, tmp_path: Path, kind: str) -> None:
    archive = golden / "paimon" / "paimon_repo_resources" / "pk_global_index_golden.tar.gz"
    shutil.unpack_archive(archive, tmp_path)
    snapshot = opened(tmp_path / "default.db" / f"test_pk_{kind}_golden").snapshot()
    assert snapshot.index.files
    assert not snapshot.index.dvs
    assert snapshot.files["dv_id"].null_count == snapshot.files.num_rows > 0


# -- written ------------------------------------------------------------------------------------------------------


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": first + index, "v": f"v{first + index}"} for index in range(count)]


@pytest.fixture(params=[(OLD, 32), (NEW, 32), (NEW, 64)], ids=lambda param: f"{param[0]}-{param[1]}")
def written(request: pytest.FixtureRequest, tmp_path: Path) -> PaimonWriter:
    writer, bits = request.param
    return PaimonWriter(tmp_path / "a table", writer=writer, bits=bits)


def test_a_history(written: PaimonWriter) -> None:
    table = opened(written.path)
    first = written.append(rows_of(0, 10))
    second = written.append(rows_of(10, 5))
    written.delete({first: [1, 2, 3], second: [0]})
    written.delete({first: [9]})
    third = written.data_file(rows_of(50, 7))
    written.dvs.pop(first.key)
    written.write_index()
    written.commit("COMPACT", add=[third], delete=[first])
    states = {version: table.snapshot(version) for version in range(1, 6)}
    live = {version: health(state).counts.live_rows for version, state in states.items()}
    assert live == {1: 10, 2: 15, 3: 11, 4: 10, 5: 11}
    assert dvs(table, states[3]) == {first.name: [1, 2, 3], second.name: [0]}
    assert dvs(table, states[4]) == {first.name: [1, 2, 3, 9], second.name: [0]}
    assert dvs(table, states[5]) == {second.name: [0]}
    assert states[5].files["file_name"].to_pylist() == [second.name, third.name]
    assert table.version() == 5
    assert states[5].timestamp == written.now


def test_partitions(tmp_path: Path) -> None:
    columns = {"id": "BIGINT", "day": "DATE", "shop": "STRING"}
    written = PaimonWriter(tmp_path / "t", columns, ["day", "shop"])
    file = DataFile("data-1.parquet", 10, (19_782, "a/b"), 3)
    other = DataFile("data-1.parquet", 20, (None, ""), 3)
    written.commit("APPEND", add=[file, other])
    written.delete({file: [0, 1], other: [5]})
    snapshot = opened(written.path).snapshot()
    null = "__DEFAULT_PARTITION__"
    assert [(row["partition"], row["path"], row["deleted_rows"]) for row in snapshot.files.to_pylist()] == [
        ("day=2024-02-29/shop=a%2Fb", "day=19782/shop=a%2Fb/bucket-3/data-1.parquet", 2),
        ("day=__HIVE_DEFAULT_PARTITION__/shop=", f"day={null}/shop={null}/bucket-3/data-1.parquet", 1),
    ]
    assert [each.partition for each in health(snapshot).partitions] == [
        {"day": "2024-02-29", "shop": "a/b"},
        {"day": None, "shop": ""},
    ]
    assert snapshot.partition_columns == ("day", "shop")


def test_where_files_can_be(tmp_path: Path) -> None:
    elsewhere = (("_EXTERNAL_PATH", f"file:{tmp_path}/else where/data-2.parquet"),)
    options = {"data-file.path-directory": "data", "deletion-vectors.enabled": "true"}
    written = PaimonWriter(tmp_path / "t", options=options)
    written.commit(
        "APPEND",
        add=[
            DataFile("data-1.parquet", 1),
            DataFile("data-2.parquet", 1, entry=elsewhere),
            DataFile("d", 1, bucket=-2),
        ],
    )
    snapshot = opened(written.path).snapshot()
    assert snapshot.files["path"].to_pylist() == [
        "data/bucket-0/data-1.parquet",
        f"file://{tmp_path}/else%20where/data-2.parquet",
    ]
    assert snapshot.hidden["path"].to_pylist() == ["data/bucket-postpone/d"]


@pytest.mark.parametrize("option", ["index-file-in-data-file-dir", "external"])
def test_where_index_files_can_be(tmp_path: Path, option: str) -> None:
    written = PaimonWriter(tmp_path / "t")
    file = written.append(rows_of(0, 5))
    written.dvs[file.key] = _dv(1, 3)
    written.write_index()
    (stored,) = (written.path / "index").iterdir()
    dv = [{"f0": file.name, "f1": 1, "f2": len(stored.read_bytes()) - 9, "_CARDINALITY": None}]
    if option == "external":
        (tmp_path / "far").mkdir()
        place = shutil.move(stored, tmp_path / "far" / "index-x")
        entry = written.index_entry("index-x", dv, _EXTERNAL_PATH=f"file://{place}")
    else:
        written.options = {**written.options, option: "true"}
        written.write_schema()
        shutil.move(stored, written.path / "bucket-0" / "index-x")
        entry = written.index_entry("index-x", dv)
    written.dvs.clear()
    written.write_index([entry])
    written.commit("OVERWRITE")
    table = opened(written.path)
    assert dvs(table, table.snapshot()) == {file.name: [1, 3]}


def _dv(*positions: int) -> Any:
    return DeletionVector.from_positions(positions)


def test_the_same_file_at_another_level_or_with_an_index_is_another_entry(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t", primary_keys=["id"], columns={"id": "BIGINT NOT NULL", "v": "STRING"})
    low = DataFile("data-1.parquet", 10)
    high = DataFile("data-1.parquet", 10, level=5)
    indexed = DataFile("data-1.parquet", 10, level=5, entry=(("_EXTRA_FILES", ["data-1.index"]),))
    embedded = DataFile("data-1.parquet", 10, level=5, entry=(("_EMBEDDED_FILE_INDEX", b"xy"),))
    table = opened(written.path)
    for before, after in [(None, low), (low, high), (high, indexed), (indexed, embedded)]:
        written.commit("COMPACT", add=[after], delete=[before] if before else [])
        snapshot = table.snapshot()
        live = snapshot.hidden if after is low else snapshot.files
        assert (live["level"].to_pylist(), live["extra_files"].to_pylist()) == ([after.level], [int(after is indexed)])
        assert snapshot.files.num_rows + snapshot.hidden.num_rows == 1


def test_merge_on_read_shows_level_0(tmp_path: Path) -> None:
    columns = {"id": "BIGINT NOT NULL", "v": "STRING"}
    options = {"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}
    for number, each in enumerate([options, {}]):
        written = PaimonWriter(tmp_path / f"t{number}", columns, primary_keys=["id"], options=each)
        written.append(rows_of(0, 4))
        snapshot = opened(written.path).snapshot()
        assert (snapshot.files.num_rows, snapshot.hidden.num_rows) == (1, 0)
        assert "counted before merging" in "\n".join(snapshot.warnings)


def test_retractions_are_reported(tmp_path: Path) -> None:
    columns = {"id": "BIGINT NOT NULL", "v": "STRING"}
    written = PaimonWriter(tmp_path / "t", columns, primary_keys=["id"])
    written.append(rows_of(0, 4), level=3, _DELETE_ROW_COUNT=2)
    assert "2 of the physical rows are retractions" in "\n".join(opened(written.path).snapshot().warnings)


@pytest.mark.parametrize(("ratio", "over"), [("0.5", False), ("0.3", True), ("nonsense", True), ("7", True)])
def test_the_ratio_of_the_table(tmp_path: Path, ratio: str, over: bool) -> None:
    options = {"deletion-vectors.enabled": "true", "compaction.delete-ratio-threshold": ratio}
    written = PaimonWriter(tmp_path / "t", options=options)
    file = written.append(rows_of(0, 10))
    written.delete({file: range(5)})
    assert (
        "deleted (compaction.delete-ratio-threshold)" in "\n".join(opened(written.path).snapshot().warnings)
    ) == over


def test_an_unmatched_delete_is_reported(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t")
    written.append(rows_of(0, 3))
    written.commit("OVERWRITE", delete=[DataFile("data-9.parquet", 3)])
    snapshot = opened(written.path).snapshot()
    assert "entries of its manifests delete files that were never added: 1" in snapshot.warnings
    assert snapshot.files.num_rows == 1


def test_a_table_that_nobody_has_written_to(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t")
    table = opened(written.path)
    assert table.version() == 0
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.files.num_rows, snapshot.schema.names) == (0, 0, ["id", "v"])
    assert health(snapshot).counts.live_rows == 0
    assert table.history() == []
    assert table.changes_since(0).commits == ()
    with pytest.raises(UsageError, match="the table has no snapshot yet"):
        table.snapshot(1)


def test_the_columns_of_an_older_snapshot(tmp_path: Path) -> None:
    written = PaimonWriter(tmp_path / "t")
    written.append(rows_of(0, 2))
    written.options = {**written.options, "snapshot.num-retained.min": "3"}
    written.alter({"key": "BIGINT", "v": "STRING", "w": "INT"}, {"key": "id"})
    written.append([{"key": 1, "v": "x", "w": 5}])
    table = opened(written.path)
    assert table.snapshot(1).schema.names == ["id", "v"]
    assert table.snapshot().schema.names == ["key", "v", "w"]
    written.alter({"key": "BIGINT", "w": "INT"})
    assert (table.snapshot().schema.names, table.snapshot(2).schema.names) == (["key", "w"], ["key", "v", "w"])
    assert table.snapshot(1).properties["snapshot.num-retained.min"] == "3"


# -- finding ------------------------------------------------------------------------------------------------------


def test_no_such_snapshot(written: PaimonWriter) -> None:
    for first in range(3):
        written.append(rows_of(first, 1))
    (written.path / "snapshot/snapshot-1").unlink()
    table = opened(written.path)
    for version in (-1, 0, 1, 4):
        with pytest.raises(UsageError, match=f"no snapshot {version}.*snapshots 2 to 3 exist"):
            table.snapshot(version)


def test_neither_hints_nor_other_files_matter(written: PaimonWriter) -> None:
    for first in range(11):
        written.append(rows_of(first, 1))
    for name in [
        "snapshot-99.tmp",
        ".snapshot-12.uuid.tmp",
        "snapshot-",
        "snapshot-x",
        "snapshot-12345678901234567890",
    ]:
        written.put(f"snapshot/{name}", b"{")
    table = opened(written.path)
    for hint in (b"3", b"99", b"", b"\xff\xff"):
        written.put("snapshot/LATEST", hint)
        assert table.version() == 11
    (written.path / "snapshot/LATEST").unlink()
    assert table.snapshot().version == 11


def test_hints_in_object_storage(tmp_path: Path, s3: tuple[str, dict[str, str]]) -> None:
    written = PaimonWriter(tmp_path / "t")
    for first in range(12):
        written.append(rows_of(first, 2))
    written.delete({next(iter(written.files.values())): [0]})
    uri, options = s3
    storage = Storage(f"{uri}/{tmp_path.name}/t", options)
    for path in written.path.rglob("*"):
        if path.is_file():
            storage.put(str(path.relative_to(written.path)), path.read_bytes())
    table = open_table(storage.uri, storage_options=options)
    assert table.format == "paimon"
    for hint in (b"13", b"9", b"99", b"x"):
        storage.put("snapshot/LATEST", hint)
        assert table.version() == 13
    storage.delete(["snapshot/LATEST"])
    snapshot = table.snapshot()
    assert (snapshot.version, health(snapshot).counts.live_rows) == (13, 23)


def test_nothing_here(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        open_table(str(tmp_path))
    with pytest.raises(TableNotFoundError, match=r"no table found here \(the folder is empty"):
        open_table(str(tmp_path), "paimon").version()
    with pytest.raises(TableNotFoundError):
        open_table(str(tmp_path), "paimon").snapshot()
    # A folder of that name alone is not a table.
    (tmp_path / "schema").mkdir()
    (tmp_path / "schema" / "README").write_text("x")
    with pytest.raises(TableNotFoundError):
        open_table(str(tmp_path))


def test_a_late_listing_is_not_an_absent_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(PaimonWriter(tmp_path / "t").path)
    monkeypatch.setattr(Layout, "names", lambda self, folder: ())
    for read in (table.version, table.snapshot):
        with pytest.raises(StorageError, match="lacks an existing schema"):
            read()


# -- damage -------------------------------------------------------------------------------------------------------


@pytest.fixture
def sound(tmp_path: Path) -> PaimonWriter:
    written = PaimonWriter(tmp_path / "t")
    file = written.append(rows_of(0, 10))
    written.delete({file: [1, 2]})
    return written


def damage(written: PaimonWriter) -> DamagedTableError:
    with pytest.raises(DamagedTableError) as caught:
        opened(written.path).snapshot()
    assert caught.value.table == f"file://{written.path}"
    assert caught.value.next_step
    return caught.value


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": 7}, "holds snapshot 7"),
        ({"id": None}, "id is missing"),
        ({"id": True}, "id is not a 64-bit integer"),
        ({"schemaId": 2**64}, "schemaId is not a 64-bit integer"),
        ({"schemaId": 9}, "schema-9 does not exist"),
        ({"baseManifestList": "../x"}, "is not a file name"),
        ({"deltaManifestList": "gone"}, "manifest/gone: it does not exist"),
        ({"indexManifest": "gone"}, "manifest/gone: it does not exist"),
        ({"commitKind": None}, "commitKind is missing"),
        ({"timeMillis": "now"}, "timeMillis is not a 64-bit"),
    ],
)
def test_damaged_snapshots(sound: PaimonWriter, changes: dict[str, Any], why: str) -> None:
    sound.change("snapshot/snapshot-2", **changes)
    assert why in damage(sound).message


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"null", b"[" * 5000])
@pytest.mark.parametrize("path", ["snapshot/snapshot-2", "schema/schema-0"])
def test_no_json(sound: PaimonWriter, path: str, text: bytes) -> None:
    sound.put(path, text)
    assert path in damage(sound).message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"id": 1}, "holds schema 1"),
        ({"fields": [{"name": "id", "type": "INT"}]}, "no id or no name"),
        ({"fields": [{"id": 0, "name": "id", "type": "INT"}] * 2}, "same name or id"),
        ({"partitionKeys": ["nowhere"]}, "missing columns: nowhere"),
        ({"partitionKeys": "id"}, "partitionKeys is not a list"),
        ({"options": {"a": 1}}, "options holds something other than text"),
    ],
)
def test_damaged_schemas(sound: PaimonWriter, changes: dict[str, Any], why: str) -> None:
    sound.change("schema/schema-0", **changes)
    assert why in damage(sound).message


def test_newer_versions_are_refused(sound: PaimonWriter) -> None:
    for path in ("snapshot/snapshot-2", "schema/schema-0"):
        before = sound.body(path)["version"]
        sound.change(path, version=4)
        with pytest.raises(UnsupportedFeatureError, match="format version 4"):
            opened(sound.path).snapshot()
        sound.change(path, version=before)
    sound.change("schema/schema-0", options={"type": "object-table"})
    with pytest.raises(UnsupportedFeatureError, match="object-table"):
        opened(sound.path).snapshot()


def test_unknown_fields_are_left_alone(sound: PaimonWriter) -> None:
    sound.change("snapshot/snapshot-2", fromTheFuture={"x": [1]}, watermark=None)
    sound.change("schema/schema-0", fromTheFuture=1, comment=None)
    assert opened(sound.path).snapshot().version == 2


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"_FILE_NAME": "../../etc/passwd"}, "is not the name of a data file"),
        ({"_FILE_NAME": ".."}, "is not the name of a data file"),
        ({"_ROW_COUNT": 1}, "has 1 rows, but its deletion vector names 2"),
    ],
)
def test_damaged_entries(tmp_path: Path, entry: dict[str, Any], why: str) -> None:
    written = PaimonWriter(tmp_path / "t")
    file = written.append(rows_of(0, 10), **entry)
    written.delete({file: [1, 2]})
    assert why in damage(written).message


def test_a_file_that_was_added_twice(sound: PaimonWriter) -> None:
    (file,) = sound.files.values()
    sound.commit("APPEND", add=[file])
    assert f"{file.name} was added twice" in damage(sound).message


@pytest.mark.parametrize(
    ("change", "why"),
    [({"_KIND": 7}, "is neither ADD nor DELETE"), ({"_PARTITION": b"x"}, "truncated"), ({"_VERSION": 3}, "version 3")],
)
def test_entries_of_no_kind_or_version(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    written = PaimonWriter(tmp_path / "t", every_entry=change)
    written.append(rows_of(0, 1))
    with pytest.raises((DamagedTableError, UnsupportedFeatureError), match=why) as caught:
        opened(written.path).snapshot()
    assert "manifest/manifest-" in caught.value.message
    assert caught.value.version == 1


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"_KIND": 1}, "an entry that is not an ADD"),
        ({"_FILE_NAME": "a/b"}, "missing or invalid values"),
        ({"_DELETIONS_VECTORS_RANGES": [None]}, "an empty range"),
        ({"_DELETIONS_VECTORS_RANGES": [{"f0": "x", "f1": 0, "f2": 5}]}, "a range with missing or invalid values"),
        (
            {"_DELETIONS_VECTORS_RANGES": [{"f0": "x", "f1": 1, "f2": 5, "_CARDINALITY": -1}]},
            "a range with missing or invalid values",
        ),
        ({"_DELETIONS_VECTORS_RANGES": [{"f0": "x", "f1": 1, "f2": 5}] * 2}, "x has two deletion vectors"),
    ],
)
def test_damaged_index_manifests(sound: PaimonWriter, other: dict[str, Any], why: str) -> None:
    sound.write_index([{**sound.index_entry("index-9", []), **other}])
    sound.commit("OVERWRITE")
    assert why in damage(sound).message


def test_ranges_of_another_kind_of_index_are_none(sound: PaimonWriter) -> None:
    (file,) = sound.files.values()
    dv = [{"f0": file.name, "f1": 1, "f2": 9, "_CARDINALITY": 9}]
    sound.write_index([sound.index_entry("index-9", dv, _INDEX_TYPE="HASH")])
    sound.commit("OVERWRITE")
    snapshot = opened(sound.path).snapshot()
    assert snapshot.files["deleted_rows"].to_pylist() == [2]
    assert sorted(each.kind for each in snapshot.index.files) == ["DELETION_VECTORS", "HASH"]


def test_a_newer_index_manifest(sound: PaimonWriter) -> None:
    sound.write_index([{**sound.index_entry("index-9", []), "_VERSION": 2}])
    sound.commit("OVERWRITE")
    with pytest.raises(UnsupportedFeatureError, match="format version 2"):
        opened(sound.path).snapshot()


def test_index_files_are_read_where_counts_are_missing_only(tmp_path: Path) -> None:
    for writer in (OLD, NEW):
        written = PaimonWriter(tmp_path / writer, writer=writer)
        file = written.append(rows_of(0, 10))
        written.delete({file: [1, 2]})
        (stored,) = (written.path / "index").iterdir()
        stored.write_bytes(b"\1" + bytes(20))
        if writer == NEW:
            assert opened(written.path).snapshot().files["deleted_rows"].to_pylist() == [2]
            continue
        with pytest.raises(DamagedDeletionVectorError, match=f"{stored.name} at offset 1: .*magic") as caught:
            opened(written.path).snapshot()
        assert caught.value.version == 2
        stored.unlink()
        with pytest.raises(DamagedDeletionVectorError, match="does not exist"):
            opened(written.path).snapshot()
