"""Row changes: what a DELETE, UPDATE or MERGE requests from a table, and what it commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from dv_maintenance.tables.table import SkippingTable

if TYPE_CHECKING:
    from dv_maintenance.dv import DeletionVector
    from dv_maintenance.storage import Storage
    from dv_maintenance.storage.rehearsal import Rehearsal
    from dv_maintenance.tables.model import FileKey, Snapshot
    from dv_maintenance.tables.work import OutputFile


def row_id_name(schema: pa.Schema) -> str:
    """The name of the column that carries row ids in scan tasks and in written files.

    A row keeps its id when it is changed; a new row has a null there. The name differs from every column of
    ``schema``, the table's schema.
    """
    return unused("_dvm_row_id", schema.names)


def unused(name: str, taken: Iterable[str]) -> str:
    """``name``, prefixed with underscores until it differs from all of ``taken``, ignoring case."""
    known = {each.lower() for each in taken}
    while name.lower() in known:
        name = f"_{name}"
    return name


def rehearsed(storage: Storage, changes: RowChanges) -> Rehearsal:
    """Storage for a dry run of a commit of these changes, whose new files were rehearsed, too."""
    from dv_maintenance.storage.rehearsal import Rehearsal

    found = Rehearsal.of(storage)
    for each in (*changes.added, *changes.change_files):
        found.assume(each.output.uri, each.output.size)
    return found


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Rows to delete from one live file.

    positions : physical positions; ``None``: every row that is still live.
    rows : physical rows of the file, ``None`` if it was not opened.
    """

    key: FileKey
    positions: DeletionVector | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file of new rows (or of change data), all of one partition, see ``partition_name`` and ``Partitioner``."""

    output: OutputFile
    partition: str


@dataclass(frozen=True, slots=True)
class RowChanges:
    """What a DELETE, UPDATE or MERGE does to a table: rows to delete, files with new rows, and files of change data
    for a change data feed.
    """

    deleted: tuple[DeletedRows, ...] = ()
    added: tuple[AddedFile, ...] = ()
    change_files: tuple[AddedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangesOutcome:
    """The outcome of a commit of row changes.

    version : the committed version, ``None`` if nothing was committed: either nothing was left to do, or ``conflict``
        says why.
    conflict : why the operation has to run again on a newer snapshot.
    rows_deleted : rows that this commit deleted, without those that concurrent writers deleted; ``None`` if it removed
        a whole file of unknown row count.
    """

    version: int | None
    attempts: int
    conflict: str = ""
    rows_deleted: int | None = 0
    files_removed: int = 0
    files_added: int = 0
    dvs_added: int = 0
    dvs_removed: int = 0


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Bounds of one column, with one value per file of a snapshot, in the snapshot's order.

    minimum : no live value is below it; null: unknown.
    maximum : no live value is above it; null: unknown.
    nulls : number of null values; null: unknown. In a file with deleted rows only two values are reliable: 0 and the
        number of physical rows.
    """

    minimum: pa.ChunkedArray
    maximum: pa.ChunkedArray
    nulls: pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class RowRules:
    """The rules that new rows of a table must satisfy.

    checks : SQL conditions by name; none may be false.
    not_null : columns that hold no nulls, dotted where nested.
    generated : SQL expressions by column.
    identity : columns whose values the table assigns.
    defaults : SQL expressions by column, for inserts that omit the column.
    fixed : columns that can't be assigned, each with the reason.
    empty_is_null : partition columns in which an empty text, and Hive's name for null, are stored as null.
    change_data : whether changes have to be recorded in separate files.
    row_ids : whether a changed row has to keep its id, see ``row_id_name``.
    spark_rules : whether Spark's own DELETE, UPDATE and MERGE change such tables, not delta-spark's, which casts more
        values to their columns, counts other matches, and refuses other expressions.
    """

    checks: Mapping[str, str] = field(default_factory=dict)
    not_null: tuple[str, ...] = ()
    generated: Mapping[str, str] = field(default_factory=dict)
    identity: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    empty_is_null: tuple[str, ...] = ()
    change_data: bool = False
    row_ids: bool = False
    spark_rules: bool = False


class Partitioner(Protocol):
    """Finds the partitions of new rows, where they are not simply the values of columns. It is sent to workers."""

    def names(self, batch: pa.RecordBatch) -> list[str]:
        """The partition of each row, given the columns that the files store."""

    def folder(self, name: str) -> str:
        """The folder of a partition, below that of all new files."""


@dataclass(frozen=True, slots=True)
class RowWriteTask:
    """How to write new rows to files. See ``RewriteTask`` for the fields not listed here.

    columns : the logical columns, and the row ids if the table has them.
    schema : the same columns with the names and types that the files store.
    output_uri : the folder that new files go below.
    hive_folders : whether each partition has a folder of its name.
    partitions : ``None`` if partitions are the values of columns.
    """

    columns: tuple[str, ...]
    schema: pa.Schema
    output_uri: str
    hive_folders: bool
    target_bytes: int
    compression: str
    stats_columns: tuple[tuple[str, ...], ...] = ()
    partitions: Partitioner | None = None
    format: str = "parquet"


class DeletesOnly:
    """Answers of a table whose rows this package deletes, but does not write."""

    __slots__ = ()

    def column_bounds(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
        del snapshot, columns
        return {}

    def local_times(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        del snapshot, columns
        return {}

    def row_rules(self, snapshot: Snapshot) -> RowRules:
        del snapshot
        return RowRules(spark_rules=True)


@runtime_checkable
class RowLevelTable(SkippingTable, Protocol):
    """A table whose rows can be deleted, updated and merged in place, with deletion vectors."""

    def column_bounds(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
        """Bounds by column, for those of ``columns`` (logical names, not nested) with any known bound."""

    def row_rules(self, snapshot: Snapshot) -> RowRules:
        """The rules that an UPDATE or MERGE must enforce."""

    def row_write_tasks(self, snapshot: Snapshot, target_bytes: int) -> tuple[RowWriteTask, RowWriteTask]:
        """How to write new rows, and how to write change data: the same columns, then ``_change_type``."""

    def commit_changes(
        self,
        base: Snapshot,
        changes: RowChanges,
        *,
        operation: Mapping[str, Any],
        reads: Callable[[Snapshot], bool],
        max_attempts: int = 10,
        dry_run: bool = False,
    ) -> ChangesOutcome:
        """Commit row changes, unless concurrent commits make the outcome wrong.

        operation : name (DELETE, UPDATE or MERGE), parameters and metrics for the history.
        reads : receives a snapshot that holds only the files that other writers added concurrently; returns whether
            the operation would have had to read any of them.
        dry_run : do everything but commit: the outcome, and every error, are those of a commit. New files need not
            exist.

        Raises ConflictError when the race is lost ``max_attempts`` times.
        """
