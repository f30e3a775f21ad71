"""Which operations may change a Lance table."""

from __future__ import annotations

from typing import Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.lance.features import check_cleanable, check_writer_flags
from dv_maintenance.tables.lance.snapshot import LanceSnapshot

_NEW_ROWS: Final = "this tool does not write new rows to Lance tables"
_SHARED: Final = "a data file is part of more than one fragment, so the fragment of a row is ambiguous"
_INSTEAD: Final = {
    "update": (_NEW_ROWS, "dataset.update()"),
    "merge": (_NEW_ROWS, "dataset.merge_insert()"),
    "delete": (_SHARED, "dataset.delete()"),
    "rewrite": (_SHARED, "dataset.optimize.compact_files()"),
}


def check_writable(snapshot: LanceSnapshot, operation: str) -> None:
    """See ``Table.check_writable``.

    Raises
    ------
    UnsupportedFeatureError : unknown flags, or features whose files cannot be determined.
    RefusedError : an update or a merge; a delete or a rewrite if fragments share data files.
    """
    if operation == "vacuum":
        check_cleanable(snapshot.manifest, snapshot.table)
        return
    check_writer_flags(snapshot.manifest, snapshot.table)
    paths = snapshot.files["path"]
    shared = operation in {"delete", "rewrite"} and len(paths.unique()) < len(paths)
    if shared or operation in {"update", "merge"}:
        raise refused(snapshot, operation)


def refused(snapshot: LanceSnapshot, operation: str) -> RefusedError:
    """The error of a refused operation, with the call of Lance to use instead."""
    why, instead = _INSTEAD[operation]
    return RefusedError(
        f"no {operation} of this table: {why}",
        at=snapshot,
        next_step=f"use Lance itself: {instead}",
    )
