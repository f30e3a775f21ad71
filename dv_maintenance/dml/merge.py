"""MERGE: changes a table by a source, clause by clause, as SQL's MERGE INTO does. Here it is put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from dv_maintenance.dml.caching import again_if_lost
from dv_maintenance.dml.operation import DmlReport, row_level, run
from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.dml.text_files import TextFile
    from dv_maintenance.engine.spark import SparkEngine
    from dv_maintenance.tables.table import Table

# Kinds of clauses, as part of an action.
MATCHED: Final = "matched"
NOT_MATCHED: Final = "not matched"
NOT_MATCHED_BY_SOURCE: Final = "not matched by source"


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN clause.

    action : update, delete or insert.
    values : by column; ``None``: all columns with the values of the source.
    """

    kind: str
    action: str
    condition: str | None
    values: Mapping[str, str] | None = None

    @property
    def label(self) -> str:
        return f"{self.action}:{self.kind}"


@dataclass(frozen=True, slots=True)
class Merge:
    """A MERGE under construction. Each ``when_...`` returns one with an additional clause, ``execute`` runs it.

    Conditions and values are Spark SQL, with the table and the source under their aliases.
    """

    table: Table
    spark: SparkSession | SparkEngine
    source: DataFrame | str | tuple[TextFile, ...] | Callable[[SparkSession], DataFrame | tuple[TextFile, ...]]
    on: str
    target_alias: str = "target"
    source_alias: str = "source"
    clauses: tuple[Clause, ...] = field(default=())

    def when_matched_update(self, set: Mapping[str, str], condition: str | None = None) -> Merge:
        return self._with(Clause(MATCHED, "update", condition, set))

    def when_matched_update_all(self, condition: str | None = None) -> Merge:
        return self._with(Clause(MATCHED, "update", condition))

    def when_matched_delete(self, condition: str | None = None) -> Merge:
        return self._with(Clause(MATCHED, "delete", condition))

    def when_not_matched_insert(self, values: Mapping[str, str], condition: str | None = None) -> Merge:
        """Columns left out get their default, or null."""
        return self._with(Clause(NOT_MATCHED, "insert", condition, values))

    def when_not_matched_insert_all(self, condition: str | None = None) -> Merge:
        return self._with(Clause(NOT_MATCHED, "insert", condition))

    def when_not_matched_by_source_update(self, set: Mapping[str, str], condition: str | None = None) -> Merge:
        return self._with(Clause(NOT_MATCHED_BY_SOURCE, "update", condition, set))

    def when_not_matched_by_source_delete(self, condition: str | None = None) -> Merge:
        return self._with(Clause(NOT_MATCHED_BY_SOURCE, "delete", condition))

    def _with(self, clause: Clause) -> Merge:
        return replace(self, clauses=(*self.clauses, clause))

    def execute(self, *, dry_run: bool = False, max_attempts: int = 3) -> DmlReport:
        """Run it on the newest version.

        dry_run : do everything, also compute and check the new rows, but write and commit nothing.

        Raises
        ------
        UsageError : there is no clause, or one that never acts; Spark does not understand an expression; a column does
            not exist; several rows of the source match the same row of the table, whether or not a clause acts on them
            (allowed if rows are only inserted, or if the only clause for matches is an unconditional delete).
        RefusedError : a new row violates a constraint, a column can't be assigned to, or the table allows no deletion
            vectors.
        ConflictError : other writers interfered in each of ``max_attempts`` attempts; nothing was changed.
        DamagedTableError, StorageError : a file of the table is damaged or unreadable.
        """
        target = row_level(self.table)
        if not self.clauses:
            raise UsageError("a MERGE needs a clause", table=self.table.uri, next_step="add a when_...")
        for kind in {each.kind for each in self.clauses}:
            if None in [each.condition for each in self.clauses if each.kind == kind][:-1]:
                raise UsageError(
                    f"a clause after WHEN {kind.upper()} without a condition never acts",
                    table=self.table.uri,
                    next_step="put the clause without a condition last, or drop the others",
                )
        from dv_maintenance.dml.merge_run import Attempts

        attempts = Attempts(self, target, dry_run)
        try:
            find = again_if_lost(attempts.find, attempts.release)
            return run(target, "MERGE", find, max_attempts=max_attempts, dry_run=dry_run)
        finally:
            attempts.release()


def merge(
    table: Table,
    spark: SparkSession | SparkEngine,
    source: DataFrame | str,
    on: str,
    *,
    target_alias: str = "target",
    source_alias: str = "source",
) -> Merge:
    """Begin a MERGE of ``source`` into ``table`` where ``on`` is true. ``source``: a DataFrame, a query, or the name of
    a table or view that Spark knows.

    >>> begun = merge(table, spark, updates, "target.id = source.id")  # doctest: +SKIP
    >>> begun.when_matched_update_all().when_not_matched_insert_all().execute()  # doctest: +SKIP
    """
    return Merge(table, spark, source, on, target_alias, source_alias)
