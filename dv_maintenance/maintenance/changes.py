"""The rows that each version of a range changed, for tables of any format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.tables.capabilities import CHANGE_COLUMNS, ChangeFeedTable
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.tables.capabilities import ChangeFeed, ChangeTask
    from dv_maintenance.tables.table import Table

_TYPE, _VERSION, _TIMESTAMP = CHANGE_COLUMNS


def read_changes(table: Table, first: int, last: int | None = None) -> tuple[ChangeFeed, Iterator[pa.RecordBatch]]:
    """The change feed of the versions ``first`` to ``last``, both included, and its rows.

    ``last`` is the newest version by default. The rows appear as batches of ``feed.schema``, version by version: the
    table's columns, then ``_change_type``, ``_commit_version`` and ``_commit_timestamp``. Files are opened one by one
    while the batches are consumed.

    Raises
    ------
    RefusedError : the format has no change feed, or it does not cover these versions.
    UsageError : the versions do not exist, or the log no longer has them.
    DamagedTableError : while reading: a file of these versions is damaged or missing, for example after a vacuum.
    """
    if not isinstance(table, ChangeFeedTable):
        raise RefusedError(
            f"the change feed of {title_of(table.format)} tables is not supported",
            table=table.uri,
            next_step="use the engine of the table",
        )
    feed = table.change_feed(first, last)
    return feed, _batches(table, feed)


def _batches(table: Table, feed: ChangeFeed) -> Iterator[pa.RecordBatch]:
    from dv_maintenance.engine.scan import scan

    version = feed.first
    try:
        for task in feed.tasks:
            version = task.version
            for batch in scan(task.scan, table.storage.options):
                yield pa.RecordBatch.from_arrays([*batch.columns, *_change_columns(task, batch)], schema=feed.schema)
    except DamagedTableError as error:
        error.table, error.version = table.uri, version
        if isinstance(error.__cause__, FileNotFoundError):
            error.next_step = (
                "if a vacuum deleted files of old versions, start at a later version; otherwise restore the file"
            )
        raise


def _change_columns(task: ChangeTask, batch: pa.RecordBatch) -> list[pa.Array]:
    """The columns of CHANGE_COLUMNS that ``batch`` lacks."""
    rows = batch.num_rows
    types = [] if task.change_type is None else [pa.repeat(pa.scalar(task.change_type, _TYPE.type), rows)]
    return [
        *types,
        pa.repeat(pa.scalar(task.version, _VERSION.type), rows),
        pa.repeat(pa.scalar(task.timestamp * 1000, pa.int64()).cast(_TIMESTAMP.type), rows),
    ]
