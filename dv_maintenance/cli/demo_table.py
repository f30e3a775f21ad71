"""The table that ``dvm demo`` maintains: orders by day, with the deletions a shop would make."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.testing.delta_builder import DeltaBuilder

__all__ = ["build"]

_SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.int32()),
        ("amount", pa.float64()),
        ("note", pa.string()),
        ("day", pa.date32()),
    ]
)
_DAYS = [date(2026, 11, day) for day in range(1, 7)]
_FILES_PER_DAY = 4
_NOTES = ("", "gift", "express", "call before delivery", "leave at the door")
# So that the demo's vacuum has something to do now and not in a week. Real tables keep the default.
_RETENTION = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}


def build(place: str, rows: int) -> None:
    """Write the table: about ``rows`` rows in six days of four files each, then three deletes, each with real deletion
    vectors: a quarter of all customers everywhere, small orders on top (so that first DVs are replaced), and nearly
    all of one day.
    """
    builder = DeltaBuilder(place).create(_SCHEMA, partition_by=["day"], properties=_RETENTION)
    builder.append(_days(rows), files=_FILES_PER_DAY)
    builder.delete(lambda batch: pc.equal(pc.bit_wise_and(batch["customer"], 3), 0))
    builder.delete(lambda batch: pc.less(batch["amount"], 20.0))
    builder.delete(
        lambda batch: pc.and_(pc.equal(batch["day"], pa.scalar(_DAYS[2])), pc.greater(batch["amount"], 60.0))
    )


def _days(rows: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(2026)
    notes = pa.array(_NOTES)
    for day, ids in zip(_DAYS, np.array_split(np.arange(rows), len(_DAYS)), strict=True):
        columns = [
            pa.array(ids),
            pa.array(random.integers(0, 200_000, ids.size, dtype=np.int32)),
            pa.array(random.integers(100, 100_000, ids.size) / 100),
            notes.take(pa.array(random.integers(0, len(_NOTES), ids.size))),
            pa.repeat(pa.scalar(day), ids.size),
        ]
        yield pa.table(columns, schema=_SCHEMA)
