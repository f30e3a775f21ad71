"""A deletion vector: which rows of one data file are deleted."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from dv_maintenance.dv import roaring

MAX_POSITION = 2**63 - 1
"""Row positions are signed 64-bit integers to every engine."""

Positions = npt.NDArray[np.uint64]

# Algorithms that process positions in stretches hold at most this many at a time (8 bytes each).
_WINDOW = 1 << 22
# A wider range is cut out of a copy: a bitmap of its own would take memory proportional to its width.
_WIDE = 1 << 32


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeletionVector:
    """An immutable set of physical row positions: 0-based, below 2^63 (MAX_POSITION). Ranges are half-open,
    ``[start, stop)``.

    Make one with ``empty``, ``from_positions``, ``from_ranges``, ``from_mask`` or ``from_portable``.
    """

    _bitmap: BitMap64

    # -- constructors
    # ----------------------------------------------------------------------------------------------------

    @classmethod
    def empty(cls) -> DeletionVector:
        """No row is deleted."""
        return cls(BitMap64())

    @classmethod
    def from_positions(cls, positions: Iterable[int] | npt.NDArray[np.integer]) -> DeletionVector:
        """From positions in any order, repeated or not. Integer arrays are taken as a whole.

        Raises
        ------
        ValueError, TypeError, OverflowError : a position is not an integer, negative, or above MAX_POSITION.
        """
        if not isinstance(positions, np.ndarray):
            positions = np.fromiter(map(operator.index, positions), dtype=np.int64)
        if not np.issubdtype(positions.dtype, np.integer):
            raise TypeError(f"positions must be integers, not {positions.dtype}")
        if positions.size:
            _check_range(int(positions.min()), int(positions.max()) + 1)
        values = positions.astype(np.uint64, copy=False)
        if not (values[1:] > values[:-1]).all():
            values = np.unique(values)
        return cls(BitMap64.deserialize(roaring.pack_positions(values)))

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> DeletionVector:
        """From ranges ``[start, stop)``, which may overlap.

        Raises
        ------
        ValueError : a range is negative, ends before it starts or goes beyond MAX_POSITION.
        """
        bitmap = BitMap64()
        for start, stop in ranges:
            _check_range(start, stop)
            bitmap.add_range(start, stop)
        return cls(bitmap)

    @classmethod
    def from_mask(cls, deleted: pa.BooleanArray) -> DeletionVector:
        """From one value per row, ``True`` where the row is deleted.

        Raises
        ------
        ValueError : the mask has nulls.
        """
        if deleted.null_count:
            raise ValueError("a mask of deleted rows must not have nulls")
        return cls(BitMap64.deserialize(roaring.pack_bits(_packed_bits(deleted))))

    @classmethod
    def from_portable(cls, data: bytes) -> DeletionVector:
        """From portable 64-bit roaring bytes, which are validated.

        Raises
        ------
        DamagedDeletionVectorError : they are not exactly one well-formed bitmap.
        """
        roaring.check(data)
        return cls(BitMap64.deserialize(data))

    def to_portable(self) -> bytes:
        """Portable 64-bit roaring bytes, run-optimised."""
        return BitMap64(self._bitmap, optimize=True).serialize()

    # -- queries ---------------------------------------------------------------------------------------------------

    @property
    def cardinality(self) -> int:
        """How many rows are deleted."""
        return len(self._bitmap)

    def __len__(self) -> int:
        return len(self._bitmap)

    def __bool__(self) -> bool:
        """Whether any row is deleted, without counting."""
        return bool(self._bitmap)

    def __contains__(self, position: int) -> bool:
        return 0 <= position <= MAX_POSITION and position in self._bitmap

    def __eq__(self, other: object) -> bool:
        return self._bitmap == other._bitmap if isinstance(other, DeletionVector) else NotImplemented

    def __hash__(self) -> int:
        return hash((len(self), self.max())) if self else 0

    def __repr__(self) -> str:
        return f"<DeletionVector of {len(self)} positions{f', the last {self.max()}' if self else ''}>"

    def max(self) -> int:
        """The last deleted position.

        Raises
        ------
        ValueError : there is none.
        """
        if not self:
            raise ValueError("an empty deletion vector has no last position")
        return int(self._bitmap.max())

    def rank(self, position: int) -> int:
        """How many deleted positions lie strictly below ``position``: a kept row moves up by its rank."""
        return int(self._bitmap.rank(position - 1)) if position > 0 else 0

    def range_cardinality(self, start: int, stop: int) -> int:
        """How many of the rows ``[start, stop)`` are deleted."""
        _check_range(start, stop)
        return int(self._bitmap.range_cardinality(start, stop))

    def positions(self, start: int = 0, stop: int = MAX_POSITION + 1) -> Positions:
        """The deleted positions in ``[start, stop)``, ascending: 8 bytes for each."""
        return np.frombuffer(self._within(start, stop).to_array(), dtype=np.uint64)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Maximal runs of deleted positions, ascending, as ``(start, stop)``."""
        begin = end = 0
        for low, high in self._windows():
            positions = self.positions(low, high)
            breaks = np.flatnonzero(np.diff(positions) != 1)
            starts = positions[np.concatenate(([0], breaks + 1))].tolist()
            stops = (positions[np.concatenate((breaks, [-1]))]).tolist()
            for start, last in zip(starts, stops, strict=True):
                if start != end:
                    if end > begin:
                        yield begin, end
                    begin = start
                end = last + 1
        if end > begin:
            yield begin, end

    def keep_mask(self, start: int, stop: int) -> pa.BooleanArray:
        """One value per row of ``[start, stop)``: ``True`` if the row is kept. No nulls; the offset may not be 0."""
        part = self._within(start, stop)
        first = start // roaring.CONTAINER
        count = -(-stop // roaring.CONTAINER) - first
        bits = roaring.unpack_bits(part.serialize(), first, count)
        np.invert(bits, out=bits)
        skipped = start - first * roaring.CONTAINER
        values = pa.py_buffer(bits).slice(skipped // 8)
        return pa.Array.from_buffers(pa.bool_(), stop - start, [None, values], null_count=0, offset=skipped % 8)

    # -- combining -------------------------------------------------------------------------------------------------

    def union(self, other: DeletionVector) -> DeletionVector:
        """Positions in either."""
        return DeletionVector(self._bitmap | other._bitmap)

    def intersection(self, other: DeletionVector) -> DeletionVector:
        """Positions in both."""
        return DeletionVector(self._bitmap & other._bitmap)

    def difference(self, other: DeletionVector) -> DeletionVector:
        """Positions that ``other`` does not have."""
        return DeletionVector(self._bitmap - other._bitmap)

    __or__, __and__, __sub__ = union, intersection, difference

    def carry_over(self, older: DeletionVector) -> DeletionVector:
        """What was deleted since ``older``, as positions in a file that holds only the rows ``older`` kept, in order.

        This is how a delete survives a rewrite it raced with: ``{p - older.rank(p) for p in self - older}``.
        """
        fresh: DeletionVector = self - older
        moved = [np.empty(0, dtype=np.uint64)]
        for low, high in fresh._windows():
            positions = fresh.positions(low, high)
            below = older.rank(low) + np.searchsorted(older.positions(low, high), positions)
            moved.append(positions - below.astype(np.uint64))
        return self.from_positions(np.concatenate(moved))

    # -- plumbing --------------------------------------------------------------------------------------------------

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Ranges of bounded width that hold all positions; none of them is empty."""
        low, last = 0, self.max() if self else -1
        while low <= last:
            low = int(self._bitmap.next_set_bit(low))
            yield low, min(low + _WINDOW, last + 1)
            low += _WINDOW

    def _within(self, start: int, stop: int) -> BitMap64:
        """The bitmap of the positions in ``[start, stop)``; its own if that is all. Callers must not change it."""
        _check_range(start, stop)
        # Minimum and maximum walk all containers: too expensive for each row group.
        wide = stop - start > _WINDOW
        if not self or (wide and start <= self._bitmap.min() and self._bitmap.max() < stop):
            return self._bitmap
        if stop - start <= _WIDE:
            window = BitMap64()
            window.add_range(start, stop)
            return self._bitmap & window
        part = self._bitmap.copy()
        part.remove_range(0, start)
        part.remove_range(stop, MAX_POSITION + 1)
        return part


def _check_range(start: int, stop: int) -> None:
    if not 0 <= start <= stop <= MAX_POSITION + 1:
        raise ValueError(f"[{start}, {stop}) is not a range of row positions")


def _packed_bits(values: pa.BooleanArray) -> npt.NDArray[np.uint8]:
    """The values as packed bits from bit 0 on, zero after the last."""
    length, skipped = len(values), values.offset
    if not length:
        return np.empty(0, dtype=np.uint8)
    source = np.frombuffer(values.buffers()[1], dtype=np.uint8)
    bits = source[skipped // 8 : (skipped + length + 7) // 8]
    shift = skipped % 8
    if shift:
        bits = (bits >> shift) | np.append(bits[1:] << (8 - shift), np.uint8(0))
    bits = bits[: (length + 7) // 8].copy()
    bits[-1] &= 0xFF >> (-length % 8)
    return bits
