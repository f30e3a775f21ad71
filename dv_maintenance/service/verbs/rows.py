"""Verbs that change rows. Spark evaluates conditions and values, as the user's engine does; this process evaluates only
conditions of a DELETE that mean the same in both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.errors import UsageError
from dv_maintenance.service.engines import spark_of
from dv_maintenance.service.reports.rows import of_changes

if TYPE_CHECKING:
    from dv_maintenance.service.engines import EngineOf
    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.tables.table import Table

_log = logging.getLogger(__name__)

_NO_SQL = "can't evaluate Spark SQL"


def check_selection(where: str | None, keys: object, uri: str | None = None) -> None:
    """Raises UsageError if both or neither are given."""
    if (where is None) == (keys is None):
        raise UsageError(
            "exactly one of 'where' and 'keys' selects the rows",
            table=uri,
            next_step="to delete every row, give the condition true",
        )


def delete_rows(
    table: Table,
    engine: EngineOf,
    *,
    where: str | None = None,
    keys: str | None = None,
    on: Sequence[str] = (),
    dry_run: bool = False,
) -> Outcome:
    """DELETE by a condition or by keys.

    Raises
    ------
    UsageError : both or neither are given, or the engine has no Spark, and keys or the condition need it.

    Errors of ``dml.delete`` pass through.
    """
    from dv_maintenance.dml.delete import delete

    check_selection(where, keys, table.uri)
    started = engine() if keys is None else spark_of(engine, table, "can't compare keys")
    _log.info("looking for the rows to delete")
    return of_changes(delete(table, started, where, keys=keys, on=on, dry_run=dry_run))


def update_rows(
    table: Table,
    engine: EngineOf,
    assignments: Sequence[tuple[str, str]],
    where: str | None = None,
    *,
    dry_run: bool = False,
) -> Outcome:
    """UPDATE. ``assignments``: column and value in Spark SQL; ``where``: ``None``: every row.

    Raises
    ------
    UsageError : a column is set twice, or the engine is not Spark.

    Errors of ``dml.update`` pass through.
    """
    from dv_maintenance.dml.update import update

    columns = [column for column, _ in assignments]
    if len(set(columns)) < len(columns):
        raise UsageError("a column is set twice", table=table.uri)
    spark = spark_of(engine, table, _NO_SQL)
    _log.info("looking for the rows to update")
    return of_changes(update(table, spark, dict(assignments), where, dry_run=dry_run))


def merge_rows(
    table: Table, engine: EngineOf, source: str, on: str, clauses: Sequence[str], *, dry_run: bool = False
) -> Outcome:
    """MERGE. ``source``: a table, or Parquet, CSV or JSON; ``clauses``: each without its leading WHEN.

    Raises
    ------
    UsageError : a clause can't be read, or the engine is not Spark.

    Errors of ``dml.merge`` pass through.
    """
    from dv_maintenance.dml.clauses import with_clauses
    from dv_maintenance.dml.merge import merge
    from dv_maintenance.dml.source import read_rows

    spark = spark_of(engine, table, _NO_SQL)
    begun = with_clauses(merge(table, spark, source, on), clauses)
    _log.info("looking for the rows to merge")
    options: Mapping[str, str] = table.storage.options
    begun = replace(begun, source=lambda session: read_rows(session, source, options))
    return of_changes(begun.execute(dry_run=dry_run))
