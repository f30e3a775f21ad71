"""Lance's deletion files: golden ones, what its library reads of ours, and every way in which they can be damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap
from support.dv_files import DvFile

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.lance import ARRAY, BITMAP, MAX_OFFSET, decode, encode, encode_array, encode_bitmap
from dv_maintenance.dv.roaring import pack_positions
from dv_maintenance.errors import DamagedDeletionVectorError
from dv_maintenance.tables.dv_codecs import load
from dv_maintenance.tables.work import DvRef

URI = "s3://bucket/table/_deletions/0-1-2.bin"
KINDS = [ARRAY, BITMAP]
SCHEMA = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])


def ref_of(codec: str, cardinality: int = 3) -> DvRef:
    return DvRef(codec, cardinality, 0, URI)


def ipc(*columns: list[int | None], schema: pa.Schema = SCHEMA, compression: str | None = "zstd") -> bytes:
    """An Arrow IPC file with a batch for each column given."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for column in columns:
            writer.write_batch(pa.record_batch([pa.array(column, schema.field(0).type)], schema=schema))
    return bytes(sink.getvalue())


# -- golden -------------------------------------------------------------------------------------------------------


def test_golden_deletion_files(golden: Path) -> None:
    kinds = {"array": ARRAY, "bitmap": BITMAP}
    read = dict.fromkeys(KINDS, 0)
    for expected in sorted((golden / "lance").glob("*/expected.json")):
        for version in json.loads(expected.read_text()).get("versions", {}).values():
            for fragment in version["fragments"]:
                if fragment.get("deletion"):
                    codec = kinds[fragment["deletion"]["kind"]]
                    file = DvFile((expected.parent / fragment["deletion"]["path"]).read_bytes())
                    dv = load(ref_of(codec, fragment["deleted_count"]), file, rows=fragment["physical_rows"])
                    assert [[start, stop - start] for start, stop in dv.ranges()] == fragment["deleted_runs"]
                    text = ",".join(map(str, dv.positions().tolist()))
                    assert hashlib.sha256(text.encode()).hexdigest() == fragment["deleted_sha256"]
                    assert len(file.fetched) == 1
                    read[codec] += 1
    assert read[ARRAY] > 50
    assert read[BITMAP] >= 5


# -- writing ------------------------------------------------------------------------------------------------------

OFFSETS = st.frozensets(st.one_of(st.integers(0, 200), st.integers(0, MAX_OFFSET)), min_size=1, max_size=60)


@settings(max_examples=examples(60), deadline=None)
@given(OFFSETS, st.sampled_from(KINDS))
def test_what_is_written_is_read_back(offsets: frozenset[int], codec: str) -> None:
    dv = DeletionVector.from_positions(offsets)
    file = DvFile(encode(codec, dv))
    assert load(ref_of(codec, len(dv)), file, rows=MAX_OFFSET + 1) == dv
    assert len(file.fetched) == 1


def test_others_read_what_is_written() -> None:
    dv = DeletionVector.from_ranges([(5, 70_000)]) | DeletionVector.from_positions([2, 200_000, MAX_OFFSET])
    assert list(BitMap.deserialize(encode_bitmap(dv))) == dv.positions().tolist()
    table = pa.ipc.open_file(encode_array(dv)).read_all()
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert table["row_id"].to_pylist() == dv.positions().tolist()


@pytest.mark.parametrize("codec", KINDS)
def test_lance_reads_what_is_written(pylance: ModuleType, tmp_path: Path, codec: str) -> None:
    path = str(tmp_path / "t")
    dataset = pylance.write_dataset(pa.table({"id": pa.array(range(100_000), pa.int64())}), path)
    dataset.delete("id = 0" if codec == ARRAY else "id < 5000")
    (fragment,) = dataset.get_fragments()
    deletions = fragment.metadata.deletion_file
    assert deletions.file_type == codec.removeprefix("lance-")
    dv = DeletionVector.from_ranges([(17, 17 + deletions.num_deleted_rows - 1), (99_999, 100_000)])
    (tmp_path / "t" / deletions.path(fragment.fragment_id)).write_bytes(encode(codec, dv))

    # Opened by another name: Lance keeps what it has read.
    (tmp_path / "t").rename(tmp_path / "u")
    again = pylance.dataset(str(tmp_path / "u"))
    again.validate()
    left = again.to_table()["id"].to_numpy()
    assert np.array_equal(left, np.setdiff1d(np.arange(100_000), dv.positions().astype(np.int64)))


@pytest.mark.parametrize("codec", KINDS)
def test_what_cannot_be_written(codec: str) -> None:
    with pytest.raises(ValueError, match="never stored"):
        encode(codec, DeletionVector.empty())
    with pytest.raises(ValueError, match="above the format's largest"):
        encode(codec, DeletionVector.from_positions([MAX_OFFSET + 1]))


# -- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_arrays_need_not_be_sorted(compression: str | None) -> None:
    assert decode(ARRAY, ipc([9, 1, 5], compression=compression)).positions().tolist() == [1, 5, 9]


def test_the_largest_offset_and_none() -> None:
    assert decode(ARRAY, ipc([MAX_OFFSET])).max() == decode(BITMAP, BitMap([MAX_OFFSET]).serialize()).max()
    assert decode(ARRAY, ipc([])) == decode(BITMAP, BitMap().serialize()) == DeletionVector.empty()


def test_bitmaps_with_and_without_runs() -> None:
    dv = DeletionVector.from_ranges([(10, 90_000)])
    with_runs, without = encode(BITMAP, dv), pack_positions(dv.positions())[12:]
    assert (with_runs[:2], without[:2]) == (b"\x3b\x30", b"\x3a\x30")
    assert decode(BITMAP, with_runs) == decode(BITMAP, without) == dv


def test_a_file_larger_than_its_count_foretells_is_read_whole() -> None:
    data = ipc(list(range(100_000)), compression=None)
    file = DvFile(data)
    with pytest.raises(DamagedDeletionVectorError, match="holds 100000 positions, the log says 3"):
        load(ref_of(ARRAY, 3), file)
    assert len(file.fetched) == 2
    assert sum(min(length, len(data) - start) for start, length in file.fetched) == len(data)


# -- damage -------------------------------------------------------------------------------------------------------

GOOD = {ARRAY: ipc([1, 5, 9]), BITMAP: BitMap([1, 5, 9]).serialize()}
BIG = pa.schema([pa.field("row_id", pa.int64(), nullable=False)])
OTHER = pa.schema([pa.field("offset", pa.uint32(), nullable=False)])
NULLS = pa.schema([pa.field("row_id", pa.uint32())])


@pytest.mark.parametrize(
    ("codec", "data", "reason"),
    [
        (ARRAY, b"", "not an Arrow IPC file"),
        (ARRAY, b"not arrow at all, but of some length", "not an Arrow IPC file"),
        (ARRAY, GOOD[ARRAY][:100], "truncated: the Arrow IPC file does not end with its magic number after 100 bytes"),
        (ARRAY, GOOD[ARRAY][:-1], "truncated"),
        (ARRAY, b"ARROW1\0\0ARROW1", "cannot be read"),
        (ARRAY, ipc([1, 5, 9], schema=BIG), r"are \(row_id: int64 not null\), not \(row_id: uint32 not null\)"),
        (ARRAY, ipc([1, 5, 9], schema=OTHER), r"its columns are \(offset: uint32 not null\)"),
        (ARRAY, ipc([1, None, 9]), "1 of 3 offsets are null"),
        # Lance reads neither of these two.
        (ARRAY, ipc([1, 5, 9], schema=NULLS), r"its columns are \(row_id: uint32\), not"),
        (ARRAY, ipc([1, 5, 9], schema=SCHEMA.with_metadata({"a": "b"})), "its schema has metadata"),
        (ARRAY, ipc([1, 5, 5, 9]), "1 of 4 offsets are duplicates"),
        (ARRAY, ipc(), "0 record batches, not one"),
        (ARRAY, ipc([1], [5], [9]), "3 record batches, not one"),
        (ARRAY, GOOD[BITMAP], "not an Arrow IPC file"),
        (ARRAY, ipc([1, 5]), "holds 2 positions, the log says 3"),
        (ARRAY, ipc([1, 5, 10]), "position 10 is beyond the file's 10 rows"),
        (BITMAP, b"", "truncated"),
        (BITMAP, GOOD[BITMAP][:-1], "truncated: 21 bytes, at least 22 needed"),
        (BITMAP, GOOD[BITMAP] + b"\0", "1 bytes are left after the bitmap"),
        (BITMAP, GOOD[ARRAY], "unknown roaring cookie"),
        (BITMAP, GOOD[BITMAP][:-2] + b"\1\0", "not ascending"),
        (BITMAP, struct.pack("<II", 12346, 65_536), "truncated"),
        (BITMAP, struct.pack("<II", 12346, 65_537), "65537 containers"),
        (BITMAP, BitMap([1, 5]).serialize(), "holds 2 positions, the log says 3"),
        (BITMAP, BitMap([1, 5, 10]).serialize(), "position 10 is beyond the file's 10 rows"),
    ],
)
def test_damage_names_file_and_reason(codec: str, data: bytes, reason: str) -> None:
    with pytest.raises(DamagedDeletionVectorError, match=reason) as caught:
        load(ref_of(codec), DvFile(data), rows=10)
    assert caught.value.file == URI
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("codec", KINDS)
def test_the_undamaged_file_is_read(codec: str) -> None:
    assert load(ref_of(codec), DvFile(GOOD[codec]), rows=10).positions().tolist() == [1, 5, 9]


@pytest.mark.parametrize("codec", KINDS)
def test_a_missing_file_and_none_at_all(codec: str) -> None:
    def no_file(uri: str, start: int, length: int) -> bytes:
        raise FileNotFoundError(uri)

    with pytest.raises(DamagedDeletionVectorError, match="does not exist"):
        load(ref_of(codec), no_file)
    with pytest.raises(DamagedDeletionVectorError, match="never inline"):
        load(replace(ref_of(codec), uri=None), no_file)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(KINDS), st.binary(max_size=200))
def test_random_bytes_are_refused_or_read(codec: str, data: bytes) -> None:
    for prefix in (b"", b"ARROW1\0\0"):
        for suffix in (b"", b"ARROW1"):
            with contextlib.suppress(DamagedDeletionVectorError):
                decode(codec, prefix + data + suffix)


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(KINDS), st.integers(0, 2**32))
def test_mutated_files_are_refused_or_read(codec: str, seed: int) -> None:
    chance = random.Random(seed)
    whole = DeletionVector.from_ranges([(10, 3000)]) | DeletionVector.from_positions([100_000])
    data = bytearray(encode(codec, whole))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    tracemalloc.start()
    try:
        dv = load(ref_of(codec, len(whole)), DvFile(bytes(data)), rows=2**20)
    except DamagedDeletionVectorError:
        pass
    else:
        assert len(dv) == len(whole)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2_000_000
