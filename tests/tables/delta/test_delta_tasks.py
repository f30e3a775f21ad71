"""Scan and rewrite tasks of Delta snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dv_maintenance.errors import DamagedDeletionVectorError, RefusedError, UsageError
from dv_maintenance.storage import RawName, Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.rows import tasks
from dv_maintenance.tables.delta.rows.tasks import log_path, output_folder, rewrite_tasks, scan_tasks
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.model import FileKey, partition_name
from dv_maintenance.tables.work import DvRef, RewriteBin, RewriteTask, SourceFile

Opened = tuple[Storage, DeltaSnapshot]


@pytest.fixture
def opened(golden: Path) -> Callable[[str], Opened]:
    def open_(name: str) -> Opened:
        storage = Storage(str(golden / "delta" / name))
        return storage, load_snapshot(storage)

    return open_


def keys(snapshot: DeltaSnapshot) -> list[FileKey]:
    return [FileKey(row["path"], row["dv_id"]) for row in snapshot.files.select(["path", "dv_id"]).to_pylist()]


def bins_of(snapshot: DeltaSnapshot) -> list[RewriteBin]:
    """One bin per partition, of all its files."""
    inputs: dict[str, list[FileKey]] = {}
    for key, partition in zip(keys(snapshot), snapshot.files["partition"].to_pylist(), strict=True):
        inputs.setdefault(partition, []).append(key)
    return [RewriteBin(f"bin-{i}", name, tuple(files)) for i, (name, files) in enumerate(inputs.items())]


def with_properties(snapshot: DeltaSnapshot, **properties: str) -> DeltaSnapshot:
    metadata = snapshot.metadata
    return replace(snapshot, metadata=replace(metadata, configuration={**metadata.configuration, **properties}))


def with_column(snapshot: DeltaSnapshot, name: str, values: pa.Array) -> DeltaSnapshot:
    index = snapshot.files.schema.get_field_index(name)
    return replace(snapshot, files=snapshot.files.set_column(index, snapshot.files.schema.field(index), values))


def local(uri: str) -> Path:
    assert uri.startswith("file:///")
    return Path(unquote(uri[7:]))


def deleted(source: SourceFile) -> int:
    """Cardinality of the source's DV, read from where the task says."""
    if source.dv is None:
        return 0

    def fetch(uri: str, start: int, length: int) -> bytes:
        return local(uri).read_bytes()[start : start + length]

    return load(source.dv, fetch, rows=source.rows).cardinality


# -- scan --------------------------------------------------------------------------------------------------------


def test_every_golden_table_scans_to_its_files_and_rows(golden: Path, opened: Callable[[str], Opened]) -> None:
    """Each task names a file of the logged size, its DV loads, and rows minus deleted rows is the row count."""
    checked = 0
    for name, facts in json.loads((golden / "delta" / "expected.json").read_text()).items():
        if facts["kind"] != "rows":
            continue
        storage, snapshot = opened(name)
        found = scan_tasks(storage, snapshot)
        assert [task.sources[0].key for task in found] == keys(snapshot), name
        rows = 0
        for task in found:
            (source,) = task.sources
            path = local(source.uri)
            assert path.stat().st_size == source.size, (name, path)
            physical = pq.read_metadata(path).num_rows
            assert source.rows in (None, physical), (name, path)
            assert set(source.constants) == set(snapshot.partition_columns), name
            assert task.schema.equals(snapshot.schema, check_metadata=True)
            rows += physical - deleted(source)
        assert rows == facts["expected"]["rows"], name
        checked += 1
    assert checked > 50


@pytest.mark.parametrize(
    ("name", "inline"), [("table-with-dv-small", False), ("made-prefix-dv", False), ("made-inline-dv", True)]
)
def test_descriptors_become_references(opened: Callable[[str], Opened], name: str, inline: bool) -> None:
    storage, snapshot = opened(name)
    (ref,) = [source.dv for task in scan_tasks(storage, snapshot) for source in task.sources if source.dv]
    assert (ref.codec, ref.cardinality) == ("delta", 2)
    assert (ref.inline is not None, ref.uri is None, ref.offset is None) == (inline, inline, inline)
    if ref.uri:
        assert ref.uri.startswith(f"{storage.uri}/")
        assert local(ref.uri).exists()


def dv_column(*descriptors: dict[str, Any] | None, of: DeltaSnapshot) -> pa.Array:
    return pa.array(descriptors, of.files.schema.field("dv").type)


def test_absolute_names_of_data_and_dvs(golden_copy: Callable[[str], Path]) -> None:
    """As a shallow clone writes them: the file and its DV are in another table's folder."""
    source = golden_copy("delta/table-with-dv-small")
    moved = source.rename(source.parent / "source with space")
    storage = Storage(str(moved))
    snapshot = load_snapshot(storage)
    (plain,) = scan_tasks(storage, snapshot)[0].sources
    assert plain.dv is not None
    absolute = {
        "storage_type": "p",
        "path_or_inline": plain.dv.uri,
        "offset": 1,
        "size": plain.dv.size,
        "cardinality": 2,
    }
    clone = with_column(snapshot, "path", pa.array([plain.uri]))
    clone = with_column(clone, "dv", dv_column(absolute, of=clone))
    for place in (Storage(str(moved)), Storage(str(moved.parent / "clone"))):
        (task,) = scan_tasks(place, clone)
        assert task.sources[0].key.path == plain.uri
        assert task.sources[0].uri == plain.uri
        assert "%20" in plain.uri
        assert task.sources[0].dv == plain.dv


@pytest.mark.parametrize(
    "change", [{"storage_type": "r"}, {"path_or_inline": "short"}, {"path_or_inline": "../" + "0" * 20}]
)
def test_descriptors_that_lead_nowhere_are_damage(opened: Callable[[str], Opened], change: dict[str, str]) -> None:
    storage, snapshot = opened("table-with-dv-small")
    descriptor = {**snapshot.files["dv"][0].as_py(), **change}
    with pytest.raises(DamagedDeletionVectorError):
        scan_tasks(storage, with_column(snapshot, "dv", dv_column(descriptor, of=snapshot)))


def test_columns_are_chosen_and_ordered(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("dv-with-columnmapping")
    task = scan_tasks(storage, snapshot, ["col2", "part"])[0]
    assert task.schema.names == ["col2", "part"]
    assert task.schema.field("col2").metadata[b"dvm:source"].startswith(b"col-ae46e8ed")
    assert task.match_by == "name"
    assert list(task.sources[0].constants) == ["part"]
    assert scan_tasks(storage, snapshot, ["col1"])[0].sources[0].constants == {}
    for columns in (["col3"], ["COL2"], ["col2", "col2"]):
        with pytest.raises(UsageError, match="choose from part, col1, col2"):
            scan_tasks(storage, snapshot, columns)


def test_id_mode_matches_by_id(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("table-with-columnmapping-mode-id")
    task = scan_tasks(storage, snapshot)[0]
    (rewrite,) = rewrite_tasks(storage, snapshot, bins_of(snapshot), 1)
    assert task.match_by == rewrite.scan.match_by == "id"
    assert all(
        b"PARQUET:field_id" in field.metadata for schema in (task.schema, rewrite.scan.schema) for field in schema
    )


def test_partition_values_are_constants(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("data-reader-partition-values")
    found = [task.sources[0].constants for task in scan_tasks(storage, snapshot)]
    assert sorted(str(constants["as_int"]) for constants in found) == ["0", "1", "None"]
    assert {constants["as_date"] for constants in found} == {18878, None}
    storage, snapshot = opened("deltatbl-special-chars-in-partition-column")
    assert {task.sources[0].constants["c2"] for task in scan_tasks(storage, snapshot)} == {"+ =%0", "+ =%1"}


# -- rewrite -----------------------------------------------------------------------------------------------------


def test_a_rewrite_reads_its_inputs_as_files_hold_them(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("dv-with-columnmapping")
    bins = bins_of(snapshot)
    found = rewrite_tasks(storage, snapshot, bins, 123)
    assert [task.id for task in found] == [wanted.id for wanted in bins]
    assert [tuple(source.key for source in task.scan.sources) for task in found] == [wanted.inputs for wanted in bins]
    for task in found:
        assert task.scan.schema.names == [f"col-{uuid}" for uuid in UUIDS]
        assert task.stats_columns == tuple((f"col-{uuid}",) for uuid in UUIDS)
        assert (task.target_bytes, task.compression, task.scan.match_by) == (123, "snappy", "name")
        assert all(source.constants == {} for source in task.scan.sources)
        assert RewriteTask.from_json(json.loads(json.dumps(task.to_json()))) == task
    sources = [source for task in found for source in task.scan.sources]
    assert sum(map(deleted, sources)) == pc.sum(snapshot.files["deleted_rows"]).as_py() == 2
    assert all(source.rows is not None and source.rows > 0 for source in sources)


UUIDS = ("9f0743fd-a52e-44a7-92e0-72a3d34231b1", "ae46e8ed-607b-4b7c-8a13-44991fe0a2e4")


def test_inputs_keep_the_order_of_the_bin(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("table-with-dv-large")
    backwards = tuple(reversed(keys(snapshot)))[::2]
    (task,) = rewrite_tasks(storage, snapshot, [RewriteBin("b", "", backwards)], 1)
    assert tuple(source.key for source in task.scan.sources) == backwards


def test_files_that_do_not_belong_in_a_bin(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("dv-with-columnmapping")
    first, second, *_ = bins_of(snapshot)
    with_dv = next(key for key in keys(snapshot) if key.dv_id)
    for bins, problem in (
        ([replace(first, inputs=(FileKey("gone.parquet"),))], "gone.parquet.*not live"),
        ([replace(first, inputs=(FileKey(with_dv.path),))], "not live"),
        ([replace(first, inputs=(replace(with_dv, dv_id="uother@1"),))], "uother@1.*not live"),
        ([first, replace(first, id="again")], "two bins"),
        ([replace(first, inputs=first.inputs * 2)], "two bins"),
        ([replace(first, inputs=second.inputs)], "is in the partition 'part="),
    ):
        with pytest.raises(UsageError, match=problem):
            rewrite_tasks(storage, snapshot, bins, 1)


def test_no_bins_no_tasks(opened: Callable[[str], Opened]) -> None:
    assert rewrite_tasks(*opened("table-with-dv-small"), [], 1) == []


@pytest.mark.parametrize(
    ("codec", "expected"), [("ZSTD", "zstd"), ("uncompressed", "none"), ("lz4_raw", "lz4"), ("gzip", "gzip")]
)
def test_the_table_chooses_its_compression(opened: Callable[[str], Opened], codec: str, expected: str) -> None:
    storage, snapshot = opened("table-with-dv-small")
    snapshot = with_properties(snapshot, **{"delta.parquet.compression.codec": codec})
    (task,) = rewrite_tasks(storage, snapshot, bins_of(snapshot), 1)
    assert task.compression == expected
    assert expected == "none" or pa.Codec.is_available(task.compression)


def test_a_compression_nobody_writes_is_refused(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("table-with-dv-small")
    with pytest.raises(RefusedError, match="'lzo'"):
        rewrite_tasks(storage, with_properties(snapshot, **{"delta.parquet.compression.codec": "lzo"}), [], 1)


def test_statistics_are_asked_for_leaves_that_files_have(golden: Path, opened: Callable[[str], Opened]) -> None:
    for name, facts in json.loads((golden / "delta" / "expected.json").read_text()).items():
        if facts["kind"] != "rows":
            continue
        storage, snapshot = opened(name)
        for task in rewrite_tasks(storage, snapshot, bins_of(snapshot)[:1], 1):
            for first, *rest in task.stats_columns:
                field = task.scan.schema.field(first)
                for part in rest:
                    field = field.type.field(part)
                assert not pa.types.is_struct(field.type), (name, field)
                assert not pa.types.is_null(field.type), (name, field)


# -- places ------------------------------------------------------------------------------------------------------


def test_new_files_go_where_spark_puts_them(opened: Callable[[str], Opened]) -> None:
    """The folder of the output is the folder of the inputs, special characters and all."""
    for name in ("deltatbl-special-chars-in-partition-column", "data-reader-partition-values", "app-txn-no-checkpoint"):
        storage, snapshot = opened(name)
        for task in rewrite_tasks(storage, snapshot, bins_of(snapshot), 1):
            folders = {source.uri.rsplit("/", 1)[0] for source in task.scan.sources}
            # A writer's session zone and spelling show in the folder of a timestamp; nothing reads it.
            if "as_timestamp" not in task.output_uri:
                assert folders == {task.output_uri}
            assert log_path(storage, f"{task.output_uri}/new.parquet").count("/") == len(snapshot.partition_columns)


def test_an_unpartitioned_table_writes_to_its_root(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("table-with-dv-small")
    (task,) = rewrite_tasks(storage, snapshot, bins_of(snapshot), 1)
    assert task.output_uri == storage.uri
    assert log_path(storage, f"{task.output_uri}/a b.parquet") == "a%20b.parquet"


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        (None, "c=__HIVE_DEFAULT_PARTITION__"),
        ("", "c=__HIVE_DEFAULT_PARTITION__"),
        ("a b", "c=a b"),
        ("é/=:%", "c=é%2F%3D%3A%25"),
        ("\x01\x1f\x7f\"#'*?\\{[]^", "c=%01%1F%7F%22%23%27%2A%3F%5C%7B%5B%5D%5E"),
        ("}~`|<>&$!@,;+()-._", "c=}~`|<>&$!@,;+()-._"),
        ("..", "c=.."),
    ],
)
def test_folder_names_are_escaped_as_hive_does(opened: Callable[[str], Opened], value: str | None, folder: str) -> None:
    storage, snapshot = opened("table-with-dv-small")
    wanted = RewriteBin("b", partition_name({"c": value}), ())
    assert output_folder(snapshot, wanted) == folder
    (task,) = rewrite_tasks(storage, snapshot, [wanted], 1)
    assert storage.path_of(RawName(log_path(storage, f"{task.output_uri}/f.parquet"))) == f"{folder}/f.parquet"


def test_mapped_and_spread_tables_get_short_folders_that_vacuum_sees(opened: Callable[[str], Opened]) -> None:
    _, mapped = opened("dv-with-columnmapping")
    _, plain = opened("table-with-dv-small")
    spread = with_properties(plain, **{"delta.randomizeFilePrefixes": "true"})
    for snapshot in (mapped, spread):
        folders = [output_folder(snapshot, RewriteBin(f"b{i}", "part=1", ())) for i in range(50)]
        assert all(len(folder) == 2 and folder.isalnum() and folder.isascii() for folder in folders)
        assert len(set(folders)) > 25
        assert folders == [output_folder(snapshot, RewriteBin(f"b{i}", "part=1", ())) for i in range(50)]


def test_log_paths_are_encoded_once_more_than_names(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "tab le%"))
    uri = storage.uri_of("c=a%2Fb ü#/part-0.parquet")
    raw = log_path(storage, uri)
    assert raw == "c=a%252Fb%20%C3%BC%23/part-0.parquet"
    assert storage.uri_of(storage.path_of(RawName(raw))) == uri
    assert log_path(storage, "s3://other/f%20.parquet") == "s3://other/f%20.parquet"


def test_only_the_files_of_a_bin_become_objects(
    opened: Callable[[str], Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, snapshot = opened("table-with-dv-large")
    made: list[FileKey] = []

    def counted(**fields: Any) -> SourceFile:
        made.append(fields["key"])
        return SourceFile(**fields)

    monkeypatch.setattr(tasks, "SourceFile", counted)
    wanted = keys(snapshot)[3]
    rewrite_tasks(storage, snapshot, [RewriteBin("b", "", (wanted,))], 1)
    assert made == [wanted]


def test_references_are_plain_values(opened: Callable[[str], Opened]) -> None:
    storage, snapshot = opened("made-inline-dv")
    (source,) = [task.sources[0] for task in scan_tasks(storage, snapshot) if task.sources[0].dv]
    assert isinstance(source.dv, DvRef)
    assert source.dv.size == snapshot.files.filter(snapshot.files["dv_id"].is_valid())["dv"][0].as_py()["size"]
