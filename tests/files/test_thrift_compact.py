"""Thrift's compact protocol: what is not looked at stays as it is; damage is named, whatever it is."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.files.parquet_footer import encoded
from dv_maintenance.files.thrift_compact import BINARY, STRUCT, Struct, ThriftError, Value, binary, elements, list_of

# Of every kind: true, byte, i32, double, binary, list of i16, set of booleans, map, struct, UUID, empty map.
VALUES = {
    1: Value(1, b""),
    2: Value(3, b"\x07"),
    3: Value(5, b"\xff\x01"),
    4: Value(7, b"12345678"),
    5: Value(8, b"\x03abc"),
    6: Value(9, b"\x24\x02\x04"),
    7: Value(10, b"\x21\x01\x02"),
    8: Value(11, b"\x01\x85\x01k\x06"),
    9: Value(12, b"\x15\x02\x1c\x11\x00\x00"),
    10: Value(13, b"0123456789abcdef"),
    11: Value(11, b"\x00"),
    12: Value(2, b""),
}


@given(st.dictionaries(st.integers(-(2**15), 2**15 - 1), st.sampled_from(list(VALUES.values())), max_size=6))
def test_fields_of_every_kind_come_back(fields: dict[int, Value]) -> None:
    data = Struct(fields).encode()
    assert Struct.parse(data).fields == fields
    assert Struct.parse(data).encode() == data
    assert Struct.parse_first(data + b"more") == (Struct(fields), len(data))


@given(st.lists(st.binary(max_size=3), max_size=40))
def test_lists_of_any_length(texts: list[bytes]) -> None:
    value = list_of(BINARY, [bytes([len(text)]) + text for text in texts])
    assert [binary(Value(BINARY, item)) for item in elements(value, BINARY)] == texts
    assert Struct.parse(Struct({3: value}).encode()).fields == {3: value}


def test_the_footers_of_arrow_come_back_to_the_byte() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"a": [1.5, None], "s": [{"b": ["x"]}, None]})
    pq.write_table(table, sink, write_page_index=True)
    footer = encoded(pq.read_metadata(pa.BufferReader(sink.getvalue())))
    assert Struct.parse(footer).encode() == footer


@given(st.binary(max_size=60))
def test_any_bytes_are_a_struct_or_an_error(data: bytes) -> None:
    try:
        found, end = Struct.parse_first(data)
    except ThriftError:
        return
    assert Struct.parse(found.encode()) == found
    assert 0 < end <= len(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut off"),
        (b"\x15", "cut off"),
        (b"\x18\x05abc\x00", "cut off"),
        (b"\x15\x02\x05\x02\x02\x00", "twice"),
        (b"\x1e\x00", "unknown type 14"),
        (b"\x15" + b"\xff" * 20, "too many bytes"),
        (b"\x18" + b"\xff" * 20, "too many bytes"),
        (b"\x05\xff\xff\xff\x7f\x00\x00", "is not a field id"),
        (b"\x19\xf5\xff\xff\xff\xff\x07\x00", "cut off"),
        (b"\x1c" * 1000, "too deep"),
        (b"\x19" + b"\x19" * 1000, "too deep"),
        (b"\x00\x00", "follow"),
    ],
    ids=[
        "nothing",
        "no value",
        "short text",
        "twice",
        "type",
        "number",
        "length",
        "id",
        "list",
        "deep",
        "lists",
        "more",
    ],
)
def test_damage(data: bytes, message: str) -> None:
    with pytest.raises(ThriftError, match=message):
        Struct.parse(data)


def test_values_of_another_type_than_expected() -> None:
    struct = Struct(VALUES)
    with pytest.raises(ThriftError):
        struct.list(6, STRUCT)
    with pytest.raises(ThriftError):
        struct.list(5, STRUCT)
    with pytest.raises(ThriftError):
        struct.struct(5)
    with pytest.raises(ThriftError):
        binary(VALUES[6])
    assert struct.list(99, STRUCT) == []
    assert struct.struct(99) is None
