"""What UPDATE and MERGE make of values that a column can't take is what delta-spark makes of them, ANSI mode or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from support.predicate_judging import session_with
from support.twins import make_table

from dv_maintenance.dml.merge import merge
from dv_maintenance.dml.update import update
from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE: Final = """
    CREATE TABLE {t} (id BIGINT, n INT, amount DECIMAL(5, 2), day DATE, flag BOOLEAN, st STRUCT<a: BIGINT, b: STRING>,
        ar ARRAY<INT>) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true');
    INSERT INTO {t} (id, n) VALUES (1, 7)
"""
# By column; {k} is the key, so that nothing is known before rows are.
WRONG: Final = (
    ("n", "{k} + 2147483647"),
    ("n", "concat('x', {k})"),
    ("amount", "{k} + 123456.789"),
    ("day", "concat('2026-13-4', {k})"),
)
OTHERS: Final = (
    ("n", "1e20D * {k}"),
    ("flag", "concat('maybe', {k})"),
    ("n", "DATE'2026-01-01'"),
    ("ar", "array('1', concat('x', {k}))"),
    ("st", "named_struct('a', concat('x', {k}), 'b', 'y')"),
    ("st", "named_struct('b', 'y', 'c', {k})"),
    ("st", "'y'"),
)
RIGHT: Final = (
    ("n", "concat(' ', {k}, ' ')"),
    ("amount", "{k} + 1.239"),
    ("st", "named_struct('A', CAST({k} AS INT), 'B', 'y')"),
    ("st", "IF({k} > 0, NULL, named_struct('a', 1, 'b', 'y'))"),
    ("st", "NULL"),
)
ANSI_OFF: Final = {"spark.sql.ansi.enabled": "false"}
ANSI_ON: Final = {"spark.sql.ansi.enabled": "true"}
LEGACY: Final = {**ANSI_ON, "spark.sql.storeAssignmentPolicy": "LEGACY"}
STRICT: Final = {**ANSI_OFF, "spark.sql.storeAssignmentPolicy": "STRICT"}
FOLLOWS: Final = {**ANSI_OFF, "spark.databricks.delta.updateAndMergeCastingFollowsAnsiEnabledFlag": "true"}


class Judged:
    """A table of delta-spark's and one of ours. What a statement comes to: rows, or an error."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.theirs, self.ours = make_table(spark, folder / "theirs", TABLE), folder / "ours"
        shutil.copytree(self.theirs, self.ours)
        self.inserted = 1

    def outcomes(self, kind: str, column: str, value: str) -> tuple[Any, Any]:
        """Of delta-spark, of ours."""
        spark, table = self.spark, DeltaTable(Storage(str(self.ours)))
        sql = value.format(k="id" if kind == "update" else "s.key")
        place = f"delta.`{self.theirs}`"
        if kind == "update":
            statement = f"UPDATE {place} SET {column} = {sql} WHERE id = 1"
            run: Callable[[], Any] = partial(update, table, spark, {column: sql}, "id = 1")
        else:
            matched = kind == "matched"
            # Each insert has a key of its own: a key that is there already would match, and nothing would be done.
            self.inserted += not matched
            source = f"SELECT CAST({1 if matched else self.inserted} AS BIGINT) AS key"
            begun = merge(table, spark, source, "t.id = s.key", target_alias="t", source_alias="s")
            if matched:
                clause, begun = f"MATCHED THEN UPDATE SET {column} = {sql}", begun.when_matched_update({column: sql})
            else:
                clause = f"NOT MATCHED THEN INSERT (id, {column}) VALUES (s.key, {sql})"
                begun = begun.when_not_matched_insert({"id": "s.key", column: sql})
            statement = f"MERGE INTO {place} t USING ({source}) s ON t.id = s.key WHEN {clause}"
            run = begun.execute
        return tuple(
            self._outcome(place, column, 1 if kind != "insert" else self.inserted, each)
            for place, each in ((self.theirs, partial(spark.sql, statement)), (self.ours, run))
        )

    def _outcome(self, place: Path, column: str, key: int, run: Callable[[], Any]) -> Any:
        try:
            run()
        except RefusedError:
            return "refused"
        except Exception as error:
            if place == self.ours and not isinstance(error, DvMaintenanceError):
                raise
            return "error"
        rows = self.spark.read.format("delta").load(str(place)).where(f"id = {key}")
        return [str(row[0]) for row in rows.selectExpr(f"CAST({column} AS STRING)").collect()]


@pytest.fixture(scope="module")
def judged(delta_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """Of all tests: a row more or another value in row 1 changes no outcome."""
    return Judged(delta_spark, tmp_path_factory.mktemp("judged"))


@pytest.mark.parametrize("kind", ["update", pytest.param("matched", marks=pytest.mark.deep), "insert"])
def test_a_value_that_does_not_fit_is_an_error_without_ansi(judged: Judged, kind: str) -> None:
    """It was null, or a wrapped number."""
    with session_with(judged.spark, ANSI_OFF):
        for column, value in WRONG[kind == "insert" :: 2]:
            assert judged.outcomes(kind, column, value) == ("error", "error"), value


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["update", "matched", "insert"])
@pytest.mark.parametrize("settings", [ANSI_OFF, ANSI_ON, LEGACY, STRICT, FOLLOWS], ids=str)
def test_values_and_policies(judged: Judged, settings: dict[str, str], kind: str) -> None:
    different = []
    with session_with(judged.spark, settings):
        for column, value in (*WRONG, *OTHERS, *RIGHT):
            theirs, ours = judged.outcomes(kind, column, value)
            if theirs != ours and (ours != "refused" or (theirs != "error" and settings is not STRICT)):
                different.append(f"{column} = {value}: {theirs} there, {ours} here")
    assert not different, "\n".join(different)


def test_fields_in_another_order_are_refused(judged: Judged) -> None:
    """delta-spark matches them by name; they were cast by position."""
    swapped = "named_struct('b', 'y', 'a', {k})"
    with session_with(judged.spark, ANSI_OFF):
        assert judged.outcomes("update", "st", swapped) == (["{1, y}"], "refused")
