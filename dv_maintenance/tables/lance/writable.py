"""Which operations may change a Lance table."""

from __future__ import annotations

from typing import Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.lance.features import check_cleanable, check_writer_flags
from dv_maintenance.tables.lance.snapshot import LanceSnapshot

_NEW_ROWS: Final = "this tool does not write new rows to Lance tables"
_INSTEAD: Final = {"update": "dataset.update()", "merge": "dataset.merge_insert()"}


def check_writable(snapshot: LanceSnapshot, operation: str) -> None:
    """See ``Table.check_writable``.

    Raises
    ------
    UnsupportedFeatureError : unknown flags, or features whose files cannot be determined.
    RefusedError : an update or a merge.
    """
    if operation == "vacuum":
        check_cleanable(snapshot.manifest, snapshot.table)
        return
    check_writer_flags(snapshot.manifest, snapshot.table)
    if operation in _INSTEAD:
        raise refused(snapshot, operation)


def refused(snapshot: LanceSnapshot, operation: str) -> RefusedError:
    """The error of a refused operation, with the call of Lance to use instead."""
    return RefusedError(
        f"no {operation} of this table: {_NEW_ROWS}",
        at=snapshot,
        next_step=f"use Lance itself: {_INSTEAD[operation]}",
    )
