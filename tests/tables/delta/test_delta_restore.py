"""RESTORE: the old version's files, deletion vectors, schema and properties, and nothing that the log must not lose."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError, DamagedTableError, RefusedError, UnsupportedFeatureError, UsageError
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.delta.verbs.restore import restore as restore_delta
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.memory import MemoryTable

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def builder(place: str) -> DeltaBuilder:
    """1: ids 0 to 9 in two files. 2: without 1. 3: without 1 and 2. 4: and 20 to 24."""
    made = DeltaBuilder(place).create(SCHEMA)
    made.append(rows(range(10)), files=2)
    delete(made, 1)
    delete(made, 2)
    made.append(rows(range(20, 25)))
    return made


def rows(ids: Any) -> pa.Table:
    return pa.table({"id": ids}, schema=SCHEMA)


def delete(builder: DeltaBuilder, *ids: int) -> int:
    return builder.delete(lambda batch: pc.is_in(batch["id"], pa.array(ids, pa.int64())), style="file")


def live(place: str, version: int | None = None) -> Counter[int]:
    schema, batches = read(open_table(place), version, ["id"])
    return Counter(pa.Table.from_batches(batches, schema)["id"].to_pylist())


def actions(builder: DeltaBuilder, version: int, kind: str) -> list[Any]:
    return [action[kind] for action in read_commit(builder.storage, version) if kind in action]


def set_metadata(builder: DeltaBuilder, **configuration: str | None) -> int:
    """Properties by their names without ``delta.``; ``None`` unsets."""
    metadata = load_snapshot(builder.storage).metadata.to_json()
    metadata["configuration"] |= {f"delta.{name}": value for name, value in configuration.items()}
    metadata["configuration"] = {key: value for key, value in metadata["configuration"].items() if value is not None}
    return builder.commit([{"metaData": metadata}], operation="SET TBLPROPERTIES")


def set_protocol(builder: DeltaBuilder, *features: str) -> int:
    protocol = load_snapshot(builder.storage).protocol.to_json()
    protocol["writerFeatures"] = sorted({*protocol["writerFeatures"], *features})
    return builder.commit([{"protocol": protocol}], operation="UPGRADE PROTOCOL")


# -- what comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_version_comes_back_as_it_was(builder: DeltaBuilder, place: str, version: int) -> None:
    before = live(place, version)
    report = restore(open_table(place), version=version)
    assert (report.verified, report.version_before, report.version_after) == (True, 4, 5)
    assert live(place) == before
    assert live(place, 4) == Counter([0, *range(3, 10), *range(20, 25)])


def test_another_deletion_vector_of_the_same_file(builder: DeltaBuilder, place: str) -> None:
    """The commit takes out the newer logical file and lists the older one, as data changes."""
    report = restore(open_table(place), version=2)
    (add,), removes = actions(builder, 5, "add"), actions(builder, 5, "remove")
    (older,), (newer,) = actions(builder, 2, "add"), actions(builder, 3, "add")
    assert add == older
    assert [remove["deletionVector"] for remove in removes if remove["path"] == add["path"]] == [
        newer["deletionVector"]
    ]
    assert len(removes) == 2
    assert all(remove["dataChange"] and remove["extendedFileMetadata"] for remove in removes)
    result = report
    assert (result.files_restored, result.files_removed, result.dvs_restored, result.files_after) == (1, 2, 1, 2)


def test_the_history_says_what_a_restore_did(builder: DeltaBuilder, place: str) -> None:
    restore(open_table(place), version=1)
    (info,) = actions(builder, 5, "commitInfo")
    sizes = {add["path"]: add["size"] for version in (1, 4) for add in actions(builder, version, "add")}
    first, second = (add["path"] for add in actions(builder, 1, "add"))
    (third,) = (add["path"] for add in actions(builder, 4, "add"))
    assert info["operation"] == "RESTORE"
    assert info["operationParameters"] == {"version": 1, "timestamp": None}
    assert info["operationMetrics"] == {
        "tableSizeAfterRestore": str(sizes[first] + sizes[second]),
        "numOfFilesAfterRestore": "2",
        "numRemovedFiles": "2",
        "numRestoredFiles": "1",
        "removedFilesSize": str(sizes[first] + sizes[third]),
        "restoredFilesSize": str(sizes[first]),
    }


def test_back_over_a_purge(builder: DeltaBuilder, place: str) -> None:
    purge(open_table(place), LocalEngine())
    restore(open_table(place), version=3)
    assert live(place) == live(place, 3)
    assert sum(load_snapshot(builder.storage).files["deleted_rows"].to_pylist()) == 2


def test_back_to_before_deletion_vectors_and_forth(place: str) -> None:
    builder = DeltaBuilder(place).create(SCHEMA, properties={"delta.enableDeletionVectors": "false"})
    builder.append(rows(range(4)))
    protocol = load_snapshot(builder.storage).protocol.to_json()
    protocol |= {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    builder.commit([{"protocol": protocol}])
    set_metadata(builder, enableDeletionVectors="true")
    delete(builder, 3)
    report = restore(open_table(place), version=1)
    assert report.properties == ("delta.enableDeletionVectors",)
    assert live(place) == Counter(range(4))
    snapshot = load_snapshot(builder.storage)
    assert snapshot.properties["delta.enableDeletionVectors"] == "false"
    assert "deletionVectors" in snapshot.protocol.features("reader")  # what is in between must stay readable
    restore(open_table(place), version=4)
    assert live(place) == Counter(range(3))
    assert load_snapshot(builder.storage).properties["delta.enableDeletionVectors"] == "true"


def test_a_feature_that_was_given_up_comes_back(builder: DeltaBuilder, place: str) -> None:
    builder.commit([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}])
    report = restore(open_table(place), version=3)
    assert report.features == ("deletionVectors",)
    protocol = load_snapshot(builder.storage).protocol
    assert protocol.features("reader") == {"deletionVectors"}
    assert protocol.features("writer") == {"appendOnly", "deletionVectors", "invariants"}


def test_nothing_to_do_commits_nothing(builder: DeltaBuilder, place: str) -> None:
    for version in (4, 4):
        report = restore(open_table(place), version=version)
        assert (report.version_before, report.version_after, report.verified) == (4, 4, True)


def test_a_dry_run_commits_nothing(builder: DeltaBuilder, place: str) -> None:
    dry = restore(open_table(place), version=1, dry_run=True)
    assert (dry.version_after, load_snapshot(builder.storage).version) == (4, 4)
    done = restore(open_table(place), version=1)
    assert (dry.files_restored, dry.bytes_removed, dry.files_after) == (
        done.files_restored, done.bytes_removed, done.files_after
    )  # fmt: skip


def test_other_spellings_of_a_path_are_no_difference(place: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    builder = DeltaBuilder(place).create(schema, partition_by=["p"])
    builder.append(pa.table({"id": [1], "p": ["a+b"]}, schema=schema))
    (add,) = actions(builder, 1, "add")
    other = add["path"].replace("+", "%2B") if "+" in add["path"] else add["path"].replace("%2B", "+")
    assert other != add["path"]
    builder.commit([{"remove": {"path": add["path"], "dataChange": False}}])
    builder.commit([{"add": {**add, "path": other}}])
    assert restore(open_table(place), version=1).version_after == 3


# -- what the log keeps ------------------------------------------------------------------------------------------------


def test_in_commit_timestamps_go_on(builder: DeltaBuilder, place: str) -> None:
    set_protocol(builder, "inCommitTimestamp")
    marks = {"inCommitTimestampEnablementVersion": "6", "inCommitTimestampEnablementTimestamp": "1"}
    metadata = load_snapshot(builder.storage).metadata.to_json()
    metadata["configuration"] |= {f"delta.{name}": value for name, value in marks.items()}
    metadata["configuration"]["delta.enableInCommitTimestamps"] = "true"
    path = Path(place, "_delta_log", f"{6:020d}.json")
    info = {"operation": "SET TBLPROPERTIES", "inCommitTimestamp": 4_000_000_000_000}
    path.write_text("\n".join(json.dumps(action) for action in ({"commitInfo": info}, {"metaData": metadata})))
    restore(open_table(place), version=3)
    snapshot = load_snapshot(builder.storage)
    assert snapshot.properties["delta.inCommitTimestampEnablementVersion"] == "6"
    assert snapshot.in_commit_timestamp == 4_000_000_000_001


def test_protected_checkpoints_stay_so(builder: DeltaBuilder, place: str) -> None:
    set_protocol(builder, "checkpointProtection")
    set_metadata(builder, requireCheckpointProtectionBeforeVersion="5")
    restore(open_table(place), version=3)
    assert load_snapshot(builder.storage).properties["delta.requireCheckpointProtectionBeforeVersion"] == "5"


# -- what must not be --------------------------------------------------------------------------------------------------


def test_missing_data_files_are_named(builder: DeltaBuilder, place: str) -> None:
    purge(open_table(place), LocalEngine())
    (path,) = {add["path"] for add in actions(builder, 2, "add")}
    Path(place, path).unlink()
    with pytest.raises(RefusedError, match=path) as caught:
        restore(open_table(place), version=2)
    assert caught.value.exit_code == 3
    assert "vacuum" in (caught.value.next_step or "")
    assert load_snapshot(builder.storage).version == 5


def test_missing_deletion_vectors_are_named(builder: DeltaBuilder, place: str) -> None:
    """The files that a vacuum without knowledge of deletion vectors leaves: with them, deleted rows would reappear."""
    purge(open_table(place), LocalEngine())
    for path in Path(place).glob("deletion_vector_*.bin"):
        path.unlink()
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match=r"deletion_vector_.*\.bin"):
            restore(open_table(place), version=3, dry_run=dry_run)
    assert restore(open_table(place), version=1).verified


@pytest.mark.parametrize("pattern", ["part-*.parquet", "deletion_vector_*.bin"])
def test_files_of_another_size_are_no_use(builder: DeltaBuilder, place: str, pattern: str) -> None:
    purge(open_table(place), LocalEngine())
    wanted = {add["path"] for version in (1, 2) for add in actions(builder, version, "add")}
    for path in Path(place).glob(pattern):
        if path.suffix == ".bin" or path.name in wanted:
            path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedTableError, match="bytes"):
        restore(open_table(place), version=2)


def test_append_only_tables_lose_nothing(builder: DeltaBuilder, place: str) -> None:
    set_metadata(builder, appendOnly="true")
    with pytest.raises(RefusedError, match="append-only"):
        restore(open_table(place), version=1)


def test_rows_without_ids_stay_out_of_a_table_with_row_tracking(builder: DeltaBuilder, place: str) -> None:
    set_protocol(builder, "rowTracking", "domainMetadata")
    with pytest.raises(RefusedError, match="rowTracking"):
        restore(open_table(place), version=1)


def test_iceberg_readers_are_kept_from_deletion_vectors(builder: DeltaBuilder, place: str) -> None:
    set_protocol(builder, "icebergCompatV2")
    with pytest.raises(UnsupportedFeatureError, match="icebergCompatV2"):
        restore(open_table(place), version=1)


@pytest.mark.parametrize("wanted", [{}, {"version": 1, "timestamp": 1}, {"version": 5}, {"version": -1}])
def test_requests_that_make_no_sense(builder: DeltaBuilder, place: str, wanted: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        restore(open_table(place), **wanted)


def test_formats_without_restore_say_so(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="can't be restored"):
        restore(MemoryTable(tmp_path), version=0)


# -- others at work ----------------------------------------------------------------------------------------------------


class Racing(Storage):
    """Lets another writer in just before each of our commits."""

    def __init__(self, place: str, other: Callable[[int], object]) -> None:
        super().__init__(place)
        self.other = other
        self.tries = 0

    def create(self, path: str, data: bytes) -> None:
        self.tries += 1
        self.other(self.tries)
        super().create(path, data)


def test_what_others_commit_meanwhile_is_part_of_the_plan(builder: DeltaBuilder, place: str) -> None:
    wanted = live(place, 2)

    def interfere(attempt: int) -> None:
        if attempt == 1:
            builder.append(rows([100]))
        if attempt == 2:
            delete(builder, 5, 6)

    result = restore_delta(Racing(place, interfere), version=2)
    assert (result.version_before, result.version_after, result.attempts) == (6, 7, 3)
    assert live(place) == wanted
    assert result.files_removed == 4  # two that were changed, two that were added


def test_a_race_that_is_always_lost(builder: DeltaBuilder, place: str) -> None:
    storage = Racing(place, lambda attempt: builder.append(rows([100 + attempt])))
    with pytest.raises(ConflictError):
        restore_delta(storage, version=2, max_attempts=2)
