"""Row groups with NaN have no bounds for Spark to trust; all others keep theirs."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.releases import OLD_PYARROW

from dv_maintenance.engine.parquet.output import ParquetOutput
from dv_maintenance.engine.parquet.special_floats import SpecialFloats
from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.errors import VerificationError
from dv_maintenance.files.parquet_footer import encoded
from dv_maintenance.files.thrift_compact import STRUCT, Struct
from dv_maintenance.maintenance.read import write_rows

NAN = math.nan
NESTED = pa.schema(
    [
        ("i", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.struct([("t", pa.string()), ("x", pa.float32()), ("y", pa.struct([("z", pa.float64())]))])),
        ("l", pa.list_(pa.float64())),
        ("m", pa.map_(pa.float64(), pa.struct([("v", pa.float32())]))),
        ("e", pa.list_(pa.float32(), 2)),
    ]
)
EMPTY = {"i": 1, "d": None, "s": None, "l": None, "m": None, "e": None}


def bounded(footer: Any) -> list[list[str]]:
    """Per row group the columns that have bounds; by the index of their pages the same ones have some."""
    found = []
    for number in range(footer.num_row_groups):
        columns = [footer.row_group(number).column(leaf) for leaf in range(footer.num_columns)]
        for column in columns:
            assert column.has_column_index == column.statistics.has_min_max or not column.has_column_index
        found.append([column.path_in_schema for column in columns if column.statistics.has_min_max])
    return found


@pytest.mark.parametrize(
    ("row", "leaves"),
    [
        ({"d": NAN}, {1}),
        ({"d": math.inf}, set()),
        ({"s": {"t": "NaN", "x": NAN, "y": None}}, {3}),
        ({"s": {"t": "NaN", "x": None, "y": {"z": NAN}}}, {4}),
        ({"l": [1.0, None, NAN]}, {5}),
        ({"m": [(NAN, {"v": 1.0})]}, {6}),
        ({"m": [(1.0, None), (2.0, {"v": NAN})]}, {7}),
        ({"e": [1.0, NAN]}, {8}),
        ({"e": [1.0, 2.0], "l": [], "m": []}, set()),
    ],
    ids=str,
)
@pytest.mark.parametrize("around", [0, 1, 3])
def test_nan_is_found_wherever_it_is(row: dict[str, Any], leaves: set[int], around: int) -> None:
    rows = [EMPTY] * around + [{**EMPTY, **row}] + [EMPTY] * around
    batch = pa.RecordBatch.from_pylist(rows, NESTED)
    for part, expected in ((batch, leaves), (batch.slice(around), leaves), (batch.slice(around + 1), set())):
        found = SpecialFloats(NESTED)
        found.add(part)
        assert found.nan == expected


def test_what_a_null_hides_is_no_nan() -> None:
    """Arrow's arrays may have anything where they are null; a file has nothing there."""
    hidden, none = pa.array([NAN, 1.0]), pa.array([True, False])
    struct = pa.StructArray.from_arrays([hidden], ["x"], mask=none)
    items = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), hidden, mask=none)
    masked = pa.Array.from_buffers(pa.float64(), 2, [pa.py_buffer(b"\x02"), hidden.buffers()[1]])
    batch = pa.record_batch([struct, items, masked], names=["s", "l", "d"])
    found = SpecialFloats(batch.schema)
    found.add(batch)
    assert found.nan == set()


@settings(max_examples=examples(60))
@given(
    values=st.lists(st.none() | st.sampled_from([NAN, math.inf, -math.inf, 0.0, -0.0, 1.5]), min_size=1, max_size=12),
    group=st.integers(1, 5),
    type=st.sampled_from([pa.float16(), pa.float32(), pa.float64()]),
)
def test_groups_without_nan_keep_their_bounds(values: list[float | None], group: int, type: pa.DataType) -> None:
    numbers = [None if value is None else np.float16(value) for value in values] if type == pa.float16() else values
    rows = pa.record_batch([pa.array(numbers, type), pa.array(range(len(values)))], names=["d", "i"])
    sink = pa.BufferOutputStream()
    output = ParquetOutput(sink, rows.schema, write_page_index=True)
    groups = [rows.slice(start, group) for start in range(0, len(values), group)]
    for each in groups:
        output.write([each.slice(0, 1), each.slice(1)])
    output.close()
    file = pa.BufferReader(sink.getvalue())
    footer = pq.read_metadata(file)
    for number, each in enumerate(groups):
        found = [value for value in each.column("d").to_pylist() if value is not None]
        claimed = bool(found) and not any(math.isnan(value) for value in found)
        column = footer.row_group(number).column(0)
        assert column.statistics.has_min_max is claimed
        assert column.has_column_index is (claimed or not found)
        assert column.statistics.null_count == each.column("d").null_count
        assert footer.row_group(number).column(1).statistics.has_min_max
        if claimed and type != pa.float16():
            least, greatest = column.statistics.min, column.statistics.max
            if OLD_PYARROW and any(map(math.isinf, found)):
                # There the bound of nothing but infinities is the largest number.
                assert least <= min(found) <= max(found) <= greatest
            else:
                assert (least, greatest) == (min(found), max(found))
            # Readers need not take the two zeros for equal.
            assert least or math.copysign(1, least) == -1
            assert greatest or math.copysign(1, greatest) == 1
    assert repr(pq.read_table(file).column("d").to_pylist()) == repr(rows.column("d").to_pylist())


def test_new_files_of_a_rewrite(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dv_maintenance.engine.parquet.writer.ROW_GROUP_ROWS", 3)
    monkeypatch.setattr("dv_maintenance.engine.parquet.footer.MAX_BATCH_ROWS", 2)
    table = pa.table({"d": [1.0, 2.0, 3.0, 4.0, NAN, 6.0, 7.0], "s": [{"x": 1.0}] * 6 + [{"x": NAN}], "i": range(7)})
    rewrite(lake.task([lake.write(table)], table.schema, stats_columns=(("d",), ("i",))))
    [path] = lake.outputs()
    assert bounded(pq.read_metadata(path)) == [["d", "s.x", "i"], ["i"]]
    assert repr(pq.read_table(path).to_pylist()) == repr(table.to_pylist())


@pytest.mark.parametrize(
    ("target", "stand_in", "says"),
    [
        ("parquet.output.without_claims", lambda footer, *_: footer, "bounds for s.x, which contains NaN"),
        ("parquet.output.ParquetOutput.close", lambda output, _: output._writer.close(), "calendar keys"),
    ],
    ids=["bounds", "calendar"],
)
def test_a_footer_that_would_mislead_is_not_committed(
    lake: Any, monkeypatch: pytest.MonkeyPatch, target: str, stand_in: Any, says: str
) -> None:
    monkeypatch.setattr(f"dv_maintenance.engine.{target}", stand_in)
    table = pa.table({"s": [{"x": NAN if "bounds" in says else 1.0}, {"x": 2.0}]})
    with pytest.raises(VerificationError, match=says):
        rewrite(lake.task([lake.write(table)], table.schema))
    assert lake.outputs() == []


def test_rows_read_into_a_parquet_file(tmp_path: Any) -> None:
    table = pa.table({"d": [1.0, NAN], "l": pa.array([[1.0], [2.0]], pa.large_list(pa.float64()))})
    write_rows(table.schema, table.to_batches(), str(tmp_path / "out.parquet"))
    assert bounded(pq.read_metadata(tmp_path / "out.parquet")) == [["l.list.element"]]
    write_rows(table.schema, [], str(tmp_path / "none.parquet"))
    assert pq.read_table(tmp_path / "none.parquet").equals(table.slice(0, 0))


def test_dictionaries_with_a_zero_are_not_all_there_is() -> None:
    """parquet-java looks a filter's value up in a dictionary that by the encoding statistics has every value."""
    rows = pa.record_batch({"zero": [-0.0, 1.0], "one": [1.0, None], "text": ["-0.0", ""]})
    sink = pa.BufferOutputStream()
    output = ParquetOutput(sink, rows.schema)
    output.write([rows])
    output.write([pa.record_batch({"zero": [2.0], "one": [0.0], "text": ["0"]})])
    output.close()
    footer = Struct.parse(encoded(pq.read_metadata(pa.BufferReader(sink.getvalue()))))
    claimed = []
    for group in footer.list(4, STRUCT):
        metas = [Struct.parse(chunk).struct(3) for chunk in Struct.parse(group).list(1, STRUCT)]
        claimed.append([meta is not None and 13 in meta.fields for meta in metas])
    assert claimed == [[False, True, True], [True, False, True]]
    assert pq.read_table(pa.BufferReader(sink.getvalue())).num_rows == 3


def test_dictionaries_of_long_decimals_are_not_all_there_is() -> None:
    """Paimon looks for the fewest bytes that a decimal has, and a dictionary holds them filled up."""
    values = [Decimal(0), Decimal(9 * 10**20), None]
    columns = {"long": pa.array(values, pa.decimal128(38, 0)), "short": pa.array([1, 2, 2], pa.decimal128(18, 0))}
    rows = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    output = ParquetOutput(sink, rows.schema, store_decimal_as_integer=True)
    output.write([rows])
    output.close()
    read = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    (group,) = Struct.parse(encoded(read.metadata)).list(4, STRUCT)
    metas = [Struct.parse(chunk).struct(3) for chunk in Struct.parse(group).list(1, STRUCT)]
    assert [meta is not None and 13 in meta.fields for meta in metas] == [False, True]
    assert read.metadata.row_group(0).column(0).statistics.has_min_max
    assert read.read().equals(pa.table(columns))


@pytest.mark.parametrize("have_order", [True, False])
def test_bytes_that_readers_order_otherwise_have_no_bounds(have_order: bool) -> None:
    sink = pa.BufferOutputStream()
    rows = pa.record_batch({"b": [b"\xff", b"\x01"] * 50, "t": ["a", "b"] * 50, "d": [Decimal(1), Decimal(2)] * 50})
    output = ParquetOutput(sink, rows.schema, bytes_have_order=have_order, store_decimal_as_integer=True)
    output.write([rows])
    output.close()
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    assert file.read().to_pylist() == rows.to_pylist()
    assert bounded(file.metadata) == [["b", "t", "d"] if have_order else ["t", "d"]]
    complete = [file.metadata.row_group(0).column(leaf).has_dictionary_page for leaf in range(2)]
    assert complete == [True, True], "it is still there for those who decode with it"
    assert file.metadata.row_group(0).column(0).statistics.null_count == 0
