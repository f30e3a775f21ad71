"""Going through history as real delta-spark does: its change data feed is ours, it reads what we restored, or took
deletion vectors from.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.readers import READERS, with_delta_spark
from support.sessions import cheap

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.changes import read_changes
from dv_maintenance.maintenance.downgrade import downgrade
from dv_maintenance.maintenance.restore import restore
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DV = "'delta.enableDeletionVectors' = 'true'"
CDF = f"{DV}, 'delta.enableChangeDataFeed' = 'true'"


def run(spark: SparkSession, path: Path, statements: str) -> None:
    for statement in statements.split(";\n"):
        cheap(spark).sql(statement.replace("{t}", f"delta.`{path}`"))


# -- changes -----------------------------------------------------------------------------------------------------------

# name -> (statements, first version to ask for)
FEEDS = {
    "partitioned": (
        f"""
        CREATE TABLE {{t}} (id BIGINT, name STRING, shop STRING) USING delta PARTITIONED BY (shop)
            TBLPROPERTIES ({CDF});
        INSERT INTO {{t}} SELECT id, concat('n', id), CASE id % 3 WHEN 0 THEN NULL WHEN 1 THEN 'x/y=z%' ELSE 'é' END
            FROM range(90);
        DELETE FROM {{t}} WHERE id % 7 = 0;
        DELETE FROM {{t}} WHERE id % 5 = 0;
        UPDATE {{t}} SET name = 'updated' WHERE id % 11 = 0;
        MERGE INTO {{t}} USING (SELECT id FROM range(80, 100)) AS s ON {{t}}.id = s.id
            WHEN MATCHED AND s.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'merged'
            WHEN NOT MATCHED THEN INSERT (id, name, shop) VALUES (s.id, 'new', 'é');
        REORG TABLE {{t}} APPLY (PURGE);
        DELETE FROM {{t}} WHERE id % 4 = 0;
        RESTORE TABLE {{t}} TO VERSION AS OF 3;
        ALTER TABLE {{t}} ADD COLUMN extra INT;
        INSERT OVERWRITE {{t}} VALUES (1000, 'last', 'é', 1)
        """,
        0,
    ),
    "mapped": (
        f"""
        CREATE TABLE {{t}} (id BIGINT, `odd name` STRING, part STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES
            ({CDF}, 'delta.columnMapping.mode' = 'id', 'delta.enableInCommitTimestamps' = 'true',
            'delta.checkpointInterval' = '3');
        INSERT INTO {{t}} SELECT id, string(id), string(id % 2) FROM range(40);
        ALTER TABLE {{t}} RENAME COLUMN `odd name` TO renamed;
        DELETE FROM {{t}} WHERE id % 3 = 0;
        UPDATE {{t}} SET renamed = 'u' WHERE id % 4 = 1
        """,
        2,
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "mapped" else pytest.mark.deep) for name in FEEDS]
)
def test_a_change_feed_is_that_of_delta_spark(
    name: str, delta_spark: SparkSession, canon: ModuleType, tmp_path: Path
) -> None:
    statements, first = FEEDS[name]
    path = tmp_path / "t"
    run(delta_spark, path, statements)
    reader = delta_spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first)
    judge: pa.Table = reader.load(str(path)).toArrow()
    feed, batches = read_changes(open_table(str(path)), first)
    ours = pa.Table.from_batches(batches, feed.schema)
    assert canon.rows(ours.select(judge.column_names)) == canon.rows(judge)
    assert judge.num_rows > 20
    assert feed.inferred == ()


# -- restore -----------------------------------------------------------------------------------------------------------

ON_AND_OFF = f"""
    CREATE TABLE {{t}} (id BIGINT, v SHORT, part STRING) USING delta PARTITIONED BY (part)
        TBLPROPERTIES ('delta.enableDeletionVectors' = 'false', 'delta.checkpointInterval' = '4');
    INSERT INTO {{t}} SELECT id, CAST(id AS SHORT), IF(id % 2 = 0, 'é', 'x/y') FROM range(60);
    ALTER TABLE {{t}} SET TBLPROPERTIES ({DV});
    DELETE FROM {{t}} WHERE id % 10 = 0;
"""
SHORT_TABLE = f"""{ON_AND_OFF}
    ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name',
        'delta.enableInCommitTimestamps' = 'true');
    ALTER TABLE {{t}} RENAME COLUMN v TO w;
    UPDATE {{t}} SET w = 5 WHERE id % 10 = 2
"""
TABLE = f"""{ON_AND_OFF}
    DELETE FROM {{t}} WHERE id % 10 = 1;
    ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name');
    ALTER TABLE {{t}} RENAME COLUMN v TO w;
    ALTER TABLE {{t}} ADD COLUMN extra INT;
    UPDATE {{t}} SET extra = 5 WHERE id % 10 = 2;
    ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true');
    REORG TABLE {{t}} APPLY (PURGE)
"""


def history(spark: SparkSession, path: Path) -> tuple[Any, Any, Any]:
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").collect()[0]
    return newest["operation"], newest["operationParameters"], newest["operationMetrics"]


def test_what_we_restore_delta_spark_reads(delta_spark: SparkSession, canon: ModuleType, tmp_path: Path) -> None:
    """Across a change of mapping: version 3 and version 4 have the same rows."""
    path = tmp_path / "t"
    run(delta_spark, path, SHORT_TABLE)
    wanted = canon.digest(canon.rows(with_delta_spark(delta_spark, path, 3)))
    assert restore(open_table(str(path)), version=3).verified
    assert canon.digest(canon.rows(READERS["deltalake"](path))) == wanted
    # It can be written by its own engine, and what was in between stays readable.
    delta_spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 12")
    assert set(with_delta_spark(delta_spark, path)["id"].to_pylist()) == {n for n in range(60) if n % 10} - {12}
    assert canon.digest(canon.rows(with_delta_spark(delta_spark, path, 4))) == wanted


@pytest.mark.deep
@pytest.mark.parametrize("versions", [(3,), (3, 10), (1, 8)], ids=str)
def test_what_we_restore_delta_spark_records_alike(
    delta_spark: SparkSession, canon: ModuleType, tmp_path: Path, versions: tuple[int, ...]
) -> None:
    path, twin = tmp_path / "t", tmp_path / "twin"
    run(delta_spark, path, TABLE)
    table = open_table(str(path))
    assert table.version() == 10
    digests = {
        version: canon.digest(canon.rows(with_delta_spark(delta_spark, path, version))) for version in (*versions, 4)
    }
    for version in versions:
        shutil.copytree(path, twin, dirs_exist_ok=True)
        report = restore(table, version=version)
        assert report.verified
        assert canon.digest(canon.rows(with_delta_spark(delta_spark, path))) == digests[version], version
        assert canon.digest(canon.rows(READERS["deltalake"](path))) == digests[version], version
        if version == 3:
            delta_spark.sql(f"RESTORE TABLE delta.`{twin}` TO VERSION AS OF {version}").collect()
            assert history(delta_spark, path) == history(delta_spark, twin)
        shutil.rmtree(twin)
    # It can be written by its own engine, and what was in between stays readable.
    delta_spark.sql(f"UPDATE delta.`{path}` SET id = 1012 WHERE id = 12")
    assert delta_spark.sql(f"SELECT count(*) FROM delta.`{path}` WHERE id = 1012").collect()[0][0] == 1
    assert canon.digest(canon.rows(with_delta_spark(delta_spark, path, 4))) == digests[4]


# -- downgrade ---------------------------------------------------------------------------------------------------------

DIRTY = f"""
    CREATE TABLE {{t}} (id BIGINT, part STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES ({CDF});
    INSERT INTO {{t}} SELECT id, IF(id % 2 = 0, 'é', 'x/y') FROM range(40);
    DELETE FROM {{t}} WHERE id % 10 = 0
"""


@pytest.mark.deep
def test_what_we_downgrade_old_readers_and_delta_spark_share(
    delta_spark: SparkSession, canon: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    run(delta_spark, path, DIRTY)
    before = canon.rows(with_delta_spark(delta_spark, path))

    assert downgrade(open_table(str(path)), LocalEngine()).finished
    assert canon.rows(with_delta_spark(delta_spark, path)) == before
    assert canon.rows(READERS["deltalake"](path)) == before
    assert canon.rows(with_delta_spark(delta_spark, path, 1)) != before  # history is still there
    run(delta_spark, path, "DELETE FROM {t} WHERE id = 1")
    detail = delta_spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]
    assert "deletionVectors" not in detail["tableFeatures"]
    assert "checkpointProtection" in detail["tableFeatures"]
    assert len(canon.rows(READERS["deltalake"](path))) == len(before) - 1


@pytest.mark.deep
def test_what_delta_spark_began_to_downgrade_and_says_must_wait_goes_on_here(
    delta_spark: SparkSession, canon: ModuleType, tmp_path: Path
) -> None:
    twin = tmp_path / "twin"
    run(delta_spark, twin, DIRTY)
    before = canon.rows(with_delta_spark(delta_spark, twin))
    with pytest.raises(Exception, match="DELTA_FEATURE_DROP_WAIT_FOR_RETENTION_PERIOD"):
        run(delta_spark, twin, "ALTER TABLE {t} DROP FEATURE deletionVectors TRUNCATE HISTORY")
    waiting = downgrade(open_table(str(twin)), LocalEngine(), truncate_history=True)
    assert (waiting.taken, waiting.finished) == ((), False)
    assert waiting.waits_until is not None
    done = downgrade(open_table(str(twin)), LocalEngine(), truncate_history=True, now=waiting.waits_until)
    assert (done.taken, done.finished) == (("truncate", "drop"), True)
    run(delta_spark, twin, "INSERT INTO {t} VALUES (1000, 'é')")
    assert len(canon.rows(with_delta_spark(delta_spark, twin))) == len(before) + 1
    detail = delta_spark.sql(f"DESCRIBE DETAIL delta.`{twin}`").collect()[0]
    assert (detail["minReaderVersion"], "deletionVectors" in detail["tableFeatures"]) == (1, False)
