"""What commits to Iceberg tables leave: rows and their lineage, metadata, manifests; and what concurrent commits do to
them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import sampled
from golden_tables import names_in
from support.places import GOLDEN
from support.releases import golden_params, needs_variants
from support.tables import iceberg_table as opened

from dv_maintenance.cli import main
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.iceberg.commit.values import encoded
from dv_maintenance.tables.iceberg.log.history import OURS
from dv_maintenance.tables.iceberg.log.manifests import manifests_of
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import CommitOutcome, Replacement
from dv_maintenance.tables.work import RewriteBin
from dv_maintenance.testing.backends import IcebergBackend
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

EXPECTED: dict[str, dict[str, Any]] = {
    path.parent.name: json.loads(path.read_text()) for path in sorted((GOLDEN / "iceberg").glob("*/expected.json"))
}
ROWS = names_in("iceberg", (name for name, facts in EXPECTED.items() if facts["kind"] == "rows"))
BY_FOLDER = [name for name in ROWS if name != "jdbc_catalog"]

needs_golden = pytest.mark.usefixtures("golden")


def newest_document(place: Path) -> Path:
    return max((place / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name[1:].partition(".")[0]))


def rows_of(table: IcebergTable, version: int | None = None) -> list[str]:
    """With lineage, where the table has it."""
    snapshot = table.snapshot(version)
    columns = [*snapshot.schema.names, *snapshot.hidden_columns.names]
    _, batches = read(table, version, columns=columns)
    return sorted(repr(row) for batch in batches for row in batch.to_pylist())


@needs_golden
@pytest.mark.parametrize("name", sampled(golden_params(BY_FOLDER), 3))
def test_a_purge_changes_no_row_and_no_lineage(laid_copy: Callable[[str], Path], name: str) -> None:
    place = laid_copy(name)
    table = opened(place)
    before = table.snapshot()
    rows = rows_of(table)
    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    after = table.snapshot()
    assert rows_of(table) == rows
    assert after.files["dv_id"].null_count == after.files.num_rows
    if after.version != before.version:
        # Nothing is left that no file needs: no deletion vector, no delete file.
        assert (after.deletes.dvs.num_rows, after.deletes.positions.num_rows, after.deletes.equality) == (0, 0, ())
        assert after.entry is not None
        assert after.entry.operation == "replace"
        assert OURS in after.entry.summary
    assert {each.spec_id for each in after.partitions} <= {each.spec_id for each in before.partitions}
    assert not fsck(table).files_damaged
    assert purge(table, LocalEngine()).version_after == after.version
    # The versions before read as before.
    assert rows_of(table, before.version) == rows


@needs_golden
@pytest.mark.parametrize("threads", [1, 4])  # columns one by one, or several at once
@pytest.mark.parametrize(
    ("name", "says"), [("ts_nano", "u (UUID)"), pytest.param("variant_col", "v (Variant(1))", marks=needs_variants)]
)
def test_annotations_stay(laid_copy: Callable[[str], Path], name: str, says: str, threads: int) -> None:
    place = laid_copy(name)
    old = {*(place / "data").iterdir()}
    assert purge(opened(place), LocalEngine(threads)).verified
    (new,) = {*(place / "data").iterdir()} - old
    assert says in str(pq.ParquetFile(new).schema)


@pytest.mark.parametrize(
    ("kind", "fails"),
    [
        ("unknown", False),
        ({"type": "struct", "fields": [{"id": 101, "name": "a", "type": "unknown", "required": False}]}, True),
        ({"type": "list", "element-id": 101, "element": "unknown", "element-required": False}, True),
    ],
)
@needs_golden
def test_what_has_an_unknown_type_is_not_stored(laid_copy: Callable[[str], Path], kind: Any, *, fails: bool) -> None:
    root = laid_copy("mini")
    newest = newest_document(root)
    body = json.loads(newest.read_text())
    for schema in body["schemas"]:
        schema["fields"].append({"id": 100, "name": "never", "required": False, "type": kind})
    newest.write_text(json.dumps(body))
    table = opened(root)
    if fails:
        with pytest.raises(RefusedError, match="never holds lists, maps or structs of an unknown type"):
            table.check_writable(table.snapshot(), "rewrite")
        return
    rows = rows_of(table)
    assert purge(table, LocalEngine()).verified
    assert rows_of(table) == rows
    table.check_writable(table.snapshot(), "update")


@needs_golden
def test_only_what_says_what_is_newest_is_committed_to(laid_copy: Callable[[str], Path], tmp_path: Path) -> None:
    place = laid_copy("mini")
    (file,) = (each for each in (place / "metadata").glob("*.metadata.json") if "v3" in each.name)
    with pytest.raises(RefusedError, match="named by a metadata file"):
        purge(opened(file), LocalEngine())
    shutil.move(file, place / "metadata" / "00003-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee.metadata.json")
    for other in [*(place / "metadata").glob("v*"), place / "metadata" / "version-hint.text"]:
        other.unlink(missing_ok=True)
    with pytest.raises(RefusedError, match="name the table by its catalog"):
        purge(opened(place), LocalEngine())


@needs_golden
def test_a_table_of_a_sql_catalog(laid_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyiceberg.catalog.sql")
    place = laid_copy("jdbc_catalog")
    monkeypatch.setenv("PYICEBERG_CATALOG__J__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__J__URI", f"sqlite:///{place.parent / 'catalog.db'}")
    name = "iceberg:j.jdbc_catalog.table"
    table = opened(name)
    rows = rows_of(table)
    stale = table.snapshot()
    assert purge(table, LocalEngine()).verified
    assert rows_of(opened(name)) == rows
    after = opened(name).snapshot()
    # As the one before it: packed, with the next number.
    assert after.metadata.path.endswith(".gz.metadata.json")
    assert (place / after.metadata.path).read_bytes()[:2] == b"\x1f\x8b"
    # A commit on a pointer that has moved builds on the new one, and finds its inputs gone.
    (file,) = stale.files.slice(0, 1).to_pylist()
    outcome = (
        opened(name).commit(
            stale, [Replacement("1", file["partition"], (FileKey(file["path"], file["dv_id"]),))], operation={}
        )
        if file["deleted_rows"] == file["record_count"]
        else None
    )
    assert outcome is None or outcome.lost == ("1",)


# -- concurrent commits ------------------------------------------------------------------------------------------------


def rewritten(table: IcebergTable, version: int, names: slice = slice(None)) -> CommitOutcome:
    """A rewrite that read an older version, committed now."""
    base = table.snapshot(version)
    rows = base.files.to_pylist()[names]
    keys = tuple(FileKey(row["path"], row["dv_id"]) for row in rows)
    (task,) = table.rewrite_tasks(base, [RewriteBin("1", rows[0]["partition"], keys)], 1 << 30)
    (result,) = LocalEngine().run([task], storage_options={})
    kept = tuple(a - b for a, b in zip(result.source_rows, result.source_purged, strict=True))
    return table.commit(base, [Replacement("1", rows[0]["partition"], keys, result.outputs, kept)], operation={})


@needs_golden
@pytest.mark.parametrize("back", [1, 2])
def test_deletes_since_are_carried_over(laid_copy: Callable[[str], Path], back: int) -> None:
    """Spark replaced deletion vectors after the version that the rewrite read."""
    table = opened(laid_copy("plain"))
    rows, head = rows_of(table), table.version()
    base = [each.version for each in table.history()][back]
    outcome = rewritten(table, base)
    assert outcome.committed == ("1",)
    (rebased,) = outcome.rebased
    assert sum(rebased.deleted) > 0
    assert rows_of(table) == rows
    after = table.snapshot()
    assert table.parent_of(after.version) == head
    assert after.deletes.dvs.num_rows == 1


@needs_golden
def test_a_file_that_another_rewrite_took_is_lost(laid_copy: Callable[[str], Path]) -> None:
    table = opened(laid_copy("plain"))
    base = table.version()
    purge(table, LocalEngine())
    before = table.version()
    outcome = rewritten(table, base)
    assert (outcome.version, outcome.lost) == (None, ("1",))
    assert "removed or rewrote" in outcome.reason
    assert table.version() == before


@needs_golden
def test_rows_that_came_back_are_not_lost(laid_copy: Callable[[str], Path]) -> None:
    """A rollback to a version in which rows were live that the rewrite left out."""
    place = laid_copy("plain")
    table = opened(place)
    head, *_, older, _ = [each.version for each in table.history()]
    document = newest_document(place)
    body = json.loads(document.read_text())
    body |= {"current-snapshot-id": older, "refs": {"main": {"type": "branch", "snapshot-id": older}}}
    document.with_name(f"v{int(document.name[1]) + 1}.metadata.json").write_text(json.dumps(body))
    rows = rows_of(table)
    outcome = rewritten(table, head)
    assert outcome.lost == ("1",)
    assert "rolled back" in outcome.reason
    assert rows_of(table) == rows


@needs_golden
def test_appends_and_other_files_do_not_matter(laid_copy: Callable[[str], Path]) -> None:
    table = opened(laid_copy("overwrites"))
    rows = rows_of(table)
    head = table.snapshot()
    assert head.entry is not None
    first, second = head.files.to_pylist()[:2]
    assert rewritten(table, head.version, slice(0, 1)).committed == ("1",)
    # Planned before, committed after: another file.
    outcome = rewritten(table, head.version, slice(1, 2))
    assert outcome.committed == ("1",)
    assert rows_of(table) == rows
    assert not {first["path"], second["path"]} & set(table.snapshot().files["path"].to_pylist())


@needs_golden
@pytest.mark.parametrize(
    ("field", "value"), [("table-uuid", "0" * 8 + "-0000-0000-0000-" + "0" * 12), ("format-version", 2)]
)
def test_a_table_that_was_replaced_is_refused(laid_copy: Callable[[str], Path], field: str, value: Any) -> None:
    place = laid_copy("mini")
    table = opened(place)
    base = table.snapshot()
    keys = tuple(FileKey(row["path"], row["dv_id"]) for row in base.files.to_pylist())
    (task,) = table.rewrite_tasks(base, [RewriteBin("1", "", keys)], 1 << 30)
    (result,) = LocalEngine().run([task], storage_options={})
    document = newest_document(place)
    document.write_text(json.dumps({**json.loads(document.read_text()), field: value}))
    with pytest.raises(RefusedError, match="changed meanwhile"):
        table.commit(base, [Replacement("1", "", keys, result.outputs)], operation={})


# -- metadata and manifests --------------------------------------------------------------------------------------------


def body_of(table: IcebergTable) -> Mapping[str, Any]:
    return table.snapshot().metadata.body


@needs_golden
def test_the_document_is_edited(laid_copy: Callable[[str], Path]) -> None:
    place = laid_copy("mini")
    document = newest_document(place)
    body = json.loads(document.read_text())
    body |= {"from-the-future": {"a": [1]}}
    body["properties"]["write.metadata.previous-versions-max"] = "2"
    document.write_text(json.dumps(body))
    table = opened(place)
    purge(table, LocalEngine())
    after = body_of(table)
    head = after["snapshots"][-1]
    assert after["from-the-future"] == {"a": [1]}
    assert after["last-sequence-number"] == head["sequence-number"] == body["last-sequence-number"] + 1
    assert after["next-row-id"] == body["next-row-id"] + head["added-rows"]
    assert head["first-row-id"] == body["next-row-id"]
    assert after["current-snapshot-id"] == after["refs"]["main"]["snapshot-id"] == head["snapshot-id"]
    assert after["snapshot-log"][-1]["snapshot-id"] == head["snapshot-id"]
    assert [each["metadata-file"].rpartition("/")[2] for each in after["metadata-log"]][-1] == document.name
    assert len(after["metadata-log"]) == 2
    # The golden tables ask for that: what is no longer in the log is gone.
    assert body["properties"]["write.metadata.delete-after-commit.enabled"] == "true"
    named = {each["metadata-file"].rpartition("/")[2] for each in after["metadata-log"]}
    assert {each.name for each in (place / "metadata").glob("v*.json")} == {*named, newest_document(place).name}
    summary = head["summary"]
    assert (summary["total-records"], summary["total-data-files"], summary["total-delete-files"]) == ("60", "1", "0")
    assert (summary["removed-dvs"], summary["deleted-records"], summary["added-records"]) == ("2", "80", "60")
    assert (place / "metadata" / "version-hint.text").read_text() == str(int(document.name[1]) + 1)


@needs_golden
def test_entries_have_counts_and_bounds(laid_copy: Callable[[str], Path]) -> None:
    fastavro = pytest.importorskip("fastavro")
    place = laid_copy("part_identity")
    table = opened(place)
    purge(table, LocalEngine())
    after = table.snapshot()
    ours = [each for each in after.entries.by_manifest if each.snapshot_id == after.version and each.content == 0]
    found = 0
    for manifest in ours:
        with (place / table.path_of(manifest.path)).open("rb") as file:
            reader = fastavro.reader(file)
            header = {"schema", "partition-spec", "partition-spec-id", "format-version", "content"}
            assert header <= set(reader.metadata)
            for entry in reader:
                if entry["status"] != 1:
                    continue
                found += 1
                data = entry["data_file"]
                assert entry["sequence_number"] < (after.entry.sequence if after.entry else 0)
                lower = {each["key"]: each["value"] for each in data["lower_bounds"]}
                counts = {each["key"]: each["value"] for each in data["value_counts"]}
                assert counts[1] == data["record_count"]
                assert 1 in lower
                assert data["split_offsets"] == [4]
    assert found
    for each in manifests_of(table.layout, after.entry):
        assert each.content or each.first_row_id is not None


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, pa.bool_(), "01"),
        (-2, pa.int32(), "feffffff"),
        (1, pa.date32(), "01000000"),
        (-2, pa.int64(), "feffffffffffffff"),
        (1.5, pa.float32(), "0000c03f"),
        ("é", pa.string(), "c3a9"),
        (128, pa.decimal128(9, 2), "0080"),
        (-128, pa.decimal128(9, 2), "80"),
        (0, pa.decimal128(9, 2), "00"),
    ],
)
def test_the_binary_form_of_values(value: Any, kind: pa.DataType, text: str) -> None:
    found = encoded(value, kind)
    assert found is not None
    assert found.hex() == text


def test_manifests_do_not_pile_up(tmp_path: Path) -> None:
    properties = {"commit.manifest.min-count-to-merge": "4"}
    backend = IcebergBackend(str(tmp_path / "t"), properties=properties)
    backend.create()
    for number in range(8):
        backend.append(None, [(number * 2, None, "v"), (number * 2 + 1, None, "w")])
    backend.delete([2, 5])
    table = opened(tmp_path / "t")
    rows = rows_of(table)
    assert len(table.snapshot().entries.by_manifest) == 9
    purge(table, LocalEngine())
    after = table.snapshot()
    # One of the old files, with the new one in it; one in which the deletion vectors are recorded as removed.
    assert len(after.entries.by_manifest) == 2
    assert rows_of(table) == rows
    backend.append(None, [(99, None, "x")])
    assert len(table.snapshot().entries.by_manifest) == 2


@pytest.mark.parametrize("name", ["uncompressed", "UNCOMPRESSED", "lz4_raw"])
def test_codecs_with_two_names_can_be_planned(tmp_path: Path, name: str) -> None:
    """Arrow knows only one of them: a plan and a dry run failed, the run itself did not."""
    builder = IcebergBuilder(str(tmp_path / "t"))
    builder.create({"id": "long"}, properties={"write.parquet.compression-codec": name})
    builder.append(pa.table({"id": pa.array(range(10), pa.int64())}))
    table = [str(tmp_path / "t"), "--engine", "local"]
    assert main(["delete", *table, "--where", "id = 3"]) == 0
    assert [main([*verb]) for verb in (["plan", table[0]], ["purge", *table, "--dry-run"], ["purge", *table])] == [
        0
    ] * 3
    (file,) = (row["path"] for row in open_table(table[0]).snapshot().files.to_pylist())
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(0)
    assert chunk.compression == {"l": "LZ4"}.get(name[0], "UNCOMPRESSED")
