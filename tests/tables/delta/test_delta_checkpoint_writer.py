from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.readers import with_delta_spark, with_deltalake, with_polars

from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log import checkpoint_writer
from dv_maintenance.tables.delta.log.checkpoint_writer import write_checkpoint
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.tables.delta.log.segment import commit_path
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WEEK = 7 * 24 * 3600 * 1000
NOW = 1_800_000_000_000
SCHEMA = pa.schema([("id", pa.int64())])
LAST = "_delta_log/_last_checkpoint"

GOLDEN = [
    "app-txn-no-checkpoint",
    "basic-dv-no-checkpoint",
    "cdc_ict_table",
    "dat-column_mapping",
    "delta-2.2.0-partitioned-types",
    "deltatbl-special-chars-in-partition-column",
    "log-replay-dv-key-cases",
    "made-inline-dv",
    "made-prefix-dv",
    "table-with-dv-large",
    "v1-single-part-struct-stats-only",
]
UNREADABLE_HERE = {"log-replay-dv-key-cases", "cdc_ict_table"}


@pytest.fixture
def builder(tmp_path: Path) -> DeltaBuilder:
    """Version 3 at time NOW: two files with DVs of every other kind, and tombstones of two deletes."""
    builder = DeltaBuilder(str(tmp_path / "t"), clock=lambda: NOW).create(SCHEMA)
    builder.append(pa.table({"id": range(100)}, schema=SCHEMA), files=2)
    builder.delete(lambda rows: pc.less(rows["id"], 10))
    builder.delete(lambda rows: pc.is_in(rows["id"], pa.array([10, 60])), style="inline")
    return builder


def checkpoint_path(version: int) -> str:
    return f"_delta_log/{version:020d}.checkpoint.parquet"


def rows_of(storage: Storage, version: int) -> list[dict[str, Any]]:
    """The checkpoint's actions, each a dict of one."""
    with storage.open_input(checkpoint_path(version)) as file:
        rows = pq.read_table(file).to_pylist()
    actions = [{kind: body for kind, body in row.items() if body is not None} for row in rows]
    assert all(len(action) == 1 for action in actions)
    return actions


def bodies(storage: Storage, version: int, kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in rows_of(storage, version) if kind in action]


def state_of(storage: Storage) -> dict[str, Any]:
    """All there is to know, in a form that compares: ``dataChange`` is not state."""
    snapshot = load_snapshot(storage)
    full = full_state(storage, snapshot)
    return {
        "version": snapshot.version,
        "protocol": full.protocol,
        "metadata": full.metadata,
        "domains": dict(full.domains),
        "transactions": dict(full.transactions),
        **{
            kind: sorted(table.drop_columns(["dataChange"]).to_pylist(), key=repr)
            for kind, table in (("adds", full.adds), ("removes", full.removes))
        },
    }


def drop_commits(storage: Storage, version: int) -> None:
    """Leave the checkpoint alone with the table's state; its own commit stays for the readers that ask its time."""
    storage.delete([commit_path(at) for at in range(version)])


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables_have_the_same_state_from_the_checkpoint(
    golden_copy: Callable[[str], Path], canon: ModuleType, name: str
) -> None:
    table = golden_copy(f"delta/{name}")
    storage = Storage(str(table))
    before = state_of(storage)
    rows = None if name in UNREADABLE_HERE else canon.rows(with_deltalake(table))
    snapshot = load_snapshot(storage)
    write_checkpoint(storage, snapshot, now=0)  # long before all: no tombstone is expired
    drop_commits(storage, snapshot.version)
    assert load_snapshot(storage).segment.checkpoint_version == snapshot.version
    assert state_of(storage) == before
    assert before["adds"]
    if rows is not None:
        assert canon.rows(with_deltalake(table)) == rows


def test_other_readers_see_the_same_rows(builder: DeltaBuilder, tmp_path: Path) -> None:
    expected = [n for n in range(11, 100) if n != 60]
    builder.checkpoint()
    drop_commits(builder.storage, 3)
    for read in (with_deltalake, with_polars):
        assert sorted(read(tmp_path / "t")["id"].to_pylist()) == expected


def test_delta_spark_reads_the_checkpoint(builder: DeltaBuilder, tmp_path: Path, delta_spark: SparkSession) -> None:
    expected = [n for n in range(11, 100) if n != 60]
    builder.checkpoint()
    drop_commits(builder.storage, 3)
    table = tmp_path / "t"
    assert sorted(with_delta_spark(delta_spark, table)["id"].to_pylist()) == expected
    detail = delta_spark.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()[0]
    assert (detail.numFiles, detail.properties["delta.enableDeletionVectors"]) == (2, "true")
    # Its writer, too, takes its state from it: tombstones, statistics and DVs.
    delta_spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 11")
    assert sorted(with_deltalake(table)["id"].to_pylist()) == expected[1:]


# -- content -----------------------------------------------------------------------------------------------------


def test_actions_of_a_checkpoint(builder: DeltaBuilder) -> None:
    assert builder.checkpoint() == 3
    storage = builder.storage
    adds, removes = bodies(storage, 3, "add"), bodies(storage, 3, "remove")
    assert {kind for action in rows_of(storage, 3) for kind in action} == {"protocol", "metaData", "add", "remove"}
    assert (len(adds), len(removes)) == (2, 3)
    assert not any(action["dataChange"] for action in adds + removes)
    assert {add["deletionVector"]["storageType"] for add in adds} == {"i"}
    assert {add["deletionVector"]["offset"] for add in adds} == {None}
    assert all(json.loads(add["stats"])["numRecords"] == 50 for add in adds)
    assert [remove["deletionVector"] and remove["deletionVector"]["offset"] for remove in removes].count(None) == 2
    assert all(remove["extendedFileMetadata"] for remove in removes)


def test_transactions_domains_and_extras_survive(builder: DeltaBuilder) -> None:
    (add, *_) = (one["add"] for one in _log(builder.storage, 3) if "add" in one)
    extras = {
        "tags": {"k": "v", "n": None},
        "baseRowId": 5,
        "defaultRowCommitVersion": 1,
        "clusteringProvider": "liquid",
    }
    builder.commit(
        [
            {"txn": {"appId": "app", "version": 4, "lastUpdated": 17}},
            {"txn": {"appId": "other", "version": 1}},
            {"domainMetadata": {"domain": "kept", "configuration": "{}", "removed": False}},
            {"domainMetadata": {"domain": "gone", "configuration": "", "removed": True}},
            {"add": {**add, **extras}},
        ]
    )
    before = state_of(builder.storage)
    builder.checkpoint()
    drop_commits(builder.storage, 4)
    assert state_of(builder.storage) == before
    assert bodies(builder.storage, 4, "domainMetadata") == [{"domain": "kept", "configuration": "{}", "removed": False}]
    (found,) = [one for one in bodies(builder.storage, 4, "add") if one["path"] == add["path"]]
    assert {**found, "tags": dict(found["tags"])}.items() >= extras.items()


def _log(storage: Storage, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in storage.get(commit_path(version)).splitlines()]


@pytest.mark.parametrize(("later", "kept"), [(WEEK, 3), (WEEK + 1, 0)])
def test_expired_tombstones_are_left_out(builder: DeltaBuilder, later: int, kept: int) -> None:
    write_checkpoint(builder.storage, load_snapshot(builder.storage), now=NOW + later)
    assert len(bodies(builder.storage, 3, "remove")) == kept


@pytest.mark.parametrize(("retention", "kept"), [("interval 1 day", 0), ("interval 30 days", 3), ("for ever", 3)])
def test_the_tables_own_retention_counts(tmp_path: Path, retention: str, kept: int) -> None:
    builder = DeltaBuilder(str(tmp_path), clock=lambda: NOW)
    builder.create(SCHEMA, properties={"delta.deletedFileRetentionDuration": retention})
    builder.append(pa.table({"id": range(100)}, schema=SCHEMA), files=3)
    builder.delete(lambda rows: pc.equal(pc.bit_wise_and(rows["id"], 1), 0))
    write_checkpoint(builder.storage, load_snapshot(builder.storage), now=NOW + WEEK)
    assert len(bodies(builder.storage, 2, "remove")) == kept


def test_a_tombstone_without_a_time_is_expired(builder: DeltaBuilder) -> None:
    builder.commit([{"remove": {"path": "old.parquet", "dataChange": True}}])
    builder.checkpoint()
    assert "old.parquet" not in {remove["path"] for remove in bodies(builder.storage, 4, "remove")}


@pytest.mark.parametrize("properties", [{"writeStatsAsJson": "false"}, {"writeStatsAsStruct": "true"}])
def test_row_counts_are_kept_whatever_form_the_table_prefers(tmp_path: Path, properties: dict[str, str]) -> None:
    builder = DeltaBuilder(str(tmp_path))
    builder.create(SCHEMA, properties={f"delta.checkpoint.{key}": value for key, value in properties.items()})
    builder.append(pa.table({"id": range(100)}, schema=SCHEMA))
    builder.checkpoint()
    (add,) = bodies(builder.storage, 1, "add")
    assert json.loads(add["stats"])["numRecords"] == 100


def test_a_v2_table_gets_a_v2_checkpoint_under_the_classic_name(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path)).create(SCHEMA, properties={"delta.checkpointPolicy": "v2"})
    builder.append(pa.table({"id": range(100)}, schema=SCHEMA))
    builder.checkpoint()
    assert bodies(builder.storage, 1, "checkpointMetadata") == [{"version": 1, "tags": None}]
    drop_commits(builder.storage, 1)
    assert load_snapshot(builder.storage).files.num_rows == 1
    assert with_deltalake(tmp_path).num_rows == 100


def test_many_files_come_in_batches(builder: DeltaBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "_BATCH", 7)
    add = {"partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True, "stats": '{"numRecords":1}'}
    builder.commit([{"add": {"path": f"f{n}.parquet", **add}} for n in range(40)])
    before = state_of(builder.storage)
    builder.checkpoint()
    drop_commits(builder.storage, 4)
    assert state_of(builder.storage) == before


# -- _last_checkpoint and refusals -------------------------------------------------------------------------------


def test_last_checkpoint_names_it(builder: DeltaBuilder) -> None:
    builder.checkpoint()
    assert json.loads(builder.storage.get(LAST)) == {
        "version": 3,
        "size": 7,  # protocol, metadata, 3 removes, 2 adds
        "sizeInBytes": builder.storage.head(checkpoint_path(3)).size,
        "numOfAddFiles": 2,
    }


@pytest.mark.parametrize("there", [b'{"version":9}', b'{"version":1}', b"{", b"[]", b'{"version":"9"}'])
def test_last_checkpoint_that_readers_cannot_use_is_replaced(builder: DeltaBuilder, there: bytes) -> None:
    builder.storage.put(LAST, there)
    builder.checkpoint()
    assert json.loads(builder.storage.get(LAST))["version"] == 3


def test_last_checkpoint_never_goes_back(builder: DeltaBuilder) -> None:
    """Another writer was faster: the pointer names its newer checkpoint."""
    snapshot = load_snapshot(builder.storage)
    builder.append(pa.table({"id": range(9)}, schema=SCHEMA))
    builder.checkpoint()
    write_checkpoint(builder.storage, snapshot)
    assert builder.storage.exists(checkpoint_path(3))
    assert json.loads(builder.storage.get(LAST))["version"] == 4


def test_a_checkpoint_that_exists_stays(builder: DeltaBuilder) -> None:
    snapshot = load_snapshot(builder.storage)
    write_checkpoint(builder.storage, snapshot)
    before = builder.storage.get(checkpoint_path(3))
    # `snapshot` was read before there was one, as by somebody who races with us.
    write_checkpoint(builder.storage, snapshot, now=NOW + 2 * WEEK)
    write_checkpoint(builder.storage, load_snapshot(builder.storage), now=NOW + 2 * WEEK)
    assert builder.storage.get(checkpoint_path(3)) == before


@pytest.mark.parametrize(("before", "refused"), [("5", True), ("3", False), ("oops", True)])
def test_protected_checkpoints_are_not_added_to(tmp_path: Path, before: str, refused: bool) -> None:
    builder = DeltaBuilder(str(tmp_path)).create(
        SCHEMA,
        properties={"delta.requireCheckpointProtectionBeforeVersion": before},
        features=["checkpointProtection"],
    )
    for _ in range(3):
        builder.append(pa.table({"id": [1]}, schema=SCHEMA))
    if refused:
        with pytest.raises(RefusedError, match=before):
            builder.checkpoint()
    else:
        assert builder.checkpoint() == 3
    assert builder.storage.exists(checkpoint_path(3)) != refused


def test_an_unknown_feature_refuses_a_checkpoint(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path)).create(SCHEMA, features=["unheardOf"])
    with pytest.raises(UnsupportedFeatureError, match="unheardOf"):
        builder.checkpoint()
