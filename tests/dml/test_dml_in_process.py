"""Conditions without Spark: what is evaluated here is what Spark answers, and everything else is left to Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
import pytest
from effort import examples
from support.random_sql import COLUMNS, condition, rows_of_file

from dv_maintenance.cli import main
from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.in_process import exact_predicate
from dv_maintenance.dml.read import matching_rows
from dv_maintenance.engine.auto import AutoEngine
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.rows.filtering import evaluate
from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.errors import UsageError
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.testing.backends import DeltaBackend, IcebergBackend, LanceBackend, PaimonBackend, TableBackend
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = pa.table(
    {
        "id": pa.array([1, 2, 3, None, -5], pa.int64()),
        "small": pa.array([1, None, 127, -128, 0], pa.int8()),
        "Name": ["a", "B", None, "ü", "a "],
        "day": pa.array([date(2026, 1, 1), None, date(1500, 2, 28), date(2026, 1, 2), date(2025, 12, 31)]),
        "price": pa.array(
            [Decimal("1.50"), Decimal("-1.50"), None, Decimal("0.00"), Decimal("99.99")], pa.decimal128(5, 2)
        ),
        "ok": [True, False, None, True, False],
        "x": [0.5, float("nan"), None, -0.0, 1e300],
        "a,b": [1, 2, 3, 4, 5],
    }
)
EXACT: Final = (
    "id = 1",
    "2 <= id",
    "id <> -5",
    "id != 1 AND NOT (small = 127)",
    "NOT id = 1 OR name = 'a'",
    "NAME >= 'a'",
    "name IN ('a', 'ü', 'q')",
    "id NOT IN (1, 2)",
    "id BETWEEN -5 AND 2 AND ok",
    "id NOT BETWEEN 0 AND 2",
    "name IS NULL",
    "name IS NOT NULL AND NOT ok",
    "day < '2026-01-01'",
    "DATE '1500-02-28' = day",
    "day IN (DATE'2026-01-02', '2025-12-31')",
    "price > 1.5",
    "price = -1.50 OR price = 0",
    "price <= 99",
    "ok = FALSE",
    "ok OR id = 3",
    "true",
    "false OR small = -128",
    "`a,b` = 2",
    "id == 3",
    "id = 9999999999999999",
)
FOR_SPARK: Final = (
    "id = '1'",  # whatever Spark casts
    "id = 1.0",
    "id = 1L",
    "small = 300",
    "name = 1",
    'name = "a"',  # a text, or by a setting a column
    "name = 'it''s'",
    "name = 'a\\\\n'",
    "name LIKE 'a%'",
    "lower(name) = 'a'",
    "name = 'a' -- and a comment",
    "x > 0",
    "price = 1.234",
    "price = 1.5D",
    "day = '2026-1-1'",
    "day = '2026-02-30'",
    "day = TIMESTAMP '2026-01-01 00:00:00'",
    "id = small",
    "id = NULL",
    "id <=> 1",
    "id IN (1, NULL)",
    "id IN (SELECT 1)",
    "t.id = 1",
    "id = 1 OR rand() < 0.5",
    "ok IS TRUE",
    "! ok",
    "id = 1; DROP TABLE t",
    "id = ",
)


def ids(schema: pa.Schema, batches: Any) -> list[Any]:
    return sorted(pa.Table.from_batches(batches, schema)["id"].to_pylist())


def test_answers_are_those_of_spark(spark: SparkSession) -> None:
    rows = spark.createDataFrame(ROWS)
    wanted = rows.selectExpr(*[f"({sql}) AS c{at}" for at, sql in enumerate(EXACT)]).toArrow()
    (batch,) = ROWS.to_batches()
    for at, sql in enumerate(EXACT):
        predicate = exact_predicate(sql, ROWS.schema)
        assert predicate is not None, sql
        assert evaluate(batch, predicate).to_pylist() == wanted[f"c{at}"].to_pylist(), sql


def test_random_conditions_have_sparks_answer_or_none(spark: SparkSession) -> None:
    random = Random(7)
    names = [each.name for each in COLUMNS]
    values = " UNION ALL ".join(
        f"SELECT {', '.join(f'col{at + 1}' for at in range(len(names) + 1))} FROM ({rows_of_file(random, number)})"
        for number in range(2)
    )
    casts = ", ".join(f"CAST(col{at + 2} AS {each.type}) AS {each.name}" for at, each in enumerate(COLUMNS))
    rows = spark.sql(f"SELECT CAST(col1 AS INT) AS id, {casts} FROM ({values})").cache()
    arrow = rows.toArrow().combine_chunks()
    made = [condition(random, 2, nested=False) for _ in range(examples(2000))]
    with pytest.raises(UsageError, match="no column 'no_such'"):
        exact_predicate("no_such = 1", arrow.schema)
    made = [sql for sql in made if "no_such" not in sql]
    found = {sql: predicate for sql in made if (predicate := exact_predicate(sql, arrow.schema)) is not None}
    assert len(found) > 20
    wanted = rows.selectExpr(*[f"({sql}) AS c{at}" for at, sql in enumerate(found)]).toArrow()
    (batch,) = arrow.to_batches()
    for at, (sql, predicate) in enumerate(found.items()):
        assert evaluate(batch, predicate).to_pylist() == wanted[f"c{at}"].to_pylist(), sql


@pytest.mark.parametrize("sql", FOR_SPARK)
def test_what_hangs_on_more_than_values_is_for_spark(sql: str) -> None:
    assert exact_predicate(sql, ROWS.schema) is None


def test_char_is_for_spark(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("c", pa.string(), metadata={b"dvm:limited": b"char(4)"})])
    assert exact_predicate("c = 'ab'", schema) is None
    assert exact_predicate("c IS NULL", schema) is not None


BACKENDS: Final[dict[str, Callable[[str], TableBackend]]] = {
    "delta": DeltaBackend,
    "lance": LanceBackend,
    "paimon": PaimonBackend,
    "iceberg": IcebergBackend,
    "iceberg of version 2": lambda place: IcebergBackend(place, properties={"format-version": "2"}),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> TableBackend:
    made = BACKENDS[request.param](str(tmp_path / "t"))
    made.create()
    made.append("a", [(number, "a", f"v{number}") for number in range(10)])
    made.append("b", [(number, "b", f"v{number}") for number in range(10, 20)])
    made.delete([1])
    return made


def test_rows_are_deleted_and_read_without_spark(backend: TableBackend) -> None:
    table, here = backend.open(), LocalEngine()
    where = "(id < 4 AND v <> 'v2') OR id IN (12, 13)"
    schema = pa.schema([table.snapshot().schema.field("id")])
    assert ids(schema, matching_rows(table, here, where, table.snapshot(), schema)) == [0, 3, 12, 13]
    assert len(ids(schema, matching_rows(table, here, "true", table.snapshot(), schema, 13))) == 13
    assert delete(table, here, where, dry_run=True).rows_deleted == 4
    assert delete(table, here, where).rows_deleted == 4
    report = delete(backend.open(), here, "id >= 10")
    assert (report.rows_deleted, report.files_removed) == (8, 1)
    assert ids(*read(backend.open())) == [2, 4, 5, 6, 7, 8, 9]
    with pytest.raises(UsageError, match="the local engine can't evaluate this condition"):
        delete(backend.open(), here, "v LIKE 'v%'")
    with pytest.raises(UsageError, match=r"no column 'ids'.*did you mean id"):
        delete(backend.open(), here, "ids = 4")


def test_whole_partitions_are_not_opened(tmp_path: Path) -> None:
    rows = pa.table({"id": range(4), "day": pa.array([date(2026, 1, 1), date(2026, 1, 1), date(2026, 1, 2), None])})
    builder = DeltaBuilder(str(tmp_path / "t")).create(rows.schema, partition_by=["day"])
    builder.append(rows)
    for path in (tmp_path / "t").rglob("*.parquet"):
        path.write_bytes(b"nobody opens this")
    table = open_table(str(tmp_path / "t"))
    report = delete(table, LocalEngine(), "day = '2026-01-01' OR day IS NULL")
    assert (report.rows_deleted, report.files_removed, report.dvs_added) == (3, 2, 0)
    assert table.snapshot().files["partition"].to_pylist() == ["day=2026-01-02"]


class NoSpark(SparkEngine):
    @property
    def session(self) -> NoReturn:
        pytest.fail("Spark was started")


def test_auto_starts_no_spark_for_little_work(tmp_path: Path) -> None:
    backend = DeltaBackend(str(tmp_path / "t"))
    backend.create()
    backend.append("a", [(1, "a", "x"), (2, "a", "y")])
    engine = AutoEngine(NoSpark())
    assert delete(backend.open(), engine, "id = 1").rows_deleted == 1
    for engine, where in ((AutoEngine(NoSpark(), in_process=10), "id = 2"), (AutoEngine(NoSpark()), "id + 1 = 3")):
        with pytest.raises(pytest.fail.Exception, match="Spark was started"):
            delete(backend.open(), engine, where)


@pytest.mark.parametrize("wrap", [AutoEngine, lambda engine: engine])
def test_sessions_that_tell_cases_apart(tmp_path: Path, wrap: Any) -> None:
    """Spark does not find a column of another case there."""
    backend = DeltaBackend(str(tmp_path / "t"))
    backend.create()
    backend.append("a", [(1, "a", "x"), (2, "a", "y")])
    engine = wrap(NoSpark(conf={"spark.sql.caseSensitive": "true"}))
    assert delete(backend.open(), engine, "id = 1 AND v = 'x'").rows_deleted == 1
    with pytest.raises(pytest.fail.Exception, match="Spark was started"):
        delete(backend.open(), engine, "id = 2 AND V = 'y'")
    assert delete(backend.open(), wrap(NoSpark()), "id = 2 AND V = 'y'").rows_deleted == 1


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "t")
    DeltaBuilder(place).create(ROWS.schema, properties={"delta.columnMapping.mode": "name"}).append(ROWS)
    assert main(["read", place, "--engine", "local", "--where", "`a,b` < 3", "--columns", "`a,b`,id"]) == 0
    assert capsys.readouterr().out.splitlines() == ['{"a,b":1,"id":1}', '{"a,b":2,"id":2}']
    assert main(["delete", place, "--engine", "local", "--where", "id = 1"]) == 0
    assert "1 row deleted" in capsys.readouterr().out
    for words in (
        ["delete", "--where", "x > 1"],
        ["delete", "--keys", "k.csv", "--on", "id"],
        ["update", "--set", "id=1"],
    ):
        assert main([words[0], place, *words[1:], "--engine", "local"]) == 2
        assert "local" in capsys.readouterr().err
    assert main(["update", "--help"]) == 0
    assert "{spark,auto}" in capsys.readouterr().out
