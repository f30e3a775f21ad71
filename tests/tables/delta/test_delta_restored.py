"""What a restored table is like, decided on two versions alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dv_maintenance.tables.delta.log.actions import Metadata, Protocol
from dv_maintenance.tables.delta.verbs.restored_state import (
    restored_domains,
    restored_metadata,
    restored_protocol,
    unrestorable,
)

CLUSTERING = "delta.clustering"


def metadata(**options: Any) -> Metadata:
    return Metadata(**{"id": "now", "schema_string": '{"type":"struct","fields":[]}', **options})


def identity(mark: int | None, step: int = 1) -> str:
    notes = {"delta.identity.start": 0, "delta.identity.step": step}
    if mark is not None:
        notes["delta.identity.highWaterMark"] = mark
    return json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "metadata": notes}]})


def mark(schema: str) -> Any:
    return json.loads(schema)["fields"][0]["metadata"].get("delta.identity.highWaterMark")


@pytest.mark.parametrize(
    ("old", "now", "step", "expected"),
    [(5, 9, 1, 9), (9, 5, 1, 9), (-5, -9, -1, -9), (-9, -5, -2, -9), (5, None, 1, 5), (None, None, 1, None)],
)
def test_identity_values_are_not_handed_out_twice(
    old: int | None, now: int | None, step: int, expected: int | None
) -> None:
    merged = restored_metadata(metadata(schema_string=identity(old, step)), metadata(schema_string=identity(now, step)))
    assert mark(merged.schema_string) == expected


def test_marks_of_dropped_columns_are_of_no_use() -> None:
    assert mark(restored_metadata(metadata(schema_string=identity(5)), metadata()).schema_string) == 5


def test_a_mark_that_only_came_later_counts() -> None:
    merged = restored_metadata(metadata(schema_string=identity(None)), metadata(schema_string=identity(7)))
    assert mark(merged.schema_string) == 7


def test_column_ids_are_not_handed_out_twice() -> None:
    key = "delta.columnMapping.maxColumnId"
    old, now = ({key: text, "delta.columnMapping.mode": "name"} for text in ("3", "12"))
    assert restored_metadata(metadata(configuration=old), metadata(configuration=now)).configuration[key] == "12"
    assert restored_metadata(metadata(configuration=now), metadata(configuration=old)).configuration[key] == "12"
    assert key not in restored_metadata(metadata(), metadata(configuration=now)).configuration


def test_the_identity_of_the_table_is_kept() -> None:
    old = metadata(id="old", name="then", created_time=1, partition_columns=("p",))
    merged = restored_metadata(old, metadata(name="now", created_time=2))
    assert (merged.id, merged.created_time, merged.name, merged.partition_columns) == ("now", 2, "then", ("p",))


def test_in_commit_timestamps_that_came_later_stay_off_the_content() -> None:
    on = {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "4"}
    assert restored_metadata(metadata(), metadata(configuration=on)).configuration == on
    assert restored_metadata(metadata(configuration=on), metadata()).configuration == {}


@pytest.mark.parametrize(
    ("old", "now", "expected"),
    [
        (Protocol(1, 2), Protocol(1, 2), Protocol(1, 2)),
        (Protocol(1, 2), Protocol(2, 5), Protocol(2, 5)),
        (
            Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors"})),
            Protocol(1, 7, None, frozenset({"checkpointProtection"})),
            Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"checkpointProtection", "deletionVectors"})),
        ),
        (
            Protocol(1, 3),
            Protocol(1, 7, None, frozenset({"inCommitTimestamp"})),
            Protocol(1, 7, None, frozenset({"appendOnly", "checkConstraints", "inCommitTimestamp", "invariants"})),
        ),
    ],
)
def test_no_feature_is_lost(old: Protocol, now: Protocol, expected: Protocol) -> None:
    assert restored_protocol(old, now) == expected


def test_files_from_before_a_demanding_feature_do_not_fit() -> None:
    tracked = Protocol(1, 7, None, frozenset({"domainMetadata", "rowTracking"}))
    assert "rowTracking" in (unrestorable(Protocol(1, 2), tracked) or "")
    assert unrestorable(tracked, tracked) is None
    assert unrestorable(tracked, Protocol(1, 2)) is None


def test_clustering_is_content_and_other_domains_are_not() -> None:
    old, now = (
        {CLUSTERING: "by a", "user": "1", "delta.rowTracking": "5"},
        {CLUSTERING: "by b", "delta.rowTracking": "9"},
    )
    assert restored_domains(old, now) == [
        {"domainMetadata": {"domain": CLUSTERING, "configuration": "by a", "removed": False}}
    ]
    assert restored_domains({}, now) == [
        {"domainMetadata": {"domain": CLUSTERING, "configuration": "by b", "removed": True}}
    ]
    assert restored_domains(now, now) == []
