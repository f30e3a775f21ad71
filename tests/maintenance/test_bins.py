"""Bin packing as algebra."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dv_maintenance.maintenance.planning.bins import pack

weights = st.lists(st.integers(0, 30), max_size=60)


@given(weights, st.integers(1, 20))
def test_every_item_is_in_one_bin_that_holds(items: list[int], capacity: int) -> None:
    bins = pack(items, capacity)
    assert sorted(position for each in bins for position in each) == list(range(len(items)))
    for each in bins:
        assert len(each) == 1 or sum(items[position] for position in each) <= capacity


@given(weights, st.integers(1, 20))
def test_no_two_bins_fit_into_one(items: list[int], capacity: int) -> None:
    loads = sorted(sum(items[position] for position in each) for each in pack(items, capacity))
    # An empty item may have come before there was a full bin to hide in, never after.
    if len(loads) > 1:
        assert loads[0] + loads[1] > capacity or 0 in loads


def test_the_fullest_bin_that_has_room_is_taken() -> None:
    assert pack([5, 7, 3], 10) == [[0], [1, 2]]
    assert pack([11, 10, 9, 1], 10) == [[0], [1], [2, 3]]
    assert pack([], 10) == []
