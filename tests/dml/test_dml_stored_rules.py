"""Rules of a table hold for what is stored of a new row, where delta-spark judges otherwise or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from effort import sampled
from support.readers import with_deltalake
from support.twins import make_table

from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.update import update
from dv_maintenance.errors import RefusedError
from dv_maintenance.tables import open_table
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHAR = """
    CREATE TABLE {t} (id BIGINT, c CHAR(4)) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true');
    INSERT INTO {t} VALUES (1, 'abcd');
    ALTER TABLE {t} ADD CONSTRAINT no_zz CHECK (c <> 'zz');
    ALTER TABLE {t} ADD CONSTRAINT no_ab CHECK (c NOT LIKE 'ab');
    ALTER TABLE {t} ADD CONSTRAINT not_three CHECK (length(c) <> 3)
"""


def table_of(place: Path, columns: dict[str, Any], by: list[str], properties: dict[str, str] | None = None) -> Any:
    rows = pa.table(columns)
    DeltaBuilder(str(place)).create(rows.schema, partition_by=by, properties=properties).append(rows)
    return open_table(str(place))


def test_partition_values_that_a_log_can_not_hold(spark: SparkSession, tmp_path: Path) -> None:
    """delta-spark replaces their bytes; an empty binary is null there, and breaks NOT NULL unnoticed."""
    table = table_of(tmp_path / "t", {"id": [1, 2], "p": ["a", "b"]}, ["p"])
    with pytest.raises(RefusedError, match="partition column p is not UTF-8"):
        update(table, spark, {"p": "CAST(X'ff' AS STRING)"}, "id = 1")
    # Neither Hive nor Spark can write a folder for it; the log can hold it.
    update(table, spark, {"p": "concat('a', char(0))"}, "id = 1")
    assert sorted(with_deltalake(tmp_path / "t")["p"].to_pylist()) == ["a\0", "b"]


def test_an_empty_binary_partition_is_null(spark: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "b": pa.array([b"x"], pa.binary())})
    schema = pa.schema([rows.schema.field("id"), rows.schema.field("b").with_nullable(False)])
    DeltaBuilder(str(tmp_path / "t")).create(schema, partition_by=["b"]).append(rows.cast(schema))
    with pytest.raises(RefusedError, match="NOT NULL"):
        update(open_table(str(tmp_path / "t")), spark, {"b": "X''"})


def test_a_check_on_char_holds_with_and_without_its_spaces(delta_spark: SparkSession, tmp_path: Path) -> None:
    """Files hold the text as it was given, and readers see it padded: neither may break a rule."""
    table = open_table(str(make_table(delta_spark, tmp_path / "t", CHAR)))
    for value, broken in {"zz  ": "no_zz", "abc": "not_three"}.items():
        with pytest.raises(RefusedError, match=broken):
            update(table, delta_spark, {"c": f"'{value}'"})
    update(table, delta_spark, {"c": "'ab  '"})
    assert with_deltalake(tmp_path / "t")["c"].to_pylist() == ["ab  "]


def test_constraints_in_any_spelling(spark: SparkSession, tmp_path: Path) -> None:
    table = table_of(tmp_path / "t", {"id": [1]}, [], {"delta.Constraints.Few": "id < 5"})
    with pytest.raises(RefusedError, match="constraint Few"):
        update(table, spark, {"id": "7"})


@pytest.mark.parametrize("type", sampled(["STRING", "BINARY", "CHAR(30)"], 3))
def test_hives_name_for_null_is_stored_as_null(delta_spark: SparkSession, tmp_path: Path, type: str) -> None:
    """As delta-spark. A condition compares the name with what is stored, so it matches nothing."""
    made = f"""
        CREATE TABLE {{t}} (id BIGINT, p {type}) USING delta PARTITIONED BY (p)
            TBLPROPERTIES ('delta.enableDeletionVectors' = 'true');
        INSERT INTO {{t}} VALUES (1, CAST('a' AS {type})), (2, CAST('b' AS {type}))
    """
    ours, theirs = (make_table(delta_spark, tmp_path / name, made) for name in ("ours", "theirs"))
    name = "'__HIVE_DEFAULT_PARTITION__'"
    value = f"CAST({name} AS BINARY)" if type == "BINARY" else name
    update(open_table(str(ours)), delta_spark, {"p": value}, "id = 1")
    delta_spark.sql(f"UPDATE delta.`{theirs}` SET p = {value} WHERE id = 1")
    # Delete nothing: no row holds the name.
    delete(open_table(str(ours)), delta_spark, f"p = {value}")
    for each in (ours, theirs):
        rows = delta_spark.read.format("delta").load(str(each)).orderBy("id").collect()
        assert [row["p"] is None for row in rows] == [True, False]
