"""A file in several codecs, judged by Spark: tests/engine/test_codecs.py has the readers that need no JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from support.parquet_lake import Lake
from support.sessions import cheap

from dv_maintenance.engine.parquet import row_group_copy
from dv_maintenance.engine.rewrite import rewrite

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

GROUP = 1000
CODECS = ("snappy", "gzip", "zstd", "none")


def test_spark_reads_a_file_in_four_codecs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_group_copy, "_LARGE_ROWS", GROUP)
    lake, schema = Lake(tmp_path), pa.schema([("id", pa.int64()), ("text", pa.string())])
    parts = [
        pa.table({"id": range(n * GROUP, n * GROUP + GROUP), "text": [f"row {i % 7}" for i in range(GROUP)]}, schema)
        for n in range(len(CODECS))
    ]
    sources = [
        lake.write(part, f"{codec}.parquet", compression=codec) for part, codec in zip(parts, CODECS, strict=True)
    ]
    rewrite(lake.task(sources, schema, compression_required=False))
    (path,) = lake.outputs()
    footer = pq.read_metadata(path)
    written = [footer.row_group(group).column(0).compression for group in range(footer.num_row_groups)]
    assert written == ["SNAPPY", "GZIP", "ZSTD", "UNCOMPRESSED"]
    found = cheap(spark).read.parquet(str(path)).toArrow().sort_by("id")
    assert found.to_pylist() == pa.concat_tables(parts).to_pylist()
