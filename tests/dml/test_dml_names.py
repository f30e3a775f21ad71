"""Columns may be called anything, and conditions need not name any; CSV and JSON as the source of a MERGE."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from support.twins import make_table

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.names import alike, quoted
from dv_maintenance.dml.source import read_rows
from dv_maintenance.dml.update import update
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.tables.rows import row_id_name, unused
from dv_maintenance.testing.delta_builder import DeltaBuilder
from dv_maintenance.testing.iceberg_builder import IcebergBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = """
    CREATE TABLE {t} (`a.b` INT NOT NULL, `c``d` STRING NOT NULL, _dvm_file INT, _dvm_row BIGINT, _DVM_action STRING,
        _dvm_row_id INT, _dvm_clause INT, _dvm_in_source INT) USING delta
        TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name',
            'delta.enableRowTracking' = 'true');
    INSERT INTO {t} SELECT id, concat('x', id), id % 3, id * 10, 'act', id, id, id FROM range(30)
"""


@pytest.fixture
def made(delta_spark: SparkSession, tmp_path: Path) -> Path:
    return make_table(delta_spark, tmp_path / "made", TABLE)


def test_names() -> None:
    assert quoted("t", "a.b", "c`d") == "`t`.`a.b`.`c``d`"
    assert unused("_x", ["a", "_X", "__x"]) == "___x"
    assert row_id_name(pa.schema([("_DVM_ROW_ID", pa.int32())])) == "__dvm_row_id"
    assert [alike("k", names) for names in (["K", "k"], ["K", "j"], ["K", "ķ", "j"], [])] == [["k"], ["K"], ["K"], []]


def test_columns_may_be_called_anything(delta_spark: SparkSession, made: Path) -> None:
    table = DeltaTable(Storage(str(made)))
    left = {n: (n, f"x{n}", n % 3, n * 10, "act", n, n, n) for n in range(30)}
    changes = {"`c``d`": "concat(`c``d`, '!')", "_dvm_row": "_dvm_row + `a.b`"}
    report = update(table, delta_spark, changes, "`a.b` < 5 AND _dvm_file = 1 AND `c``d` LIKE 'x%'")
    assert report.rows_updated == 2
    left |= {n: (n, f"x{n}!", 1, n * 11, "act", n, n, n) for n in (1, 4)}
    source = """
        SELECT id AS `a.b`, concat('s', id) AS `c``d`, 7 AS _dvm_file, id AS _dvm_row, 'n' AS _dvm_action,
            1 AS _dvm_row_id, 2 AS _dvm_clause, 3 AS _dvm_in_source, 4 AS _dvm_insert FROM range(25, 35)
    """
    on = "target.`a.b` = source.`a.b` AND target._dvm_clause >= 0"
    begun = merge(table, delta_spark, source, on)
    merged = begun.when_matched_update_all().when_not_matched_insert_all().execute()
    assert (merged.rows_updated, merged.rows_inserted) == (5, 5)
    left |= {n: (n, f"s{n}", 7, n, "n", 1, 2, 3) for n in range(25, 35)}
    keys = delta_spark.createDataFrame([(0, 30), (1, 10)], "_dvm_file int, _dvm_row long")
    assert delete(table, delta_spark, keys=keys, on=["_dvm_file", "_dvm_row"]).rows_deleted == 1
    assert delete(table, delta_spark, "_dvm_row = 60 AND `c``d` = 'x6'").rows_deleted == 1
    del left[3], left[6]
    rows = delta_spark.read.format("delta").load(str(made)).collect()
    assert sorted(map(tuple, rows)) == sorted(left.values())


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("1 = 1", 5),
        ("current_timestamp() < TIMESTAMP '2020-01-01'", 0),
        ("length(current_user()) > 0", 5),
    ],
)
def test_conditions_that_name_no_column(spark: SparkSession, tmp_path: Path, condition: str, rows: int) -> None:
    schema = pa.schema([("v", pa.list_(pa.int32())), ("k", pa.int64())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema)
    builder.append(pa.table({"v": [[1]] * 6, "k": range(6)}, schema=schema), files=2)
    builder.delete(lambda batch: pa.array([k == 5 for k in batch["k"].to_pylist()]))
    table = DeltaTable(Storage(str(tmp_path / "t")))
    assert delete(table, spark, condition, dry_run=True).rows_deleted == rows


RANDOM = [
    "rand() < 2",
    "uuid() <> ''",
    "reflect('java.lang.String', 'valueOf', 'a') = 'a'",
    "k = monotonically_increasing_id()",
]
SUBQUERIES = ["EXISTS (SELECT 1)", "k IN (SELECT 1)", "(SELECT max(id) FROM range(3)) = 2 OR k = 1"]
REFUSED = "not deterministic, which the table's engine refuses|has a subquery, which the table's engine refuses"


def test_expressions_that_the_engines_refuse(spark: SparkSession, tmp_path: Path) -> None:
    """As delta-spark and Spark do: DELTA_UNSUPPORTED_SUBQUERY, UNSUPPORTED_MERGE_CONDITION and
    INVALID_NON_DETERMINISTIC_EXPRESSIONS. What they take, such as a uuid() in new rows, is taken.
    """
    rows = pa.table({"k": pa.array(range(3), pa.int64()), "n": pa.array([0] * 3, pa.int64())})
    delta, iceberg = DeltaBuilder(str(tmp_path / "d")), IcebergBuilder(str(tmp_path / "i"))
    delta.create(rows.schema).append(rows)
    iceberg.create({"k": "long", "n": "long"})
    iceberg.append(rows)
    source = spark.sql("SELECT 1L AS k, 5L AS n UNION ALL SELECT 9L, 9L")
    tables = {name: open_table(str(tmp_path / name)) for name in "di"}

    def merged(name: str, on: str = "true", when: str | None = None, value: str = "1", new: str = "1") -> int:
        begun = merge(tables[name], spark, source, f"target.k = source.k AND {on}")
        begun = begun.when_matched_update({"n": value}, when).when_not_matched_insert({"k": "source.k", "n": new})
        return begun.execute(dry_run=True).rows_updated

    for name, table in tables.items():
        refused = [*RANDOM, *(SUBQUERIES if name == "d" else ())]
        for sql in refused:
            with pytest.raises(RefusedError, match=REFUSED):
                delete(table, spark, sql, dry_run=True)
            with pytest.raises(RefusedError, match=REFUSED):
                update(table, spark, {"n": "1"}, sql, dry_run=True)
        for sql in {*SUBQUERIES} - {*refused}:
            assert delete(table, spark, sql, dry_run=True).rows_deleted > 0
        for sql in ("rand() < 2", "(SELECT true)"):
            with pytest.raises(RefusedError, match=REFUSED):
                merged(name, when=sql)
        with pytest.raises(RefusedError, match=REFUSED):
            merged(name, on="EXISTS (SELECT 1)")
        assert merged(name, new="monotonically_increasing_id()", value="(SELECT 1)") == 1
    with pytest.raises(RefusedError, match=REFUSED):
        update(tables["d"], spark, {"n": "CAST(rand() AS BIGINT)"}, dry_run=True)
    with pytest.raises(RefusedError, match=REFUSED):
        merged("i", value="CAST(rand() AS BIGINT)")
    assert update(tables["i"], spark, {"n": "CAST(rand() AS BIGINT)"}, dry_run=True).rows_updated == 3
    assert merged("d", value="CAST(rand() AS BIGINT)") == 1


# -- text as the source of a MERGE -----------------------------------------------------------------------------------


def test_text_is_merged_as_what_the_table_has(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("s", pa.struct([("a", pa.int32())]))])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema)
    rows = [{"k": k, "n": 0, "s": None} for k in ("7", "07", "007", "1e3", "1000")]
    builder.append(pa.Table.from_pylist(rows, schema))
    table = DeltaTable(Storage(str(tmp_path / "t")))

    def merged(name: str, text: str, on: str) -> dict[str, int]:
        (tmp_path / name).write_text(text)
        source = read_rows(spark, str(tmp_path / name))
        assert isinstance(source, tuple)
        begun = merge(table, spark, "unused", on)
        begun = type(begun)(table, spark, source, on)
        changed = begun.when_matched_delete("source.gone = 'true'").when_matched_update({"n": "source.n"})
        changed.when_not_matched_insert({"k": "source.key", "n": "source.n"}).execute()
        return {row["k"]: row["n"] for batch in read(table)[1] for row in batch.to_pylist()}

    # `key` is text because the condition says that it is equal to a column of text, `n` a number as the table's is.
    found = merged("a.csv", "key,n,gone\n007,1,false\n1e3,2,true\n0007,3,\n", "target.k = source.key")
    assert found == {"7": 0, "07": 0, "007": 1, "1000": 0, "0007": 3}
    found = merged("a.json", '{"key": "07", "n": 5, "gone": true}\n{"key": "7", "n": "6"}\n', "target.k = source.key")
    assert found == {"7": 6, "007": 1, "1000": 0, "0007": 3}
    for name, text, says in (
        ("b.csv", "key,n,gone\n7,01,x\n", r"b.csv, line 2: no exact value for column n \(bigint\)"),
        ("b.json", '{"key": 7, "n": 1, "gone": true}', "b.json, line 1: no exact value for column key"),
    ):
        with pytest.raises(UsageError, match=says):
            merged(name, text, "target.k = source.key")
    (tmp_path / "c.json").write_text('{"k": "7", "s": {"a": 4}}\n{"k": "8", "n": 8}\n')
    source = read_rows(spark, str(tmp_path / "c.json"))
    assert isinstance(source, tuple)
    begun = merge(table, spark, "unused", "target.k = source.k")
    begun = type(begun)(table, spark, source, "target.k = source.k").when_matched_update({"s": "source.s"})
    assert begun.execute().rows_updated == 1
    assert {"k": "7", "n": 6, "s": {"a": 4}} in [row for batch in read(table)[1] for row in batch.to_pylist()]
