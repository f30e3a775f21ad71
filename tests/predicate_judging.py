"""Conditions put to Spark over rows that it reads itself, and over rows as DELETE, UPDATE and MERGE get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dv_maintenance.dml.catalyst import predicate_of
from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.prune import files_that_may_match
from dv_maintenance.dml.rows import live_rows, numbered_rows
from dv_maintenance.dml.session_time import scan_tasks
from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.tables.predicate import bind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.tables.rows import RowLevelTable

__all__ = ["Count", "Judged", "session_with"]


@contextmanager
def session_with(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in wanted}
    try:
        for key, value in wanted.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, value in before.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)


@dataclass
class Count:
    predicates: int = 0
    errors: int = 0
    refused: int = 0
    operations: int = 0
    differences: list[str] = field(default_factory=list)

    def check(self, seed: int) -> None:
        print(f"seed {seed}: {self.predicates} conditions, {self.operations} operations")
        print(f"with errors {self.errors}, refused {self.refused}")
        assert not self.differences, "\n".join([f"seed {seed}", *self.differences[:20]])
        assert self.refused <= (self.predicates + self.operations) // 20 + 1


@dataclass
class Judged:
    """A table, and both sides' answers to conditions on it; ``theirs``: its rows as Spark reads them."""

    spark: SparkSession
    table: RowLevelTable
    theirs: Callable[[], DataFrame]
    count: Count

    def ours(self) -> DataFrame:
        snapshot = self.table.snapshot()
        tasks = scan_tasks(self.spark, self.table, snapshot, snapshot.schema.names)
        live = live_rows(self.spark, tasks, snapshot.schema, None)
        return live.rows.drop(live.file, live.row)

    def check(self, conditions: Sequence[str], told: str) -> None:
        theirs = _fulfilled(self.theirs, conditions)
        ours = _fulfilled(self.ours, conditions)
        for sql, wanted, found in zip(conditions, theirs, ours, strict=True):
            self.count.predicates += 1
            if wanted is None or found is None:
                self.count.errors += 1
                found = found if wanted is not None else self._dry_run(sql)
            elif not wanted <= self._kept(sql):
                self.count.differences.append(f"{told}: {sql}: left out {sorted(wanted - self._kept(sql))}")
            if wanted != found:
                self.count.differences.append(f"{told}: {sql}: {wanted} there, {found} here")

    def _kept(self, sql: str) -> set[int]:
        """Ids of the rows in files and row groups that are not left out."""
        snapshot = self.table.snapshot()
        predicate = predicate_of(self.spark, snapshot.schema, sql)
        chosen = files_that_may_match(self.table, snapshot, predicate)
        tasks, bound = self.table.scan_tasks(chosen), bind(predicate, snapshot.schema)
        return {
            number
            for at, task in enumerate(tasks)
            for batch in numbered_rows(at, task, {}, bound)
            for number in batch["id"].to_pylist()
        }

    def _dry_run(self, sql: str) -> int | None:
        """Of a condition that delta-spark has an error for."""
        try:
            return delete(self.table, self.spark, sql, dry_run=True).rows_deleted
        except DvMaintenanceError as error:
            self.count.refused += isinstance(error, RefusedError)
            return None


def _fulfilled(rows: Callable[[], DataFrame], conditions: Sequence[str]) -> list[set[int] | None]:
    """The ids that fulfil each condition; ``None``: an error. One query, halved where it fails."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f
    from pyspark.sql.types import BooleanType

    try:
        frame = rows()
        kinds = frame.select(*[f.expr(sql).alias(f"p{at}") for at, sql in enumerate(conditions)]).schema
        columns = [
            f.coalesce(f.expr(sql) if isinstance(kind.dataType, BooleanType) else f.lit(False), f.lit(False)).alias(
                kind.name
            )
            for sql, kind in zip(conditions, kinds, strict=True)
        ]
        if len(conditions) == 1:
            return [set(frame.where(conditions[0]).select("id").toArrow()["id"].to_pylist())]
        answers = frame.select(f.col("id"), *columns).toArrow()
    except (PySparkException, Py4JError):
        if len(conditions) == 1:
            return [None]
        half = len(conditions) // 2
        return [*_fulfilled(rows, conditions[:half]), *_fulfilled(rows, conditions[half:])]
    ids = answers["id"]
    # A lone NULL is no condition: an error, as in a statement of its own.
    return [
        set(ids.filter(answers[kind.name]).to_pylist()) if isinstance(kind.dataType, BooleanType) else None
        for kind in kinds
    ]
