"""Commits of deletes: what goes into which index file, what others do meanwhile, and which files are looked into."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.binary_rows import encode_row
from support.paimon_writer import NEW, OLD, PaimonWriter

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import RefusedError, VerificationError
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.paimon.rows.types import parse_type
from dv_maintenance.tables.paimon.table import PaimonTable
from dv_maintenance.tables.predicate import And, Compare, IsNull, Predicate
from dv_maintenance.tables.rows import AddedFile, ChangesOutcome, DeletedRows, RowChanges
from dv_maintenance.tables.work import OutputFile
from dv_maintenance.testing.paimon_builder import PaimonBuilder

DELETE = {"name": "DELETE"}


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "v": ["x"] * count})


def ids(*gone: int) -> Callable[[pa.Table], pa.BooleanArray]:
    return lambda table: pc.is_in(table["id"], pa.array(gone, pa.int64()))


def left(place: object) -> list[int]:
    return sorted(row["id"] for batch in read(open_table(str(place)))[1] for row in batch.to_pylist())


def rows_out(snapshot: Any, *positions: list[int] | None) -> RowChanges:
    """Positions in each of the files; none of a file: all of it; an empty list: it is not concerned."""
    keys = [FileKey(**row) for row in snapshot.files.select(["path", "dv_id"]).to_pylist()]
    return RowChanges(
        tuple(
            DeletedRows(key, None if chosen is None else DeletionVector.from_positions(chosen))
            for key, chosen in zip(keys, positions, strict=False)
            if chosen is None or chosen
        )
    )


def commit(table: PaimonTable, changes: RowChanges, base: Any = None) -> ChangesOutcome:
    base = base or table.snapshot()
    return table.commit_changes(base, changes, operation=DELETE, reads=lambda _: True)


@pytest.fixture
def built(tmp_path: Path) -> PaimonBuilder:
    """Two files of ten rows, 0 to 19, of the first row 1 is deleted."""
    builder = PaimonBuilder(tmp_path / "t")
    builder.create({"id": "BIGINT", "v": "STRING"})
    builder.append(numbers(0, 10))
    builder.append(numbers(10, 10))
    builder.delete(ids(1))
    return builder


def opened(builder: PaimonBuilder) -> PaimonTable:
    return PaimonTable(Storage(builder.storage.uri))


def test_rows_are_deleted_by_deletion_vectors(built: PaimonBuilder) -> None:
    table = opened(built)
    outcome = commit(table, rows_out(table.snapshot(), [0, 2], [9]))
    assert outcome == ChangesOutcome(5, 1, rows_deleted=3, dvs_added=2, dvs_removed=1)
    assert left(built.storage.uri) == [*range(3, 19)]
    (entry,) = table.history(1)
    assert (entry.operation, entry.data_changed, entry.rows_deleted_by_dvs) == ("OVERWRITE", True, 3)
    # All of a bucket's go together.
    assert len(table.snapshot().index.files) == 1


def test_files_without_live_rows_are_removed(built: PaimonBuilder) -> None:
    table = opened(built)
    every = [0, *range(2, 10)]
    outcome = commit(table, rows_out(table.snapshot(), every, None))
    assert outcome == ChangesOutcome(5, 1, rows_deleted=19, files_removed=2, dvs_removed=1)
    after = table.snapshot()
    assert (after.files.num_rows, after.index.files) == (0, ())
    assert after.file is not None
    assert after.file.body["totalRecordCount"] == 0


def test_the_first_deletion_vector_of_a_table(tmp_path: Path) -> None:
    for writer in (OLD, NEW):
        written = PaimonWriter(tmp_path / writer, writer=writer)
        written.append([{"id": at, "v": "x"} for at in range(5)])
        table = PaimonTable(Storage(str(written.path)))
        assert commit(table, rows_out(table.snapshot(), [0, 4])).rows_deleted == 2
        assert left(written.path) == [1, 2, 3]
        (dv,) = table.snapshot().index.dvs
        assert dv.cardinality == 2


@pytest.mark.parametrize(("bits", "magic"), [("false", b"\x5e\x43\xf2\xd0"), ("true", b"\xd1\xd3\x39\x64")])
def test_encodings(bits: str, magic: bytes, tmp_path: Path) -> None:
    builder = PaimonBuilder(tmp_path / "t")
    builder.create({"id": "BIGINT", "v": "STRING"}, options={"deletion-vectors.bitmap64": bits})
    builder.append(numbers(0, 10))
    table = opened(builder)
    commit(table, rows_out(table.snapshot(), [3]))
    (file,) = table.snapshot().index.files
    assert table.storage.get(file.path)[5:9] == magic
    assert left(builder.storage.uri) == [0, 1, 2, *range(4, 10)]


def test_index_files_of_the_target_size_and_not_many_small_ones(tmp_path: Path) -> None:
    builder = PaimonBuilder(tmp_path / "t")
    builder.create({"id": "BIGINT", "v": "STRING"}, options={"deletion-vector.index-file.target-size": "100 b"})
    for first in range(0, 100, 10):
        builder.append(numbers(first, 10))
    table = opened(builder)
    commit(table, rows_out(table.snapshot(), *[[at % 10] for at in range(10)]))
    sizes = [file.size for file in table.snapshot().index.files]
    assert len(sizes) > 1
    assert max(sizes) <= 100
    assert sum(file.rows for file in table.snapshot().index.files) == 10


def test_many_small_index_files_are_merged(tmp_path: Path) -> None:
    builder = PaimonBuilder(tmp_path / "t")
    builder.create({"id": "BIGINT", "v": "STRING"})
    table = opened(builder)
    counts = []
    for at in range(8):
        builder.append(numbers(10 * at, 10))
        commit(table, rows_out(table.snapshot(), *[[]] * at, [0]))
        counts.append(len(table.snapshot().index.files))
    assert counts == [1, 2, 3, 4, 5, 1, 2, 3]
    assert left(builder.storage.uri) == [at for at in range(80) if at % 10]


def test_index_files_beside_the_data(tmp_path: Path) -> None:
    builder = PaimonBuilder(tmp_path / "t")
    options = {"index-file-in-data-file-dir": "true"}
    builder.create({"id": "BIGINT", "p": "STRING"}, ["p"], options)
    builder.append(pa.table({"id": range(5), "p": ["a b"] * 5}), ["a b"])
    table = opened(builder)
    commit(table, rows_out(table.snapshot(), [0]))
    (file,) = table.snapshot().index.files
    assert file.path.startswith("p=a b/bucket-0/index-")
    assert left(builder.storage.uri) == [1, 2, 3, 4]


# -- others -------------------------------------------------------------------------------------------------------


class Busy(Storage):
    """Somebody else is at work right before the first snapshot is put in place."""

    def __init__(self, place: str, other: Callable[[], object]) -> None:
        super().__init__(place)
        self.other: Callable[[], object] | None = other

    def create(self, path: str, data: bytes, *, staging: str | None = None) -> None:
        if path.startswith("snapshot/snapshot-") and self.other is not None:
            other, self.other = self.other, None
            other()
        super().create(path, data, staging=staging)


def test_appends_and_deletes_elsewhere_are_no_conflict(built: PaimonBuilder) -> None:
    def others() -> None:
        built.append(numbers(20, 2))
        built.delete(ids(15, 20))

    table = PaimonTable(Busy(built.storage.uri, others))
    outcome = commit(table, rows_out(table.snapshot(), [0]))
    assert (outcome.version, outcome.attempts, outcome.rows_deleted) == (7, 2, 1)
    assert left(built.storage.uri) == [*range(2, 15), *range(16, 20), 21]


@pytest.mark.parametrize("gone", [(5,), tuple(range(10))], ids=["rows", "all"])
def test_deletes_of_the_same_file_are_checked_again(gone: tuple[int, ...], built: PaimonBuilder) -> None:
    table = PaimonTable(Busy(built.storage.uri, lambda: built.delete(ids(*gone))))
    before = {info.path for info in built.storage.list()}
    outcome = commit(table, rows_out(table.snapshot(), [0]))
    assert outcome.version is None
    assert "another writer" in outcome.conflict
    assert left(built.storage.uri) == [at for at in range(20) if at not in {1, *gone}]
    written = {info.path for info in built.storage.list()} - before
    assert len([path for path in written if path.startswith("index/")]) == (gone == (5,)), "only the other's"


# -- what cannot be right -----------------------------------------------------------------------------------------


def wrong_rows(key: FileKey) -> RowChanges:
    return RowChanges((DeletedRows(key, DeletionVector.from_positions([0]), rows=9),))


def beyond(key: FileKey) -> RowChanges:
    return RowChanges((DeletedRows(key, DeletionVector.from_positions([10])),))


def again(key: FileKey) -> RowChanges:
    return RowChanges((DeletedRows(key, DeletionVector.from_positions([0, 1])),))


def nothing(key: FileKey) -> RowChanges:
    return RowChanges((DeletedRows(key, DeletionVector.empty()),))


def twice(key: FileKey) -> RowChanges:
    return RowChanges((DeletedRows(key), DeletedRows(key)))


def stranger(key: FileKey) -> RowChanges:
    return RowChanges((DeletedRows(FileKey(key.path)),))


def new_rows(key: FileKey) -> RowChanges:
    return RowChanges((), (AddedFile(OutputFile("file:///x", 1, 1, 1), ""),))


@pytest.mark.parametrize("changes", [wrong_rows, beyond, again, nothing, twice, stranger, new_rows])
def test_gates(changes: Callable[[FileKey], RowChanges], built: PaimonBuilder) -> None:
    table = opened(built)
    key = FileKey(**table.snapshot().files.select(["path", "dv_id"]).to_pylist()[0])
    with pytest.raises(VerificationError):
        commit(table, changes(key))
    assert table.version() == 4


def test_a_table_without_deletion_vectors(tmp_path: Path) -> None:
    builder = PaimonBuilder(tmp_path / "t")
    builder.create({"id": "BIGINT"}, options={"deletion-vectors.enabled": "false"})
    builder.append(pa.table({"id": range(5)}))
    table = opened(builder)
    with pytest.raises(RefusedError, match=r"deletion-vectors\.enabled"):
        commit(table, rows_out(table.snapshot(), [0]))


# -- files to look into --------------------------------------------------------------------------------------------


def may(table: PaimonTable, predicate: Predicate) -> list[bool]:
    found: list[bool] = table.may_match(table.snapshot(), predicate).to_pylist()
    return found


def test_partitions_are_distinguished(tmp_path: Path) -> None:
    builder = PaimonBuilder(tmp_path / "t")
    builder.create({"id": "BIGINT", "p": "STRING"}, ["p"])
    for value in ("a", "b", None):
        builder.append(pa.table({"id": range(3), "p": pa.array([value] * 3, pa.string())}), [value])
    table = opened(builder)
    assert may(table, Compare(("p",), "=", "a")) == [True, False, False]
    assert may(table, Compare(("p",), ">", "a")) == [False, True, False]
    assert may(table, IsNull(("p",))) == [False, False, True]
    assert may(table, And((Compare(("p",), "=", "a"), Compare(("id",), "=", 1)))) == [True, False, False]


def test_statistics_of_a_writer_that_names_its_columns(tmp_path: Path) -> None:
    bigint = [parse_type("BIGINT")]
    writer = PaimonWriter(tmp_path / "t", columns={"id": "BIGINT", "v": "STRING"})
    stats = {"_MIN_VALUES": encode_row([3], bigint), "_MAX_VALUES": encode_row([7], bigint), "_NULL_COUNTS": [0]}
    writer.append([{"id": 3, "v": "x"}], _VALUE_STATS=stats, _VALUE_STATS_COLS=["id"])
    writer.append([{"id": 9, "v": "x"}], _VALUE_STATS=stats, _VALUE_STATS_COLS=["gone"])
    some_null = {**stats, "_NULL_COUNTS": [1]}
    writer.append([{"id": 3, "v": "x"}, {"id": None, "v": "x"}], _VALUE_STATS=some_null, _VALUE_STATS_COLS=["id"])
    writer.alter({"v": "STRING", "key": "BIGINT"}, {"key": "id"})
    table = PaimonTable(Storage(str(writer.path)))
    assert may(table, Compare(("key",), ">", 7)) == [False, True, False]
    assert may(table, Compare(("key",), ">=", 7)) == [True, True, True]
    assert may(table, IsNull(("key",))) == [False, True, True]
    assert may(table, Compare(("v",), "=", "y")) == [True, True, True]


def test_statistics_of_another_type_say_nothing(tmp_path: Path) -> None:
    writer = PaimonWriter(tmp_path / "t", columns={"d": "DATE"})
    row = encode_row([5], [parse_type("DATE")])
    stats = {"_MIN_VALUES": row, "_MAX_VALUES": row, "_NULL_COUNTS": [0]}
    writer.append([{"d": date(1970, 1, 6)}], _VALUE_STATS=stats)
    table = PaimonTable(Storage(str(writer.path)))
    assert may(table, Compare(("d",), ">", date(1970, 1, 6))) == [False]
    writer.alter({"d": "TIMESTAMP(6)"})
    assert may(table, Compare(("d",), ">", datetime(1970, 1, 2))) == [True]


def test_statistics_of_longer_text_say_nothing(tmp_path: Path) -> None:
    """Paimon reads "abc" as "ab" once the column is VARCHAR(2)."""
    writer = PaimonWriter(tmp_path / "t", columns={"s": "VARCHAR(3)"})
    row = encode_row(["abc"], [parse_type("VARCHAR(3)")])
    writer.append([{"s": "abc"}], _VALUE_STATS={"_MIN_VALUES": row, "_MAX_VALUES": row, "_NULL_COUNTS": [0]})
    table = PaimonTable(Storage(str(writer.path)))
    assert may(table, Compare(("s",), "=", "ab")) == [False]
    writer.alter({"s": "VARCHAR(2)"})
    assert may(table, Compare(("s",), "=", "ab")) == [True]
