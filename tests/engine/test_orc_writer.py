"""New ORC files: every value as it was, whatever it is nested in; their sizes, statistics and refusals."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import orc
from support.releases import OLD_PYARROW, needs_orc_timestamps, skip_without_orc_timestamps

from dv_maintenance.engine.bounds import BoundsCollector
from dv_maintenance.engine.orc import writer as orc_writer
from dv_maintenance.engine.orc.reader import range_is_checked
from dv_maintenance.engine.parquet.int96 import marked, stored_batch
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.engine.scan import scan
from dv_maintenance.engine.writer import RollingWriter
from dv_maintenance.errors import DamagedTableError, MissingSoftwareError, RefusedError, VerificationError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.work import ColumnStats, OutputFile, RewriteTask, ScanTask, SourceFile

EVE = datetime(1969, 12, 31, 23, 59, 59, 999)
CODECS = ["none", "zlib", "snappy", "lz4", "zstd"]


def local(output: OutputFile) -> Path:
    return Path(unquote(output.uri.removeprefix("file://")))


def task(folder: Path, schema: pa.Schema, kind: str = "orc", **options: Any) -> RewriteTask:
    defaults: dict[str, Any] = {"target_bytes": 128 << 20, "compression": "zstd"}
    return RewriteTask(
        id="t",
        scan=ScanTask((), schema),
        output_uri=f"file://{folder}",
        **{**defaults, **options},
        file_name=f"data-{{uuid}}-0.{kind}",
        format=kind,
    )


def written(work: RewriteTask, *batches: pa.RecordBatch) -> tuple[OutputFile, ...]:
    writer = RollingWriter(work, work.scan.schema, Storage(work.output_uri))
    for batch in batches:
        writer.write(batch, None, {})
    return writer.close()


def read(outputs: tuple[OutputFile, ...], schema: pa.Schema) -> pa.Table:
    sources = tuple(SourceFile(FileKey(each.uri), each.uri, each.size, each.rows, format="orc") for each in outputs)
    return pa.Table.from_batches(scan(ScanTask(sources, schema)), schema)


# -- values -------------------------------------------------------------------------------------------------------

# But for fractions of the last second before 1970, which ORC's libraries lose.
MOMENTS = st.datetimes().filter(lambda moment: not EVE < moment < datetime(1970, 1, 1))
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    (pa.decimal128(38, 0), st.sampled_from([Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(-128), Decimal(128)])),
    (pa.string(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.date32(), st.dates()),
    (pa.time32("ms"), st.times().map(lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000))),
    (
        pa.timestamp("ms"),
        st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(lambda t: t.replace(microsecond=0)),
    ),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
]

Column = tuple[pa.DataType, st.SearchStrategy[Any]]


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def nested(inner: st.SearchStrategy[Column]) -> st.SearchStrategy[Column]:
    def lists(of: Column) -> Column:
        return pa.list_(of[0]), st.lists(maybe(of[1]), max_size=3)

    def structs(of: list[Column]) -> Column:
        fields = [(f"f{at}", type_) for at, (type_, _) in enumerate(of)]
        return pa.struct(fields), st.fixed_dictionaries({f"f{at}": maybe(values) for at, (_, values) in enumerate(of)})

    def maps(of: tuple[Column, Column]) -> Column:
        (key, keys), (item, items) = of
        return pa.map_(key, item), st.lists(st.tuples(keys, maybe(items)), max_size=3, unique_by=lambda pair: pair[0])

    keys = st.sampled_from([PLAIN[3], PLAIN[7], PLAIN[9], PLAIN[11]])
    return inner.map(lists) | st.lists(inner, min_size=1, max_size=3).map(structs) | st.tuples(keys, inner).map(maps)


COLUMNS = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=4)


@needs_orc_timestamps
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_value_comes_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(COLUMNS, min_size=1, max_size=3))
    schema = pa.schema([(f"c{at}", type_) for at, (type_, _) in enumerate(chosen)])
    rows = st.fixed_dictionaries({f"c{at}": maybe(values) for at, (_, values) in enumerate(chosen)})
    found = data.draw(st.lists(rows, min_size=1, max_size=12))
    table = pa.Table.from_pylist(found, schema)
    [whole] = table.to_batches()
    # As parts of something larger, which is how batches come.
    cut = data.draw(st.integers(0, len(found)))
    work = task(tmp_path_factory.mktemp("t"), schema, compression=data.draw(st.sampled_from(["zstd", "snappy"])))
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr(orc_writer, "_needs_rows", lambda _: True)
        outputs = written(work, whole.slice(0, cut), whole.slice(cut))
    assert sum(each.rows for each in outputs) == len(found)
    assert read(outputs, schema).to_pylist() == table.to_pylist()


def holds_time(type_: pa.DataType) -> bool:
    return "timestamp" in str(type_)


OF_EVERY_AGE = [
    datetime(1, 1, 1),
    datetime(1500, 2, 28, 1, 2, 3, 4),
    datetime(1900, 1, 1, 0, 0, 0, 500_000),
    datetime(1969, 12, 31, 23, 59, 59),
    datetime(1969, 12, 31, 23, 59, 59, 999),
    datetime(1969, 12, 31, 23, 59, 58, 999_999),
    datetime(1970, 1, 1),
    None,
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
]


@needs_orc_timestamps
@pytest.mark.parametrize("codec", CODECS)
def test_timestamps_of_every_age(tmp_path: Path, codec: str) -> None:
    """Arrow writes a file until it meets one that it can't write, and pyorc the next."""
    kinds = {"us": pa.timestamp("us"), "ms": pa.timestamp("ms", "UTC"), "in": pa.struct([("t", pa.timestamp("us"))])}
    plain = [datetime(2020, 1, 1), None]

    def batch(moments: list[datetime | None]) -> pa.RecordBatch:
        millis = [each and each.replace(microsecond=each.microsecond // 1000 * 1000, tzinfo=UTC) for each in moments]
        values = [moments, millis, [{"t": each} for each in moments]]
        arrays = [pa.array(each, kind) for each, kind in zip(values, kinds.values(), strict=True)]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(range(len(moments)))], names=[*kinds, "n"])

    parts = [batch(plain), batch(OF_EVERY_AGE), batch(plain)]
    outputs = written(task(tmp_path, parts[0].schema, compression=codec), *parts)
    assert [each.rows for each in outputs] == [2, 11]
    expected = pa.Table.from_batches(parts)
    assert read(outputs, expected.schema) == expected
    assert read(outputs, pa.schema([expected.schema.field("n")])) == expected.select(["n"])


def test_rows_without_fields(tmp_path: Path) -> None:
    kind = pa.struct([])
    batch = pa.record_batch([pa.array([{}, None], kind), pa.array([[{}, None], None], pa.list_(kind))], ["e", "l"])
    assert read(written(task(tmp_path, batch.schema), batch), batch.schema).to_pylist() == batch.to_pylist()


@needs_orc_timestamps
def test_rows_without_fields_beside_timestamps(tmp_path: Path) -> None:
    """None of them is null: then Arrow takes their number from their fields."""
    kind = pa.struct([("t", pa.timestamp("ns")), ("e", pa.struct([]))])
    batch = pa.record_batch([pa.array([{"t": 1, "e": {}}, {"t": 2, "e": {}}], kind)], ["c"])
    schema = marked(batch.schema)
    outputs = written(task(tmp_path, schema), stored_batch(batch, schema))
    assert read(outputs, batch.schema) == pa.Table.from_batches([batch])


def test_lists_as_keys(tmp_path: Path) -> None:
    kind = pa.map_(pa.list_(LOSSY), LOSSY)
    value = [[([{"s": {"a": 1}}, None], {"s": None}), ([], None)], None, []]
    batch = pa.record_batch([pa.array(value, kind)], ["c"])
    assert read(written(task(tmp_path, batch.schema), batch), batch.schema).to_pylist() == batch.to_pylist()


@needs_orc_timestamps
def test_files_of_a_number_of_rows_stay_whole(tmp_path: Path) -> None:
    moments = pa.array([datetime(2020, 1, 1), datetime(1600, 1, 1)] * 3, pa.timestamp("us"))
    [batch] = pa.table({"t": moments}).to_batches()
    outputs = written(task(tmp_path, batch.schema, file_rows=(4, 2)), batch.slice(0, 1), batch.slice(1))
    assert [each.rows for each in outputs] == [4, 2]
    assert read(outputs, batch.schema) == pa.Table.from_batches([batch])


def test_without_pyorc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = pa.record_batch([pa.array([datetime(1600, 1, 1)], pa.timestamp("us"))], ["t"])
    lossy = pa.record_batch([pa.array([[{"s": {"a": 1}}]], pa.list_(LOSSY))], ["c"])
    skip_without_orc_timestamps("orc")
    outputs = written(task(tmp_path, old.schema), old)
    monkeypatch.setitem(sys.modules, "pyorc", None)
    for batch in (old, lossy):
        with pytest.raises(MissingSoftwareError, match="pyorc") as raised:
            written(task(tmp_path, batch.schema), batch)
        assert "dv-maintenance[orc]" in str(raised.value.next_step)
    with pytest.raises(RefusedError, match="pyorc"):
        read(outputs, old.schema)


@needs_orc_timestamps
def test_timestamps_with_nanoseconds_of_old_times_are_not_read(tmp_path: Path) -> None:
    by_pyorc = pytest.importorskip("pyorc")
    path = tmp_path / "t.orc"

    class Exact(by_pyorc.converters.ORCConverter):  # type: ignore[misc, name-defined]
        @staticmethod
        def from_orc(*parts: Any) -> Any:
            return parts

        @staticmethod
        def to_orc(value: Any, zone: Any) -> Any:
            del zone
            return value

    with path.open("wb") as file:
        kinds = {by_pyorc.TypeKind.TIMESTAMP: Exact}
        with by_pyorc.Writer(file, by_pyorc.Struct(t=by_pyorc.Timestamp()), converters=kinds) as writer:
            writer.write(((-(1 << 34), 1),))
    output = OutputFile(path.as_uri(), path.stat().st_size, 1, 0, ())
    with pytest.raises(RefusedError, match="for which Arrow has no type"):
        read((output,), pa.schema([("t", pa.timestamp("us"))]))


def test_slices_of_rows_that_are_null(tmp_path: Path) -> None:
    pair = pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.int32())]))])
    values = [{"x": 1, "y": {"z": 1}}, None, {"x": None, "y": None}, {"x": None, "y": {"z": None}}]
    [batch] = pa.table({"c": pa.array(values, pair)}).to_batches()
    outputs = written(task(tmp_path, batch.schema), *(batch.slice(at, 1) for at in range(4)))
    assert read(outputs, batch.schema).to_pylist() == batch.to_pylist()


def test_values_below_null_structs(tmp_path: Path) -> None:
    """They are not the next row's."""
    inner = pa.StructArray.from_arrays([pa.array([7, 1, 8, 2], pa.int8())], ["x"], mask=pa.array([True, False] * 2))
    outer = pa.StructArray.from_arrays([inner], ["inner"], mask=pa.array([False, False, True, False]))
    batch = pa.record_batch([pa.StructArray.from_arrays([outer], ["outer"])], ["c"])
    assert read(written(task(tmp_path, batch.schema), batch), batch.schema).to_pylist() == batch.to_pylist()


def test_files_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a library of the format writes wrongly is not a rewrite."""

    def wrong(_: Any, batch: pa.RecordBatch) -> list[pa.Array]:
        return [each.fill_null(0) for each in batch.columns]

    batch = pa.record_batch([pa.array([1, None, 3])], ["c"])
    monkeypatch.setattr(orc_writer.OrcFile, "_in_form", wrong)
    with pytest.raises(VerificationError, match="are not the 3 that were written to it"):
        written(task(tmp_path, batch.schema), batch)


def test_what_is_below_null_is_not_written(tmp_path: Path) -> None:
    missing = pa.array([False, True, False])
    inner = pa.StructArray.from_arrays([pa.array([1, 2, 3])], ["x"], mask=missing)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array([1, 2, 3]), mask=missing)
    batch = pa.record_batch([inner, lists], ["s", "l"])
    expected = [{"s": {"x": 1}, "l": [1]}, {"s": None, "l": None}, {"s": {"x": 3}, "l": [3]}]
    assert read(written(task(tmp_path, batch.schema), batch), batch.schema).to_pylist() == expected


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(tmp_path: Path, codec: str) -> None:
    table = pa.table({"a": ["same"] * 5000})
    [output] = outputs = written(task(tmp_path, table.schema, compression=codec), *table.to_batches())
    assert read(outputs, table.schema) == table
    names = {"none": "UNCOMPRESSED"}
    assert orc.ORCFile(local(output)).compression == names.get(codec, codec.upper())


# -- files --------------------------------------------------------------------------------------------------------


def noise(rows: int) -> pa.Table:
    return pa.table(
        {"a": pa.array(memoryview(os.urandom(8 * rows)).cast("q").tolist()), "b": [f"v{at % 9}" for at in range(rows)]}
    )


def test_files_of_about_the_size_wanted(lake: Any) -> None:
    table, target = noise(100_000), 200_000
    work = lake.task([lake.write(table, row_group_size=10_000)], table.schema, target_bytes=target)
    work = replace(work, format="orc", file_name="data-{uuid}-0.orc", compression="zstd")
    result = rewrite(RewriteTask.from_json(work.to_json()))
    *full, last = result.outputs
    assert len(full) >= 2
    assert all(target <= output.size < 1.8 * target for output in full)
    assert last.size < 1.8 * target
    assert read(result.outputs, table.schema) == table
    assert all(output.size == local(output).stat().st_size for output in result.outputs)
    assert {path.suffix for path in lake.outputs()} == {".orc"}


def test_a_failure_leaves_no_file_behind(lake: Any) -> None:
    table = noise(20_000)
    sources = [lake.write(table, "1.parquet"), replace(lake.write(table, "2.parquet"), rows=1)]
    work = lake.task(sources, table.schema, target_bytes=100_000)
    with pytest.raises(DamagedTableError, match=r"2\.parquet"):
        rewrite(replace(work, format="orc", file_name="data-{uuid}", compression="zstd"))
    assert lake.outputs() == []


# -- statistics ---------------------------------------------------------------------------------------------------

BOUNDS: list[tuple[pa.DataType, list[Any], Any, Any]] = [
    (pa.int8(), [3, -128, 5], -128, 5),
    (pa.bool_(), [True, True], True, True),
    (pa.float64(), [-0.0, 0.0], -0.0, 0.0),
    (pa.float64(), [0.0], -0.0, 0.0),
    (pa.float32(), [0.5, float("nan")], None, None),
    (pa.float64(), [float("-inf"), 1.0], None, 1.0),
    (pa.string(), ["b", "", "\U0010ffff", "\uffff"], "", "\U0010ffff"),
    (pa.string(), ["x" * 5000], None, None),
    (pa.binary(), [b"x"], None, None),
    (
        pa.decimal128(38, 10),
        [Decimal("-9999999999999999999999999999.9999999999"), Decimal("1E-10")],
        *("-" + "9" * 28 + "." + "9" * 10, "0.0000000001"),
    ),
    (pa.date32(), [date(1, 1, 1), date(1970, 1, 2)], -719162, 1),
    (pa.timestamp("ms"), [datetime(1969, 12, 31, 23, 59, 59, 999000)], -1, -1),
    (pa.timestamp("us", "UTC"), [datetime(1970, 1, 1, 0, 0, 0, 1, UTC)], 1, 1),
    (pa.time32("ms"), [time(1)], None, None),
    (pa.list_(pa.int32()), [[1], []], None, None),
    (pa.int32(), [], None, None),
]


@pytest.mark.parametrize(("type_", "values", "least", "greatest"), BOUNDS)
def test_bounds(type_: pa.DataType, values: list[Any], least: Any, greatest: Any) -> None:
    schema = pa.schema([("c", type_)])
    collector = BoundsCollector(schema, [("c",)])
    for value in [*values, None, None]:
        collector.add(pa.record_batch([pa.array([value], type_)], schema=schema))
    assert repr(collector.found()) == repr((ColumnStats(("c",), 2, least, greatest),))


# -- refused ------------------------------------------------------------------------------------------------------

LOSSY = pa.struct([("s", pa.struct([("a", pa.int32())]))])
REFUSED: list[tuple[str, pa.Array, str]] = [
    ("orc", pa.array([datetime(1969, 12, 31, 23, 59, 59, 999000)], pa.timestamp("ms")), "in the last second before"),
    ("orc", pa.array([[None, datetime(1969, 12, 31, 23, 59, 59, 1000)]], pa.list_(pa.timestamp("us"))), "in the last"),
    ("orc", pa.array([{"self": {"a": [{"b": 1}]}}]), "called self"),
    ("orc", pa.array([[(1, {"s": {"a": 1}}), (1, None)]], pa.map_(pa.int64(), LOSSY)), "a key twice"),
    ("orc", pa.array([[([(1, 2)], None)]], pa.map_(pa.map_(pa.int64(), pa.int64()), LOSSY)), "maps in a key"),
    ("csv", pa.array([1]), "the format 'csv'"),
]


@pytest.mark.parametrize(("kind", "values", "why"), REFUSED)
def test_what_can_not_be_written_exactly(tmp_path: Path, kind: str, values: pa.Array, why: str) -> None:
    batch = pa.record_batch([values], ["c"])
    if holds_time(values.type):
        skip_without_orc_timestamps(kind)
    with pytest.raises(RefusedError, match=why):
        written(task(tmp_path, batch.schema, kind), batch)


def test_a_codec_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="'brotli'"):
        written(task(tmp_path, noise(0).schema, compression="brotli"))


def test_an_old_pyarrow_writes_no_timestamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert range_is_checked() is not OLD_PYARROW
    monkeypatch.setattr("dv_maintenance.engine.orc.writer.range_is_checked", lambda: False)
    with pytest.raises(RefusedError, match="pyarrow 26"):
        written(task(tmp_path, pa.schema([("t", pa.timestamp("ms"))])))
    written(task(tmp_path, pa.schema([("t", pa.date32())])))
