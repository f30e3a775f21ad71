"""Look up the files that a plan wants to merge among the live ones, in the same way for every format."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dv_maintenance.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from dv_maintenance.tables.model import FileKey, Snapshot
    from dv_maintenance.tables.work import RewriteBin

T = TypeVar("T")


def taken(live: MutableMapping[FileKey, tuple[str, T]], wanted: RewriteBin, snapshot: Snapshot) -> list[T]:
    """Remove the bin's files from ``live`` and return their values, so that no file is rewritten twice.

    ``live`` maps each live file to its partition and value.

    Raises
    ------
    UsageError : a file is not live, or its partition is not the bin's.
    """
    found = []
    for key in wanted.inputs:
        partition, file = live.pop(key, (None, None))
        if file is None or partition != wanted.partition:
            problem = "is not live or is in two bins" if file is None else f"is in the partition {partition!r}"
            with_dv = f" with the deletion vector {key.dv_id}" if key.dv_id else ""
            raise UsageError(
                f"the file {key.path}{with_dv}, in bin {wanted.id} of the partition {wanted.partition!r}, {problem}",
                at=snapshot,
                next_step="plan again on this version",
            )
        found.append(file)
    return found
