"""UPDATE and MERGE, judged by delta-spark: the same statement on twins leaves the same table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.twins import Twins, make_table

from dv_maintenance.dml.merge import Merge, merge
from dv_maintenance.dml.update import update
from dv_maintenance.errors import DamagedTableError, RefusedError, UsageError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable
from dv_maintenance.testing.delta_builder import DeltaBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DV = "'delta.enableDeletionVectors' = 'true'"
TABLE = f"""
    CREATE TABLE {{t}} (id BIGINT NOT NULL, name STRING, price DECIMAL(12, 3), at TIMESTAMP,
        inside STRUCT<a: INT, tags: ARRAY<STRING>, more: MAP<STRING, STRUCT<x: DATE>>>, day DATE, shop STRING)
        USING delta PARTITIONED BY (day, shop)
        TBLPROPERTIES ({DV}, 'delta.enableChangeDataFeed' = 'true');
    INSERT INTO {{t}} SELECT id, IF(id % 10 = 0, NULL, concat('n', id)), id / 8, timestamp_micros(id * 3600000456),
        IF(id % 6 = 0, NULL, named_struct('a', CAST(id AS INT), 'tags', IF(id % 4 = 0, NULL, array('x', NULL, name)),
            'more', map(concat('k', id), named_struct('x', date_add(DATE '1960-01-01', CAST(id AS INT)))))),
        date_add(DATE '2026-01-01', CAST(id % 2 AS INT)), CASE id % 3 WHEN 0 THEN NULL WHEN 1 THEN 'a b' ELSE 'x/y' END
        FROM (SELECT id, concat('name', id) AS name FROM range(0, 120, 1, 1));
    DELETE FROM {{t}} WHERE id % 7 = 0;
    ALTER TABLE {{t}} ADD CONSTRAINT cheap CHECK (price < 100000)
"""


@pytest.fixture(scope="module")
def made(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_table(delta_spark, tmp_path_factory.mktemp("update") / "made", TABLE)


@pytest.fixture
def twins(delta_spark: SparkSession, made: Path, tmp_path: Path) -> Twins:
    return Twins.of(delta_spark, made, tmp_path)


@pytest.mark.deep
def test_update_moves_rows_between_partitions(twins: Twins) -> None:
    report = update(twins.table, twins.spark, {"shop": "'new ü'", "day": "day + INTERVAL 9 DAYS"}, "id < 30")
    twins.sql("UPDATE {t} SET shop = 'new ü', day = day + INTERVAL 9 DAYS WHERE id < 30")
    twins.check_content()
    assert twins.check_changes(report.version_after)
    partitions = set(twins.table.snapshot().files["partition"].to_pylist())
    assert {"day=2026-01-10/shop=new ü", "day=2026-01-11/shop=new ü"} <= partitions


@pytest.mark.parametrize(
    ("changes", "condition", "error", "says"),
    [
        ({"price": "price + 99999"}, "id = 118", RefusedError, "breaks constraint cheap"),
        ({"id": "NULL"}, "id = 118", RefusedError, "NOT NULL"),
        ({"nothing": "1"}, None, UsageError, "'nothing'"),
        ({"inside.a": ""}, None, UsageError, "PARSE_SYNTAX_ERROR"),
        ({"inside.b": "1"}, None, UsageError, "'inside.b' does not exist"),
        ({"inside.tags.x": "1"}, None, UsageError, "'inside.tags.x' does not exist"),
        ({"inside.a": "1", "inside": "NULL"}, None, UsageError, "'inside' does not exist or is assigned twice"),
        ({"price": "prize"}, None, UsageError, "prize"),
        ({}, None, UsageError, "nothing is set"),
    ],
)
def test_refused(twins: Twins, changes: Any, condition: Any, error: Any, says: str) -> None:
    before = twins.table.version()
    files = set(twins.ours.rglob("*.parquet"))
    with pytest.raises(error, match=says):
        update(twins.table, twins.spark, changes, condition)
    assert twins.table.version() == before
    assert set(twins.ours.rglob("*.parquet")) == files, "no new file remains"


# -- merge -------------------------------------------------------------------------------------------------------

SOURCE = """
    SELECT id, concat('s', id) AS name, CAST(id AS DECIMAL(12, 3)) AS price, timestamp_micros(id) AS at,
        CAST(NULL AS STRUCT<a: INT, tags: ARRAY<STRING>, more: MAP<STRING, STRUCT<x: DATE>>>) AS inside,
        DATE '2026-01-01' AS day, IF(id % 2 = 0, NULL, 'a b') AS shop FROM range(100, 140)
"""


def merged(
    twins: Twins, clauses: Any, sql: str, source: str = SOURCE, on: str = "t.id = s.id", *, same_files: bool = True
) -> Any:
    """``same_files``: both have the same files before, so that both change the same number of deletion vectors."""
    begun = merge(twins.table, twins.spark, source, on, target_alias="t", source_alias="s")
    report = clauses(begun).execute()
    twins.sql(f"MERGE INTO {{t}} t USING ({source}) s ON {on} {sql}")
    theirs, ours = twins.metrics()
    counted = {name for name in theirs if "Rows" in name or (same_files and "DeletionVectors" in name)}
    assert {name: ours.get(name) for name in counted} == {name: theirs[name] for name in counted}
    return report


def every_clause(begun: Merge) -> Merge:
    return (
        begun.when_matched_delete("s.id % 4 = 0")
        .when_matched_update(
            {"name": "concat(t.name, s.name)", "shop": "'moved'", "t.inside.a": "-s.id", "Inside.`tags`": "array('x')"},
            "s.id < 118",
        )
        .when_not_matched_insert({"id": "s.id", "day": "s.day", "price": "-1"}, "s.id > 125")
        .when_not_matched_by_source_update({"price": "0"}, "t.id < 20")
        .when_not_matched_by_source_delete("t.id < 40")
    )


EVERY_CLAUSE = """
    WHEN MATCHED AND s.id % 4 = 0 THEN DELETE
    WHEN MATCHED AND s.id < 118 THEN UPDATE SET name = concat(t.name, s.name), shop = 'moved', t.inside.a = -s.id,
        Inside.`tags` = array('x')
    WHEN NOT MATCHED AND s.id > 125 THEN INSERT (id, day, price) VALUES (s.id, s.day, -1)
    WHEN NOT MATCHED BY SOURCE AND t.id < 20 THEN UPDATE SET price = 0
    WHEN NOT MATCHED BY SOURCE AND t.id < 40 THEN DELETE
"""


def test_an_update_and_an_upsert(twins: Twins) -> None:
    """One after the other: the second finds the new files and the deletion vectors of the first."""
    first = twins.table.version() + 1
    updated(twins)
    report = merged(
        twins,
        lambda begun: begun.when_matched_update_all().when_not_matched_insert_all(),
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
        same_files=False,
    )
    assert (report.rows_updated, report.rows_inserted) == (17, 23)
    twins.check_content()
    twins.check_changes(first, report.version_after)


def test_every_clause(twins: Twins) -> None:
    """Clauses also set fields of structs. Some of these structs are null."""
    report = merged(twins, every_clause, EVERY_CLAUSE)
    twins.check_content()
    twins.check_changes(report.version_after)


def updated(twins: Twins) -> None:
    changes = {"price": "price * 2 + 0.5", "NAME": "concat(name, '!')", "inside": "IF(id > 60, NULL, inside)"}
    changes["at"] = "DEFAULT"
    report = update(twins.table, twins.spark, changes, "id % 5 = 1 OR name IS NULL")
    assignments = ", ".join(f"{name} = {sql}" for name, sql in changes.items())
    twins.sql(f"UPDATE {{t}} SET {assignments} WHERE id % 5 = 1 OR name IS NULL")
    theirs, ours = twins.metrics()
    counted = {"numUpdatedRows", "numDeletionVectorsAdded", "numDeletionVectorsRemoved", "numDeletionVectorsUpdated"}
    counted |= {"numRemovedFiles", "numCopiedRows"}
    assert {name: ours[name] for name in counted} == {name: theirs[name] for name in counted}
    assert (report.rows_updated, report.rows_deleted) == (theirs["numUpdatedRows"], 0)


@pytest.mark.deep
def test_several_matches(twins: Twins) -> None:
    double = "SELECT id FROM range(10) UNION ALL SELECT id FROM range(10)"
    begun = merge(twins.table, twins.spark, double, "target.id = source.id")
    files = set(twins.ours.rglob("*.parquet"))
    with pytest.raises(UsageError, match="several rows of the source"):
        begun.when_matched_update({"name": "'x'"}).execute()
    assert set(twins.ours.rglob("*.parquet")) == files
    report = merged(twins, lambda begun: begun.when_matched_delete(), "WHEN MATCHED THEN DELETE", double)
    twins.check_content()
    twins.check_changes(report.version_after)
    double = "SELECT explode(array(id, id, id + 100000)) AS id FROM range(5, 15, 1, 3)"
    report = merged(
        twins,
        lambda begun: begun.when_matched_delete().when_not_matched_insert({"id": "s.id", "price": "1"}),
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, price) VALUES (s.id, 1)",
        f"{double} UNION ALL {double}",
        same_files=False,
    )
    assert (report.rows_deleted, report.rows_inserted) == (4, 44)
    twins.check_content()
    twins.check_changes(report.version_after)


def test_a_merge_opens_only_files_that_may_match(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    builder = DeltaBuilder(str(tmp_path / "t")).create(schema)
    builder.append(pa.table({"id": range(100), "name": ["old"] * 100}, schema=schema), files=10)
    files = {pq.read_table(path)["id"][0].as_py(): path for path in (tmp_path / "t").glob("*.parquet")}
    for first in (0, 30, 40, 90):
        files[first].write_bytes(b"nobody opens this")
    table = DeltaTable(Storage(str(tmp_path / "t")))
    source = "SELECT * FROM VALUES (5, 'a'), (25, 'b'), (88, 'c') AS (id, name)"
    begun = merge(table, spark, source, "target.ID = source.id AND target.id BETWEEN 10 AND 80")
    report = begun.when_matched_update_all().when_not_matched_insert_all().execute()
    assert (report.rows_updated, report.rows_inserted) == (1, 2)
    with pytest.raises(DamagedTableError):
        merge(table, spark, source, "target.id = source.id").when_not_matched_by_source_delete().execute()
