"""Avro files: what writers write is read by their own schema, and nothing that anyone can put into one does harm."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tracemalloc
from typing import Any

import fastavro
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.avro_files import SYNC, avro_file, block, header, long, packed

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.avro import container as avro
from dv_maintenance.files.avro.container import read_records
from dv_maintenance.files.avro.writer import template_of, write_records

INNER = {
    "type": "record",
    "name": "inner",
    "fields": [
        {"name": "a", "type": "string"},
        {"name": "b", "type": ["null", "long"], "default": None},
        {"name": "c", "type": {"type": "array", "items": ["null", "long"]}},
    ],
}
SCHEMA = {
    "type": "record",
    "name": "outer",
    "namespace": "some.where",
    "fields": [
        {"name": "x", "type": "int"},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "inner", "type": INNER},
        {"name": "again", "type": ["null", "inner"], "default": None},
        {"name": "many", "type": ["null", {"type": "array", "items": ["null", "inner"]}], "default": None},
        {"name": "map", "type": {"type": "map", "values": "double"}},
        {"name": "fixed", "type": {"type": "fixed", "name": "four", "size": 4}},
    ],
}
ALL = dict.fromkeys(["x", "raw", "at", "inner", "again", "many", "map", "fixed"])
INNERS = st.fixed_dictionaries(
    {
        "a": st.text(max_size=5),
        "b": st.none() | st.integers(-(2**63), 2**63 - 1),
        "c": st.lists(st.none() | st.integers(-5, 5), max_size=4),
    }
)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "x": st.integers(-(2**31), 2**31 - 1),
            "raw": st.binary(max_size=9),
            "at": st.none() | st.integers(0, 2**62),
            "inner": INNERS,
            "again": st.none() | INNERS,
            "many": st.none() | st.lists(st.none() | INNERS, max_size=3),
            "map": st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=3),
            "fixed": st.binary(min_size=4, max_size=4),
        }
    ),
    max_size=5,
)
CODECS = ["null", "deflate", "zstandard", "snappy", "bzip2", "xz"]


def written(records: list[Any], codec: str) -> bytes:
    return avro_file(SCHEMA, records, codec)


@settings(max_examples=examples(10))
@given(RECORDS, st.sampled_from(CODECS))
def test_all_that_was_written_is_read(records: list[Any], codec: str) -> None:
    assert list(read_records(written(records, codec), ALL)) == records


@settings(max_examples=examples(30))
@given(RECORDS, st.sets(st.sampled_from([*ALL, "unknown"])), st.sets(st.sampled_from(["a", "b", "c", "z"]), min_size=1))
def test_only_what_is_wanted_is_read(records: list[Any], names: set[str], parts: set[str]) -> None:
    wanted: dict[str, Any] = {name: dict.fromkeys(parts) if name in {"inner", "many"} else None for name in names}

    def part(value: Any) -> Any:
        if isinstance(value, list):
            return [part(each) for each in value]
        return None if value is None else {name: value[name] for name in value if name in parts}

    expected = [
        {name: part(record[name]) if wanted[name] else record[name] for name in record if name in names}
        for record in records
    ]
    assert list(read_records(written(records, "null"), wanted)) == expected


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_files_of_many_blocks_by_fastavros_own_writer(codec: str) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "long"}]}
    records = [{"x": each} for each in range(5000)]
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema), records, codec=codec, sync_interval=500)
    assert sink.getvalue().count(sink.getvalue()[-16:]) > 5
    assert list(read_records(sink.getvalue(), {"x": None})) == records


@pytest.mark.parametrize("schema", [["null", INNER], [INNER, "null"]], ids=["null first", "record first"])
def test_records_that_might_be_null_as_paimon_in_rust_writes_them(schema: list[Any]) -> None:
    values = [{"a": "x", "b": None, "c": [1]}, {"a": "y", "b": 2, "c": []}]
    data = avro_file(schema, values, "deflate")
    assert list(read_records(data, None)) == values
    assert list(read_records(data, {"b": None})) == [{"b": None}, {"b": 2}]
    file = avro.AvroFile(io.BytesIO(data), len(data))
    assert [field["name"] for field in file.schema["fields"]] == ["a", "b", "c"]
    assert [record for block in file.blocks({"a": None}) for record in block] == [{"a": "x"}, {"a": "y"}]
    # What is written after the same template has the same shape.
    template = template_of(data)
    assert list(template.fields()) == ["a", "b", "c"]
    again = write_records(template, values)
    assert list(fastavro.reader(io.BytesIO(again))) == values
    assert json.loads(avro.header_of(again)["avro.schema"]) == json.loads(avro.header_of(data)["avro.schema"])
    none = header(schema) + block(1, long(schema.index("null")))
    with pytest.raises(DamagedTableError, match="one of its records is null"):
        list(read_records(none, None))
    with pytest.raises(DamagedTableError, match="one of its records is null"):
        list(avro.AvroFile(io.BytesIO(none), len(none)).blocks({"a": None}))


def test_no_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(RefusedError, match=r"install dv-maintenance\[paimon\]"):
        list(read_records(written([], "null"), ALL))


# -- damage -------------------------------------------------------------------------------------------------------


def reason(data: bytes, wanted: Any = None) -> str:
    with pytest.raises(DamagedTableError) as caught:
        list(read_records(data, wanted or {"x": None}))
    return caught.value.message


def record_of(*types: Any) -> Any:
    fields = [{"name": f"f{index}", "type": each} for index, each in enumerate(types)]
    return {"type": "record", "name": "r", "fields": [{"name": "x", "type": "long"}, *fields]}


PLAIN = record_of()
UNKNOWN = {"name": "never", "type": "null"}


def test_each_damage_has_its_reason() -> None:
    good = header(PLAIN) + block(1, long(7))
    assert list(read_records(good, {"x": None})) == [{"x": 7}]
    assert "truncated" in reason(b"")
    assert "magic number" in reason(b"ORC" + good)
    assert "truncated" in reason(good[:-1])
    assert "sync marker" in reason(good[:-1] + b"!")
    assert "not those of a manifest" in reason(header({"type": "array", "items": "long"}))
    assert "not those of a manifest" in reason(header(["null", INNER, {**INNER, "name": "other"}]))
    assert "not those of a manifest" in reason(header(["null", "long"]))
    assert "not those of a manifest" in reason(header({"type": "record", "name": "r", "fields": []}) + block(9, b"x"))
    assert "cannot fit" in reason(header(PLAIN) + block(2**60, long(7)))
    assert "-1 records" in reason(header(PLAIN) + block(-1, long(7)))
    assert "cannot be read" in reason(header(PLAIN) + block(2, long(7) + b"\xff"))
    text = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "string"}]}
    assert "UnicodeDecodeError" in reason(header(text) + block(1, long(2) + b"\xff\xfe"))
    assert "cannot be read" in reason(header(text) + block(1, long(-5) + b"abc"))
    assert "compressed with 'lzo'" in reason(header(PLAIN, "lzo") + block(1, long(7)))
    assert "is not valid zstandard" in reason(header(PLAIN, "zstandard") + block(1, b"nothing"))
    assert "is not valid deflate" in reason(header(PLAIN, "deflate") + block(1, b"\xff\xff"))
    for codec in ("deflate", "bzip2", "xz"):
        assert "is truncated" in reason(header(PLAIN, codec) + block(1, packed(long(7) * 99, codec)[:-2]))
    for codec in ("bzip2", "xz", "snappy"):
        assert f"is not valid {codec}" in reason(header(PLAIN, codec) + block(1, b"nothing of that kind"))
    assert "CRC-32" in reason(header(PLAIN, "snappy") + block(1, packed(long(7), "snappy")[:-1] + b"?"))
    assert "longer than 64 bits" in reason(b"Obj\x01" + b"\xff" * 11)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record_of({"type": "array", "items": "null"}), "take no bytes"),
        (record_of({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}), "take no bytes"),
        (record_of({"type": "map", "values": "null"}), "take no bytes"),
        (record_of({"type": "array", "items": {"type": "record", "name": "e", "fields": [UNKNOWN]}}), "take no bytes"),
        ({"type": "record", "name": "r", "fields": [UNKNOWN]}, "not those of a manifest"),
        (record_of(["null", "r"]), "larger or deeper"),
        (record_of("nowhere"), "without defining it"),
        (record_of(["null", ["null", "long"]]), "union directly in a union"),
        (record_of([]), "an empty one"),
        (record_of({"type": "enum", "name": "e", "symbols": []}), "no known writer uses"),
        (record_of({"type": "fixed", "name": "f", "size": 2**40}), "no known writer uses"),
        (record_of(7), "not an Avro schema"),
        ({"type": "record", "name": "r", "fields": [{"name": "x", "type": "long"}] * 2}, "two fields of one name"),
        ({"type": "record", "name": "r", "fields": [{"type": "long"}]}, "no names"),
        ({"type": "record", "name": "r", "fields": 5}, "no names"),
        ("r", "without defining it"),
    ],
)
def test_recursive_and_invalid_schemas(schema: Any, why: str) -> None:
    # The bytes would be an array of 2^60 values, if anyone believed them.
    assert why in reason(header(schema) + block(1, long(7) + long(2**60) + long(0)))


def test_a_schema_that_doubles_with_each_name() -> None:
    schema: Any = {"type": "record", "name": "r0", "fields": [{"name": "x", "type": "long"}]}
    for level in range(1, 25):
        fields = [{"name": "x", "type": schema}, {"name": "y", "type": f"r{level - 1}"}]
        schema = {"type": "record", "name": f"r{level}", "fields": fields}
    assert "larger or deeper" in reason(header(schema))
    text = b"[" * 100_000
    pair = long(11) + b"avro.schema" + long(len(text)) + text
    assert "not JSON" in reason(b"Obj\x01" + long(1) + pair + long(0) + SYNC)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_is_not_unpacked(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = header(PLAIN, codec) + block(1, packed(bytes(20_000_000), codec))
    # Snappy cannot make more of it than others make of a manifest.
    assert codec == "snappy" or "unpacks to more than" in reason(bomb)
    monkeypatch.setattr(avro, "_MAX_BYTES", 1 << 20)
    tracemalloc.start()
    try:
        assert "unpacks to more than" in reason(bomb)
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()


def test_the_bound_is_for_all_blocks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "_MAX_BYTES", 1000)
    data = b"".join([header(PLAIN), *[block(100, long(1) * 100)] * 11])
    assert "unpacks to more than" in reason(data)


@settings(max_examples=examples(50))
@given(RECORDS.filter(bool), st.sampled_from(CODECS), st.data())
def test_flipped_and_lost_bytes(records: list[Any], codec: str, data: st.DataObject) -> None:
    found = bytearray(written(records, codec))
    for _ in range(data.draw(st.integers(1, 4))):
        found[data.draw(st.integers(0, len(found) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(found)) | st.just(len(found)))
    with contextlib.suppress(DamagedTableError):
        list(read_records(bytes(found[:cut]), ALL))


@settings(max_examples=examples(80))
@given(st.binary(max_size=60), st.integers(-3, 40))
def test_random_records(data: bytes, count: int) -> None:
    for wanted in (ALL, {"x": None}, {"many": {"a": None}}):
        with contextlib.suppress(DamagedTableError):
            list(read_records(header(SCHEMA) + block(count, data), wanted))


KEYS = st.sampled_from(["type", "name", "fields", "items", "values", "size", "namespace"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["long", "null", "record", "r"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(100))
@given(JUNK, st.binary(max_size=30))
def test_random_schemas(schema: Any, data: bytes) -> None:
    for each in (schema, record_of(schema)):
        with contextlib.suppress(DamagedTableError):
            list(read_records(header(each) + block(1, data), {"x": None}))


def test_a_field_of_nothing_but_null_as_iceberg_stores_unknown_types() -> None:
    inner = {"type": "record", "name": "i", "fields": [{"name": "a", "type": "long"}, UNKNOWN]}
    schema = record_of(["null", inner], "null")
    records = [{"x": 1, "f0": {"a": 2, "never": None}, "f1": None}, {"x": 3, "f0": None, "f1": None}]
    data = avro_file(schema, records)
    assert list(read_records(data, None)) == records
    assert list(read_records(data, {"f1": None, "x": None})) == [{"x": 1, "f1": None}, {"x": 3, "f1": None}]


def test_the_header_may_come_in_parts() -> None:
    # A negative count of the map's entries is followed by their bytes.
    text = json.dumps(PLAIN).encode()
    entry = long(11) + b"avro.schema" + long(len(text)) + text
    data = b"Obj\x01" + long(-1) + long(len(entry)) + entry + long(0) + SYNC + block(1, long(3))
    assert list(read_records(data, {"x": None})) == [{"x": 3}]
