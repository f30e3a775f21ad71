"""One task from source files to new files: content, layout, failure."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine.parquet import writer as parquet_writer
from dv_maintenance.engine.rewrite import rewrite, rewrite_retrying
from dv_maintenance.errors import (
    DamagedTableError,
    RefusedError,
    StorageError,
    StorageUnavailableError,
    VerificationError,
)
from dv_maintenance.storage import Storage
from dv_maintenance.tables.work import RewriteResult, RewriteTask

ROWS = 1000
UTC = dt.UTC
DAY = dt.date(2024, 5, 6)
NOON = dt.datetime(2024, 5, 6, 12, 0, 0, 123456)

COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "i8": (pa.int8(), [1, None, -128]),
    "i16": (pa.int16(), [1, None, -(2**15)]),
    "i32": (pa.int32(), [1, None, -(2**31)]),
    "i64": (pa.int64(), [1, None, -(2**63)]),
    "f32": (pa.float32(), [1.5, None, float("-inf")]),
    "f64": (pa.float64(), [1.5, None, -0.0]),
    "flag": (pa.bool_(), [True, None, False]),
    "d9": (pa.decimal128(9, 2), [Decimal("1.25"), None, Decimal("-9999999.99")]),
    "d18": (pa.decimal128(18, 0), [Decimal(1), None, Decimal(-(10**18) + 1)]),
    "d38": (pa.decimal128(38, 10), [Decimal("1.25"), None, Decimal("-1234567890123456789012345678.0123456789")]),
    "text": (pa.string(), ["é", None, ""]),
    "bytes": (pa.binary(), [b"\xff", None, b""]),
    "day": (pa.date32(), [DAY, None, dt.date(1, 1, 1)]),
    "ts": (pa.timestamp("us", tz="UTC"), [NOON.replace(tzinfo=UTC), None, dt.datetime(1, 1, 1, tzinfo=UTC)]),
    "ntz": (pa.timestamp("us"), [NOON, None, dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "st": (
        pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.string())]))]),
        [{"x": 1, "y": {"z": "a"}}, None, {"x": None, "y": None}],
    ),
    "list": (pa.list_(pa.int32()), [[1, None], None, []]),
    "deep": (pa.list_(pa.struct([("k", pa.list_(pa.string()))])), [[{"k": ["a", None]}, None], None, [{"k": None}]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], None, []]),
}
EVERYTHING = pa.table({name: pa.array(values, kind) for name, (kind, values) in COLUMNS.items()})


def read_pyarrow(path: str) -> pa.Table:
    return pq.read_table(path)


def read_duckdb(path: str) -> pa.Table:
    import duckdb

    with duckdb.connect() as session:
        return session.sql("SELECT * FROM read_parquet($path)", params={"path": path}).to_arrow_table()


def read_polars(path: str) -> pa.Table:
    import polars as pl

    return pl.read_parquet(path).to_arrow()


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """Plain values: maps as readers without a map type show them, every time zone named UTC."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return {"key": value[0], "value": value[1]}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return value.astimezone(UTC) if isinstance(value, dt.datetime) and value.tzinfo else value

    return [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]


@pytest.mark.parametrize("reader", [read_pyarrow, read_duckdb, read_polars], ids=lambda reader: reader.__name__[5:])
@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "none"])
def test_every_type_arrives_unchanged(lake: Any, reader: Any, compression: str) -> None:
    repeated = pa.concat_tables([EVERYTHING] * 5)
    source = replace(lake.write(repeated, row_group_size=4), dv=lake.dv([0, 7]))
    result = rewrite(lake.task([source], EVERYTHING.schema, compression=compression))
    [output] = result.outputs
    live = repeated.take([i for i in range(15) if i not in {0, 7}])
    assert rows(reader(str(lake.outputs()[0]))) == rows(live)
    assert (output.rows, result.rows_read, result.rows_written, result.rows_purged) == (13, 15, 13, 2)
    assert (result.source_rows, result.source_purged, result.bytes_read) == ((15,), (2,), source.size)


def test_sources_of_different_ages_become_one_file(lake: Any) -> None:
    old = pa.table({"id": pa.array([1, 2], pa.int16()), "gone": ["x", "y"]})
    new = pa.table({"id": pa.array([3, 4], pa.int64()), "s": [{"a": 1}, None]})
    schema = pa.schema(
        [("id", pa.int64()), ("s", pa.struct([("a", pa.int64()), ("b", pa.string())])), ("p", pa.int8())]
    )
    first = replace(lake.write(old, "1.parquet"), constants={"p": 7})
    second = replace(lake.write(new, "2.parquet"), dv=lake.dv([0]), constants={"p": 8})
    [output] = rewrite(lake.task([first, second], schema)).outputs
    assert lake.read(output.uri).to_pylist() == [
        {"id": 1, "s": None, "p": 7},
        {"id": 2, "s": None, "p": 7},
        {"id": 4, "s": None, "p": 8},
    ]


def test_files_are_written_as_spark_writes_them(lake: Any) -> None:
    struct = pa.struct(
        [pa.field("x", pa.int32(), nullable=False, metadata={"PARQUET:field_id": "2", "dvm:source": "x"})]
    )
    element = pa.field("element", pa.string(), metadata={"PARQUET:field_id": "4"})
    schema = pa.schema(
        [
            pa.field("s", struct, nullable=False, metadata={"PARQUET:field_id": "1", "dvm:source": "s"}),
            pa.field("l", pa.list_(element), metadata={"PARQUET:field_id": "3"}),
            pa.field("m", pa.map_(pa.string(), pa.int64()), metadata={"PARQUET:field_id": "5"}),
            pa.field("t", pa.timestamp("us", tz="UTC"), metadata={"PARQUET:field_id": "6"}),
            pa.field("n", pa.timestamp("us")),
            pa.field("d", pa.decimal128(9, 2)),
        ]
    )
    table = pa.table(
        {
            "s": pa.array([{"x": 1}], pa.struct([("x", pa.int8())])),
            "l": [["a"]],
            "m": pa.array([[("k", 1)]], schema.field("m").type),
        }
    )
    [output] = rewrite(lake.task([lake.write(table)], schema)).outputs
    footer = pq.read_metadata(lake.outputs()[0])
    text = str(footer.schema)
    for line in (
        "optional group field_id=1 s {",
        "optional int32 field_id=2 x;",
        "optional group field_id=3 l (List) {",
        "repeated group field_id=-1 list {",
        "optional binary field_id=4 element (String);",
        "optional group field_id=5 m (Map) {",
        "required binary field_id=-1 key (String);",
        "optional int64 field_id=6 t (Timestamp(isAdjustedToUTC=true, timeUnit=microseconds",
        "optional int64 field_id=-1 n (Timestamp(isAdjustedToUTC=false, timeUnit=microseconds",
        "optional int32 field_id=-1 d (Decimal(precision=9, scale=2));",
    ):
        assert line in text
    # No Arrow schema, no notes of ours: nothing but Parquet's own types.
    assert footer.metadata == {b"org.apache.spark.version": b"3.1.0"}
    assert output.uri.startswith(lake.uri("out put/part-"))
    assert output.uri.endswith(".snappy.parquet")
    assert output.size == lake.outputs()[0].stat().st_size


def test_a_null_where_the_schema_says_not_null_is_not_moved(lake: Any) -> None:
    """Queries that skip its file succeed, and would fail on a file that it shares."""
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    source = lake.write(pa.table({"a": [1, None]}))
    with pytest.raises(DamagedTableError, match=f"column a is NOT NULL, but {source.uri} has rows in which it is null"):
        rewrite(lake.task([source], schema))
    assert not lake.outputs()
    [output] = rewrite(lake.task([replace(source, dv=lake.dv([1]))], schema)).outputs
    assert lake.read(output.uri)["a"].to_pylist() == [1]


@pytest.mark.parametrize("positions", [range(ROWS), None], ids=["all deleted", "no rows"])
def test_no_rows_no_file(lake: Any, positions: Any) -> None:
    table = pa.table({"a": range(ROWS if positions else 0)})
    source = replace(lake.write(table), dv=lake.dv(positions) if positions else None)
    result = rewrite(lake.task([source], table.schema))
    assert (result.outputs, result.rows_purged, lake.outputs()) == ((), table.num_rows, [])


def test_encodings_follow_the_sources(lake: Any) -> None:
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "country": [f"country {i}" for i in rng.integers(0, 50, 20_000)],
            "name": [f"name {i}" for i in rng.integers(0, 2**60, 20_000)],
            "st": [{"x": int(i)} for i in rng.integers(0, 9, 20_000)],
        }
    )
    # In row groups that are too small to be copied.
    rewrite(lake.task([lake.write(table, row_group_size=2000)], table.schema))
    group = pq.read_metadata(lake.outputs()[0]).row_group(0)
    assert {group.column(i).path_in_schema: group.column(i).has_dictionary_page for i in range(3)} == {
        "country": True,
        "name": False,
        "st.x": True,
    }


# -- sizes -------------------------------------------------------------------------------------------------------


def noise(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({"id": np.arange(rows), "x": rng.normal(size=rows)})


@pytest.mark.parametrize("target", [50_000, 200_000, 500_000])
def test_files_roll_at_the_target(lake: Any, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.engine.parquet.footer.MAX_BATCH_ROWS", 1000)
    table = noise(100_000)
    result = rewrite(lake.task([lake.write(table)], table.schema, target_bytes=target))
    *full, last = result.outputs
    assert len(full) >= 1_000_000 // target // 2
    assert all(target <= output.size < 1.5 * target for output in full)
    assert last.size < 1.5 * target
    # In order, nothing lost between two files.
    assert pa.concat_tables(lake.read(output.uri) for output in result.outputs).equals(table)
    assert len({output.uri for output in result.outputs}) == len(lake.outputs())


def test_row_groups_are_bounded_by_bytes_and_rows(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.engine.parquet.footer.MAX_BATCH_ROWS", 1000)
    table = noise(20_000)

    def group_rows(**limits: int) -> list[int]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in limits.items():
                patch.setattr(parquet_writer, name, value)
            [output] = rewrite(lake.task([lake.write(table, row_group_size=1000)], table.schema)).outputs
        footer = pq.read_metadata(output.uri.removeprefix("file://").replace("%20", " "))
        return [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]

    assert group_rows() == [20_000]
    assert group_rows(ROW_GROUP_ROWS=8000) == [8000, 8000, 4000]
    assert group_rows(ROW_GROUP_BYTES=16 * 6000) == [6000, 6000, 6000, 2000]


@pytest.mark.parametrize("row_groups", [2, 8])
def test_what_is_held_does_not_grow_with_the_file(lake: Any, monkeypatch: pytest.MonkeyPatch, row_groups: int) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 1 << 20)
    monkeypatch.setattr("dv_maintenance.engine.parquet.footer.BATCH_BYTES", 1 << 18)
    table = noise(row_groups << 18)
    source = lake.write(table, row_group_size=1 << 18, use_dictionary=False)
    schema = table.schema
    before, peak = pa.total_allocated_bytes(), 0
    flush = parquet_writer.ParquetFile._flush

    def watched(self: Any) -> None:
        nonlocal peak
        peak = max(peak, pa.total_allocated_bytes() - before)
        flush(self)

    monkeypatch.setattr(parquet_writer.ParquetFile, "_flush", watched)
    rewrite(lake.task([source], schema))
    stored = 4 << 20  # a row group of the source; before 23 Arrow kept what it had read of its pages besides
    pages = stored if int(pa.__version__.split(".")[0]) < 23 else 0
    # And what is written: a row group and a batch.
    assert 0 < peak < stored + pages + (1 << 20) + (1 << 18)


# -- failure -----------------------------------------------------------------------------------------------------


def test_a_failure_leaves_no_file_behind(lake: Any) -> None:
    table = noise(50_000)
    good = lake.write(table, "1.parquet")
    bad = replace(lake.write(table, "2.parquet"), rows=1)
    with pytest.raises(DamagedTableError, match=r"2\.parquet"):
        rewrite(lake.task([good, bad], table.schema, target_bytes=100_000))
    assert lake.outputs() == []


def test_an_interrupted_task_leaves_no_file_behind(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = noise(50_000)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parquet_writer.ParquetFile, "finish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rewrite(lake.task([lake.write(table)], table.schema))
    assert lake.outputs() == []


def test_rows_lost_on_the_way_are_found(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = noise(1000)
    source = replace(lake.write(table), dv=lake.dv([1, 2, 3]))
    monkeypatch.setattr("dv_maintenance.dv.DeletionVector.range_cardinality", lambda *_: 0)
    with pytest.raises(VerificationError, match="read 1000 rows, purged 3 and wrote 1000"):
        rewrite(lake.task([source], table.schema))
    assert lake.outputs() == []


def test_a_file_that_does_not_arrive_whole_is_found(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Storage.head
    monkeypatch.setattr(Storage, "head", lambda self, path: replace(head(self, path), size=1))
    with pytest.raises(VerificationError, match="has 1 bytes"):
        rewrite(lake.task([lake.write(noise(10))], noise(0).schema))
    assert lake.outputs() == []


def test_an_unknown_codec_is_refused_before_anything_is_read(lake: Any) -> None:
    source = replace(lake.write(noise(1)), uri=lake.uri("gone.parquet"))
    with pytest.raises(RefusedError, match="'lzma'"):
        rewrite(lake.task([source], noise(0).schema, compression="lzma"))


def test_every_attempt_writes_files_of_its_own(lake: Any) -> None:
    table = noise(10)
    task = lake.task([lake.write(table)], table.schema)
    names = {rewrite(task).outputs[0].uri for _ in range(3)}
    assert len(names) == len(lake.outputs()) == 3


def test_trouble_with_the_storage_is_tried_again(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = noise(10)
    task = lake.task([lake.write(table)], table.schema)
    failures = iter([StorageUnavailableError("slow down"), StorageUnavailableError("slow down")])
    open_output = Storage.open_output

    def shaky(self: Storage, path: str) -> Any:
        for failure in failures:
            raise failure
        return open_output(self, path)

    monkeypatch.setattr("dv_maintenance.engine.rewrite._PAUSE_SECONDS", 0)
    monkeypatch.setattr(Storage, "open_output", shaky)
    assert rewrite_retrying(task).rows_written == 10
    failures = iter([StorageUnavailableError("slow down")] * 9)
    with pytest.raises(StorageError):
        rewrite_retrying(task)
    assert len(list(failures)) == 6


def test_a_full_disk_is_a_storage_error(lake: Any) -> None:
    (lake.root / "out put").write_text("a file where the folder should be")
    with pytest.raises(StorageError):
        rewrite(lake.task([lake.write(noise(10))], noise(0).schema))


def test_a_task_survives_its_json(lake: Any) -> None:
    source = replace(lake.write(EVERYTHING), dv=lake.dv([0]), constants={"p": None})
    columns = tuple((name,) for name in COLUMNS if name != "st")
    task = lake.task([source], EVERYTHING.schema, stats_columns=columns)
    assert RewriteTask.from_json(task.to_json()) == task
    result = rewrite(task)
    assert RewriteResult.from_json(result.to_json()) == result


def test_threads_do_not_share_anything(lake: Any) -> None:
    table = noise(20_000)
    tasks = [lake.task([lake.write(table)], table.schema, id=str(i)) for i in range(4)]
    done: list[int] = []
    threads = [threading.Thread(target=lambda task=task: done.append(rewrite(task).rows_written)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [20_000] * 4


CONSTANTS = {"i64": 5, "f64": "NaN", "d9": "1.5", "text": "é", "bytes": "/w==", "day": 1, "ts": 1, "flag": True}


def test_a_task_imports_neither_pandas_nor_spark(lake: Any) -> None:
    source = replace(lake.write(EVERYTHING), dv=lake.dv([0]), constants=CONSTANTS)
    columns = tuple((name,) for name in COLUMNS if name != "st")
    task = lake.task([source], EVERYTHING.schema, stats_columns=columns)
    program = (
        "import json, sys\n"
        "from dv_maintenance.engine.rewrite import rewrite\n"
        "from dv_maintenance.tables.work import RewriteTask\n"
        "assert rewrite(RewriteTask.from_json(json.load(sys.stdin))).rows_written == 2\n"
        "print([name for name in ('pandas', 'pyspark', 'dagster') if name in sys.modules])\n"
    )
    body = json.dumps(task.to_json())
    done = subprocess.run([sys.executable, "-c", program], input=body, capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "[]")
