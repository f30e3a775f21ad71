"""DELETE on Lance tables, with Lance's own library as the judge of what is left, and of what it can do afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.raw_manifest import newest_manifest, patch, without
from support.tables import lance_table as opened

from dv_maintenance.cli import main
from dv_maintenance.dml.delete import delete
from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
    VerificationError,
)
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables.lance.table import LanceTable
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.rows import ChangesOutcome, DeletedRows, RowChanges, RowLevelTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.tables.lance.snapshot import LanceSnapshot

OPERATION = {"name": "DELETE", "parameters": {"predicate": ["(id < 3)"]}, "metrics": {}}


@pytest.fixture
def made(pylance: ModuleType, tmp_path: Path) -> Callable[..., str]:
    """A table of ids 0, 1, 2 ... in fragments of ten rows."""

    def make(rows: int = 30, fragment: int = 10, **options: Any) -> str:
        place = str(tmp_path / "table")
        pylance.write_dataset(pa.table({"id": range(rows)}), place, max_rows_per_file=fragment, **options)
        return place

    return make


def keys(snapshot: LanceSnapshot) -> dict[int, FileKey]:
    """By fragment id."""
    rows = snapshot.files.select(["fragment_id", "path", "dv_id"]).to_pylist()
    return {row["fragment_id"]: FileKey(row["path"], row["dv_id"]) for row in rows}


def changes(snapshot: LanceSnapshot, positions: dict[int, Iterable[int] | None]) -> RowChanges:
    """Positions by fragment id; ``None``: the whole fragment."""
    found = keys(snapshot)
    return RowChanges(
        tuple(
            DeletedRows(found[at], None if each is None else DeletionVector.from_positions(each))
            for at, each in positions.items()
        )
    )


def commit(table: LanceTable, snapshot: LanceSnapshot, positions: dict[int, Iterable[int] | None]) -> ChangesOutcome:
    return table.commit_changes(
        snapshot, changes(snapshot, positions), operation=OPERATION, reads=lambda _: pytest.fail("nobody asks")
    )


def ids(dataset: Any) -> list[int]:
    found: list[int] = dataset.to_table()["id"].to_pylist()
    return found


def deletion_files(place: str) -> set[str]:
    return {path.name for path in (Path(place) / "_deletions").glob("*")}


# -- the commit ---------------------------------------------------------------------------------------------------


def test_a_delete_is_one_version_that_lance_reads(made: Callable[..., str], pylance: ModuleType) -> None:
    place = made()
    table = opened(place)
    assert isinstance(table, RowLevelTable)
    outcome = commit(table, table.snapshot(), {0: [1, 2], 1: range(10), 2: None})
    assert outcome == ChangesOutcome(2, 1, rows_deleted=22, files_removed=2, dvs_added=1, dvs_removed=0)
    dataset = pylance.dataset(place)
    dataset.validate()
    assert ids(dataset) == [0, *range(3, 10)]
    (entry,) = table.history(1)
    assert (entry.operation, entry.parameters["predicate"]) == ("Delete", "(id < 3)")
    assert entry.parameters["dvm.operation"] == "DELETE"
    assert json.loads(entry.parameters["dvm.parameters"]) == OPERATION["parameters"]
    # Once more on what is left: one deletion file takes the place of the other.
    outcome = commit(table, table.snapshot(), {0: [9]})
    assert outcome == ChangesOutcome(3, 1, rows_deleted=1, dvs_added=1, dvs_removed=1)
    assert ids(pylance.dataset(place)) == [0, *range(3, 9)]
    assert ids(pylance.dataset(place, version=1)) == [*range(30)]


@pytest.mark.parametrize(("before", "more", "kind"), [(0, 4999, "array"), (0, 5000, "bitmap"), (4990, 10, "bitmap")])
def test_kind_of_the_deletion_file(
    before: int, more: int, kind: str, made: Callable[..., str], pylance: ModuleType
) -> None:
    place = made(12_000, 12_000)
    table = opened(place)
    if before:
        commit(table, table.snapshot(), {0: range(before)})
    commit(table, table.snapshot(), {0: range(before, before + more)})
    dataset = pylance.dataset(place)
    (fragment,) = dataset.get_fragments()
    assert fragment.metadata.deletion_file.file_type == kind
    assert fragment.metadata.deletion_file.num_deleted_rows == before + more
    assert ids(dataset) == [*range(before + more, 12_000)]


def test_nothing_to_do_commits_nothing(made: Callable[..., str]) -> None:
    table = opened(made())
    assert commit(table, table.snapshot(), {}) == ChangesOutcome(None, 0)
    assert table.version() == 1


def test_stable_row_ids_stay(made: Callable[..., str], pylance: ModuleType) -> None:
    place = made(enable_stable_row_ids=True)
    pylance.dataset(place).optimize.compact_files()  # ids that are not addresses
    pylance.dataset(place).delete("id = 4")
    table = opened(place)
    was = dict(pylance.dataset(place).to_table(with_row_id=True).select(["id", "_rowid"]).to_pandas().values.tolist())
    (fragment,) = keys(table.snapshot())
    commit(table, table.snapshot(), {fragment: [0, 7, 29]})
    dataset = pylance.dataset(place)
    dataset.validate()
    now = dict(dataset.to_table(with_row_id=True).select(["id", "_rowid"]).to_pandas().values.tolist())
    assert now == {key: value for key, value in was.items() if key not in {0, 7, 29}}


@pytest.mark.parametrize("name", ["historic_v0_7_5_with_deletions", "historic_v0_8_0_migrated", "v1_manifests"])
def test_tables_of_old_writers(name: str, golden_copy: Callable[[str], Path], pylance: ModuleType) -> None:
    place = str(golden_copy(f"lance/{name}"))
    table = opened(place)
    before = pylance.dataset(place).to_table()
    snapshot = table.snapshot()
    row = snapshot.files.to_pylist()[0]
    live = [*range(row["physical_rows"])]
    if row["dv_id"]:
        from dv_maintenance.tables.lance.rows.files import read_deletions

        gone = read_deletions(table.storage, row["dv_id"], row["dv_codec"])
        live = [at for at in live if at not in set(gone.positions().tolist())]
    commit(table, snapshot, {row["fragment_id"]: live[:3]})
    dataset = pylance.dataset(place)
    dataset.validate()
    assert dataset.to_table() == before.slice(3)


def test_branches_and_clones_keep_to_themselves(made: Callable[..., str], pylance: ModuleType, tmp_path: Path) -> None:
    place = made()
    pylance.dataset(place).delete("id = 0")
    pylance.dataset(place).create_branch("side/way")
    pylance.dataset(place).shallow_clone(str(tmp_path / "a clone"), 2)
    for other in (opened(place).branch("side/way"), opened(str(tmp_path / "a clone"))):
        commit(other, other.snapshot(), {0: [1], 2: None})
        theirs = pylance.dataset(other.storage.local(""))
        theirs.validate()
        assert ids(theirs) == [*range(2, 20)]
    assert ids(pylance.dataset(place)) == [*range(1, 30)]
    assert opened(place).version() == 2


# -- others -------------------------------------------------------------------------------------------------------


HARMLESS: dict[str, Callable[[ModuleType, str], object]] = {
    "append": lambda lance, place: lance.write_dataset(pa.table({"id": [99]}), place, mode="append"),
    "delete elsewhere": lambda lance, place: lance.dataset(place).delete("id = 15"),
    "update elsewhere": lambda lance, place: lance.dataset(place).update({"id": "99"}, "id = 15"),
    "index": lambda lance, place: lance.dataset(place).create_scalar_index("id", "BTREE"),
    "config": lambda lance, place: lance.dataset(place).update_config({"a": "b"}),
}
CONFLICTS: dict[str, Callable[[ModuleType, str], object]] = {
    "delete": lambda lance, place: lance.dataset(place).delete("id = 5"),
    "whole fragment": lambda lance, place: lance.dataset(place).delete("id < 10"),
    "update": lambda lance, place: lance.dataset(place).update({"id": "99"}, "id = 5"),
    "compaction": lambda lance, place: lance.dataset(place).optimize.compact_files(),
    "overwrite": lambda lance, place: lance.write_dataset(pa.table({"id": [1]}), place, mode="overwrite"),
    "restore": lambda lance, place: lance.dataset(place, version=1).restore(),
    "columns": lambda lance, place: lance.dataset(place).add_columns({"z": "id + 1"}),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_goes_over_what_others_did_elsewhere(what: str, made: Callable[..., str], pylance: ModuleType) -> None:
    place = made()
    pylance.dataset(place).delete("id = 29")
    table = opened(place)
    base = table.snapshot()
    HARMLESS[what](pylance, place)
    theirs = ids(pylance.dataset(place))
    outcome = commit(table, base, {0: [1, 2]})
    assert outcome.version == base.version + 2
    dataset = pylance.dataset(place)
    dataset.validate()
    assert ids(dataset) == [each for each in theirs if each not in {1, 2}]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", CONFLICTS)
def test_conflicts_leave_nothing_behind(
    what: str, late: bool, made: Callable[..., str], pylance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``late``: others commit between our own check and Lance's."""
    place = made()
    pylance.dataset(place).delete("id = 29")
    table = opened(place)
    base = table.snapshot()
    files: set[str] = set()

    def others() -> None:
        CONFLICTS[what](pylance, place)
        files.update(deletion_files(place))

    if late:
        put = Storage.put

        def racing(self: Storage, path: str, data: bytes) -> None:
            if not files:
                others()
            put(self, path, data)

        monkeypatch.setattr(Storage, "put", racing)
    else:
        others()
        if what != "restore":  # of other fragments: only Lance decides
            monkeypatch.setattr(Storage, "put", lambda *_: pytest.fail("nothing need be written"))
    outcome = commit(table, base, {0: [1, 2]})
    assert outcome.version is None
    assert outcome.conflict
    assert deletion_files(place) == files


def test_lost_answers_are_looked_up(
    made: Callable[..., str], pylance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(made())
    real = pylance.LanceDataset.commit

    def unheard(*args: Any, **options: Any) -> Any:
        real(*args, **options)
        raise OSError("LanceError(IO): Generic S3 error: HTTP error: connection reset")

    monkeypatch.setattr(pylance.LanceDataset, "commit", staticmethod(unheard))
    assert commit(table, table.snapshot(), {0: [1]}).version == 2

    def unsent(*args: Any, **options: Any) -> Any:
        raise OSError("LanceError(IO): Generic S3 error: HTTP error: connection reset")

    monkeypatch.setattr(pylance.LanceDataset, "commit", staticmethod(unsent))
    with pytest.raises(StorageError, match="it is not known whether"):
        commit(table, table.snapshot(), {0: [2]})
    assert len(deletion_files(table.storage.local(""))) == 2  # vacuum will know

    def crowded(*args: Any, **options: Any) -> Any:
        raise OSError("Too many concurrent writers. Attempted 3 times")

    monkeypatch.setattr(pylance.LanceDataset, "commit", staticmethod(crowded))
    with pytest.raises(ConflictError):
        commit(table, table.snapshot(), {0: [2]})
    assert len(deletion_files(table.storage.local(""))) == 2


# -- searches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stable", [False, True])
def test_searches_stay_right(stable: bool, pylance: ModuleType, tmp_path: Path) -> None:
    place = str(tmp_path / "table")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([float(at % 97) for at in range(4 * 400)], pa.float32()), 4)
    data = pa.table(
        {
            "id": range(400),
            "kind": [f"k{at % 7}" for at in range(400)],
            "text": [f"word{at % 11} common" for at in range(400)],
            "vec": vectors,
        }
    )
    dataset = pylance.write_dataset(data, place, max_rows_per_file=100, enable_stable_row_ids=stable)
    dataset.create_scalar_index("id", "BTREE")
    dataset.create_scalar_index("kind", "BITMAP")
    dataset.create_scalar_index("text", "INVERTED")
    dataset.create_index("vec", "IVF_FLAT", num_partitions=2)

    def found(dataset: Any, **how: Any) -> set[int]:
        return set(dataset.scanner(columns=["id"], **how).to_table()["id"].to_pylist())

    searches: list[dict[str, Any]] = [
        {"filter": "id >= 90 AND id < 230"},
        {"filter": "kind = 'k3'"},
        {"full_text_query": "word5"},
        {"nearest": {"column": "vec", "q": [1.0, 2.0, 3.0, 4.0], "k": 400, "nprobes": 2}},
    ]
    before = [found(dataset, **search) for search in searches]
    table = opened(place)
    gone = {0: [*range(0, 100, 3)], 1: None, 2: [5, 50, 99]}
    commit(table, table.snapshot(), gone)
    dataset = pylance.dataset(place)
    dataset.validate()
    deleted = {*range(0, 100, 3), *range(100, 200), 205, 250, 299}
    assert [found(dataset, **search) for search in searches] == [each - deleted for each in before]
    # k of k, whatever was among the nearest.
    nearest = {"column": "vec", "q": [1.0, 2.0, 3.0, 4.0], "k": 20, "nprobes": 2}
    assert dataset.scanner(nearest=nearest).to_table().num_rows == 20


# -- histories ----------------------------------------------------------------------------------------------------

_STEPS = st.one_of(
    st.tuples(st.just("ours"), st.sets(st.integers(0, 59), min_size=1, max_size=25)),
    st.tuples(st.just("lance"), st.sets(st.integers(0, 59), min_size=1, max_size=10)),
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("update"), st.sets(st.integers(0, 59), min_size=1, max_size=5)),
    st.tuples(st.just("compact"), st.just(None)),
)


@given(steps=st.lists(_STEPS, min_size=1, max_size=7), stable=st.booleans())
@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_histories(
    steps: list[tuple[str, Any]], stable: bool, pylance: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Deletes by us and by Lance, appends, updates and compactions in any order: what a plain set of ids says."""
    place = str(tmp_path_factory.mktemp("history") / "table")
    pylance.write_dataset(
        pa.table({"id": range(30), "n": [0] * 30}), place, max_rows_per_file=10, enable_stable_row_ids=stable
    )
    table, model = opened(place), dict.fromkeys(range(30), 0)
    for what, which in steps:
        dataset = pylance.dataset(place)
        if what == "append":
            fresh = range(max(model, default=0) + 1, max(model, default=0) + 1 + which)
            pylance.write_dataset(pa.table({"id": fresh, "n": [0] * which}), place, mode="append")
            model |= dict.fromkeys(fresh, 0)
        elif what == "compact":
            dataset.optimize.compact_files()
        elif what == "ours":
            row_ids = row_ids_of(dataset) if stable else {}
            outcome = commit(table, table.snapshot(), places(dataset, which))
            assert outcome.rows_deleted == len(model.keys() & which)
            model = {key: value for key, value in model.items() if key not in which}
            if stable:
                left = row_ids_of(pylance.dataset(place))
                assert left == {key: value for key, value in row_ids.items() if key in model}
        else:
            condition = f"id in ({', '.join(map(str, which))})"
            if what == "lance":
                dataset.delete(condition)
                model = {key: value for key, value in model.items() if key not in which}
            else:
                dataset.update({"n": "n + 1"}, condition)
                model = {key: value + (key in which) for key, value in model.items()}
        dataset = pylance.dataset(place)
        dataset.validate()
        rows = dataset.to_table()
        assert dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True)) == model
        assert rows.num_rows == len(model)
        assert sorted(scanned(table)) == sorted(model)


def places(dataset: Any, which: set[int]) -> dict[int, Iterable[int] | None]:
    """Fragments and positions of ids, as Lance has them."""
    rows = dataset.scanner(columns=["id"], with_row_address=True).to_table()
    found: dict[int, list[int]] = {}
    for key, address in zip(rows["id"].to_pylist(), rows["_rowaddr"].to_pylist(), strict=True):
        if key in which:
            found.setdefault(address >> 32, []).append(address & 0xFFFFFFFF)
    return dict(found)


def row_ids_of(dataset: Any) -> dict[int, int]:
    rows = dataset.to_table(columns=["id"], with_row_id=True)
    return dict(zip(rows["id"].to_pylist(), rows["_rowid"].to_pylist(), strict=True))


def scanned(table: LanceTable) -> list[int]:
    """Ids by our own reader."""
    _, batches = read(table, None, ["id"])
    return [value for batch in batches for value in batch.column(0).to_pylist()]


# -- by condition and by keys -------------------------------------------------------------------------------------


WIDE = {
    "id": pa.array(range(60), pa.int64()),
    "tiny": pa.array(range(60), pa.uint8()),
    "huge": pa.array([2**64 - 1 - at for at in range(60)], pa.uint64()),
    "half": pa.array([at / 4 for at in range(60)], pa.float32()).cast(pa.float16()),
    "name": pa.array([None if at % 5 == 0 else f"n{at}" for at in range(60)], pa.large_string()),
    "kind": pa.array(["a", "b", "c"] * 20).dictionary_encode(),
    "at": pa.array([at * 1_000_000_000 for at in range(60)], pa.timestamp("ns")),
    "vec": pa.FixedSizeListArray.from_arrays(pa.array(range(120), pa.float32()), 2),
    "deep": pa.array([{"a": at, "b": [str(at)]} for at in range(60)]),
}


@pytest.fixture
def wide(pylance: ModuleType, tmp_path: Path) -> str:
    place = str(tmp_path / "wide table")
    pylance.write_dataset(pa.table(WIDE), place, max_rows_per_file=20)
    pylance.dataset(place).delete("id IN (3, 21, 22)")
    return place


@pytest.mark.parametrize(
    ("condition", "gone"),
    [
        ("id % 2 = 0 AND id < 30", lambda at: at % 2 == 0 and at < 30),
        ("name IS NULL OR kind = 'b'", lambda at: at % 5 == 0 or at % 3 == 1),
        ("tiny >= 50 AND huge < 18446744073709551600", lambda at: at >= 50),
        ("half = 1.5 OR at >= timestamp'1970-01-01 00:00:40'", lambda at: at == 6 or at >= 40),
        ("vec[0] = 10.0 OR deep.a = 7 OR array_contains(deep.b, '8')", lambda at: at in {5, 7, 8}),
        ("id >= 20 AND id < 40", lambda at: 20 <= at < 40),
        ("true", lambda _: True),
        ("id < 0", lambda _: False),
    ],
)
def test_by_condition(
    condition: str, gone: Callable[[int], bool], wide: str, spark: SparkSession, pylance: ModuleType
) -> None:
    table = opened(wide)
    left = [at for at in range(60) if at not in {3, 21, 22}]
    planned = delete(table, spark, condition, dry_run=True)
    assert table.version() == planned.version_after == 2
    report = delete(table, spark, condition)
    assert report.rows_deleted == planned.rows_deleted == sum(map(gone, left))
    assert report.version_after == (3 if report.rows_deleted else 2)
    assert (report.files_removed, report.dvs_added) == (planned.files_removed, planned.dvs_added)
    dataset = pylance.dataset(wide)
    dataset.validate()
    assert ids(dataset) == [at for at in left if not gone(at)]


def test_finer_times_than_sparks_are_refused(pylance: ModuleType, tmp_path: Path, spark: SparkSession) -> None:
    place = str(tmp_path / "table")
    pylance.write_dataset(
        pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns")), "t": pa.array([1], pa.time32("s"))}), place
    )
    with pytest.raises(RefusedError, match="column at has values"):
        delete(opened(place), spark, "at > timestamp'1970-01-01 00:00:00'")
    with pytest.raises(RefusedError, match="column t has the type time32"):
        delete(opened(place), spark, "t IS NULL OR id % 2 = 3")
    assert opened(place).version() == 1


def test_conflicts_are_tried_again(
    wide: str, spark: SparkSession, pylance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(wide)
    put, raced = Storage.put, []

    def racing(self: Storage, path: str, data: bytes) -> None:
        if not raced:
            raced.append(pylance.dataset(wide).delete("id = 11"))
        put(self, path, data)

    monkeypatch.setattr(Storage, "put", racing)
    report = delete(table, spark, "id < 15")
    assert (report.attempts, report.rows_deleted, report.version_after) == (2, 13, 4)
    assert ids(pylance.dataset(wide)) == [at for at in range(15, 60) if at not in {21, 22}]


def test_on_the_command_line(
    wide: str, spark: SparkSession, tmp_path: Path, pylance: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    keys_file = tmp_path / "gone.csv"
    keys_file.write_text("id,name\n1,n1\n2,other\n21,n21\n59,n59\n")
    argv = ["delete", wide, "--keys", str(keys_file), "--on", "id,name", "--json"]
    assert main([*argv, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["rows_deleted"] == 2
    assert main(argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["rows_deleted"], report["dvs_added"], report["version_after"]) == (
        "lance",
        2,
        2,
        3,
    )
    assert set(WIDE["id"].to_pylist()) - set(ids(pylance.dataset(wide))) == {1, 3, 21, 22, 59}
    assert main(["delete", wide, "--where", "nothing = 1"]) == 2
    assert main(["update", wide, "--set", "name='x'", "--where", "id = 4"]) == 3
    assert "dataset.update()" in capsys.readouterr().err
    assert opened(wide).version() == 3


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bad_count_mismatch", "bad_offset_out_of_range", "bad_missing_deletion"])
def test_damaged_deletion_files_are_not_extended(kind: str, golden_copy: Callable[[str], Path]) -> None:
    place = golden_copy(f"lance/{kind}")
    table = opened(str(place))
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    with pytest.raises(DamagedTableError, match="fragment 0"):
        commit(table, table.snapshot(), {0: [1]})
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
    # What is dropped whole needs no deletion file.
    assert commit(table, table.snapshot(), {0: None}).files_removed == 1


@pytest.mark.parametrize(
    ("positions", "what"),
    [({0: [10]}, "not within the 10 rows"), ({0: []}, "not within"), ({0: [3]}, "were already deleted when")],
)
def test_wrong_changes_are_refused(
    positions: dict[int, Iterable[int] | None], what: str, made: Callable[..., str], pylance: ModuleType
) -> None:
    place = made()
    pylance.dataset(place).delete("id = 3")
    table = opened(place)
    with pytest.raises(VerificationError, match=what):
        commit(table, table.snapshot(), positions)
    stale = DeletedRows(FileKey("data/gone.lance"), None)
    twice = changes(table.snapshot(), {0: [1]}).deleted * 2
    for deleted in ((stale,), twice):
        with pytest.raises(VerificationError):
            table.commit_changes(table.snapshot(), RowChanges(deleted), operation=OPERATION, reads=lambda _: False)
    assert table.version() == 2


def test_what_is_not_done_to_rows(made: Callable[..., str]) -> None:
    table = opened(made())
    snapshot = table.snapshot()
    table.check_writable(snapshot, "delete")
    for operation, instead in (("update", "dataset.update"), ("merge", "merge_insert")):
        with pytest.raises(RefusedError, match=instead):
            table.check_writable(snapshot, operation)


def test_unknown_writer_flags(made: Callable[..., str]) -> None:
    place = made()
    patch(newest_manifest(Path(place)), lambda fields: [*without(fields, 10), (10, 1 << 20)])
    table = opened(place)
    with pytest.raises(UnsupportedFeatureError, match="writer flags 1048576"):
        table.check_writable(table.snapshot(), "delete")
