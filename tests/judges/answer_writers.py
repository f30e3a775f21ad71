"""The values that engines disagree about, by Arrow's writers: tables of deltalake, and folders of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from answer_tables import CURRENT, LEGACY_MICROS, V2_PAGES, VALUES, Make, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CONVERTED", "DELTALAKE"]


def arrow(first: int, rows: int, *, zone: str | None = "UTC") -> pa.Table:
    numbers = range(first, first + rows)

    def each(*values: Any) -> list[Any]:
        return [values[number % len(values)] for number in numbers]

    nan, inf = float("nan"), float("inf")
    ancient, old, modern = datetime(1, 1, 1), datetime(1850, 1, 1), datetime(2026, 3, 8, 2, 30)
    return pa.table(
        {
            "k": pa.array([-1 - n if n % 12 == 6 else n for n in numbers], pa.int32()),
            "f32": pa.array(each(nan, 1.5, -0.0, None, 0.1, 7.0), pa.float32()),
            "f64": pa.array(each(1.5, nan, -0.0, 7.25, None, 50.0, 0.1), pa.float64()),
            "dn": pa.array(each(nan, None), pa.float64()),
            "inf": pa.array(each(inf, -inf, nan, 3.0, None), pa.float64()),
            "i64": pa.array(each(2**53 + 1, -(2**63) + 1, 7, 0, None), pa.int64()),
            "dec": pa.array(each(Decimal("1.00"), Decimal("-9999999.99"), None), pa.decimal128(9, 2)),
            "s": pa.array(each("a", "", None, "007", "\ud7ff", "\U0001f600", "x" * 90, "ab "), pa.string()),
            "bin": pa.array(each(b"\x00", b"\xff", b"", None), pa.binary()),
            "b": pa.array(each(True, False, None), pa.bool_()),
            "d": pa.array(
                each(date(1, 1, 1), date(1500, 3, 1), None, date(2026, 1, 5), date(9999, 12, 31)), pa.date32()
            ),
            "ts": pa.array(each(old, modern, None, modern + timedelta(hours=1), ancient), pa.timestamp("us", zone)),
            "st": pa.array(each({"x": 1.5}, {"x": nan}, None, {"x": None}), pa.struct([("x", pa.float64())])),
            "arr": pa.array(each([nan, 1.0], None, [], [None]), pa.list_(pa.float64())),
        }
    )


def deltalake(*, change: bool, partition: str | None = None) -> Make:
    """Appended to, updated, deleted from and merged into by deltalake; deletion vectors by delta-spark."""

    def make(spark: SparkSession, place: Path) -> None:
        from deltalake import DeltaTable, write_deltalake

        for first in (0, 40, 80):
            write_deltalake(
                str(place), arrow(first, 40), mode="append", partition_by=[partition] if partition else None
            )
        if change:
            table = DeltaTable(str(place))
            table.update(updates={"s": "'updated'"}, predicate="k = 4")
            table.delete("k = 5 OR k = 45")
            merge = table.merge(arrow(80, 3), "t.k = s.k", source_alias="s", target_alias="t")
            merge.when_matched_update_all().execute()
        properties = (
            "'delta.enableDeletionVectors' = 'true', 'delta.minReaderVersion' = '3', 'delta.minWriterVersion' = '7'"
        )
        run(
            spark,
            CURRENT,
            place,
            f"ALTER TABLE {{t}} SET TBLPROPERTIES ({properties})",
            "DELETE FROM {t} WHERE k % 10 = 3",
        )

    return make


DELTALAKE: Mapping[str, Make] = {
    "deltalake": deltalake(change=False),
    "deltalake, changed": deltalake(change=True),
    "deltalake, by date": deltalake(change=True, partition="d"),
}


def _by_pyarrow(spark: SparkSession, place: Path) -> None:
    for first in (0, 40):
        pq.write_table(arrow(first, 40), place / f"{first}.parquet", row_group_size=15, write_page_index=True)


def _by_polars(spark: SparkSession, place: Path) -> None:
    import polars as pl

    for first in (0, 40):
        pl.from_arrow(arrow(first, 40)).write_parquet(place / f"{first}.parquet", row_group_size=15)


def _by_duckdb(spark: SparkSession, place: Path) -> None:
    import duckdb

    for first in (0, 40):
        rows = arrow(first, 40)
        connection = duckdb.connect()
        connection.register("rows", rows)
        connection.execute(
            f"COPY (SELECT * FROM rows) TO '{place}/{first}.parquet' (FORMAT parquet, ROW_GROUP_SIZE 2048)"
        )


def _by_spark(settings: dict[str, str]) -> Make:
    def make(spark: SparkSession, place: Path) -> None:
        session = spark.newSession()
        for key, value in settings.items():
            session.conf.set(key, value)
        columns = [f"{sql} AS {name}" for name, sql in VALUES.items() if name not in {"c4", "v6"}]
        for first in (0, 60):
            session.sql(
                f"SELECT /*+ COALESCE(1) */ CAST(id AS INT) AS k, {', '.join(columns)} "
                f"FROM range({first}, {first + 60})"
            ).write.mode("append").parquet(str(place))

    return make


CONVERTED: Mapping[str, Make] = {
    "pyarrow": _by_pyarrow,
    "polars": _by_polars,
    "duckdb": _by_duckdb,
    "spark, legacy": _by_spark(LEGACY_MICROS),
    "spark, current": _by_spark(V2_PAGES),
}
"""Folders of Parquet files."""
