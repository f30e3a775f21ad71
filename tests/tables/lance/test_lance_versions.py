"""Versions: names old and new, what else lies between them, and how little is asked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raw_manifest import manifest_file, message

from dv_maintenance.errors import DamagedTableError, RefusedError, TableNotFoundError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.lance.log.versions import all_versions, latest_version, load_manifest, manifest_name
from dv_maintenance.tables.lance.table import LanceTable


def put(storage: Storage, *versions: int, scheme: str = "V2") -> None:
    for version in versions:
        storage.put(f"_versions/{manifest_name(version, scheme)}", manifest_file(message((3, version))))


@given(st.integers(1, 2**63 - 1))
def test_names_of_both_schemes(version: int) -> None:
    assert manifest_name(version, "V1") == f"{version}.manifest"
    assert manifest_name(version, "V2") == f"{2**64 - 1 - version:020}.manifest"
    assert manifest_name(version, "V2") < manifest_name(version - 1, "V2")


@pytest.mark.parametrize("scheme", ["V1", "V2"])
def test_the_newest_and_all_of_them(tmp_path: Path, scheme: str) -> None:
    storage = Storage(str(tmp_path / "t"))
    put(storage, 1, 2, 9, 10, 11, scheme=scheme)
    assert latest_version(storage) == 11
    assert [(file.version, file.scheme) for file in all_versions(storage)] == [(n, scheme) for n in (1, 2, 9, 10, 11)]
    file, manifest = load_manifest(storage, 9)
    assert (file.version, file.scheme, manifest.version, manifest.path) == (9, scheme, 9, file.path)


def test_files_that_are_not_versions_of_the_history(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "t"))
    put(storage, 3)
    for name in (
        "d9223372036854775900.manifest",  # detached
        "09223372036854775700.manifest",  # a detached one's number
        ".tmp_4.manifest_9c100374-3298-4537-afc6-f5ee7913666d",
        "18446744073709551615.manifest",  # version 0
        "99999999999999999999.manifest",
        "x.manifest",
        "5.manifest.tmp",
        "٣.manifest",
    ):
        storage.put(f"_versions/{name}", b"")
    storage.put("_versions/latest_version_hint.json", b'{"version":77}')
    storage.put("_versions/18446744073709551600.manifest/x", b"")
    assert latest_version(storage) == 3
    assert [file.version for file in all_versions(storage)] == [3]


@pytest.mark.parametrize("hint", [b'{"version":1}', b'{"version":4}', b"not json", None])
def test_the_hint_is_only_a_hint(pylance: ModuleType, tmp_path: Path, hint: bytes | None) -> None:
    dataset = pylance.write_dataset(pa.table({"id": [1, 2, 3]}), str(tmp_path / "t"))
    dataset.delete("id = 1")
    dataset.delete("id = 2")
    file = tmp_path / "t" / "_versions" / "latest_version_hint.json"
    if hint is None:
        file.unlink()
    else:
        file.write_bytes(hint)
    table = open_table(str(tmp_path / "t"))
    assert table.version() == table.version(known=2) == pylance.dataset(str(tmp_path / "t")).version == 3


def test_a_gap_after_a_known_version(pylance: ModuleType, tmp_path: Path) -> None:
    """A tag keeps version 2, and later ones are cleaned up: the next number is missing, but it is not the end."""
    dataset = pylance.write_dataset(pa.table({"id": range(10)}), str(tmp_path / "t"))
    for number in range(5):
        dataset.delete(f"id = {number}")
    dataset.tags.create("keep", 2)
    dataset.cleanup_old_versions(versions=[3, 4, 5])
    table = open_table(str(tmp_path / "t"))
    assert [file.version for file in all_versions(table.storage)] == [1, 2, 6]
    assert table.version(known=2) == 6


def test_both_namings_in_one_folder(golden_copy: Callable[[str], Path], pylance: ModuleType) -> None:
    path = golden_copy("lance/v1_manifests")
    file = path / "_versions" / "13.manifest"
    shutil.copy(file, path / "_versions" / manifest_name(13, "V2"))
    with pytest.raises(ValueError, match="multiple manifest naming schemes"):
        pylance.dataset(str(path))
    table = open_table(str(path))
    calls: list[Callable[[], Any]] = [
        table.version,
        table.snapshot,
        lambda: table.snapshot(3),
        table.history,
        lambda: table.changes_since(1),
    ]
    for call in calls:
        with pytest.raises(RefusedError, match="have both naming schemes") as caught:
            call()
        assert caught.value.exit_code == 3


def test_migrated_names(golden_copy: Callable[[str], Path], pylance: ModuleType) -> None:
    path = golden_copy("lance/v1_manifests")
    table = open_table(str(path))
    before = table.snapshot()
    pylance.dataset(str(path)).migrate_manifest_paths_v2()
    after = table.snapshot()
    assert (before.version, before.files) == (after.version, after.files)
    assert all(file.scheme == "V2" for file in all_versions(table.storage))


@pytest.mark.parametrize("wrong", [0, -1, 12, 4, 2**70])
def test_versions_that_are_not_there(tmp_path: Path, wrong: int) -> None:
    storage = Storage(str(tmp_path / "t"))
    put(storage, 1, 2, 3, 7, 10, 11)
    with pytest.raises(UsageError, match=f"no version {wrong} .* 1 to 3, 7, 10 to 11") as caught:
        load_manifest(storage, wrong)
    assert caught.value.exit_code == 2


def test_no_table_and_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "nowhere", tmp_path / "empty"):
        with pytest.raises(TableNotFoundError, match="no table found here"):
            open_table(str(place))
        table = open_table(str(place), format="lance")
        with pytest.raises(TableNotFoundError):
            table.version()
        with pytest.raises(TableNotFoundError):
            table.snapshot()
    Storage(str(tmp_path / "bare")).put("_versions/latest_version_hint.json", b'{"version":3}')
    with pytest.raises(DamagedTableError, match="holds no manifest"):
        open_table(str(tmp_path / "bare")).version()


def test_a_table_is_found_by_its_folder(golden: Path) -> None:
    place = str(golden / "lance" / "array_small")
    assert isinstance(open_table(place), LanceTable)
    assert isinstance(open_table(place, format="lance"), LanceTable)
    assert open_table(place).format == "lance"
    assert not isinstance(open_table(place, format="delta"), LanceTable)


def test_a_newest_version_that_vanishes_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path / "t"))
    put(storage, 1, 2)
    get, lost = Storage.get, []

    def cleaned_up_meanwhile(self: Storage, path: str) -> bytes:
        if not lost:
            lost.append(path)
            put(storage, 3)
            storage.delete([path])
        return get(self, path)

    monkeypatch.setattr(Storage, "get", cleaned_up_meanwhile)
    assert load_manifest(storage)[0].version == 3


def test_a_newest_version_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path / "t"))
    put(storage, 1)

    def gone(self: Storage, path: str) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Storage, "get", gone)
    with pytest.raises(DamagedTableError, match="listed but cannot be read"):
        load_manifest(storage)


def test_object_storage_is_asked_once(s3: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    uri, options = s3
    storage = Storage(f"{uri}/versions/many", options)
    put(storage, *range(1, 6))
    names = [manifest_name(n, "V2") for n in range(5, 0, -1)]
    monkeypatch.setattr("dv_maintenance.storage.reading.PAGE", 2)
    assert storage.first_names("_versions") == (tuple(names[:2]), False)
    assert storage.first_names("_vers") == ((), True)
    assert latest_version(storage) == 5
    assert load_manifest(storage, 1)[1].version == 1
    assert [file.version for file in all_versions(storage)] == [1, 2, 3, 4, 5]
    old = Storage(f"{uri}/versions/old", options)
    put(old, *range(1, 12), scheme="V1")
    assert latest_version(old) == 11
    monkeypatch.setattr(Storage, "list", None)
    assert latest_version(storage) == 5, "one page is enough"


def test_directory_buckets_list_in_no_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    storage = Storage("s3://bucket--euc1-az1--x-s3/t", {"aws_region": "eu-central-1"})
    names = [manifest_name(n, "V2") for n in (2, 7, 1)]
    monkeypatch.setattr(Storage, "first_names", lambda self, folder: ((names[0],), False))
    monkeypatch.setattr(Storage, "first_files", lambda self, folder: ({names[0]: None}, False))
    monkeypatch.setattr(Storage, "list", lambda self, folder: [Named(f"{folder}/{name}") for name in names])
    assert latest_version(storage) == 7


class Named:
    def __init__(self, path: str) -> None:
        self.path = path
