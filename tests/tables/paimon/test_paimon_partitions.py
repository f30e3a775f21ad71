"""Binary rows of keys, and the names, folders and constants of the partitions that they are."""

from __future__ import annotations

import contextlib
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.binary_rows import encode_row

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.tables.model import parse_partition
from dv_maintenance.tables.paimon.log.binary_row import Moment, decode_row
from dv_maintenance.tables.paimon.rows.partitions import Partitions, folder_text, json_value, value_text
from dv_maintenance.tables.paimon.rows.types import DataType, Field, arrow_type, parse_type
from dv_maintenance.tables.partition_values import value_of


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    return unscaled.map(lambda value: Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale)))


MOMENTS = st.builds(Moment, st.integers(-62_135_596_800_000, 253_402_300_799_999), st.integers(0, 999_999))
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "TINYINT": integers(8),
    "SMALLINT": integers(16),
    "INT": integers(32),
    "BIGINT": integers(64),
    "FLOAT": st.floats(width=32, allow_nan=False),
    "DOUBLE": st.floats(allow_nan=False),
    "DECIMAL(9, 2)": decimals(9, 2),
    "DECIMAL(18, 18)": decimals(18, 18),
    "DECIMAL(19, 0)": decimals(19, 0),
    "DECIMAL(38, 10)": decimals(38, 10),
    "DATE": st.integers(-719_162, 2_932_896),
    "TIME(3)": st.integers(0, 86_399_999),
    "CHAR(5)": st.text(max_size=5),
    "STRING": st.text(max_size=20),
    "VARCHAR(8)": st.text(max_size=8),
    "BYTES": st.binary(max_size=20),
    "BINARY(7)": st.binary(max_size=7),
    "TIMESTAMP(0)": MOMENTS.map(lambda moment: Moment(moment.millis)),
    "TIMESTAMP(3)": MOMENTS.map(lambda moment: Moment(moment.millis)),
    "TIMESTAMP(6)": MOMENTS,
    "TIMESTAMP(9)": MOMENTS,
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": MOMENTS,
    "TIMESTAMP_LTZ(3)": MOMENTS.map(lambda moment: Moment(moment.millis)),
}
ROWS = st.lists(
    st.sampled_from(sorted(TYPES)).flatmap(lambda name: st.tuples(st.just(name), st.none() | TYPES[name])), max_size=70
)


@settings(max_examples=examples(20))
@given(ROWS)
def test_rows_of_every_type(row: list[tuple[str, Any]]) -> None:
    types = [parse_type(name) for name, _ in row]
    values = tuple(value for _, value in row)
    assert decode_row(encode_row(values, types), types) == values


@pytest.mark.parametrize("name", sorted(TYPES))
def test_each_type_alone(name: str) -> None:
    @settings(max_examples=examples(25))
    @given(st.none() | TYPES[name])
    def check(value: Any) -> None:
        assert decode_row(encode_row([value], [parse_type(name)]), [parse_type(name)]) == (value,)

    check()


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_person_can_write_the_name_of_every_value(name: str) -> None:
    type_ = parse_type(name)

    @settings(max_examples=examples(10))
    @given(TYPES[name], TYPES[name])
    def check(one: Any, other: Any) -> None:
        values = [value_of(value_text(each, type_), arrow_type(type_)) for each in (one, other)]
        if value_text(one, type_) != value_text(other, type_):
            assert values[0] != values[1] or one == other

    check()


def test_bytes_that_paimon_wrote() -> None:
    text = parse_type("STRING NOT NULL")
    assert decode_row(bytes.fromhex("00000000 0000000000000000"), []) == ()
    assert decode_row(bytes.fromhex("00000001 0000000000000000 6100000000000081"), [text]) == ("a",)
    # Statistics of a golden table: x'a', 4, null, null.
    row = bytes.fromhex("00000004000c0000000000006200000000000081 0a00000000000000 0000000000000000 0000000000000000")
    types = [text, parse_type("INT"), parse_type("STRING"), parse_type("DOUBLE")]
    assert decode_row(row, types) == ("b", 10, None, None)


@settings(max_examples=examples(60))
@given(st.binary(max_size=70), st.lists(st.sampled_from(sorted(TYPES)), max_size=3), st.booleans())
def test_random_bytes_are_refused_or_a_row(data: bytes, names: list[str], counted: bool) -> None:
    types = [parse_type(name) for name in names]
    if counted:
        data = len(types).to_bytes(4, "big") + data
    with contextlib.suppress(DamagedTableError):
        found = decode_row(data, types)
        assert len(found) == len(types)
        assert counted or int.from_bytes(data[:4], "big") == len(types)


@pytest.mark.parametrize(
    ("data", "names", "why"),
    [
        ("0000", [], "truncated"),
        ("00000002 0000000000000000 00", ["INT"], "has 2 fields, not 1"),
        ("00000001 0000000000000000 00", ["INT"], "truncated"),
        ("00000001 0000000000000000 6100000000000088", ["STRING"], "cannot be in a row's slot"),
        ("00000001 0000000000000000 ff00000000000081", ["STRING"], "not UTF-8"),
        ("00000001 0000000000000000 0900000010000000", ["STRING"], "ends at byte 25 of 16"),
        ("00000001 0000000000000000 1100000000000000", ["DECIMAL(38, 0)"], "ends at byte"),
        ("00000001 0000000000000000 ffffffffffffff7f", ["DECIMAL(3, 0)"], "more than 3 digits"),
        ("00000001 0000000000000000 0000000020000000", ["TIMESTAMP(6)"], "outside its row"),
        ("00000001 0000000000000000 0000000000000000", ["VARIANT"], "a field of the unsupported type VARIANT"),
    ],
)
def test_damaged_rows(data: str, names: list[str], why: str) -> None:
    with pytest.raises(DamagedTableError, match=why):
        decode_row(bytes.fromhex(data), [parse_type(name) for name in names])


# -- names --------------------------------------------------------------------------------------------------------

DAY = 19_782  # 2024-02-29
NOON = DAY * 86_400_000 + 43_200_000


@pytest.mark.parametrize(
    ("name", "value", "text", "legacy", "constant"),
    [
        ("STRING", "a b", "a b", "a b", "a b"),
        ("INT", -7, "-7", "-7", -7),
        ("BOOLEAN", True, "true", "true", True),
        ("DATE", DAY, "2024-02-29", "19782", DAY),
        ("TIME(3)", 43_200_000, "12:00:00.0", "43200000", 43_200_000),
        ("TIME(0)", 43_200_000, "12:00:00", "43200000", 43_200_000),
        ("TIME(2)", 43_200_005, "12:00:00.00", "43200005", 43_200_005),
        ("TIME(9)", 43_200_120, "12:00:00.12", "43200120", 43_200_120),
        ("TIME(3)", 43_201_250, "12:00:01.25", "43201250", 43_201_250),
        ("DECIMAL(9, 2)", Decimal("-1.50"), "-1.50", "-1.50", "-1.50"),
        ("DECIMAL(30, 0)", Decimal(10) ** 20, "1" + "0" * 20, "1" + "0" * 20, "1" + "0" * 20),
        ("TIMESTAMP(0)", Moment(NOON), "2024-02-29 12:00:00", "2024-02-29T12:00", NOON),
        ("TIMESTAMP(3)", Moment(NOON + 1500), "2024-02-29 12:00:01.500", "2024-02-29T12:00:01.500", NOON + 1500),
        ("TIMESTAMP(6)", Moment(NOON), "2024-02-29 12:00:00.000000", "2024-02-29T12:00", NOON * 1000),
        (
            "TIMESTAMP(9)",
            Moment(NOON, 1),
            "2024-02-29 12:00:00.000000001",
            "2024-02-29T12:00:00.000000001",
            NOON * 1_000_000 + 1,
        ),
        ("TIMESTAMP(6)", Moment(-1, 5000), "1969-12-31 23:59:59.999005", "1969-12-31T23:59:59.999005", -995),
        ("BYTES", b"ab", "ab", None, "YWI="),
        ("DOUBLE", 1.0, "1.0", "1.0", "1.0"),
        ("DOUBLE", 1e7, "1.0E7", "1.0E7", "10000000.0"),
        ("DOUBLE", 1234567.125, "1234567.125", "1234567.125", "1234567.125"),
        ("DOUBLE", 0.001, "0.001", "0.001", "0.001"),
        ("DOUBLE", 0.00012, "1.2E-4", "1.2E-4", "0.00012"),
        ("DOUBLE", -0.0, "-0.0", "-0.0", "-0.0"),
        ("DOUBLE", math.inf, "Infinity", "Infinity", "inf"),
        ("DOUBLE", math.nan, "NaN", "NaN", "nan"),
        ("FLOAT", float(np.float32(0.1)), "0.1", "0.1", repr(float(np.float32(0.1)))),
        ("FLOAT", 100.0, "100.0", "100.0", "100.0"),
    ],
)
def test_how_a_value_is_spelled(name: str, value: Any, text: str, legacy: str | None, constant: Any) -> None:
    kind = parse_type(name)
    assert value_text(value, kind) == text
    assert folder_text(value, kind, legacy=False) == text
    assert json_value(value, kind) == constant
    if legacy is None:
        with pytest.raises(UnsupportedFeatureError, match="legacy-name"):
            folder_text(value, kind, legacy=True)
    else:
        assert folder_text(value, kind, legacy=True) == legacy


@pytest.mark.parametrize(
    ("name", "value"), [("DATE", 2**31 - 1), ("DATE", -(2**31)), ("TIMESTAMP(3)", Moment(2**63 - 1))]
)
def test_days_that_are_in_no_calendar(name: str, value: Any) -> None:
    with pytest.raises(DamagedTableError, match="outside the calendar"):
        value_text(value, parse_type(name))


def partitions(*names: str, **options: str) -> Partitions:
    fields = [Field(index, f"c{index}", parse_type(name)) for index, name in enumerate(names)]
    return Partitions(fields, {name.replace("_", "."): value for name, value in options.items()})


def row(kind: Partitions, *values: Any) -> bytes:
    return encode_row(values, [each.type for each in kind.fields])


def test_partitions_are_numbered_as_they_come() -> None:
    found = partitions("STRING", "DATE")
    first, second = row(found, "x/y", DAY), row(found, None, None)
    assert [found.code(each) for each in (first, second, first)] == [0, 1, 0]
    assert found.found[0].name == "c0=x%2Fy/c1=2024-02-29"
    assert found.found[0].folder == "c0=x%2Fy/c1=19782"
    assert found.found[0].constants == {"c0": "x/y", "c1": DAY}
    assert parse_partition(found.found[1].name) == {"c0": None, "c1": None}
    assert found.found[1].folder == "c0=__DEFAULT_PARTITION__/c1=__DEFAULT_PARTITION__"
    with pytest.raises(DamagedTableError):
        found.code(b"\0\0\0\1")


def test_no_partition_columns() -> None:
    found = partitions()
    assert found.code(bytes(12)) == 0
    assert (found.found[0].name, found.found[0].folder) == ("", "")


def test_options_of_folders() -> None:
    found = Partitions(
        [Field(0, "d{ay}", DataType("DATE")), Field(1, "s", DataType("VARCHAR"))],
        {"partition.legacy-name": "FALSE", "partition.default-name": "none"},
    )
    found.code(encode_row([DAY, " "], [DataType("DATE"), DataType("VARCHAR")]))
    assert found.found[0].folder == "d%7Bay%7D=2024-02-29/s=none"
    assert parse_partition(found.found[0].name)["s"] == " "


@settings(max_examples=examples(60))
@given(st.lists(st.text(min_size=1, max_size=6).filter(str.strip), min_size=2, max_size=2, unique=True))
def test_folders_are_distinct_and_below_the_table(values: list[str]) -> None:
    found = partitions("STRING")
    for value in values:
        found.code(row(found, value))
    folders = [each.folder for each in found.found]
    assert len(set(folders)) == 2
    assert all("/" not in folder and folder.startswith("c0=") for folder in folders)
