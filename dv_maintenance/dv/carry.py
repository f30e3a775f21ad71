"""Carry deletes that raced with a rewrite over to the files that it wrote."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dv_maintenance.dv.vector import DeletionVector


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was rewritten. ``kept``: its rows that ``older`` left, which the rewrite copied in their order.
    ``newer``: what is deleted in it by now; ``None``: the file is gone, and all of its rows with it.
    """

    kept: int
    older: DeletionVector
    newer: DeletionVector | None


def carry_over(sources: Iterable[Source], outputs: Sequence[int]) -> list[DeletionVector]:
    """What was deleted since the rewrite read its sources, as one deletion vector (DV) per new file.

    The new files, of ``outputs`` rows each, hold what the sources kept, one source after the other.

    Raises
    ------
    ValueError : the rows of sources and outputs do not add up, or a ``newer`` DV gives back rows that ``older`` names,
        which no new file has.
    """
    ends = [0, *accumulate(outputs)]
    carried = [DeletionVector.empty() for _ in outputs]
    start = 0
    for source in sources:
        stop = start + source.kept
        if stop > ends[-1]:
            raise ValueError(f"the sources kept more than the {ends[-1]} rows of the new files")
        fresh = _fresh(source)
        for at in range(bisect_right(ends, start) - 1, bisect_left(ends, stop)):
            low, high = max(start, ends[at]), min(stop, ends[at + 1])
            carried[at] |= _moved(fresh, low - start, high - start, low - ends[at])
        start = stop
    if start != ends[-1]:
        raise ValueError(f"the sources kept {start} rows, the new files have {ends[-1]}")
    return carried


def _fresh(source: Source) -> DeletionVector:
    """Positions among the kept rows."""
    if source.newer is None:
        return DeletionVector.from_ranges([(0, source.kept)])
    if source.older - source.newer:
        raise ValueError("rows that were deleted when the file was read have been restored")
    fresh = source.newer.carry_over(source.older)
    if fresh and fresh.max() >= source.kept:
        raise ValueError(f"row {fresh.max()} of {source.kept} kept rows is deleted")
    return fresh


def _moved(dv: DeletionVector, low: int, high: int, to: int) -> DeletionVector:
    """The positions in ``[low, high)``, with ``low`` moved ``to``."""
    if dv.range_cardinality(low, high) == high - low:
        return DeletionVector.from_ranges([(to, to + high - low)])
    return DeletionVector.from_positions(dv.positions(low, high).astype("int64") + (to - low))
