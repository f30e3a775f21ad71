"""Rows of Lance tables."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["rows"]


def rows(start: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64()), "v": pa.array([0.5] * count)})
