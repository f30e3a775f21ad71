"""Paimon's index files: golden ones of both encodings, round trips, and every way in which they can be damaged."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from support.dv_files import DvFile

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.paimon import CODEC, EMPTY_FILE, ENCODINGS, MAX_POSITION, decode, decode_at, encode, pack
from dv_maintenance.errors import DamagedDeletionVectorError
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.work import DvRef

URI = "s3://bucket/table/index/index-1-0"


def ref_of(offset: int | None, size: int, cardinality: int = 3, uri: str | None = URI) -> DvRef:
    return DvRef(CODEC, cardinality, size, uri, offset)


def dv_of(*positions: int) -> DeletionVector:
    return DeletionVector.from_positions(positions)


# -- golden -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "lengths"), [("dvindex-32", (24, 22)), ("dvindex-64", (44, 42))])
def test_files_of_paimons_own_tests(golden: Path, name: str, lengths: tuple[int, int]) -> None:
    data = (golden / "paimon" / "paimon_repo_resources" / name).read_bytes()
    second = 1 + lengths[0] + (8 if name == "dvindex-32" else 0)
    assert load(ref_of(1, lengths[0], 2), DvFile(data)) == dv_of(2, 3)
    assert load(ref_of(second, lengths[1], 1), DvFile(data)) == dv_of(1)
    # To the byte what Paimon writes: neither set becomes shorter as runs.
    (ours,) = pack([dv_of(2, 3), dv_of(1)], int(name[-2:]))
    assert [each.length for each in ours.ranges] == list(lengths)
    assert ours.data == data


def test_dvs_of_golden_tables(golden: Path) -> None:
    read = 0
    for expected in sorted((golden / "paimon").glob("*/expected.json")):
        facts = json.loads(expected.read_text())
        for state in (facts, facts.get("at_snapshot") or {}):
            for file in state.get("files", []):
                if dv := file["dv"]:
                    stored = DvFile((expected.parent / "table" / "index" / dv["index_file"]).read_bytes())
                    ref = ref_of(dv["offset"], dv["length"], len(dv["deleted_positions"]))
                    found = load(ref, stored, rows=file["row_count"])
                    assert found.positions().tolist() == dv["deleted_positions"]
                    assert len(stored.fetched) == 1
                    assert decode_at(stored.data, ref.offset or 0, ref.size) == found
                    read += 1
    assert read > 25


# -- round trips --------------------------------------------------------------------------------------------------

SMALL = st.frozensets(st.one_of(st.integers(0, 300), st.integers(0, MAX_POSITION[32])), min_size=1, max_size=40)
LARGE = st.frozensets(st.one_of(st.integers(0, 300), st.integers(0, MAX_POSITION[64])), min_size=1, max_size=20)


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from(ENCODINGS), st.integers(1, 200))
def test_what_is_packed_is_read_back(data: st.DataObject, bits: int, target: int) -> None:
    dvs = [dv_of(*each) for each in data.draw(st.lists(SMALL if bits == 32 else LARGE, max_size=6))]
    files = pack(dvs, bits, target_size=target)
    found = [
        load(ref_of(each.offset, each.length, each.cardinality), DvFile(file.data))
        for file in files
        for each in file.ranges
    ]
    assert found == dvs
    # A file is above the target only for a DV that would be so alone.
    assert all(len(file.data) <= target or len(file.ranges) == 1 for file in files)
    for file in files:
        frames = [each.length + (8 if bits == 32 else 0) for each in file.ranges]
        assert len(file.data) == 1 + sum(frames)


def test_others_read_what_is_written() -> None:
    dv = DeletionVector.from_ranges([(5, 70_000)]) | dv_of(2, 200_000, MAX_POSITION[32])
    data = encode(dv, 32)
    assert data[:4] == bytes.fromhex("5E43F2D0")
    assert list(BitMap.deserialize(data[4:])) == dv.positions().tolist()
    assert encode(dv, 64)[:4] == bytes.fromhex("D1D33964")


@pytest.mark.parametrize("bits", ENCODINGS)
def test_what_is_never_stored(bits: int) -> None:
    with pytest.raises(ValueError, match="never stored"):
        encode(DeletionVector.empty(), bits)
    assert decode(encode(dv_of(MAX_POSITION[bits]), bits)) == dv_of(MAX_POSITION[bits])
    with pytest.raises(ValueError, match="above the largest"):
        encode(dv_of(MAX_POSITION[bits] + 1), bits)
    with pytest.raises(ValueError, match="target size"):
        pack([], bits, target_size=0)
    assert pack([], bits) == []


def test_far_into_a_file_only_the_dv_is_fetched() -> None:
    (file,) = pack([dv_of(*range(0, 2_000_000, 2)), dv_of(1, 2, 9)], 32)
    stored, last = DvFile(file.data), file.ranges[1]
    assert last.offset > 64 * 1024
    assert load(ref_of(last.offset, last.length, 3), stored) == dv_of(1, 2, 9)
    assert stored.fetched == [(last.offset, last.length + 8)]


# -- damage -------------------------------------------------------------------------------------------------------


def reason(data: bytes, ref: DvRef) -> str:
    with pytest.raises(DamagedDeletionVectorError) as caught:
        load(ref, DvFile(data))
    assert caught.value.file == ref.uri
    assert caught.value.offset == ref.offset
    return caught.value.reason


def framed(bitmap: bytes) -> bytes:
    return EMPTY_FILE + struct.pack(">i", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))


@pytest.mark.parametrize("bits", ENCODINGS)
def test_each_damage_has_its_reason(bits: int) -> None:
    (file,) = pack([dv_of(4, 5, 9)], bits)
    (at,) = file.ranges
    ref = ref_of(at.offset, at.length)
    data = file.data
    assert load(ref, DvFile(data)) == dv_of(4, 5, 9)
    assert "CRC-32" in reason(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], ref)
    assert "CRC-32" in reason(data[:-1] + bytes([data[-1] ^ 1]), ref)
    assert "truncated" in reason(data[:-1], ref)
    assert "truncated" in reason(data[:6], ref)
    assert "version is 2" in reason(b"\x02" + data[1:], ref)
    assert "unknown magic" in reason(data[:5] + b"\0\0\0\0" + data[9:], ref)
    assert "the manifest" in reason(data, ref_of(at.offset, at.length + 1))
    assert "the manifest" in reason(data, ref_of(at.offset, at.length - 8 if bits == 64 else at.length + 8))
    assert "outside" in reason(data, ref_of(0, at.length))
    assert "outside" in reason(data, ref_of(None, at.length))
    assert "outside" in reason(data, ref_of(at.offset, -1))
    assert "the log says 4" in reason(data, ref_of(at.offset, at.length, 4))
    assert "inline" in reason(data, ref_of(at.offset, at.length, uri=None))
    with pytest.raises(DamagedDeletionVectorError, match="beyond the file's 9 rows"):
        load(ref, DvFile(data), rows=9)


def test_a_position_that_no_reader_of_32_bits_can_have() -> None:
    bitmap = bytes.fromhex("5E43F2D0") + BitMap([1, 2**31]).serialize()
    assert "above the encoding's largest" in reason(framed(bitmap), ref_of(1, len(bitmap), 2))


def test_bytes_behind_the_bitmap() -> None:
    bitmap = encode(dv_of(1, 2, 3)) + b"\0"
    assert "left after" in reason(framed(bitmap), ref_of(1, len(bitmap)))


@settings(max_examples=examples(200))
@given(st.binary(max_size=80), st.integers(-2, 90), st.integers(-2, 90), st.booleans(), st.booleans())
def test_random_bytes_are_refused_or_a_set(data: bytes, offset: int, length: int, magic: bool, sealed: bool) -> None:
    if magic:
        data = bytes.fromhex("5E43F2D0" if length % 2 else "D1D33964") + data
    if sealed:  # with a checksum that fits, so that the bitmap itself is looked at
        offset, length = 1, len(data) + (0 if data[:1] == b"\x5e" else 8)
        data = framed(data)
    with contextlib.suppress(DamagedDeletionVectorError):
        load(ref_of(offset, length, 0), DvFile(data))


@settings(max_examples=examples(50))
@given(SMALL, st.sampled_from(ENCODINGS), st.data())
def test_a_flipped_byte_is_found(positions: frozenset[int], bits: int, data: st.DataObject) -> None:
    (file,) = pack([dv_of(*positions)], bits)
    (at,) = file.ranges
    where = data.draw(st.integers(0, len(file.data) - 1))
    flipped = bytearray(file.data)
    flipped[where] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedDeletionVectorError):
        load(ref_of(at.offset, at.length, at.cardinality), DvFile(bytes(flipped)))


def test_a_huge_claim_costs_nothing() -> None:
    tracemalloc.start()
    try:
        assert "truncated" in reason(framed(b"x" * 100), ref_of(1, 2**31 - 1))
        claim = bytes.fromhex("D1D33964") + struct.pack("<Q", 2**40)
        assert "cannot fit" in reason(framed(claim), ref_of(1, len(claim) + 8))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
