"""Whether two scans hold the same rows, whatever their order: a sum of row hashes, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

__all__ = ["Fingerprint", "RowSums", "fingerprint", "row_hashes"]

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
        columns = [_hashes(column) for column in batch.columns]
        for half, seed in enumerate(_SEEDS):
            row = _row_hashes(columns, batch.num_rows, seed)
            self._sums[half] = (self._sums[half] + int(row.sum(dtype=np.uint64))) & _MASK

    def fingerprint(self) -> Fingerprint:
        """The fingerprint of all batches added so far."""
        return Fingerprint(self._rows, f"{self._sums[0]:016x}{self._sums[1]:016x}")


def row_hashes(batch: pa.RecordBatch) -> Any:
    """A uint64 for each row: equal ones for equal rows of the same columns."""
    return _row_hashes([_hashes(column) for column in batch.columns], batch.num_rows, _SEEDS[0])


def _row_hashes(columns: list[Any], rows: int, seed: np.uint64) -> Any:
    row = np.full(rows, seed, np.uint64)
    for column in columns:  # order matters: a value is its column's
        row = _mixed(row ^ column)
    return row


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
    """Hashes of text and bytes, vectorised: the sum of the bytes, each weighted by its position. Long values are
    hashed one by one.
    """
    words = np.zeros(len(array), np.uint64)
    _, offsets_buffer, data_buffer = array.buffers()
    if not len(array) or data_buffer is None:
        return words
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    data, lengths = np.frombuffer(data_buffer, np.uint8), np.diff(offsets)
    first = 0
    while first < len(array):
        stop = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _AT_ONCE, side="right")) - 1)
        if stop - first > 1 or lengths[first] <= _LONG:
            words[first:stop] = _weighted(data[offsets[first] : offsets[stop]], lengths[first:stop])
        first = stop
    for at in np.flatnonzero(lengths > _LONG):
        digest = blake2b(data[offsets[at] : offsets[at + 1]].tobytes(), digest_size=8).digest()
        words[at] = int.from_bytes(digest, "little")
    return words


def _weighted(data: Any, lengths: Any) -> Any:
    """A uint64 for each value. ``data`` holds the values back to back, ``lengths`` their sizes in bytes."""
    stops = np.cumsum(lengths)
    starts = stops - lengths
    places = np.arange(len(data)) - np.repeat(starts, lengths)
    sums = np.zeros(len(data) + 1, np.uint64)
    # Both sums wrap around, and the difference of two wrapped sums is still right.
    np.cumsum(data * _WEIGHTS[np.minimum(places, _LONG)], out=sums[1:])
    return _mixed((sums[stops] - sums[starts]) ^ lengths.view(np.uint64))


def _with_nulls(words: Any, array: pa.Array) -> Any:
    if not array.null_count:
        return words
    return np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL, words)


def _mixed(words: Any) -> Any:
    """SplitMix64's finaliser, on wrapping numbers."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * _MIX[0]
        words = (words ^ (words >> np.uint64(27))) * _MIX[1]
        return words ^ (words >> np.uint64(31))


# Bytes of one value that are weighted, and of all values that are at a time.
_LONG: Final = 4096
_AT_ONCE: Final = 1 << 16
_WEIGHTS: Final = _mixed(np.arange(1, _LONG + 2, dtype=np.uint64)) | np.uint64(1)
