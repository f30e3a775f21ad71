"""The change data feed: rows inserted and deleted between versions, for every form of the log."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import DamagedTableError, RefusedError, UsageError
from dv_maintenance.maintenance.changes import read_changes
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import commit_path
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.memory import MemoryTable

SCHEMA = pa.schema([("id", pa.int64())])

# type of change, version, id
Seen = tuple[str, int, int]


@pytest.fixture
def builder(place: str) -> DeltaBuilder:
    """Ids 0 to 9 in one file as version 1."""
    made = DeltaBuilder(place).create(SCHEMA)
    made.append(rows(range(10)))
    return made


def rows(ids: Any) -> pa.Table:
    return pa.table({"id": ids}, schema=SCHEMA)


def delete(builder: DeltaBuilder, *ids: int) -> int:
    return builder.delete(lambda batch: pc.is_in(batch["id"], pa.array(ids, pa.int64())))


def seen(place: str, first: int, last: int | None = None) -> list[Seen]:
    feed, batches = read_changes(open_table(place), first, last)
    found = pa.Table.from_batches(batches, feed.schema)
    columns = (found[name].to_pylist() for name in ("_change_type", "_commit_version", "id"))
    return sorted(zip(*columns, strict=True))


def live(place: str, version: int | None = None) -> Counter[int]:
    schema, batches = read(open_table(place), version, ["id"])
    return Counter(pa.Table.from_batches(batches, schema)["id"].to_pylist())


def logged(builder: DeltaBuilder, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in builder.storage.get(commit_path(version)).splitlines()]


def rewrite(builder: DeltaBuilder, version: int, change: Any) -> None:
    """Rewrite a commit with each of its actions changed in place."""
    actions = logged(builder, version)
    for action in actions:
        change(action)
    write(builder, version, actions)


def write(builder: DeltaBuilder, version: int, actions: list[dict[str, Any]]) -> None:
    builder.storage.put(commit_path(version), b"".join(json.dumps(action).encode() + b"\n" for action in actions))


# -- what the log says -------------------------------------------------------------------------------------------------


def test_changes_of_deletion_vectors_are_their_difference(builder: DeltaBuilder, place: str) -> None:
    delete(builder, 1, 2)
    delete(builder, 5)
    assert seen(place, 2) == [("delete", 2, 1), ("delete", 2, 2), ("delete", 3, 5)]
    assert seen(place, 1, 1) == [("insert", 1, number) for number in range(10)]
    assert seen(place, 0, 0) == []


def test_rows_that_a_restore_brings_back_are_inserts(builder: DeltaBuilder, place: str) -> None:
    delete(builder, 1, 2)
    delete(builder, 5)
    restore(open_table(place), version=2)
    delete(builder, 1, 7)
    restore(open_table(place), version=1)
    assert seen(place, 4) == [
        ("delete", 5, 7), ("insert", 4, 5), ("insert", 6, 1), ("insert", 6, 2), ("insert", 6, 7)
    ]  # fmt: skip


def test_a_removed_file_deletes_only_its_live_rows(builder: DeltaBuilder, place: str) -> None:
    delete(builder, *range(4))
    delete(builder, *range(10))
    assert seen(place, 3) == [("delete", 3, number) for number in range(4, 10)]


def test_maintenance_changes_nothing(builder: DeltaBuilder, place: str) -> None:
    delete(builder, 1)
    version = purge(open_table(place), LocalEngine()).version_after
    assert version == 3
    assert seen(place, 3) == []


def test_change_files_win_over_everything_else(builder: DeltaBuilder, place: str) -> None:
    recorded = pa.table({"id": pa.array([3, 3]), "_change_type": ["update_preimage", "update_postimage"]})
    path = Path(place, "_change_data", "cdc-1.parquet")
    path.parent.mkdir()
    pq.write_table(recorded, path)
    delete(builder, 1, 2)
    actions = logged(builder, 2)
    cdc = {"path": "_change_data/cdc-1.parquet", "partitionValues": {}, "size": 1, "dataChange": False}
    write(builder, 2, [*actions, {"cdc": cdc}])
    assert seen(place, 2) == [("update_postimage", 2, 3), ("update_preimage", 2, 3)]


def test_partition_values_come_with_the_change(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema, partition_by=["day"])
    builder.append(pa.table({"id": [1, 2, 3], "day": ["mon", None, None]}, schema=schema))
    delete(builder, 3)
    # Some writers leave nulls out of partition values.
    rewrite(builder, 2, lambda action: action.get("remove", {}).get("partitionValues", {}).clear())
    feed, batches = read_changes(open_table(builder.storage.uri), 1)
    found = pa.Table.from_batches(batches, feed.schema).select(["id", "day", "_change_type"]).to_pylist()
    assert sorted(found, key=lambda row: (row["_change_type"], row["id"])) == [
        {"id": 3, "day": None, "_change_type": "delete"},
        {"id": 1, "day": "mon", "_change_type": "insert"},
        {"id": 2, "day": None, "_change_type": "insert"},
        {"id": 3, "day": None, "_change_type": "insert"},
    ]


def test_a_remove_without_partition_values_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema, partition_by=["day"])
    builder.append(pa.table({"id": [1], "day": ["mon"]}, schema=schema))
    delete(builder, 1)
    rewrite(builder, 2, lambda action: action.get("remove", {}).pop("partitionValues", None))
    with pytest.raises(RefusedError, match="which partition"):
        seen(builder.storage.uri, 2)


def test_rows_are_counted_in_the_file_if_statistics_lack_them(place: str) -> None:
    builder = DeltaBuilder(place).create(SCHEMA)
    builder.append(rows(range(6)), statistics=False)
    delete(builder, 4)
    assert seen(place, 2) == [("delete", 2, 4)]


def test_times_are_those_of_time_travel(builder: DeltaBuilder, place: str) -> None:
    delete(builder, 1)
    feed, batches = read_changes(open_table(place), 2)
    (stamp,) = pa.Table.from_batches(batches, feed.schema)["_commit_timestamp"].cast(pa.int64()).to_pylist()
    assert stamp == load_snapshot(builder.storage).timestamp * 1000


@settings(max_examples=examples(10))
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 6)),
            st.tuples(st.just("delete"), st.sets(st.integers(0, 30), min_size=1)),
            st.tuples(st.just("restore"), st.integers(0, 100)),
            st.tuples(st.just("purge"), st.none()),
        ),
        max_size=7,
    )
)
def test_the_feed_leads_from_each_version_to_the_next(history: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        builder = DeltaBuilder(place).create(SCHEMA)
        table, next_id = open_table(place), 0
        for kind, what in history:
            if kind == "append":
                builder.append(rows(range(next_id, next_id + what)))
                next_id += what
            elif kind == "delete":
                delete(builder, *what)
            elif kind == "restore":
                restore(table, version=what % (table.version() + 1))
            else:
                purge(table, LocalEngine())
        changes = seen(place, 0)
        state: Counter[int] = Counter()
        for version in range(table.version() + 1):
            for kind, at, number in changes:
                if at == version:
                    assert kind in {"insert", "delete"}
                    state[number] += 1 if kind == "insert" else -1
            assert +state == live(place, version)
            assert min(state.values(), default=0) >= 0


# -- the range ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "last"), [(3, None), (0, 3), (2, 1), (-1, None)])
def test_invalid_version_ranges(builder: DeltaBuilder, place: str, first: int, last: int | None) -> None:
    delete(builder, 1)
    with pytest.raises(UsageError):
        read_changes(open_table(place), first, last)


def test_cleaned_up_versions_are_unknown(builder: DeltaBuilder, place: str) -> None:
    delete(builder, 1)
    builder.checkpoint()
    delete(builder, 2)
    builder.storage.delete([commit_path(0), commit_path(1)])
    with pytest.raises(UsageError, match="version 0 is no longer in the log") as caught:
        read_changes(open_table(place), 0)
    assert "start from version 2" in (caught.value.next_step or "")
    assert seen(place, 2) == [("delete", 2, 1), ("delete", 3, 2)]


def test_a_vacuumed_file_and_a_bad_request_are_different_errors(builder: DeltaBuilder, place: str) -> None:
    delete(builder, *range(10))
    for file in Path(place).glob("*.parquet"):
        file.unlink()
    with pytest.raises(DamagedTableError) as caught:
        seen(place, 1)
    assert caught.value.version == 1
    assert "vacuum" in (caught.value.next_step or "")


# -- without a feed ----------------------------------------------------------------------------------------------------


def copy_on_write(builder: DeltaBuilder, metrics: dict[str, str], operation: str = "DELETE") -> int:
    """Row 0 deleted by a copy of its file without it."""
    version = builder.append(rows(range(1, 10)))
    (added,) = (action["add"] for action in logged(builder, 1) if "add" in action)
    remove = {"path": added["path"], "deletionTimestamp": 1, "dataChange": True, "partitionValues": {}}
    actions = [*logged(builder, version), {"remove": remove}]
    actions[0]["commitInfo"] |= {"operation": operation, "operationMetrics": metrics}
    write(builder, version, actions)
    return version


@pytest.mark.parametrize("metrics", [{"numCopiedRows": "9"}, {}])
def test_copies_that_nobody_recorded_are_refused(builder: DeltaBuilder, place: str, metrics: dict[str, str]) -> None:
    copy_on_write(builder, metrics)
    with pytest.raises(RefusedError, match="version 2 rewrote files") as caught:
        read_changes(open_table(place), 1)
    assert "delta.enableChangeDataFeed" in (caught.value.next_step or "")
    assert len(seen(place, 1, 1)) == 10


def test_updates_without_copies_are_reported_as_delete_and_insert(builder: DeltaBuilder, place: str) -> None:
    copy_on_write(builder, {"numCopiedRows": "0"}, "UPDATE")
    feed, _ = read_changes(open_table(place), 1)
    assert feed.inferred == (2,)
    assert len(seen(place, 2)) == 19


def test_with_a_feed_change_files_are_trusted(place: str) -> None:
    builder = DeltaBuilder(place).create(SCHEMA, properties={"delta.enableChangeDataFeed": "true"})
    builder.append(rows(range(10)))
    copy_on_write(builder, {})
    feed, _ = read_changes(open_table(place), 1)
    assert feed.inferred == ()
    assert len(seen(place, 2)) == 19


def test_a_merge_that_changed_no_row_yields_none(builder: DeltaBuilder, place: str) -> None:
    none = dict.fromkeys(("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"), "0")
    copy_on_write(builder, none, "MERGE")
    assert seen(place, 2) == []


# -- schema ------------------------------------------------------------------------------------------------------------


def set_schema(builder: DeltaBuilder, *fields: tuple[str, str, bool]) -> int:
    metadata = load_snapshot(builder.storage).metadata.to_json()
    described = [
        {"name": name, "type": type_, "nullable": nullable, "metadata": {}} for name, type_, nullable in fields
    ]
    metadata["schemaString"] = json.dumps({"type": "struct", "fields": described})
    return builder.commit([{"metaData": metadata}], operation="ALTER TABLE")


def test_added_columns_read_as_null_before(builder: DeltaBuilder, place: str) -> None:
    set_schema(builder, ("id", "long", True), ("more", "string", True))
    feed, batches = read_changes(open_table(place), 1)
    assert feed.schema.names == ["id", "more", "_change_type", "_commit_version", "_commit_timestamp"]
    assert pa.Table.from_batches(batches, feed.schema)["more"].null_count == 10


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([("id", "integer", True)], "column id changed from int64 to int32"),
        ([("number", "long", True)], "column id is gone"),
        ([("id", "long", False)], "column id may no longer be null"),
    ],
)
def test_a_schema_that_does_not_hold_for_all_versions_is_refused(
    builder: DeltaBuilder, place: str, fields: list[tuple[str, str, bool]], problem: str
) -> None:
    set_schema(builder, *fields)
    with pytest.raises(RefusedError, match=problem):
        read_changes(open_table(place), 1)
    assert len(seen(place, 1, 1)) == 10
    feed, batches = read_changes(open_table(place), 2)
    assert (feed.schema.names[0], list(batches)) == (fields[0][0], [])


def test_a_schema_in_between_counts_too(builder: DeltaBuilder, place: str) -> None:
    set_schema(builder, ("id", "long", True), ("more", "string", True))
    set_schema(builder, ("id", "long", True))
    with pytest.raises(
        RefusedError, match="schema of version 2 is incompatible with that of version 3: column more is gone"
    ):
        read_changes(open_table(place), 1)
    assert seen(place, 3) == []


def test_what_a_replaced_table_drops_has_the_schema_before(builder: DeltaBuilder, place: str) -> None:
    (added,) = (action["add"] for action in logged(builder, 1) if "add" in action)
    metadata = load_snapshot(builder.storage).metadata.to_json()
    field = {"name": "other", "type": "long", "nullable": True, "metadata": {}}
    metadata["schemaString"] = json.dumps({"type": "struct", "fields": [field]})
    remove = {"path": added["path"], "dataChange": True, "partitionValues": {}}
    builder.commit([{"metaData": metadata}, {"remove": remove}], operation="CREATE OR REPLACE TABLE")
    with pytest.raises(RefusedError, match="column id is gone"):
        read_changes(open_table(place), 2)


def test_column_names_of_the_feed_are_reserved(place: str) -> None:
    DeltaBuilder(place).create(pa.schema([("_change_type", pa.string())]))
    with pytest.raises(RefusedError, match="_change_type"):
        read_changes(open_table(place), 0)


def test_formats_without_a_feed_say_so(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="is not supported"):
        read_changes(MemoryTable(tmp_path), 0)
