"""Where the newest metadata is, what it may say, and what of it is refused."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.iceberg_edits import edit
from support.tables import iceberg_table as opened

from dv_maintenance.cli import main
from dv_maintenance.errors import (
    DamagedTableError,
    RefusedError,
    TableNotFoundError,
    UnsupportedFeatureError,
    UsageError,
)
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.read import read
from dv_maintenance.service.tables_file import WatchConfig
from dv_maintenance.tables import open_table
from dv_maintenance.tables.find import find_tables
from dv_maintenance.tables.iceberg.log.types import parse_schema
from dv_maintenance.tables.model import SHAPES, logical_type
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

pytestmark = pytest.mark.usefixtures("golden")
Laid = Callable[[str], Path]


def live_rows(place: Path | str) -> int:
    return sum(batch.num_rows for batch in read(open_table(str(place)))[1])


def newest(root: Path) -> Path:
    return max(root.glob("metadata/v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))


def changed(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = newest(root)
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))


# -- which file is the newest -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hint", ["6", "3", "1", "nonsense", "99", None])
def test_a_hint_may_be_stale_wrong_or_missing(laid_copy: Laid, hint: str | None) -> None:
    root = laid_copy("plain")
    (root / "metadata" / "version-hint.text").unlink()
    if hint is not None:
        (root / "metadata" / "version-hint.text").write_text(hint)
    assert opened(root).snapshot().metadata.path == "metadata/v6.metadata.json"


@pytest.mark.parametrize("name", ["v6.gz.metadata.json", "v6.metadata.json.gz", "v6.metadata.json"])
def test_metadata_may_be_packed_whatever_its_name(laid_copy: Laid, name: str) -> None:
    root = laid_copy("plain")
    data = (root / "metadata" / "v6.metadata.json").read_bytes()
    (root / "metadata" / "v6.metadata.json").unlink()
    (root / "metadata" / name).write_bytes(gzip.compress(data))
    assert live_rows(root) == 476


def test_a_metadata_file_is_the_table_at_its_time(laid: Laid) -> None:
    assert live_rows(laid("plain")) == 476
    assert live_rows(laid("plain") / "metadata" / "v4.metadata.json") == 540
    assert live_rows(f"file://{laid('plain')}/metadata/v2.metadata.json") == 300
    packed = next(laid("jdbc_catalog").glob("metadata/00004-*.gz.metadata.json"))
    assert live_rows(packed) == 66


def test_a_folder_of_a_catalogs_table_is_a_guess(laid_copy: Laid) -> None:
    root = laid_copy("jdbc_catalog")
    (warning,) = health(opened(root).snapshot()).warnings
    assert "only the table's catalog knows" in warning
    path = next(root.glob("metadata/00004-*"))
    shutil.copy(path, path.with_name(path.name.replace("f888df46", "f888df47")))
    with pytest.raises(RefusedError, match="may both be the newest version"):
        opened(root).version()


def test_tables_of_a_catalog(laid_copy: Laid, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg")
    root = laid_copy("jdbc_catalog")
    monkeypatch.setenv("PYICEBERG_CATALOG__J__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__J__URI", f"sqlite:///{root.parent}/catalog.db")
    table = opened("iceberg:j.jdbc_catalog.table")
    assert (table.uri, table.snapshot().warnings, live_rows("iceberg:j.jdbc_catalog.table")) == (
        f"file://{root}",
        (),
        66,
    )
    for name, error, message in (
        ("iceberg:j.jdbc_catalog.other", TableNotFoundError, "has no table jdbc_catalog.other"),
        ("iceberg:pond.a.b", UsageError, "has no catalog 'pond'"),
        ("iceberg:j.b", UsageError, "not the name of a table in a catalog"),
    ):
        with pytest.raises(error, match=message):
            opened(name)


def test_a_namespace_is_a_schema_of_a_file_of_tables(laid_copy: Laid, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg")
    root = laid_copy("jdbc_catalog")
    monkeypatch.setenv("PYICEBERG_CATALOG__J__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__J__URI", f"sqlite:///{root.parent}/catalog.db")
    file = root.parent / "tables.yaml"
    file.write_text("folders: [{schema: 'iceberg:j.jdbc_catalog', include: [table]}]\n")
    (found,) = WatchConfig.load(str(file)).tables
    assert (found.name, found.table, found.format) == ("jdbc_catalog/table", "iceberg:j.jdbc_catalog.table", "iceberg")
    assert found.open().uri == f"file://{root}"
    for name, error, said in (
        ("iceberg:j.other", TableNotFoundError, "other"),
        ("iceberg:pond.a", UsageError, "has no catalog 'pond'"),
        ("iceberg:j.*", UsageError, "not the name of a namespace"),
    ):
        file.write_text(f"folders: [{{schema: '{name}'}}]\n")
        with pytest.raises((error, UsageError), match=f"{re.escape(said)}|contains no table"):
            WatchConfig.load(str(file))


def test_folders_are_searched_for_tables(laid: Laid) -> None:
    laid("plain"), laid("jdbc_catalog")
    found = {each.path: each.format for each in find_tables(str(laid("plain").parent.parent))}
    assert found.items() >= {"plain/table": "iceberg", "jdbc_catalog/table": "iceberg"}.items()


# -- what it may say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda body: body.update({"format-version": 4}), UnsupportedFeatureError, "has format version 4"),
        (lambda body: body.update({"encryption-keys": [{"key-id": "1"}]}), UnsupportedFeatureError, "is encrypted"),
        (
            lambda body: body["snapshots"][-1].update({"key-id": "1"}),
            UnsupportedFeatureError,
            "manifests are encrypted",
        ),
        (
            lambda body: body["schemas"][-1]["fields"][0].update({"type": "interval"}),
            UnsupportedFeatureError,
            "interval",
        ),
        (lambda body: body.pop("location"), DamagedTableError, "location is missing"),
        (lambda body: body.update({"current-schema-id": 7}), DamagedTableError, "does not exist"),
        (lambda body: body["refs"]["main"].update({"snapshot-id": 7}), DamagedTableError, "names snapshot 7"),
        (lambda body: body["snapshots"][-1].update({"timestamp-ms": "x"}), DamagedTableError, "timestamp-ms is 'x'"),
        (lambda body: body["snapshots"][-1].update({"manifest-list": "/x.avro"}), DamagedTableError, "does not exist"),
    ],
)
def test_what_is_not_read(
    laid_copy: Laid, change: Callable[[dict[str, Any]], object], error: type[Exception], message: str
) -> None:
    root = laid_copy("plain")
    changed(root, change)
    with pytest.raises(error, match=message):
        opened(root).snapshot()
    assert main(["health", str(root), "--json"]) == error.exit_code  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\x1f\x8b\x08rubbish", gzip.compress(b"{}", mtime=0)[:-4]])
def test_damaged_metadata(laid_copy: Laid, data: bytes) -> None:
    root = laid_copy("plain")
    newest(root).write_bytes(data)
    with pytest.raises(DamagedTableError, match=r"v6.metadata.json"):
        opened(root).snapshot()


@pytest.mark.parametrize("damage", [b"", b"Obj\x01", b"rubbish"])
def test_damaged_manifests_are_named(laid_copy: Laid, damage: bytes) -> None:
    root = laid_copy("plain")
    for path in root.glob("metadata/*-m0.avro"):
        path.write_bytes(damage)
    with pytest.raises(DamagedTableError, match=r"metadata/[0-9a-f-]+-m0.avro: "):
        opened(root).snapshot()


def test_a_table_that_was_moved_says_so(laid_copy: Laid, tmp_path: Path) -> None:
    laid_copy("plain").rename(tmp_path / "elsewhere")
    with pytest.raises(DamagedTableError, match="copied or moved still names the files of its old place"):
        opened(tmp_path / "elsewhere").snapshot()


def test_a_table_without_snapshots(laid_copy: Laid) -> None:
    root = laid_copy("plain")
    for none in (None, -1):
        changed(root, lambda body: body.update({"current-snapshot-id": none, "refs": {}, "snapshots": []}))  # noqa: B023
        table = opened(root)
        assert (table.version(), health(table.snapshot()).counts.files, table.history()) == (0, 0, [])
        assert table.changes_since(None).commits == ()


# -- references and time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["snapshot-log", "name-mapping"])
def test_numbers_beyond_all_integers_are_damage(tmp_path: Path, part: str) -> None:
    """JSON has them, and Python reads them as infinite."""
    builder = IcebergBuilder(tmp_path)
    builder.create({"id": "long"})
    builder.append(pa.table({"id": [1]}))
    mapping = '[{"field-id": 1e999, "names": []}]'

    def change(body: dict[str, Any]) -> None:
        if part == "name-mapping":
            body["properties"]["schema.name-mapping.default"] = mapping
        else:
            body["snapshot-log"].append({"timestamp-ms": "huge", "snapshot-id": 1})

    edit(tmp_path, change)
    newest = tmp_path / "metadata" / "v3.metadata.json"
    newest.write_text(newest.read_text().replace('"huge"', "1e999"))
    table = opened(tmp_path)
    with pytest.raises(DamagedTableError, match=rf"{part}.* is (damaged|not a name mapping)"):
        list(read(table)[1]) if part == "name-mapping" else table.version_at(table.snapshot(), 1)


def test_branches_tags_and_time(laid: Laid) -> None:
    table = opened(laid("branches_tags"))
    assert list(table.tags()) == ["before-audit"]
    assert list(table.branches()) == ["dev"]
    dev = table.branch("dev")
    assert dev.version() == table.branches()["dev"].snapshot != table.version()
    assert dev.snapshot().files.num_rows == 2
    with pytest.raises(UsageError, match="no branch 'nope'"):
        table.branch("nope")
    with pytest.raises(UsageError, match="no snapshot 7"):
        table.snapshot(7)
    snapshot = table.snapshot()
    assert table.version_at(snapshot, snapshot.timestamp) == snapshot.version
    for entry in table.history():
        assert table.version_at(snapshot, entry.timestamp) == entry.version
    with pytest.raises(UsageError, match="does not go back"):
        table.version_at(snapshot, 0)
    # A rolled back snapshot is no ancestor: what follows from it is not what followed.
    stray = 1982105514309337103
    assert not table.follows(table.version(), stray)
    with pytest.raises(UsageError, match="does not follow"):
        table.changes_since(stray)


def test_since_when_rows_are_deleted(laid: Laid) -> None:
    table = opened(laid("plain"))
    oldest = table.oldest_dv(table.snapshot())
    deletes = [each for each in table.history() if each.operation == "delete"]
    assert oldest is not None
    assert (oldest.timestamp, oldest.exact) == (deletes[-1].timestamp, True)
    expired = opened(laid("expired"))
    found = expired.oldest_dv(expired.snapshot())
    assert found is not None
    assert not found.exact


# -- what contradicts itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [["a", "a"], ["known"]])
def test_a_look_finds_a_file_that_is_live_twice(tmp_path: Path, again: list[str]) -> None:
    builder = IcebergBuilder(tmp_path)
    builder.create({"id": "long"})

    def add(names: list[str]) -> None:
        file = {"134": 0, "101": "PARQUET", "102": {}, "103": 1, "104": 9}
        builder.commit("append", added=[{**file, "100": f"{tmp_path}/data/{name}.parquet"} for name in names])

    add(["known", "other"])
    table = opened(tmp_path)
    kept = table.snapshot()
    add(["new"])
    advanced = table.advanced(kept, table.version())
    assert advanced is not None
    assert advanced.files.num_rows == 3
    add(again)
    assert table.advanced(kept, table.version()) is None
    with pytest.raises(DamagedTableError, match=f"{again[-1]}.parquet is live twice"):
        table.snapshot()


def _main_elsewhere(body: dict[str, Any]) -> None:
    body["refs"]["main"]["snapshot-id"] = body["snapshots"][0]["snapshot-id"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_main_elsewhere, "current-snapshot-id is .*, but the branch main is at"),
        (lambda body: body.update({"current-snapshot-id": -1}), "current-snapshot-id is -1, but the branch main is at"),
        (lambda body: body.update({"current-snapshot-id": 12345}), "current-snapshot-id is 12345, but the branch main"),
        (lambda body: body.pop("last-sequence-number"), "last-sequence-number is missing"),
        (lambda body: body.pop("next-row-id"), "next-row-id is missing"),
    ],
)
def test_metadata_that_iceberg_refuses_is_damaged(
    laid_copy: Laid, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """Java's TableMetadata refuses them. pyiceberg follows current-snapshot-id: a vacuum would delete its files."""
    root = laid_copy("plain")
    changed(root, change)
    with pytest.raises(DamagedTableError, match=message):
        opened(root).snapshot()


@pytest.mark.parametrize("verb", ["vacuum --retention 0h --allow-short-retention", "purge", "delete --where true"])
def test_a_copied_folder_is_left_alone(laid_copy: Laid, tmp_path: Path, capsys: Any, verb: str) -> None:
    """Paths are absolute: no version needs the copy's own files, so a vacuum would delete all of them."""
    root, copy = laid_copy("plain"), tmp_path / "backup"
    shutil.copytree(root, copy)
    files = sorted(copy.rglob("*"))
    name, *options = verb.split()
    assert main([name, str(copy), *options, *(["--engine", "local"] if name != "vacuum" else [])]) == 3
    assert f"open it at {root}" in capsys.readouterr().err
    assert sorted(copy.rglob("*")) == files
    assert any("this copy" in each for each in opened(copy).snapshot().warnings)


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("geometry", b"planar OGC:CRS84"),
        ("geography(EPSG:4326, karney)", b"karney EPSG:4326"),
        ({"type": "list", "element-id": 101, "element": "geography"}, b"spherical OGC:CRS84"),
    ],
)
def test_shapes_are_bytes(kind: Any, shapes: bytes) -> None:
    (column,) = parse_schema({"fields": [{"id": 100, "name": "g", "required": False, "type": kind}]}).arrow
    field = column.type.value_field if isinstance(kind, dict) else column
    assert (field.type, logical_type(field), field.metadata[SHAPES]) == (pa.binary(), "geo", shapes)
