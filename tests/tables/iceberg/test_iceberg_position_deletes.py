"""DELETE and its like in format version 2: the position delete files that they write, replace, and leave."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from support.duckdb_iceberg import connected
from support.iceberg_edits import edit
from support.tables import iceberg_table as opened

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.avro.container import header_of, read_records
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.health import health
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.vacuum import vacuum
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.tables.iceberg.table import IcebergTable
from dv_maintenance.testing.backends import IcebergBackend
from dv_maintenance.testing.history import InterferingEngine
from dv_maintenance.units import epoch_millis

PATH, POSITION = 2147483546, 2147483545
LONG = "a partition whose name is far longer than the sixteen characters that bounds of text have"


def made(place: Path, **properties: str) -> IcebergBackend:
    """Two files of ten rows in one partition, one of three in another."""
    names = {name.replace("__", "-").replace("_", "."): value for name, value in properties.items()}
    backend = IcebergBackend(str(place), properties={"format-version": "2", **names})
    backend.create()
    backend.append(LONG, [(at, LONG, "v") for at in range(10)])
    backend.append(LONG, [(at, LONG, "v") for at in range(10, 20)])
    backend.append("b", [(at, "b", "v") for at in range(20, 23)])
    return backend


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return opened(made(tmp_path / "t").place)


def deleted(table: IcebergTable, condition: str) -> None:
    delete(opened(table.uri), LocalEngine(), condition)


def ids(table: IcebergTable) -> list[int]:
    _, batches = read(opened(table.uri), None, columns=["id"])
    return sorted(row["id"] for batch in batches for row in batch.to_pylist())


def entries(table: IcebergTable) -> list[dict[str, Any]]:
    """Live entries of delete files in the newest manifests, by field id."""
    return [
        each
        for manifest in opened(table.uri).snapshot().entries.by_manifest
        if manifest.content == 1
        for each in read_records(table.storage.get(table.path_of(manifest.path)), None, by_id=True)
        if each["0"] != 2
    ]


def positions(table: IcebergTable) -> dict[str, list[tuple[str, list[int]]]]:
    """What live delete files have: by their names, each data file and positions."""
    found = opened(table.uri).snapshot()
    return {
        file.rpartition("/")[2]: sorted((data, dv.positions().tolist()) for data, dv in each.positions.items())
        for file, each in found.position_deletes.items()
    }


def data_files(table: IcebergTable) -> dict[int, str]:
    """By their first id."""
    found = {}
    for path in opened(table.uri).snapshot().files["path"].to_pylist():
        with table.storage.open_input(table.path_of(path)) as file:
            found[pq.read_table(file)["id"][0].as_py()] = path
    return found


# -- as Spark with Iceberg 1.12 writes them ----------------------------------------------------------------------------


def test_a_delete_file_of_one_data_file(table: IcebergTable) -> None:
    deleted(table, "id IN (17, 3, 11, 19)")
    files = data_files(table)
    found = {each["2"]["103"]: each for each in entries(table)}
    assert found.keys() == {1, 3}
    entry, file = found[3], found[3]["2"]
    assert (entry["0"], entry["3"], entry["4"]) == (1, None, None)  # it inherits its sequence numbers
    assert (file["134"], file["101"], file["102"]) == (1, "PARQUET", {"1000": LONG})
    # The path in full, since readers know by it that it is of one data file; no counts, no order.
    bounds = [{PATH: files[10].encode(), POSITION: struct.pack("<q", at)} for at in (1, 9)]
    for name, key, value, wanted in (("125", "126", "127", bounds[0]), ("128", "129", "130", bounds[1])):
        assert {each[key]: each[value] for each in file[name]} == wanted
    assert [file.get(name) for name in ("109", "110", "137", "131", "135", "140", "143")] == [None] * 7
    assert {each["117"] for each in file["108"]} == {PATH, POSITION}
    assert file["132"] == [4]
    assert file["100"].rpartition("/")[0] == files[10].rpartition("/")[0]

    place = table.path_of(file["100"])
    assert table.storage.head(place).size == file["104"]
    with table.storage.open_input(place) as stored:
        opened_file = pq.ParquetFile(stored)
        assert opened_file.metadata.metadata == {b"delete-type": b"position"}
        assert opened_file.metadata.row_group(0).column(0).compression == "ZSTD"
        columns = [(each.name, each.type, each.nullable, each.metadata) for each in opened_file.schema_arrow]
        assert columns == [
            ("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
            ("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
        ]
        assert opened_file.read().to_pydict() == {"file_path": [files[10]] * 3, "pos": [1, 7, 9]}


@pytest.mark.parametrize(("codec", "wanted"), [("", "zlib"), ("zstd", "zstd"), ("lzo", "zlib")])
def test_a_delete_file_in_orc(tmp_path: Path, codec: str, wanted: str) -> None:
    """Readers find its columns by attributes."""
    codecs = {"write_orc_compression__codec": "snappy", "write_delete_orc_compression__codec": codec} if codec else {}
    table = opened(made(tmp_path / "t", write_delete_format_default="orc", **codecs).place)
    before = table.snapshot()
    deleted(table, "id IN (17, 3, 11)")
    deleted(table, "id = 19")
    files = data_files(table)
    file = next(each["2"] for each in entries(table) if each["2"]["103"] == 3)
    assert (file["101"], file["100"].rpartition(".")[2], file["132"]) == ("ORC", "orc", [3])
    bounds = [{PATH: files[10].encode(), POSITION: struct.pack("<q", at)} for at in (1, 9)]
    for name, key, value, limit in (("125", "126", "127", bounds[0]), ("128", "129", "130", bounds[1])):
        assert {each[key]: each[value] for each in file[name]} == limit
    with table.storage.open_input(table.path_of(file["100"])) as stored:
        opened_file = orc.ORCFile(stored)
        assert opened_file.compression.lower() == wanted
        assert opened_file.read().to_pydict() == {"file_path": [files[10]] * 3, "pos": [1, 7, 9]}
        attributes = [each.metadata for each in opened_file.schema]
    assert [each[b"iceberg.id"] for each in attributes] == [b"2147483546", b"2147483545"]
    assert {each[b"iceberg.required"] for each in attributes} == {b"true"}
    assert attributes[1][b"iceberg.long-type"] == b"LONG"
    assert ids(table) == [at for at in range(23) if at not in {3, 11, 17, 19}]
    assert purge(opened(table.uri), LocalEngine()).verified
    assert ids(table) == [at for at in range(23) if at not in {3, 11, 17, 19}]
    assert not opened(table.uri).snapshot().position_deletes
    assert before.metadata.format_version == 2


@pytest.mark.parametrize(("codec", "wanted"), [("", "deflate"), ("zstd", "zstandard"), ("lzo", "deflate")])
def test_a_delete_file_in_avro(tmp_path: Path, codec: str, wanted: str) -> None:
    codecs = {"write_avro_compression__codec": "snappy", "write_delete_avro_compression__codec": codec} if codec else {}
    table = opened(made(tmp_path / "t", write_delete_format_default="avro", **codecs).place)
    deleted(table, "id IN (17, 3, 11)")
    deleted(table, "id = 19")
    files = data_files(table)
    file = next(each["2"] for each in entries(table) if each["2"]["103"] == 3)
    assert (file["101"], file["100"].rpartition(".")[2], file["132"]) == ("AVRO", "avro", None)
    data = table.storage.get(table.path_of(file["100"]))
    assert file["104"] == len(data)
    assert [*read_records(data, None)] == [{"file_path": files[10], "pos": at} for at in (1, 7, 9)]
    header = header_of(data)
    assert (header["avro.codec"].decode(), header["delete-type"]) == (wanted, b"position")
    assert json.loads(header["avro.schema"])["fields"] == [
        {"name": "file_path", "type": "string", "field-id": 2147483546},
        {"name": "pos", "type": "long", "field-id": 2147483545},
    ]
    assert ids(table) == [at for at in range(23) if at not in {3, 11, 17, 19}]
    assert purge(opened(table.uri), LocalEngine()).verified
    assert ids(table) == [at for at in range(23) if at not in {3, 11, 17, 19}]
    assert not opened(table.uri).snapshot().position_deletes


def test_the_summary(table: IcebergTable) -> None:
    deleted(table, "id IN (3, 11, 12)")
    deleted(table, "id IN (13, 21)")
    snapshot = table.snapshot()
    assert snapshot.entry is not None
    summary = {name: text for name, text in snapshot.entry.summary.items() if "size" not in name}
    del summary["dv-maintenance-version"]
    assert summary == {
        "operation": "delete",
        "added-delete-files": "2",
        "added-position-delete-files": "2",
        "added-position-deletes": "4",
        "removed-delete-files": "1",
        "removed-position-delete-files": "1",
        "removed-position-deletes": "2",
        "changed-partition-count": "2",
    }
    sizes = {each["2"]["103"]: each["2"]["104"] for each in entries(table)}
    added = snapshot.entry.summary["added-files-size"]
    assert int(added) == sizes[3] + sum(
        each["2"]["104"] for each in entries(table) if each["2"]["102"] == {"1000": "b"}
    )


@pytest.mark.parametrize(
    ("properties", "codec"),
    [
        ({"write_delete_parquet_compression__codec": "gzip", "write_parquet_compression__codec": "snappy"}, "GZIP"),
        ({"write_parquet_compression__codec": "snappy"}, "SNAPPY"),
        ({"write_delete_parquet_compression__codec": "uncompressed"}, "UNCOMPRESSED"),
        ({"write_delete_parquet_compression__codec": "lzo"}, "ZSTD"),
    ],
)
def test_the_codec_of_delete_files(tmp_path: Path, properties: dict[str, str], codec: str) -> None:
    table = opened(made(tmp_path / "t", **properties).place)
    deleted(table, "id = 3")
    (entry,) = entries(table)
    with table.storage.open_input(table.path_of(entry["2"]["100"])) as stored:
        assert pq.ParquetFile(stored).metadata.row_group(0).column(1).compression == codec


# -- one after the other -----------------------------------------------------------------------------------------------


def test_a_data_file_has_one_delete_file_at_most(table: IcebergTable) -> None:
    files = data_files(table)
    for number in (5, 3, 9, 12):
        deleted(table, f"id = {number}")
    assert sorted(positions(table).values()) == sorted([[(files[0], [3, 5, 9])], [(files[10], [2])]])
    assert ids(table) == [at for at in range(23) if at not in {3, 5, 9, 12}]
    deleted(table, "id < 10")  # a data file without rows goes, with its delete file
    assert list(positions(table).values()) == [[(files[10], [2])]]
    assert data_files(table).keys() == {10, 20}
    assert not health(table.snapshot()).warnings


def shared(table: IcebergTable, backend: IcebergBackend, rows: dict[str, list[int]]) -> None:
    """Another writer deletes rows of several data files with one delete file."""
    builder: Any = backend._builder
    names = [data for data, some in rows.items() for _ in some]
    path = "data/shared-deletes.parquet"
    with table.storage.open_output(path) as sink:
        pq.write_table(
            pa.table({"file_path": names, "pos": [position for some in rows.values() for position in some]}), sink
        )
    size = table.storage.head(path).size
    file = {"134": 1, "100": f"{builder.location}/{path}", "101": "PARQUET", "103": len(names), "104": size}
    builder.commit("delete", deletes=[{**file, "102": {"1000": LONG}}])


def test_a_delete_file_of_several_data_files_stays(tmp_path: Path) -> None:
    backend = made(tmp_path / "t")
    table = opened(backend.place)
    files = data_files(table)
    theirs = sorted([(files[0], [1, 2]), (files[10], [4])])
    shared(table, backend, dict(theirs))
    deleted(table, "id IN (3, 15)")
    assert positions(table).pop("shared-deletes.parquet") == theirs
    deleted(table, "id IN (4, 16)")
    found = positions(table)
    assert found.pop("shared-deletes.parquet") == theirs
    # Its rows are not repeated.
    assert sorted(found.values()) == sorted([[(files[0], [3, 4])], [(files[10], [5, 6])]])
    left = [at for at in range(23) if at not in {1, 2, 3, 4, 14, 15, 16}]
    assert ids(table) == left
    deleted(table, "id < 10")
    assert "shared-deletes.parquet" in positions(table)
    assert purge(opened(table.uri), LocalEngine()).verified
    assert positions(table) == {}
    assert ids(table) == [at for at in left if at > 9]


def test_one_that_says_nothing_about_its_data_file_stays(tmp_path: Path) -> None:
    """Bounds of the paths are optional."""
    backend = made(tmp_path / "t")
    table = opened(backend.place)
    files = data_files(table)
    shared(table, backend, {files[0]: [1, 2]})
    deleted(table, "id = 3")
    assert sorted(positions(table).values()) == [[(files[0], [1, 2])], [(files[0], [3])]]
    assert ids(table) == [0, *range(4, 23)]


def test_rows_that_others_delete_during_a_rewrite(table: IcebergTable) -> None:
    """They are deleted in the new files, with position deletes that the age of the files allows for."""
    deleted(table, "id IN (1, 11)")
    engine = InterferingEngine(LocalEngine(), lambda: deleted(table, "id IN (5, 12, 13)"))
    report = purge(opened(table.uri), engine)
    assert report.verified
    assert ids(table) == [at for at in range(23) if at not in {1, 5, 11, 12, 13}]
    assert sum(len(dv) for each in positions(table).values() for _, dv in each) == 3
    assert engine.runs == 1


# -- maintenance -------------------------------------------------------------------------------------------------------


def test_they_are_planned_for_purged_and_vacuumed(table: IcebergTable) -> None:
    deleted(table, "id IN (1, 2, 3, 4, 5, 11)")
    counts = health(table.snapshot()).counts
    assert (counts.files_with_dv, counts.deleted_rows, counts.live_rows) == (2, 6, 17)
    assert not fsck(table).files_damaged
    plan = build_plan(table.snapshot(), Policy(max_deleted_ratio=0.3, min_file_size=0))
    (step,) = plan.steps
    assert step.expected.dvs_removed == 1
    before = ids(table)
    gone = {file for file, ((_, dv),) in positions(table).items() if len(dv) == 5}
    assert maintain(table, LocalEngine(), Policy(max_deleted_ratio=0.3, min_file_size=0)).verified
    assert ids(table) == before
    assert len(gone) == 1
    assert gone.isdisjoint(positions(table))
    assert purge(opened(table.uri), LocalEngine()).verified
    assert (positions(table), ids(table)) == ({}, before)
    there = {path.name for path in Path(table.uri.removeprefix("file://")).rglob("*-deletes.parquet")}
    assert len(there) == 2
    report = vacuum(opened(table.uri), VacuumRequest(now=epoch_millis() + IcebergBackend.retention + 1000))
    assert report.data_files == 2 + len(there)
    assert not list(Path(table.uri.removeprefix("file://")).rglob("*-deletes.parquet"))
    assert ids(opened(table.uri)) == before


def test_a_delete_file_that_is_lost_is_damage(table: IcebergTable) -> None:
    deleted(table, "id = 1")
    (entry,) = entries(table)
    table.storage.delete([table.path_of(entry["2"]["100"])])
    (damage,) = fsck(opened(table.uri)).damage
    assert "-deletes.parquet: it does not exist" in damage.reason


def test_the_age_of_the_oldest_deleted_row(table: IcebergTable) -> None:
    """Not that of the delete file that replaced others, whoever wrote them."""
    deleted(table, "id = 1")
    first = table.snapshot().timestamp
    for number in (2, 3, 12):
        deleted(table, f"id = {number}")
    found = table.oldest_dv(opened(table.uri).snapshot())
    assert found is not None
    assert (found.timestamp, found.exact) == (first, True)
    entry = table.history()[1]
    assert (entry.dvs_added, entry.dvs_removed, entry.rows_deleted_by_dvs) == (1, 1, 1)


# -- of other writers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 2])
def test_a_table_of_pyiceberg_in_a_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Its manifests are the pattern for ours; it and DuckDB read what ours leave, and it goes on."""
    pytest.importorskip("pyiceberg.catalog.sql")
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import IdentityTransform

    catalog = SqlCatalog("t", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    rows = pa.table({"id": range(12), "p": ["a", "b", None] * 4})
    theirs = catalog.create_table("n.t", rows.schema, properties={"format-version": str(first)})
    with theirs.update_spec() as update:
        update.add_field("p", IdentityTransform(), "p")
    theirs.append(rows)
    if first < 2:
        with theirs.transaction() as transaction:
            transaction.upgrade_table_version(2)
    monkeypatch.setenv("PYICEBERG_CATALOG__T__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__T__URI", f"sqlite:///{tmp_path}/catalog.db")

    def agree(wanted: list[int]) -> None:
        theirs.refresh()
        assert sorted(theirs.scan().to_arrow()["id"].to_pylist()) == wanted
        found = connected().execute("SELECT id FROM iceberg_scan(?)", [theirs.metadata_location]).fetchall()
        assert sorted(number for (number,) in found) == wanted
        _, batches = read(open_table("iceberg:t.n.t"), None)
        assert sorted(row["id"] for batch in batches for row in batch.to_pylist()) == wanted

    for condition in ("id IN (0, 1, 2)", "id IN (3, 5)"):
        assert delete(open_table("iceberg:t.n.t"), LocalEngine(), condition).rows_deleted
    agree([4, *range(6, 12)])
    assert len(theirs.inspect.delete_files()) == 3
    assert theirs.scan(row_filter="id < 8").to_arrow().num_rows == 3
    theirs.append(pa.table({"id": [20, 21], "p": ["a", "a"]}))
    theirs.delete("id = 21")
    assert delete(open_table("iceberg:t.n.t"), LocalEngine(), "id = 4").rows_deleted == 1
    agree([*range(6, 12), 20])
    assert purge(open_table("iceberg:t.n.t"), LocalEngine()).verified
    agree([*range(6, 12), 20])


# -- refused -----------------------------------------------------------------------------------------------------------


def to_version_1(body: dict[str, Any]) -> None:
    body["format-version"] = 1


def set_to(name: str, value: str) -> Callable[[dict[str, Any]], None]:
    return lambda body: body["properties"].update({name: value})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (to_version_1, "format version 1 has no deletes; set its format-version to 2 or 3"),
        (set_to("write.delete.format.default", "VORTEX"), r"must be vortex.*\(write.delete.format.default\)"),
        (set_to("write.format.default", "vortex"), r"must be vortex.*\(write.format.default\)"),
    ],
)
def test_deletes_that_are_not_written(
    table: IcebergTable, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    edit(Path(table.uri.removeprefix("file://")), change)
    for verb in ("delete", "update", "merge"):
        with pytest.raises(RefusedError, match=reason):
            table.check_writable(opened(table.uri).snapshot(), verb)


def test_data_files_of_another_format_with_deletes_in_parquet(table: IcebergTable) -> None:
    place = Path(table.uri.removeprefix("file://"))
    edit(place, set_to("write.format.default", "orc"))
    edit(place, set_to("write.delete.format.default", "parquet"))
    deleted(table, "id = 1")
    assert ids(table) == [0, *range(2, 23)]
