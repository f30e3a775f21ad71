"""Commits of rewrites: what others do meanwhile, what must not be deleted, and what a new snapshot takes over."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from effort import sampled
from support.paimon_writer import OLD, PaimonWriter

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.errors import (
    ConflictError,
    DamagedTableError,
    RefusedError,
    StorageError,
    UnsupportedFeatureError,
    VerificationError,
)
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.read import read
from dv_maintenance.maintenance.rewriting import PURGE, requested
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.paimon.commit import publish
from dv_maintenance.tables.paimon.commit import rewrites as commit
from dv_maintenance.tables.paimon.table import PaimonTable
from dv_maintenance.tables.predicate import Compare
from dv_maintenance.tables.table import Replacement
from dv_maintenance.tables.work import RewriteBin, RewriteTask
from dv_maintenance.testing.paimon_builder import PaimonBuilder

PURGED = [
    *("append_dv", "append_dv_part", "append_dv_v2", "append_dv_big", "append_dv_expired", "append_dv_orphans"),
    "data_evolution_dv",
]
SNAPSHOT = "snapshot/snapshot-"


def rows(place: Path | str | PaimonTable, version: int | None = None) -> list[dict[str, Any]]:
    table = place if isinstance(place, PaimonTable) else open_table(str(place))
    return sorted((row for batch in read(table, version)[1] for row in batch.to_pylist()), key=str)


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "v": ["x"] * count})


def ids(*gone: int) -> Callable[[pa.Table], pa.BooleanArray]:
    return lambda table: pc.is_in(table["id"], pa.array(gone, pa.int64()))


@pytest.fixture
def built(tmp_path: Path) -> PaimonBuilder:
    """Two files of ten rows, 0 to 19; of the first the rows 1 and 2 are deleted, of the second row 12."""
    builder = PaimonBuilder(tmp_path / "t")
    builder.create({"id": "BIGINT", "v": "STRING"})
    builder.append(numbers(0, 10))
    builder.append(numbers(10, 10))
    builder.delete(ids(1, 2, 12))
    return builder


class Busy(Storage):
    """Somebody else is at work right before a snapshot is put in place: the first of ``others`` before the first one,
    and so on.
    """

    def __init__(self, place: str, *others: Callable[[], object]) -> None:
        super().__init__(place)
        self.others = list(others)

    def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        if path.startswith(SNAPSHOT) and self.others:
            self.others.pop(0)()
        super().create(path, data, staging=staging)


def left(builder: PaimonBuilder) -> list[int]:
    return [row["id"] for row in sorted(rows(builder.storage.uri), key=lambda row: row["id"])]


def everything(builder: PaimonBuilder) -> set[str]:
    return {info.path for info in builder.storage.list()}


# -- golden tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampled(PURGED, 4))
def test_golden_tables_lose_dvs_and_no_row(name: str, golden: Path, golden_copy: Callable[[str], Path]) -> None:
    place = golden_copy(f"paimon/{name}/table")
    expected = json.loads((golden / "paimon" / name / "expected.json").read_text())
    table = open_table(str(place))
    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    after = table.snapshot()
    assert set(after.files["dv_id"].to_pylist()) == {None}
    assert sum(after.files["physical_rows"].to_pylist()) == expected["row_count"] == len(rows(place))
    assert rows(place) == rows(place, after.version - 1)
    # A full state without deletion vectors is none.
    assert after.file is not None
    assert after.file.index_manifest is None


@pytest.mark.parametrize(
    ("name", "work"),
    [*product(["pk_dv_b1", "pk_dv_part"], [purge, maintain])],
)
def test_what_is_left_to_paimon(name: str, work: Any, golden_copy: Callable[[str], Path]) -> None:
    place = golden_copy(f"paimon/{name}/table")
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    with pytest.raises(RefusedError, match=r"dvm engine-sql .* purge"):
        work(open_table(str(place)), LocalEngine())
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_orc_files_of_a_table_that_now_writes_parquet(golden_copy: Callable[[str], Path]) -> None:
    place = golden_copy("paimon/append_dv_orc/table")
    schema = json.loads((place / "schema" / "schema-0").read_bytes())
    options = {**schema["options"], "file.format": "parquet"}
    (place / "schema" / "schema-1").write_text(json.dumps({**schema, "id": 1, "options": options}))
    before = rows(place)
    table = open_table(str(place))
    assert purge(table, LocalEngine()).verified
    assert {path.rpartition(".")[2] for path in table.snapshot().files["path"].to_pylist()} == {"parquet"}
    assert rows(place) == before
    assert len(before) == 246


# -- what a snapshot says -----------------------------------------------------------------------------------------


def test_the_snapshot(built: PaimonBuilder) -> None:
    built.commit("ANALYZE", [], statistics="stat-1", watermark=7, nextRowId=4)
    assert purge(open_table(built.storage.uri), LocalEngine()).verified
    body = json.loads(built.storage.get("snapshot/snapshot-6"))
    assert body["commitKind"] == "COMPACT"
    assert (body["totalRecordCount"], body["deltaRecordCount"]) == (17, -3)
    assert (body["statistics"], body["watermark"], body["nextRowId"]) == ("stat-1", 7, 4)
    assert body["commitIdentifier"] == 2**63 - 1
    assert built.storage.get("snapshot/LATEST") == b"6"
    assert not [name for name in built.layout.names("snapshot") if name.endswith(".tmp")]


def test_statistics_of_new_files_skip_them(tmp_path: Path) -> None:
    kinds = {"id": "BIGINT", "d": "DECIMAL(20, 2)", "t": "TIMESTAMP(3)", "s": "STRING", "f": "DOUBLE", "n": "INT"}
    builder = PaimonBuilder(tmp_path / "t")
    builder.create(kinds)
    table = pa.table({"id": range(10), "d": [None] * 10, "t": [None] * 10, "s": ["a" * 20] * 9 + ["z" * 20]})
    table = table.append_column("f", pa.array([float(at) for at in range(10)]))
    table = table.append_column("n", pa.nulls(10, pa.int32()))
    builder.append(table.select(["id", "d", "t", "s", "f", "n"]))
    builder.delete(ids(9))
    found = open_table(builder.storage.uri)
    assert isinstance(found, PaimonTable)

    def may(column: str, operator: Any, value: Any) -> list[bool]:
        return found.may_match(found.snapshot(), Compare((column,), operator, value)).to_pylist()

    assert may("id", ">", 8) == [True], "the writer has no statistics"
    assert purge(found, LocalEngine()).verified
    assert (may("id", ">", 8), may("id", ">", 7), may("id", "<", 0)) == ([False], [True], [False])
    assert (may("s", ">", "b"), may("s", "=", "a" * 20), may("n", "=", 1)) == ([False], [True], [False])


def test_schemas_that_changed(tmp_path: Path) -> None:
    writer = PaimonWriter(tmp_path / "t", columns={"id": "INT", "old": "STRING", "gone": "INT"})
    first = writer.append([{"id": at, "old": f"o{at}", "gone": 1} for at in range(5)])
    writer.alter({"new": "BIGINT", "id": "BIGINT", "named": "STRING"}, {"named": "old"})
    second = writer.append([{"new": at, "id": at, "named": f"n{at}"} for at in range(5, 9)])
    writer.delete({first: [0], second: [1]})
    before = rows(writer.path)
    assert {"new": None, "id": 1, "named": "o1"} in before
    table = open_table(str(writer.path))
    snapshot = table.snapshot()
    keys = tuple(FileKey(**row) for row in snapshot.files.select(["path", "dv_id"]).to_pylist())
    (task,) = table.rewrite_tasks(snapshot, [RewriteBin("a", "", keys)], 1 << 30)
    assert RewriteTask.from_json(json.loads(json.dumps(task.to_json()))) == task
    assert purge(table, LocalEngine()).verified
    assert maintain(table, LocalEngine(), Policy(min_input_files=2)).verified
    assert rows(writer.path) == before
    (path,) = table.snapshot().files["path"].to_pylist()
    assert pq.read_schema(writer.path / path).names == ["new", "id", "named"]


def test_files_to_cast_are_left_alone(tmp_path: Path) -> None:
    """One file whose values only Paimon casts does not stop the others, and needs no cast without live rows."""
    builder = PaimonBuilder(tmp_path / "t")
    builder.create({"id": "BIGINT", "v": "VARCHAR(5)"})
    builder.append(numbers(0, 10))
    builder.append(numbers(10, 10))
    builder.delete(ids(1, *range(10, 20)))
    newer = json.loads((tmp_path / "t/schema/schema-0").read_text()) | {"id": 1}
    newer["fields"][1]["type"] = "VARCHAR(2)"
    (tmp_path / "t/schema/schema-1").write_text(json.dumps(newer))
    builder.append(numbers(20, 10))
    builder.append(numbers(30, 10))
    builder.delete(ids(20, 30))
    table = open_table(str(tmp_path / "t"))
    wanted = requested(table, table.snapshot(), PURGE)
    (left,) = wanted.left_alone
    assert (left.files, left.deleted_rows) == (1, 1)
    assert "column v was VARCHAR(5)" in left.reason
    assert f"'dvm engine-sql {table.uri} purge'" in left.reason
    report = purge(table, LocalEngine())
    assert report.verified, report.problems
    assert (report.left_alone, sum(step.rows_purged for step in report.steps)) == (wanted.left_alone, 2)
    assert sorted(table.snapshot().files["deleted_rows"].to_pylist()) == [0, 1]
    assert not maintain(table, LocalEngine(), Policy(max_deleted_ratio=0)).steps
    with pytest.raises(RefusedError, match=r"1 file with deleted rows: column v was VARCHAR\(5\)"):
        requested(table, table.snapshot(), PURGE)


def test_manifests_of_an_old_writer(tmp_path: Path) -> None:
    writer = PaimonWriter(tmp_path / "t", writer=OLD)
    first = writer.append([{"id": at, "v": "x"} for at in range(5)])
    writer.append([{"id": at, "v": "y"} for at in range(5)])
    writer.delete({first: [0]})
    before = rows(writer.path)
    assert purge(open_table(str(writer.path)), LocalEngine()).verified
    assert rows(writer.path) == before


def test_an_unknown_field(built: PaimonBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    template = commit.newest_template

    def newer(*arguments: Any) -> Any:
        found = template(*arguments)
        field = '{"name":"_FROM_THE_FUTURE","type":"int"},{"name":"_KIND"'
        return replace(found, schema=found.schema.replace('{"name":"_KIND"', field))

    monkeypatch.setattr(commit, "newest_template", newer)
    before = everything(built)
    with pytest.raises(UnsupportedFeatureError, match="_FROM_THE_FUTURE"):
        purge(open_table(built.storage.uri), LocalEngine())
    assert len(left(built)) == 17
    assert {path for path in everything(built) - before if not path.startswith("bucket-0")} == set()


# -- others -------------------------------------------------------------------------------------------------------


def test_deletes_between_the_plan_and_the_snapshot(built: PaimonBuilder) -> None:
    others = [lambda: built.delete(ids(3)), lambda: built.append(numbers(20, 2)), lambda: built.delete(ids(13, 20))]
    report = purge(PaimonTable(Busy(built.storage.uri, *others)), LocalEngine())
    assert report.verified, report.problems
    assert sum(step.rows_carried for step in report.steps) == 2
    assert left(built) == [0, *range(4, 12), *range(14, 20), 21]
    assert purge(open_table(built.storage.uri), LocalEngine()).verified
    assert left(built) == [0, *range(4, 12), *range(14, 20), 21]


def test_the_race_that_is_never_won(built: PaimonBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "_FIRST_PAUSE", 0.0)
    others = [lambda: built.append(numbers(20, 1))] * 100
    with pytest.raises(ConflictError, match="10 attempts"):
        purge(PaimonTable(Busy(built.storage.uri, *others)), LocalEngine())
    named = {path for path in everything(built) if path.startswith("bucket-0")}
    assert named == set(open_table(built.storage.uri).snapshot().files["path"].to_pylist()), "no file is left"


def test_a_removed_file(built: PaimonBuilder) -> None:
    report = purge(PaimonTable(Busy(built.storage.uri, lambda: built.delete(ids(*range(10))))), LocalEngine())
    assert report.verified, report.problems
    assert left(built) == [10, 11, *range(13, 20)]


def test_an_index_file_that_moved_is_no_delete(built: PaimonBuilder) -> None:
    """A delete of another file rewrites all deletion vectors."""
    built.append(numbers(20, 10))
    report = purge(PaimonTable(Busy(built.storage.uri, lambda: built.delete(ids(25)))), LocalEngine())
    assert report.verified, report.problems
    assert sum(step.rows_carried for step in report.steps) == 0
    assert left(built) == [0, *range(3, 12), *range(13, 25), *range(26, 30)]


def rolled_back(built: PaimonBuilder) -> None:
    """To the second snapshot, and two commits on."""
    for version in (4, 3):
        (Path(built.storage.local("snapshot")) / f"snapshot-{version}").unlink()
    built.storage.put("snapshot/LATEST", b"2")
    built.append(numbers(30, 1))
    built.append(numbers(31, 1))


def test_a_table_that_was_rolled_back(built: PaimonBuilder) -> None:
    class Writing(Storage):
        done = False

        def put(self, path: str, data: bytes) -> None:
            if path.startswith("manifest/manifest-list") and not self.done:
                self.done = True
                rolled_back(built)
            super().put(path, data)

    report = purge(PaimonTable(Writing(built.storage.uri)), LocalEngine())
    assert report.verified, report.problems
    assert left(built) == [*range(10), 30, 31]


def test_a_rollback_at_the_last_moment_is_reported(built: PaimonBuilder) -> None:
    with pytest.raises(StorageError, match="rolled back"):
        purge(PaimonTable(Busy(built.storage.uri, lambda: rolled_back(built))), LocalEngine())


def test_deletion_vectors_switched_off_meanwhile(built: PaimonBuilder) -> None:
    def off() -> None:
        schema = json.loads(built.storage.get("schema/schema-0"))
        built.delete(ids(3))
        built.storage.put("schema/schema-1", json.dumps({**schema, "id": 1, "options": {"bucket": "-1"}}).encode())

    report = purge(PaimonTable(Busy(built.storage.uri, off)), LocalEngine())
    assert report.verified
    assert left(built) == [0, *range(4, 12), *range(13, 20)]
    assert set(open_table(built.storage.uri).snapshot().files["dv_id"].to_pylist()) == {None}


def test_a_table_that_may_not_be_written_any_more(built: PaimonBuilder) -> None:
    def tracked() -> None:
        built.append(numbers(20, 1))
        schema = json.loads(built.storage.get("schema/schema-0"))
        options = {**schema["options"], "row-tracking.enabled": "true"}
        built.storage.put("schema/schema-1", json.dumps({**schema, "id": 1, "options": options}).encode())

    with pytest.raises(RefusedError, match="row-tracking"):
        purge(PaimonTable(Busy(built.storage.uri, tracked)), LocalEngine())
    assert {row["id"] for row in rows(built.storage.uri)} == {0, *range(3, 12), *range(13, 21)}


def test_lists_that_expire_under_a_commit_are_a_lost_race(built: PaimonBuilder) -> None:
    body = json.loads(built.storage.get("snapshot/snapshot-4"))
    lists = [f"manifest/{body[name]}" for name in ("baseManifestList", "deltaManifestList")]

    class Expiring(Storage):
        reads = 0

        def get(self, path: str) -> bytes:
            self.reads += path == lists[1]
            if self.reads == 3:  # after the reads of the plan and of the attempt
                self.reads += 1
                built.append(numbers(20, 1))
                built.storage.delete([*lists, "snapshot/snapshot-4"])
            return super().get(path)

    storage = Expiring(built.storage.uri)
    report = purge(PaimonTable(storage), LocalEngine())
    assert storage.reads > 3
    assert report.version_after == 6
    assert left(built) == [0, *range(3, 12), *range(13, 21)]


def test_a_list_that_is_missing_is_damage(built: PaimonBuilder) -> None:
    table, base, each = replacements(built)
    assert base.file is not None
    built.storage.delete([f"manifest/{base.file.base_list}"])
    with pytest.raises(DamagedTableError, match="manifest-list"):
        table.commit(base, each, operation={"name": "REORG"})


# -- what is not known ---------------------------------------------------------------------------------------------


class Failing(Storage):
    """The first snapshot is put in place, or not, and then the answer is ``error``. ``over``: what somebody puts in its
    place afterwards.
    """

    def __init__(self, place: str, error: Exception | None, *, made: bool = True, over: bytes | None = None) -> None:
        super().__init__(place)
        self.error, self.made, self.over = error, made, over

    def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        if not path.startswith(SNAPSHOT):
            super().create(path, data, staging=staging)
            return
        if self.made:
            super().create(path, data, staging=staging)
        if self.over is not None:
            self.put(path, self.over)
        error, self.error = self.error, None
        if error is not None:
            raise error


def test_an_answer_that_got_lost(built: PaimonBuilder) -> None:
    for error in (StorageError("connection reset"), FileExistsAlreadyError("by our own first try")):
        built.delete(ids(3 if isinstance(error, FileExistsAlreadyError) else 4))
        report = purge(PaimonTable(Failing(built.storage.uri, error)), LocalEngine())
        assert report.verified, report.problems
    assert left(built) == [0, *range(5, 12), *range(13, 20)]


def test_a_failure_that_may_have_been_served_deletes_nothing(built: PaimonBuilder) -> None:
    before = everything(built)
    with pytest.raises(StorageError, match="it is unknown whether") as failure:
        purge(PaimonTable(Failing(built.storage.uri, StorageError("timed out"), made=False)), LocalEngine())
    assert "dv-maintenance-" in (failure.value.next_step or "") or "history" in (failure.value.next_step or "")
    written = everything(built) - before
    assert {path.partition("/")[0] for path in written} == {"bucket-0", "manifest"}


def test_a_base_that_cannot_be_read_again_keeps_what_was_committed(built: PaimonBuilder) -> None:
    """The snapshot is in place. The error said that nothing was changed."""

    class Failed(Storage):
        created = False

        def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
            super().create(path, data, staging=staging)
            self.created = self.created or path.startswith(SNAPSHOT)

        def get(self, path: str) -> bytes:
            if self.created and path == "snapshot/snapshot-4":
                raise StorageError("timed out")
            return super().get(path)

    rows = left(built)
    with pytest.raises(StorageError, match="its base, could not be read again") as failure:
        purge(PaimonTable(Failed(built.storage.uri)), LocalEngine())
    assert "it is unknown whether the commit" in str(failure.value.done)
    assert (PaimonTable(Storage(built.storage.uri)).version(), left(built)) == (5, rows)


def test_a_snapshot_that_is_gone_again_was_committed(built: PaimonBuilder) -> None:
    class Gone(Storage):
        def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
            super().create(path, data, staging=staging)
            if path.startswith(SNAPSHOT):
                built.append(numbers(20, 1))
                self.delete([path])

    _, base, each = replacements(built)
    outcome = PaimonTable(Gone(built.storage.uri)).commit(base, each, operation={"name": "REORG"})
    assert (outcome.version, outcome.committed) == (5, ("a",))
    assert left(built) == [0, *range(3, 12), *range(13, 21)]


def test_a_number_that_was_taken_and_is_free_again_is_reported(built: PaimonBuilder) -> None:
    class Taken(Storage):
        def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
            if path.startswith(SNAPSHOT):
                raise FileExistsAlreadyError(path)
            super().create(path, data, staging=staging)

    before = everything(built)
    with pytest.raises(StorageError, match="was deleted before it could be read"):
        purge(PaimonTable(Taken(built.storage.uri)), LocalEngine())
    assert before < everything(built)


def test_a_snapshot_that_was_overwritten(built: PaimonBuilder) -> None:
    over = json.dumps({**json.loads(built.storage.get("snapshot/snapshot-4")), "id": 5}).encode()
    before = everything(built)
    with pytest.raises(StorageError, match="overwrote our version"):
        purge(PaimonTable(Failing(built.storage.uri, None, over=over)), LocalEngine())
    assert before < everything(built)
    assert len(left(built)) == 17


# -- gates --------------------------------------------------------------------------------------------------------


def replacements(built: PaimonBuilder) -> tuple[PaimonTable, Any, list[Replacement]]:
    """Both files as one replacement that holds."""
    table = PaimonTable(Storage(built.storage.uri))
    base = table.snapshot()
    keys = tuple(FileKey(**row) for row in base.files.select(["path", "dv_id"]).to_pylist())
    (task,) = table.rewrite_tasks(base, [RewriteBin("a", "", keys)], 1 << 30)
    (result,) = LocalEngine().run([task], storage_options={})
    kept = tuple(rows - gone for rows, gone in zip(result.source_rows, result.source_purged, strict=True))
    return table, base, [Replacement("a", "", keys, result.outputs, kept)]


def test_a_replacement_that_holds(built: PaimonBuilder) -> None:
    table, base, each = replacements(built)
    outcome = table.commit(base, each, operation={"name": "REORG"})
    assert (outcome.version, outcome.committed, outcome.lost) == (5, ("a",), ())
    assert len(left(built)) == 17


def wrong_count(each: Replacement) -> list[Replacement]:
    return [replace(each, outputs=(replace(each.outputs[0], rows=16),), kept=())]


def wrong_kept(each: Replacement) -> list[Replacement]:
    return [replace(each, kept=(17, 1))]


def twice(each: Replacement) -> list[Replacement]:
    return [each, replace(each, id="b")]


def no_inputs(each: Replacement) -> list[Replacement]:
    return [replace(each, inputs=(), kept=())]


def other_size(each: Replacement) -> list[Replacement]:
    return [replace(each, outputs=(replace(each.outputs[0], size=1),))]


def missing(each: Replacement) -> list[Replacement]:
    return [replace(each, outputs=(replace(each.outputs[0], uri=each.outputs[0].uri + "x"),))]


def other_partition(each: Replacement) -> list[Replacement]:
    return [replace(each, partition="p=1")]


@pytest.mark.parametrize("change", [wrong_count, wrong_kept, twice, no_inputs, other_size, missing, other_partition])
def test_gates(change: Callable[[Replacement], list[Replacement]], built: PaimonBuilder) -> None:
    table, base, (each,) = replacements(built)
    before = everything(built)
    with pytest.raises(VerificationError, match="nothing was committed"):
        table.commit(base, change(each), operation={"name": "REORG"})
    assert everything(built) == before


def test_a_new_file_with_the_name_of_a_live_one_is_not_deleted(built: PaimonBuilder) -> None:
    table, base, (each,) = replacements(built)
    live = base.files.to_pylist()[0]
    output = replace(each.outputs[0], uri=built.storage.uri_of(live["path"]), size=live["size"])
    with pytest.raises(DamagedTableError, match="name of a live one"):
        table.commit(base, [replace(each, outputs=(output,))], operation={"name": "REORG"})
    assert len(left(built)) == 17


def test_a_commit_that_went_through_is_not_made_again(built: PaimonBuilder) -> None:
    table, base, each = replacements(built)
    assert table.commit(base, each, operation={"name": "REORG"}).version == 5
    with pytest.raises(DamagedTableError, match="may have succeeded"):
        table.commit(base, each, operation={"name": "REORG"})
    assert len(left(built)) == 17


def test_what_was_never_live_is_lost(built: PaimonBuilder) -> None:
    table, base, (each,) = replacements(built)
    stranger = replace(each, id="b", inputs=(FileKey("bucket-0/data-x.parquet"),), outputs=(), kept=())
    outcome = table.commit(base, [each, stranger], operation={"name": "REORG"})
    assert (outcome.committed, outcome.lost) == (("a",), ("b",))


def test_rows_that_came_back_are_not_lost(built: PaimonBuilder) -> None:
    """Somebody puts a snapshot without deletion vectors on top."""
    table, base, each = replacements(built)
    built.commit("OVERWRITE", [], index=None)
    outcome = table.commit(base, each, operation={"name": "REORG"})
    assert (outcome.version, outcome.lost) == (None, ("a",))
    assert "restored rows of" in outcome.reason
    assert left(built) == [*range(20)]


def test_work_that_others_did_is_not_done_twice(built: PaimonBuilder) -> None:
    table, base, (each,) = replacements(built)
    (task,) = table.rewrite_tasks(base, [RewriteBin("b", "", each.inputs[:1])], 1 << 30)
    (result,) = LocalEngine().run([task], storage_options={})
    theirs = Replacement("b", "", each.inputs[:1], result.outputs, (8,))
    assert table.commit(base, [theirs], operation={"name": "OPTIMIZE"}).version == 5
    outcome = table.commit(base, [each], operation={"name": "REORG"})
    assert (outcome.version, outcome.lost) == (None, ("a",))
    assert "rewrote" in outcome.reason
    assert len(left(built)) == 17


def test_a_new_file_without_live_rows_is_omitted(built: PaimonBuilder) -> None:
    table = PaimonTable(Storage(built.storage.uri))
    base = table.snapshot()
    keys = tuple(FileKey(**row) for row in base.files.select(["path", "dv_id"]).to_pylist())
    (task,) = table.rewrite_tasks(base, [RewriteBin("a", "", keys)], 1)
    (result,) = LocalEngine().run([task], storage_options={})
    assert [output.rows for output in result.outputs] == [8, 9], "a file for each of the old ones"
    built.delete(ids(*range(11)), keep_empty=True)
    outcome = table.commit(base, [Replacement("a", "", keys, result.outputs, (8, 9))], operation={"name": "REORG"})
    assert [each.deleted for each in outcome.rebased] == [(8, 1)]
    after = table.snapshot().files
    assert (after["physical_rows"].to_pylist(), after["deleted_rows"].to_pylist()) == ([9], [1])
    assert left(built) == [11, *range(13, 20)]


# -- index files ---------------------------------------------------------------------------------------------------


def test_the_rest_of_an_index_file_is_rewritten(built: PaimonBuilder) -> None:
    table = PaimonTable(Storage(built.storage.uri))
    base = table.snapshot()
    keys = [FileKey(**row) for row in base.files.select(["path", "dv_id"]).to_pylist()]
    (task,) = table.rewrite_tasks(base, [RewriteBin("a", "", (keys[0],))], 1 << 30)
    (result,) = LocalEngine().run([task], storage_options={})
    outcome = table.commit(base, [Replacement("a", "", (keys[0],), result.outputs, (8,))], operation={"name": "REORG"})
    assert set(outcome.moved) == {keys[1]}
    after = table.snapshot()
    assert outcome.moved[keys[1]] in {FileKey(**row) for row in after.files.select(["path", "dv_id"]).to_pylist()}
    assert after.files["deleted_rows"].to_pylist() == [1, 0]
    assert len(left(built)) == 17


def test_dangling_entries_go_with_their_index_file(tmp_path: Path) -> None:
    writer = PaimonWriter(tmp_path / "t")
    first, second = (writer.append([{"id": at, "v": "x"} for at in range(5)]) for _ in range(2))
    writer.delete({first: [0], second: [1]})
    writer.files.pop(first.key)
    writer.commit("OVERWRITE", delete=[first])
    table = open_table(str(writer.path))
    assert isinstance(table, PaimonTable)
    assert len(table.snapshot().dangling) == 1
    assert purge(table, LocalEngine()).verified
    assert table.snapshot().dangling == ()
    assert len(rows(writer.path)) == 4


def test_other_indexes_are_left_to_paimon(tmp_path: Path) -> None:
    writer = PaimonWriter(tmp_path / "t")
    first = writer.append([{"id": at, "v": "x"} for at in range(5)])
    writer.delete({first: [0]})
    writer.write_index([writer.index_entry("index-h", None, _INDEX_TYPE="BTREE")])
    writer.commit("OVERWRITE")
    with pytest.raises(RefusedError, match="BTREE"):
        purge(open_table(str(writer.path)), LocalEngine())
