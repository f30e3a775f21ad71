"""Commits that change rows, raced by others: no change is lost, and none is made to rows that were never read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.readers import with_deltalake
from test_delta_rebase import ROWS, SCHEMA, SETS, STEP, Others, Raced, ids_of, no_orphans

from dv_maintenance.dv import DeletionVector, delta
from dv_maintenance.errors import RefusedError, StorageError, VerificationError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.commit import dv_files
from dv_maintenance.tables.delta.commit.row_changes import commit_changes
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.segment import read_commit
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.rows import AddedFile, ChangesOutcome, DeletedRows, RowChanges
from dv_maintenance.tables.work import OutputFile
from dv_maintenance.testing.delta_builder import DeltaBuilder


def serializable(others: Others) -> None:
    """With this isolation level what the table holds in the end says everything."""
    metadata = load_snapshot(others.builder.storage).metadata
    strict = {**metadata.configuration, "delta.isolationLevel": "Serializable"}
    others.builder.commit([{"metaData": replace(metadata, configuration=strict).to_json()}])


def deletions(others: Others, ids: set[int]) -> tuple[DeletedRows, ...]:
    found = []
    for file in others.files():
        stored = pq.read_table(Path(others.place) / file.log.path)["id"].to_pylist()
        positions = [at for at, number in enumerate(stored) if number in ids & file.held]
        if positions:
            found.append(DeletedRows(file.log.key, DeletionVector.from_positions(positions), len(stored)))
    return tuple(found)


def reading(place: str, ids: set[int]) -> Callable[[DeltaSnapshot], bool]:
    def reads(added: DeltaSnapshot) -> bool:
        stored = (pq.read_table(Path(place) / path)["id"].to_pylist() for path in added.files["path"].to_pylist())
        return any(ids & set(numbers) for numbers in stored)

    return reads


def new_file(place: str, ids: list[int]) -> AddedFile:
    path = Path(place) / f"new-{ids[0]}.parquet"
    pq.write_table(pa.table({"id": ids}, schema=SCHEMA), path)
    return AddedFile(OutputFile(Storage(place).uri_of(path.name), path.stat().st_size, len(ids), 1), "")


def delete(others: Others, ids: set[int], base: DeltaSnapshot | None = None) -> ChangesOutcome:
    base = base or load_snapshot(others.builder.storage)
    changes = RowChanges(deletions(others, ids))
    operation = {"name": "DELETE", "parameters": {"predicate": ["test"]}}
    return commit_changes(others.builder.storage, base, changes, operation=operation, reads=reading(others.place, ids))


@settings(max_examples=examples(5), suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(["DELETE", "UPDATE"]),
    before=SETS,
    ours=SETS,
    meanwhile=st.lists(STEP, max_size=4),
    racing=st.lists(STEP, max_size=3),
)
@example(
    name="DELETE",
    before=set(),
    ours={21},
    meanwhile=[("copy_on_write", set(range(21))), ("compact", set(range(22)))],  # a copy, moved once more
    racing=[],
)
def test_any_interleaving(name: str, before: Any, ours: Any, meanwhile: Any, racing: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/table"
        others = Others(place)
        serializable(others)
        others.delete(before)
        base = load_snapshot(Storage(place))
        deleted = deletions(others, ours)
        hit = ours & others.live
        new = {number + 10_000 for number in hit} if name == "UPDATE" else set()
        added = (new_file(place, sorted(new)),) if new else ()
        steps = [
            lambda step=step: getattr(others, step[0])(step[1] & set(range(ROWS))) for step in (*meanwhile, *racing)
        ]
        for step in steps[: len(meanwhile)]:
            step()
        outcome = commit_changes(
            Raced(place, steps[len(meanwhile) :]),
            base,
            RowChanges(deleted, added),
            operation={"name": name, "parameters": {}},
            reads=reading(place, ours),
        )
        if outcome.version is None:
            assert ids_of(place) == others.live
            assert outcome.conflict or not hit & others.live, "only what is done already is left alone"
        else:
            assert ids_of(place) == (others.live - ours) | new
            assert name == "DELETE" or hit <= others.live, "an updated row that others deleted stays deleted"
            if name == "DELETE":
                assert outcome.rows_deleted == len(hit & others.live)
        if name == "DELETE" and {step for step, _ in (*meanwhile, *racing)} <= {"delete", "append"}:
            assert not outcome.conflict, "two deletes are never in each other's way"
        no_orphans(place)


# -- what is committed -------------------------------------------------------------------------------------------


@pytest.fixture
def others(tmp_path: Path) -> Others:
    """Half of the first file is deleted."""
    made = Others(str(tmp_path / "a table"))
    made.delete(set(range(10)))
    return made


def actions_of(others: Others, outcome: ChangesOutcome, kind: str) -> list[dict[str, Any]]:
    assert outcome.version is not None
    found = read_commit(others.builder.storage, outcome.version)
    return [action[kind] for action in found if kind in action]


def test_a_delete_repeats_the_add_with_a_larger_dv(others: Others) -> None:
    before = {add["path"]: add for add in _live(others)}
    outcome = delete(others, {12, 30, *range(60, 80)})
    adds, removes = actions_of(others, outcome, "add"), actions_of(others, outcome, "remove")
    assert sorted(add["deletionVector"]["cardinality"] for add in adds) == [1, 11]
    for add in adds:
        old = before[add["path"]]
        assert {**add, "deletionVector": None, "stats": None} == {**old, "deletionVector": None, "stats": None}
        assert json.loads(add["stats"]) == {**json.loads(old["stats"]), "tightBounds": False}
    assert {remove["path"]: remove.get("deletionVector") for remove in removes} == {
        path: before[path].get("deletionVector") for path in [remove["path"] for remove in removes]
    }
    assert len(removes) == 3, "the file without live rows is only removed"
    assert all(body["dataChange"] for body in (*adds, *removes))
    (info,) = actions_of(others, outcome, "commitInfo")
    assert (info["operation"], info["isolationLevel"], info["isBlindAppend"]) == ("DELETE", "WriteSerializable", False)
    assert outcome == ChangesOutcome(outcome.version, 1, "", 22, 1, 0, 2, 1)
    assert set(with_deltalake(Path(others.place))["id"].to_pylist()) == others.live - {12, 30, *range(60, 80)}


def _live(others: Others) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for version in range(load_snapshot(others.builder.storage).version + 1):
        for action in read_commit(others.builder.storage, version):
            if "add" in action:
                found[action["add"]["path"]] = action["add"]
    return list(found.values())


def test_metrics_as_delta_spark_counts(others: Others) -> None:
    outcome = delete(others, {12, 30, *range(60, 80)})
    (info,) = actions_of(others, outcome, "commitInfo")
    metrics = {key: int(value) for key, value in info["operationMetrics"].items()}
    assert metrics.pop("numRemovedBytes")
    assert metrics == {
        "numRemovedFiles": 1,
        "numAddedFiles": 0,
        "numAddedBytes": 0,
        "numAddedChangeFiles": 0,
        "numDeletionVectorsAdded": 2,
        "numDeletionVectorsRemoved": 1,
        "numDeletionVectorsUpdated": 1,
        "numCopiedRows": 0,
        "numDeletedRows": 22,
    }


def test_a_missing_row_count_is_filled_in(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path / "bare")).create(SCHEMA)
    builder.append(pa.table({"id": range(8)}, schema=SCHEMA), statistics=False)
    base = load_snapshot(builder.storage)
    (key,) = [FileKey(path) for path in base.files["path"].to_pylist()]
    changes = RowChanges((DeletedRows(key, DeletionVector.from_positions([7]), 8),))
    operation = {"name": "DELETE", "parameters": {}}
    commit_changes(builder.storage, base, changes, operation=operation, reads=lambda _: False)
    assert load_snapshot(builder.storage).files["physical_rows"].to_pylist() == [8]


def test_digits_of_statistics_survive(tmp_path: Path) -> None:
    schema = pa.schema([("amount", pa.decimal128(38, 10))])
    amounts = [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001")]
    builder = DeltaBuilder(str(tmp_path / "exact")).create(schema)
    builder.append(pa.table({"amount": amounts}, schema=schema))
    base = load_snapshot(builder.storage)
    (key,) = [FileKey(path) for path in base.files["path"].to_pylist()]
    changes = RowChanges((DeletedRows(key, DeletionVector.from_positions([1]), 2),))
    outcome = commit_changes(
        builder.storage, base, changes, operation={"name": "DELETE", "parameters": {}}, reads=lambda _: False
    )
    (add,) = [action["add"] for action in read_commit(builder.storage, outcome.version or 0) if "add" in action]
    assert '"maxValues":{"amount":1234567890123456789012345678.0123456789}' in add["stats"]


def test_blind_appends_may_have_come_later(others: Others) -> None:
    base = load_snapshot(others.builder.storage)
    changes = RowChanges(deletions(others, {30}))
    others.append({1})
    outcome = commit_changes(
        others.builder.storage, base, changes, operation={"name": "DELETE", "parameters": {}}, reads=lambda _: True
    )
    assert outcome.version == base.version + 2


def test_rows_that_others_added_by_an_update_are_checked(others: Others) -> None:
    base = load_snapshot(others.builder.storage)
    changes = RowChanges(deletions(others, {30}))
    asked: list[list[str]] = []
    new = new_file(others.place, [555])
    others.builder.commit(
        [{"add": {"path": "new-555.parquet", "size": new.output.size, "partitionValues": {}, "modificationTime": 1,
                  "dataChange": True, "stats": '{"numRecords":1}'}}]
    )  # fmt: skip

    def reads(added: DeltaSnapshot) -> bool:
        asked.append(added.files["path"].to_pylist())
        return len(asked) > 1

    for wanted in (base.version + 2, None):
        outcome = commit_changes(
            others.builder.storage, base, changes, operation={"name": "DELETE", "parameters": {}}, reads=reads
        )
        assert (outcome.version, bool(outcome.conflict)) == (wanted, wanted is None)
    assert asked == [["new-555.parquet"]] * 2


def test_a_changed_schema_is_a_conflict(others: Others) -> None:
    base = load_snapshot(others.builder.storage)
    changes = RowChanges(deletions(others, {30}))
    serializable(others)
    outcome = commit_changes(
        others.builder.storage, base, changes, operation={"name": "DELETE", "parameters": {}}, reads=lambda _: False
    )
    assert (outcome.version, "metadata" in outcome.conflict) == (None, True)


def test_a_table_without_dvs_loses_whole_files_only(others: Others) -> None:
    metadata = load_snapshot(others.builder.storage).metadata
    off = {**metadata.configuration, "delta.enableDeletionVectors": "false"}
    others.builder.commit([{"metaData": replace(metadata, configuration=off).to_json()}])
    with pytest.raises(RefusedError, match="does not allow deletion vectors"):
        delete(others, {30})
    assert delete(others, set(range(60, 80))).files_removed == 1


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda each: replace(each, positions=DeletionVector.from_positions([20])), "not among its 20 rows"),
        (lambda each: replace(each, key=replace(each.key, dv_id="uab")), "is not live"),
        (lambda each: replace(each, positions=DeletionVector.from_positions([0])), "were deleted when it was read"),
    ],
)
def test_what_cannot_be_right_is_refused(others: Others, spoil: Any, complaint: str) -> None:
    (deleted,) = deletions(others, {15})
    base = load_snapshot(others.builder.storage)
    with pytest.raises(VerificationError, match=complaint):
        commit_changes(
            others.builder.storage,
            base,
            RowChanges((spoil(deleted),)),
            operation={"name": "DELETE", "parameters": {}},
            reads=lambda _: False,
        )
    assert load_snapshot(others.builder.storage).version == base.version


def test_a_new_file_must_be_there(others: Others) -> None:
    base = load_snapshot(others.builder.storage)
    gone = AddedFile(OutputFile(others.builder.storage.uri_of("nowhere.parquet"), 1, 1, 1), "")
    with pytest.raises(VerificationError, match=r"nowhere\.parquet does not exist"):
        commit_changes(
            others.builder.storage,
            base,
            RowChanges((), (gone,)),
            operation={"name": "MERGE", "parameters": {}},
            reads=lambda _: False,
        )


class FailingDvs(Storage):
    """Writes of DV files fail as ``faults`` says, one entry a write: "before", "after" it was done, or not."""

    def __init__(self, place: str, faults: list[str]) -> None:
        super().__init__(place)
        self.faults = faults

    def put(self, path: str, data: bytes) -> None:
        self._write(super().put, path, data)

    def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        self._write(super().create, path, data)

    def _write(self, write: Callable[[str, bytes], None], path: str, data: bytes) -> None:
        fault = self.faults.pop(0) if path.endswith(".bin") and self.faults else ""
        if fault != "before":
            write(path, data)
        if fault:
            raise StorageError("no space left on the disk, or no answer")


@pytest.mark.parametrize("faults", [["before"], ["after"], ["", "before"], ["", "after", "before", "", "before"]])
def test_a_dv_file_that_fails_to_be_written_is_written_again(
    others: Others, faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dv_files, "_INLINE", 0)
    monkeypatch.setattr(delta.pack, "__kwdefaults__", {"target_size": 1, "prefix": ""})  # a file for each DV
    storage = FailingDvs(others.place, list(faults))
    changes = RowChanges(deletions(others, {15, 30, 70}))
    outcome = commit_changes(
        storage,
        load_snapshot(storage),
        changes,
        operation={"name": "DELETE", "parameters": {}},
        reads=lambda _: False,
    )
    assert (outcome.version is not None, storage.faults) == (True, [])
    assert ids_of(others.place) == others.live - {15, 30, 70}
    no_orphans(others.place)


def test_files_of_a_failed_commit_are_deleted(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dv_files, "_INLINE", 0)
    storage = FailingDvs(others.place, ["after"] * 10)
    changes = RowChanges(deletions(others, {15, 30}))
    with pytest.raises(StorageError, match="no space left") as caught:
        commit_changes(
            storage,
            load_snapshot(storage),
            changes,
            operation={"name": "DELETE", "parameters": {}},
            reads=lambda _: False,
        )
    assert "nothing was committed" in (caught.value.done or "")
    no_orphans(others.place)


def test_append_only_tables_keep_their_rows(tmp_path: Path) -> None:
    builder = DeltaBuilder(str(tmp_path / "log")).create(
        SCHEMA, properties={"delta.appendOnly": "true"}, features=["appendOnly"]
    )
    builder.append(pa.table({"id": [1]}, schema=SCHEMA))
    base = load_snapshot(builder.storage)
    changes = RowChanges(tuple(DeletedRows(FileKey(path)) for path in base.files["path"].to_pylist()))
    with pytest.raises(RefusedError, match="append-only"):
        commit_changes(
            builder.storage, base, changes, operation={"name": "DELETE", "parameters": {}}, reads=lambda _: False
        )
    assert pc.sum(load_snapshot(builder.storage).files["physical_rows"]).as_py() == 1
