"""Row groups that Spark wrote and we copied: Spark finds the same rows by every filter, others every value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.parquet import row_group_copy
from dv_maintenance.maintenance.execution.apply import maintain, purge
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ROWS = 20_000
# Old dates and instants, NaN, both zeros, every decimal, nested nulls, text with and without a dictionary.
COLUMNS = """id,
    IF(id % 97 = 1, double('NaN'), IF(id % 97 = 2, -0.0D, id / 7D)) AS d,
    CAST(id % 11 AS FLOAT) AS f,
    IF(id % 2 = 0, 0.0D, -0.0D) AS z,
    IF(id % 13 = 0, NULL, concat('name ', id % 50)) AS s,
    concat('unique ', id * 31) AS u,
    IF(id % 5000 = 7, DATE'1401-02-03', date_add(DATE'2024-01-01', CAST(id % 500 AS INT))) AS day,
    IF(id % 7000 = 9, TIMESTAMP'1811-03-04 05:06:07.123456', timestamp_micros(1700000000000000 + id * 1234567)) AS t,
    CAST(id / 3 AS DECIMAL(9, 2)) AS d9, CAST(id / 3 AS DECIMAL(18, 4)) AS d18, CAST(id / 3 AS DECIMAL(38, 10)) AS d38,
    IF(id % 3 = 0, NULL, array(id, NULL)) AS l,
    IF(id % 4 = 0, NULL, map('k', named_struct('x', id / 2D, 'y', IF(id % 5 = 0, NULL, id)))) AS m,
    IF(id % 6 = 0, NULL, named_struct('a', named_struct('b', id % 9), 'c', encode(concat('', id), 'utf-8'))) AS n"""
FILTERS = (
    *(
        "d > 100000",
        "d = double('NaN')",
        "NOT (d <= 50)",
        "d = 0",
        "d <=> -0.0D",
        "z = 0",
        "z < 0",
        "f = 3",
        "s = 'name 7'",
    ),
    *(
        "s IS NULL",
        "u = 'unique 310'",
        "u = 'nobody'",
        "day < DATE'1500-01-01'",
        "day = DATE'2024-03-03'",
        "id = 19001",
    ),
    *("t < TIMESTAMP'1900-01-01'", "t > TIMESTAMP'2024-06-01'", "d9 = 5", "d18 = 7.0000", "d38 > 13000", "n.a.b = 4"),
    *("size(l) = 2", "element_at(m, 'k').y = 9", "n IS NULL"),
)


@pytest.mark.deep  # a minute of Spark; tests/engine/test_row_group_copy.py has what needs no JVM
@pytest.mark.parametrize(
    ("int96", "options"),
    [
        (True, {"parquet.bloom.filter.enabled#u": "true", "parquet.bloom.filter.enabled#z": "true"}),
        (False, {"parquet.writer.version": "PARQUET_2_0", "parquet.enable.dictionary": "false"}),
    ],
    ids=["INT96 and Bloom filters", "pages of version 2"],
)
def test_spark_finds_what_it_found(
    delta_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, int96: bool, options: dict[str, str]
) -> None:
    monkeypatch.setattr(row_group_copy, "_LARGE_CHUNK", 64)
    spark, path = delta_spark, str(tmp_path / "t")
    kind = "INT96" if int96 else "TIMESTAMP_MICROS"
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    settings = {"parquet.block.size": "60000", "parquet.page.size": "10000", **options}
    try:
        # Arrow writes all timestamps of a file as INT96, or none.
        more = [] if int96 else ["timestamp_ntz'2024-05-06 07:08:09.123456' + make_dt_interval(0, 0, 0, id) AS ntz"]
        rows = spark.range(ROWS).coalesce(2).selectExpr(*_split(COLUMNS), *more)
        for name, value in settings.items():
            hadoop.set(name, value)
        rows.write.format("delta").option("delta.enableDeletionVectors", "true").save(path)
        before = [_groups(file) for file in tmp_path.glob("t/*.parquet")]
        assert min(before) > 3
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id IN (5, 19123) OR id BETWEEN 10000 AND 12000")
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
        for name in settings:
            hadoop.unset(name)
    readers = ("true",) if int96 else ("true", "false")
    truth = _answers(spark, path, readers)
    everything = _everything(spark, path)
    live = ROWS - 2 - 2001
    results: list[Any] = []
    run = LocalEngine.run

    def watched(self: Any, tasks: Any, **rest: Any) -> Any:
        results.extend(run(self, tasks, **rest))
        return results

    monkeypatch.setattr(LocalEngine, "run", watched)
    purge(open_table(path), LocalEngine(1))
    assert 2 <= sum(result.details["row_groups_copied"] for result in results) < sum(before)
    assert _answers(spark, path, readers) == truth
    assert _everything(spark, path) == everything
    # Our own files, copied once more.
    results.clear()
    maintain(open_table(path), LocalEngine(1), Policy(target_file_size=1 << 30, max_deleted_ratio=1))
    files = open_table(path).snapshot().files.column("path").to_pylist()
    paths = [str(tmp_path / "t" / file) for file in files]
    assert _answers(spark, path, readers) == truth
    assert _everything(spark, path) == everything
    [(found, distinct)] = duckdb.sql(f"SELECT count(*), count(DISTINCT u) FROM read_parquet({paths})").fetchall()
    assert found == distinct == live
    assert pl.scan_parquet(paths).select(pl.col("u").n_unique()).collect().item() == live
    assert sum(pq.ParquetFile(file).read().num_rows for file in paths) == live
    from deltalake import DeltaTable

    stats = pa.table(DeltaTable(path, without_files=False).get_add_actions(flatten=True))
    assert min(stats.column("min.id").to_pylist()) == 0
    assert max(stats.column("max.id").to_pylist()) == ROWS - 1


def _split(columns: str) -> list[str]:
    """By the commas outside of brackets."""
    found, depth, start = [], 0, 0
    for at, sign in enumerate(columns):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            found.append(columns[start:at])
            start = at + 1
    return [*found, columns[start:]]


def _groups(file: Path) -> int:
    return int(pq.read_metadata(file).num_row_groups)


def _answers(spark: SparkSession, path: str, readers: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """By filter how many rows it finds and the sum of their ids, with row groups and pages skipped, in each reader."""
    parts = [
        f"SELECT {number} AS n, count(*) AS found, coalesce(sum(id), 0) AS ids FROM delta.`{path}` WHERE {each}"
        for number, each in enumerate(FILTERS)
    ]
    found = {}
    for vectorized in readers:
        spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
        try:
            rows = spark.sql(" UNION ALL ".join(parts)).collect()
        finally:
            spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
        found |= {f"{FILTERS[row.n]} {vectorized}": (row.found, row.ids) for row in rows}
    return found


def _everything(spark: SparkSession, path: str) -> Any:
    """A sum over the hashes of all values."""
    spark.catalog.clearCache()
    columns = [name for name in spark.read.format("delta").load(path).columns if name != "m"]
    hashes = ", ".join([*columns, "to_json(m)"])
    return spark.sql(f"SELECT count(*), sum(CAST(xxhash64({hashes}) AS DECIMAL(38, 0))) FROM delta.`{path}`").collect()
