"""A table in the folder of another one: no vacuum of the outer one deletes its files, and no conversion adopts them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dv_maintenance as dvm
from dv_maintenance.cli import main
from dv_maintenance.errors import RefusedError, TableNotFoundError
from dv_maintenance.tables.delta.vacuum.files import Scope
from dv_maintenance.tables.nested import NestedTables
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend

FORMATS = {"Delta": DeltaBackend, "Iceberg": IcebergBackend, "Lance": LanceBackend, "Paimon": PaimonBackend}
# Where writers of some format put data files, and elsewhere.
FOLDERS = ("other", "data/other", "p=a/other", "bucket-0")


def made(kind: str, place: Path, *ids: int) -> None:
    backend: Any = FORMATS[kind](str(place))
    backend.create()
    for number in ids:
        backend.append("a", [(number, "a", "x")])


def files_of(place: Path) -> set[Path]:
    return {path for path in place.rglob("*") if path.is_file()}


def age(place: Path) -> None:
    for path in files_of(place):
        os.utime(path, (1_600_000_000, 1_600_000_000))


def vacuum(table: Any) -> str:
    """What is refused, "" if nothing is."""
    try:
        dvm.vacuum(table, retention=0, allow_short_retention=True)
    except RefusedError as error:
        return error.message
    return ""


@pytest.mark.parametrize("inner", FORMATS)
@pytest.mark.parametrize("outer", FORMATS)
def test_a_vacuum_leaves_another_table_alone(outer: str, inner: str, tmp_path: Path) -> None:
    for number, folder in enumerate(FOLDERS):
        place = tmp_path / str(number)
        made(outer, place, 1, 2)
        made(inner, place / folder, 3, 4)
        orphan = place / "data" / "00000-0-8a857c00-90f0-43a0-9167-ac41e0b7a3d4.parquet"
        if outer == "Delta":
            orphan.parent.mkdir(exist_ok=True)
            orphan.write_bytes(b"x")
        age(place)
        before = files_of(place / folder)
        refused = vacuum(place)
        assert not refused or (outer == "Iceberg" and refused.startswith(f"data/other holds a table of {inner}"))
        assert files_of(place / folder) == before
        assert not orphan.exists(), "a file of no table"
        assert dvm.read(place / folder).read_all().num_rows == 2


@pytest.mark.parametrize("inner", [*FORMATS, "Hudi"])
def test_a_conversion_does_not_adopt_a_table(inner: str, tmp_path: Path) -> None:
    for place, below, named in [(tmp_path / "a", "", "it"), (tmp_path / "b", "raw/orders", "raw/orders")]:
        table = place / below
        table.mkdir(parents=True)
        if inner == "Hudi":
            (table / ".hoodie").mkdir()
            (table / ".hoodie" / "hoodie.properties").write_text("")
        else:
            made(inner, table, 1)
        pq.write_table(pa.table({"id": [1]}), place / "one.parquet")
        if inner == "Delta" and not below:
            assert not dvm.convert(place).converted, "it is a table already"
            continue
        before = files_of(place)
        for dry_run in (True, False):
            with pytest.raises(RefusedError, match=f": {named} holds a table of {inner}"):
                dvm.convert(place, dry_run=dry_run)
        assert files_of(place) == before


@pytest.mark.parametrize("outer", FORMATS)
def test_a_part_of_a_table_is_not_converted(outer: str, tmp_path: Path) -> None:
    made(outer, tmp_path / "t", 1)
    part = tmp_path / "t" / "data" / "p=a"
    part.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [1]}), part / "one.parquet")
    before = files_of(tmp_path)
    with pytest.raises(RefusedError, match=f"it is a part of the {outer} table at file://.*/t"):
        dvm.convert(part)
    with pytest.raises(
        TableNotFoundError, match=rf"\(a part of the {outer} table at file://.*/t\)\. Next: give that place"
    ):
        dvm.health(part)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("other", ["Iceberg", "Paimon"])
def test_two_tables_in_one_folder(other: str, tmp_path: Path) -> None:
    """Files of either may look like an orphan of the other."""
    made("Delta", tmp_path, 1, 2)
    made(other, tmp_path, 3, 4)
    age(tmp_path)
    of_both = files_of(tmp_path)
    for name in ("delta", other.lower()):
        refused = vacuum(dvm.open_table(tmp_path, name))
        assert refused.startswith("its folder holds a table of Delta" if name == "iceberg" else "")
        assert {path for path in of_both - files_of(tmp_path) if path.suffix in {".parquet", ".orc"}} == set()
        assert dvm.read(dvm.open_table(tmp_path, "delta")).read_all().num_rows == 2
        assert dvm.read(dvm.open_table(tmp_path, other.lower())).read_all().num_rows == 2


def test_what_marks_a_table() -> None:
    found = NestedTables("delta")
    paths = [
        "_delta_log/0.json",
        "a/_delta_log/0.json",
        "b/c/_versions/1.manifest",
        "d/metadata/v1.metadata.json",
        "e/metadata/notes.txt",
        "f/xmetadata/v1.metadata.json",
        "g/schema/schema-0",
        "h/schema/schema.json",
        "i/.hoodie/hoodie.properties",
        "j/_versions",
        "schema/schema-1",
    ]
    for path in paths:
        found.see_file_below(path)
    assert found.titles == {
        "a": "Delta",
        "b/c": "Lance",
        "d": "Iceberg",
        "g": "Paimon",
        "i": "Hudi",
        "": "Paimon",
    }


def test_a_walk_of_an_object_store() -> None:
    """It shows each file, and the folders on the way to it, again and again."""
    scope = Scope((), iceberg=False)
    for path in ("sub/a.parquet", "sub/metadata/00000-1.metadata.json", "lance/_versions/1.manifest", "b.parquet"):
        folder = path.rpartition("/")[0]
        if not (folder and scope.skip(folder, True)):
            scope.skip(path, False)
    assert [scope.holds(path) for path in ("sub/a.parquet", "lance/data/x.parquet", "b.parquet")] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_no_output_replaces_a_file_of_a_table(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(kind, tmp_path / "t", 1)
    (tmp_path / "link").symlink_to(tmp_path / "t")
    data = next(path for path in files_of(tmp_path / "t") if path.suffix in {".parquet", ".lance", ".orc"})
    before = {path: path.read_bytes() for path in files_of(tmp_path / "t")}
    for output in (data.with_suffix(".parquet"), tmp_path / "link" / "new.csv"):
        assert main(["read", str(tmp_path / "t"), "-o", str(output)]) == 2
        assert f"is inside the {kind} table at file://" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "t"), "-o", str(data)]) == 2
    assert {path: path.read_bytes() for path in files_of(tmp_path / "t")} == before
    assert main(["read", str(tmp_path / "t"), "-o", str(tmp_path / "new.csv")]) == 0
