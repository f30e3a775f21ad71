"""``dvm read --where``: the rows that Spark's filter returns, in every form, judged by delta-spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.twins import make_table

from dv_maintenance import cli
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.service import reading
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Two files; every tenth row is deleted."""
    builder = DeltaBuilder(str(tmp_path / "orders")).create(SCHEMA)
    names = pa.array([None if at % 7 == 0 else f"n{at}" for at in range(200)])
    builder.append(pa.table({"id": range(200), "name": names, "day": pa.nulls(200, pa.date32())}, SCHEMA), files=2)
    builder.delete(lambda rows: pc.equal(pc.subtract(rows["id"], pc.multiply(pc.divide(rows["id"], 10), 10)), 0))
    return str(tmp_path / "orders")


CONDITION = "name IS NULL AND id > 20 AND rand() < 2"
WANTED = [at for at in range(21, 200) if at % 7 == 0 and at % 10]


def test_the_command(spark: SparkSession, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["read", place, "--where", CONDITION, "--limit", "1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"id": at, "name": None, "day": None} for at in WANTED]


@pytest.mark.parametrize("words", [["id = 1", "-o", "rows.xlsx"], ["rand() < 1", "--engine", "local"]])
def test_what_needs_no_spark_to_be_refused(place: str, words: list[str]) -> None:
    assert cli.main(["read", place, "--where", *words]) == 2


@pytest.mark.deep
def test_every_form(spark: SparkSession, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*options: str) -> str:
        assert cli.main(["read", place, "--where", CONDITION, *options]) == 0
        return capsys.readouterr().out

    assert shown("--columns", "id", "--as", "csv", "--limit", "1000").split() == ["id", *map(str, WANTED)]
    assert json.loads(shown("--json")) == {"rows": len(WANTED), "output": None}
    assert len(shown("--limit", "5").splitlines()) == 5
    assert shown("-o", str(tmp_path / "rows.parquet")) == f"Wrote {len(WANTED)} rows to {tmp_path / 'rows.parquet'}.\n"
    assert pq.read_table(tmp_path / "rows.parquet")["id"].to_pylist() == WANTED
    assert shown("--version", "1", "--columns", "id", "--as", "csv", "--limit", "1000").count("\n") > len(WANTED)
    assert cli.main(["read", place, "--where", "nope = 1"]) == 2


@pytest.mark.deep
@pytest.mark.parametrize(
    "condition",
    [
        "id % 5 = 1 OR name IS NULL",
        "price > 20.5 AND shop = 'a b'",
        "day = '2026-02-01'",
        "shop IS NULL",
        "code = 'a'",
        "price = double('NaN')",
        "at < timestamp'2026-01-01 12:00:00'",
        "EXISTS (SELECT 1)",
        "false",
    ],
)
def test_delta_spark_returns_the_same_rows(delta_spark: SparkSession, judged: Path, condition: str) -> None:
    table = open_table(str(judged))
    output = str(judged.parent / "rows.jsonl")
    reading.rows_where(table, lambda: SparkEngine(delta_spark), condition, output, columns=["id"])
    ours = sorted(json.loads(line)["id"] for line in Path(output).read_text().splitlines())
    rows: Any = delta_spark.sql(f"SELECT id FROM judged_by_where WHERE {condition}").collect()
    assert ours == sorted(row.id for row in rows)


@pytest.fixture(scope="module")
def judged(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_table(
        delta_spark,
        tmp_path_factory.mktemp("where") / "made",
        """
        CREATE TABLE {t} (id BIGINT, name STRING, price DOUBLE, code CHAR(3), at TIMESTAMP, day DATE, shop STRING)
            USING delta PARTITIONED BY (day, shop) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true');
        INSERT INTO {t} SELECT id, IF(id % 10 = 0, NULL, concat('n', id)), IF(id % 50 = 0, double('NaN'), id / 4),
            IF(id % 2 = 0, 'a', 'abc'), timestamp'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, CAST(id AS INT)),
            date_add(DATE '2026-01-01', CAST(id % 3 AS INT)),
            CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN 'a b' WHEN 2 THEN 'x/y=z%' ELSE 'é' END FROM range(400);
        DELETE FROM {t} WHERE id % 7 = 0;
        INSERT INTO {t} SELECT id, concat('n', id), id / 4, 'b', NULL, DATE '2026-02-01', 'late' FROM range(400, 500)
        """,
    )
    delta_spark.sql(f"CREATE TABLE judged_by_where USING delta LOCATION '{place}'")
    return place
