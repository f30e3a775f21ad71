"""Puffin files: golden ones, round trips, and every way in which a blob or a footer can be damaged."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from support.dv_files import DvFile

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.delta import MAX_POSITION, NATIVE_MAGIC
from dv_maintenance.dv.iceberg import CODEC, decode, encode, inline, pack, read_footer
from dv_maintenance.errors import DamagedDeletionVectorError
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.work import DvRef

URI = "s3://bucket/table/data/1-deletes.puffin"
# Of two containers of equal size, pyroaring chooses an array, as Java does, from this release on.
OTHER_RUNS = Version(version("pyroaring")) < Version("1.1")
POSITIONS = st.sets(st.integers(0, 5000) | st.integers(0, MAX_POSITION), min_size=1, max_size=40)


def ref_of(
    offset: int | None, size: int, cardinality: int = 3, uri: str | None = URI, inline: str | None = None
) -> DvRef:
    return DvRef(CODEC, cardinality, size, uri, offset, inline)


def dv_of(*positions: int) -> DeletionVector:
    return DeletionVector.from_positions(positions)


def test_dvs_of_golden_tables(golden: Path) -> None:
    """As the manifests place them, whether the file has a footer or not; and where it has one, the two agree."""
    read = footers = 0
    for expected in sorted((golden / "iceberg").glob("*/expected.json")):
        facts = json.loads(expected.read_text())
        if facts["kind"] == "damaged":
            continue
        for file in facts["snapshots"][-1]["files"]:
            if not (dv := file["dv"]) or "positions" not in dv:
                continue
            data = (expected.parent / "table" / dv["path"]).read_bytes()
            stored = DvFile(data)
            found = load(ref_of(dv["offset"], dv["length"], dv["cardinality"]), stored, rows=file["rows"])
            assert found.positions().tolist() == dv["positions"]
            assert stored.fetched == [(dv["offset"], dv["length"])]
            blob = encode(found)
            assert decode(blob, len(blob)) == found
            assert OTHER_RUNS or blob == data[dv["offset"] : dv["offset"] + dv["length"]]
            read += 1
            if data[:4] == b"PFA1":
                (blob,) = [each for each in read_footer(URI, len(data), stored) if each.offset == dv["offset"]]
                assert (blob.length, blob.cardinality) == (dv["length"], dv["cardinality"])
                assert str(blob.data_file).endswith(file["path"]) or facts["name"] == "bad_wrong_reference"
                footers += 1
    assert read > 50
    assert footers > 50


@settings(max_examples=examples(50))
@given(st.lists(POSITIONS, min_size=1, max_size=4))
def test_files_come_back(sets: list[set[int]]) -> None:
    dvs = [dv_of(*sorted(each)) for each in sets]
    made = pack([(f"data/{n}.parquet", dv) for n, dv in enumerate(dvs)], created_by="tests")
    file = DvFile(made.data)
    assert read_footer(URI, len(made.data), file) == made.blobs
    for n, (blob, dv) in enumerate(zip(made.blobs, dvs, strict=True)):
        assert load(ref_of(blob.offset, blob.length, dv.cardinality), file) == dv
        assert (blob.data_file, blob.cardinality) == (f"data/{n}.parquet", dv.cardinality)


@given(POSITIONS)
def test_positions_travel_inline(positions: set[int]) -> None:
    dv = dv_of(*sorted(positions))
    text, size = inline(dv)
    assert load(ref_of(None, size, dv.cardinality, None, inline=text), DvFile(b"")) == dv


def test_what_is_never_stored() -> None:
    for pairs in ([], [("a", DeletionVector.empty())], [("a", dv_of(MAX_POSITION + 1))]):
        with pytest.raises(ValueError, match=r"needs deletion vectors|never stored|above the format's largest"):
            pack(pairs, created_by="tests")


@pytest.mark.parametrize(
    ("ref", "damage", "reason"),
    [
        (ref_of(4, 0), lambda blob: blob, "length 0 is outside"),
        (ref_of(-1, 54), lambda blob: blob, "offset -1 is outside"),
        (ref_of(4, 55), lambda blob: blob, "the file says"),
        (ref_of(4, 54), lambda blob: blob[:-1], "truncated"),
        (ref_of(4, 54), lambda blob: b"", "truncated"),
        (ref_of(4, 54), lambda blob: blob[:20] + b"\xff" + blob[21:], "CRC-32"),
        (ref_of(4, 54, 4), lambda blob: blob, "it holds 3 positions, the log says 4"),
        (ref_of(2**31, 54), lambda blob: blob, "offset 2147483648 is outside"),
    ],
)
def test_damaged_blobs_are_refused(ref: DvRef, damage: Callable[[bytes], bytes], reason: str) -> None:
    blob = encode(dv_of(1, 5, 70_000))
    assert len(blob) == 54
    with pytest.raises(DamagedDeletionVectorError, match=reason) as caught:
        load(ref, DvFile(b"PFA1" + damage(blob)))
    assert (caught.value.file, caught.value.offset) == (URI, ref.offset)


def test_positions_beyond_the_file_are_refused() -> None:
    blob = encode(dv_of(1, 5, 60))
    assert load(ref_of(0, len(blob)), DvFile(blob), rows=61)
    with pytest.raises(DamagedDeletionVectorError, match="position 60 is beyond the file's 60 rows"):
        load(ref_of(0, len(blob)), DvFile(blob), rows=60)


@pytest.mark.parametrize("magic", [NATIVE_MAGIC, 0, 1581511376])
def test_only_the_portable_magic_number_is_known(magic: int) -> None:
    body = struct.pack("<i", magic) + encode(dv_of(1, 2, 3))[8:-4]
    blob = struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    with pytest.raises(DamagedDeletionVectorError, match="unknown magic number"):
        decode(blob, len(blob))


def test_a_huge_length_is_checked_before_it_is_fetched() -> None:
    file = DvFile(b"PFA1" + encode(dv_of(1, 2, 3)))
    with pytest.raises(DamagedDeletionVectorError, match="truncated"):
        load(ref_of(4, 1 << 30), file)
    assert file.fetched == [(4 + (1 << 30) - 1, 1)]


# -- footers --------------------------------------------------------------------------------------------------------

SOUND = pack([("a.parquet", dv_of(1, 5))], created_by="tests").data


def footer(payload: bytes, flags: int = 0, length: int | None = None) -> bytes:
    size = struct.pack("<iI", len(payload) if length is None else length, flags)
    return b"PFA1" + b"PFA1" + payload + size + b"PFA1"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes are too few"),
        (encode(dv_of(1, 2, 3, 100_000)), "does not end with Puffin's magic number"),
        (footer(b"{}", length=100), "its footer has 100 bytes"),
        (footer(b"{}", length=-1), "its footer has -1 bytes"),
        (footer(b"{}", flags=2), "flags 0x2"),
        (footer(b"{}"), "its footer is damaged: KeyError"),
        (footer(b"[1"), "its footer is damaged"),
        (footer(b'{"blobs": [{"type": "x", "offset": 4, "length": 900}]}'), "a blob of 900 bytes at 4"),
        (footer(b'{"blobs": [{"type": "x", "offset": 4}]}'), "its footer is damaged: KeyError"),
        (footer(b'{"blobs": [{"type": "x", "offset": 4, "length": 1e999}]}'), "its footer is damaged: OverflowError"),
        (footer(b"[" * 100_000), "its footer is damaged: RecursionError"),
    ],
)
def test_damaged_footers_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedDeletionVectorError, match=reason) as caught:
        read_footer(URI, len(data), DvFile(data))
    assert caught.value.file == URI


@settings(max_examples=examples(100))
@given(st.integers(0, len(SOUND) - 1), st.integers(0, 255))
def test_a_changed_byte_is_damage_or_harmless(at: int, byte: int) -> None:
    data = SOUND[:at] + bytes([byte]) + SOUND[at + 1 :]
    with suppress(DamagedDeletionVectorError):
        read_footer(URI, len(data), DvFile(data))


def test_a_footer_that_only_says_that_it_is_packed_is_damage() -> None:
    with pytest.raises(DamagedDeletionVectorError, match="can't be unpacked"):
        read_footer(URI, len(data := footer(b'{"blobs": []}', flags=1)), DvFile(data))


def test_a_packed_footer_is_read() -> None:
    plain = json.dumps({"blobs": [{"type": "x", "fields": [1], "offset": 4, "length": 0}]}).encode()
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(plain)
    (blob,) = read_footer(URI, len(data := footer(sink.getvalue().to_pybytes(), flags=1)), DvFile(data))
    assert (blob.type, blob.offset, blob.length) == ("x", 4, 0)
