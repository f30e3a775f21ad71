"""Z-order on tables made by delta-spark, next to its own OPTIMIZE ZORDER BY on a twin."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from support.readers import with_delta_spark

from dv_maintenance.engine.spark import SparkEngine
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.maintenance.zorder import zorder
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MADE = """
    CREATE TABLE {t} (id BIGINT, x INT, y STRING, price DECIMAL(12, 2), tags ARRAY<STRING>, part STRING) USING delta
        PARTITIONED BY (part)
        TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true');
    INSERT INTO {t} SELECT /*+ REPARTITION(3) */ id, CAST(id * 7919 % 5000 AS INT),
        IF(id % 50 = 0, NULL, concat('v', lpad(id * 104729 % 5000, 5, '0'))), CAST(id / 8 AS DECIMAL(12, 2)),
        array(string(id)), IF(id % 4 = 0, NULL, 'p') FROM range(5000);
    DELETE FROM {t} WHERE id % 7 = 0
"""


def optimize(path: Path) -> tuple[dict[str, Any], list[str]]:
    """What the last OPTIMIZE says of itself, and which files it took out."""
    commits = sorted((path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in commits[-1].read_text().splitlines()]
    [info] = [action["commitInfo"] for action in actions if "commitInfo" in action]
    assert info["operation"] == "OPTIMIZE"
    return info, sorted(action["remove"]["path"] for action in actions if "remove" in action)


@pytest.fixture
def twins(delta_spark: SparkSession, tmp_path: Path) -> tuple[Path, Path]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for statement in MADE.format(t=f"delta.`{ours}`").split(";"):
        delta_spark.sql(statement)
    shutil.copytree(ours, theirs)
    return ours, theirs


@pytest.mark.deep
def test_same_rows_same_candidates_same_history(
    twins: tuple[Path, Path], delta_spark: SparkSession, canon: ModuleType
) -> None:
    ours, theirs = twins
    ids = "SELECT id, _metadata.row_id AS row FROM delta.`{}`"
    tracked = sorted(delta_spark.sql(ids.format(ours)).collect())
    before = canon.rows(with_delta_spark(delta_spark, ours))
    table = open_table(str(ours))
    report = zorder(table, SparkEngine(delta_spark), ["x", "y"], Policy(target_file_size=12_000))
    delta_spark.sql(f"OPTIMIZE delta.`{theirs}` ZORDER BY (x, y)")

    assert report.verified
    assert canon.rows(with_delta_spark(delta_spark, ours)) == before
    assert sorted(delta_spark.sql(ids.format(ours)).collect()) == tracked
    (our_info, our_removes), (their_info, their_removes) = optimize(ours), optimize(theirs)
    assert our_removes == their_removes
    shared = our_info["operationParameters"].items()
    assert shared <= their_info["operationParameters"].items()
    ours_only = {"numDeletionVectorsAdded"}
    assert our_info["operationMetrics"].keys() - ours_only <= their_info["operationMetrics"].keys()
    for name in ("numRemovedFiles", "numRemovedBytes", "numDeletionVectorsRemoved"):
        assert our_info["operationMetrics"][name] == their_info["operationMetrics"][name], name

    # A filter on either column leaves files out, there as well.
    for where in ("x = 2500", "y = 'v02500'"):
        plan = delta_spark.read.format("delta").load(str(ours)).where(where)
        assert len(plan.inputFiles()) < table.snapshot().files.num_rows, where
    assert zorder(table, SparkEngine(delta_spark), ["x", "y"], Policy(target_file_size=12_000)).steps == ()
    # A delete there carries the order on, so only what lost many rows is done again.
    delta_spark.sql(f"DELETE FROM delta.`{ours}` WHERE x = 2500")
    deleted = table.snapshot().files
    assert pc.sum(deleted["deleted_rows"]).as_py() == 1
    assert zorder(table, SparkEngine(delta_spark), ["x", "y"], Policy(target_file_size=12_000)).steps == ()
