"""What is read, what is changed, and what is left alone, by the name of a feature."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.raw_log import PROTOCOL, RawLog, add, dv, metadata

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, RefusedError, UnsupportedFeatureError, UsageError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta import features
from dv_maintenance.tables.delta.features import check_readable
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Protocol
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.testing.delta_builder import DeltaBuilder

# Of those that a protocol may name, the ones that readers must know too.
READER = {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
READER |= {"variantType", "variantShredding", "variantShredding-preview", "typeWidening-preview"}


def check_writable(snapshot: DeltaSnapshot, operation: str) -> None:
    features.check_writable(Storage(snapshot.table), snapshot, operation)


@pytest.fixture
def snapshot(tmp_path: Path) -> DeltaSnapshot:
    log = RawLog(tmp_path)
    log.start(add("a"))
    return load_snapshot(log.storage)


def having(snapshot: DeltaSnapshot, *features: str) -> DeltaSnapshot:
    return replace(snapshot, protocol=Protocol(3, 7, frozenset(READER & {*features}), frozenset(features)))


@pytest.mark.parametrize(
    ("protocol", "reader", "writer"),
    [
        (Protocol(1, 1), set(), set()),
        (Protocol(1, 2), set(), {"appendOnly", "invariants"}),
        (Protocol(1, 3), set(), {"appendOnly", "invariants", "checkConstraints"}),
        (
            Protocol(2, 5),
            {"columnMapping"},
            {
                "appendOnly",
                "invariants",
                "checkConstraints",
                "changeDataFeed",
                "generatedColumns",
                "columnMapping",
            },
        ),
        (Protocol(1, 7, None, frozenset()), set(), set()),
        (Protocol(3, 7, frozenset({"a"}), frozenset({"a", "b"})), {"a"}, {"a", "b"}),
    ],
)
def test_features_in_force(protocol: Protocol, reader: set[str], writer: set[str]) -> None:
    assert protocol.features("reader") == reader
    assert protocol.features("writer") == writer


def test_writer_version_six_adds_identity_columns() -> None:
    assert Protocol(2, 6).features("writer") - Protocol(2, 5).features("writer") == {"identityColumns"}


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(2, 7, frozenset(), frozenset()),
        Protocol(3, 7, None, frozenset()),
        Protocol(1, 7, None, None),
        Protocol(1, 2, None, frozenset()),
        Protocol(3, 6, frozenset(), None),
        Protocol(3, 7, frozenset({"deletionVectors"}), frozenset()),
    ],
)
def test_a_protocol_that_contradicts_itself(protocol: Protocol) -> None:
    with pytest.raises(DamagedTableError, match="contradicts itself"):
        check_readable(protocol, table="t")


@pytest.mark.parametrize("protocol", [Protocol(0, 2), Protocol(4, 7, frozenset(), frozenset()), Protocol(-1, 1)])
def test_unknown_reader_versions(protocol: Protocol) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_readable(protocol, table="t")
    assert caught.value.features == (f"reader version {protocol.min_reader}",)


def test_unknown_features_are_named(snapshot: DeltaSnapshot) -> None:
    names = frozenset({"adaptiveMetadata", "zeta", "deletionVectors"})
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_readable(Protocol(3, 7, names, names), table="t")
    assert caught.value.features == ("adaptiveMetadata", "zeta")
    assert caught.value.exit_code == 3
    for operation in ("rewrite", "vacuum", "manifest"):
        with pytest.raises(UnsupportedFeatureError) as caught:
            check_writable(having(snapshot, "eta", "appendOnly", "intervalTypes"), operation)
        assert caught.value.features == ("eta", "intervalTypes")
        assert caught.value.version == 0


@pytest.mark.parametrize("name", ["catalogManaged", "catalogOwned", "catalogOwned-preview"])
def test_catalog_managed_tables_are_not_even_read(name: str) -> None:
    for reader in (frozenset({name}), frozenset[str]()):
        with pytest.raises(UnsupportedFeatureError, match="catalog"):
            check_readable(Protocol(3, 7, reader, frozenset({name})), table="t")


@pytest.mark.parametrize(
    "name",
    [
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "materializePartitionColumns",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
    ],
)
def test_features_that_leave_every_operation_free(snapshot: DeltaSnapshot, name: str) -> None:
    for operation in ("rewrite", "vacuum", "manifest"):
        check_writable(having(snapshot, name), operation)


def test_a_table_that_is_kept_readable_as_another_format_is_not_rewritten(tmp_path: Path) -> None:
    log = RawLog(tmp_path)
    formats = {"delta.universalFormat.enabledFormats": "iceberg"}
    log.commit(0, PROTOCOL, metadata({"type": "struct", "fields": []}, **formats))
    snapshot = load_snapshot(log.storage)
    check_writable(snapshot, "vacuum")
    for operation in ("rewrite", "delete", "update", "merge"):
        with pytest.raises(RefusedError, match="iceberg"):
            check_writable(snapshot, operation)


def test_legacy_versions(snapshot: DeltaSnapshot) -> None:
    check_writable(replace(snapshot, protocol=Protocol(2, 6)), "rewrite")
    for writer in (8, 0):
        protocol = Protocol(1, writer)
        with pytest.raises(UnsupportedFeatureError, match=f"writer version {writer}"):
            check_writable(replace(snapshot, protocol=protocol), "vacuum")


def test_manifests_and_column_mapping(tmp_path: Path) -> None:
    log = RawLog(tmp_path)
    mapped: dict[str, Any] = {"delta.columnMapping.mode": "name"}
    log.commit(
        0,
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        metadata({"type": "struct", "fields": []}, **mapped),
    )
    snapshot = load_snapshot(log.storage)
    check_writable(snapshot, "rewrite")
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_writable(snapshot, "manifest")
    assert caught.value.features == ("columnMapping",)


def test_a_file_that_is_live_twice_is_not_rewritten(tmp_path: Path) -> None:
    log = RawLog(tmp_path)
    log.start(add("a"), add("a", dv()))
    snapshot = load_snapshot(log.storage)
    check_writable(snapshot, "vacuum")
    for operation in ("rewrite", "manifest"):
        with pytest.raises(RefusedError, match="a is live twice"):
            check_writable(snapshot, operation)


def test_a_table_without_a_schema_is_left_alone(tmp_path: Path) -> None:
    log = RawLog(tmp_path)
    log.commit(0, PROTOCOL, add("a"))
    with pytest.raises(DamagedTableError, match="no schema"):
        check_writable(load_snapshot(log.storage), "vacuum")


def test_unknown_operation(snapshot: DeltaSnapshot) -> None:
    with pytest.raises(UsageError, match="sing"):
        check_writable(snapshot, "sing")


def test_golden_tables_that_may_not_be_rewritten(golden: Path) -> None:
    for name, feature in (("table_with_liquid_clustering", "liquid"),):
        with pytest.raises(UnsupportedFeatureError) as caught:
            check_writable(load_snapshot(Storage(str(golden / "delta" / name))), "rewrite")
        assert feature in caught.value.features


@pytest.mark.parametrize(
    ("name", "reason", "next_step"),
    [
        ("adaptiveMetadata-preview", "no tombstones", "engine that wrote it"),
        ("coordinatedCommits-preview", "commit coordinator", "drop the feature"),
        ("intervalTypes", "draft of the protocol", "newer release"),
        ("redirectReaderWriter-preview", "redirects", "maintain that table"),
    ],
)
def test_what_is_known_and_refused_says_why(snapshot: DeltaSnapshot, name: str, reason: str, next_step: str) -> None:
    for operation in ("rewrite", "delete", "vacuum"):
        with pytest.raises(UnsupportedFeatureError, match=reason) as caught:
            check_writable(having(snapshot, name), operation)
        assert next_step in str(caught.value.next_step)
        assert caught.value.features == (name,)
    with pytest.raises(UnsupportedFeatureError, match=reason):
        check_readable(Protocol(3, 7, frozenset({name}), frozenset({name})), table="t")


def test_collated_strings_are_moved_and_not_compared(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path / "t")).create(
        pa.schema([("id", pa.int64()), ("s", pa.string())]), features=["collations", "domainMetadata"]
    )
    base = load_snapshot(builder.storage)
    schema = json.loads(base.metadata.schema_string)
    schema["fields"][1]["metadata"] = {"__COLLATIONS": {"s": "spark.UTF8_LCASE"}}
    builder.commit([{"metaData": {**base.metadata.to_json(), "schemaString": json.dumps(schema)}}])
    builder.append(pa.table({"id": range(10), "s": [f"v{n}" for n in range(10)]}))
    builder.delete(lambda rows: pc.less(rows["id"], 5))
    snapshot = load_snapshot(builder.storage)
    for operation in ("delete", "update", "merge"):
        with pytest.raises(UnsupportedFeatureError, match="by their bytes"):
            check_writable(snapshot, operation)
    assert purge(open_table(builder.storage.uri), LocalEngine()).verified
    stats = json.loads(full_state(builder.storage, load_snapshot(builder.storage)).adds["stats"][0].as_py())
    assert stats == {
        "numRecords": 5,
        "minValues": {"id": 5},
        "maxValues": {"id": 9},
        "nullCount": {"id": 0, "s": 0},
        "tightBounds": True,
    }
