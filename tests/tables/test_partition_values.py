"""What a text means as the value of a partition column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dv_maintenance.tables.model import NULL_PARTITION, parse_partition, partition_name, value_name
from dv_maintenance.tables.partition_values import example_of, sql_type, value_of

ZONED = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")


@pytest.mark.parametrize(
    ("type_", "one", "other"),
    [
        (pa.date32(), "2026-11-01", "2026-11-1"),
        (pa.date32(), "+12026-11-01", "12026-11-01"),
        (ZONED, "2026-11-01 00:00:00Z", "2026-11-01T01:00:00.000+01:00"),
        (ZONED, "2026-11-01 00:00:00Z", "2026-11-01"),
        (ZONED, "2026-11-01 00:00:00", "2026-11-01 02:30+0230"),
        (LOCAL, "2026-11-01 10:00", "2026-11-01T10:00:00.000"),
        (pa.timestamp("ns"), "2026-11-01 10:00:00.1", "2026-11-01 10:00:00.100000000"),
        (pa.time32("ms"), "09:30", "09:30:00.000"),
        (pa.int32(), "7", "+007"),
        (pa.float64(), "0.5", "5e-1"),
        (pa.float64(), "NaN", "nan"),
        (pa.decimal128(10, 2), "1.5", "1.50"),
        (pa.decimal128(38, 10), "9" * 28, "9" * 28 + ".0000000000"),
        (pa.bool_(), "true", "TRUE"),
    ],
)
def test_texts_of_one_value(type_: pa.DataType, one: str, other: str) -> None:
    assert value_of(one, type_) == value_of(other, type_)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (pa.date32(), "2026-13-45"),
        (pa.date32(), "2026-02-29"),
        (pa.date32(), "20261101"),
        (pa.date32(), "2026-11-01 00:00:00"),
        (pa.date32(), ""),
        (ZONED, "2026-11-01 25:00:00"),
        (ZONED, "2026-11-01 10:00:61"),
        (ZONED, "yesterday"),
        (pa.time32("ms"), "9h30"),
        (pa.int8(), "128"),
        (pa.int64(), "7.0"),
        (pa.int64(), "1_000"),
        (pa.float64(), "half"),
        (pa.decimal128(4, 2), "1.005"),
        (pa.decimal128(4, 2), "100"),
        (pa.decimal128(4, 2), "NaN"),
        (pa.decimal128(4, 2), "abc"),
        (pa.bool_(), "yes"),
    ],
)
def test_texts_that_are_no_value(type_: pa.DataType, text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        value_of(text, type_)


def test_texts_of_different_values() -> None:
    assert value_of("2026-11-01 10:00:00.1", pa.timestamp("ns")) != value_of("2026-11-01 10:00:00.10000001", ZONED)
    assert value_of("de", pa.string()) != value_of("DE", pa.string())
    assert value_of(None, pa.date32()) is None


@pytest.mark.parametrize(
    "type_",
    [pa.date32(), ZONED, LOCAL, pa.time32("ms"), pa.int8(), pa.int64(), pa.float32(), pa.decimal128(9, 3), pa.bool_()],
)
def test_each_example_is_a_value(type_: pa.DataType) -> None:
    assert value_of(example_of(type_), type_) is not None
    assert sql_type(type_) != "STRING"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        NULL_PARTITION,
        "a/b",
        "a=b",
        "50%",
        "a|b",
        "a,b",
        "[x]",
        '"',
        "...",
        "Zürich",
        "\x1b[31m",
        "..",
        "\u2028",
    ],
)
def test_a_value_has_one_name_which_reads_back(value: str | None) -> None:
    name = partition_name({"p=q/r": value, "s": "1"})
    assert parse_partition(name) == {"p=q/r": value, "s": "1"}
    assert partition_name({"s": value}) == f"s={value_name(value)}"
    assert not set(value_name(value)) & set('/|,[]"\x1b\u2028')
    assert "..." not in value_name(value)


def test_names_are_readable() -> None:
    assert partition_name({"city": "Zürich", "at": "2026-11-01 10:00:00Z"}) == "city=Zürich/at=2026-11-01 10:00:00Z"
    assert value_name(NULL_PARTITION) != value_name(None) == NULL_PARTITION
