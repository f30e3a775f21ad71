"""What each commit of a table did to its live files: the past from which the meter derives what readers paid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from dv_maintenance.tables.table import Table

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot

__all__ = ["FILE_CHANGES", "FileCommit", "FileLog", "FileLogTable"]

# One row per logical file that a commit added or removed, in the order of the commits. A new deletion vector (DV) on a
# file is two rows: the file without it, or with the earlier one, is removed; the file with the new one is added.
FILE_CHANGES = pa.schema(
    [
        # Position of the commit in `FileLog.commits`.
        pa.field("commit", pa.int64(), nullable=False),
        pa.field("added", pa.bool_(), nullable=False),
        # Path, partition and DV as in `Snapshot.files`.
        pa.field("path", pa.string(), nullable=False),
        pa.field("dv_id", pa.string()),
        # Null in rows of removed files where the log does not repeat them.
        pa.field("partition", pa.dictionary(pa.int32(), pa.string())),
        pa.field("size", pa.int64()),
        pa.field("physical_rows", pa.int64()),
        pa.field("deleted_rows", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class FileCommit:
    """One commit.

    timestamp : epoch milliseconds.
    data_changed : ``False`` for compactions and other commits that leave every answer as it was.
    ours : whether this package wrote it.
    """

    version: int
    timestamp: int
    operation: str
    data_changed: bool
    ours: bool


@dataclass(frozen=True, slots=True)
class FileLog:
    """The commits from some time on up to a snapshot, oldest first.

    changes : see FILE_CHANGES.
    base : the version before the first commit; ``None`` if the first commit created the table, or if the log of that
        version no longer exists.
    complete : whether the log has every commit of that time. If not, older commits were cleaned up.
    """

    commits: tuple[FileCommit, ...]
    changes: pa.Table
    base: int | None
    complete: bool


@runtime_checkable
class FileLogTable(Table, Protocol):
    """A table whose history says which files each commit added and removed."""

    def file_log(self, snapshot: Snapshot, since: int) -> FileLog:
        """The commits at or after ``since`` (epoch milliseconds) up to the snapshot.

        Commits that were cleaned up are left out, see ``FileLog.complete``. Raises DamagedTableError (a commit can't be
        read) and StorageError.
        """
