"""Conditions put to Spark over rows that it reads itself, and over rows as DELETE, UPDATE and MERGE get them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.dml.catalyst import demanded_by, shape
from dv_maintenance.dml.delete import delete
from dv_maintenance.dml.prune import files_that_may_match
from dv_maintenance.dml.rows import live_rows, numbered_rows
from dv_maintenance.dml.session_time import scan_tasks
from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.tables.predicate import bind
from support.random_sql import COLUMNS, NESTED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import RowLevelTable

__all__ = ["Answer", "Count", "Judged", "session_with"]

_TYPES: Final = {"id": "INT"} | {each.name: each.type for each in COLUMNS} | {name: kind for name, kind, _ in NESTED}
_TEXT: Final = re.compile(r"'(?:[^'\\]|\\.)*'")
_WORD: Final = re.compile(r"\w+")


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
    """``errors``: conditions that end in an error for some row, or for all; ``by_type``: how often a type came up, by
    operation. ``theirs_alone``: statements in which delta-spark differs from Spark's own SELECT and we do not, or
    that it cannot plan.
    """

    predicates: int = 0
    errors: int = 0
    refused: int = 0
    operations: int = 0
    failed: int = 0
    by_type: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    theirs_alone: list[str] = field(default_factory=list)

    def see(self, operation: str, *sql: str) -> None:
        words = {word.lower() for text in sql for word in _WORD.findall(_TEXT.sub("", text))}
        self.by_type.update((kind, operation) for name, kind in _TYPES.items() if name in words)

    def check(self, seed: int) -> None:
        print(f"seed {seed}: {self.predicates} conditions, {self.errors} of them with errors")
        print(f"{self.operations} operations, {self.failed} of them with errors; refused {self.refused}")
        print(f"{len(self.differences)} differences")
        print(f"{len(self.theirs_alone)} faults of delta-spark alone", *self.theirs_alone, sep="\n  ")
        for (kind, operation), times in sorted(self.by_type.items()):
            print(f"  {kind:16} {operation:10} {times}")
        assert not self.differences, "\n".join([f"seed {seed}", *self.differences[:20]])
        # What ends in an error proves little.
        assert self.errors <= self.predicates // 5 + 2
        assert self.failed <= self.operations // 3 + 1
        assert len(self.theirs_alone) <= self.operations // 8 + 1
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
        snapshot = self.table.snapshot()
        columns = shape(self.spark, snapshot.schema)
        theirs = _answers(self.theirs(), conditions)
        ours = _answers(self.ours(), conditions)
        for sql, wanted, found in zip(conditions, theirs, ours, strict=True):
            self.count.predicates += 1
            self.count.see("condition", sql)
            if wanted != found:
                self.count.differences.append(f"{told}: {sql}: {wanted} there, {found} here")
            elif wanted is None or wanted.errors:
                self._dry_run(sql, wanted, told)
            elif wanted.fulfil:
                kept = self._kept(snapshot, columns, sql)
                if kept is None:
                    self._dry_run(sql, wanted, told)
                elif not wanted.fulfil <= kept:
                    self.count.differences.append(f"{told}: {sql}: left out {sorted(wanted.fulfil - kept)}")

    def _kept(self, snapshot: Snapshot, columns: DataFrame, sql: str) -> set[int] | None:
        """Ids of the rows in files and row groups that are not left out; ``None``: Spark cannot plan the condition."""
        from pyspark.errors import PySparkException

        try:
            predicate = demanded_by(columns.where(sql))
        except PySparkException:
            # Its optimizer computes some constants that no row would need.
            return None
        chosen = files_that_may_match(self.table, snapshot, predicate)
        tasks, bound = self.table.scan_tasks(chosen), bind(predicate, snapshot.schema)
        return {
            number
            for at, task in enumerate(tasks)
            for batch in numbered_rows(at, task, {}, bound)
            for number in batch["id"].to_pylist()
        }

    def _dry_run(self, sql: str, wanted: Answer | None, told: str) -> None:
        """Of a condition that Spark has an error for: an error of ours, or the rows that fulfil it, without those with
        an error."""
        self.count.errors += 1
        try:
            rows = delete(self.table, self.spark, sql, dry_run=True).rows_deleted
        except DvMaintenanceError as error:
            self.count.refused += isinstance(error, RefusedError)
            return
        if wanted is None or rows != len(wanted.fulfil):
            self.count.differences.append(f"{told}: {sql}: {wanted} there, DELETE takes {rows} rows here")


@dataclass(frozen=True)
class Answer:
    """Ids of the rows that fulfil a condition, and of those for which it ends in an error."""

    fulfil: frozenset[int]
    errors: frozenset[int]


def _answers(rows: DataFrame, conditions: Sequence[str]) -> list[Answer | None]:
    """Of each condition, in one query, halved where it fails as a whole; ``None``: it is none."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    columns: dict[int, Column] = {}
    for at, sql in enumerate(conditions):
        # A lone NULL is no condition: an error, as in a statement of its own.
        with suppress(PySparkException):
            if rows.select(f.expr(sql).alias("it")).schema["it"].dataType.typeName() == "boolean":
                columns[at] = _tried(rows.sparkSession, f.coalesce(f.expr(sql), f.lit(False))).alias(f"p{at}")
    # A part that two conditions share would be computed outside of both.
    try:
        with session_with(rows.sparkSession, {"spark.sql.subexpressionElimination.enabled": "false"}):
            answers = rows.select(f.col("id"), *columns.values()).toArrow()
    except (PySparkException, Py4JError):
        # An optimizer's error, such as a pattern that is none.
        half = len(conditions) // 2
        return [*_answers(rows, conditions[:half]), *_answers(rows, conditions[half:])] if half else [None]
    ids = answers["id"]

    def answer(at: int) -> Answer:
        values = answers[f"p{at}"]
        return Answer(*(frozenset(ids.filter(mask).to_pylist()) for mask in (values, values.is_null())))

    return [answer(at) if at in columns else None for at in range(len(conditions))]


def _tried(spark: SparkSession, column: Any) -> Column:
    """Null where the column ends in an error, as in Spark's own ``try_`` functions."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    sql: Any = spark._jvm.org.apache.spark.sql
    inner = sql.classic.ExpressionUtils.expression(column._jc)
    return ClassicColumn(sql.classic.ExpressionUtils.column(sql.catalyst.expressions.TryEval(inner)))
