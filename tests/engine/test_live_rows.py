"""Rows that stay of a batch, whichever way Arrow takes them out of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dv_maintenance.engine.rows.live_rows import filter_live

ROWS = 1000


def batch() -> pa.RecordBatch:
    numbers = range(ROWS)
    buffers = pa.array(numbers).buffers()
    return pa.RecordBatch.from_pydict(
        {
            "integer": pa.array(numbers),
            "bitmap": pa.Array.from_buffers(pa.int64(), ROWS, [pa.py_buffer(b"\xff" * 125), *buffers[1:]]),
            "text": pa.array([f"t{n}" for n in numbers]),
            "when": pa.array(numbers, pa.timestamp("us", "UTC")),
            "price": pa.array(numbers, pa.decimal128(9, 2)),
            "void": pa.nulls(ROWS),
            "flag": pa.array([None if n % 7 == 0 else n % 3 == 0 for n in numbers]),
            "list": pa.array([[n] * (n % 4) if n % 5 else None for n in numbers]),
            "struct": pa.array([{"a": n, "b": [str(n)]} if n % 5 else None for n in numbers]),
            "map": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "dictionary": pa.array([str(n % 9) for n in numbers]).dictionary_encode(),
            "fixed": pa.array([b"%04d" % n for n in numbers], pa.binary(4)),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"%016d" % n for n in numbers], pa.binary(16))),
        }
    )


@pytest.mark.parametrize("every", [2, 4, 5, 500])
@pytest.mark.parametrize(("first", "rows"), [(0, ROWS), (123, 777)])
def test_deleted_rows_go_and_the_others_stay_as_they_are(every: int, first: int, rows: int) -> None:
    whole = batch().slice(first, rows)
    stays = np.arange(rows) % every != 0
    mask = pa.array(np.concatenate([np.ones(first, bool), stays])).slice(first)
    live = filter_live(whole, int(rows - stays.sum()), mask)
    live.validate(full=True)
    assert live.schema == whole.schema
    assert live.to_pylist() == [row for row, stay in zip(whole.to_pylist(), stays, strict=True) if stay]
