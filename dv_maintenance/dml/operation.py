"""One DELETE, UPDATE or MERGE from snapshot to commit, repeated on a newer snapshot after a conflict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from dv_maintenance.engine.faults import reading
from dv_maintenance.errors import ConflictError, DvMaintenanceError, RefusedError, StorageError, UsageError, located
from dv_maintenance.files.parquet_footer import read_footer
from dv_maintenance.report import Report
from dv_maintenance.tables.gates import check_committable
from dv_maintenance.tables.registry import title_of
from dv_maintenance.tables.rows import DeletedRows, RowChanges, RowLevelTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.dml.keys import KeyCounts
    from dv_maintenance.dml.write import Written
    from dv_maintenance.dv import DeletionVector
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import ScanTask


@dataclass(frozen=True, slots=True, repr=False)
class DmlReport(Report):
    """The result of an operation; under ``dry_run``, the expected result.

    Row counts are ``None`` if a file without a row count was removed whole.

    attempts : how often the rows were searched.
    files_removed : files that were removed whole.
    dvs_added : new deletion vectors, of files that lost some of their rows.
    dvs_removed : older deletion vectors that these replaced.
    keys : counts of the keys of an erasure list.
    """

    operation: str
    version_before: int
    version_after: int
    rows_deleted: int | None
    rows_updated: int
    rows_inserted: int
    files_removed: int
    files_added: int
    dvs_added: int
    dvs_removed: int
    attempts: int
    seconds: float
    dry_run: bool = False
    keys: KeyCounts | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What an operation found on one snapshot.

    reads : see ``RowLevelTable.commit_changes``.
    updated : deleted rows that were added again with changes.
    """

    changes: RowChanges
    reads: Callable[[Snapshot], bool]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)
    updated: int = 0
    inserted: int = 0
    keys: KeyCounts | None = None


def run(
    table: RowLevelTable,
    name: str,
    find: Callable[[Snapshot], Work],
    *,
    max_attempts: int,
    dry_run: bool = False,
) -> DmlReport:
    """``find`` the changes on the newest snapshot and commit them. Both are repeated after a conflicting commit.

    dry_run : do everything but commit; ``find`` must not leave files either.

    Raises
    ------
    UnsupportedFeatureError, RefusedError : the table may not be changed.
    ConflictError : other writers interfered in each of ``max_attempts`` attempts; nothing was changed.

    Errors of ``find`` and the commit pass through. New files that no commit names are deleted, unless it is unknown
    whether a commit names them.
    """
    started = time.perf_counter()
    conflict = ""
    before = -1
    for attempt in range(1, max_attempts + 1):
        snapshot = table.snapshot()
        before = snapshot.version
        table.check_writable(snapshot, name.lower())
        check_committable(table, dry_run=dry_run)
        with located(table.uri, before):
            work = find(snapshot)
        operation = {"name": name, "parameters": work.parameters, "metrics": work.metrics}
        try:
            outcome = table.commit_changes(
                snapshot, work.changes, operation=operation, reads=work.reads, dry_run=dry_run
            )
        except DvMaintenanceError as error:
            # Otherwise the commit may have happened.
            if not dry_run and (error.uncommitted or not isinstance(error, StorageError | ConflictError)):
                discard(table, work.changes)
            raise
        if not outcome.conflict:
            taken_out = outcome.rows_deleted
            return DmlReport(
                table=table.uri,
                format=table.format,
                operation=name,
                version_before=before,
                version_after=before if outcome.version is None or dry_run else outcome.version,
                rows_deleted=None if taken_out is None else taken_out - work.updated,
                rows_updated=work.updated,
                rows_inserted=work.inserted,
                files_removed=outcome.files_removed,
                files_added=outcome.files_added,
                dvs_added=outcome.dvs_added,
                dvs_removed=outcome.dvs_removed,
                attempts=attempt,
                seconds=round(time.perf_counter() - started, 3),
                dry_run=dry_run,
                keys=work.keys,
            )
        conflict = outcome.conflict
        if not dry_run:
            discard(table, work.changes)
    raise ConflictError(
        f"other writers interfered in {max_attempts} attempts: {conflict}",
        table=table.uri,
        version=before,
        next_step="run again when the table is less busy",
    )


def discard(table: Table, changes: RowChanges) -> None:
    """Delete new files that no commit names, as far as the storage allows."""
    uris = [each.output.uri for each in (*changes.added, *changes.change_files)]
    with suppress(StorageError):  # vacuum finds the remaining files
        table.storage.delete([table.storage.path_of_uri(uri) for uri in uris])


def row_changes(table: Table, tasks: Sequence[ScanTask], written: Written, *, dry_run: bool) -> RowChanges:
    """The changes that an UPDATE or MERGE has written. If they can't be put together, the new files are deleted."""
    try:
        deleted = deleted_rows(table, tasks, written.positions)
    except BaseException:
        if not dry_run:
            discard(table, RowChanges((), written.added, written.change_files))
        raise
    return RowChanges(deleted, written.added, written.change_files)


def deleted_rows(
    table: Table, tasks: Sequence[ScanTask], found: Mapping[int, DeletionVector]
) -> tuple[DeletedRows, ...]:
    """Positions by task index, converted to the input of a commit. A file without a row count is opened for it."""

    def of(at: int, positions: DeletionVector) -> DeletedRows:
        (source,) = tasks[at].sources
        rows = source.rows
        if rows is None:
            with reading(source.uri), table.storage.open_input(source.uri) as file:
                rows = read_footer(file).num_rows
        return DeletedRows(source.key, positions, rows)

    return tuple(of(at, positions) for at, positions in sorted(found.items()))


def row_level(table: Table) -> RowLevelTable:
    """Raises RefusedError: changing rows of this format is not supported."""
    if isinstance(table, RowLevelTable):
        return table
    raise RefusedError(
        f"changing rows of {title_of(table.format)} tables is not supported",
        table=table.uri,
        next_step="use its own engine",
    )


def session_of(spark: SparkSession | Engine) -> SparkSession:
    """An engine's session, started if there is none yet, or the session itself. Raises UsageError: it has none."""
    from dv_maintenance.engine.auto import AutoEngine
    from dv_maintenance.engine.local import LocalEngine
    from dv_maintenance.engine.spark import SparkEngine

    if isinstance(spark, LocalEngine):
        raise UsageError(f"the {spark.name} engine has no SQL", next_step="run this verb on the Spark engine")
    if isinstance(spark, AutoEngine):
        spark.started = True
        return session_of(spark.spark)
    return spark.session if isinstance(spark, SparkEngine) else cast("SparkSession", spark)
