"""Rows of Lance tables through our reader, with Lance's own as the judge."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import examples, sampled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tables import lance_table as opened

from dv_maintenance.cli import main
from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.lance.reader import LanceReader
from dv_maintenance.engine.parquet.footer import BATCH_BYTES
from dv_maintenance.engine.scan import open_source, scan
from dv_maintenance.engine.span import Span
from dv_maintenance.engine.splits import plan_splits, scan_split
from dv_maintenance.errors import DamagedTableError, RefusedError, StorageError, UsageError
from dv_maintenance.files.lance_library import FLOOR, lance_errors, lance_options, library
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.lance.table import LanceTable
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.predicate import Compare, bind
from dv_maintenance.tables.rows import DeletedRows, RowChanges
from dv_maintenance.tables.work import DvRef, ScanTask

ROWS = 24
COLUMNS: dict[str, pa.Array] = {
    "id": pa.array(range(ROWS), pa.int64()),
    "vec": pa.FixedSizeListArray.from_arrays(pa.array(range(ROWS * 4), pa.float32()), 4),
    "half": pa.array([at / 2 for at in range(ROWS)], pa.float32()).cast(pa.float16()),
    "large": pa.array([str(at) for at in range(ROWS)], pa.large_string()),
    "dict": pa.array(["a", "b", None] * (ROWS // 3)).dictionary_encode(),
    "null": pa.nulls(ROWS),
    "deep": pa.array([{"a": at, "b": [at] * (at % 3)} for at in range(ROWS)]),
    "dec": pa.array([Decimal(at) / 4 for at in range(ROWS)], pa.decimal128(10, 2)),
    "at": pa.array([datetime(2026, 1, 1 + at) for at in range(ROWS)], pa.timestamp("us", "UTC")),
    "bytes": pa.array([None if at % 4 == 0 else b"x" * at for at in range(ROWS)], pa.binary()),
    "fixed": pa.array([b"abcd"] * ROWS, pa.binary(4)),
    "time": pa.array(range(ROWS), pa.time32("s")),
    "span": pa.array(range(ROWS), pa.duration("us")),
    "big": pa.array([2**64 - 1 - at for at in range(ROWS)], pa.uint64()),
    "flag": pa.array([True, None, False] * (ROWS // 3)),
}
VERSIONS = ("legacy", "2.0", "2.1", "2.2", "2.3")


@pytest.fixture
def made(pylance: ModuleType, tmp_path: Path) -> Callable[..., str]:
    """Three fragments; rows deleted in two of them."""

    def make(data: pa.Table | None = None, name: str = "a table", **options: Any) -> str:
        place = str(tmp_path / name)
        data = pa.table(COLUMNS) if data is None else data
        pylance.write_dataset(data, place, **{"max_rows_per_file": 8, "max_rows_per_group": 4, **options})
        pylance.dataset(place).delete("id % 3 = 0 AND id < 14")
        return place

    return make


def rows(place: str, version: int | None = None, columns: list[str] | None = None) -> pa.Table:
    schema, batches = read(open_table(place), version, columns)
    return pa.Table.from_batches(batches, schema)


# -- what is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_type_of_every_file_version(version: str, made: Callable[..., str], pylance: ModuleType) -> None:
    place = made(data_storage_version=version)
    expected = pylance.dataset(place).to_table()
    got = rows(place)
    assert got.schema.equals(expected.schema, check_metadata=True)
    # Dictionaries may be cut differently; their values are the same.
    plain = [field.name for field in expected.schema if field.name != "dict"]
    assert got.select(plain).equals(expected.select(plain))
    assert got["dict"].to_pylist() == expected["dict"].to_pylist()
    assert rows(place, None, ["big", "id"]).equals(expected.select(["big", "id"]))
    assert rows(place, 1).num_rows == ROWS


def test_types_that_hide_how_values_are_stored(made: Callable[..., str], pylance: ModuleType) -> None:
    from lance import blob_array, blob_field
    from lance.arrow import bfloat16_array

    plain = pa.array([None, b"b", b""], pa.large_binary())
    place = made(
        pa.table(
            {
                "id": [20, 21, 22],
                "blob": blob_array([b"ab", None, b""]),
                "b16": bfloat16_array([1.0, 2.0, None]),
                "json": pa.array(['{"a":1}', None, "[]"], pa.json_()),
                "uuid": pa.array([b"1" * 16] * 3, pa.uuid()),
            },
            pa.schema(
                [
                    ("id", pa.int64()),
                    blob_field("blob"),
                    ("b16", bfloat16_array([1.0]).type),
                    ("json", pa.json_()),
                    ("uuid", pa.uuid()),
                ]
            ),
        )
    )
    got = rows(place)
    assert got.column("blob").to_pylist() == [b"ab", None, b""]
    assert got.column("json").to_pylist() == ['{"a":1}', None, "[]"]
    assert got.column("uuid").to_pylist() == [b"1" * 16] * 3
    assert got.column("b16").to_pylist() == [b"\x80\x3f", b"\x00\x40", None]
    old = made(
        pa.table(
            {"id": [20, 21, 22], "blob": plain},
            pa.schema([("id", pa.int64()), pa.field("blob", plain.type, metadata={"lance-encoding:blob": "true"})]),
        ),
        "old",
        data_storage_version="2.0",
    )
    assert rows(old).column("blob").to_pylist()[1:] == [b"b", b""]


def test_columns_that_came_and_went(made: Callable[..., str], pylance: ModuleType) -> None:
    place = made(pa.table({"id": range(ROWS), "a": range(ROWS), "b": ["x"] * ROWS}))
    dataset = pylance.dataset(place)
    dataset.add_columns({"c": "id * 2", "d": "a + 1"})
    dataset.drop_columns(["a"])
    dataset.alter_columns({"path": "b", "name": "renamed"}, {"path": "d", "data_type": pa.int32()})
    pylance.write_dataset(
        pa.table({"id": [99], "renamed": ["y"], "c": [1], "d": pa.array([2], pa.int32())}), place, mode="append"
    )
    dataset = pylance.dataset(place)
    for version in (each["version"] for each in dataset.versions()):
        assert rows(place, version).equals(pylance.dataset(place, version=version).to_table())


def test_branches_and_clones(made: Callable[..., str], pylance: ModuleType, tmp_path: Path) -> None:
    place, clone = made(pa.table({"id": range(ROWS)})), str(tmp_path / "clone")
    dataset = pylance.dataset(place)
    branch = dataset.create_branch("some/where")
    branch.delete("id = 1")
    dataset.shallow_clone(clone, 2)
    pylance.write_dataset(pa.table({"id": [77]}), clone, mode="append")
    for other in (f"{place}/tree/some/where", clone):
        assert rows(other).equals(pylance.dataset(other).to_table())
    assert rows(clone).num_rows == rows(place).num_rows + 1


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["delete", "append", "update", "compact", "column"]), st.integers(0, 40)), max_size=6
    ),
    version=st.sampled_from(["2.0", "2.1", "2.2"]),
    stable=st.booleans(),
)
@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_histories(
    steps: list[tuple[str, int]],
    version: str,
    stable: bool,
    pylance: ModuleType,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Every version reads as Lance reads it, rows in the same order, at the places that Lance gives them."""
    place = str(tmp_path_factory.mktemp("scan") / "table")
    pylance.write_dataset(
        pa.table({"id": range(30)}),
        place,
        max_rows_per_file=7,
        data_storage_version=version,
        enable_stable_row_ids=stable,
    )
    for number, (what, at) in enumerate(steps):
        dataset = pylance.dataset(place)
        if what == "delete":
            dataset.delete(f"id % 7 = {at % 7} OR id = {at}")
        elif what == "update":
            dataset.update({"id": "id + 100"}, f"id % 5 = {at % 5}")
        elif what == "compact":
            dataset.optimize.compact_files(target_rows_per_fragment=20)
        elif what == "column":
            dataset.add_columns({f"c{number}": f"id * {at}"})
        else:
            fresh = {name: pa.array([at] * 3, pa.int64()) for name in dataset.schema.names}
            pylance.write_dataset(pa.table(fresh, dataset.schema), place, mode="append")
    table = opened(place)
    for each in pylance.dataset(place).versions():
        dataset = pylance.dataset(place, version=each["version"])
        assert rows(place, each["version"]).equals(dataset.to_table())
        addresses = dataset.scanner(columns=[], with_row_address=True).to_table()["_rowaddr"].to_pylist()
        assert [*placed(table, each["version"])] == addresses


def placed(table: LanceTable, version: int) -> Iterator[int]:
    for task in table.scan_tasks(table.snapshot(version), []):
        (source,) = task.sources
        with open_source(source, task, Storage(source.uri)) as reader:
            for live in reader.live():
                yield from (source.details["id"] << 32 | at for at in live.positions().to_pylist())


# -- tasks --------------------------------------------------------------------------------------------------------


def test_tasks_travel(made: Callable[..., str]) -> None:
    table = opened(made())
    snapshot = table.snapshot()
    tasks = table.scan_tasks(snapshot, ["big", "id"])
    assert [task.schema.names for task in tasks] == [["big", "id"]] * 3
    first = tasks[0].sources[0]
    row = snapshot.files.to_pylist()[0]
    assert (first.format, first.details) == ("lance", {"dataset": table.uri, "version": 2, "id": 0})
    assert first.key == FileKey(row["path"], row["dv_id"])
    assert first.dv == DvRef("lance-array", 3, 0, f"{table.uri}/{row['dv_id']}")
    assert "%20" in first.uri
    assert [task.sources[0].dv is None for task in tasks] == [False, False, True]
    for task in tasks:
        again = ScanTask.from_json(json.loads(json.dumps(task.to_json())))
        assert again == task
        assert [*scan(again)] == [*scan(task)]
    for wrong in (["nothing"], ["id", "id"]):
        with pytest.raises(UsageError):
            table.scan_tasks(snapshot, wrong)


def test_a_fragment_is_one_piece(made: Callable[..., str], pylance: ModuleType) -> None:
    place = made()
    table = opened(place)
    tasks = table.scan_tasks(table.snapshot(), ["id"])
    source = tasks[0].sources[0]
    with open_source(source, tasks[0], Storage(source.uri)) as reader:
        assert (reader.rows, reader.purged, reader.size) == (8, 3, source.size)
        nothing = bind(Compare(("id",), "<", -1), tasks[0].schema)
        assert [batch["id"].to_pylist() for batch in reader.batches(Span(0, 1), nothing)] == [[1, 2, 4, 5, 7]]
        assert [*reader.batches(Span(1, None))] == []
    # However small the pieces ought to be.
    splits = plan_splits(tasks, 16)
    assert [len(split.spans) for split in splits] == [1, 1, 1]
    got = [value for split in splits for batch in scan_split(split) for value in batch["id"].to_pylist()]
    assert sorted(got) == pylance.dataset(place).to_table()["id"].to_pylist()


@pytest.mark.parametrize("version", sampled(VERSIONS[:-1], 2))
def test_batches_of_bounded_bytes(
    version: str, made: Callable[..., str], pylance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand rows of 16 kB each, and as many of text that packs well."""
    width, count = 4096, 1000
    place = made(
        pa.table(
            {
                "id": range(count),
                "vec": pa.FixedSizeListArray.from_arrays(pa.array([1.5] * (count * width), pa.float32()), width),
                "text": ["x" * 16_000] * count,
            }
        ),
        max_rows_per_file=count,
        max_rows_per_group=64,
        data_storage_version=version,
    )
    table = opened(place)
    for columns in (["vec"], ["text"], ["id", "vec", "text"]):
        (task,) = table.scan_tasks(table.snapshot(), columns)
        sizes = [batch.nbytes for batch in scan(task)]
        assert len(sizes) > 3
        assert max(sizes) <= 1.1 * BATCH_BYTES
    assert rows(place).equals(pylance.dataset(place).to_table())
    # What Lance itself holds at a time, where a row's bytes are known beforehand.
    delivered: list[int] = []

    def measured(batch: pa.RecordBatch) -> pa.RecordBatch:
        delivered.append(batch.nbytes)
        return batch

    broken(pylance.dataset(place).get_fragment(0), monkeypatch, measured)
    assert rows(place, None, ["vec"]).num_rows == pylance.dataset(place).count_rows()
    assert max(delivered) <= 1.1 * BATCH_BYTES


def test_batches_that_are_larger_than_asked_for(
    made: Callable[..., str], pylance: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(pa.table({"id": range(1000), "text": ["x" * 16_000] * 1000}), max_rows_per_file=1000)
    fragment = type(pylance.dataset(place).get_fragment(0))
    monkeypatch.setattr(
        fragment, "to_batches", lambda self, **how: self.to_table(**only(how)).combine_chunks().to_batches()
    )

    def only(how: dict[str, Any]) -> dict[str, Any]:
        return {name: how[name] for name in ("columns", "with_row_address")}

    table = opened(place)
    (task,) = table.scan_tasks(table.snapshot())
    sizes = [batch.nbytes for batch in scan(task)]
    assert len(sizes) > 3
    assert max(sizes) <= 1.1 * BATCH_BYTES
    assert rows(place).num_rows == 1000 - 5


# -- what is not right --------------------------------------------------------------------------------------------


def broken(fragment: Any, monkeypatch: pytest.MonkeyPatch, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Lance delivers something else from now on."""
    real = type(fragment).to_batches

    def other(self: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        yield from map(change, real(self, **options))

    monkeypatch.setattr(type(fragment), "to_batches", other)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda batch: batch.slice(0, batch.num_rows - 1), "1 rows too few: nothing after position 5"),
        (lambda batch: batch.slice(1), "rows other than those of positions 0 to 7"),
        (lambda batch: batch.slice(0, 0), "5 rows too few"),
        (lambda batch: batch.take([0, 0, 1, 2, 3, 4]), "rows other than"),
        (lambda batch: batch.take([4, 3, 2, 1, 0]), "rows other than"),
        (
            lambda batch: batch.set_column(1, "_rowaddr", pc.subtract(batch["_rowaddr"], pa.scalar(1, pa.uint64()))),
            "rows other than those of positions 0 to 6",
        ),
    ],
    ids=["last", "first", "all", "twice", "order", "other rows"],
)
def test_rows_that_differ_from_the_deletion_file(
    change: Callable[[pa.RecordBatch], pa.RecordBatch],
    what: str,
    made: Callable[..., str],
    pylance: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = made(pa.table({"id": range(ROWS)}))
    broken(pylance.dataset(place).get_fragment(0), monkeypatch, change)
    with pytest.raises(DamagedTableError, match=what) as caught:
        rows(place)
    assert "fragment 0" in str(caught.value)
    assert "_deletions/0-1-" in str(caught.value)
    assert "data/" in str(caught.value)


@pytest.mark.parametrize("version", ["2.0", "2.2"])
@pytest.mark.parametrize(
    ("harm", "what"), [("gone", "does not exist"), ("cut", "truncated"), ("end", "cannot be read")]
)
def test_damaged_data_files(version: str, harm: str, what: str, made: Callable[..., str]) -> None:
    place = made(pa.table({"id": range(ROWS)}), data_storage_version=version)
    (source,) = opened(place).scan_tasks(opened(place).snapshot())[2].sources
    file = Path(opened(place).storage.local(source.uri))
    data = file.read_bytes()
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(data[: len(data) // 2] if harm == "cut" else data[:-300] + b"M" * 200 + data[-100:])
    with pytest.raises(DamagedTableError, match=what) as caught:
        rows(place)
    assert source.uri in str(caught.value)
    assert ".rs:" not in str(caught.value)
    assert main(["read", place, "--json"]) == 5


def test_a_table_that_was_recreated_concurrently(made: Callable[..., str], pylance: ModuleType) -> None:
    import shutil

    place = made()
    table = opened(place)
    tasks = table.scan_tasks(table.snapshot(1))
    shutil.rmtree(place)
    made()
    with pytest.raises(DamagedTableError, match=r"fragment 0 \(.*\) no longer exists"):
        [*scan(tasks[0])]
    uncounted = replace(tasks[0].sources[0], rows=None)
    with pytest.raises(DamagedTableError, match="the number of rows of fragment 0"):
        [*scan(replace(tasks[0], sources=(uncounted,)))]
    gone = replace(tasks[0].sources[0], details={"dataset": table.uri, "version": 77, "id": 0})
    with pytest.raises(DamagedTableError, match="does not exist"):
        [*scan(replace(tasks[0], sources=(gone,)))]


# -- the library --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["11.0.0", "6.0.1", "12.0.0rc2", "12.0.0-beta.1", "0.38.2", "who knows"])
def test_old_releases_are_refused(version: str, made: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    place = made()
    monkeypatch.setattr("lance.__version__", version)
    with pytest.raises(RefusedError, match=r"too old.*pip install 'dv-maintenance\[lance\]'"):
        rows(place)


@pytest.mark.parametrize("version", ["12.0.0", "12.0.0.post1", "12.1.0rc1", "14.0.2", "100.0.0"])
def test_newer_ones_are_not(version: str, pylance: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance.__version__", version)
    assert library() is pylance
    assert FLOOR >= (6, 0, 1)


def test_without_pylance(made: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    place = made()
    monkeypatch.setitem(sys.modules, "lance", None)
    table = opened(place)
    tasks = table.scan_tasks(table.snapshot())
    assert len(tasks) == 3
    with pytest.raises(RefusedError, match=r"pylance.*pip install 'dv-maintenance\[lance\]'"):
        [*scan(tasks[0])]
    with pytest.raises(RefusedError, match="pylance"):
        table.commit_changes(
            table.snapshot(),
            RowChanges((DeletedRows(tasks[2].sources[0].key),)),
            operation={"name": "DELETE"},
            reads=lambda _: False,
        )


def test_tasks_are_made_without_it(made: Callable[..., str]) -> None:
    code = (
        "import sys; from dv_maintenance.tables import open_table; t = open_table(sys.argv[1]); "
        "t.scan_tasks(t.snapshot()); t.check_writable(t.snapshot(), 'delete'); print('lance' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code, made()], text=True).strip() == "False"


def test_options() -> None:
    ours = {
        "AWS_Access_Key_Id": "a",
        "aws_endpoint": "b",
        "aws_allow_http": "true",
        "azure_timeout": "5s",
        "timeout": "1",
    }
    assert lance_options(ours) == {
        "aws_access_key_id": "a",
        "aws_endpoint": "b",
        "allow_http": "true",
        "timeout": "1",
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("LanceError(IO): Generic S3 error: Error performing GET http://x/?X-Amz-Signature=secret", StorageError),
        ("LanceError(IO): Permission denied (os error 13)", StorageError),
        ("Not found: x/data/y.lance, /home/a/b/c.rs:1:2", DamagedTableError),
        ("External error: Encountered corrupt file x", DamagedTableError),
        ("Not supported: this encoding", RefusedError),
        ("External error: Not found: Fragment 0 does not contain any data, /a/b.rs:1:2", RefusedError),
    ],
)
def test_errors(text: str, kind: type[Exception]) -> None:
    for raised in (ValueError, OSError, RuntimeError, pa.ArrowInvalid):
        with pytest.raises(kind) as caught, lance_errors("fragment 3", table="file:///t", version=4):
            raise raised(text)
        assert "file:///t at version 4" in str(caught.value)
        assert "fragment 3" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert ".rs:" not in str(caught.value)


def test_in_an_object_store(
    s3: tuple[str, dict[str, str]], pylance: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, options = s3
    place = f"{bucket}/scan me/t"
    pylance.write_dataset(pa.table({"id": range(30)}), place, max_rows_per_file=10, storage_options=options)
    pylance.dataset(place, storage_options=options).delete("id = 2")
    table = LanceTable(Storage(place, options))
    _, batches = read(table, None, None)
    assert [value for batch in batches for value in batch["id"].to_pylist()] == [0, 1, *range(3, 30)]
    keys = [task.sources[0].key for task in table.scan_tasks(table.snapshot())]
    deleted = (DeletedRows(keys[0], DeletionVector.from_positions([0, 1])), DeletedRows(keys[2]))
    outcome = table.commit_changes(
        table.snapshot(), RowChanges(deleted), operation={"name": "DELETE"}, reads=lambda _: False
    )
    assert (outcome.version, outcome.rows_deleted) == (3, 12)
    dataset = pylance.dataset(place, storage_options=options)
    dataset.validate()
    assert dataset.to_table()["id"].to_pylist() == [*range(3, 20)]
    assert options["aws_secret_access_key"] not in repr(table)
    # A server that does not answer as it should.
    task = table.scan_tasks(table.snapshot())[1]
    wrong = Storage(place, {**options, "aws_endpoint": "http://127.0.0.1:1", "timeout": "1s"})
    source = task.sources[0]
    with pytest.raises(StorageError) as caught:
        [*LanceReader(source, task, wrong).batches()]
    assert "secret" not in str(caught.value)


# -- the verb -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["arrow", "parquet", "jsonl"])
def test_every_output(kind: str, made: Callable[..., str], tmp_path: Path, pylance: ModuleType) -> None:
    import pyarrow.parquet as pq

    place, output = made(), tmp_path / f"rows.{kind}"
    assert main(["read", place, "-o", str(output)]) == 0
    expected = pylance.dataset(place).to_table()
    if kind == "jsonl":
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        assert len(lines) == expected.num_rows
        assert lines[0] == {
            "id": 1,
            "vec": [4.0, 5.0, 6.0, 7.0],
            "half": 0.5,
            "large": "1",
            "dict": "b",
            "null": None,
            "deep": {"a": 1, "b": [1]},
            "dec": "0.25",
            "at": "2026-01-02T00:00:00.000000Z",
            "bytes": "eA==",
            "fixed": "YWJjZA==",
            "time": "00:00:01",
            "span": 1,
            "big": 2**64 - 2,
            "flag": None,
        }
        return
    got = pq.read_table(output) if kind == "parquet" else pa.ipc.open_file(output).read_all()
    for name in expected.schema.names:
        assert got[name].to_pylist() == expected[name].to_pylist()
