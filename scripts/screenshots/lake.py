"""A small lake to take pictures of: five tables of different shapes, and what happens to them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.testing.delta_builder import DeltaBuilder

__all__ = ["DAYS", "TABLES", "Lake"]

TABLES = ("shop/orders", "shop/clicks", "shop/stock", "shop/returns", "shop/payments")
# Two weeks that end today: the page offers every day from the first on, whenever the pictures are taken.
DAYS = [datetime.now(UTC).date() - timedelta(days=ago) for ago in range(13, -1, -1)]
_REGIONS = ("AT", "DE", "IT")

_TABLES_YAML = """\
tables:
  - name: shop/orders
    path: orders
    partitions: {{name: day, every: day, start: {first}}}
    jobs: [optimize, vacuum, manifest]
  - name: shop/clicks
    path: clicks
  - name: shop/stock
    path: stock
    policy: {{min_file_size: 0}}
    partitions: [{{name: day, every: day, start: {first}}}, {{name: region, values: [{regions}]}}]
  - name: shop/returns
    path: returns
    policy: {{max_deleted_ratio: 0.15, min_file_size: 0}}
  - name: shop/payments
    path: payments
"""


class Lake:
    """Tables below ``folder``, and ``tables.yaml`` that names them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables_file = folder / "tables.yaml"

    def build(self) -> None:
        """``orders`` by day, ten days with DVs; ``clicks`` in many small files; ``stock`` by day and region;
        ``returns`` and ``payments``, still clean.
        """
        self.folder.mkdir(parents=True)
        self.tables_file.write_text(_TABLES_YAML.format(first=DAYS[0], regions=", ".join(_REGIONS)), encoding="utf-8")
        self._create("orders", 140_000, days=DAYS, files=3)
        for number, day in enumerate(DAYS[3:-1]):
            self._delete("orders", 4 + 3 * number, day=day)
        self._create("clicks", 24_000, files=24)
        self._delete("clicks", 12)
        self._create("stock", 60_000, days=DAYS[-4:], regions=_REGIONS, files=2)
        self._delete("stock", 8, region="IT")
        self._create("returns", 200_000, files=4)
        self._create("payments", 20_000, files=1)

    def delete_returns(self, percent: int) -> None:
        """Bring the deleted share of ``returns`` to ``percent``, in every file."""
        self._delete("returns", percent)

    def damage_payments(self) -> None:
        """Cut the newest commit in half, as a full disk does."""
        self._delete("payments", 3)
        newest = max((self.folder / "payments" / "_delta_log").glob("*.json"))
        newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])

    def _of(self, name: str) -> DeltaBuilder:
        return DeltaBuilder(str(self.folder / name))

    def _create(
        self, name: str, rows: int, *, days: Sequence[date] = (), regions: Sequence[str] = (), files: int
    ) -> None:
        """A table with this many rows, spread evenly over days and regions, and ``files`` files for each of those."""
        number = np.arange(rows)
        amounts = np.random.default_rng(7).gamma(2.0, 40.0, rows).round(2)
        columns = {"order_id": pa.array(number), "customer": pa.array(number % 997), "amount": pa.array(amounts)}
        if days:
            columns["day"] = pa.array(days, pa.date32()).take(pa.array(number % len(days)))
        if regions:
            columns["region"] = pa.array(regions).take(pa.array(number // max(len(days), 1) % len(regions)))
        data = pa.table(columns)
        partition_by = [column for column in ("day", "region") if column in columns]
        self._of(name).create(data.schema, partition_by=partition_by).append(data, files=files)

    def _delete(self, name: str, percent: int, **partition: date | str) -> None:
        """Delete these many rows of a hundred, the same ones each time and more, in one partition or everywhere."""

        def where(rows: pa.RecordBatch) -> pa.BooleanArray:
            hashed = rows["order_id"].to_numpy() * 2_654_435_761 % (1 << 32)
            mask = pa.array(hashed < (1 << 32) * percent // 100)
            for column, value in partition.items():
                mask = pc.and_(mask, pc.equal(rows[column], value))
            return mask

        self._of(name).delete(where)
