"""Snapshots: golden tables by what is expected of them, tables of the moment by Lance's own library."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from effort import sampled
from golden_tables import names_in
from support.lance_rows import rows
from support.places import GOLDEN
from support.raw_manifest import message, newest_manifest, patch, records, without
from support.tables import lance_table as opened

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.lance import ARRAY, BITMAP
from dv_maintenance.errors import DamagedDeletionVectorError, DamagedTableError
from dv_maintenance.files.lance_footer import count_rows
from dv_maintenance.maintenance.health import health
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.layout import data_path
from dv_maintenance.tables.lance.rows.files import FILES, read_deletions
from dv_maintenance.tables.lance.snapshot import LanceSnapshot
from dv_maintenance.tables.lance.table import LanceTable
from dv_maintenance.tables.model import FILES_SCHEMA

EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted((GOLDEN / "lance").glob("*/expected.json"))
}
SOUND = names_in("lance", (name for name, facts in EXPECTED.items() if "versions" in facts))
CODECS = {"array": ARRAY, "bitmap": BITMAP}


def deletions(snapshot: LanceSnapshot, storage: Storage) -> dict[int, list[int]]:
    """Deleted offsets by fragment, by our own codecs."""
    rows = snapshot.files.select(["fragment_id", "dv_id", "dv_codec"]).to_pylist()
    return {
        row["fragment_id"]: read_deletions(storage, row["dv_id"], row["dv_codec"]).positions().tolist()
        for row in rows
        if row["dv_id"]
    }


def judge(table: LanceTable, dataset: Any) -> LanceSnapshot:
    """Everything that Lance's own library says of a version, against ours."""
    snapshot = table.snapshot(dataset.version)
    fragments = dataset.get_fragments()
    assert snapshot.version == dataset.version
    assert snapshot.schema.equals(dataset.schema, check_metadata=True)
    rows = snapshot.files.to_pylist()
    assert [row["fragment_id"] for row in rows] == [each.fragment_id for each in fragments]
    assert [row["physical_rows"] for row in rows] == [each.physical_rows for each in fragments]
    assert [row["deleted_rows"] for row in rows] == [each.num_deletions for each in fragments]
    assert [row["data_files"] for row in rows] == [len(each.data_files()) for each in fragments]
    for ours, theirs in zip(snapshot.fragments, fragments, strict=True):
        files = [data_path(table.storage, snapshot.manifest, file) for file in ours.files]
        assert [file.rsplit("/", 1)[-1] for file in files] == [file.path for file in theirs.data_files()]
        for file in files:
            assert count_rows(table.storage, file) == theirs.physical_rows
    # Addresses of the rows that are left: the fragment in the upper half, the offset in the lower.
    left = set(dataset.scanner(columns=[], with_row_address=True).to_table()["_rowaddr"].to_pylist())
    gone = {
        each.fragment_id: [row for row in range(each.physical_rows) if (each.fragment_id << 32 | row) not in left]
        for each in fragments
        if each.deletion_file() is not None
    }
    assert deletions(snapshot, table.storage) == gone
    return snapshot


# -- golden -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOUND)
def test_golden_tables(golden: Path, name: str) -> None:
    table = opened(golden / "lance" / name)
    facts = EXPECTED[name]
    assert table.version() == facts.get("latest", max(map(int, facts["versions"])))
    assert {tag.name: tag.version for tag in table.tags().values()} == facts.get("tags", {})
    for number, expected in facts["versions"].items():
        snapshot = table.snapshot(int(number))
        files = snapshot.files
        assert files.schema.equals(FILES, check_metadata=True)
        assert files.schema.names[: len(FILES_SCHEMA)] == FILES_SCHEMA.names
        assert snapshot.naming == expected["naming"]
        assert snapshot.manifest.reader_flags == expected["reader_flags"]
        if "columns" in expected:
            assert snapshot.schema.names == expected["columns"]
            assert snapshot.manifest.writer_flags == expected["writer_flags"]
            assert snapshot.manifest.data_format[1] == expected["data_format"]
            assert snapshot.manifest.max_fragment_id == expected["max_fragment_id"]
            assert snapshot.manifest.path == f"_versions/{expected['manifest']}"
            assert snapshot.stable_row_ids == facts["stable_row_ids"]
        counts = health(snapshot).counts
        assert counts.live_rows == expected["live_rows"]
        want = expected["fragments"]
        assert files["fragment_id"].to_pylist() == [each["id"] for each in want]
        assert files["physical_rows"].to_pylist() == [
            each.get("physical_rows_real", each.get("physical_rows")) for each in want
        ]
        assert files["deleted_rows"].to_pylist() == [each["deleted_count"] for each in want]
        if "columns" in expected:
            assert files["dv_id"].to_pylist() == [each["deletion"] and each["deletion"]["path"] for each in want]
            assert files["dv_codec"].to_pylist() == [
                each["deletion"] and CODECS[each["deletion"]["kind"]] for each in want
            ]
            assert files["dv_read_version"].to_pylist() == [
                each["deletion"] and each["deletion"]["read_version"] for each in want
            ]
        runs = {
            fragment: [[start, stop - start] for start, stop in DeletionVector.from_positions(rows).ranges()]
            for fragment, rows in deletions(snapshot, table.storage).items()
        }
        assert runs == {each["id"]: each["deleted_runs"] for each in want if each["deleted_count"]}
        sizes = [
            sum(Path(table.storage.local("data"), f.path).stat().st_size for f in x.files) for x in snapshot.fragments
        ]
        assert files["size"].to_pylist() == sizes
    indices = {index.name for index in table.snapshot().manifest.indices()}
    assert indices == {index["name"] for index in facts.get("indices", [])}


@pytest.mark.parametrize("name", sampled(SOUND, 2))
def test_golden_tables_as_lance_sees_them(golden: Path, pylance: ModuleType, name: str) -> None:
    table = opened(golden / "lance" / name)
    for number in EXPECTED[name]["versions"]:
        judge(table, pylance.dataset(str(golden / "lance" / name), version=int(number)))


@pytest.mark.parametrize("name", names_in("lance", EXPECTED.keys() - set(SOUND)))
def test_damaged_golden_tables_are_counted_by_their_log(golden: Path, name: str) -> None:
    table = opened(golden / "lance" / name)
    twin = opened(golden / "lance" / EXPECTED[name]["damaged_from"])
    assert health(table.snapshot()).counts == health(twin.snapshot()).counts


# -- tables of the moment -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "stable", "naming_v2"),
    sampled(
        [
            pytest.param(*case, id="-".join((case[0], ("address", "stable")[case[1]], ("V1", "V2")[case[2]])))
            for case in product(("0.1", "2.0", "2.1", "2.2", "2.3"), (True, False), (True, False))
            if case[:2] != ("0.1", True)
        ],
        3,
    ),
)
def test_a_life_of_a_table(pylance: ModuleType, tmp_path: Path, version: str, stable: bool, naming_v2: bool) -> None:
    # Lance stores no stable row ids in files of version 0.1.
    path = str(tmp_path / "t")
    dataset = pylance.write_dataset(
        rows(0, 9000),
        path,
        max_rows_per_file=4500,
        data_storage_version=version,
        enable_stable_row_ids=stable,
        enable_v2_manifest_paths=naming_v2,
    )
    table = opened(path)
    dataset.delete("id % 7 = 0")
    dataset.delete("id < 4400")
    dataset.insert(rows(9000, 100))
    dataset.update({"v": "1.0"}, where="id between 8995 and 9004")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(9095, 20))
    if version != "0.1":
        dataset.add_columns({"w": "id * 2"})
    dataset.delete("id = 9100")
    dataset.optimize.compact_files(target_rows_per_fragment=4500)
    dataset.delete("id = 9101")
    for each in pylance.dataset(path).versions():
        judge(table, pylance.dataset(path, version=each["version"]))
    snapshot = table.snapshot()
    assert snapshot.naming == ("V2" if naming_v2 else "V1")
    assert snapshot.stable_row_ids is stable
    assert table.preflight() == ()


def test_a_table_without_rows_and_one_without_fragments(pylance: ModuleType, tmp_path: Path) -> None:
    dataset = pylance.write_dataset(rows(0, 10).slice(10), str(tmp_path / "t"))
    judge(opened(tmp_path / "t"), dataset)
    dataset.insert(rows(0, 10))
    dataset.delete("true")
    snapshot = judge(opened(tmp_path / "t"), pylance.dataset(str(tmp_path / "t")))
    assert health(snapshot).counts.files == snapshot.files.num_rows == 0


def test_the_path_of_a_fragment_stays_and_is_not_used_again(pylance: ModuleType, tmp_path: Path) -> None:
    dataset = pylance.write_dataset(rows(0, 10), str(tmp_path / "t"))
    table = opened(tmp_path / "t")
    (path,) = table.snapshot().files["path"].to_pylist()
    assert table.storage.exists(path)
    dataset.delete("id = 1")
    dataset.add_columns({"w": "id * 2"})
    assert table.snapshot().files["path"].to_pylist() == [path]
    pylance.write_dataset(rows(0, 10), str(tmp_path / "t"), mode="overwrite")
    assert table.snapshot().files["path"].to_pylist() != [path]


def test_branches_and_clones_have_files_elsewhere(pylance: ModuleType, tmp_path: Path) -> None:
    dataset = pylance.write_dataset(rows(0, 100), str(tmp_path / "some t"), max_rows_per_file=50)
    dataset.delete("id < 5")
    branch = dataset.create_branch("dev/x", 2)
    branch.delete("id = 60")
    clone = dataset.shallow_clone(str(tmp_path / "clone"), 2)
    clone.delete("id = 61")
    clone.insert(rows(100, 10))
    table = opened(tmp_path / "some t")
    for other, dataset_of_it in ((table.branch("dev/x"), branch), (opened(tmp_path / "clone"), clone)):
        snapshot = judge(other, dataset_of_it)
        assert other.preflight() == ()
        inherited = f"{table.uri}/_deletions/0-1-"
        assert snapshot.files["dv_id"][0].as_py().startswith(inherited)
        assert snapshot.files["dv_id"][1].as_py().startswith("_deletions/1-")
        assert snapshot.files["path"][1].as_py().startswith(f"{table.uri}/data/")
    assert snapshot.files["path"][2].as_py().startswith("data/")


def test_a_base_path_that_is_not_named(pylance: ModuleType, tmp_path: Path) -> None:
    dataset = pylance.write_dataset(rows(0, 100), str(tmp_path / "t"))
    dataset.delete("id < 5")
    dataset.shallow_clone(str(tmp_path / "clone"), 2)
    patch(newest_manifest(tmp_path / "clone"), lambda fields: without(fields, 18))
    with pytest.raises(DamagedTableError, match="in base path 0, which the manifest does not name"):
        opened(tmp_path / "clone").snapshot()


# -- counts -------------------------------------------------------------------------------------------------------


def test_counts_of_old_writers_come_from_the_files(golden: Path) -> None:
    for name in ("historic_v0_7_5_with_deletions", "historic_v0_8_0_migrated"):
        snapshot = opened(golden / "lance" / name).snapshot()
        assert snapshot.manifest.writer is None
        assert snapshot.files.select(["physical_rows", "deleted_rows"]).to_pylist()[0] == {
            "physical_rows": 100,
            "deleted_rows": 10,
        }
        assert "counted from files" in snapshot.warnings[0]


def test_counts_that_the_manifest_has_cost_nothing(
    golden_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = golden_copy("lance/mixed_fragments")
    shutil.rmtree(path / "data")
    shutil.rmtree(path / "_deletions")
    asked: list[str] = []

    def spy(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Storage, place: str, *args: Any) -> Any:
            asked.append(place)
            return method(self, place, *args)

        return call

    for name in ("get", "first_names", "first_files", "get_range", "head", "list"):
        monkeypatch.setattr(Storage, name, spy(getattr(Storage, name)))
    table = LanceTable(Storage(str(path)))
    assert health(table.snapshot()).counts.deleted_rows == 6090
    assert asked == ["_versions", f"_versions/{newest_manifest(path).name}"]
    asked.clear()
    table.version()
    assert asked == ["_versions"]


def forget_counts(path: Path) -> None:
    """A manifest as if an older writer had made it: no rows, no sizes of data files, no counts of deletions."""

    def fragment(data: bytes) -> bytes:
        inner = {2: 6, 3: 4}
        return message(
            *((n, message(*without(records(v), inner[n])) if n in inner else v) for n, v in without(records(data), 4))
        )

    patch(newest_manifest(path), lambda fields: [(n, fragment(v) if n == 2 else v) for n, v in fields if n != 13])


@pytest.mark.parametrize("name", ["mixed_fragments", "file_v0_1", "file_v2_0", "file_v2_1", "added_column"])
def test_forgotten_counts_are_found_again(golden_copy: Callable[[str], Path], name: str) -> None:
    path = golden_copy(f"lance/{name}")
    table = opened(path)
    before = table.snapshot()
    forget_counts(path)
    assert {each.physical_rows for each in table.snapshot().manifest.fragments()} == {None}
    assert table.snapshot().files.equals(before.files)


def test_forgotten_counts_and_a_damaged_file(golden_copy: Callable[[str], Path]) -> None:
    for name, reason in (("bad_garbage_arrow", "not an Arrow IPC file"), ("bad_missing_deletion", "does not exist")):
        path = golden_copy(f"lance/{name}")
        forget_counts(path)
        with pytest.raises(DamagedDeletionVectorError, match=reason) as caught:
            opened(path).snapshot()
        assert (caught.value.version, caught.value.file) == (2, "_deletions/0-1-517762794309516747.arrow")
        assert caught.value.table == opened(path).uri


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda file: file.unlink(), "does not exist"),
        (lambda file: file.write_bytes(b""), "truncated"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "does not end with the magic number"),
        (lambda file: file.write_bytes(bytes(40) + file.read_bytes()[-8:]), "no global buffer"),
        (lambda file: file.write_bytes(b"\xff" * 40 + file.read_bytes()[-8:]), "its footer names"),
        (lambda file: file.write_bytes(file.read_bytes()[-8:]), "truncated"),
    ],
)
def test_forgotten_counts_and_a_damaged_data_file(
    golden_copy: Callable[[str], Path], change: Callable[[Path], object], reason: str
) -> None:
    path = golden_copy("lance/array_small")
    forget_counts(path)
    (file,) = (path / "data").iterdir()
    change(file)
    with pytest.raises(DamagedTableError, match=reason) as caught:
        opened(path).snapshot()
    assert file.name in str(caught.value)
    assert caught.value.table == opened(path).uri


@pytest.mark.parametrize("version", ["0.1", "2.0", "2.2"])
def test_a_footer_of_many_columns(pylance: ModuleType, tmp_path: Path, version: str) -> None:
    names = [f"column {number} {'x' * 100}" for number in range(1500)]
    table = pa.table({name: pa.array([1, 2, 3], pa.int8()) for name in names})
    pylance.write_dataset(table, str(tmp_path / "t"), data_storage_version=version)
    (file,) = (tmp_path / "t" / "data").iterdir()
    storage, path, size = Storage(str(tmp_path / "t")), f"data/{file.name}", file.stat().st_size
    assert size > 200_000
    assert count_rows(storage, path) == count_rows(storage, path, size) == 3
    with pytest.raises(DamagedTableError, match=f"truncated: it should have {size + 1} bytes"):
        count_rows(storage, path, size + 1)


def test_more_deletions_than_rows(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("lance/array_small")

    def shrink(data: bytes) -> bytes:
        return message(*((4, 100) if n == 4 else (n, value) for n, value in records(data)))

    patch(newest_manifest(path), lambda fields: [(n, shrink(v) if n == 2 else v) for n, v in fields])
    with pytest.raises(DamagedTableError, match="fragment 0 has 100 rows, 111 of them deleted"):
        opened(path).snapshot()


def test_a_data_file_of_two_fragments(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("lance/array_small")

    def twice(fields: list[Any]) -> list[Any]:
        (first,) = (value for n, value in fields if n == 2)
        return [*fields, (2, message((1, 9), *without(records(first), 1)))]

    patch(newest_manifest(path), twice)
    assert "more than one fragment" in opened(path).snapshot().warnings[0]


def test_looking_imports_neither_lance_nor_pandas(golden: Path) -> None:
    code = """if True:
        import sys
        from dv_maintenance.tables import open_table
        table = open_table(sys.argv[1])
        snapshot = table.snapshot()
        table.version(), table.history(), table.changes_since(1), table.oldest_dv(snapshot), table.preflight()
        print(sorted({"lance", "pandas", "dv_maintenance.tables.delta.table"} & set(sys.modules)))
    """
    path = str(golden / "lance" / "mixed_fragments")
    assert subprocess.check_output([sys.executable, "-c", code, path], text=True).strip() == "[]"
