"""Blobs whose objects rows name, not manifests, and files outside every table's folder."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from support.aged import age, clock
from support.releases import needs_pylance_14

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, RefusedError, UnsupportedFeatureError
from dv_maintenance.maintenance.deadlines import to_erase
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.lance.vacuum import blobs

pytestmark = needs_pylance_14

NOW = VacuumRequest(retention=0, allow_short_retention=True)
SHARED, OWN = 70_000, 5_000_000  # bytes: several blobs share an object; a blob has an object of its own


def written(pylance: ModuleType, place: Path, ids: range, size: int, *, nested: bool = False, **options: Any) -> None:
    """Rows with a blob of ``size`` bytes each, five to a file."""
    values: pa.Array = pylance.blob_array([bytes([number]) * size for number in ids])
    column = pylance.blob_field("b")
    if nested:
        values = pa.StructArray.from_arrays([values], fields=[column])
        column = pa.field("s", values.type)
    schema = pa.schema([pa.field("id", pa.int64()), column], metadata={"lance.blob.managed": "true"})
    rows = pa.table([pa.array(ids, pa.int64()), values], schema=schema)
    version = {} if options.get("mode") == "append" else {"data_storage_version": "2.2"}
    pylance.write_dataset(rows, str(place), max_rows_per_file=5, **version, **options)


def content(pylance: ModuleType, place: Path, version: Any = None) -> list[tuple[int, bytes, int]]:
    dataset = pylance.dataset(str(place), version=version)
    rows = dataset.scanner(blob_handling="all_binary").to_table()
    held = rows["b"] if "b" in rows.column_names else pa.chunked_array([each.field(0) for each in rows["s"].chunks])
    found = zip(rows["id"].to_pylist(), held.to_pylist(), strict=True)
    return sorted((number, blob[:1], len(blob)) for number, blob in found)


def objects(place: Path) -> set[str]:
    return {path.name for path in place.glob("_blobs/*.blob")}


@pytest.fixture
def table(pylance: ModuleType, tmp_path: Path) -> Path:
    """Ten rows in two objects, and three rows with an object each."""
    place = tmp_path / "t"
    written(pylance, place, range(10), SHARED)
    written(pylance, place, range(10, 13), OWN, mode="append")
    assert len(objects(place)) == 5
    return place


@pytest.mark.parametrize("purged", [False, True])
def test_objects_live_as_long_as_a_row_that_names_them(table: Path, pylance: ModuleType, purged: bool) -> None:
    pylance.dataset(str(table)).delete("id < 5 or id = 7 or id > 10")
    before = content(pylance, table)
    if purged:
        assert purge(open_table(str(table)), LocalEngine()).verified
    result = vacuum(open_table(str(table)), NOW)
    assert sum(file.path.startswith("_blobs/") for file in result.expired.files) == 3
    assert len(objects(table)) == 2
    assert content(pylance, table) == before
    # Lance's own cleanup finds nothing that we left.
    assert pylance.dataset(str(table)).cleanup_old_versions(retain_versions=1).data_files_removed == 0


def test_a_vacuum_keeps_what_lance_keeps(table: Path, pylance: ModuleType) -> None:
    """Tagged and detached versions, branches, and objects that no version names yet."""
    dataset = pylance.dataset(str(table))
    dataset.tags.create("keep", 2)
    tagged = content(pylance, table, "keep")
    dataset.create_branch("side", 2)
    written(pylance, table / "tree/side", range(20, 22), OWN, mode="append")
    branch = content(pylance, table / "tree/side")
    dataset.delete("id >= 0")
    young = table / "_blobs/0a1b2c3d-0000-4000-8000-000000000000.blob"
    young.write_bytes(b"of a writer that has not committed")
    foreign = table / "_blobs/notes.blob"
    foreign.write_bytes(b"")
    assert not any(file.path.startswith("_blobs/") for file in vacuum(open_table(str(table)), NOW).expired.files)
    assert (content(pylance, table, "keep"), content(pylance, table / "tree/side")) == (tagged, branch)
    pylance.dataset(str(table)).tags.delete("keep")
    vacuum(open_table(str(table)), NOW)
    assert content(pylance, table / "tree/side") == branch
    assert young.exists()
    assert foreign.exists()
    later = VacuumRequest(retention=0, allow_short_retention=True, now=clock() + 30 * 86_400_000)
    vacuum(open_table(str(table)), later)
    assert not young.exists()
    assert foreign.exists()
    assert content(pylance, table / "tree/side") == branch


def test_blobs_inside_a_struct(pylance: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "t"
    written(pylance, place, range(4), OWN, nested=True)
    pylance.dataset(str(place)).delete("id = 2")
    before = content(pylance, place)
    vacuum(open_table(str(place)), NOW)
    assert len(objects(place)) == 3
    assert content(pylance, place) == before


def test_rows_that_cannot_be_read_stop_it(table: Path, pylance: ModuleType) -> None:
    pylance.dataset(str(table)).delete("id = 12")
    next(table.glob("data/*.lance")).write_bytes(b"")
    age(table)
    before = objects(table)
    with pytest.raises(DamagedTableError):
        vacuum(open_table(str(table)), NOW)
    assert objects(table) == before


def test_without_pylance_nothing_is_deleted(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lance", None)
    with pytest.raises(RefusedError, match="pylance"):
        vacuum(open_table(str(table)), NOW)


def test_shared_objects_are_no_silent_gap_of_an_erasure(table: Path, pylance: ModuleType) -> None:
    """A purge leaves the bytes of deleted rows in objects of live ones, and says so; without the setting it copies."""
    pylance.dataset(str(table)).delete("id = 7")
    table_ = open_table(str(table))
    purge(table_, LocalEngine())
    vacuum(table_, NOW)
    assert len(objects(table)) == 5
    snapshot = table_.snapshot()
    assert "as long as a live row names it" in snapshot.warnings[0]
    assert set(snapshot.warnings) == set(snapshot.notes)
    found = to_erase(table_, snapshot, Policy(erase_within="30d"), now=clock())
    assert found is not None
    assert any("as long as a live row names it" in said for said in found.sentences())

    pylance.dataset(str(table)).update_schema_metadata({"lance.blob.managed": "false"})
    pylance.dataset(str(table)).delete("id in (3, 8, 11)")
    before = content(pylance, table)
    assert purge(table_, LocalEngine()).verified
    vacuum(table_, NOW)
    assert content(pylance, table) == before
    assert objects(table) == set()


def test_files_outside_every_table_are_named(pylance: ModuleType, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "t"
    pylance.write_dataset(
        pa.table({"id": range(100)}),
        str(place),
        max_rows_per_file=20,
        initial_bases=[pylance.DatasetBasePath(str(outside), name="cold")],
        target_bases=["cold"],
    )
    pylance.dataset(str(place)).delete("id % 2 = 0")
    table = open_table(str(place))
    assert purge(table, LocalEngine()).verified
    vacuum(table, NOW)
    assert pylance.dataset(str(place)).to_table()["id"].to_pylist() == list(range(1, 100, 2))
    assert len(list(outside.iterdir())) == 5
    (said,) = table.snapshot().unerased
    assert str(outside) in said


def test_an_unknown_kind_of_blob_stops_it(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "_LAST_KIND", 3)
    with pytest.raises(UnsupportedFeatureError, match="unknown kind 4"):
        vacuum(open_table(str(table)), NOW)
