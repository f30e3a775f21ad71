"""A folder of Parquet files becomes a table that others read as they read the folder."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.readers import READERS

from dv_maintenance.cli import main
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.maintenance.convert import convert
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.testing.memory import MemoryTable

DAY = {"day": pa.date32()}


def write(path: Path, columns: dict[str, Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)


def rows(place: Path) -> list[dict[str, Any]]:
    schema, batches = read(open_table(str(place)))
    return sorted(pa.Table.from_batches(batches, schema).to_pylist(), key=lambda row: row["id"])


def adds(place: Path) -> list[dict[str, Any]]:
    lines = (place / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def test_folders_become_partitions_and_files_stay(tmp_path: Path) -> None:
    write(tmp_path / "day=2026-01-01" / "a b.parquet", {"id": [1, 2], "name": ["x", None]})
    write(tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / "b.parquet", {"id": [3], "more": [0.5]})
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    write(tmp_path / "_temporary" / "0" / "half.parquet", {"id": [9]})
    (tmp_path / "notes.txt").write_text("no data")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}

    report = convert(open_table(str(tmp_path), "delta"), DAY)
    assert (report.converted, report.version, report.files, report.rows, report.ignored) == (True, 0, 2, 3, 1)
    assert report.columns == ("id", "name", "more", "day")
    expected = [
        {"id": 1, "name": "x", "more": None, "day": date(2026, 1, 1)},
        {"id": 2, "name": None, "more": None, "day": date(2026, 1, 1)},
        {"id": 3, "name": None, "more": 0.5, "day": None},
    ]
    assert rows(tmp_path) == expected
    for reader in READERS.values():
        found = reader(tmp_path).select(list(report.columns)).to_pylist()
        assert sorted(found, key=lambda row: row["id"]) == expected
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before


def test_it_is_done_once(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"id": [1]})
    table = open_table(str(tmp_path), "delta")
    assert convert(table, dry_run=True).version is None
    assert not (tmp_path / "_delta_log").exists()
    assert convert(table).converted
    write(tmp_path / "later.parquet", {"id": [2]})
    again = convert(table)
    assert (again.converted, again.version, len(rows(tmp_path))) == (False, 0, 1)


def test_who_is_faster_makes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", {"id": [1]})
    table = open_table(str(tmp_path), "delta")
    convert(open_table(str(tmp_path), "delta"))
    monkeypatch.setattr(type(table), "adopted", lambda _: None)
    assert not convert(table).converted


def test_a_commit_whose_answer_got_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", {"id": [1]})
    create = Storage.create

    def repeated_by_the_client(self: Storage, path: str, data: bytes) -> None:
        create(self, path, data)
        create(self, path, data)

    monkeypatch.setattr(Storage, "create", repeated_by_the_client)
    assert convert(open_table(str(tmp_path), "delta")).converted


def test_statistics_come_from_the_footers_where_they_can_be_trusted(tmp_path: Path) -> None:
    write(
        tmp_path / "a.parquet",
        {
            "id": pa.array([3, 1, None]),
            "name": ["b", "a", None],
            "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
            "ratio": [0.5, float("nan"), 2.0],
            "at": pa.array([0, 1, 2], pa.timestamp("ms", "UTC")),
            "tags": [["x"], None, []],
            "inside": [{"n": 5}, {"n": 7}, None],
        },
        row_group_size=2,
    )
    convert(open_table(str(tmp_path), "delta"))
    (add,) = adds(tmp_path)
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {"id": 1, "name": "a", "price": -2.25, "inside": {"n": 5}}
    assert stats["maxValues"] == {"id": 3, "name": "b", "price": 1.5, "inside": {"n": 7}}
    assert stats["nullCount"] == {"id": 1, "name": 1, "price": 1, "ratio": 0, "at": 0, "inside": {"n": 1}}


def test_files_without_statistics(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"id": [1]}, write_statistics=False)
    convert(open_table(str(tmp_path), "delta"))
    assert json.loads(adds(tmp_path)[0]["stats"])["minValues"] == {}


def test_types_are_those_that_tables_have(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    columns = {
        "id": pa.array([1], pa.uint16()),
        "word": pa.array(["x"]).dictionary_encode(),
        "large": pa.array(["y"], pa.large_string()),
        "old": pa.array([at.replace(tzinfo=None)], pa.timestamp("ns")),
        "raw": pa.array([b"abcd"], pa.binary(4)),
        "list": pa.array([[1]], pa.large_list(pa.int8())),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    }
    write(tmp_path / "a.parquet", columns, use_deprecated_int96_timestamps=True)
    convert(open_table(str(tmp_path), "delta"))
    table = open_table(str(tmp_path)).snapshot()
    assert table.schema.field("id").type == pa.int32()
    assert table.schema.field("old").type == pa.timestamp("us", "UTC")
    assert rows(tmp_path) == [
        {"id": 1, "word": "x", "large": "y", "old": at, "raw": b"abcd", "list": [1], "map": [("k", 1)]}
    ]


def test_times_without_a_zone_need_a_feature(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"id": [1], "at": pa.array([1], pa.timestamp("us"))})
    convert(open_table(str(tmp_path), "delta"))
    assert rows(tmp_path)[0]["at"] == datetime(1970, 1, 1, 0, 0, 0, 1)
    assert READERS["deltalake"](tmp_path).num_rows == 1


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"id": ["text"]}, "column id is int64 in .* and string in"),
        ({"id": [1], "a b": [1]}, "may not be called 'a b'"),
        ({"id": [1], "ID": [1]}, "upper and lower case"),
        ({"id": pa.array([1], pa.time64("us"))}, "has the type time64"),
        ({"id": pa.array([1], pa.timestamp("ns"))}, "column id is int64 in .* and timestamp"),
        ({"id": [1], "n": pa.array([1], pa.uint64())}, "has the type uint64"),
        ({"id": [0.5]}, r"column id is int64 in .*a\.parquet and double in .*b\.parquet"),
    ],
)
def test_what_makes_no_table_is_refused(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    write(tmp_path / "a.parquet", {"id": [1]})
    write(tmp_path / "b.parquet", columns)
    with pytest.raises(RefusedError, match=problem):
        convert(open_table(str(tmp_path), "delta"))
    assert not (tmp_path / "_delta_log").exists()


# What pandas makes of a column hangs on the values of each file.
BY_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (pa.array([1], pa.int32()), pa.array([1 << 40], pa.int64()), pa.nulls(1)),
    "ratio": (pa.array([0.5], pa.float32()), pa.array([0.1], pa.float64()), pa.nulls(1)),
    "price": tuple(pa.array([Decimal("1.25")], pa.decimal128(digits, 2)) for digits in (5, 12, 25)),
    "inside": (pa.array([{"a": 1}]), pa.array([{"b": 2}]), pa.array([{"a": None, "b": 3}])),
    "tags": (pa.array([[1]], pa.list_(pa.int16())), pa.array([[1 << 40]]), pa.array([[]], pa.list_(pa.int8()))),
    "nothing": (pa.nulls(1), pa.nulls(1), pa.nulls(1)),
}
ROWS_BY_VALUES = [
    {"id": 0, "n": 1, "ratio": 0.5, "price": Decimal("1.25"), "inside": {"a": 1, "b": None}, "tags": [1]},
    {"id": 1, "n": 1 << 40, "ratio": 0.1, "price": Decimal("1.25"), "inside": {"a": None, "b": 2}, "tags": [1 << 40]},
    {"id": 2, "n": None, "ratio": None, "price": Decimal("1.25"), "inside": {"a": None, "b": 3}, "tags": []},
]


def test_narrower_types_are_read_as_the_widest(tmp_path: Path) -> None:
    for at in range(3):
        write(tmp_path / f"{at}.parquet", {"id": [at], **{name: each[at] for name, each in BY_VALUES.items()}})
    convert(open_table(str(tmp_path), "delta"))
    wanted = [{**row, "nothing": None} for row in ROWS_BY_VALUES]
    assert rows(tmp_path) == wanted
    for reader in READERS.values():
        assert sorted(reader(tmp_path).to_pylist(), key=lambda row: row["id"]) == wanted
    types = open_table(str(tmp_path)).snapshot().schema
    assert (types.field("n").type, types.field("price").type) == (pa.int64(), pa.decimal128(25, 2))
    assert types.field("nothing").type == pa.int32(), "as in Spark"


def unfit_folder(place: Path) -> list[dict[str, Any]]:
    """Files that some reader would fail on, or read nulls from; and the rows that they hold."""
    micros = pa.timestamp("us", "UTC")
    write(place / "p=x" / "a.parquet", {"id": [1], "Name": ["x"], "at": pa.array([5], micros), "list": [["y"]]})
    write(place / "p=x" / "b.parquet", {"id": [2], "Name": pa.nulls(1), "at": pa.array([6], micros)})
    write(place / "p=y" / "c.parquet", {"id": [3], "name": ["z"], "at": pa.array([7], micros)})
    write(place / "p=y" / "d.parquet", {"id": [4], "at": pa.array([8000], pa.timestamp("ns", "UTC"))})
    write(place / "p=y" / "e.parquet", {"id": [5], "list": pa.array([[None]], pa.list_(pa.null()))})
    at = {number: datetime.fromtimestamp(0, UTC).replace(microsecond=number) for number in (5, 6, 7, 8)}
    return [
        {"id": 1, "Name": "x", "at": at[5], "list": ["y"], "p": "x"},
        {"id": 2, "Name": None, "at": at[6], "list": None, "p": "x"},
        {"id": 3, "Name": "z", "at": at[7], "list": None, "p": "y"},
        {"id": 4, "Name": None, "at": at[8], "list": None, "p": "y"},
        {"id": 5, "Name": None, "at": None, "list": [None], "p": "y"},
    ]


def test_files_that_some_reader_cannot_read_are_named(tmp_path: Path) -> None:
    unfit_folder(tmp_path)
    with pytest.raises(RefusedError, match=r"4 of 5 files") as caught:
        convert(open_table(str(tmp_path), "delta"), {"p": pa.string()})
    for said in ("b.parquet: its column Name is null instead of string", "column name is called Name", "and 1 more"):
        assert said in str(caught.value)
    assert not (tmp_path / "_delta_log").exists()


def test_files_that_some_reader_cannot_read_are_written_again(tmp_path: Path) -> None:
    wanted = unfit_folder(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    table = open_table(str(tmp_path), "delta")
    assert convert(table, {"p": pa.string()}, rewrite=True, dry_run=True).rewritten == 4
    assert {*tmp_path.rglob("*.parquet")} == {*before}
    report = convert(table, {"p": pa.string()}, rewrite=True)
    assert (report.rewritten, report.files, report.rows) == (4, 5, 5)
    assert {path: path.read_bytes() for path in before} == before
    assert rows(tmp_path) == wanted
    for reader in READERS.values():
        assert sorted(reader(tmp_path).to_pylist(), key=lambda row: row["id"]) == wanted
    assert sum("a.parquet" in add["path"] for add in adds(tmp_path)) == 1, "the one that fits keeps its place"


@pytest.mark.parametrize("problem", ["a value does not fit", "a name is not allowed", "another writer is faster"])
def test_copies_go_when_there_is_no_table_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    unfit_folder(tmp_path)
    if problem == "a value does not fit":
        write(tmp_path / "p=y" / "f.parquet", {"id": [4], "at": pa.array([1], pa.timestamp("ns", "UTC"))})
    if problem == "a name is not allowed":
        write(tmp_path / "p=y" / "f.parquet", {"a b": [4]})
    before = {*tmp_path.rglob("*.parquet")}
    table = open_table(str(tmp_path), "delta")
    if problem == "another writer is faster":
        (tmp_path / "_delta_log").mkdir()
        (tmp_path / "_delta_log" / f"{0:020}.json").write_text(
            '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}'
        )
        monkeypatch.setattr(type(table), "adopted", lambda _: None)
        monkeypatch.setattr(type(table), "version", lambda _: 0)
        assert not convert(table, {"p": pa.string()}, rewrite=True).converted
    else:
        with pytest.raises(RefusedError, match="would lose data" if "value" in problem else "may not be called"):
            convert(table, {"p": pa.string()}, rewrite=True)
    assert {*tmp_path.rglob("*.parquet")} == before


def test_folders_that_contradict_each_other_or_the_types(tmp_path: Path) -> None:
    write(tmp_path / "day=monday" / "a.parquet", {"id": [1]})
    table = open_table(str(tmp_path), "delta")
    with pytest.raises(UsageError, match="partitioned by day, but no types are given") as caught:
        convert(table)
    assert '"day STRING"' in str(caught.value.next_step)
    with pytest.raises(UsageError, match="partitioned by day, but types are given for day, shop"):
        convert(table, {**DAY, "shop": pa.string()})
    with pytest.raises(RefusedError, match="monday"):
        convert(table, DAY)
    write(tmp_path / "b.parquet", {"id": [1]})
    with pytest.raises(RefusedError, match="partitioned by nothing"):
        convert(table, {"day": pa.string()})


def test_what_is_no_parquet(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no \.parquet files"):
        convert(open_table(str(tmp_path), "delta"))
    (tmp_path / "a.parquet").write_bytes(b"text")
    with pytest.raises(RefusedError, match=r"a\.parquet.*put _ in front"):
        convert(open_table(str(tmp_path), "delta"))
    with pytest.raises(RefusedError, match="converting files"):
        convert(MemoryTable(tmp_path / "m"))


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "n=7" / "price=1.50" / "a.parquet", {"id": [1]})
    words = ["convert", str(tmp_path), "--json", "--partition-by", "price DECIMAL(5,2), n INT"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["partition_columns"] == ["n", "price"]
    assert rows(tmp_path) == [{"id": 1, "n": 7, "price": Decimal("1.50")}]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["converted"] is False
    assert main(["convert", str(tmp_path), "--partition-by", "n HUGEINT"]) == 2
