"""A table made by delta-spark, twice: one for delta-spark to change, one for us, and what both must agree on."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dv_maintenance.maintenance.read import read
from dv_maintenance.storage import Storage
from dv_maintenance.tables import open_table
from dv_maintenance.tables.delta.table import DeltaTable
from support.readers import with_delta_spark, with_deltalake
from support.sessions import cheap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Times, and bytes, which hang on who wrote the Parquet files.
_NOT_COMPARED = ("TimeMs", "Bytes")


@dataclass(frozen=True)
class Twins:
    spark: SparkSession
    theirs: Path
    ours: Path

    @classmethod
    def make(cls, spark: SparkSession, folder: Path, statements: str) -> Twins:
        """``statements``: SQL, separated by semicolons, with {t} for the table."""
        make_table(spark, folder / "theirs", statements)
        shutil.copytree(folder / "theirs", folder / "ours")
        return cls(spark, folder / "theirs", folder / "ours")

    @classmethod
    def of(cls, spark: SparkSession, made: Path, folder: Path) -> Twins:
        """Two copies of a table."""
        for name in ("theirs", "ours"):
            shutil.copytree(made, folder / name)
        return cls(spark, folder / "theirs", folder / "ours")

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(Storage(str(self.ours)))

    def sql(self, statement: str, **more: Any) -> None:
        """On delta-spark's twin."""
        self.spark.sql(statement.format(t=f"delta.`{self.theirs}`"), **more)

    def check_content(self) -> Counter[str]:
        """Both hold the same rows, no matter which reader is asked; returned as text."""
        wanted = rows_of(with_delta_spark(self.spark, self.theirs).to_pylist())
        assert rows_of(with_delta_spark(self.spark, self.ours).to_pylist()) == wanted
        assert rows_of(row for batch in read(open_table(str(self.ours)))[1] for row in batch.to_pylist()) == wanted
        return wanted

    def check_deltalake(self) -> None:
        wanted = rows_of(with_delta_spark(self.spark, self.theirs).to_pylist())
        assert rows_of(with_deltalake(self.ours).to_pylist()) == wanted

    def metrics(self) -> tuple[dict[str, int], dict[str, int]]:
        """Of the newest commit, as DESCRIBE HISTORY shows what its log entry says: theirs, ours."""
        theirs, ours = (self._metrics(place) for place in (self.theirs, self.ours))
        return theirs, {name: value for name, value in ours.items() if name in theirs}

    def _metrics(self, place: Path) -> dict[str, int]:
        newest = max((place / "_delta_log").glob("*.json"))
        infos = [json.loads(line).get("commitInfo") for line in newest.read_text().splitlines()]
        (found,) = [info["operationMetrics"] for info in infos if info]
        return {name: int(value) for name, value in found.items() if not name.endswith(_NOT_COMPARED)}

    def check_changes(self, first: int, last: int | None = None) -> Counter[str]:
        """What the change data feed says of these versions, or of one, is the same; returned as text."""
        theirs, ours = (
            rows_of(
                self.spark.read.format("delta")
                .option("readChangeFeed", "true")
                .option("startingVersion", first)
                .option("endingVersion", first if last is None else last)
                .load(str(place))
                .drop("_commit_timestamp")
                .toArrow()
                .to_pylist()
            )
            for place in (self.theirs, self.ours)
        )
        assert ours == theirs
        return ours


def make_table(spark: SparkSession, place: Path, statements: str) -> Path:
    for statement in statements.split(";"):
        if statement.strip():
            cheap(spark).sql(statement.format(t=f"delta.`{place}`"))
    return place


def rows_of(rows: Any) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True, default=repr) for row in rows)
