"""Manifest lists that contradict their manifests, or themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.iceberg_edits import edit

from dv_maintenance.dml.delete import delete
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.fsck.check import fsck
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.iceberg.snapshot import load_snapshot
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

fastavro = pytest.importorskip("fastavro")
Records = list[dict[str, Any]]
NONE_LIVE = {"added_files_count": 0, "existing_files_count": 0, "added_rows_count": 0}


def made(place: Path, change: Callable[[Records], Records]) -> IcebergBuilder:
    """Two files of two rows, and one of two of which the first is deleted; its newest manifest list is changed."""
    builder = IcebergBuilder(place)
    builder.create({"id": "long"})
    for first in (1, 3, 5):
        builder.append(pa.table({"id": [first, first + 1]}))
    builder.delete(lambda rows: pc.equal(rows["id"], 5))
    path = newest_list(builder)
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema, records = reader.writer_schema, list(reader)
        metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    for field in schema["fields"]:  # as in version 1
        if field["name"].endswith("rows_count"):
            field["type"] = ["null", "long"]
    with path.open("wb") as file:
        fastavro.writer(file, schema, change(records), metadata=metadata)
    return builder


def newest_list(builder: IcebergBuilder) -> Path:
    snapshot = load_snapshot(builder.layout)
    assert snapshot.entry
    assert snapshot.entry.manifest_list
    return Path(str(snapshot.entry.manifest_list).removeprefix("file://"))


def records_of(path: Path) -> Records:
    with path.open("rb") as file:
        return list(fastavro.reader(file))


def ids(place: Path) -> list[int]:
    schema, batches = read(open_table(str(place)))
    return sorted(pa.Table.from_batches(batches, schema)["id"].to_pylist())


@pytest.mark.parametrize(
    "counts",
    [
        NONE_LIVE,
        # Counts that grow with each commit (https://github.com/JanKaul/iceberg-rust/issues/409).
        {"deleted_files_count": 62, "deleted_rows_count": 16192},
        # https://github.com/ClickHouse/ClickHouse/issues/121222
        {"existing_files_count": 9},
    ],
    ids=["none live", "too many deleted", "too many existing"],
)
def test_a_commit_goes_by_what_manifests_have(tmp_path: Path, counts: dict[str, int]) -> None:
    builder = made(tmp_path, lambda records: [record | counts for record in records])
    assert purge(open_table(str(tmp_path)), LocalEngine()).verified
    assert ids(tmp_path) == [1, 2, 3, 4, 6]
    for record in records_of(newest_list(builder)):
        states = [each["status"] for each in records_of(Path(record["manifest_path"].removeprefix("file://")))]
        stated = [record[f"{name}_files_count"] for name in ("existing", "added", "deleted")]
        assert stated == [states.count(each) for each in range(3)]


def test_a_manifest_that_other_readers_skip_is_a_finding(tmp_path: Path) -> None:
    made(tmp_path, lambda records: [records[0] | NONE_LIVE, *records[1:]])
    (fault,) = fsck(open_table(str(tmp_path))).damage
    assert "has no live files, although it has 1" in fault.reason
    purge(open_table(str(tmp_path)), LocalEngine())
    assert not fsck(open_table(str(tmp_path))).damage


def test_a_manifest_that_is_listed_twice_counts_once(tmp_path: Path) -> None:
    builder = made(tmp_path, lambda records: [records[0], *records])
    assert ids(tmp_path) == [1, 2, 3, 4, 6]
    (fault,) = fsck(open_table(str(tmp_path))).damage
    assert "twice" in fault.reason
    report = purge(open_table(str(tmp_path)), LocalEngine())
    assert report.verified, report.problems
    assert ids(tmp_path) == [1, 2, 3, 4, 6]
    paths = [record["manifest_path"] for record in records_of(newest_list(builder))]
    assert len(set(paths)) == len(paths)


def test_a_wrong_row_count_is_one_finding(tmp_path: Path) -> None:
    """As ClickHouse wrote them (https://github.com/ClickHouse/ClickHouse/pull/118942)."""
    builder = IcebergBuilder(tmp_path)
    builder.create({"id": "long"})
    builder.append(pa.table({"id": [1, 2]}))
    (only,) = load_snapshot(builder.layout).files.to_pylist()
    entry = {"134": 0, "100": only["path"], "101": "PARQUET", "102": {}, "103": 9, "104": only["size"]}
    builder.commit("overwrite", removed={only["path"]}, added=[entry])
    (fault,) = fsck(open_table(str(tmp_path)), deep=True).damage
    assert fault.reason == "its footer counts 2 rows, the log says 9"


def without_list(place: Path, builder: IcebergBuilder) -> None:
    """Name the manifests in the snapshot, as version 1 could. Their specification, 7, is in their headers."""
    paths = [record["manifest_path"] for record in records_of(newest_list(builder))]
    for path in paths:
        with open(path, "rb") as file:
            reader = fastavro.reader(file)
            schema, records = reader.writer_schema, list(reader)
            metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
        with open(path, "wb") as file:
            fastavro.writer(file, schema, records, metadata=metadata | {"partition-spec-id": "7"})

    def change(body: dict[str, Any]) -> None:
        del body["snapshots"][-1]["manifest-list"]
        body["snapshots"][-1]["manifests"] = paths
        body["partition-specs"][0]["spec-id"] = 7
        body["partition-specs"].append({"spec-id": 0, "fields": []})

    edit(place, change)


@pytest.mark.parametrize("merged", [False, True])
def test_manifests_that_no_list_names_are_written_again(tmp_path: Path, merged: bool) -> None:
    """A list has to say more of them than is known."""
    builder = IcebergBuilder(tmp_path)
    builder.create({"id": "long", "p": "string"}, ["p"], {"commit.manifest.min-count-to-merge": "1"} if merged else {})
    for first in (1, 3, 5):
        builder.append(pa.table({"id": [first, first + 1], "p": ["a", "a"]}), ["a"])
    without_list(tmp_path, builder)
    assert ids(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert delete(open_table(str(tmp_path)), LocalEngine(), "id = 5").rows_deleted == 1
    data, deletes = 1 if merged else 3, 1
    assert len(listed := records_of(newest_list(builder))) == data + deletes
    assert {record["partition_spec_id"] for record in listed} == {7}
    assert purge(open_table(str(tmp_path)), LocalEngine()).verified
    assert ids(tmp_path) == [1, 2, 3, 4, 6]
    assert not fsck(open_table(str(tmp_path))).damage


def test_row_counts_that_a_list_lacks_are_written(tmp_path: Path) -> None:
    """Version 1 does not demand them. After an upgrade to version 3, rows without ids are numbered by them."""
    rows = ("added_rows_count", "existing_rows_count", "deleted_rows_count")

    def older(records: Records) -> Records:
        return [record | dict.fromkeys(rows) | {"first_row_id": None} for record in records]

    builder = made(tmp_path, older)
    assert delete(open_table(str(tmp_path)), LocalEngine(), "id = 1").rows_deleted == 1
    stated = [[record[each] for each in rows] for record in records_of(newest_list(builder)) if not record["content"]]
    assert sorted(stated) == [[2, 0, 0]] * 3
    assert ids(tmp_path) == [2, 3, 4, 6]
    assert not fsck(open_table(str(tmp_path))).damage
