"""Whether two scans hold the same rows, whatever their order: a sum of row hashes, computed one batch at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

_MASK: Final = (1 << 64) - 1
_NULL: Final = np.uint64(0x9E3779B97F4A7C15)
# Odd constants of SplitMix64, and one seed for each half of the digest.
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SEEDS: Final = (np.uint64(0x2545F4914F6CDD1D), np.uint64(0xD1342543DE82EF95))


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The hash of a multiset of rows.

    digest : 128 bits. Different multisets share a digest only by chance. The hash is not cryptographic: it does not
        resist a search for collisions.
    """

    rows: int
    digest: str


def fingerprint(batches: Iterable[pa.RecordBatch]) -> Fingerprint:
    """The fingerprint of all rows of ``batches``, which share one schema.

    Values are compared bit by bit, as Arrow stores them: 0.0 and -0.0 differ, and so do NaNs with different bits.
    """
    sums = RowSums()
    for batch in batches:
        sums.add(batch)
    return sums.fingerprint()


class RowSums:
    """:func:`fingerprint`, computed one batch at a time."""

    def __init__(self) -> None:
        self._rows, self._sums = 0, [0, 0]

    def add(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            piece = batch.slice(start, _ROWS_AT_ONCE)
            columns = [_hashes(column) for column in piece.columns]
            for half, seed in enumerate(_SEEDS):
                row = _row_hashes(columns, piece.num_rows, seed)
                self._sums[half] = (self._sums[half] + int(row.sum(dtype=np.uint64))) & _MASK

    def fingerprint(self) -> Fingerprint:
        """The fingerprint of all batches added so far."""
        return Fingerprint(self._rows, f"{self._sums[0]:016x}{self._sums[1]:016x}")


def row_hashes(batch: pa.RecordBatch) -> Any:
    """A uint64 for each row. Equal rows of the same columns have equal hashes."""
    return _row_hashes([_hashes(column) for column in batch.columns], batch.num_rows, _SEEDS[0])


def _row_hashes(columns: list[Any], rows: int, seed: np.uint64) -> Any:
    """A mixed, weighted sum of the columns' hashes. Weights differ, so a value counts differently in each column."""
    row = np.full(rows, seed, np.uint64)
    weight = int(seed)
    for column in columns:
        weight = (weight * int(_MIX[0]) + 2) & _MASK  # odd, as the seeds are
        row += column * np.uint64(weight)
    return _mixed(row)


def _hashes(array: pa.Array) -> Any:
    """A uint64 for each value."""
    kind = array.type
    if types.is_boolean(kind) or types.is_integer(kind):
        values = array.cast(pa.int64(), safe=False)
    elif types.is_floating(kind):
        values = array.cast(pa.float64()).view(pa.int64())
    elif types.is_date32(kind):
        values = array.view(pa.int32()).cast(pa.int64())
    elif types.is_timestamp(kind):
        values = array.view(pa.int64())
    elif types.is_string(kind) or types.is_large_string(kind):
        return _with_nulls(_of_bytes(array.cast(pa.large_string())), array)
    elif types.is_binary(kind) or types.is_large_binary(kind):
        return _with_nulls(_of_bytes(array.cast(pa.large_binary())), array)
    else:
        return _hashed(array)
    words = values.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    return _with_nulls(_mixed(words), array)


def _hashed(array: pa.Array) -> Any:
    """Hashes of decimals, nested values and other types. Each distinct value is hashed once if Arrow can find them."""
    nested = types.is_nested(array.type) or types.is_null(array.type)
    encoded = None if nested else array.dictionary_encode()
    distinct = array if encoded is None else encoded.dictionary
    digests = b"".join(blake2b(repr(value).encode(), digest_size=8).digest() for value in distinct.to_pylist())
    words = np.frombuffer(digests, np.uint64)
    if encoded is not None:
        codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        words = words[codes] if len(words) else np.zeros(len(array), np.uint64)
    return _with_nulls(words, array)


def _of_bytes(array: pa.LargeStringArray | pa.LargeBinaryArray) -> Any:
    """Hashes of text and bytes, eight bytes of all values at a time. Long values are hashed one by one."""
    words = np.zeros(len(array), np.uint64)
    _, offsets_buffer, data_buffer = array.buffers()
    if not len(array) or data_buffer is None:
        return words
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    data, lengths = np.frombuffer(data_buffer, np.uint8), np.diff(offsets)
    for start in range(0, len(array), _ROWS_AT_ONCE):
        sizes = lengths[start : start + _ROWS_AT_ONCE]
        first, stop = offsets[start], offsets[start + len(sizes)]
        words[start : start + len(sizes)] = _by_words(data[first:stop], offsets[start:][: len(sizes)] - first, sizes)
    for at in np.flatnonzero(lengths > _LONG):
        digest = blake2b(data[offsets[at] : offsets[at + 1]].tobytes(), digest_size=8).digest()
        words[at] = int.from_bytes(digest, "little")
    return words


def _by_words(data: Any, starts: Any, lengths: Any) -> Any:
    """A uint64 for each value of at most ``_LONG`` bytes. ``starts`` and ``lengths`` locate the values in ``data``."""
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = data
    # The eight bytes that begin at each position.
    eights = np.ndarray(len(data) + 1, "<u8", padded, strides=(1,))
    found = _mixed(lengths.astype(np.uint64))  # mixed, since a plain length could cancel a byte
    rows: Any = slice(None)  # values with bytes left
    rest = lengths
    for done in range(0, min(int(lengths.max()), _LONG), 8):
        if done:
            more = rest > 8
            if not more.all():
                rows = np.flatnonzero(more) if isinstance(rows, slice) else rows[more]
                starts, rest = starts[more], rest[more]
            rest = rest - 8
        word = eights[starts + done] & _LOWEST[np.minimum(rest, 8)]
        word = (found[rows] ^ word) * _MIX[0]
        found[rows] = word ^ (word >> np.uint64(32))
    return _mixed(found)


def _with_nulls(words: Any, array: pa.Array) -> Any:
    if not array.null_count:
        return words
    return np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL, words)


def _mixed(words: Any) -> Any:
    """SplitMix64's finaliser, with wrapping arithmetic."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * _MIX[0]
        words = (words ^ (words >> np.uint64(27))) * _MIX[1]
        return words ^ (words >> np.uint64(31))


# For this many rows, arrays of hashes stay in a processor's cache, and in memory that the allocator has at hand.
_ROWS_AT_ONCE: Final = 1 << 15
# Longer values, in bytes, are hashed one by one.
_LONG: Final = 256
# Masks of the lowest 0 to 8 bytes of a word.
_LOWEST: Final = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
