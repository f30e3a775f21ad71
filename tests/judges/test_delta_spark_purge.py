"""Tables made by real delta-spark, maintained by us, judged by delta-spark, deltalake and polars."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from support.readers import READERS, with_delta_spark
from support.sessions import cheap

from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.maintenance.execution.apply import purge
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table
from dv_maintenance.tables.guard import VacuumRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DV = "'delta.enableDeletionVectors' = 'true'"

# name -> (statements with {t} for the table, readers that know its features)
TABLES: dict[str, tuple[str, list[str]]] = {
    "partitioned": (
        f"""
        CREATE TABLE {{t}} (id BIGINT, name STRING, day DATE, shop STRING) USING delta
            PARTITIONED BY (day, shop) TBLPROPERTIES ({DV});
        INSERT INTO {{t}} SELECT id, concat('n', id), date_add(DATE '2026-01-01', CAST(id % 3 AS INT)),
            CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN 'a b' WHEN 2 THEN 'x/y=z%' ELSE 'é' END FROM range(400);
        DELETE FROM {{t}} WHERE id % 7 = 0;
        UPDATE {{t}} SET name = 'updated' WHERE id % 11 = 0;
        DELETE FROM {{t}} WHERE id % 5 = 0
        """,
        ["deltalake"],  # polars 2.1 ignores the DVs of files whose names need percent-encoding
    ),
    "types": (
        f"""
        CREATE TABLE {{t}} (
            id INT, b BYTE, s SHORT, l LONG, f FLOAT, d DOUBLE, dec DECIMAL(20, 4), small DECIMAL(5, 2),
            t STRING, bin BINARY, flag BOOLEAN, day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ,
            st STRUCT<a: INT, `b.c`: STRUCT<x: STRING>>, arr ARRAY<STRUCT<k: INT>>, m MAP<STRING, ARRAY<INT>>
        ) USING delta TBLPROPERTIES ({DV});
        INSERT INTO {{t}} SELECT /*+ COALESCE(2) */
            CAST(id AS INT), CAST(id % 100 AS BYTE), CAST(id AS SHORT), id * 10000000000, CAST(id / 3 AS FLOAT),
            IF(id = 50, double('NaN'), id / 7), CAST(id AS DECIMAL(20, 4)) / 8, CAST(id / 16 AS DECIMAL(5, 2)),
            IF(id % 9 = 0, NULL, repeat(concat('é', id), 20)), CAST(concat('b', id) AS BINARY), id % 2 = 0,
            date_add(DATE '1960-01-01', CAST(id * 100 AS INT)), timestamp_micros(id * 86400000123),
            CAST(timestamp_micros(id * 3600000456) AS TIMESTAMP_NTZ),
            IF(id % 13 = 0, NULL, named_struct(
                'a', CAST(id AS INT), 'b.c', IF(id % 3 = 0, NULL, named_struct('x', string(id))))),
            IF(id % 10 = 0, NULL, array(named_struct('k', CAST(id AS INT)), NULL)),
            map(string(id), array(CAST(id AS INT), NULL))
            FROM range(200);
        DELETE FROM {{t}} WHERE id % 3 = 0
        """,
        ["deltalake", "polars"],
    ),
    "column-mapping": (
        f"""
        CREATE TABLE {{t}} (id BIGINT, `odd name` STRING, part STRING) USING delta PARTITIONED BY (part)
            TBLPROPERTIES ({DV}, 'delta.columnMapping.mode' = 'name');
        INSERT INTO {{t}} SELECT id, string(id), string(id % 2) FROM range(100);
        ALTER TABLE {{t}} RENAME COLUMN `odd name` TO renamed;
        ALTER TABLE {{t}} ADD COLUMN extra STRUCT<a: INT>;
        INSERT INTO {{t}} SELECT id, string(id), string(id % 2), named_struct('a', CAST(id AS INT))
            FROM range(100, 200);
        DELETE FROM {{t}} WHERE id % 4 = 1;
        ALTER TABLE {{t}} DROP COLUMN renamed
        """,
        ["deltalake"],
    ),
    "everything-on": (
        f"""
        CREATE TABLE {{t}} (id INT, v SHORT, part STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES (
            {DV}, 'delta.enableInCommitTimestamps' = 'true', 'delta.enableChangeDataFeed' = 'true',
            'delta.enableTypeWidening' = 'true', 'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '3');
        INSERT INTO {{t}} SELECT CAST(id AS INT), CAST(id AS SHORT), string(id % 2) FROM range(100);
        DELETE FROM {{t}} WHERE id % 10 = 0;
        ALTER TABLE {{t}} ALTER COLUMN v TYPE INT;
        UPDATE {{t}} SET v = 100000 WHERE id >= 90
        """,
        [],
    ),
    "merged": (
        f"""
        CREATE TABLE {{t}} (id INT, v INT, part STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES (
            {DV}, 'delta.enableInCommitTimestamps' = 'true', 'delta.enableChangeDataFeed' = 'true');
        INSERT INTO {{t}} SELECT CAST(id AS INT), CAST(id AS INT), string(id % 2) FROM range(100);
        MERGE INTO {{t}} USING (SELECT CAST(id AS INT) AS id, 200000 AS v, '1' AS part FROM range(90, 120)) AS s
            ON {{t}}.id = s.id WHEN MATCHED THEN UPDATE SET v = 100000 WHEN NOT MATCHED THEN INSERT *
        """,
        [],
    ),
    "wholly-deleted": (
        f"""
        CREATE TABLE {{t}} (id BIGINT) USING delta TBLPROPERTIES ({DV});
        INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id FROM range(50);
        INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id FROM range(50, 100);
        DELETE FROM {{t}} WHERE id < 50 AND id % 2 = 0;
        DELETE FROM {{t}} WHERE id < 60
        """,
        ["deltalake", "polars"],
    ),
}


# `make deep` has them all.
SHORT = {"everything-on"}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in SHORT else pytest.mark.deep) for name in TABLES]
)
def made(request: pytest.FixtureRequest, delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp(request.param) / "t"
    statements, readers = TABLES[request.param]
    for statement in statements.split(";\n"):
        cheap(delta_spark).sql(statement.replace("{t}", f"delta.`{path}`"))
    return Made(path, readers, delta_spark)


class Made:
    def __init__(self, path: Path, readers: list[str], spark: SparkSession) -> None:
        self.path = path
        self.sql_name = f"delta.`{path}`"
        self.table = open_table(str(path))
        self.readers: dict[str, Callable[..., Any]] = {name: READERS[name] for name in readers}
        self.readers["delta-spark"] = lambda path, version=None: with_delta_spark(spark, path, version)

    def contents(self, canon: ModuleType, version: int | None = None) -> dict[str, str]:
        return {name: canon.digest(canon.rows(reader(self.path, version))) for name, reader in self.readers.items()}


def stats(path: Path) -> dict[str, list[Any]]:
    """Statistics of each live file by partition, by a plain walk over the JSON commits."""
    live: dict[str, Any] = {}
    for commit in sorted((path / "_delta_log").glob("*.json")):
        if not commit.stem.isdigit():
            continue
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                live[action["add"]["path"]] = action["add"]
    by_partition: dict[str, list[Any]] = {}
    for add in live.values():
        key = json.dumps(add["partitionValues"], sort_keys=True)
        by_partition.setdefault(key, []).append(json.loads(add.get("stats") or "{}"))
    return by_partition


def test_purge_vacuum_and_life_goes_on(made: Made, delta_spark: SparkSession, canon: ModuleType) -> None:
    table = made.table
    before = table.snapshot()
    assert before.files["dv_id"].null_count < before.files.num_rows, "delta-spark wrote DVs"
    contents = made.contents(canon)
    assert len(set(contents.values())) == 1
    twin = made.path.with_name("twin")
    shutil.copytree(made.path, twin)

    report = purge(table, SparkEngine(session=delta_spark))
    assert report.verified
    after = table.snapshot()
    assert after.files["dv_id"].null_count == after.files.num_rows, "no DV left"
    assert made.contents(canon) == contents
    assert made.contents(canon, before.version) == contents, "time travel"

    # Purged by delta-spark instead, a copy of the table gets the same statistics.
    delta_spark.sql(f"REORG TABLE delta.`{twin}` APPLY (PURGE)")
    ours, theirs = stats(made.path), stats(twin)
    assert ours.keys() == theirs.keys()
    for key, files in theirs.items():
        # REORG also merges files that have other reasons to be rewritten; compare what holds the same rows.
        if len(files) == len(ours[key]) == 1:
            assert_same_statistics(ours[key][0], files[0])

    assert not purge(table, SparkEngine(session=delta_spark)).steps, "a second run does nothing"
    history = delta_spark.sql(f"DESCRIBE HISTORY {made.sql_name}").collect()
    purges = [row["operationMetrics"] for row in history if row["version"] > before.version]
    removed = before.files.num_rows - before.files["dv_id"].null_count
    assert sum(int(metrics["numDeletionVectorsRemoved"]) for metrics in purges) == removed

    # They go on writing on top of our commit, with DVs again, and so do we.
    last = max(row["id"] for batch in read(table)[1] for row in batch.to_pylist())
    delta_spark.sql(f"DELETE FROM {made.sql_name} WHERE id = {last}")
    contents = made.contents(canon)
    assert purge(table, SparkEngine(session=delta_spark)).verified

    table.vacuum(VacuumRequest(retention=0, allow_short_retention=True, now=table.snapshot().timestamp + 10_000))
    assert not [file for file in made.path.rglob("deletion_vector_*.bin") if not file.name.startswith(".")]
    live = table.snapshot().files.num_rows
    kept = [file for file in made.path.rglob("*.parquet") if not {"_delta_log", "_change_data"} & set(file.parts)]
    assert len(kept) == live
    assert made.contents(canon) == contents


def assert_same_statistics(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["numRecords"] == theirs["numRecords"]
    assert ours["tightBounds"] == theirs.get("tightBounds", True)
    assert flat(ours["nullCount"]) == flat(theirs["nullCount"])
    our_min, their_min = flat(ours.get("minValues", {})), flat(theirs.get("minValues", {}))
    our_max, their_max = flat(ours.get("maxValues", {})), flat(theirs.get("maxValues", {}))
    # Parquet's own statistics, which we fold, don't tell of NaN: a column that has one gets no bounds from us.
    for column in [column for column, value in their_max.items() if value == "NaN"]:
        assert column not in our_min.keys() | our_max.keys()
        del their_min[column], their_max[column]
    assert our_min == their_min
    assert our_max.keys() == their_max.keys()
    for column, value in their_max.items():
        mine = our_max[column]
        if isinstance(value, datetime):
            # Micros don't fit: delta-spark cuts them off and allows for it when it reads, we round up.
            assert value <= mine <= value + timedelta(milliseconds=1), column
        else:
            assert mine == value, column


def flat(values: Any, path: str = "") -> dict[str, Any]:
    """Leaves by dotted path; timestamps parsed, numbers as the float32 that both spellings of a FLOAT stand for."""
    if isinstance(values, dict):
        return {key: leaf for name, part in values.items() for key, leaf in flat(part, f"{path}.{name}").items()}
    if isinstance(values, str) and "T" in values[10:11]:
        return {path: datetime.fromisoformat(values)}
    return {path: struct.unpack("f", struct.pack("f", values))[0] if isinstance(values, float) else values}
