"""Independent readers of Delta tables: each gives the live rows as an Arrow table, or raises in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from support.sessions import cheap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_deltalake(table: Path, version: int | None = None) -> pa.Table:
    """delta-rs with the Delta kernel underneath."""
    from deltalake import DeltaTable, QueryBuilder

    query = QueryBuilder().register("t", DeltaTable(str(table), version=version)).execute("SELECT * FROM t")
    return pa.table(query.read_all())


def with_polars(table: Path, version: int | None = None) -> pa.Table:
    """polars' own reader, an independent vote."""
    import polars as pl

    return pl.scan_delta(str(table), version=version).collect().to_arrow()


def with_delta_spark(spark: SparkSession, table: Path, version: int | None = None) -> pa.Table:
    """The reference implementation."""
    reader = cheap(spark).read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(str(table)).toArrow()


READERS = {"deltalake": with_deltalake, "polars": with_polars}
