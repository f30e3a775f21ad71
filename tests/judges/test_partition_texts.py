"""Partition values that UPDATE and MERGE write are spelt as delta-spark spells them, or one partition would be two."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from support.twins import make_table

from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE: Final = """
    CREATE TABLE {t} (id INT, d DOUBLE, f FLOAT, m DECIMAL(38, 18), x BINARY, day DATE, ts TIMESTAMP, at TIMESTAMP_NTZ,
        yes BOOLEAN) USING delta PARTITIONED BY (d, f, m, x, day, ts, at, yes)
        TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = 'true');
    INSERT INTO {t} (id, d, f) VALUES (1, 1e16, 1e16), (2, 0.1, 0.1)
"""
# Among them doubles that Java spells with a digit too many before 19 (2.0E-3 of the bug 4511638).
NUMBERS: Final = (
    *("1e16", "1e-5", "2e23", "2.2250738585072014E-308", "5.684341886080802E-14"),
    *("-0.0", "0.0", "NaN", "-Infinity"),
)
VALUES: Final = {
    "d": "CASE id {doubles} END",
    "f": "CASE id {floats} END",
    "m": "CAST(CASE id WHEN 1 THEN 0 WHEN 2 THEN 1e-18 ELSE id END AS DECIMAL(38, 18))",
    "x": "CAST(concat('a', id) AS BINARY)",
    "day": "CASE id WHEN 1 THEN DATE'0001-01-01' WHEN 2 THEN DATE'1500-03-01' ELSE DATE'2026-01-05' END",
    # 23:59 on the last day of 9999 in New York is a time of the year 10000 in UTC.
    "ts": "CASE id WHEN 1 THEN TIMESTAMP'9999-12-31 23:59:59.999999 America/New_York'"
    " ELSE TIMESTAMP'2026-01-01 10:00:00' + make_interval(0, 0, 0, 0, 0, 0, id) END",
    "at": "CASE id WHEN 1 THEN TIMESTAMP_NTZ'2026-01-01 00:00:00' ELSE TIMESTAMP_NTZ'2026-01-01 10:11:12.120' END",
    "yes": "id > 3",
}


def test_as_delta_spark(delta_spark: SparkSession, tmp_path: Path) -> None:
    theirs, ours = make_table(delta_spark, tmp_path / "theirs", TABLE), tmp_path / "ours"
    shutil.copytree(theirs, ours)
    ids = range(1, len(NUMBERS) + 1)
    values = {
        column: text.format(
            doubles=" ".join(f"WHEN {at} THEN CAST('{n}' AS DOUBLE)" for at, n in zip(ids, NUMBERS, strict=True)),
            floats=" ".join(f"WHEN {at} THEN CAST('{n}' AS FLOAT)" for at, n in zip(ids, NUMBERS, strict=True)),
        )
        for column, text in VALUES.items()
    }
    source = "SELECT id, " + ", ".join(f"{value} AS {name}" for name, value in values.items())
    source += f" FROM (SELECT explode(sequence(3, {len(NUMBERS)})) AS id)"
    sets = ", ".join(f"{name} = {value}" for name, value in values.items())
    delta_spark.sql(f"UPDATE delta.`{theirs}` SET {sets}").collect()
    delta_spark.sql(f"MERGE INTO delta.`{theirs}` t USING ({source}) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    table = DeltaTable(Storage(str(ours)))
    update(table, delta_spark, values)
    begun = merge(table, delta_spark, source, "t.id = s.id", target_alias="t", source_alias="s")
    begun.when_not_matched_insert_all().execute()
    assert partitions(ours, "add", 2, 3) == partitions(theirs, "add", 2, 3)
    assert len(partitions(ours, "add", 2, 3)) == len(NUMBERS)
    # Of a MERGE that only inserts delta-spark writes no change data: the inserted files tell it.
    assert partitions(ours, "cdc", 2) == partitions(theirs, "cdc", 2)


def partitions(table: Path, kind: str, *versions: int) -> list[Any]:
    """Folder and stored texts of each file that these commits put in. Folders of a TIMESTAMP are left out: there
    delta-spark names the time of its session's zone, and in the log that of UTC, which is the one that counts.
    """
    lines = [
        line for version in versions for line in (table / f"_delta_log/{version:020}.json").read_text().splitlines()
    ]
    actions = [action[kind] for action in map(json.loads, lines) if kind in action]
    found = [
        (re.sub("ts=[^/]*/", "", each["path"].rpartition("/")[0]), sorted(each["partitionValues"].items()))
        for each in actions
        if "deletionVector" not in each
    ]
    return sorted(found, key=str)
