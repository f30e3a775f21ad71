"""Clustered tables of delta-spark: its OPTIMIZE, run after ours, leaves alone what was clustered, and its queries skip
as many bytes as before.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from support.sessions import cheap

from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.maintenance.cluster import cluster
from dv_maintenance.maintenance.execution.apply import apply, purge
from dv_maintenance.maintenance.planning.plan import build_plan
from dv_maintenance.maintenance.planning.policy import Policy
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA = "spark.databricks.delta"
# Files of about 10 KB, and units that count as full from their first byte on: as tables of terabytes have them.
SMALL = {
    f"{DELTA}.optimize.maxFileSize": "9000",
    f"{DELTA}.optimize.clustering.mergeStrategy.minCubeSize.threshold": "1",
}
DV = "'delta.enableDeletionVectors' = 'true'"
EVERYTHING = (
    f"{DV}, 'delta.columnMapping.mode' = 'name', 'delta.enableRowTracking' = 'true', "
    "'delta.enableChangeDataFeed' = 'true'"
)
IDS = ", _metadata.row_id, _metadata.row_commit_version"
QUERIES = ("id = 100", "id between 2000 and 2200", "x = 77", "x < 50 and id > 3000")


@dataclass
class Made:
    spark: SparkSession
    path: Path
    ids: str = ""

    def sql(self, statement: str) -> list[Any]:
        return self.spark.sql(statement.replace("{t}", f"delta.`{self.path}`")).collect()

    def insert(self, first: int, last: int) -> None:
        self.sql(
            f"INSERT INTO {{t}} SELECT /*+ COALESCE(1) */ id, cast(id * 7919 % 1000 as int), 's' "
            f"FROM range({first}, {last})"
        )

    def optimize(self, rest: str = "") -> tuple[int, int]:
        """Files and bytes that delta-spark's OPTIMIZE rewrote."""
        metrics = self.sql(f"OPTIMIZE {{t}} {rest}")[0]["metrics"]
        return metrics["numFilesRemoved"], metrics["filesRemoved"]["totalSize"]

    def rows(self) -> list[str]:
        return sorted(map(str, self.sql(f"SELECT *{self.ids} FROM {{t}}")))

    def read(self, where: str) -> int:
        """Bytes of the files that a query opens."""
        opened = self.spark.read.format("delta").load(str(self.path)).where(where).inputFiles()
        return sum(Path(unquote(name).removeprefix("file:").replace("//", "/")).stat().st_size for name in opened)

    def live(self) -> list[tuple[str, Any, str | None]]:
        files = open_table(str(self.path)).snapshot().files
        columns = (files[name].to_pylist() for name in ("path", "tags", "clustering_provider"))
        return [(path, dict(tags or ()).get("ZCUBE_ID"), by) for path, tags, by in zip(*columns, strict=True)]

    def loose(self) -> int:
        return sum(unit is None for _, unit, _ in self.live())


def make(spark: SparkSession, path: Path, properties: str) -> Made:
    session = cheap(spark)
    for key, value in SMALL.items():
        session.conf.set(key, value)
    made = Made(session, path, IDS if "RowTracking" in properties else "")
    made.sql(
        f"CREATE TABLE {{t}} (id BIGINT, x INT, s STRING) USING delta CLUSTER BY (id, x) TBLPROPERTIES ({properties})"
    )
    made.insert(0, 5000)
    made.optimize()
    made.sql("DELETE FROM {t} WHERE id % 5 = 0")
    return made


PURGES = {
    "purge": lambda table: purge(table, LocalEngine()),
    "apply": lambda table: apply(table, LocalEngine(), build_plan(table.snapshot(), Policy(max_deleted_ratio=0.1))),
}


@pytest.mark.parametrize(
    ("properties", "verb"),
    [
        (EVERYTHING, "purge"),
        pytest.param(EVERYTHING, "apply", marks=pytest.mark.deep),
        pytest.param(DV, "purge", marks=pytest.mark.deep),
        pytest.param(DV, "apply", marks=pytest.mark.deep),
    ],
)
def test_what_was_clustered_stays_so(properties: str, verb: str, delta_spark: SparkSession, tmp_path: Path) -> None:
    made = make(delta_spark, tmp_path / "t", properties)
    made.insert(5000, 5100)
    before, read, (*units,) = made.rows(), [made.read(where) for where in QUERIES], {each[1:] for each in made.live()}
    table = open_table(str(made.path))
    report = PURGES[verb](table)
    assert report.verified
    assert len(report.steps) == len(made.live()) - made.loose(), "each file has a new one of its own"

    assert made.rows() == before
    assert {each[1:] for each in made.live()} == {*units}
    for where, least in zip(QUERIES, read, strict=True):
        assert made.read(where) <= 1.1 * least, where
    clustered = {path for path, unit, _ in made.live() if unit}
    files, _ = made.optimize()
    assert files == 1, "the file of the last INSERT"
    assert clustered < {path for path, _, _ in made.live()}
    assert made.loose() == 0

    # Life goes on there, and so do row ids and the change feed.
    made.insert(6000, 6001)
    made.sql("DELETE FROM {t} WHERE id < 10")
    assert len(made.rows()) == len(before) + 1 - 8
    if made.ids:
        feed = made.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 5)
        changes = feed.load(str(made.path)).groupBy("_change_type").count().collect()
        assert dict(changes) == {"insert": 1, "delete": 8}


@pytest.mark.deep
def test_its_own_reorg_leaves_deleted_rows_in_clustered_files(delta_spark: SparkSession, tmp_path: Path) -> None:
    made = make(delta_spark, tmp_path / "t", DV)
    made.sql("REORG TABLE {t} APPLY (PURGE)")
    files = open_table(str(made.path)).snapshot().files
    assert files["dv_id"].null_count == 0, "which is why nobody is sent there"


@pytest.mark.deep
def test_other_columns_are_clustered_by_full_only(delta_spark: SparkSession, tmp_path: Path) -> None:
    made = make(delta_spark, tmp_path / "t", DV)
    twin = Made(made.spark, tmp_path / "twin")
    made.sql("ALTER TABLE {t} CLUSTER BY (x)")
    shutil.copytree(made.path, twin.path)
    before = made.rows()
    purge(open_table(str(made.path)), LocalEngine())
    for each in (made, twin):
        assert each.optimize() == (0, 0)
    assert made.optimize("FULL")[0] == twin.optimize("FULL")[0] > 0
    assert made.rows() == before
    newest = max(path for path in (made.path / "_delta_log").glob("*.json"))
    tags = [json.loads(line)["add"]["tags"] for line in newest.read_text().splitlines() if '"add"' in line[:7]]
    assert {each["ZCUBE_ZORDER_BY"] for each in tags} == {'["x"]'}


def read_by_all(made: Made) -> int:
    return sum(made.read(where) for where in QUERIES)


@pytest.mark.deep
@pytest.mark.parametrize("properties", [DV, EVERYTHING])
def test_what_is_clustered_here_is_clustered_there(properties: str, delta_spark: SparkSession, tmp_path: Path) -> None:
    made = make(delta_spark, tmp_path / "t", properties)
    made.insert(5000, 9000)
    made.sql("DELETE FROM {t} WHERE id % 7 = 0")
    twin = Made(made.spark, tmp_path / "twin")
    shutil.copytree(made.path, twin.path)
    before = made.rows()
    report = cluster(open_table(str(made.path)), LocalEngine(), target_size=9000)
    assert report.verified
    assert made.rows() == before
    assert made.loose() == 0
    assert len({unit for _, unit, _ in made.live()}) == 1, "the smaller unit was taken in"
    assert {by for *_, by in made.live()} == {"liquid"}
    assert made.optimize() == (0, 0)
    made.spark.conf.set(next(reversed(SMALL)), str(1 << 40))
    try:
        assert made.optimize() == (0, 0), "one unit, however small"
        twin.optimize()
    finally:
        made.spark.conf.set(next(reversed(SMALL)), "1")
    assert read_by_all(made) <= 1.5 * read_by_all(twin), "both order by a Hilbert curve"
    made.insert(9000, 9100)
    assert made.optimize()[0] == 1
    assert cluster(open_table(str(made.path)), LocalEngine()).steps == ()


@pytest.mark.deep
def test_odd_names_are_spelled_alike(delta_spark: SparkSession, tmp_path: Path) -> None:
    made = Made(cheap(delta_spark), tmp_path / "t")
    odd = ("`a.b c`", "`1a`", "`e-é`", "plain")
    made.sql(
        f"CREATE TABLE {{t}} ({' INT, '.join(odd)} INT) USING delta CLUSTER BY ({', '.join(odd)}) "
        f"TBLPROPERTIES ({DV}, 'delta.columnMapping.mode' = 'name')"
    )
    for each in (1, 2):
        made.sql(f"INSERT INTO {{t}} VALUES ({each}, 2, 3, 4)")
    assert cluster(open_table(str(made.path)), LocalEngine()).steps
    assert made.optimize("FULL") == (0, 0)
    made.sql("INSERT INTO {t} VALUES (3, 4, 5, 6)")
    made.optimize()
    assert cluster(open_table(str(made.path)), LocalEngine()).steps == ()


NESTED_QUERIES = ("a.id = 100", "a.id between 2000 and 2200", "a.b.`x.y` = 77", "a.b.`x.y` < 50 and a.id > 3000")


@pytest.mark.deep
@pytest.mark.parametrize("properties", [DV, EVERYTHING])
def test_nested_columns_are_clustered_here_and_there(
    properties: str, delta_spark: SparkSession, tmp_path: Path
) -> None:
    """Also where a struct is null."""
    session = cheap(delta_spark)
    for key, value in SMALL.items():
        session.conf.set(key, value)
    mapped = "columnMapping" in properties
    made = Made(session, tmp_path / "t", IDS if mapped else "")
    odd = "`x.y`" if mapped else "xy"
    queries = [each if mapped else each.replace("`x.y`", odd) for each in NESTED_QUERIES]
    made.sql(
        f"CREATE TABLE {{t}} (s STRING, a STRUCT<t: STRING, id: BIGINT, b: STRUCT<{odd}: INT>>) USING delta "
        f"CLUSTER BY (a.b.{odd}, a.id) TBLPROPERTIES ({properties})"
    )

    def insert(first: int, last: int) -> None:
        made.sql(
            "INSERT INTO {t} SELECT /*+ COALESCE(1) */ 's', IF(id % 50 = 49, NULL, named_struct('t', 't', 'id', id, "
            f"'b', IF(id % 50 = 48, NULL, named_struct('{odd.strip('`')}', cast(id * 7919 % 1000 as int))))) "
            f"FROM range({first}, {last})"
        )

    def read(made: Made) -> int:
        return sum(made.read(where) for where in queries)

    insert(0, 5000)
    made.optimize()
    (columns,) = clustered_by(made)
    insert(5000, 9000)
    made.sql("DELETE FROM {t} WHERE a.id % 7 = 0")
    if mapped:
        made.sql("ALTER TABLE {t} RENAME COLUMN a.id TO key")
        made.sql("ALTER TABLE {t} RENAME COLUMN a.key TO id")
    before = made.rows()
    twin = Made(made.spark, tmp_path / "twin")
    shutil.copytree(made.path, twin.path)
    kept = Made(made.spark, tmp_path / "kept", made.ids)
    shutil.copytree(made.path, kept.path)

    report = cluster(open_table(str(made.path)), LocalEngine(), target_size=9000)
    assert report.verified, report.problems
    assert made.rows() == before
    assert clustered_by(made) == {columns}
    assert made.loose() == 0
    assert made.optimize() == (0, 0)
    assert made.optimize("FULL") == (0, 0)
    twin.optimize()
    assert read(made) <= 1.5 * read(twin), "both order by a Hilbert curve"
    assert cluster(open_table(str(made.path)), LocalEngine()).steps == ()
    insert(9000, 9100)
    assert made.optimize()[0] == 1

    # A purge keeps what is clustered, and the statistics that queries skip by.
    report = purge(open_table(str(kept.path)), LocalEngine())
    assert report.verified
    assert kept.rows() == before
    loose = kept.loose()
    assert kept.optimize()[0] == loose > 0


def clustered_by(made: Made) -> set[str]:
    tags = open_table(str(made.path)).snapshot().files["tags"].to_pylist()
    return {dict(each)["ZCUBE_ZORDER_BY"] for each in tags}
