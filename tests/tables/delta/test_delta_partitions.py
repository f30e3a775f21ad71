"""Partition values: the text that is stored, and constants that a reader can use."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.dml.write import utc_text
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.delta.log.actions import Metadata
from dv_maintenance.tables.delta.log.columns import maps
from dv_maintenance.tables.delta.rows.partitions import (
    PartitionColumn,
    constant,
    constants,
    is_local_time,
    partition_columns,
    partition_names,
)
from dv_maintenance.tables.model import parse_partition

TIMESTAMP, NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")
MICROS = 1_631_099_471_000_000


@pytest.mark.parametrize(
    ("raw", "type", "value"),
    [
        (None, pa.int32(), None),
        ("", pa.string(), None),
        ("", pa.binary(), None),
        ("null", pa.string(), "null"),
        ("ä/=%", pa.string(), "ä/=%"),
        ("1", pa.int8(), 1),
        ("-007", pa.int64(), -7),
        ("+5", pa.int16(), 5),
        ("9223372036854775807", pa.int64(), 2**63 - 1),
        ("TRUE", pa.bool_(), True),
        ("false", pa.bool_(), False),
        ("1.10", pa.float64(), "1.1"),
        ("1.0E10", pa.float64(), "10000000000.0"),
        ("0.1", pa.float32(), "0.1"),
        ("NaN", pa.float32(), "NaN"),
        ("-Infinity", pa.float64(), "-Infinity"),
        ("-0.0", pa.float64(), "-0.0"),
        ("12.5", pa.decimal128(10, 2), "12.50"),
        ("1E+3", pa.decimal128(10, 0), "1000"),
        ("-0.01", pa.decimal128(3, 2), "-0.01"),
        ("9" * 28 + "." + "9" * 10, pa.decimal128(38, 10), "9" * 28 + "." + "9" * 10),
        ("2021-09-08", pa.date32(), 18878),
        ("2021-9-8", pa.date32(), 18878),
        ("1969-12-31", pa.date32(), -1),
        ("2021-09-08 11:11:11", TIMESTAMP, MICROS),
        ("2021-09-08T11:11:11.000000Z", TIMESTAMP, MICROS),
        ("2021-09-08T13:11:11+02:00", TIMESTAMP, MICROS),
        ("2021-09-08 11:11:11.5", TIMESTAMP, MICROS + 500_000),
        ("1969-12-31 23:59:59.999999", TIMESTAMP, -1),
        ("2021-09-08 11:11:11", NTZ, MICROS),
        ("2021-09-08T11:11:11.000001", NTZ, MICROS + 1),
        ("\x01ä", pa.binary(), "AcOk"),
    ],
)
def test_values(raw: str | None, type: pa.DataType, value: object) -> None:
    assert constant(raw, type) == value
    json.dumps(value)


@pytest.mark.parametrize(
    ("raw", "type"),
    [
        ("x", pa.int32()),
        ("1.0", pa.int32()),
        ("1_0", pa.int32()),
        ("128", pa.int8()),
        ("-129", pa.int8()),
        ("yes", pa.bool_()),
        ("1,5", pa.float64()),
        ("NaN", pa.decimal128(5, 2)),
        ("1.005", pa.decimal128(5, 2)),
        ("1000", pa.decimal128(5, 2)),
        ("2021-02-30", pa.date32()),
        ("today", pa.date32()),
        ("noon", TIMESTAMP),
        ("2021-13-01 00:00:00", NTZ),
        ("x", pa.list_(pa.int32())),
    ],
)
def test_no_value_of_the_type(raw: str, type: pa.DataType) -> None:
    with pytest.raises(DamagedTableError, match="is not a partition value"):
        constant(raw, type)


@pytest.mark.parametrize(
    ("raw", "type", "local"),
    [
        ("2026-01-01 00:00:00", TIMESTAMP, True),
        ("2026-01-01", TIMESTAMP, True),
        ("2026-01-01T05:00:00.000000Z", TIMESTAMP, False),
        ("2026-01-01 05:00:00+02:00", TIMESTAMP, False),
        ("2026-01-01 00:00:00", NTZ, False),
        ("2026-01-01", pa.date32(), False),
        ("", TIMESTAMP, False),
        (None, TIMESTAMP, False),
    ],
)
def test_times_that_only_a_session_knows(raw: str | None, type: pa.DataType, local: bool) -> None:
    assert is_local_time(raw, type) is local


@given(st.dates())
def test_dates(value: date) -> None:
    assert constant(value.isoformat(), pa.date32()) == (value - date(1970, 1, 1)).days


@given(st.datetimes())
def test_timestamps(value: datetime) -> None:
    micros = constant(value.isoformat(sep=" "), NTZ)
    assert pa.scalar(micros, NTZ).as_py() == value
    assert constant(value.isoformat() + "Z", TIMESTAMP) == micros
    assert constant(value.replace(tzinfo=UTC).isoformat(), TIMESTAMP) == micros


@pytest.mark.parametrize(
    ("raw", "micros"),
    # As Spark's unix_micros has them.
    [
        ("+10000-01-01T04:59:59.999999Z", 253_402_318_799_999_999),
        ("+12345-01-01T05:00:00.000000Z", 327_403_400_400_000_000),
        ("9999-12-31T23:59:59.999999-05:00", 253_402_318_799_999_999),
        ("0001-12-31T14:41:01.000000Z", -62_104_094_339_000_000),
    ],
)
def test_years_beyond_pythons(raw: str, micros: int) -> None:
    """They were refused as damage. UPDATE failed on them."""
    assert constant(raw, TIMESTAMP) == micros
    assert utc_text(pa.scalar(micros, TIMESTAMP)) in {raw, "+10000-01-01T04:59:59.999999Z"}
    assert constant("+10000-01-01", pa.date32()) == constant("9999-12-31", pa.date32()) + 1
    assert constant("0000-12-31", pa.date32()) == constant("0001-01-01", pa.date32()) - 1


@given(st.integers(-9_000 * 31_556_952, 200_000 * 31_556_952))
def test_instants_are_spelled_as_they_are_read(seconds: int) -> None:
    micros = seconds * 1_000_000
    text = utc_text(pa.scalar(micros, TIMESTAMP))
    assert constant(text, TIMESTAMP) == micros
    assert is_local_time(text, TIMESTAMP) is False


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-99999, max_value=99999))
def test_decimals(value: Decimal) -> None:
    spelling = constant(str(value), pa.decimal128(8, 3))
    assert spelling is not None
    assert Decimal(spelling) == value
    assert len(spelling.partition(".")[2]) == 3


@given(st.floats(width=32) | st.floats())
def test_floats_read_back_as_the_same_number(value: float) -> None:
    spelling = constant(str(value), pa.float64())
    assert spelling is not None
    assert float(spelling) == value or value != value


COLUMNS = (
    PartitionColumn("n", "col-1", pa.int32()),
    PartitionColumn("day", "col-2", pa.date32()),
    PartitionColumn("text", "text", pa.string()),
)
raw_numbers = st.sampled_from([None, "", "1", "01", "2", "-3"])
raw_days = st.sampled_from([None, "2026-01-02", "2026-1-2", "2025-12-31"])
raw_texts = st.sampled_from([None, "", "a", "a/b=c", "é %"])
values = st.fixed_dictionaries({"col-1": raw_numbers, "col-2": raw_days, "text": raw_texts})
odd_values = st.fixed_dictionaries(
    {}, optional={"text": raw_texts, "col-2": raw_days, "col-1": raw_numbers, "?": raw_texts}
)


@given(st.lists(values, max_size=6) | st.lists(st.none() | values | odd_values, max_size=6), st.integers(0, 6))
def test_names_of_many_files(rows: list[dict[str, str | None] | None], split: int) -> None:
    column = pa.chunked_array([maps(rows[:split]), maps(rows[split:])], pa.map_(pa.string(), pa.string()))
    names = partition_names(column, COLUMNS)
    assert names.type == pa.dictionary(pa.int32(), pa.string())
    expected = [{one.name: (row or {}).get(one.key) for one in COLUMNS} for row in rows]
    assert [parse_partition(name) for name in names.to_pylist()] == expected
    assert [list(parse_partition(name)) for name in names.to_pylist()] == [["n", "day", "text"]] * len(rows)


@given(st.lists(st.sampled_from([None, "1", "01", "2"]), max_size=5))
def test_names_of_one_column(raw: list[str | None]) -> None:
    column = pa.chunked_array([maps([{"col-1": value} for value in raw]).slice(1)], pa.map_(pa.string(), pa.string()))
    names = partition_names(column, COLUMNS[:1]).to_pylist()
    assert [parse_partition(name)["n"] for name in names] == raw[1:]


def test_only_one_text_is_one_partition() -> None:
    moments = ["2026-01-01 05:00:00", "2026-01-01T05:00:00Z", "2026-01-01T05:00:00.000000Z", None, ""]
    column = PartitionColumn("at", "at", TIMESTAMP)
    rows = pa.chunked_array([maps([{"at": each} for each in moments])])
    names = partition_names(rows, (column,)).to_pylist()
    assert [parse_partition(name)["at"] for name in names] == moments
    texts = [None, "__HIVE_DEFAULT_PARTITION__"]
    names = partition_names(pa.chunked_array([maps([{"text": each} for each in texts])]), COLUMNS[2:]).to_pylist()
    assert [parse_partition(name)["text"] for name in names] == texts


def test_no_columns_no_name() -> None:
    column = pa.chunked_array([maps([{}, {}, None])])
    assert partition_names(column, ()).to_pylist() == ["", "", ""]


def test_a_bad_value_names_the_file_the_column_and_its_type() -> None:
    column = pa.chunked_array([maps([{"col-1": "1"}]), maps([{"col-1": "one"}, {"col-1": "2"}])])
    with pytest.raises(DamagedTableError, match=r"^partition column 'n': 'one'"):
        partition_names(column, COLUMNS[:1])
    with pytest.raises(DamagedTableError, match=r"^b: partition column .* is not a partition value of type INT"):
        partition_names(column, COLUMNS[:1], pa.chunked_array([["a", "b", "c"]]))


def test_constants_of_a_file() -> None:
    assert constants({"col-1": "07", "col-2": "1970-01-03"}, COLUMNS) == {"n": 7, "day": 2, "text": None}
    assert constants([("text", "x"), ("other", "y")], COLUMNS[2:]) == {"text": "x"}


def test_columns_of_a_mapped_table() -> None:
    mapping = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    schema = {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {**mapping, "delta.columnMapping.id": 2}},
            {"name": "n", "type": "integer", "nullable": True, "metadata": mapping},
        ],
    }
    schema["fields"][0]["metadata"]["delta.columnMapping.physicalName"] = "col-0"
    metadata = Metadata(
        id="x",
        schema_string=json.dumps(schema),
        partition_columns=("n",),
        configuration={"delta.columnMapping.mode": "name"},
    )
    assert partition_columns(metadata) == (COLUMNS[0],)
