"""Rows out and in: what a DELETE, UPDATE or MERGE asks of a table, and what it commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from dv_maintenance.tables.table import SkippingTable

if TYPE_CHECKING:
    from dv_maintenance.dv import DeletionVector
    from dv_maintenance.tables.model import FileKey, Snapshot
    from dv_maintenance.tables.work import OutputFile

__all__ = [
    "AddedFile",
    "ChangesOutcome",
    "ColumnBounds",
    "DeletedRows",
    "RowChanges",
    "RowLevelTable",
    "RowRules",
    "RowWriteTask",
    "row_id_name",
    "unused",
]


def row_id_name(schema: pa.Schema) -> str:
    """What the column of the ids is called that stay with rows when they are changed, in tasks that ask for it beside
    those of ``schema``, the table's, and in what is written, where a row that is new has none. No column is called so.
    """
    return unused("_dvm_row_id", schema.names)


def unused(name: str, taken: Iterable[str]) -> str:
    """``name`` with as many underscores in front as it takes to be none of those ``taken``, whatever their case."""
    known = {each.lower() for each in taken}
    while name.lower() in known:
        name = f"_{name}"
    return name


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Rows to delete from one live file, by physical position; ``positions=None``: every row that is left. ``rows``:
    physical rows of the file, ``None`` if it was not opened.
    """

    key: FileKey
    positions: DeletionVector | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file of new rows (or of change data), all of one partition, see ``partition_name``."""

    output: OutputFile
    partition: str


@dataclass(frozen=True, slots=True)
class RowChanges:
    """What a DELETE, UPDATE or MERGE does to a table: rows out, files with new rows in, and files that tell a change
    data feed what happened.
    """

    deleted: tuple[DeletedRows, ...] = ()
    added: tuple[AddedFile, ...] = ()
    change_files: tuple[AddedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangesOutcome:
    """``version`` is ``None`` if nothing was committed: there was nothing to do, or a ``conflict``, the reason why the
    operation has to be run again on a newer snapshot. ``rows_deleted`` by us, not by others meanwhile; ``None`` where a
    file went whole whose rows nobody counted.
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
    """What is known of one column in each file of a snapshot, in its order: no live value is below ``minimum`` or above
    ``maximum`` (null: not known), ``nulls`` counts null values (null: not known; with deleted rows only 0 and the
    number of physical rows mean anything).
    """

    minimum: pa.ChunkedArray
    maximum: pa.ChunkedArray
    nulls: pa.ChunkedArray


@dataclass(frozen=True, slots=True)
class RowRules:
    """What new rows of a table must be like. ``checks``: SQL conditions by name that may not be false; ``not_null``:
    columns, dotted where nested; ``generated``: SQL expressions by column; ``identity``: columns whose values the table
    hands out; ``defaults``: SQL expressions by column, for inserts that leave it out; ``fixed``: columns that nothing
    may be assigned to, with the reason; ``change_data``: whether changes have to be recorded in files of their own;
    ``row_ids``: whether a changed row has to keep its id, see ``row_id_name``.
    """

    checks: Mapping[str, str] = field(default_factory=dict)
    not_null: tuple[str, ...] = ()
    generated: Mapping[str, str] = field(default_factory=dict)
    identity: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    change_data: bool = False
    row_ids: bool = False


@dataclass(frozen=True, slots=True)
class RowWriteTask:
    """How new rows become files: the logical ``columns``, and row ids if any, as fields of ``schema`` (names
    and types as files hold them) below ``output_uri``, each partition in a folder of its name where ``hive_folders``;
    see ``RewriteTask`` for the rest.
    """

    columns: tuple[str, ...]
    schema: pa.Schema
    output_uri: str
    hive_folders: bool
    target_bytes: int
    compression: str
    stats_columns: tuple[tuple[str, ...], ...] = ()


@runtime_checkable
class RowLevelTable(SkippingTable, Protocol):
    """A table whose rows can be deleted, updated and merged in place, by deletion vectors."""

    def column_bounds(self, snapshot: Snapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
        """Bounds of those of the columns (logical names, not nested) that any are known of."""

    def row_rules(self, snapshot: Snapshot) -> RowRules:
        """What an UPDATE or MERGE has to see to."""

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
    ) -> ChangesOutcome:
        """Commit rows out and in, unless others did meanwhile what makes the outcome wrong. ``operation``: name
        (DELETE, UPDATE or MERGE), parameters and metrics for the history. ``reads`` gets the table with only the files
        in it that others added meanwhile: whether the operation would have had to look at any. Raises ConflictError
        when the race is lost ``max_attempts`` times.
        """
