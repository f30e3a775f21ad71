"""Delta's DV bytes: golden vectors, files of many DVs, and every way in which they can be damaged."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tracemalloc
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64
from support.dv_files import DvFile

from dv_maintenance.dv import DeletionVector, DvDescriptor
from dv_maintenance.dv.delta import MAX_POSITION, deserialize, inline, pack, serialize
from dv_maintenance.dv.descriptor import EMPTY
from dv_maintenance.errors import DamagedDeletionVectorError, UsageError
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.work import DvRef

URI = "s3://bucket/table/deletion_vector_1.bin"
PORTABLE, NATIVE = struct.pack("<i", 1681511377), struct.pack("<i", 1681511376)


def ref_of(codec: str = "delta", cardinality: int = 0, size: int = 0, uri: str | None = None, **place: Any) -> DvRef:
    return DvRef(codec, cardinality, size, uri, **place)


def no_file(uri: str, start: int, length: int) -> bytes:
    raise FileNotFoundError(uri)


def framed(bitmap: bytes, version: int = 1) -> bytes:
    return bytes([version]) + struct.pack(">i", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))


def rows_of(spec: Any) -> list[int]:
    return list(range(spec["first"], spec["last"] + 1, spec["step"])) if isinstance(spec, dict) else spec


@pytest.fixture(scope="module")
def vectors(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "delta" / "dv_vectors.json").read_text())


# -- golden -------------------------------------------------------------------------------------------------------


def test_golden_portable_bytes(vectors: dict[str, Any]) -> None:
    for case in vectors["portable_hex"]:
        rows = rows_of(case["rows"])
        dv = DeletionVector.from_positions(rows)
        data = serialize(dv)
        assert len(data) == case["size"], case["name"]
        assert zlib.crc32(data) == case["crc32"], case["name"]
        assert hashlib.sha256(data).hexdigest() == case["sha256"], case["name"]
        assert deserialize(data) == dv
        if case["hex"]:
            assert deserialize(bytes.fromhex(case["hex"])).positions().tolist() == rows


def test_golden_inline(vectors: dict[str, Any]) -> None:
    seen = {"read": 0, "refused": 0}
    for case in vectors["inline"]:
        legal = "rows" in case and "portable_reader_must" not in case
        ref = ref_of(cardinality=len(case.get("rows", [0])), size=case["sizeInBytes"], inline=case["pathOrInlineDv"])
        if legal:
            dv = load(ref, no_file)
            assert dv.positions().tolist() == case["rows"]
            again = inline(dv)
            assert (
                load(ref_of(cardinality=len(dv), size=again.size_in_bytes, inline=again.path_or_inline), no_file) == dv
            )
        else:
            reason = "magic" if "hex" in case else "Z85 group"
            with pytest.raises(DamagedDeletionVectorError, match=reason):
                load(ref, no_file)
        seen["read" if legal else "refused"] += 1
    assert seen == {"read": 3, "refused": 2}


def test_golden_file_of_two(vectors: dict[str, Any]) -> None:
    data = bytes.fromhex(vectors["two_dv_file"]["hex"])
    for case in vectors["two_dv_file"]["dvs"]:
        ref = ref_of(cardinality=len(case["rows"]), size=case["sizeInBytes"], uri=URI, offset=case["offset"])
        assert load(ref, DvFile(data)).positions().tolist() == case["rows"]
        for version in (0, 2, 255):
            with pytest.raises(DamagedDeletionVectorError, match=f"format version is {version}"):
                load(ref, DvFile(bytes([version]) + data[1:]))


def test_golden_native_layout(vectors: dict[str, Any]) -> None:
    case = vectors["native_le_hex"]
    assert deserialize(bytes.fromhex(case["hex"])).positions().tolist() == case["rows"]


def test_golden_tables(golden: Path) -> None:
    read = 0
    for name, table in json.loads((golden / "delta" / "expected.json").read_text()).items():
        for dv in table.get("dvs") or []:
            descriptor = DvDescriptor.from_json(dv)
            assert descriptor.unique_id == dv["uniqueId"]
            ref = ref_of(cardinality=descriptor.cardinality, size=descriptor.size_in_bytes)
            if descriptor.storage_type == "i":
                got = load(replace(ref, inline=descriptor.path_or_inline), no_file)
            elif (path := golden / "delta" / name / descriptor.relative_path()).exists():
                got = load(replace(ref, uri=URI, offset=descriptor.offset), DvFile(path.read_bytes()))
            else:
                continue  # one table's data is too large for the golden folder
            assert got.positions().tolist()[: len(dv["rows"])] == dv["rows"]
            read += 1
    assert read >= 20


# -- native layout ------------------------------------------------------------------------------------------------


def native(*bitmaps: bytes, count: int | None = None) -> bytes:
    body = b"".join(struct.pack("<i", len(bitmap)) + bitmap for bitmap in bitmaps)
    return NATIVE + struct.pack("<i", len(bitmaps) if count is None else count) + body


def test_native_bitmaps_are_32_bit_buckets() -> None:
    low, high = BitMap(range(100, 9000)), BitMap([0, 70_000])
    dv = deserialize(native(low.serialize(), BitMap().serialize(), high.serialize()))
    assert dv.positions().tolist() == [*range(100, 9000), 2 << 32, (2 << 32) + 70_000]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (NATIVE, "truncated"),
        (native(count=2**31 - 1), "cannot fit"),
        (native(count=-1), "cannot fit"),
        (native(BitMap([1]).serialize(), count=0), "left after"),
        (native(BitMap([1]).serialize() + b"\0\0"), "bitmap 0 does not have the"),
        (native(BitMap([1]).serialize()[:-2]), "truncated"),
        (native(b""), "truncated"),
        (native(BitMap([1]).serialize(), count=2), "truncated"),
    ],
)
def test_damaged_native_bytes(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedDeletionVectorError, match=reason):
        deserialize(data)


# -- bitmaps ------------------------------------------------------------------------------------------------------


def test_other_implementations_read_the_same_set() -> None:
    dv = DeletionVector.from_ranges([(0, 200_000), (2**32 + 1, 2**32 + 9)]) | DeletionVector.from_positions(
        range(300_000, 500_000, 7)
    )
    data = serialize(dv)
    assert data[:4] == PORTABLE
    assert np.array_equal(np.array(BitMap64.deserialize(data[4:]).to_array()), dv.positions())


def test_the_largest_position_of_the_format() -> None:
    dv = DeletionVector.from_positions([MAX_POSITION])
    assert deserialize(serialize(dv)) == dv
    with pytest.raises(ValueError, match="above the format's largest"):
        serialize(DeletionVector.from_positions([MAX_POSITION + 1]))


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "truncated"), (b"\1\2\3", "truncated"), (b"\0" * 12, "magic number 0")]
)
def test_what_is_no_bitmap(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedDeletionVectorError, match=reason):
        deserialize(data)


# -- files --------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(
    st.lists(st.frozensets(st.integers(0, 2**33), min_size=1, max_size=60), max_size=12),
    st.integers(1, 1200),
    st.sampled_from(["", "xy", "a/b"]),
)
def test_packed_dvs_are_read_back(sets: list[frozenset[int]], target: int, prefix: str) -> None:
    dvs = [DeletionVector.from_positions(chosen) for chosen in sets]
    files = pack(dvs, target_size=target, prefix=prefix)
    assert len({file.uuid for file in files}) == len(files)
    read = []
    for file in files:
        assert len(file.data) <= target or len(file.descriptors) == 1
        assert file.data[0] == 1
        assert file.descriptors[0].offset == 1
        assert file.path.startswith(f"{prefix}/deletion_vector_" if prefix else "deletion_vector_")
        for descriptor in file.descriptors:
            assert descriptor.storage_type == "u"
            assert descriptor.relative_path() == file.path
            ref = DvRef("delta", descriptor.cardinality, descriptor.size_in_bytes, URI, descriptor.offset)
            read.append(load(ref, DvFile(file.data)))
    assert read == dvs
    for file, after in pairwise(files):
        assert len(file.data) + after.descriptors[0].size_in_bytes + 8 > target, "files get filled"


def test_the_target_size_is_reached_but_not_passed() -> None:
    dvs = [DeletionVector.from_positions([n]) for n in range(3)]
    (whole,) = pack(dvs)
    assert [len(file.descriptors) for file in pack(dvs, target_size=len(whole.data))] == [3]
    assert [len(file.descriptors) for file in pack(dvs, target_size=len(whole.data) - 1)] == [2, 1]


def test_many_small_dvs_share_one_file() -> None:
    assert len(pack(DeletionVector.from_positions([n]) for n in range(1000))) == 1


def test_what_cannot_be_packed() -> None:
    with pytest.raises(ValueError, match="never stored"):
        pack([DeletionVector.empty()])
    for size in (0, 2**31):
        with pytest.raises(ValueError, match="target size"):
            pack([], target_size=size)
    assert pack([]) == []


def test_the_empty_dv_inline() -> None:
    assert inline(DeletionVector.empty()) == EMPTY
    assert load(ref_of(inline=""), no_file) == DeletionVector.empty()


def test_near_dvs_come_in_one_fetch_with_the_version_byte_and_far_ones_alone() -> None:
    random_rows = np.random.default_rng(1).integers(0, 10**7, 40_000)
    big, small = DeletionVector.from_positions(random_rows), DeletionVector.from_positions([4])
    (file,) = pack([small, big, small])
    for descriptor, dv in zip(file.descriptors, (small, big, small), strict=True):
        stored = DvFile(file.data)
        assert descriptor.offset is not None
        assert load(DvRef("delta", len(dv), descriptor.size_in_bytes, URI, descriptor.offset), stored) == dv
        start = descriptor.offset if descriptor.offset > 70_000 else 0
        assert stored.fetched == [(start, descriptor.offset + descriptor.size_in_bytes + 8 - start)]
    assert start > 0, "the last one was far"


def test_a_file_without_a_version_byte_is_read_at_offset_0() -> None:
    bitmap = serialize(DeletionVector.from_positions([3]))
    for offset in (0, None):
        assert len(load(DvRef("delta", 1, len(bitmap), URI, offset), DvFile(framed(bitmap)[1:]))) == 1
        with pytest.raises(DamagedDeletionVectorError, match="the file says"):
            load(DvRef("delta", 1, len(bitmap), URI, offset), DvFile(framed(bitmap)))


# -- damage -------------------------------------------------------------------------------------------------------

BITMAP = serialize(DeletionVector.from_positions([1, 5, 9]))
GOOD = framed(BITMAP)
REF = DvRef("delta", 3, len(BITMAP), URI, 1)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "change", "reason"),
    [
        (GOOD, {"size": len(BITMAP) - 1}, "the file says 38 bytes, the descriptor 37"),
        (GOOD, {"size": len(BITMAP) + 1}, "the file says 38 bytes, the descriptor 39"),
        (GOOD, {"size": 2**31 - 1}, "truncated"),
        (GOOD, {"size": 2**31}, "size 2147483648 is outside"),
        (GOOD, {"size": -1}, "size -1 is outside"),
        (GOOD, {"offset": 2}, "the file says"),
        (GOOD, {"offset": -1}, "offset -1 is outside"),
        (GOOD, {"offset": 10_000}, "truncated: 0 bytes left"),
        (GOOD, {"offset": 10_000_000}, "truncated: 0 bytes left"),
        (GOOD, {"offset": 2**31 - 1}, "truncated: 0 bytes left"),
        (GOOD, {"cardinality": 2}, "holds 3 positions, the log says 2"),
        (b"", {}, "truncated"),
        (GOOD[:1], {}, "truncated"),
        (GOOD[:4], {}, "truncated"),
        (GOOD[:-1], {}, "truncated"),
        (flipped(GOOD, 0), {}, "format version is 65, not 1"),
        (flipped(GOOD, 2), {}, "the file says"),
        (flipped(GOOD, 6), {}, "CRC-32"),
        (flipped(GOOD, 20), {}, "CRC-32"),
        (flipped(GOOD, len(GOOD) - 1), {}, "CRC-32"),
        (framed(flipped(BITMAP, 1)), {}, "unknown magic number"),
        (framed(b"\x64\x39\xd3\xd1" + BITMAP[4:]), {}, "unknown magic number"),
        (framed(BITMAP[:-1]), {"size": len(BITMAP) - 1}, "truncated"),
        (framed(BITMAP + b"\0"), {"size": len(BITMAP) + 1}, "left after"),
        (framed(PORTABLE + struct.pack("<Q", 2**31)), {"size": 12}, "cannot fit"),
        (framed(b""), {"size": 0}, "too few for the magic"),
    ],
)
def test_damage_names_file_offset_and_reason(data: bytes, change: dict[str, Any], reason: str) -> None:
    ref = replace(REF, **change)
    with pytest.raises(DamagedDeletionVectorError, match=reason) as caught:
        load(ref, DvFile(data), rows=10)
    assert (caught.value.file, caught.value.offset) == (URI, ref.offset)
    assert caught.value.exit_code == 5
    assert URI in str(caught.value)
    assert str(ref.offset) in str(caught.value)


def test_the_undamaged_file_is_read() -> None:
    assert load(REF, DvFile(GOOD), rows=10).positions().tolist() == [1, 5, 9]


def test_positions_beyond_the_rows_of_the_file() -> None:
    with pytest.raises(DamagedDeletionVectorError, match="position 9 is beyond the file's 9 rows"):
        load(REF, DvFile(GOOD), rows=9)
    with pytest.raises(DamagedDeletionVectorError, match="0 rows"):
        load(REF, DvFile(GOOD), rows=0)


def test_a_missing_file() -> None:
    with pytest.raises(DamagedDeletionVectorError, match="does not exist") as caught:
        load(REF, no_file)
    assert caught.value.file == URI


def test_an_unknown_codec() -> None:
    with pytest.raises(UsageError, match="'morse'"):
        load(replace(REF, codec="morse"), no_file)


@pytest.mark.parametrize(
    ("text", "size", "reason"),
    [
        ("", 40, "holds 0 bytes, the descriptor says 40"),
        ("00000", 0, "holds 4 bytes, the descriptor says 0"),
        ("0000", 4, "a multiple of 5"),
        ("00~00", 4, "not a Z85 character"),
        ("#####", 4, "above the largest"),
        ("00000", 4, "unknown magic number 0"),
        ("00000", 5, "holds 4 bytes"),
        ("00000", 2**31 - 1, "holds 4 bytes"),
        ("00000", -1, "outside"),
    ],
)
def test_damaged_inline_text(text: str, size: int, reason: str) -> None:
    with pytest.raises(DamagedDeletionVectorError, match=reason) as caught:
        load(ref_of(cardinality=1, size=size, inline=text), no_file)
    assert caught.value.file is None
    assert "inline" in str(caught.value)


def test_absurd_sizes_are_refused_before_they_are_fetched() -> None:
    # The size word lies as well: only the file's real end tells.
    stored = DvFile(b"\1" + struct.pack(">i", 2**31 - 1) + BITMAP)
    with pytest.raises(DamagedDeletionVectorError, match="truncated"):
        load(replace(REF, size=2**31 - 1), stored)
    assert max(length for _, length in stored.fetched) == 1


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32), st.booleans())
def test_mutated_files_are_read_right_or_refused(seed: int, mend_checksum: bool) -> None:
    """With the checksum mended, the damage reaches the parser; without, nothing but the same set may come back."""
    chance = random.Random(seed)
    whole = DeletionVector.from_ranges([(10, 90_000)]) | DeletionVector.from_positions([100_000, 2**32 + 5])
    bitmap = bytearray(serialize(whole))
    target = bitmap if mend_checksum else bytearray(framed(bytes(bitmap)))
    for _ in range(chance.randint(1, 4)):
        target[chance.randrange(len(target))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    data = framed(bytes(target)) if mend_checksum else bytes(target)
    tracemalloc.start()
    try:
        dv = load(DvRef("delta", len(whole), len(bitmap), URI, 1), DvFile(data), rows=2**33)
    except DamagedDeletionVectorError:
        pass
    else:
        assert len(dv) == len(whole)
        assert mend_checksum or dv == whole
        if mend_checksum:
            assert dv.to_portable() == BitMap64.deserialize(data[9:-4]).serialize()
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1_000_000
