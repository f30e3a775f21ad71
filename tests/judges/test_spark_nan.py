"""NaN in floats: Spark takes it for greater than every number, and finds it by any filter after whatever we do to a
table, as it does where it reads every row: it skips files, row groups and pages by what they say of themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from support.paimon_engine import DV, PaimonEngine

from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN = "double('NaN')"
FILTERS = (
    "d > 100",
    "d >= 50",
    f"d = {NAN}",
    f"d <=> {NAN}",
    "isnan(d)",
    "NOT (d <= 50)",
    "NOT (d < 3)",
    "d <> 5",
    f"d IN ({NAN}, 7)",
    "d NOT IN (1, 2)",
    "d > double('infinity')",
    f"d BETWEEN 60 AND {NAN}",
    "d < 3",
    "d IS NULL",
    "f >= 7",
    "f = float('NaN')",
    "s.x > 5",
    "NOT (s.x <= 5)",
    f"s.x = {NAN}",
    f"array_contains(a, {NAN})",
    f"element_at(m, 'k') = {NAN}",
    "once > 7000",
    "NOT (once <= 7000)",
    "once = 6999",
    "never > 1",
    f"never = {NAN}",
    "z = 0",
    "z >= 0.0",
    "z < 0.0",
    "NOT (z < -0.0)",
    "y = 0",
    "y >= 0.0",
    "inf > 1e300",
    "inf < -1e300",
)
"""Of them each finds NaN, or would if there were any, or a bound that is not what it seems to be."""

FEW = ("d > 100", f"d = {NAN}", "NOT (d <= 50)", "f >= 7", "s.x > 5", "once > 7000", "y = 0")

# In `once` only one of all rows is NaN, in `never` are but NaN and nulls. A DELETE leaves only negative zeros in `y`.
ROWS = f"""id,
    CASE WHEN id % 500 = 1 THEN {NAN} WHEN id % 500 = 3 THEN NULL ELSE id % 50 END AS d,
    CAST(IF(id % 500 = 2, {NAN}, id % 6) AS FLOAT) AS f,
    IF(id % 500 = 4, NULL, named_struct('x', IF(id % 500 = 1, {NAN}, id % 5))) AS s,
    array(IF(id % 500 = 5, {NAN}, 1D)) AS a,
    map('k', IF(id % 500 = 6, {NAN}, 1D)) AS m,
    IF(id = 2001, {NAN}, CAST(id AS DOUBLE)) AS once,
    IF(id % 2 = 0, NULL, {NAN}) AS never,
    CASE id % 3 WHEN 0 THEN 0.0D WHEN 1 THEN -0.0D ELSE 0.0D END AS z,
    IF(id % 1000 = 501, 0.0D, -0.0D) AS y,
    CASE id WHEN 3 THEN double('infinity') WHEN 3001 THEN double('-infinity') ELSE 1D END AS inf"""
COUNT = 7_000


@contextmanager
def configured(spark: SparkSession, **settings: Any) -> Iterator[None]:
    names = {name.replace("__", "."): str(value).lower() for name, value in settings.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def skipping(spark: SparkSession, relation: str, filters: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """For each filter, the number of rows it finds and the sum of their ids, each from a separate scan, all in one
    job.
    """
    parts = [
        f"SELECT {number} AS n, count(*) AS found, coalesce(sum(id), 0) AS ids FROM {relation} WHERE {each}"
        for number, each in enumerate(filters)
    ]
    return {filters[row.n]: (row.found, row.ids) for row in spark.sql(" UNION ALL ".join(parts)).collect()}


def reading_all(spark: SparkSession, relation: str, filters: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """The same, of every row."""
    parts = (f"count_if({each}), coalesce(sum(IF({each}, id, 0)), 0)" for each in filters)
    [found] = spark.sql(f"SELECT {', '.join(parts)} FROM {relation}").collect()
    return {each: (found[2 * number], found[2 * number + 1]) for number, each in enumerate(filters)}


def judged(
    spark: SparkSession, relation: str, filters: tuple[str, ...] = FILTERS, *, vectorized: tuple[bool, ...] = (True,)
) -> dict[str, tuple[int, int]]:
    """What each filter finds, where every row is read and where as many as possible are not: the same."""
    truth = reading_all(spark, relation, filters)
    for on in vectorized:
        with configured(
            spark, spark__sql__parquet__enableVectorizedReader=on, spark__sql__orc__enableVectorizedReader=on
        ):
            assert skipping(spark, relation, filters) == truth
    return truth


def judge_files(files: list[str], rows: int) -> None:
    """Others read them, and filter rightly by their own rules."""
    assert pl.scan_parquet(files).select(pl.len()).collect().item() == rows
    assert sum(pq.ParquetFile(file).read().num_rows for file in files) == rows
    [(found, nan)] = duckdb.sql(f"SELECT count(*), count(*) FILTER (isnan(d)) FROM read_parquet({files})").fetchall()
    assert duckdb.sql(f"SELECT count(*) FROM read_parquet({files}) WHERE d > 100").fetchall() == [(nan,)]
    assert pl.scan_parquet(files).filter(pl.col("d") > 100).collect().height == nan
    assert found == rows


def made(spark: SparkSession, path: Path) -> str:
    spark.sql(
        f"CREATE TABLE delta.`{path}` USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        f" AS SELECT {ROWS} FROM range(0, {COUNT}, 1, 1)"
    )
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id % 1000 = 501")
    return f"delta.`{path}`"


def files_of(path: Path) -> list[str]:
    return [str(path / name) for name in open_table(str(path)).snapshot().files["path"].to_pylist()]


@pytest.mark.parametrize("filters", [FEW, pytest.param(FILTERS, marks=pytest.mark.deep)], ids=["few", "all"])
@pytest.mark.usefixtures("few_rows_in_a_group")
def test_purged(delta_spark: SparkSession, tmp_path: Path, filters: tuple[str, ...]) -> None:
    spark, path = delta_spark, tmp_path / "t"
    table = made(spark, path)
    before = reading_all(spark, table, filters)
    assert before["d > 100"][0] == COUNT // 1000
    assert before["once > 7000"][0] == 1
    assert purge(open_table(str(path)), LocalEngine()).verified
    assert judged(spark, table, FEW) == {each: before[each] for each in FEW}
    # Plain scans cost less than those of Delta.
    [file] = files_of(path)
    assert pq.read_metadata(file).num_row_groups == 2
    assert judged(spark, f"parquet.`{file}`", filters) == before
    judge_files([file], COUNT - COUNT // 1000)


@pytest.mark.deep
@pytest.mark.usefixtures("few_rows_in_a_group")
def test_ordered_updated_and_merged(delta_spark: SparkSession, tmp_path: Path) -> None:
    spark, path = delta_spark, tmp_path / "t"
    table = made(spark, path)
    before = reading_all(spark, table, FILTERS)
    assert zorder(open_table(str(path)), LocalEngine(), ["id"]).verified
    assert judged(spark, table) == before
    update(open_table(str(path)), spark, {"d": NAN}, "id < 3000 AND id % 500 = 7")
    assert judged(spark, table)["d > 100"][0] == before["d > 100"][0] + 6
    new = spark.sql(f"SELECT {ROWS} FROM range(6000, 8000)")
    begun = merge(open_table(str(path)), spark, new, "target.id = source.id")
    begun.when_matched_update_all().when_not_matched_insert_all().execute()
    assert judged(spark, table, vectorized=(True, False))["d > 100"][0] > before["d > 100"][0] + 6


@pytest.fixture
def few_rows_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row groups in a file, each of several pages."""
    monkeypatch.setattr("dv_maintenance.engine.parquet.footer.MAX_BATCH_ROWS", 4_000)
    monkeypatch.setattr("dv_maintenance.engine.parquet.writer.ROW_GROUP_ROWS", 3_000)
    monkeypatch.setattr(pq, "ParquetWriter", partial(pq.ParquetWriter, max_rows_per_page=1_000))


ROW = {"type": "ROW", "fields": [{"id": 100, "name": "x", "type": "DOUBLE"}]}
PAIMON_FILTERS = tuple(
    each for each in FILTERS if not any(name in each for name in ("once", "inf", "(m,", "(a,", "y "))
)


@pytest.mark.parametrize("form", ["parquet", pytest.param("orc", marks=pytest.mark.deep)])
def test_a_paimon_table(delta_spark: SparkSession, paimon_engine: PaimonEngine, tmp_path: Path, form: str) -> None:
    spark, path, nan = delta_spark, tmp_path / "t", float("nan")
    columns: dict[str, Any] = {"id": "BIGINT", "d": "DOUBLE", "f": "FLOAT", "s": ROW, "never": "DOUBLE", "z": "DOUBLE"}
    paimon_engine.create(path, columns, options={**DV, "file.format": form})
    rows = [
        (n, nan if n % 5 == 1 else n % 50, nan if n % 5 == 2 else n % 6, (nan if n % 5 == 1 else n % 5,), nan, -0.0)
        for n in range(99)
    ]
    paimon_engine.append(path, [[*row[:3], list(row[3]), *row[4:]] for row in rows])
    paimon_engine.delete(path, lambda row: row["id"] % 11 == 3)
    before, found = paimon_engine.rows(path), paimon_engine.rows(path, where=("d", nan))
    assert purge(open_table(str(path)), LocalEngine()).verified
    assert sorted(map(repr, paimon_engine.rows(path))) == sorted(map(repr, before))
    # It leaves out files, not rows: more may come, as Paimon's writer has bounds that leave NaN out.
    assert {*map(repr, found)} <= {*map(repr, paimon_engine.rows(path, where=("d", nan)))}
    [name] = paimon_engine.files(path, paimon_engine.version(path))
    [file] = path.rglob(name)
    if form == "parquet":
        judge_files([str(file)], 90)
    # To ORC's readers the two zeros are two numbers, and its writers keep the one that they saw: in Java, too.
    filters = tuple(each for each in PAIMON_FILTERS if form == "parquet" or "z " not in each)
    truth = judged(spark, f"{form}.`{file}`", filters)
    assert truth["d > 100"][0] == 18
    assert truth["d IS NULL"][0] == 0
