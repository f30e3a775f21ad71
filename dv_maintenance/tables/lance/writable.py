"""Whether a Lance table may be changed, and by what."""

from __future__ import annotations

from typing import Final

from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.lance.features import check_cleanable, check_writer_flags
from dv_maintenance.tables.lance.snapshot import LanceSnapshot

__all__ = ["check_writable", "refused"]

_NEW_ROWS: Final = "new rows of Lance tables are not written by this tool"
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
    UnsupportedFeatureError : flags that are not known, or of what nobody here can tell which files it needs.
    RefusedError : an update or a merge; to change fragments where some share data files.
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
    """Why, and what else does it."""
    why, instead = _INSTEAD[operation]
    return RefusedError(
        f"no {operation} here: {why}",
        table=snapshot.table,
        version=snapshot.version,
        next_step=f"use Lance itself: {instead}",
    )
