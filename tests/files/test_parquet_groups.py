"""Row groups on the move: what is not an offset stays to the byte; damage is an error, never a wrong offset."""

from __future__ import annotations

import zlib
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from dv_maintenance.files.parquet_footer import encoded, parsed
from dv_maintenance.files.parquet_groups import (
    Footer,
    Place,
    bloom_filter_size,
    composed,
    moved,
    moved_offset_index,
)
from dv_maintenance.files.parquet_pages import PageError, PageWalk
from dv_maintenance.files.thrift_compact import BINARY, I32, I64, STRUCT, Struct, ThriftError, Value, list_of, number

TABLE = pa.table({"a": [1, 2, 3, 4], "s": ["x", None, "z", "x"]})
PATHS = tuple(list_of(BINARY, [bytes([len(name)]) + name]) for name in (b"a", b"s"))


def stored(**options: Any) -> tuple[bytes, bytes]:
    """A file and its footer."""
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink, row_group_size=2, store_schema=False, **options)
    data = sink.getvalue().to_pybytes()
    return data, encoded(pq.read_metadata(pa.BufferReader(data)))


FILE, FOOTER = stored(write_page_index=True)


def changed(before: Struct | None, after: Struct | None) -> set[int]:
    assert before is not None
    assert after is not None
    return {id_ for id_ in before.fields | after.fields if before.fields.get(id_) != after.fields.get(id_)}


def test_offsets_move_and_nothing_else_does() -> None:
    group = Footer(FOOTER, len(FILE)).group(1)
    places = [Place(part.pages[0] + 1000, (7, 8), None, (9, 10)) for part in group.parts]
    new, old = Struct.parse(moved(group, places, PATHS)), group.parsed
    assert changed(old, new) == {1, 5}
    for before, after, part in zip(old.list(1, STRUCT), new.list(1, STRUCT), group.parts, strict=True):
        one, two = Struct.parse(before), Struct.parse(after)
        assert changed(one, two) <= {2, 3, 4, 5, 6, 7}
        assert (two.integer(4), two.integer(5), two.integer(6), two.integer(7)) == (7, 8, None, None)
        was, now = one.struct(3), two.struct(3)
        assert changed(was, now) == {9, 11, 14, 15}
        assert now is not None
        assert min(now.integer(9) or 0, now.integer(11) or 0) == part.pages[0] + 1000


def test_a_footer_of_any_row_groups() -> None:
    groups = Footer(FOOTER, len(FILE)).groups
    found = parsed(composed(FOOTER, [groups[1], groups[0], groups[1]], {b"k": b"v"}))
    assert (found.num_rows, found.num_row_groups, found.metadata) == (6, 3, {b"k": b"v"})
    assert [Struct.parse(group).integer(7) for group in Footer(encoded(found), len(FILE)).groups] == [0, 1, 2]
    assert parsed(composed(FOOTER, groups, {})).metadata is None


def test_what_newer_writers_add_stays() -> None:
    group = Struct.parse(Footer(FOOTER, len(FILE)).groups[0])
    group.replace(77, Value(BINARY, b"\x03new"))
    file = Struct.parse(FOOTER)
    file.replace(88, Value(STRUCT, Struct({1: number(I32, 5)}).encode()))
    new = Footer(composed(file.encode(), [group.encode()], {}), len(FILE))
    assert Struct.parse(new.groups[0]).fields[77] == Value(BINARY, b"\x03new")
    assert 88 in Struct.parse(composed(file.encode(), [], {})).fields


def test_more_row_groups_than_an_ordinal_can_count() -> None:
    group = Struct({1: list_of(STRUCT, []), 2: number(I64, 0), 3: number(I64, 1), 7: number(4, 0)}).encode()
    found = Footer(composed(FOOTER, [group] * 32_770, {}), len(FILE)).groups
    assert Struct.parse(found[32_767]).integer(7) == 32_767
    assert Struct.parse(found[32_768]).integer(7) is None


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, len(FOOTER) - 1), st.integers(1, 255))
def test_damaged_footers(at: int, bits: int) -> None:
    """An error, or parts that are inside the file."""
    data = bytearray(FOOTER)
    data[at] ^= bits
    with suppress(ThriftError):
        footer = Footer(bytes(data), len(FILE))
        for index in range(len(footer)):
            for part in footer.group(index).parts:
                for start, length in filter(None, (part.pages, part.offset_index, part.column_index)):
                    assert 0 <= start <= start + length <= len(FILE)


def test_page_locations_move() -> None:
    locations = [Struct({1: number(I64, at), 2: number(I32, 5), 3: number(I64, 0)}).encode() for at in (100, 130)]
    index = Struct({1: list_of(STRUCT, locations), 9: number(I32, 1)}).encode()
    new = Struct.parse(moved_offset_index(index, 1_000_000, [100, 130]))
    assert [Struct.parse(each).integer(1) for each in new.list(1, STRUCT)] == [1_000_100, 1_000_130]
    assert new.integer(9) == 1
    with pytest.raises(ThriftError, match="does not match the pages"):
        moved_offset_index(index, 0, [100, 131])


def test_bloom_filters_say_how_long_they_are() -> None:
    header = Struct({1: number(I32, 1024)}).encode()
    assert bloom_filter_size(header + b"rest") == len(header) + 1024
    with pytest.raises(ThriftError):
        bloom_filter_size(Struct({1: number(I32, 1 << 30)}).encode())


# -- pages -------------------------------------------------------------------------------------------------------


def page(kind: int, data: bytes, values: int, *, crc: int | None = None) -> bytes:
    own = Struct({1: number(I32, values), 2: number(I32, 0)}).encode()
    fields = {1: number(I32, kind), 2: number(I32, len(data)), 3: number(I32, len(data))}
    if crc is not None:
        fields[4] = number(I32, crc if crc < 1 << 31 else crc - (1 << 32))
    fields[{0: 5, 1: 6, 2: 7, 3: 8}[kind]] = Value(STRUCT, own)
    return Struct(fields).encode() + data


BODY = b"x" * 900
CHUNK = page(2, b"dictionary", 3) + page(0, BODY, 40, crc=zlib.crc32(BODY)) + page(3, b"yy", 2)


@given(st.lists(st.integers(0, len(CHUNK)), max_size=8))
def test_pages_however_they_arrive(cuts: list[int]) -> None:
    walk = PageWalk(len(CHUNK), 42, dictionary=True)
    places = [0, *sorted(cuts), len(CHUNK)]
    for start, stop in pairwise(places):
        walk.add(CHUNK[start:stop])
    walk.end()
    first = len(page(2, b"dictionary", 3))
    assert walk.starts == [first, len(CHUNK) - len(page(3, b"yy", 2))]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, len(CHUNK) - 1), st.integers(1, 255))
def test_one_damaged_byte(at: int, bits: int) -> None:
    """It may pass only in a page without a checksum, or where the walk does not look."""
    data = bytearray(CHUNK)
    data[at] ^= bits
    begin = CHUNK.index(BODY)
    walk = PageWalk(len(data), 42, dictionary=True)
    try:
        walk.add(bytes(data))
        walk.end()
    except PageError:
        return
    assert not begin <= at < begin + len(BODY)


ONE = page(0, b"x", 1)
CONTRADICTIONS = {
    "values": (CHUNK, len(CHUNK), 41, True, "42 values, but the footer 41"),
    "cut off": (CHUNK[:-1], len(CHUNK), 42, True, "do not end"),
    "too long": (CHUNK + b"x", len(CHUNK), 42, True, "more than"),
    "no dictionary": (ONE, len(ONE), 1, True, "lacks the dictionary page"),
    "checksum": (page(0, b"x", 1, crc=5), len(page(0, b"x", 1, crc=5)), 1, False, "checksum"),
    "checksum of nothing": (page(0, b"", 1, crc=5), len(page(0, b"", 1, crc=5)), 1, False, "checksum"),
    "late dictionary": (ONE + page(2, b"", 1), len(ONE + page(2, b"", 1)), 1, False, "after other pages"),
    "zeros": (b"\x00" * 9, 9, 0, False, "lacks the type"),
    "ones": (b"\xff" * 20, 20, 0, False, "damaged"),
}


@pytest.mark.parametrize(("data", "size", "values", "dictionary", "why"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_pages_that_contradict(data: bytes, size: int, values: int, dictionary: bool, why: str) -> None:
    walk = PageWalk(size, values, dictionary)

    def whole() -> None:
        walk.add(data)
        walk.end()

    with pytest.raises(PageError, match=why):
        whole()


@given(st.binary(max_size=80))
def test_any_bytes_are_pages_or_an_error(data: bytes) -> None:
    walk = PageWalk(len(data), 1)
    with suppress(PageError):
        walk.add(data)
        walk.end()
