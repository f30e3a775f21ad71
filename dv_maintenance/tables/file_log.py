"""How each commit of a table changed its live files. From this log the meter derives what readers paid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from dv_maintenance.tables.table import Table

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot

# One row per logical file that a commit added or removed. Commits come in order, and the removed files of each come
# first. A new deletion vector (DV) on a file makes two rows: the file without it, or with the earlier one, is removed;
# the file with the new one is added.
#
# Live files are keyed by path and DV. Start from the live files of a version. For each later commit, drop its removed
# keys, then set its added ones. The result is the live files of that commit's version. A key that a commit both removes
# and adds is the same file with new facts, such as an added column or statistics. A DV that moves together with the
# other DVs of its index file (Paimon) gets another id and keeps its rows.
FILE_CHANGES = pa.schema(
    [
        # Position of the commit in `FileLog.commits`.
        pa.field("commit", pa.int64(), nullable=False),
        pa.field("added", pa.bool_(), nullable=False),
        # As `Snapshot.files` of the commit's version spells it, like all columns below. A commit that renames a
        # partition column renames the partitions of all files, without rows here.
        pa.field("path", pa.string(), nullable=False),
        pa.field("dv_id", pa.string()),
        # From here on: null in rows of removed files if the log does not repeat the value. An added file's
        # `physical_rows` may be null in a later snapshot: a checkpoint may leave out statistics.
        pa.field("partition", pa.dictionary(pa.int32(), pa.string())),
        pa.field("size", pa.int64()),
        pa.field("physical_rows", pa.int64()),
        pa.field("deleted_rows", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class FileCommit:
    """One commit.

    timestamp : epoch milliseconds, as in ``HistoryEntry``. A writer's clock may go back: the order is by version.
    operation : as in ``HistoryEntry``.
    data_changed : ``False`` for compactions and other commits that change no query result.
    ours : whether this package wrote it, in any release; ``None`` if the commit does not say: Lance's library commits
        rewrites and indices for this package as it does for others.
    """

    version: int
    timestamp: int
    operation: str
    data_changed: bool
    ours: bool | None


@dataclass(frozen=True, slots=True)
class FileLog:
    """The commits from a point in time up to a snapshot, oldest first, without a gap.

    changes : see FILE_CHANGES.
    base : the version before the first commit, the snapshot's own if there is no commit; ``None`` if the first commit
        created the table, or if the log of that version no longer exists.
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
        """The commits after the newest one before ``since`` (epoch milliseconds), up to the snapshot's version.

        Reads nothing older, except for a few more commits if only the commits themselves record their times. Commits
        that were cleaned up are left out, see ``FileLog.complete``.

        Raises
        ------
        DamagedTableError : a commit can't be read; ``version`` is its version.
        StorageError : the log can't be read.
        """
