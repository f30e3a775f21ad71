"""Sizes of batches and the worth of dictionaries, derived from footers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine.parquet.footer import BATCH_BYTES, MAX_BATCH_ROWS, batch_rows, dictionary_pays, row_bytes
from dv_maintenance.engine.scan import scan
from dv_maintenance.tables.work import ScanTask

ROWS = 20_000


def footer_of(column: Any, **options: Any) -> Any:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": column}), sink, **options)
    return pq.read_metadata(pa.BufferReader(sink.getvalue()))


def test_batches_are_bounded_by_rows_and_bytes() -> None:
    assert batch_rows(0) == batch_rows(8) == MAX_BATCH_ROWS
    assert batch_rows(1 << 20) == BATCH_BYTES >> 20
    assert batch_rows(1 << 40) == 1


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"compression": "zstd"}], ids=str)
@pytest.mark.parametrize(
    "column",
    [
        pa.array(np.arange(ROWS)),
        pa.array(np.zeros(ROWS)),
        pa.array(["x" * 900, "y" * 1100] * (ROWS // 2)),
        pa.array([str(i) * 20 for i in range(ROWS)]),
        pa.array([[1, 2, 3, 4]] * ROWS, pa.list_(pa.int32())),
    ],
    ids=["numbers", "one number", "two long strings", "strings", "lists"],
)
def test_a_row_is_not_taken_for_much_smaller_than_it_is(column: Any, options: Any) -> None:
    footer = footer_of(column, **options)
    estimated = row_bytes(footer.row_group(0), [0])
    assert column.nbytes / ROWS / 2 <= estimated <= column.nbytes / ROWS * 2


def test_wide_rows_come_in_small_batches(lake: Any) -> None:
    # A dictionary hides 200 MB of strings in a file of a few KB.
    values = ["x" * 10_000, "y" * 10_000]
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(ROWS, dtype=np.int32) % 2), values)
    source = lake.write(pa.table({"a": column}), store_schema=False, row_group_size=ROWS)
    assert source.size < 1 << 16
    sizes = [batch.nbytes for batch in scan(ScanTask((source,), pa.schema([("a", pa.string())])))]
    assert sum(sizes) > 200_000_000
    assert max(sizes) < 2 * BATCH_BYTES


def test_what_a_row_group_needed_corrects_the_next(lake: Any) -> None:
    # The shortest and the longest value say little about the others.
    values = ["", *["x" * 10_000] * 2, ""] * (ROWS // 40)
    column = pa.array(values + values).dictionary_encode()
    source = lake.write(pa.table({"a": column}), store_schema=False, row_group_size=len(values), write_statistics=False)
    batches = [batch.num_rows for batch in scan(ScanTask((source,), pa.schema([("a", pa.string())])))]
    assert batches[0] > batches[-2] > 1


def test_a_dictionary_pays_where_values_repeat() -> None:
    rng = np.random.default_rng(1)
    repeated = pa.array([f"country {i}" for i in rng.integers(0, 200, ROWS)])
    unique = pa.array([f"name {i}" for i in rng.integers(0, 2**60, ROWS)])
    assert dictionary_pays(footer_of(repeated), 0)
    assert not dictionary_pays(footer_of(unique), 0)
    assert not dictionary_pays(footer_of(repeated, use_dictionary=False), 0)
    assert dictionary_pays(footer_of(pa.array(rng.integers(0, 50, ROWS))), 0)
    assert not dictionary_pays(footer_of(pa.array(rng.normal(size=ROWS))), 0)
    # Too little to tell: worth the try.
    assert dictionary_pays(footer_of(unique.slice(0, 100)), 0)
