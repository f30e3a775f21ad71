"""Giving deletion vectors up: every step from every state, and what other readers and writers make of the result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.readers import READERS

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import ConflictError, RefusedError, UnsupportedFeatureError, UsageError
from dv_maintenance.maintenance.downgrade import downgrade
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.actions import Protocol
from dv_maintenance.tables.delta.log.replay import tombstones
from dv_maintenance.tables.delta.log.segment import commit_path, read_commit
from dv_maintenance.tables.delta.verbs.downgrade import downgrade_steps, take_downgrade_step
from dv_maintenance.tables.guard import VacuumRequest
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.memory import MemoryTable

SCHEMA = pa.schema([("id", pa.int64())])
DAY = 86_400_000
FAST = ["disable", "purge", "protect", "fence", "drop", "seal"]
TRUNCATE = ["disable", "purge", "protect", "fence", "wait", "truncate", "drop"]


@pytest.fixture
def builder(place: str) -> DeltaBuilder:
    """Ids 0 to 9 without 1 and 2, in two files with deletion vectors of two versions."""
    made = DeltaBuilder(place).create(SCHEMA)
    made.append(pa.table({"id": range(10)}, schema=SCHEMA), files=2)
    delete(made, 1)
    delete(made, 2)
    return made


LIVE = Counter([0, *range(3, 10)])


def delete(builder: DeltaBuilder, *ids: int) -> int:
    return builder.delete(lambda batch: pc.is_in(batch["id"], pa.array(ids, pa.int64())))


def live(place: str) -> Counter[int]:
    schema, batches = read(open_table(place), None, ["id"])
    return Counter(pa.Table.from_batches(batches, schema)["id"].to_pylist())


def run(place: str, **options: Any) -> Any:
    return downgrade(open_table(place), LocalEngine(), **options)


def states(place: str, *, truncate: bool = False, now: int | None = None) -> dict[str, str]:
    steps = downgrade_steps(Storage(place), truncate_history=truncate, now=now)
    return {step.name: step.state for step in steps}


def take(place: str, name: str, *, truncate: bool = False, now: int | None = None) -> None:
    if name == "purge":
        purge(open_table(place), LocalEngine())
    else:
        take_downgrade_step(Storage(place), name, truncate_history=truncate, now=now)


def log(place: str) -> set[str]:
    return {path.name for path in Path(place, "_delta_log").iterdir()}


def enable(builder: DeltaBuilder, value: str = "true") -> None:
    metadata = load_snapshot(builder.storage).metadata.to_json()
    metadata["configuration"]["delta.enableDeletionVectors"] = value
    builder.commit([{"metaData": metadata}], operation="SET TBLPROPERTIES")


# -- the fast way ------------------------------------------------------------------------------------------------------


def test_old_readers_can_read_it_in_the_end(builder: DeltaBuilder, place: str) -> None:
    report = run(place)
    assert (report.finished, report.rows_purged) == (True, 2)
    assert report.taken == ("purge", "disable", "protect", "fence", "drop")
    assert [step.name for step in report.steps] == FAST
    assert {step.state for step in report.steps} == {"done"}
    snapshot = load_snapshot(builder.storage)
    assert snapshot.protocol == Protocol(1, 7, None, frozenset({"checkpointProtection"}))
    assert snapshot.properties == {"delta.requireCheckpointProtectionBeforeVersion": str(snapshot.version)}
    assert live(place) == LIVE
    for reader in READERS.values():
        assert Counter(reader(Path(place))["id"].to_pylist()) == LIVE


def test_versions_before_stay_readable(builder: DeltaBuilder, place: str) -> None:
    run(place)
    schema, batches = read(open_table(place), 2, ["id"])
    assert Counter(pa.Table.from_batches(batches, schema)["id"].to_pylist()) == Counter([0, *range(2, 10)])


def test_a_second_run_does_nothing(builder: DeltaBuilder, place: str) -> None:
    version = run(place).version_after
    again = run(place)
    assert (again.taken, again.finished, again.version_before, again.version_after) == ((), True, version, version)


def test_three_checkpoints_stand_before_the_feature_goes(builder: DeltaBuilder, place: str) -> None:
    last = run(place).version_after
    operations = [entry.operation for entry in open_table(place).history(limit=last - 3)][::-1]
    assert operations == ["REORG", "UNSET TBLPROPERTIES", "Deletion Vector Tombstones", *["Empty Commit"] * 3,
                          "DROP FEATURE"]  # fmt: skip
    assert {f"{version:020d}.checkpoint.parquet" for version in range(last - 3, last + 1)} <= log(place)
    (drop,) = [action["commitInfo"] for action in read_commit(builder.storage, last) if "commitInfo" in action]
    assert drop["operationParameters"] == {"featureName": "deletionVectors", "truncateHistory": False}


def test_old_vacuums_see_the_files_of_the_checkpoint(builder: DeltaBuilder, place: str) -> None:
    run(place)
    snapshot = load_snapshot(builder.storage)
    removed = tombstones(builder.storage, snapshot).to_pylist()
    plain = {row["path"] for row in removed if row["dv_id"] is None}
    assert {path.name for path in Path(place).glob("deletion_vector_*.bin")} <= plain
    assert open_table(place).vacuum(VacuumRequest(dry_run=True)).expired.files == ()


@pytest.mark.parametrize("truncate", [False, True])
def test_every_step_can_be_the_last_of_a_run(builder: DeltaBuilder, place: str, truncate: bool) -> None:
    """Each step in a separate run, as after a crash; the steps before it stay done."""
    names = TRUNCATE if truncate else FAST
    late = load_snapshot(builder.storage).timestamp + 2 * DAY if truncate else None
    for _ in names:
        found = states(place, truncate=truncate, now=late)
        assert list(found) == names
        due = [name for name, state in found.items() if state == "due"]
        if not due:
            break
        behind = len(names) - names.index(due[0]) - 1
        assert [state for state in found.values() if state != "done"] == ["due", *["later"] * behind]
        take(place, due[0], truncate=truncate, now=late)
        assert live(place) == LIVE
    assert set(states(place, truncate=truncate, now=late).values()) == {"done"}


def test_what_another_writer_undoes_is_done_again(builder: DeltaBuilder, place: str) -> None:
    for name in FAST[:4]:
        take(place, name)
    enable(builder)
    delete(builder, 5)
    assert states(place)["disable"] == "due"
    report = run(place)
    assert report.taken[:5] == ("purge", "disable", "protect", "fence", "drop")
    assert report.finished
    assert live(place) == LIVE - Counter([5])


def test_traces_after_the_fence_keep_the_feature(builder: DeltaBuilder, place: str) -> None:
    """Deletion vectors that came and went while the last commit was on its way: the fence stands before them."""
    for name in FAST[:4]:
        take(place, name)

    class Late(Storage):
        tries = 0

        def create(self, path: str, data: bytes) -> None:
            self.tries += 1
            if self.tries == 1:
                enable(builder)
                delete(builder, 5)
                enable(builder, "false")
                purge(open_table(self.uri), LocalEngine())
            super().create(path, data)

    take_downgrade_step(Late(place), "drop", truncate_history=False)
    assert "deletionVectors" in load_snapshot(builder.storage).protocol.features("reader")
    assert states(place)["protect"] == "due"
    take(place, "protect")
    assert states(place)["fence"] == "due"
    assert run(place).finished


def test_writers_that_never_stop(builder: DeltaBuilder, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dv_maintenance.tables.delta.verbs import downgrade as module

    unset = module._disable

    def undone(state: Any) -> None:
        unset(state)
        enable(builder)

    monkeypatch.setattr(module, "_disable", undone)
    with pytest.raises(ConflictError, match="continue to add deletion vectors"):
        run(place)


# -- the way that truncates history ------------------------------------------------------------------------------------


def test_history_is_truncated_after_a_day(builder: DeltaBuilder, place: str) -> None:
    report = run(place, truncate_history=True)
    assert (report.finished, report.taken) == (False, ("purge", "disable", "protect", "fence"))
    fence = load_snapshot(builder.storage)
    assert report.waits_until == fence.timestamp + DAY
    assert run(place, truncate_history=True, now=report.waits_until - 1).taken == ()
    report = run(place, truncate_history=True, now=report.waits_until)
    assert (report.finished, report.taken) == (True, ("truncate", "drop"))
    assert load_snapshot(builder.storage).protocol == Protocol(1, 1)
    assert min(log(place)) == f"{fence.version:020d}.checkpoint.parquet"
    assert live(place) == LIVE
    with pytest.raises(UsageError):
        load_snapshot(builder.storage, 2)
    for reader in READERS.values():
        assert Counter(reader(Path(place))["id"].to_pylist()) == LIVE


def test_the_table_says_how_long_to_wait(builder: DeltaBuilder, place: str) -> None:
    metadata = load_snapshot(builder.storage).metadata.to_json()
    metadata["configuration"]["delta.dropFeatureTruncateHistory.retentionDuration"] = "interval 2 hours"
    builder.commit([{"metaData": metadata}])
    report = run(place, truncate_history=True)
    assert report.waits_until == load_snapshot(builder.storage).timestamp + DAY // 12


def test_an_interval_that_means_nothing_is_refused(builder: DeltaBuilder, place: str) -> None:
    metadata = load_snapshot(builder.storage).metadata.to_json()
    metadata["configuration"]["delta.dropFeatureTruncateHistory.retentionDuration"] = "a while"
    builder.commit([{"metaData": metadata}])
    with pytest.raises(RefusedError, match="retentionDuration"):
        run(place, truncate_history=True)


def test_a_truncation_that_broke_off_goes_on(builder: DeltaBuilder, place: str) -> None:
    until = run(place, truncate_history=True).waits_until
    builder.storage.delete([commit_path(0), commit_path(1)])
    assert run(place, truncate_history=True, now=until).taken == ("truncate", "drop")
    assert live(place) == LIVE


def test_protection_goes_with_the_history(builder: DeltaBuilder, place: str) -> None:
    """First the fast way, later the other one, for writers that do not know checkpointProtection."""
    protected = run(place).version_after
    report = run(place, truncate_history=True)
    assert (report.finished, report.taken) == (False, ())
    report = run(place, truncate_history=True, now=report.waits_until)
    assert report.finished
    snapshot = load_snapshot(builder.storage)
    assert (snapshot.protocol, dict(snapshot.properties)) == (Protocol(1, 1), {})
    assert min(log(place)) == f"{protected:020d}.checkpoint.parquet"  # nothing of the protected part is left


# -- other tables ------------------------------------------------------------------------------------------------------


def test_other_features_stay(place: str) -> None:
    builder = DeltaBuilder(place).create(
        SCHEMA, properties={"delta.columnMapping.mode": "name"}, features=["appendOnly", "invariants"]
    )
    builder.append(pa.table({"id": range(4)}, schema=SCHEMA))
    delete(builder, 1)
    run(place)
    protocol = load_snapshot(builder.storage).protocol
    assert protocol == Protocol(
        2, 7, None, frozenset({"appendOnly", "checkpointProtection", "columnMapping", "invariants"})
    )
    assert live(place) == Counter([0, 2, 3])


def test_a_table_without_the_feature_is_done(place: str) -> None:
    DeltaBuilder(place).create(SCHEMA, properties={"delta.enableDeletionVectors": "false"})
    report = run(place)
    assert (report.finished, report.taken, report.version_after) == (True, (), 0)


def test_nothing_is_begun_that_cannot_be_finished(builder: DeltaBuilder, place: str) -> None:
    protocol = load_snapshot(builder.storage).protocol.to_json()
    protocol["writerFeatures"] = ["deletionVectors", "someNewFeature"]
    builder.commit([{"protocol": protocol}])
    with pytest.raises(UnsupportedFeatureError, match="someNewFeature"):
        run(place)
    assert load_snapshot(builder.storage).version == 4


def test_a_purge_that_fails_leaves_the_tables_properties(builder: DeltaBuilder, place: str) -> None:
    """As on a cluster whose workers have another version of the package."""

    class Unfit(LocalEngine):
        def run(self, *_: Any, **__: Any) -> Any:
            raise RefusedError("the Python workers can't run it")

    before = load_snapshot(builder.storage)
    with pytest.raises(RefusedError, match="workers") as caught:
        downgrade(open_table(place), Unfit())
    assert caught.value.done.startswith("steps begun: purge; last step: ")
    assert load_snapshot(builder.storage).version == before.version


def test_deletion_vectors_that_came_during_the_purge_are_purged_too(
    builder: DeltaBuilder, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dv_maintenance.maintenance import downgrade as module

    came = iter([5])

    def busy(*args: Any, **options: Any) -> Any:
        report = purge(*args, **options)
        for number in came:
            delete(builder, number)
        return report

    monkeypatch.setattr(module, "purge", busy)
    assert run(place).taken == ("purge", "disable", "purge", "protect", "fence", "drop", "seal")
    assert live(place) == LIVE - Counter([5])


def test_a_dry_run_lists_the_steps(builder: DeltaBuilder, place: str) -> None:
    report = run(place, dry_run=True)
    assert [(step.name, step.state) for step in report.steps][:2] == [("disable", "due"), ("purge", "later")]
    assert (report.finished, report.taken, report.version_after) == (False, (), 3)


def test_what_becomes_of_the_change_feed_is_said_before(tmp_path: Path) -> None:
    """delta-spark 4.4 misreads it, after its own DROP FEATURE as well. A truncated history has no such versions."""
    said = {}
    for feed in ("true", "false"):
        place = str(tmp_path / feed)
        DeltaBuilder(place).create(SCHEMA, properties={"delta.enableChangeDataFeed": feed})
        for truncate in (False, True):
            steps = run(place, dry_run=True, truncate_history=truncate).steps
            said[feed, truncate] = any("misreads the change data feed" in step.explanation for step in steps)
    assert said == {("true", False): True, ("true", True): False, ("false", False): False, ("false", True): False}


def test_formats_without_features_say_so(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="no feature to drop"):
        downgrade(MemoryTable(tmp_path), LocalEngine())
