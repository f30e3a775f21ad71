"""Bin packing: which files go into one new file."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


def pack(weights: Sequence[int], capacity: int) -> list[list[int]]:
    """Positions of ``weights`` in bins whose weights sum up to at most ``capacity``. A heavier item has its own bin.

    Best fit: each item, in the order given, is put into the fullest bin that still has room; among equal bins, into
    the oldest. Sort the items by descending weight for few bins (at most 11/9 of the optimum, Johnson 1974). In any
    order, the contents of two bins never fit into one, so packing the bins again changes nothing.

    >>> pack([6, 5, 4, 3, 2], 10)
    [[0, 2], [1, 3, 4]]
    """
    bins: list[list[int]] = []
    roomy: list[tuple[int, int]] = []  # (room left, bin), ascending
    for position, weight in enumerate(weights):
        place = bisect_left(roomy, (weight, -1))
        if place < len(roomy):
            room, number = roomy.pop(place)
        else:
            room, number = capacity, len(bins)
            bins.append([])
        bins[number].append(position)
        if room > weight:
            insort(roomy, (room - weight, number))
    return bins


def pack_in_order(weights: Sequence[int], capacity: int) -> list[list[int]]:
    """As :func:`pack`, but a bin holds only neighbours, in their order: each item joins its predecessor while there is
    room.

    >>> pack_in_order([6, 3, 4, 3, 2], 10)
    [[0, 1], [2, 3, 4]]
    """
    bins: list[list[int]] = []
    used = capacity
    for position, weight in enumerate(weights):
        if not bins or used + weight > capacity:
            bins.append([])
            used = 0
        bins[-1].append(position)
        used += weight
    return bins
