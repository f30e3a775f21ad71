"""V1 manifests get V2 names, even after an interrupted run, but not while writers are active."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from support.aged import DAY, clock, rows, set_time
from support.raw_manifest import patch
from support.tables import lance_table as opened

from dv_maintenance.cli import main
from dv_maintenance.errors import ConflictError, RefusedError, StorageError, UnsupportedFeatureError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.log.versions import all_versions, manifest_name
from dv_maintenance.tables.lance.verbs import rename_manifests as naming
from dv_maintenance.tables.reports import RenameReport

NEWEST = 13


@pytest.fixture
def place(golden_copy: Callable[[str], Path]) -> Path:
    return golden_copy("lance/v1_manifests")


def names(place: Path) -> set[str]:
    return {path.name for path in place.glob("_versions/*.manifest")}


def of(scheme: str) -> set[str]:
    return {manifest_name(version, scheme) for version in range(1, NEWEST + 1)}


def check_renamed(pylance: ModuleType, place: Path, before: list[pa.Table]) -> None:
    assert names(place) == of("V2")
    assert [rows(pylance, place, version) for version in range(1, NEWEST + 1)] == before
    dataset = pylance.dataset(str(place))
    dataset.validate()
    dataset.delete("id = 1")
    assert min(names(place)) == manifest_name(NEWEST + 1, "V2")


@pytest.fixture
def before(place: Path, pylance: ModuleType) -> list[pa.Table]:
    return [rows(pylance, place, version) for version in range(1, NEWEST + 1)]


def test_all_are_renamed(place: Path, pylance: ModuleType, before: list[pa.Table]) -> None:
    table = opened(place)
    assert table.rename_manifests(dry_run=True) == RenameReport(NEWEST, NEWEST, 0, dry_run=True)
    assert names(place) == of("V1")
    assert table.rename_manifests() == RenameReport(NEWEST, NEWEST, 0, dry_run=False)
    assert table.rename_manifests() == RenameReport(NEWEST, 0, NEWEST, dry_run=False)
    check_renamed(pylance, place, before)


@pytest.mark.parametrize("broken", ["create", "delete"])
@pytest.mark.parametrize("after", [0, 1, 7, NEWEST - 1])
def test_an_interrupted_run_is_continued(
    place: Path, pylance: ModuleType, before: list[pa.Table], monkeypatch: pytest.MonkeyPatch, broken: str, after: int
) -> None:
    calls: list[object] = []
    real = getattr(Storage, broken)

    def breaks(self: Storage, *args: object) -> object:
        if len(calls) == after:
            raise StorageError("the network went away")
        calls.append(args)
        return real(self, *args)

    monkeypatch.setattr(Storage, broken, breaks)
    with pytest.raises(StorageError, match="went away") as caught:
        opened(place).rename_manifests()
    assert caught.value.done == f"{after} of {NEWEST} manifests renamed; others may exist under both names"
    monkeypatch.undo()
    if after:  # both namings: nobody reads it, and we say what helps
        with pytest.raises(ValueError, match="multiple manifest naming schemes"):
            pylance.dataset(str(place))
        with pytest.raises(RefusedError, match="dvm rename-manifests"):
            opened(place).snapshot()
    result = opened(place).rename_manifests()
    assert (result.renamed, result.done) == (NEWEST - after, after)
    check_renamed(pylance, place, before)


def test_an_interrupted_run_of_lance_is_continued(place: Path, pylance: ModuleType, before: list[pa.Table]) -> None:
    for version in (2, 5, NEWEST):
        (place / "_versions" / manifest_name(version, "V1")).rename(place / "_versions" / manifest_name(version, "V2"))
    assert opened(place).rename_manifests().renamed == NEWEST - 3
    check_renamed(pylance, place, before)


def test_two_manifests_of_one_version(place: Path) -> None:
    target = place / "_versions" / manifest_name(4, "V2")
    target.write_bytes((place / "_versions" / "4.manifest").read_bytes())
    patch(target, lambda records: [*records, (19, b"\x0a\x01k\x12\x01v")])
    before = names(place)
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match=r"_versions/4\.manifest and .* different manifests of version 4"):
            opened(place).rename_manifests(dry_run=dry_run)
        assert names(place) == before


def test_not_beside_writers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = place / "_versions" / f"{NEWEST}.manifest"
    set_time(newest, clock() - 59_000)
    for dry_run in (False, True):
        with pytest.raises(RefusedError, match=f"version {NEWEST} was committed less than a minute ago") as caught:
            opened(place).rename_manifests(dry_run=dry_run)
        assert "stop all writers" in str(caught.value)
    assert names(place) == of("V1")
    opened(place).rename_manifests(now=clock() + 2000)

    set_time(place / "_versions" / manifest_name(NEWEST, "V2"), clock() - DAY)
    assert opened(place).rename_manifests().renamed == 0


@pytest.mark.parametrize("scheme", ["V1", "V2"])
def test_a_concurrent_writer_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    new = place / "_versions" / manifest_name(NEWEST + 1, scheme)
    body = (place / "_versions" / f"{NEWEST}.manifest").read_bytes()
    rename = naming._rename

    def beside(storage: Storage, file: naming.VersionFile) -> None:
        rename(storage, file)
        if file.version == 5:
            new.write_bytes(body)
            patch(new, lambda records: [(3, NEWEST + 1) if number == 3 else (number, v) for number, v in records])

    monkeypatch.setattr(naming, "_rename", beside)
    with pytest.raises(ConflictError, match=f"committed version {NEWEST + 1} during the renaming"):
        opened(place).rename_manifests()
    monkeypatch.undo()
    assert new.exists()
    opened(place).rename_manifests()
    assert opened(place).version() == NEWEST + 1


def test_unknown_features(place: Path) -> None:
    patch(place / "_versions" / f"{NEWEST}.manifest", lambda records: [*records, (10, 1 << 20)])
    with pytest.raises(UnsupportedFeatureError):
        opened(place).rename_manifests()
    assert names(place) == of("V1")


def test_in_object_storage(pylance: ModuleType, s3: tuple[str, dict[str, str]]) -> None:
    uri, options = s3
    at = f"{uri}/naming/t"
    dataset = pylance.write_dataset(
        pa.table({"id": range(9)}), at, enable_v2_manifest_paths=False, storage_options=options
    )
    for number in range(3):
        dataset.delete(f"id = {number}")
    expected = dataset.to_table()
    table = opened(at, options)
    assert table.rename_manifests(now=clock() + DAY).renamed == 4
    assert {file.scheme for file in all_versions(table.storage)} == {"V2"}
    assert pylance.dataset(at, storage_options=options).to_table() == expected


def test_the_verb(
    place: Path, capsys: pytest.CaptureFixture[str], golden_copy: Callable[[str], Path], pylance: ModuleType
) -> None:
    assert main(["rename-manifests", str(place), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "13 manifests would be renamed" in said
    assert "not safe while writers are active" in said
    assert main(["rename-manifests", str(place), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["format"], body["version"], body["renamed"], body["done"]) == ("lance", 13, 13, 0)
    assert main(["rename-manifests", str(place)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main(["rename-manifests", "--help"]) == 0
    assert "NOT SAFE while writers" in " ".join(capsys.readouterr().out.split())
    assert main(["rename-manifests", str(golden_copy("delta/table-with-dv-small"))]) == 3
    assert "only one naming scheme" in capsys.readouterr().err
