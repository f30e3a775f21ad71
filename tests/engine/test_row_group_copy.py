"""Row groups that nobody deleted from are copied: every value, every reader, every promise as if they were decoded."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parquet_lake import Lake
from support.releases import needs_int96
from test_rewrite_task import COLUMNS, read_duckdb, read_polars, read_pyarrow, rows

from dv_maintenance.engine.parquet import copier, output, row_group_copy, writer
from dv_maintenance.engine.parquet.output import ParquetOutput
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.errors import DamagedTableError, VerificationError
from dv_maintenance.files.parquet_footer import footer_bytes
from dv_maintenance.files.parquet_groups import Footer
from dv_maintenance.storage import Storage
from dv_maintenance.tables.work import ColumnStats, RewriteTask

GROUP = 100
GROUPS = 6
ROWS = GROUP * GROUPS
# In the second row group one row, the fourth as a whole.
DELETED = [GROUP + 7, *range(3 * GROUP, 4 * GROUP)]
LIVE = [row for row in range(ROWS) if row not in DELETED]


@pytest.fixture(autouse=True)
def every_row_group_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", GROUP)


def many(columns: dict[str, tuple[Any, list[Any]]], count: int = ROWS) -> pa.Table:
    """Each column's values over and over, in changing order."""
    return pa.table(
        {
            name: pa.array([values[(row * 7 + row // GROUP) % len(values)] for row in range(count)], kind)
            for name, (kind, values) in columns.items()
        }
    )


EVERYTHING = many(COLUMNS)


def footer_of(lake: Any, name: str = "") -> Footer:
    path = lake.root / name if name else lake.outputs()[0]
    with pa.memory_map(str(path)) as file:
        data = footer_bytes(file)
        assert data is not None
        return Footer(data, file.size())


PAGES: dict[str, dict[str, Any]] = {
    "checksums": {"write_page_index": True, "write_page_checksum": True, "data_page_size": 64},
    "version 2": {"data_page_version": "2.0", "store_decimal_as_integer": True, "write_page_index": True},
    "plain": {"use_dictionary": False, "store_decimal_as_integer": True},
}
CODECS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
# Each codec and each kind of page once; all pairs in the deep suite.
USUAL = {
    ("checksums", "snappy"),
    ("version 2", "zstd"),
    ("plain", "none"),
    *(("version 2", each) for each in CODECS[2:]),
}


@pytest.mark.parametrize(
    ("pages", "compression"),
    [
        pytest.param(pages, codec, marks=[] if (pages, codec) in USUAL else [pytest.mark.deep])
        for pages in PAGES
        for codec in CODECS
    ],
)
def test_every_type_codec_and_page(lake: Any, pages: str, compression: str) -> None:
    table = EVERYTHING
    source = lake.write(table, row_group_size=GROUP, compression=compression, **PAGES[pages])
    source = replace(source, dv=lake.dv(DELETED))
    result = rewrite(lake.task([source], table.schema, compression=compression))
    assert (result.rows_written, result.rows_purged) == (len(LIVE), len(DELETED))
    assert result.details["row_groups_copied"] == 4
    assert 0 < result.details["bytes_copied"] < result.bytes_read
    for read in (read_pyarrow, read_duckdb, read_polars):
        assert rows(read(str(lake.outputs()[0]))) == rows(table.take(LIVE))


ENCODINGS = {
    "delta": ("i64", "DELTA_BINARY_PACKED"),
    "delta lengths": ("text", "DELTA_LENGTH_BYTE_ARRAY"),
    "delta bytes": ("text", "DELTA_BYTE_ARRAY"),
    "split": ("f64", "BYTE_STREAM_SPLIT"),
    "rle": ("flag", "RLE"),
}


@pytest.mark.parametrize(("column", "encoding"), ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_encoding(lake: Any, column: str, encoding: str, version: str) -> None:
    table = EVERYTHING.select([column])
    options = {"use_dictionary": False, "column_encoding": {column: encoding}, "data_page_version": version}
    source = lake.write(table, row_group_size=GROUP, **options)
    result = rewrite(lake.task([replace(source, dv=lake.dv(DELETED))], table.schema))
    assert result.details["row_groups_copied"] == 4
    kept = pq.read_metadata(lake.outputs()[0])
    # The first two as one row group: the second lost a row, and is decoded.
    assert encoding in kept.row_group(0).column(0).encodings
    for read in (read_pyarrow, read_duckdb, read_polars):
        assert rows(read(str(lake.outputs()[0]))) == rows(table.take(LIVE))


def by_duckdb(table: pa.Table, path: str) -> None:
    with duckdb.connect() as session:
        session.register("source", table)
        session.sql(f"COPY source TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE {GROUP})")


def by_polars(table: pa.Table, path: str) -> None:
    pl.from_arrow(table).write_parquet(path, row_group_size=GROUP, compression="snappy")  # type: ignore[union-attr]


def by_delta_rs(table: pa.Table, path: str) -> None:
    import shutil
    from pathlib import Path

    from deltalake import WriterProperties, write_deltalake

    folder = path + ".table"
    write_deltalake(folder, table, writer_properties=WriterProperties(max_row_group_size=GROUP))
    (file,) = Path(folder).glob("*.parquet")
    shutil.move(file, path)


PLAIN = ["i32", "i64", "f64", "flag", "d9", "d18", "text", "day", "ts", "ntz", "st", "list", "deep"]


@pytest.mark.parametrize("write", [by_duckdb, by_polars, by_delta_rs], ids=lambda write: write.__name__[3:])
def test_files_of_other_writers(lake: Any, write: Any) -> None:
    count = 2048 * 3 if write is by_duckdb else ROWS
    table = many({name: COLUMNS[name] for name in PLAIN}, count)
    write(table, str(lake.root / "1.parquet"))
    before = pq.read_metadata(lake.root / "1.parquet")
    sizes = [before.row_group(group).num_rows for group in range(before.num_row_groups)]
    assert len(sizes) > 2
    source = replace(lake.source("1.parquet", count), dv=lake.dv([sizes[0] + 1]))
    stats = (*((name,) for name in PLAIN if name != "st"), ("st", "x"), ("st", "y", "z"))
    result = rewrite(lake.task([source], table.schema, stats_columns=stats, compression_required=False))
    assert result.details["row_groups_copied"] == len(sizes) - 1
    live = table.take([row for row in range(count) if row != sizes[0] + 1])
    for read in (read_pyarrow, read_duckdb, read_polars):
        assert rows(read(str(lake.outputs()[0]))) == rows(live)
    assert result.outputs[0].stats == decoded_stats(lake, source, table.schema, stats)


def decoded_stats(lake: Any, source: Any, schema: pa.Schema, stats: Any) -> tuple[ColumnStats, ...]:
    """What a rewrite reports that decodes every row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_group_copy, "is_large", lambda *_: False)
        result = rewrite(lake.task([source], schema, stats_columns=stats, output_uri=lake.uri("decoded")))
    assert not result.details["row_groups_copied"]
    return result.outputs[0].stats


ALL_STATS = (*((name,) for name in COLUMNS if name not in ("st", "bytes")), ("st", "x"), ("st", "y", "z"))


@settings(max_examples=examples(6), deadline=None)
@given(
    deleted=st.sets(st.integers(0, ROWS - 1), max_size=9),
    groups=st.sets(st.integers(0, GROUPS - 1)),
    target=st.sampled_from([20_000, 128 << 20]),
)
def test_what_is_reported_is_what_decoding_reports(
    tmp_path_factory: Any, deleted: set[int], groups: set[int], target: int
) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    gone = sorted(deleted | {row for group in groups for row in range(group * GROUP, (group + 1) * GROUP)})
    table = EVERYTHING
    first = lake.write(table, "1.parquet", row_group_size=GROUP, store_decimal_as_integer=True, data_page_size=200)
    second = lake.write(table, "2.parquet", row_group_size=GROUP, store_decimal_as_integer=True)
    sources = [replace(first, dv=lake.dv(gone)) if gone else first, second]
    result = rewrite(lake.task(sources, table.schema, stats_columns=ALL_STATS, target_bytes=target))
    live = [row for row in range(ROWS) if row not in set(gone)]
    assert result.details["row_groups_copied"] == GROUPS + sum(
        all(row not in set(gone) for row in range(group * GROUP, (group + 1) * GROUP)) for group in range(GROUPS)
    )
    expected = pa.concat_tables([table.take(pa.array(live, pa.int64())), table])
    assert rows(pa.concat_tables(lake.read(each.uri) for each in result.outputs)) == rows(expected)
    if len(result.outputs) == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_group_copy, "is_large", lambda *_: False)
            plain = rewrite(lake.task(sources, table.schema, stats_columns=ALL_STATS, output_uri=lake.uri("other")))
        assert result.outputs[0].stats == plain.outputs[0].stats


# -- promises ----------------------------------------------------------------------------------------------------


def chunks(lake: Any, leaf: int) -> list[Any]:
    footer = pq.read_metadata(lake.outputs()[0])
    return [footer.row_group(group).column(leaf) for group in range(footer.num_row_groups)]


def test_nan_has_no_bounds_in_a_copy_either(lake: Any) -> None:
    values = [1.0] * GROUP + [2.0, math.nan] * (GROUP // 2)
    table = pa.table({"d": values, "s": [{"l": [value]} for value in values]})
    source = lake.write(table, row_group_size=GROUP, write_page_index=True)
    result = rewrite(lake.task([source], table.schema, stats_columns=(("d",), ("s", "l"))))
    assert result.details["row_groups_copied"] == 2
    for leaf in (0, 1):
        found = chunks(lake, leaf)
        assert [chunk.statistics.has_min_max for chunk in found] == [True, False]
        assert [chunk.has_column_index for chunk in found] == [True, False]
    assert result.outputs[0].stats == (ColumnStats(("d",), 0), ColumnStats(("s", "l"), 0))


@pytest.mark.parametrize(("value", "bound"), [(0.0, -0.0), (-0.0, None)])
def test_zeros(lake: Any, value: float, bound: float | None) -> None:
    table = pa.table({"d": [value, 5.0] * GROUP})
    result = rewrite(lake.task([lake.write(table, row_group_size=GROUP)], table.schema, stats_columns=(("d",),)))
    assert result.details["row_groups_copied"] == 2
    [stats] = result.outputs[0].stats
    assert repr(stats.minimum) == repr(bound)
    # The claim that the dictionary has all values is gone: parquet-java finds no 0.0 in one with -0.0.
    assert not has_encoding_stats(lake)


def has_encoding_stats(lake: Any) -> bool:
    from dv_maintenance.files.thrift_compact import STRUCT, Struct

    found = []
    for group in footer_of(lake).groups:
        for chunk in Struct.parse(group).list(1, STRUCT):
            meta = Struct.parse(chunk).struct(3)
            assert meta is not None
            found.append(13 in meta.fields)
    assert len(set(found)) == 1
    return found[0]


def test_the_claims_of_other_columns_stay(lake: Any) -> None:
    table = pa.table({"i": [1, 2] * GROUP})
    rewrite(lake.task([lake.write(table, row_group_size=GROUP)], table.schema))
    assert has_encoding_stats(lake)


@needs_int96
def test_bounds_of_instants_that_the_footer_lacks(lake: Any) -> None:
    """INT96 has no statistics; the log gets them nevertheless."""
    first = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    times = [None if row % 9 == 0 else first + dt.timedelta(seconds=row) for row in range(ROWS)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC")), "i": range(ROWS)})
    source = lake.write(table, row_group_size=GROUP, use_deprecated_int96_timestamps=True)
    source = replace(source, dv=lake.dv(DELETED))
    columns = (("t",), ("i",))
    result = rewrite(lake.task([source], table.schema, stats_columns=columns))
    assert result.details["row_groups_copied"] == 4
    assert {chunk.physical_type for chunk in chunks(lake, 0)} == {"INT96"}
    for read in (read_duckdb, read_polars):
        found = read(str(lake.outputs()[0])).column("t").cast(pa.timestamp("us", "UTC"))
        assert found.to_pylist() == table.take(LIVE).column("t").to_pylist()
    assert result.outputs[0].stats == decoded_stats(lake, source, table.schema, columns)


@pytest.mark.parametrize("nullable", [True, False])
def test_required_columns_stay_required(lake: Any, nullable: bool) -> None:
    inner = pa.list_(pa.field("element", pa.int64(), nullable=nullable))
    schema = pa.schema(
        [
            pa.field("i", pa.int64(), nullable=nullable),
            pa.field("s", pa.struct([pa.field("l", inner, nullable=nullable)]), nullable=nullable),
        ]
    )
    table = pa.table({"i": range(ROWS), "s": [{"l": [row]} for row in range(ROWS)]}, schema)
    source = replace(lake.write(table, row_group_size=GROUP), dv=lake.dv(DELETED))
    result = rewrite(lake.task([source], schema))
    assert result.details["row_groups_copied"] == 4
    assert rows(lake.read(result.outputs[0].uri)) == rows(table.take(LIVE))
    assert pq.read_schema(lake.outputs()[0]).field("i").nullable == nullable


def test_a_required_column_takes_no_nulls_of_another_file(lake: Any) -> None:
    strict = pa.schema([pa.field("i", pa.int64(), nullable=False)])
    one = pa.table({"i": range(GROUP)}, strict)
    two = pa.table({"i": pa.array([None, *range(GROUP - 1)], pa.int64())})
    sources = [lake.write(one, "1.parquet"), lake.write(two, "2.parquet"), lake.write(one, "3.parquet")]
    result = rewrite(lake.task(sources, two.schema))
    found = [row for output in result.outputs for row in lake.read(output.uri).column("i").to_pylist()]
    assert found == [*range(GROUP), None, *range(GROUP - 1), *range(GROUP)]
    # One file more, not one for each source: the others are decoded.
    assert (len(result.outputs), result.details["row_groups_copied"]) == (2, 1)


# -- what is decoded ---------------------------------------------------------------------------------------------

INTS = pa.table({"i": pa.array(range(ROWS), pa.int64()), "s": [str(row) for row in range(ROWS)]})


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (INTS.schema.append(pa.field("new", pa.int8())), {}),
        (INTS.schema.remove(0), {}),
        (pa.schema([INTS.schema.field("s"), INTS.schema.field("i")]), {}),
        (INTS.schema.set(0, pa.field("i", pa.int64(), metadata={"PARQUET:field_id": "1"})), {}),
        (INTS.schema, {"compression": "zstd"}),
        (INTS.schema, {"order_by": (("i",),)}),
        (INTS.schema, {"target_bytes": 500}),
    ],
    ids=["a new column", "one dropped", "another order", "field ids", "another codec", "ordered", "small files"],
)
def test_bytes_that_would_not_mean_the_same(lake: Any, schema: pa.Schema, options: dict[str, Any]) -> None:
    source = lake.write(INTS, row_group_size=GROUP)
    result = rewrite(lake.task([source], schema, **options))
    assert (result.details["row_groups_copied"], result.rows_written) == (0, ROWS)


def test_columns_that_changed_names(lake: Any) -> None:
    """Both are texts: only what the table calls them says which is which."""
    table = pa.table({"a": ["1"] * GROUP, "b": ["2"] * GROUP})
    schema = pa.schema(
        [
            pa.field("a", pa.string(), metadata={"dvm:source": "b"}),
            pa.field("b", pa.string(), metadata={"dvm:source": "a"}),
        ]
    )
    result = rewrite(lake.task([lake.write(table)], schema))
    assert result.details["row_groups_copied"] == 0
    assert lake.read(result.outputs[0].uri).slice(0, 1).to_pylist() == [{"a": "2", "b": "1"}]


def test_wider_types(lake: Any) -> None:
    table = pa.table({"i": pa.array(range(GROUP), pa.int32())})
    result = rewrite(lake.task([lake.write(table)], pa.schema([("i", pa.int64())])))
    assert result.details["row_groups_copied"] == 0
    assert lake.read(result.outputs[0].uri).schema.field("i").type == pa.int64()


def test_unknown_writers(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lake.write(INTS, row_group_size=GROUP)
    monkeypatch.setattr(Footer, "created_by", "parquet-mr version 1.8.1 (build x)")
    assert rewrite(lake.task([source], INTS.schema)).details["row_groups_copied"] == 0


@pytest.mark.parametrize("large", [True, False])
def test_small_row_groups_are_merged(lake: Any, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", GROUP if large else GROUP + 1)
    source = lake.write(INTS, row_group_size=GROUP)
    result = rewrite(lake.task([source, source], INTS.schema))
    assert result.details["row_groups_copied"] == (2 * GROUPS if large else 0)
    assert len(footer_of(lake)) == (2 * GROUPS if large else 1)


def test_dates_of_old_calendars_are_converted(lake: Any) -> None:
    days = [dt.date(1500, 3, 1)] * GROUP + [dt.date(2020, 1, 1)] * GROUP
    sink = lake.root / "1.parquet"
    with pq.ParquetWriter(sink, pa.schema([("d", pa.date32())])) as writer:
        writer.add_key_value_metadata({b"org.apache.spark.version": b"2.4.8"})
        writer.write_table(pa.table({"d": days}), row_group_size=GROUP)
    source = lake.source("1.parquet", 2 * GROUP)
    result = rewrite(lake.task([source], pa.schema([("d", pa.date32())])))
    assert result.details["row_groups_copied"] == 1
    # The same label in the other calendar.
    expected = [dt.date(1500, 2, 20)] * GROUP + [dt.date(2020, 1, 1)] * GROUP
    assert lake.read(result.outputs[0].uri).column("d").to_pylist() == expected


# -- damage and mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["page", "header", "cut off"])
def test_a_damaged_source_is_named(lake: Any, what: str) -> None:
    source = lake.write(INTS, row_group_size=GROUP, write_page_checksum=True, use_dictionary=False, compression="none")
    path = lake.root / "in put.parquet"
    data = bytearray(path.read_bytes())
    part = footer_of(lake, path.name).group(2).parts[0]
    start, length = part.pages
    if what == "page":
        data[start + length - 9] ^= 1
    elif what == "header":
        data[start] ^= 0xFF
    else:
        del data[start + 20 : start + 60]
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedTableError, match=r"in%20put\.parquet"):
        rewrite(lake.task([replace(source, size=len(data))], INTS.schema, compression="none"))
    assert not lake.outputs()


def test_mistakes_of_the_copier_are_found(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lake.write(INTS, row_group_size=GROUP)
    copy = ParquetOutput.copy
    framed = output.framed

    def wrong(self: Any, wanted: Any) -> Any:
        return copy(self, replace(wanted, group=Footer(footer_bytes(wanted.source.file) or b"", 1 << 30).group(0)))

    def doubled(self: Any, wanted: Any) -> Any:
        copy(self, wanted)
        return copy(self, wanted)

    def lost(self: Any, wanted: Any) -> Any:
        if wanted.number != 3:
            return copy(self, wanted)
        self._floats.append(wanted.specials)
        return copier.CopiedGroup(b"", (), 0)

    def shifted(data: bytes) -> bytes:
        from dv_maintenance.files.parquet_groups import composed
        from dv_maintenance.files.thrift_compact import I64, STRUCT, Struct, Value, list_of, number

        groups = [Struct.parse(group) for group in Footer(data, 1 << 30).groups]
        chunk_list = groups[2].list(1, STRUCT)
        chunk = Struct.parse(chunk_list[1])
        meta = chunk.struct(3)
        assert meta is not None
        for id_ in (9, 11):
            if (old := meta.integer(id_)) is not None:
                meta.replace(id_, number(I64, old + 1))
        chunk.replace(3, Value(STRUCT, meta.encode()))
        chunk_list[1] = chunk.encode()
        groups[2].replace(1, list_of(STRUCT, chunk_list))
        return framed(composed(data, [group.encode() for group in groups], {}))

    faults: list[tuple[Any, str, Any]] = [
        (ParquetOutput, "copy", wrong),
        (ParquetOutput, "copy", doubled),
        (ParquetOutput, "copy", lost),
        (output, "framed", shifted),
    ]
    for owner, name, fault in faults:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault)
            with pytest.raises(VerificationError):
                rewrite(lake.task([source], INTS.schema))
        assert not lake.outputs()
    assert rewrite(lake.task([source], INTS.schema)).details["row_groups_copied"] == GROUPS


@pytest.mark.parametrize("on_disk", [True, False], ids=["disk", "store"])
def test_bits_that_change_in_the_new_file_are_found(lake: Any, monkeypatch: pytest.MonkeyPatch, on_disk: bool) -> None:
    monkeypatch.setattr(Storage, "on_disk", lambda *_: on_disk)
    source = lake.write(INTS, row_group_size=GROUP)
    (lake.root / "out put").mkdir()
    close = writer.close_sink

    def flipped(*args: Any) -> Any:
        info = close(*args)
        (path,) = lake.outputs()
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(bytes(data))
        return info

    monkeypatch.setattr(writer, "close_sink", flipped)
    with pytest.raises(VerificationError, match=r"row group 0 .* its bytes are others"):
        rewrite(lake.task([source], INTS.schema))
    assert not lake.outputs()


def test_decimals_in_every_form(lake: Any) -> None:
    values = [Decimal("1.25"), None, Decimal("-99.99"), Decimal("0.00")]
    for number, (precision, integers) in enumerate([(9, True), (18, True), (9, False), (18, False), (38, True)]):
        table = many({"d": (pa.decimal128(precision, 2), values)})
        source = lake.write(table, f"{number}.parquet", row_group_size=GROUP, store_decimal_as_integer=integers)
        task = lake.task(
            [replace(source, dv=lake.dv(DELETED))],
            table.schema,
            output_uri=lake.uri(f"out {number}"),
            stats_columns=(("d",),),
        )
        result = rewrite(task)
        assert result.details["row_groups_copied"] == 4
        path = str(lake.root / f"out {number}" / result.outputs[0].uri.rpartition("/")[2])
        for read in (read_pyarrow, read_duckdb, read_polars):
            assert rows(read(path)) == rows(table.take(LIVE))
        assert result.outputs[0].stats == (
            ColumnStats(("d",), table.take(LIVE).column("d").null_count, "-99.99", "1.25"),
        )


def test_long_texts_without_bounds(lake: Any) -> None:
    table = pa.table({"s": [f"{row:04}" + "é" * 3000 for row in range(2 * GROUP)]})
    source = lake.write(table, row_group_size=GROUP)
    result = rewrite(lake.task([source], table.schema, stats_columns=(("s",),)))
    assert result.details["row_groups_copied"] == 2
    assert result.outputs[0].stats == decoded_stats(lake, source, table.schema, (("s",),))
    assert np.array_equal(lake.read(result.outputs[0].uri).column("s").to_numpy(), table.column("s").to_numpy())


@needs_int96
def test_instants_keep_the_writer_that_spark_asks_for(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's int96TimestampConversion shifts INT96 in files that parquet-java did not write."""
    first = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    table = pa.table({"t": pa.array([first] * ROWS, pa.timestamp("us", "UTC"))})
    source = lake.write(table, row_group_size=GROUP, use_deprecated_int96_timestamps=True)
    created = "parquet-mr version 1.15.2 (build x)"
    with monkeypatch.context() as patch:
        patch.setattr(Footer, "created_by", created)
        result = rewrite(lake.task([replace(source, dv=lake.dv(DELETED))], table.schema))
    assert (result.details["row_groups_copied"], pq.read_metadata(lake.outputs()[0]).created_by) == (4, created)


def test_stores_that_are_no_disk(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of a store sends bytes later than it gets them."""
    monkeypatch.setattr(Storage, "on_disk", lambda *_: False)
    monkeypatch.setattr(copier, "_REMOTE_BLOCK", 1 << 16)
    table = many({"i": (pa.int64(), list(range(1009))), "d": (pa.float64(), [0.5, math.nan])}, 200_000)
    source = lake.write(table, row_group_size=50_000, use_dictionary=False, compression="none")
    source = replace(source, dv=lake.dv([1]))
    (lake.root / "out put").mkdir()
    result = rewrite(lake.task([source], table.schema, compression="none"))
    assert result.details["row_groups_copied"] == 3
    left = pa.concat_tables([table.slice(0, 1), table.slice(2)])
    assert lake.read(result.outputs[0].uri).column("i").to_pylist() == left.column("i").to_pylist()


def test_nothing_is_copied_beyond_the_end_of_a_file(lake: Any) -> None:
    """Files of given numbers of rows, whatever their size."""
    table = EVERYTHING.select(["i64", "text"])
    source = replace(lake.write(table, row_group_size=GROUP), dv=lake.dv(DELETED))
    counts = (GROUP // 2, 1, len(LIVE) - GROUP // 2 - 1)
    task = replace(lake.task([source], table.schema), file_rows=counts, target_bytes=1)
    result = rewrite(RewriteTask.from_json(json.loads(json.dumps(task.to_json()))))
    assert result.details["row_groups_copied"] == 0
    assert tuple(output.rows for output in result.outputs) == counts
    found = [
        row for output in result.outputs for row in rows(read_pyarrow(unquote(output.uri.removeprefix("file://"))))
    ]
    assert found == rows(table.take(LIVE))
    with pytest.raises(VerificationError, match="more rows than its new files should have"):
        rewrite(replace(task, file_rows=counts[:2]))
