from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.readers import READERS, with_delta_spark, with_deltalake

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    RetryableError,
    StorageError,
    UnsupportedFeatureError,
    VerificationError,
)
from dv_maintenance.storage import FileExistsAlreadyError, RawName, Storage
from dv_maintenance.tables.delta.commit.rewrites import commit_info_only, commit_replacements
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log import checkpoint_writer
from dv_maintenance.tables.delta.log.replay import full_state
from dv_maintenance.tables.delta.log.segment import commit_path, latest_version, read_commit
from dv_maintenance.tables.delta.rows.tasks import rewrite_tasks
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.table import CommitOutcome, Replacement
from dv_maintenance.tables.work import RewriteBin
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIMIZE = {"name": "OPTIMIZE", "parameters": {"predicate": [], "zOrderBy": [], "auto": False}}
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "a table")


@pytest.fixture
def builder(place: str) -> DeltaBuilder:
    """Version 2: four files of 25 rows, ids 0-99, in two partitions; ids 0, 10, 20... deleted by DVs."""
    builder = DeltaBuilder(place).create(SCHEMA, partition_by=["day"])
    rows = pa.table({"id": range(100), "day": ["mon"] * 50 + ["tue/ wed"] * 50}, schema=SCHEMA)
    builder.append(rows, files=2)
    builder.delete(every_tenth)
    return builder


def every_tenth(rows: pa.RecordBatch) -> pa.BooleanArray:
    ids = rows["id"]
    return pc.equal(pc.subtract(ids, pc.multiply(pc.divide(ids, 10), 10)), 0)


def purged(storage: Storage, snapshot: DeltaSnapshot) -> list[Replacement]:
    """A replacement for each file with a DV, its output written."""
    files = snapshot.files.filter(snapshot.files["dv_id"].is_valid()).to_pylist()
    bins = [RewriteBin(f"r{n}", row["partition"], (FileKey(row["path"], row["dv_id"]),)) for n, row in enumerate(files)]
    results = LocalEngine().run(rewrite_tasks(storage, snapshot, bins, 1 << 30), storage_options=storage.options)
    # Without what each input gave, so that nothing can be carried over: see test_delta_rebase.
    return [
        Replacement(one.id, one.partition, one.inputs, result.outputs)
        for one, result in zip(bins, results, strict=True)
    ]


def plan(builder: DeltaBuilder) -> tuple[DeltaSnapshot, list[Replacement]]:
    snapshot = load_snapshot(builder.storage)
    return snapshot, purged(builder.storage, snapshot)


def commit(builder: DeltaBuilder, base: DeltaSnapshot, parts: Sequence[Replacement], **options: Any) -> CommitOutcome:
    return commit_replacements(builder.storage, base, parts, operation=OPTIMIZE, **options)


def ids(place: str) -> list[int]:
    return sorted(with_deltalake(Path(place))["id"].to_pylist())


def bodies(storage: Storage, version: int, kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in read_commit(storage, version) if kind in action]


LIVE = [n for n in range(100) if n % 10]


# -- what is committed -------------------------------------------------------------------------------------------


def test_a_purge_changes_files_and_no_rows(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)
    outcome = commit(builder, base, parts)
    assert outcome == CommitOutcome(3, ("r0", "r1", "r2", "r3"), (), 1)
    after = load_snapshot(builder.storage)
    assert after.version == 3
    assert after.files["deleted_rows"].to_pylist() == [0] * 4
    assert sorted(after.files["partition"].to_pylist()) == sorted(base.files["partition"].to_pylist())
    assert ids(place) == LIVE


def test_the_actions_of_a_purge(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    adds_before = {add["path"]: add for add in bodies(builder.storage, 2, "add")}
    commit(builder, base, parts)
    first, *rest = read_commit(builder.storage, 3)
    removes = [action["remove"] for action in rest if "remove" in action]
    adds = [action["add"] for action in rest if "add" in action]
    assert len(rest) == len(removes) + len(adds) == 8
    assert len({remove["deletionTimestamp"] for remove in removes}) == 1
    for remove in removes:
        add = adds_before[remove["path"]]
        assert remove == {
            "path": add["path"],
            "deletionTimestamp": remove["deletionTimestamp"],
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": add["partitionValues"],
            "size": add["size"],
            "deletionVector": add["deletionVector"],
        }
    for add in adds:
        assert set(add) == {"path", "partitionValues", "size", "modificationTime", "dataChange", "stats"}
        assert add["dataChange"] is False
        assert builder.storage.head(builder.storage.path_of(RawName(add["path"]))).size == add["size"]
        stats = json.loads(add["stats"])
        assert stats["tightBounds"] is True
        assert stats["nullCount"] == {"id": 0}
    assert sum(json.loads(add["stats"])["numRecords"] for add in adds) == len(LIVE)
    info = first["commitInfo"]
    sizes = sorted(add["size"] for add in adds)
    assert info["operation"] == "OPTIMIZE"
    assert info["operationParameters"] == {"predicate": "[]", "zOrderBy": "[]", "auto": False}
    assert info["readVersion"] == 2
    assert info["isolationLevel"] == "SnapshotIsolation"
    assert info["isBlindAppend"] is False
    assert info["engineInfo"].startswith("dv-maintenance/")
    assert "inCommitTimestamp" not in info
    assert info["operationMetrics"] == {
        "numAddedFiles": "4",
        "numRemovedFiles": "4",
        "numAddedBytes": str(sum(sizes)),
        "numRemovedBytes": str(sum(remove["size"] for remove in removes)),
        "minFileSize": str(sizes[0]),
        "p25FileSize": str(sizes[1]),
        "p50FileSize": str(sizes[2]),
        "p75FileSize": str(sizes[3]),
        "maxFileSize": str(sizes[3]),
        "numDeletionVectorsRemoved": "4",
    }


def test_a_remove_has_the_fields_of_its_add(builder: DeltaBuilder) -> None:
    (add, *_) = bodies(builder.storage, 2, "add")
    tagged = {**add, "tags": {"x": "y", "z": None}, "baseRowId": 7, "defaultRowCommitVersion": 1}
    builder.commit([{"add": tagged}])
    base, parts = plan(builder)
    commit(builder, base, parts)
    removes = {remove["path"]: remove for remove in bodies(builder.storage, 4, "remove")}
    for name in ("tags", "baseRowId", "defaultRowCommitVersion", "deletionVector"):
        assert removes[add["path"]][name] == tagged[name]


@pytest.mark.parametrize("style", ["file", "inline", "absolute"])
def test_every_kind_of_dv_is_removed_by_its_literal_descriptor(tmp_path: Path, style: Any) -> None:
    # No names with escapes here: polars 2.1 looks for files and DVs under the encoded ones.
    builder = DeltaBuilder(str(tmp_path)).create(SCHEMA)
    builder.append(pa.table({"id": range(100), "day": ["mon"] * 100}, schema=SCHEMA))
    builder.delete(every_tenth, style=style)
    base, parts = plan(builder)
    commit(builder, base, parts)
    (before,), (after,) = bodies(builder.storage, 2, "add"), bodies(builder.storage, 3, "remove")
    assert after["deletionVector"] == before["deletionVector"]
    assert ("offset" in after["deletionVector"]) == (style != "inline")
    for read in READERS.values():
        assert sorted(read(tmp_path)["id"].to_pylist()) == LIVE


def test_wholly_deleted_files_go_without_a_new_one(builder: DeltaBuilder, place: str) -> None:
    # Not by DELETE, which drops such files itself: a DV that grew to the whole file in two writers' hands.
    (add, *_) = bodies(builder.storage, 2, "add")
    dv = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 25}
    builder.commit(
        [
            {"remove": {"path": add["path"], "deletionVector": add["deletionVector"], "dataChange": True}},
            {"add": {**add, "deletionVector": dv}},
        ]
    )
    base = load_snapshot(builder.storage)
    (row,) = [row for row in base.files.to_pylist() if row["deleted_rows"] == 25]
    part = Replacement("all", row["partition"], (FileKey(row["path"], row["dv_id"]),))
    assert commit(builder, base, [part]).version == 4
    assert load_snapshot(builder.storage).files.num_rows == 3
    assert bodies(builder.storage, 4, "add") == []
    assert bodies(builder.storage, 4, "commitInfo")[0]["operationMetrics"]["maxFileSize"] == "0"


def test_nothing_to_replace_commits_nothing(builder: DeltaBuilder) -> None:
    assert commit(builder, load_snapshot(builder.storage), []) == CommitOutcome(None, (), (), 1)
    assert latest_version(builder.storage) == 2


GOLDEN = ["table-with-dv-small", "table-with-dv-large", "dv-with-columnmapping", "made-inline-dv", "made-prefix-dv"]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables(golden_copy: Callable[[str], Path], canon: ModuleType, name: str) -> None:
    table = golden_copy(f"delta/{name}")
    before = canon.digest(canon.rows(with_deltalake(table)))
    storage = Storage(str(table))
    base = load_snapshot(storage)
    outcome = commit_replacements(storage, base, purged(storage, base), operation=OPTIMIZE)
    assert outcome.version == base.version + 1
    assert not pc.any(load_snapshot(storage).files["dv_id"].is_valid()).as_py()
    assert canon.digest(canon.rows(with_deltalake(table))) == before


# -- conflicts ---------------------------------------------------------------------------------------------------


def test_appends_never_conflict(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)
    builder.append(pa.table({"id": [1000], "day": ["mon"]}, schema=SCHEMA))
    outcome = commit(builder, base, parts)
    assert (outcome.version, outcome.lost) == (4, ())
    assert bodies(builder.storage, 4, "commitInfo")[0]["readVersion"] == 2
    assert ids(place) == [*LIVE, 1000]


def test_a_new_dv_on_one_input_loses_only_its_replacement(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)
    victim = parts[1].inputs[0].path
    builder.delete({victim: range(5)})
    outcome = commit(builder, base, parts)
    assert outcome.version == 4
    assert (outcome.committed, outcome.lost) == (("r0", "r2", "r3"), ("r1",))
    assert victim in outcome.reason
    live = load_snapshot(builder.storage).files
    assert live.filter(live["dv_id"].is_valid())["path"].to_pylist() == [victim]
    gone = set(range(100)) - set(ids(place))
    assert len(gone) > 10  # the delete stays deleted


def test_all_lost_commits_nothing_and_says_why(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    builder.delete(lambda rows: pc.less(rows["id"], 1000))
    outcome = commit(builder, base, parts)
    assert outcome.version is None
    assert (outcome.committed, outcome.lost) == ((), ("r0", "r1", "r2", "r3"))
    assert "another writer removed" in outcome.reason
    assert outcome.reason.endswith("and 1 more")
    assert latest_version(builder.storage) == 3


def test_inputs_that_the_base_does_not_have_are_lost(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    stale = replace(parts[0], inputs=(FileKey(parts[0].inputs[0].path, None),))
    outcome = commit(builder, base, [stale, parts[1]])
    assert (outcome.committed, outcome.lost) == (("r1",), ("r0",))
    assert "no longer live" in outcome.reason


def test_a_restored_file_is_live(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)
    (add, *_) = bodies(builder.storage, 2, "add")
    dropped = {key: add[key] for key in ("path", "deletionVector", "partitionValues")}
    builder.commit([{"remove": {**dropped, "dataChange": True}}])
    builder.commit([{"add": add}])
    assert commit(builder, base, parts).lost == ()
    assert ids(place) == LIVE


def metadata_action(base: DeltaSnapshot, **changes: Any) -> dict[str, Any]:
    return {"metaData": {**base.metadata.to_json(), **changes}}


def test_a_changed_schema_loses_everything(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    schema = json.loads(base.metadata.schema_string)
    schema["fields"].append({"name": "more", "type": "long", "nullable": True, "metadata": {}})
    builder.commit([metadata_action(base, schemaString=json.dumps(schema))])
    outcome = commit(builder, base, parts)
    assert (outcome.version, len(outcome.lost)) == (None, 4)
    assert "schema" in outcome.reason


def test_a_changed_property_is_obeyed(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    builder.commit([metadata_action(base, configuration={"delta.dataSkippingNumIndexedCols": "0"})])
    assert commit(builder, base, parts).version == 4
    assert json.loads(bodies(builder.storage, 4, "add")[0]["stats"])["minValues"] == {}


def test_a_feature_that_came_meanwhile_is_checked(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    protocol = base.protocol.to_json()
    builder.commit([{"protocol": {**protocol, "writerFeatures": [*protocol["writerFeatures"], "someNewFeature"]}}])
    with pytest.raises(UnsupportedFeatureError, match="someNewFeature"):
        commit(builder, base, parts)
    assert latest_version(builder.storage) == 3


def test_history_that_was_cleaned_up_cannot_be_checked(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    for n in range(3):
        builder.append(pa.table({"id": [n], "day": ["mon"]}, schema=SCHEMA))
    builder.checkpoint()
    builder.storage.delete([commit_path(3), commit_path(4), commit_path(5)])
    with pytest.raises(ConflictError, match="commit 3 was cleaned up") as caught:
        commit(builder, base, parts)
    assert "plan again" in str(caught.value)


def test_a_damaged_winner_stops_the_commit(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    builder.storage.create(commit_path(3), b'{"add": 1}\n')
    with pytest.raises(Exception, match=r"00003\.json"):
        commit(builder, base, parts)


# -- gates -------------------------------------------------------------------------------------------------------


def _missing(parts: list[Replacement], storage: Storage) -> None:
    storage.delete([storage.path_of_uri(parts[0].outputs[0].uri)])


def _longer(parts: list[Replacement], storage: Storage) -> None:
    parts[0] = replace(parts[0], outputs=(replace(parts[0].outputs[0], size=parts[0].outputs[0].size + 1),))


def _fewer_rows(parts: list[Replacement], storage: Storage) -> None:
    parts[0] = replace(parts[0], outputs=(replace(parts[0].outputs[0], rows=parts[0].outputs[0].rows - 1),))


def _no_outputs(parts: list[Replacement], storage: Storage) -> None:
    parts[0] = replace(parts[0], outputs=())


def _no_inputs(parts: list[Replacement], storage: Storage) -> None:
    parts[0] = replace(parts[0], inputs=())


def _shared_input(parts: list[Replacement], storage: Storage) -> None:
    parts.append(replace(parts[0], id="twin", outputs=()))


def _shared_id(parts: list[Replacement], storage: Storage) -> None:
    parts[1] = replace(parts[1], id="r0")


def _shared_output(parts: list[Replacement], storage: Storage) -> None:
    parts[1] = replace(parts[1], outputs=parts[0].outputs)


def _other_partition(parts: list[Replacement], storage: Storage) -> None:
    parts[0] = replace(parts[0], partition="day=sun")


def _live_output(parts: list[Replacement], storage: Storage) -> None:
    uri = storage.uri_of(storage.path_of(RawName(parts[0].inputs[0].path)))
    parts[0] = replace(parts[0], outputs=(replace(parts[0].outputs[0], uri=uri),))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_missing, "does not exist"),
        (_longer, "bytes"),
        (_fewer_rows, "live rows"),
        (_no_outputs, "live rows into 0"),
        (_no_inputs, "no inputs"),
        (_shared_input, "share an input"),
        (_shared_id, "share an id"),
        (_shared_output, "share a file"),
        (_other_partition, "day=sun"),
    ],
)
def test_gates(builder: DeltaBuilder, spoil: Callable[[list[Replacement], Storage], None], reason: str) -> None:
    base, parts = plan(builder)
    spoil(parts, builder.storage)
    with pytest.raises(VerificationError, match=reason):
        commit(builder, base, parts)
    assert latest_version(builder.storage) == 2


def test_a_live_file_cannot_be_an_output(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    _live_output(parts, builder.storage)
    # Not a VerificationError: what fails verification is deleted, and this file is live.
    with pytest.raises(DamagedTableError, match="name of a live one"):
        commit(builder, base, parts)
    assert latest_version(builder.storage) == 2


def test_rows_are_not_compared_where_the_log_does_not_count_them(place: str) -> None:
    builder = DeltaBuilder(place).create(SCHEMA)
    builder.append(pa.table({"id": range(100), "day": ["mon"] * 100}, schema=SCHEMA), statistics=False)
    builder.delete(every_tenth)
    base, parts = plan(builder)
    assert base.files["physical_rows"].null_count == 1
    assert commit(builder, base, parts).version == 3
    assert load_snapshot(builder.storage).files["physical_rows"].to_pylist() == [90]


def test_a_file_of_another_writer_cannot_be_an_output(builder: DeltaBuilder) -> None:
    base, parts = plan(builder)
    (add, *_) = bodies(builder.storage, 1, "add")
    path = builder.storage.path_of_uri(parts[0].outputs[0].uri)
    builder.commit([{"add": {**add, "path": path.replace(" ", "%20").replace("%2F", "%252F")}}])
    with pytest.raises(DamagedTableError, match="another commit added"):
        commit(builder, base, parts)


# -- races -------------------------------------------------------------------------------------------------------


def test_many_committers_get_one_version_each_and_lose_nothing(builder: DeltaBuilder, place: str) -> None:
    for start in range(100, 300, 50):
        rows = pa.table({"id": range(start, start + 50), "day": ["mon"] * 50}, schema=SCHEMA)
        builder.append(rows)
    builder.delete(lambda rows: pc.and_(pc.greater_equal(rows["id"], 100), every_tenth(rows)))
    base, parts = plan(builder)
    assert len(parts) == 8
    barrier = threading.Barrier(len(parts))

    def race(part: Replacement) -> CommitOutcome:
        barrier.wait()
        return commit_replacements(Storage(place), base, [part], operation=OPTIMIZE, max_attempts=50)

    with ThreadPoolExecutor(len(parts)) as pool:
        outcomes = list(pool.map(race, parts))
    assert sorted(outcome.version or 0 for outcome in outcomes) == list(range(base.version + 1, base.version + 9))
    assert all(not outcome.lost for outcome in outcomes)
    assert load_snapshot(builder.storage).files["dv_id"].null_count == 8
    assert ids(place) == [n for n in range(300) if n % 10]


def test_of_two_purges_of_the_same_files_one_wins(builder: DeltaBuilder, place: str) -> None:
    base = load_snapshot(builder.storage)
    rivals = [purged(builder.storage, base) for _ in range(4)]
    barrier = threading.Barrier(len(rivals))

    def race(parts: list[Replacement]) -> CommitOutcome:
        barrier.wait()
        return commit_replacements(Storage(place), base, parts, operation=OPTIMIZE)

    with ThreadPoolExecutor(len(rivals)) as pool:
        outcomes = list(pool.map(race, rivals))
    assert sorted((outcome.version, len(outcome.lost)) for outcome in outcomes if outcome.version) == [(3, 0)]
    assert [len(outcome.lost) for outcome in outcomes if outcome.version is None] == [4, 4, 4]
    assert latest_version(builder.storage) == 3
    assert ids(place) == LIVE


class Faulty(Storage):
    """Runs ``act(storage, path, data, number)`` in place of each put of a commit; ``number`` counts from 1."""

    def __init__(self, place: str, act: Callable[[Storage, str, bytes, int], None]) -> None:
        super().__init__(place)
        self.act = act
        self.puts = 0
        self.reads_fail = False

    def create(self, path: str, data: bytes) -> None:
        self.puts += 1
        self.act(Storage(self.uri), path, data, self.puts)

    def list(self, prefix: str = "", *, after: str | None = None) -> Any:
        if self.reads_fail and self.puts:
            raise StorageError("no answer")
        return super().list(prefix, after=after)


def test_losing_every_race_ends_in_a_conflict(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)

    def foil(storage: Storage, path: str, data: bytes, number: int) -> None:
        builder.append(pa.table({"id": [1000 + number], "day": ["mon"]}, schema=SCHEMA))
        storage.create(path, data)

    with pytest.raises(ConflictError) as caught:
        commit_replacements(Faulty(place, foil), base, parts, operation=OPTIMIZE, max_attempts=3)
    error = caught.value
    assert isinstance(error, RetryableError)
    assert (error.table, error.version) == (builder.storage.uri, 5)
    assert "3 attempts" in error.message
    assert "nothing was committed" in (error.done or "")
    assert "vacuum" in (error.next_step or "")
    assert latest_version(builder.storage) == 5


def test_a_lost_race_is_tried_again_on_what_is_left(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)

    def foil(storage: Storage, path: str, data: bytes, number: int) -> None:
        if number == 1:
            builder.delete({parts[0].inputs[0].path: [1, 2, 3]})
        storage.create(path, data)

    outcome = commit_replacements(Faulty(place, foil), base, parts, operation=OPTIMIZE)
    assert (outcome.version, outcome.attempts) == (4, 2)
    assert outcome.lost == ("r0",)


def _after(storage: Storage, path: str, data: bytes, number: int) -> None:
    storage.create(path, data)
    raise StorageError("timed out")


def _before(storage: Storage, path: str, data: bytes, number: int) -> None:
    if number == 1:
        raise StorageError("timed out")
    storage.create(path, data)


def _repeated_by_the_client(storage: Storage, path: str, data: bytes, number: int) -> None:
    storage.create(path, data)
    raise FileExistsAlreadyError(f"{path} exists already")


def _late(storage: Storage, path: str, data: bytes, number: int) -> None:
    """The first put lands only while the second is on its way."""
    global held  # noqa: PLW0603
    if number == 1:
        held = data
        raise StorageError("timed out")
    storage.create(path, held)
    storage.create(path, data)


held = b""


@pytest.mark.parametrize(
    ("fault", "tries"), [(_after, 1), (_before, 2), (_repeated_by_the_client, 1), (_late, 2)], ids=lambda x: str(x)[:16]
)
def test_a_put_with_an_unknown_outcome_commits_once(
    builder: DeltaBuilder, place: str, fault: Callable[[Storage, str, bytes, int], None], tries: int
) -> None:
    base, parts = plan(builder)
    outcome = commit_replacements(Faulty(place, fault), base, parts, operation=OPTIMIZE)
    assert outcome == CommitOutcome(3, ("r0", "r1", "r2", "r3"), (), tries)
    assert latest_version(builder.storage) == 3
    assert ids(place) == LIVE


def test_our_commit_is_found_among_later_commits(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)

    def overtaken(storage: Storage, path: str, data: bytes, number: int) -> None:
        storage.create(path, data)
        builder.append(pa.table({"id": [1000], "day": ["mon"]}, schema=SCHEMA))
        raise StorageError("timed out")

    assert commit_replacements(Faulty(place, overtaken), base, parts, operation=OPTIMIZE).version == 3
    assert latest_version(builder.storage) == 4


def test_our_last_put_is_looked_for(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)
    outcome = commit_replacements(Faulty(place, _after), base, parts, operation=OPTIMIZE, max_attempts=1)
    assert outcome.version == 3


def test_a_storage_without_answers_is_not_a_conflict(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)

    def down(storage: Storage, path: str, data: bytes, number: int) -> None:
        raise StorageError("no route")

    storage = Faulty(place, down)
    with pytest.raises(StorageError, match="no route") as caught:
        commit_replacements(storage, base, parts, operation=OPTIMIZE, max_attempts=3)
    assert storage.puts == 3
    assert "nothing was committed" in (caught.value.done or "")
    assert latest_version(builder.storage) == 2


def test_an_unreadable_log_makes_the_outcome_unknown(builder: DeltaBuilder, place: str) -> None:
    base, parts = plan(builder)
    storage = Faulty(place, _after)
    storage.reads_fail = True
    with pytest.raises(StorageError) as caught:
        commit_replacements(storage, base, parts, operation=OPTIMIZE, max_attempts=3)
    assert storage.puts == 1  # never put twice without knowing what became of the first
    assert "not known whether version 3" in (caught.value.done or "")
    transaction = bodies(builder.storage, 3, "commitInfo")[0]["txnId"]
    assert transaction in (caught.value.next_step or "")


def test_an_own_commit_that_may_have_been_cleaned_up_is_called_unknown(builder: DeltaBuilder, place: str) -> None:
    """A ConflictError would say that nothing was committed, and its catcher deletes the new files."""
    base, parts = plan(builder)

    def cleaned_up(storage: Storage, path: str, data: bytes, number: int) -> None:
        storage.create(path, data)
        builder.append(pa.table({"id": [1000], "day": ["mon"]}, schema=SCHEMA))
        storage.delete([path])
        raise StorageError("timed out")

    with pytest.raises(StorageError, match="commit 3 was cleaned up") as caught:
        commit_replacements(Faulty(place, cleaned_up), base, parts, operation=OPTIMIZE)
    assert "not known whether version 3" in (caught.value.done or "")


# -- times, checkpoints, empty commits ---------------------------------------------------------------------------


def test_in_commit_timestamps_only_go_up(place: str) -> None:
    ahead = 4_000_000_000_000
    builder = DeltaBuilder(place, clock=lambda: ahead)
    builder.create(SCHEMA, properties={"delta.enableInCommitTimestamps": "true"})
    builder.append(pa.table({"id": range(100), "day": ["mon"] * 100}, schema=SCHEMA))
    builder.delete(every_tenth)
    base, parts = plan(builder)
    assert base.in_commit_timestamp == ahead + 2
    builder.append(pa.table({"id": [1000], "day": ["mon"]}, schema=SCHEMA))
    commit(builder, base, parts)
    commit_info_only(builder.storage, "VACUUM START", {}, {})
    for version, stamp in ((4, ahead + 4), (5, ahead + 5)):
        (first, *_) = read_commit(builder.storage, version)
        assert first["commitInfo"]["inCommitTimestamp"] == stamp
    assert load_snapshot(builder.storage).timestamp == ahead + 5


def test_empty_commits(builder: DeltaBuilder) -> None:
    version = commit_info_only(
        builder.storage, "VACUUM START", {"retentionCheckEnabled": True, "x": "y"}, {"numFilesToDelete": 3}
    )
    assert version == 3
    (action,) = read_commit(builder.storage, 3)
    info = action["commitInfo"]
    assert info["operation"] == "VACUUM START"
    assert info["operationParameters"] == {"retentionCheckEnabled": True, "x": "y"}
    assert info["operationMetrics"] == {"numFilesToDelete": "3"}


def test_empty_commits_race_too(builder: DeltaBuilder, place: str) -> None:
    def write(n: int) -> int:
        return commit_info_only(Storage(place), "VACUUM START", {}, {"numFilesToDelete": n})

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(write, range(6))) == list(range(3, 9))


@pytest.mark.parametrize(("interval", "checkpointed"), [("3", True), ("2", False), ("nonsense", False), (None, False)])
def test_checkpoints_come_on_the_tables_interval(place: str, interval: str | None, checkpointed: bool) -> None:
    properties: Mapping[str, str] = {} if interval is None else {"delta.checkpointInterval": interval}
    builder = DeltaBuilder(place).create(SCHEMA, properties=properties)
    builder.append(pa.table({"id": range(100), "day": ["mon"] * 100}, schema=SCHEMA))
    builder.delete(every_tenth)
    base, parts = plan(builder)
    commit(builder, base, parts)
    assert (load_snapshot(builder.storage).segment.checkpoint_version == 3) == checkpointed
    assert full_state(builder.storage, load_snapshot(builder.storage)).removes.num_rows == 2


def test_a_failing_checkpoint_fails_no_commit(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    builder = DeltaBuilder(place).create(SCHEMA, properties={"delta.checkpointInterval": "1"})
    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", fail)
    with caplog.at_level(logging.WARNING):
        assert commit_info_only(builder.storage, "VACUUM START", {}, {}) == 1
    assert "no checkpoint" in caplog.text


# -- the judge ---------------------------------------------------------------------------------------------------


def test_delta_spark_reads_our_commits(builder: DeltaBuilder, place: str, delta_spark: SparkSession) -> None:
    base, parts = plan(builder)
    commit(builder, base, parts)
    commit_info_only(builder.storage, "VACUUM START", {"retentionCheckEnabled": True}, {"numFilesToDelete": 0})
    assert sorted(with_delta_spark(delta_spark, Path(place))["id"].to_pylist()) == LIVE
    assert sorted(with_delta_spark(delta_spark, Path(place), 1)["id"].to_pylist()) == list(range(100))
    start, purge, delete, *_ = delta_spark.sql(f"DESCRIBE HISTORY delta.`{place}`").collect()
    assert (start.operation, purge.operation, delete.operation) == ("VACUUM START", "OPTIMIZE", "DELETE")
    assert purge.operationMetrics["numDeletionVectorsRemoved"] == "4"
    assert purge.operationParameters["predicate"] == "[]"
    assert purge.isolationLevel == "SnapshotIsolation"
    detail = delta_spark.sql(f"DESCRIBE DETAIL delta.`{place}`").collect()[0]
    assert (detail.numFiles, detail.sizeInBytes) == (4, sum(output.size for part in parts for output in part.outputs))
    # ... and goes on from there.
    delta_spark.sql(f"DELETE FROM delta.`{place}` WHERE id = 1")
    assert ids(place) == LIVE[1:]
