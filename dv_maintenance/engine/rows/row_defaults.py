"""Columns that a file stores for some rows only: the value of the other rows follows from their position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from dv_maintenance.engine.rows.live_rows import LiveRows
    from dv_maintenance.tables.work import RowDefault


def fill_defaults(live: LiveRows, defaults: Mapping[str, RowDefault]) -> LiveRows:
    """``live`` with the nulls of the int64 columns named in ``defaults`` replaced."""
    positions: pa.Array | None = None
    schema, columns = live.batch.schema, live.batch.columns
    for name, default in defaults.items():
        index = schema.get_field_index(name)
        if index < 0 or not columns[index].null_count:
            continue
        if not default.counts:
            columns[index] = columns[index].fill_null(default.start)
            continue
        positions = live.positions() if positions is None else positions
        columns[index] = pc.coalesce(columns[index], pc.add(positions, default.start))
    return replace(live, batch=pa.RecordBatch.from_arrays(columns, schema=schema))
