"""Portable roaring bytes: validate them, make them from bits and positions, and unpack them into bits.

pyroaring does set algebra well, but checks the structure of bytes only loosely (array order, cardinalities and runs
are taken on faith) and builds sets value by value. This module works on whole containers instead. A container holds the
positions that share their upper 48 bits: up to 4096 sorted values, a bitset of 8192 bytes (in the bit order of an Arrow
boolean buffer) or runs. Source: the RoaringFormatSpec, with its extension for 64-bit implementations:
``uint64 count, count * (uint32 bucket key, 32-bit bitmap)``, all little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dv_maintenance.errors import DamagedDeletionVectorError

CONTAINER = 1 << 16
"""Positions per container."""
MAX_BUCKET = 2**31 - 1
"""Largest bucket key: positions are signed 64-bit integers to most engines."""

_NO_RUNS = 12346
_WITH_RUNS = 12347
_LARGEST_ARRAY = 4096
_BITSET_BYTES = CONTAINER // 8
_BITSET_WORDS = _BITSET_BYTES // 2
_OFFSETS_FROM = 4  # bitmaps with runs store container offsets only from this many containers on
_SMALLEST_BUCKET = 12  # key, cookie and count of an empty bitmap

Bytes = bytes | memoryview
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Bucket:
    """The containers of one 32-bit bitmap, in the bytes they came in. Arrays have one element per container.

    ``numbers``: position >> 16, ascending. ``words``: all payloads as uint16; a container's begins at ``starts``.
    """

    numbers: Ints
    cardinalities: Ints
    is_run: npt.NDArray[np.bool_]
    starts: Ints
    words: npt.NDArray[np.uint16]
    end: int

    @property
    def is_array(self) -> npt.NDArray[np.bool_]:
        return ~self.is_run & (self.cardinalities <= _LARGEST_ARRAY)

    @property
    def is_bitset(self) -> npt.NDArray[np.bool_]:
        return ~self.is_run & (self.cardinalities > _LARGEST_ARRAY)

    def array_positions(self) -> Ints:
        """All positions in array containers, in stored order."""
        chosen = self.is_array
        lengths = self.cardinalities[chosen]
        return _spread(self.numbers[chosen], lengths) | self._payload(self.starts[chosen], lengths)

    def runs(self) -> tuple[Ints, Ints, Ints]:
        """First and last position of each run in stored order, and how many runs each run container has."""
        chosen = self.is_run
        starts = self.starts[chosen]
        counts = self.words[starts].astype(np.int64)
        pairs = self._payload(starts + 1, 2 * counts).astype(np.int64)
        first = _spread(self.numbers[chosen], counts) + pairs[0::2]
        return first, first + pairs[1::2], counts

    def _payload(self, starts: Ints, lengths: Ints) -> npt.NDArray[np.uint16]:
        total = int(lengths.sum())
        if total == self.words.size:
            return self.words
        before = np.cumsum(lengths) - lengths
        return self.words[np.repeat(starts - before, lengths) + np.arange(total)]


def _spread(numbers: Ints, lengths: Ints) -> Ints:
    return np.repeat(numbers << 16, lengths)


# -- reading ------------------------------------------------------------------------------------------------------


def check(data: Bytes) -> None:
    """Refuse bytes that are not exactly one well-formed 64-bit bitmap.

    Costs memory in proportion to ``data``, whatever its headers claim.

    Raises
    ------
    DamagedDeletionVectorError : with the reason.
    """
    for bucket in _buckets(data):
        _check_bucket(bucket)


def check_bitmap(data: Bytes) -> None:
    """Refuse bytes that are not exactly one well-formed 32-bit bitmap. Costs and raises as :func:`check`."""
    bucket = _bucket(data, 0, 0)
    if bucket.end != len(data):
        raise DamagedDeletionVectorError(f"{len(data) - bucket.end} bytes are left after the bitmap")
    _check_bucket(bucket)


def _check_bucket(bucket: _Bucket) -> None:
    positions = bucket.array_positions()
    if not (positions[1:] > positions[:-1]).all():
        raise DamagedDeletionVectorError("the values of an array container are not ascending")
    _check_bitsets(bucket)
    _check_runs(bucket)


def _check_bitsets(bucket: _Bucket) -> None:
    chosen = bucket.is_bitset
    counted = _true_counts(bucket.words, bucket.starts[chosen] * 2)
    if counted != bucket.cardinalities[chosen].tolist():
        raise DamagedDeletionVectorError("the cardinality of a bitset container differs from its header")


def _check_runs(bucket: _Bucket) -> None:
    if not bucket.is_run.any():
        return
    first, last, counts = bucket.runs()
    if not counts.all():
        raise DamagedDeletionVectorError("a run container has no runs")
    if ((first >> 16) != (last >> 16)).any():
        raise DamagedDeletionVectorError("a run extends beyond its container")
    # Runs that touch must be one run, unless a container ends between them.
    gap_needed = 1 + ((first[1:] >> 16) == (last[:-1] >> 16))
    if (first[1:] - last[:-1] < gap_needed).any():
        raise DamagedDeletionVectorError("the runs of a container overlap or are not ascending")
    totals = np.add.reduceat(last - first + 1, np.cumsum(counts) - counts)
    if (totals != bucket.cardinalities[bucket.is_run]).any():
        raise DamagedDeletionVectorError("the cardinality of a run container differs from its header")


def bitmap_end(data: Bytes, at: int) -> int:
    """The end of the 32-bit bitmap that begins at ``at``, according to its headers."""
    return _bucket(data, at, 0).end


def unpack_bits(data: bytes, first: int, count: int) -> npt.NDArray[np.uint8]:
    """The containers ``first .. first + count`` as packed bits, least significant bit first.

    ``data`` is trusted (it passed :func:`check` or comes from pyroaring) and holds no position outside of them.
    """
    # One word more, for the end of a run that fills the last container.
    words = np.zeros(count * (CONTAINER // 64) + 1, dtype="<u8")
    bits = words.view(np.uint8)
    buckets = list(_buckets(data))
    if any(bucket.is_run.any() for bucket in buckets):
        for bucket in buckets:
            starts, last, _ = bucket.runs()
            for edges in (starts, last + 1):
                edges -= first * CONTAINER
                np.bitwise_xor.at(bits, edges >> 3, _bit(edges))
        _fill_between_edges(words)
    containers = bits[:-8].view("<u2").reshape(count, _BITSET_WORDS)
    for bucket in buckets:
        chosen = bucket.is_bitset
        numbers = bucket.numbers[chosen] - first
        for number, start in zip(numbers.tolist(), bucket.starts[chosen].tolist(), strict=True):
            containers[number] = bucket.words[start : start + _BITSET_WORDS]
        positions = bucket.array_positions() - first * CONTAINER
        # Distinct bits, so adding sets them; `add.at` is much faster.
        np.add.at(bits, positions >> 3, _bit(positions))
    return bits[:-8]


def _bit(positions: Ints) -> npt.NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (positions & 7).astype(np.uint8))


def _fill_between_edges(words: npt.NDArray[np.uint64]) -> None:
    """Set every bit that has an odd number of set bits at or below it, in place: a prefix parity.

    With the first bit of each run and the one after its end set, this fills all runs at once, however many.
    """
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(shift)
    odd = np.bitwise_xor.accumulate(words >> np.uint64(63))
    words[1:] ^= np.uint64(0) - odd[:-1]


def _buckets(data: Bytes) -> Iterator[_Bucket]:
    (count,) = _read("<Q", data, 0)
    if count * _SMALLEST_BUCKET > len(data) - 8:
        raise DamagedDeletionVectorError(f"{count} buckets cannot fit into {len(data)} bytes")
    at, previous = 8, -1
    for _ in range(count):
        (key,) = _read("<I", data, at)
        if key > MAX_BUCKET:
            raise DamagedDeletionVectorError(f"bucket key {key} is above {MAX_BUCKET}")
        if key <= previous:
            raise DamagedDeletionVectorError(f"bucket keys are not ascending: {key} after {previous}")
        bucket = _bucket(data, at + 4, key)
        yield bucket
        at, previous = bucket.end, key
    if at != len(data):
        raise DamagedDeletionVectorError(f"{len(data) - at} bytes are left after the last bucket")


def _bucket(data: Bytes, at: int, key: int) -> _Bucket:
    (cookie,) = _read("<I", data, at)
    if cookie == _NO_RUNS:
        (count,) = _read("<I", data, at + 4)
        headers, flag_bytes = at + 8, 0
    elif cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flag_bytes = (count + 7) // 8
        headers = at + 4 + flag_bytes
    else:
        raise DamagedDeletionVectorError(f"unknown roaring cookie {cookie}")
    if count > CONTAINER:
        raise DamagedDeletionVectorError(f"{count} containers in a bucket that has room for {CONTAINER}")
    has_offsets = not flag_bytes or count >= _OFFSETS_FROM
    payload = headers + 4 * count + 4 * count * has_offsets
    _need(data, payload)

    pairs = np.frombuffer(data, "<u2", 2 * count, headers).astype(np.int64)
    keys, cardinalities = pairs[0::2], pairs[1::2] + 1
    if not (keys[1:] > keys[:-1]).all():
        raise DamagedDeletionVectorError("container keys are not ascending")
    sizes = np.where(cardinalities <= _LARGEST_ARRAY, 2 * cardinalities, _BITSET_BYTES)
    is_run = np.zeros(count, dtype=np.bool_)
    if flag_bytes:
        flags = np.frombuffer(data, np.uint8, flag_bytes, at + 4)
        is_run = np.unpackbits(flags, count=count, bitorder="little").view(np.bool_)
        _add_run_sizes(data, payload, sizes, is_run)
    ends = payload + np.cumsum(sizes)
    end = int(ends[-1]) if count else payload
    _need(data, end)
    if has_offsets:
        # Redundant, and most readers skip them. Some do not, and all readers must see the same set.
        offsets = np.frombuffer(data, "<u4", count, headers + 4 * count)
        if (offsets != ends - sizes - at).any():
            raise DamagedDeletionVectorError("container offsets contradict the containers' sizes")
    words = np.frombuffer(data, "<u2", (end - payload) // 2, payload)
    return _Bucket((key << 16) + keys, cardinalities, is_run, (ends - sizes - payload) // 2, words, end)


def _add_run_sizes(data: Bytes, payload: int, sizes: Ints, is_run: npt.NDArray[np.bool_]) -> None:
    """Fill in the sizes of run containers: each begins with its number of runs, so they are found one by one."""
    at, done = payload, 0
    for index in np.flatnonzero(is_run).tolist():
        at += int(sizes[done:index].sum())
        (runs,) = _read("<H", data, at)
        sizes[index] = 2 + 4 * runs
        at += 2 + 4 * runs
        done = index + 1


def _read(layout: str, data: Bytes, at: int) -> tuple[Any, ...]:
    _need(data, at + struct.calcsize(layout))
    return struct.unpack_from(layout, data, at)


def _need(data: Bytes, end: int) -> None:
    if end > len(data):
        raise DamagedDeletionVectorError(f"truncated: {len(data)} bytes, at least {end} needed")


# -- writing ------------------------------------------------------------------------------------------------------


def pack_bits(bits: npt.NDArray[np.uint8]) -> bytes:
    """The 64-bit bitmap of packed bits (least significant first), without run containers."""
    padded = np.zeros(-(-len(bits) // _BITSET_BYTES) * _BITSET_BYTES, dtype=np.uint8)
    padded[: len(bits)] = bits
    counts = np.array(_true_counts(padded, range(0, len(padded), _BITSET_BYTES)), dtype=np.int64)
    numbers = np.flatnonzero(counts)
    cardinalities = counts[numbers]
    sparse = cardinalities <= _LARGEST_ARRAY
    containers = padded.reshape(-1, _BITSET_BYTES)
    values = _positions_of_bits(containers[numbers[sparse]]).astype("<u2")
    ends = np.cumsum(np.where(sparse, cardinalities, 0))
    payloads = [
        values[end - cardinality : end] if is_sparse else containers[number]
        for number, cardinality, is_sparse, end in zip(
            numbers.tolist(), cardinalities.tolist(), sparse.tolist(), ends.tolist(), strict=True
        )
    ]
    return _portable(numbers, cardinalities, payloads)


def pack_positions(positions: npt.NDArray[np.uint64]) -> bytes:
    """The 64-bit bitmap of strictly ascending positions, without run containers."""
    numbers = (positions >> np.uint64(16)).astype(np.int64)
    begins = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1]))) if len(numbers) else numbers
    cardinalities = np.diff(begins, append=len(positions))
    values = positions.astype("<u2")
    payloads = []
    for begin, cardinality in zip(begins.tolist(), cardinalities.tolist(), strict=True):
        payload = values[begin : begin + cardinality]
        if cardinality > _LARGEST_ARRAY:
            flags = np.zeros(CONTAINER, dtype=np.bool_)
            flags[payload] = True
            payload = np.packbits(flags, bitorder="little")
        payloads.append(payload)
    return _portable(numbers[begins], cardinalities, payloads)


def _portable(numbers: Ints, cardinalities: Ints, payloads: Sequence[npt.NDArray[Any]]) -> bytes:
    buckets, begins = np.unique(numbers >> 16, return_index=True)
    parts: list[Any] = [struct.pack("<Q", len(buckets))]
    edges = pairwise([*begins.tolist(), len(numbers)])
    for bucket, (begin, end) in zip(buckets.tolist(), edges, strict=True):
        count = end - begin
        headers = np.column_stack((numbers[begin:end] & 0xFFFF, cardinalities[begin:end] - 1)).astype("<u2")
        sizes = np.array([payload.nbytes for payload in payloads[begin:end]], dtype=np.int64)
        offsets = (8 + 8 * count + np.cumsum(sizes) - sizes).astype("<u4")
        parts += [struct.pack("<III", bucket, _NO_RUNS, count), headers.tobytes(), offsets, *payloads[begin:end]]
    return b"".join(parts)


def _positions_of_bits(containers: npt.NDArray[np.uint8]) -> Ints:
    """Indexes of the set bits. Looks only into words that have any."""
    words = containers.reshape(-1).view("<u8")
    filled = np.flatnonzero(words)
    found = np.flatnonzero(np.unpackbits(words[filled].view(np.uint8), bitorder="little").view(np.bool_))
    positions: Ints = (filled[found >> 6] << 6) | (found & 63)
    return positions


def _true_counts(buffer: npt.NDArray[Any], starts: Sequence[int] | Ints) -> list[int]:
    """Set bits in each container of 8192 bytes that begins at one of ``starts`` (bytes)."""
    # Arrow counts bits without the NumPy 2 that `bitwise_count` would need.
    source = pa.py_buffer(buffer)
    return [
        pa.Array.from_buffers(pa.bool_(), CONTAINER, [None, source.slice(int(start), _BITSET_BYTES)]).true_count
        for start in starts
    ]
