"""Files of blobs, whole and damaged."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.blob_files import PLACEHOLDER, blob_file

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files.blob import index_of, offsets, read_lengths, value

VALUES = st.lists(st.none() | st.just(PLACEHOLDER) | st.binary(max_size=300), max_size=20)


def lengths_of(data: bytes) -> list[int]:
    return [int(each) for each in read_lengths(len(data), lambda at, count: data[at : at + count])]


@given(VALUES)
def test_values_come_back(values: list[object]) -> None:
    data = blob_file(values)
    lengths = read_lengths(len(data), lambda at, count: data[at : at + count])
    found = [
        value(data[start : start + length]) if length >= 0 else {-1: None, -2: PLACEHOLDER}[length]
        for start, length in zip(offsets(lengths).tolist(), lengths.tolist(), strict=True)
    ]
    assert found == values
    assert data.endswith(index_of(lengths.tolist()))


@pytest.mark.parametrize("length", [0, 63, 64, 2**31, 2**61])
def test_any_length_has_an_index(length: int) -> None:
    """Differences of 64 bits, of files that nobody could write here."""
    data = index_of([length, -2, length])
    size = 2 * length + len(data)
    if length < 16:
        with pytest.raises(DamagedTableError, match="does not fit"):
            read_lengths(size, lambda at, count: data[at - 2 * length :][:count])
    else:
        assert read_lengths(size, lambda at, count: data[at - 2 * length :][:count]).tolist() == [length, -2, length]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: b"", "has no index"),
        (lambda data: data[-4:], "has no index"),
        (lambda data: data[:-5] + struct.pack("<IB", 10_000, 1), "longer than the file"),
        (lambda data: data[1:], "does not fit its records"),
        (lambda data: data[:-6] + b"\xff" + data[-5:], "ends within a number"),
        (lambda data: data[:-5] + b"\xff" * 10 + b"\x01" + struct.pack("<IB", 13, 1), "more than 64 bits"),
        (lambda data: data[:-5] + b"\x05" + struct.pack("<IB", 3, 1), "does not fit its records"),
    ],
)
def test_a_damaged_index_is_found(damage: object, why: str) -> None:
    assert callable(damage)
    data = damage(blob_file([b"abc", b"de"]))
    with pytest.raises(DamagedTableError, match=why):
        lengths_of(data)


def test_other_versions_are_unknown() -> None:
    with pytest.raises(UnsupportedFeatureError, match="format version 2"):
        lengths_of(blob_file([b"abc"])[:-1] + b"\x02")


@pytest.mark.parametrize("at", range(19))
def test_a_damaged_record_is_found(at: int) -> None:
    record = bytearray(blob_file([b"abc"])[:19])
    record[at] ^= 1
    with pytest.raises(DamagedTableError, match="checksum"):
        value(record)
