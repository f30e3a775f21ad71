"""The set algebra of deletion vectors against Python's own sets, and masks against the naive way."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from dv_maintenance.dv import DeletionVector
from dv_maintenance.dv.vector import _WINDOW, MAX_POSITION

C = 1 << 16  # positions per roaring container
BUCKET = 1 << 32

# Positions near what can go wrong: container, bucket and window edges, both ends of the domain.
edges = st.sampled_from([0, C, 2 * C, 7 * C, 1 << 22, BUCKET, BUCKET + C, 5 * BUCKET, MAX_POSITION])
positions = st.one_of(
    st.integers(0, 300),
    st.tuples(edges, st.integers(-3, 3)).map(lambda pair: min(max(sum(pair), 0), MAX_POSITION)),
    st.integers(0, MAX_POSITION),
)
pieces = st.one_of(
    positions.map(lambda position: range(position, position + 1)),
    st.builds(
        lambda start, length, step: range(start, min(start + length * step, MAX_POSITION), step),
        positions,
        st.integers(0, 6000),
        st.integers(1, 3),
    ),
)
sets = st.lists(pieces, max_size=6).map(lambda parts: frozenset().union(*parts))


def values(dv: DeletionVector) -> frozenset[int]:
    return frozenset(dv.positions().tolist())


@settings(max_examples=examples(60))
@given(sets, sets)
def test_algebra_is_that_of_sets(left: frozenset[int], right: frozenset[int]) -> None:
    a, b = DeletionVector.from_positions(left), DeletionVector.from_positions(right)
    assert values(a) == left
    assert a.cardinality == len(a) == len(left)
    assert values(a | b) == values(a.union(b)) == left | right
    assert values(a & b) == values(a.intersection(b)) == left & right
    assert values(a - b) == values(a.difference(b)) == left - right
    assert (a == b) == (left == right)
    assert a == DeletionVector.from_positions(sorted(left)) == a | a
    assert hash(a) == hash(DeletionVector.from_ranges(a.ranges()))
    assert values(a) == left, "operations leave their operands alone"
    assert pickle.loads(pickle.dumps(a)) == a


@settings(max_examples=examples(60))
@given(sets, positions, positions)
def test_ranks_counts_and_ranges(chosen: frozenset[int], one: int, other: int) -> None:
    dv = DeletionVector.from_positions(chosen)
    start, stop = sorted((one, other))
    inside = sorted(position for position in chosen if start <= position < stop)
    assert dv.range_cardinality(start, stop) == len(inside)
    assert dv.positions(start, stop).tolist() == inside
    assert dv.rank(start) == sum(position < start for position in chosen)
    assert (one in dv) == (one in chosen)
    runs = list(dv.ranges())
    assert {position for begin, end in runs for position in range(begin, end)} == chosen
    assert all(before[1] < after[0] for before, after in pairwise(runs)), "maximal, ascending"
    if chosen:
        assert dv.max() == max(chosen)


@settings(max_examples=examples(60))
@given(sets, st.integers(0, 3 * C), st.integers(0, 2 * C), st.sampled_from([0, BUCKET - C, 5 * BUCKET]))
@example(frozenset(range(C)), 0, C, 0)  # a run that fills the last container of the mask
@example(frozenset(range(3 * C)), C, C, 0)
def test_keep_mask_is_the_complement(chosen: frozenset[int], start: int, length: int, base: int) -> None:
    start += base
    expected = np.ones(length, dtype=bool)
    expected[[position - start for position in chosen if start <= position < start + length]] = False
    mask = DeletionVector.from_positions(chosen).keep_mask(start, start + length)
    mask.validate(full=True)
    assert mask.type == pa.bool_()
    assert mask.null_count == 0
    assert np.array_equal(mask.to_numpy(zero_copy_only=False), expected)


@pytest.mark.parametrize("density", [0.0, 0.0005, 0.01, 0.06, 0.07, 0.3, 0.95, 1.0])
@pytest.mark.parametrize("runs", [1, 700], ids=["random", "clustered"])
def test_masks_both_ways_at_every_density(density: float, runs: int) -> None:
    # Array containers, bitsets and (where clustered) runs; 0.06 and 0.07 lie on both sides of 4096 values.
    rows = 3 * C + 4321
    random = np.random.default_rng(int(density * 1000))
    deleted = np.repeat(random.random(rows // runs + 1) < density, runs)[:rows]
    expected = np.flatnonzero(deleted)
    dv = DeletionVector.from_mask(pa.array(deleted))
    assert dv == DeletionVector.from_positions(expected) == DeletionVector.from_portable(dv.to_portable())
    assert np.array_equal(dv.positions(), expected)
    for start, stop in [(0, rows), (0, 1), (C, 2 * C), (C - 1, C + 1), (12345, 3 * C + 7), (rows, rows), (rows, 6 * C)]:
        keep = dv.keep_mask(start, stop).to_numpy(zero_copy_only=False)
        assert np.array_equal(keep, np.append(~deleted, np.ones(6 * C, dtype=bool))[start:stop])


@settings(max_examples=examples(60))
@given(st.lists(st.booleans(), max_size=200), st.integers(0, 40), st.integers(0, 40))
def test_from_mask_honours_arrow_offsets(bits: list[bool], front: int, back: int) -> None:
    # A slice shares the buffers of its parent; what lies around it must not leak in.
    parent = pa.array([True] * front + bits + [True] * back)
    dv = DeletionVector.from_mask(parent.slice(front, len(bits)))
    assert dv.positions().tolist() == [index for index, bit in enumerate(bits) if bit]


def test_from_mask_refuses_nulls() -> None:
    with pytest.raises(ValueError, match="nulls"):
        DeletionVector.from_mask(pa.array([True, None]))


@settings(max_examples=examples(25))
@given(sets, sets)
def test_carry_over_finds_the_rows_again(before: frozenset[int], more: frozenset[int]) -> None:
    older, newer = DeletionVector.from_positions(before), DeletionVector.from_positions(before | more)
    gone = sorted(before)
    expected = {position - int(np.searchsorted(gone, position)) for position in more - before}
    assert values(newer.carry_over(older)) == expected


def test_carry_over_on_a_real_file() -> None:
    rows = np.arange(500_000)
    random = np.random.default_rng(3)
    before, more = random.random(rows.size) < 0.4, random.random(rows.size) < 0.1
    older, newer = DeletionVector.from_mask(pa.array(before)), DeletionVector.from_mask(pa.array(before | more))
    rewritten = rows[~before]
    kept = rewritten[newer.carry_over(older).keep_mask(0, rewritten.size).to_numpy(zero_copy_only=False)]
    assert np.array_equal(kept, rows[~(before | more)])


def test_carry_over_drops_what_came_back() -> None:
    # RESTORE may shrink a DV: rows that are live again are not this method's business.
    older, newer = DeletionVector.from_positions([1, 2]), DeletionVector.from_positions([2, 5])
    assert newer.carry_over(older).positions().tolist() == [3]


def test_positions_of_any_kind_are_taken() -> None:
    expected = DeletionVector.from_positions([2, 9])
    for given_ in ([9, 2, 9], (2, 9), {9, 2}, iter([2, 9]), np.array([9, 2], "i4"), np.array([2, 9, 9], "u8")):
        assert DeletionVector.from_positions(given_) == expected
    assert DeletionVector.from_positions([]) == DeletionVector.empty() == DeletionVector.from_mask(pa.array([], "bool"))


@pytest.mark.parametrize(
    "bad", [[-1], [2**63], [1.5], ["1"], [None], np.array([-1]), np.array([2**63], "u8"), np.array([1.0])]
)
def test_what_is_no_position_is_refused(bad: object) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        DeletionVector.from_positions(bad)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (5, 4), (0, 2**63 + 1)])
def test_what_is_no_range_is_refused(start: int, stop: int) -> None:
    dv = DeletionVector.from_positions([1])
    for ask in (dv.keep_mask, dv.positions, dv.range_cardinality, lambda *r: DeletionVector.from_ranges([r])):
        with pytest.raises(ValueError, match="range"):
            ask(start, stop)


def test_the_empty_vector() -> None:
    empty = DeletionVector.empty()
    assert not empty
    assert list(empty.ranges()) == []
    assert empty.rank(10) == 0
    assert empty.keep_mask(3, 6).to_pylist() == [True] * 3
    assert 0 not in empty
    assert -1 not in DeletionVector.from_positions([1])
    with pytest.raises(ValueError, match="no last"):
        empty.max()


def test_wide_ranges_cost_no_memory_of_their_width() -> None:
    # As a bitmap of its own, this range would take 2^46 containers.
    dv = DeletionVector.from_positions([3, 2**40, 2**62, MAX_POSITION])
    assert dv.positions(4, 2**62 + 1).tolist() == [2**40, 2**62]


def test_long_runs_are_one_range() -> None:
    # Longer than the stretches that ranges() and carry_over() work through.
    runs = [(7, 2 * _WINDOW + 20), (2 * _WINDOW + 21, 2 * _WINDOW + 22)]
    newer = DeletionVector.from_ranges(runs)
    assert list(newer.ranges()) == runs
    carried = newer.carry_over(DeletionVector.from_positions([8, _WINDOW + 8, 2 * _WINDOW]))
    assert list(carried.ranges()) == [(7, 2 * _WINDOW + 17), (2 * _WINDOW + 18, 2 * _WINDOW + 19)]


def test_bytes_are_run_optimised_and_pyroaring_reads_them() -> None:
    dv = DeletionVector.from_ranges([(10, 1_000_000), (BUCKET + 5, BUCKET + 70_000)])
    data = dv.to_portable()
    assert len(data) < 500
    bitmap = BitMap64.deserialize(data)
    assert len(bitmap) == dv.cardinality
    assert bitmap == BitMap64(range(10, 1_000_000)) | BitMap64(range(BUCKET + 5, BUCKET + 70_000))
    flags = np.zeros(1_000_000, dtype=bool)
    flags[10:] = True
    assert len(DeletionVector.from_mask(pa.array(flags)).to_portable()) < 500


def test_hot_paths_do_not_import_pandas() -> None:
    # 0.8 s in every worker; only a fresh process can tell.
    code = """
import sys
import pyarrow as pa
from dv_maintenance.dv import DeletionVector
keep = DeletionVector.from_positions(range(0, 300_000, 3)).keep_mask(5, 250_000)
again = DeletionVector.from_mask(keep)
again.carry_over(DeletionVector.from_ranges([(4, 90_000)])).to_portable()
raise SystemExit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
