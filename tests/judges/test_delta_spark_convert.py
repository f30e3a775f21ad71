"""A folder of Parquet files, converted by us and by delta-spark on a twin."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.readers import with_delta_spark

from dv_maintenance.maintenance.convert import convert
from dv_maintenance.maintenance.read import read
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = """
    SELECT id, IF(id % 7 = 0, NULL, concat('v', id)) AS name, CAST(id / 8 AS DECIMAL(12, 3)) AS price,
        timestamp_micros(id * 3600000456) AS at, named_struct('a', id, 'tags', array(string(id), NULL)) AS nested,
        IF(id % 5 = 0, NULL, date_add(DATE '2026-01-01', CAST(id % 3 AS INT))) AS day,
        IF(id % 2 = 0, 'a/ü %', 'x=1') AS shop
    FROM range(100)
"""


def log_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata of the first version, and its adds by path, which delta-spark encodes less than it might."""
    lines = (path / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    [metadata] = [action["metaData"] for action in actions if "metaData" in action]
    return metadata, {unquote(action["add"]["path"]): action["add"] for action in actions if "add" in action}


def test_files_whose_types_differ(delta_spark: SparkSession, tmp_path: Path, canon: ModuleType) -> None:
    """Spark fails on columns without a value that are text elsewhere, and on nanoseconds; it reads narrower types."""
    for name, columns in {
        "a": {"id": pa.array([1], pa.int32()), "name": ["x"], "at": pa.array([5], pa.timestamp("us", "UTC"))},
        "b": {"id": [1 << 40], "name": pa.nulls(1), "at": pa.array([6000], pa.timestamp("ns", "UTC"))},
        "c": {"id": pa.array([3], pa.int8()), "ratio": pa.array([0.5], pa.float32()), "n": pa.nulls(1)},
        "d": {"id": pa.nulls(1), "ratio": [0.1], "n": pa.array([7], pa.int64())},
    }.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    assert convert(open_table(str(tmp_path), "delta"), rewrite=True).rewritten == 1
    schema, batches = read(open_table(str(tmp_path)))
    wanted = canon.rows(pa.Table.from_batches(batches, schema))
    assert canon.rows(with_delta_spark(delta_spark, tmp_path)) == wanted
    # The row group's bounds are 32-bit integers there.
    found = delta_spark.read.format("delta").load(str(tmp_path)).where("id >= 1 AND id < 1099511627777")
    assert sorted(row.id for row in found.collect()) == [1, 3, 1 << 40]


@pytest.mark.deep
def test_as_delta_spark_converts_it(delta_spark: SparkSession, tmp_path: Path, canon: ModuleType) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    delta_spark.sql(ROWS).write.partitionBy("day", "shop").parquet(str(ours))
    shutil.copytree(ours, theirs)

    convert(open_table(str(ours), "delta"), {"day": pa.date32(), "shop": pa.string()})
    delta_spark.sql(f"CONVERT TO DELTA parquet.`{theirs}` PARTITIONED BY (day DATE, shop STRING)")

    (our_metadata, our_adds), (their_metadata, their_adds) = log_of(ours), log_of(theirs)
    assert our_metadata["partitionColumns"] == their_metadata["partitionColumns"]
    assert json.loads(our_metadata["schemaString"]) == json.loads(their_metadata["schemaString"])
    assert our_adds.keys() == their_adds.keys()
    for path, add in our_adds.items():
        for key in ("partitionValues", "size", "modificationTime"):
            assert add[key] == their_adds[path][key], (path, key)

    rows = canon.rows(with_delta_spark(delta_spark, theirs))
    assert canon.rows(with_delta_spark(delta_spark, ours)) == rows
    schema, batches = read(open_table(str(ours)))
    assert canon.rows(pa.Table.from_batches(batches, schema)) == rows

    delta_spark.sql(f"DELETE FROM delta.`{ours}` WHERE id % 3 = 0")
    assert delta_spark.sql(f"SELECT count(*) FROM delta.`{ours}` WHERE id < 50").first()[0] == 33
