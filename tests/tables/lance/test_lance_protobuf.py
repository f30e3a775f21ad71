"""The wire format: what is read, what is skipped, and that no bytes do harm."""

from __future__ import annotations

import contextlib
import struct

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.raw_manifest import message, varint

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files.protobuf import BYTES, INTS, VARINT, Message, parse
from dv_maintenance.tables.lance.log.manifest import parse_fragment, parse_manifest
from dv_maintenance.tables.lance.log.transaction import parse_transaction
from dv_maintenance.tables.lance.rows.schema import arrow_schema, lance_fields

SHAPE = {1: VARINT, 2: BYTES, 3: INTS, 4: VARINT, 5: BYTES}
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))


def test_absent_fields_have_defaults() -> None:
    body = parse(b"", SHAPE)
    assert (body.uint(1), body.sint(1), body.optional_uint(1)) == (0, 0, None)
    assert (body.data(2), body.text(2), body.each(2), body.ints(3)) == (b"", "", [], [])
    assert (body.message(5, SHAPE), body.mapping(5), body.has(1)) == (None, {}, False)


@given(NUMBERS, st.text(max_size=200), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), st.booleans())
def test_fields_of_every_kind(number: int, text: str, many: list[int], packed: bool) -> None:
    ints = [(3, b"".join(map(varint, many)))] if packed else [(3, value) for value in many]
    body = parse(message((1, number), (2, text.encode()), *ints, (4, 0)), SHAPE)
    assert (body.uint(1), body.text(2), body.ints(3)) == (number, text, many)
    assert body.sint(1) == number - (number >> 63 << 64)
    assert body.has(4)
    assert body.optional_uint(4) is None


def test_the_last_of_several_counts_and_messages_merge() -> None:
    body = parse(message((1, 7), (1, 8), (5, message((1, 1))), (5, message((4, 2)))), SHAPE)
    inner = body.message(5, SHAPE)
    assert body.uint(1) == 8
    assert inner is not None
    assert (inner.uint(1), inner.uint(4)) == (1, 2)


def test_maps() -> None:
    entry = message((1, b"key"), (2, b"value"))
    assert parse(message((5, entry), (5, message((1, b"bare")))), SHAPE).mapping(5) == {"key": b"value", "bare": b""}


def test_unknown_fields_of_every_wire_type_are_skipped() -> None:
    unknown = (
        message((99, 2**64 - 1), (100, b"abc"))
        + varint(101 << 3 | 1)
        + struct.pack("<d", 1.5)
        + varint(102 << 3 | 5)
        + struct.pack("<f", 1.5)
    )
    body = parse(unknown + message((1, 7)) + unknown, SHAPE)
    assert body.uint(1) == 7
    assert not body.has(99)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x01", "field number 0 does not exist"),
        (varint((1 << 29) << 3) + b"\x01", "field number 536870912 does not exist"),
        (b"\x80", "truncated in a number"),
        (b"\x08", "truncated in a number"),
        (b"\x08\x80\x80", "truncated in a number"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "a number does not end"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x12\x05abc", "field 2 ends 2 bytes beyond"),
        (b"\x12" + varint(2**63) + b"abc", "field 2 ends .* bytes beyond"),
        (b"\x12" + varint(2**64 - 1), "field 2 ends .* bytes beyond"),
        (b"\x49abc", "field 9 ends 5 bytes beyond"),
        (b"\x4dabc", "field 9 ends 1 bytes beyond"),
        (b"\x0b", "field 1 has wire type 3, which is not in use"),
        (b"\x0c", "wire type 4"),
        (b"\x0e", "wire type 6"),
        (b"\x0f", "wire type 7"),
        (b"\x0a\x00", "field 1 has wire type 2, not 0"),
        (b"\x10\x00", "field 2 has wire type 0, not 2"),
        (b"\x09" + bytes(8), "field 1 has wire type 1, not 0"),
        (b"\x1d" + bytes(4), "field 3 has wire type 5"),
    ],
)
def test_damage(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedTableError, match=reason):
        parse(data, SHAPE)


def test_damage_inside_a_field() -> None:
    with pytest.raises(DamagedTableError, match="not UTF-8"):
        parse(message((2, b"\xff\xfe")), SHAPE).text(2)
    with pytest.raises(DamagedTableError, match="truncated in a number"):
        parse(message((3, b"\x01\x80")), SHAPE).ints(3)
    with pytest.raises(DamagedTableError, match="wire type"):
        parse(message((5, b"\x0f")), SHAPE).message(5, SHAPE)


def ask_everything(body: Message) -> None:
    body.uint(1), body.sint(4), body.data(2), body.each(5), body.ints(3)
    for question in (lambda: body.text(2), lambda: body.mapping(5), lambda: body.message(5, SHAPE)):
        with contextlib.suppress(DamagedTableError):
            question()


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_give_nothing_but_our_error(data: bytes) -> None:
    with contextlib.suppress(DamagedTableError):
        ask_everything(parse(data, SHAPE))
    for read in (parse_manifest, parse_fragment, parse_transaction, lambda data: lance_fields([data])):
        with contextlib.suppress(DamagedTableError):
            read(data)


RECORDS = st.lists(
    st.tuples(
        st.integers(1, 12), st.one_of(NUMBERS, st.binary(max_size=30), st.sampled_from([b"list", b"dict:x:int8:false"]))
    ),
    max_size=12,
).map(lambda found: message(*found))


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(RECORDS, max_size=4))
def test_random_records_give_nothing_but_our_errors(parts: list[bytes]) -> None:
    """What is well-formed, and yet none of Lance's messages."""
    for part in parts:
        for read in (parse_fragment, parse_transaction):
            with contextlib.suppress(DamagedTableError):
                read(part)
    with contextlib.suppress(DamagedTableError, UnsupportedFeatureError):
        arrow_schema(lance_fields(parts), {})
