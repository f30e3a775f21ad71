"""Untrusted roaring bytes: what the format allows is read, everything else is refused with its reason."""

from __future__ import annotations

import random
import struct
import tracemalloc

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from dv_maintenance.dv import DeletionVector, roaring
from dv_maintenance.errors import DamagedDeletionVectorError

C = 1 << 16


def portable(*buckets: tuple[int, bytes], count: int | None = None) -> bytes:
    """A 64-bit bitmap of hand-made 32-bit ones."""
    body = b"".join(struct.pack("<I", key) + bitmap for key, bitmap in buckets)
    return struct.pack("<Q", len(buckets) if count is None else count) + body


def plain(*containers: tuple[int, int, bytes], offsets: list[int] | None = None) -> bytes:
    """A 32-bit bitmap without runs, of (key, cardinality, payload)."""
    sizes = [len(payload) for _, _, payload in containers]
    first = 8 + 8 * len(containers)
    if offsets is None:
        offsets = [first + sum(sizes[:index]) for index in range(len(containers))]
    heads = b"".join(struct.pack("<HH", key, cardinality - 1) for key, cardinality, _ in containers)
    where = struct.pack(f"<{len(offsets)}I", *offsets)
    return struct.pack("<II", 12346, len(containers)) + heads + where + b"".join(body for *_, body in containers)


def runs(key: int, cardinality: int, *pairs: tuple[int, int]) -> bytes:
    """A 32-bit bitmap of one run container of (start, length - 1)."""
    body = struct.pack("<H", len(pairs)) + b"".join(struct.pack("<HH", *pair) for pair in pairs)
    return struct.pack("<IBHH", 12347, 1, key, cardinality - 1) + body


def u16(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}H", *values)


BITSET = np.packbits(np.arange(C) % 2 == 0, bitorder="little").tobytes()

LEGAL = {
    "empty": (portable(), []),
    "an empty bucket, as gap fillers write": (portable((0, plain()), (1, plain((0, 1, u16(7))))), [(1 << 32) + 7]),
    "array": (portable((0, plain((0, 2, u16(1, 9)), (3, 1, u16(0))))), [1, 9, 3 * C]),
    "bitset": (portable((0, plain((1, C // 2, BITSET)))), range(C, 2 * C, 2)),
    "run": (portable((0, runs(2, 5, (1, 2), (9, 1)))), [2 * C + 1, 2 * C + 2, 2 * C + 3, 2 * C + 9, 2 * C + 10]),
    "full container": (portable((0, runs(0, C, (0, C - 1)))), range(C)),
    "largest bucket": (portable((2**31 - 1, plain((C - 1, 1, u16(C - 1))))), [2**63 - 1]),
}

DAMAGED = {
    "no count": (b"\1\0\0", "truncated"),
    "2^31 buckets": (portable(count=2**31), "cannot fit"),
    "2^63 buckets": (portable((0, plain()), count=2**63), "cannot fit"),
    "too few buckets": (portable((0, plain()), count=0), "left after"),
    "trailing byte": (portable((0, plain())) + b"\0", "left after"),
    "bucket twice": (portable((3, plain()), (3, plain())), "not ascending: 3 after 3"),
    "bucket with its high bit": (portable((2**31, plain())), "bucket key 2147483648 is above"),
    "unknown cookie": (portable((0, struct.pack("<II", 12345, 0))), "cookie 12345"),
    "2^31 containers": (portable((0, struct.pack("<II", 12346, 2**31))), "2147483648 containers"),
    "65536 containers in no bytes": (portable((0, struct.pack("<II", 12346, C))), "truncated"),
    "65536 run containers in no bytes": (portable((0, struct.pack("<II", 12347 | (C - 1) << 16, 0))), "truncated"),
    "container twice": (portable((0, plain((1, 1, u16(1)), (1, 1, u16(2))))), "container keys"),
    "containers out of order": (portable((0, plain((2, 1, u16(1)), (1, 1, u16(2))))), "container keys"),
    "array out of order": (portable((0, plain((0, 3, u16(1, 5, 4))))), "array container"),
    "array value twice": (portable((0, plain((0, 2, u16(5, 5))))), "array container"),
    "array cut": (portable((0, plain((0, 3, u16(1, 2))))), "truncated"),
    "bitset cut": (portable((0, plain((0, C // 2, BITSET[:-2])))), "truncated"),
    "bitset of another cardinality": (portable((0, plain((0, C // 2 + 1, BITSET)))), "bitset container"),
    "offsets of nowhere": (portable((0, plain((0, 1, u16(1)), offsets=[99]))), "offsets"),
    "no runs": (portable((0, runs(0, 1))), "no runs"),
    "run over the end": (portable((0, runs(0, 3, (C - 2, 2)))), "beyond its container"),
    "runs overlap": (portable((0, runs(0, 6, (1, 2), (3, 2)))), "runs of a container"),
    "runs touch": (portable((0, runs(0, 4, (1, 1), (3, 1)))), "runs of a container"),
    "runs out of order": (portable((0, runs(0, 2, (9, 0), (3, 0)))), "runs of a container"),
    "run of another cardinality": (portable((0, runs(0, 4, (1, 2)))), "cardinality of a run container differs"),
    "runs cut": (portable((0, runs(0, 2, (1, 0), (9, 0))[:-1])), "truncated"),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_bytes_are_read(name: str) -> None:
    data, expected = LEGAL[name]
    dv = DeletionVector.from_portable(data)
    assert dv.positions().tolist() == list(expected)
    assert DeletionVector.from_portable(dv.to_portable()) == dv


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_bytes_are_refused_with_the_reason(name: str) -> None:
    data, reason = DAMAGED[name]
    with pytest.raises(DamagedDeletionVectorError, match=reason):
        DeletionVector.from_portable(data)


def mixed() -> BitMap64:
    """Every kind of container, side by side, in two buckets; more than four run containers store offsets."""
    bitmap = BitMap64(range(0, C, 2)) | BitMap64(range(C, C + 4000, 3)) | BitMap64([2**33 + 1, 2**33 + C + 5])
    for start, stop in [(3 * C - 9, 5 * C), (6 * C + 1, 6 * C + 9), (7 * C, 9 * C + 2)]:
        bitmap.add_range(start, stop)
    bitmap.run_optimize()
    return bitmap


def test_neighbouring_containers_of_every_kind() -> None:
    bitmap = mixed()
    statistics = bitmap.get_statistics()
    assert min(statistics[f"n_{kind}_containers"] for kind in ("array", "bitset", "run")) > 0
    dv = DeletionVector.from_portable(bitmap.serialize())
    assert np.array_equal(dv.positions(), np.array(bitmap.to_array()))
    expected = [position not in bitmap for position in range(2 * C, 10 * C)]
    assert dv.keep_mask(2 * C, 10 * C).to_pylist() == expected


@settings(max_examples=examples(100))
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_mutated_bytes_are_read_right_or_refused(seed: int, changes: int) -> None:
    data = bytearray(mixed().serialize())
    chance = random.Random(seed)
    for _ in range(changes):
        # Mostly headers, where structure is; the payloads make up nearly all of the bytes.
        at = chance.randrange(min(len(data), chance.choice([16, 120, len(data)])))
        data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    if chance.random() < 0.2:
        del data[chance.randrange(len(data)) :]
    try:
        dv = DeletionVector.from_portable(bytes(data))
    except DamagedDeletionVectorError:
        return
    # What we let through is well formed for everybody: a second implementation reads the same set.
    assert dv.positions().tolist() == read_naively(bytes(data))


def read_naively(data: bytes) -> list[int]:
    """A second reader, straight from the format's text, value by value."""
    (count,) = struct.unpack_from("<Q", data)
    at, found = 8, []
    for _ in range(count):
        key, cookie = struct.unpack_from("<II", data, at)
        at += 8
        if cookie == 12346:
            (size,) = struct.unpack_from("<I", data, at)
            flags, at = 0, at + 4
        else:
            size = (cookie >> 16) + 1
            flags = int.from_bytes(data[at : at + (size + 7) // 8], "little")
            at += (size + 7) // 8
        heads = list(struct.iter_unpack("<HH", data[at : at + 4 * size]))
        at += 4 * size + (4 * size if cookie == 12346 or size >= 4 else 0)
        for index, (container, less) in enumerate(heads):
            base = (key << 32) + (container << 16)
            if flags >> index & 1:
                (pairs,) = struct.unpack_from("<H", data, at)
                for start, more in struct.iter_unpack("<HH", data[at + 2 : at + 2 + 4 * pairs]):
                    found += range(base + start, base + start + more + 1)
                at += 2 + 4 * pairs
            elif less < 4096:
                found += [base + value for value in struct.unpack_from(f"<{less + 1}H", data, at)]
                at += 2 * (less + 1)
            else:
                bits = int.from_bytes(data[at : at + 8192], "little")
                found += [base + bit for bit in range(C) if bits >> bit & 1]
                at += 8192
    return found


@pytest.mark.parametrize("name", [name for name, (_, reason) in DAMAGED.items() if "2^" in name or "65536" in name])
def test_lying_headers_cost_no_memory(name: str) -> None:
    data, _ = DAMAGED[name]
    tracemalloc.start()
    try:
        with pytest.raises(DamagedDeletionVectorError):
            roaring.check(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_few_bytes_that_stand_for_very_many_positions_stay_small() -> None:
    # 40 kB of full run containers are 2^28 positions: 2 GiB if anybody listed them.
    containers = 1 << 12
    heads = b"".join(struct.pack("<HH", key, C - 1) for key in range(containers))
    body = struct.pack("<HHH", 1, 0, C - 1) * containers
    first = 4 + containers // 8 + 8 * containers
    offsets = struct.pack(f"<{containers}I", *range(first, first + 6 * containers, 6))
    cookie = struct.pack("<I", 12347 | (containers - 1) << 16)
    data = portable((0, cookie + b"\xff" * (containers // 8) + heads + offsets + body))
    tracemalloc.start()
    try:
        dv = DeletionVector.from_portable(data)
        assert dv.cardinality == containers * C
        assert dv.keep_mask(5 * C + 3, 6 * C).true_count == 0
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9000), st.integers(1, 4)), max_size=5))
def test_packed_positions_and_bits_are_what_pyroaring_reads(parts: list[tuple[int, int, int]]) -> None:
    chosen = sorted({position for start, n, step in parts for position in range(start * C, start * C + n * step, step)})
    bitmap = BitMap64(chosen)
    assert BitMap64.deserialize(roaring.pack_positions(np.array(chosen, dtype=np.uint64))) == bitmap
    flags = np.zeros(7 * C, dtype=bool)
    flags[chosen] = True
    assert BitMap64.deserialize(roaring.pack_bits(np.packbits(flags, bitorder="little"))) == bitmap


def test_bitmap_end_is_by_the_headers() -> None:
    bitmap = BitMap(range(0, 9000, 2)).serialize()
    assert roaring.bitmap_end(b"ab" + bitmap + b"more", 2) == 2 + len(bitmap)
