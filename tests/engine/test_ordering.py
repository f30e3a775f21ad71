"""Rows in the order of a space-filling curve: all of them, and close to each other where they are alike."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from support.conditions import COLUMNS, SCHEMA, rows

from dv_maintenance.engine.rewrite import rewrite
from dv_maintenance.engine.rows import ordering
from dv_maintenance.engine.rows.curve import Curve


@settings(max_examples=examples(35))
@given(st.lists(rows(), max_size=4), st.sets(st.sampled_from(sorted(COLUMNS)), min_size=1))
def test_the_order_of_one_column_is_its_own_and_any_types_can_be_mixed(parts: Any, names: set[str]) -> None:
    table = pa.Table.from_pylist([row for part in parts for row in part], SCHEMA).combine_chunks()
    for chosen in [sorted(names), *([name] for name in names)]:
        columns = [table[name].combine_chunks() if len(table) else pa.array([], COLUMNS[name]) for name in chosen]
        places = Curve.of_sample(table.select(chosen)).places(columns)
        assert len(places) == len(table)
        if len(chosen) == 1 and len(table):
            order = pc.array_sort_indices(columns[0], null_placement="at_start").to_numpy()
            assert (np.diff(places[order].astype(np.int64)) >= 0).all()


@pytest.mark.parametrize(("columns", "side"), [(1, 16), (2, 16), (3, 8), (4, 4), (7, 2)])
def test_the_curve_is_hilbert_s(columns: int, side: int) -> None:
    """It passes every point once, and each step is one to a neighbour."""
    grid = np.array(list(product(range(side), repeat=columns)))
    boundaries = pa.array(range(1, side))
    places = Curve((boundaries,) * columns).places([pa.array(each.tolist()) for each in grid.T])
    assert len(set(places.tolist())) == len(grid)
    passed = grid[np.argsort(places)]
    assert (np.abs(np.diff(passed, axis=0)).sum(axis=1) == 1).all()


@pytest.mark.parametrize("value", [1, None, float("nan")])
def test_a_column_of_one_value_leaves_the_order_to_the_others(value: Any) -> None:
    table = pa.table({"same": pa.array([value] * 5000, pa.float64()), "x": [n * 7919 % 5000 for n in range(5000)]})
    columns = [column.combine_chunks() for column in table.columns]
    places = Curve.of_sample(table).places(columns)
    assert (places == Curve.of_sample(table.select(["x"])).places(columns[1:])).all()
    assert not Curve.of_sample(table.select(["same"])).places(columns[:1]).any()


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "BUCKET_BYTES", 4096)


def cells(seed: int, count: int) -> pa.Table:
    draw = random.Random(seed)
    return pa.table(
        {
            "n": range(seed * count, seed * count + count),
            "x": [draw.randrange(1000) for _ in range(count)],
            "y": [None if draw.random() < 0.05 else f"customer-{draw.randrange(1000):05}" for _ in range(count)],
            "list": [[draw.random()] * (n % 3) for n in range(count)],
        }
    )


def test_a_rewrite_in_order_keeps_every_live_row_and_narrows_the_files(lake: Any, small_buckets: None) -> None:
    sources, expected = [], []
    for seed in range(3):
        table = cells(seed, 3000)
        source = lake.write(table, f"{seed}.parquet")
        deleted = range(seed, 3000, 7)
        sources.append(replace(source, dv=lake.dv(deleted)))
        expected += [row for at, row in enumerate(table.to_pylist()) if at not in set(deleted)]
    task = lake.task(sources, table.schema, target_bytes=12_000, order_by=(("x",), ("y",)))
    result = rewrite(task)
    outputs = [lake.read(output.uri) for output in result.outputs]
    found = [row for output in outputs for row in output.to_pylist()]
    assert sorted(found, key=lambda row: row["n"]) == sorted(expected, key=lambda row: row["n"])
    assert (result.rows_read, result.rows_purged) == (9000, 9000 - len(expected))
    assert len(outputs) >= 8
    # Of k files in the order of a curve through two columns, one value of either is in about the square root of k.
    for name, value in (("x", 500), ("y", "customer-00500")):
        hits = sum(pc.min(each[name]).as_py() <= value <= pc.max(each[name]).as_py() for each in outputs)
        assert hits <= 0.6 * len(outputs), name


def test_a_bucket_of_equal_rows_is_passed_on_as_it_is(lake: Any, small_buckets: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(ordering, "_SKEWED", 0)
    table = pa.table({"n": range(5000), "x": [1] * 5000})
    result = rewrite(lake.task([lake.write(table)], table.schema, order_by=(("x",),)))
    [output] = result.outputs
    assert lake.read(output.uri).sort_by("n").equals(table)


def test_nothing_is_left_in_the_temporary_folder(lake: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering.tempfile, "tempdir", str(tmp_path / "spill"))
    (tmp_path / "spill").mkdir()
    table = cells(1, 100)
    rewrite(lake.task([lake.write(table)], table.schema, order_by=(("y",),)))
    with pytest.raises(Exception, match="rows"):
        rewrite(lake.task([replace(lake.write(table), rows=7)], table.schema, order_by=(("y",),)))
    assert list((tmp_path / "spill").iterdir()) == []
    empty = rewrite(lake.task([replace(lake.write(table), dv=lake.dv(range(100)))], table.schema, order_by=(("y",),)))
    assert empty.outputs == ()
