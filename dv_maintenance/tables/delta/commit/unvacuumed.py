"""Protect the new files of a commit from vacuums that began while the files were written.

A vacuum keeps young files, unless its retention is near zero, so it keeps files that are not committed yet. A vacuum
that began before the commit's base deletes only files that existed before its ``VACUUM START``, and the new files are
younger. So a check is needed only after a START since the base. It asks whether the new files exist and, while that
vacuum is running, whether they are younger than its cutoff.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dv_maintenance.errors import ConflictError
from dv_maintenance.tables.delta.commit.live_file import LiveFile
from dv_maintenance.tables.delta.commit.presence import Presence, listed, presence_of
from dv_maintenance.tables.delta.vacuum.running import running_vacuums

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.commit.conflicts import Since
    from dv_maintenance.tables.delta.log.actions import Action


def check_unvacuumed(storage: Storage, since: Since, actions: Sequence[Action]) -> None:
    """Check that the files of a commit survive the vacuums that began since its base.

    Raises
    ------
    ConflictError : new files were deleted, or may be deleted at any moment.
    StorageError : the files could not be checked.
    """
    adds: list[dict[str, Any]] = [action["add"] for action in actions if "add" in action]
    removed = {action["remove"]["path"] for action in actions if "remove" in action}
    # A file that only gets another deletion vector is live: no vacuum deletes it.
    data = presence_of(storage, [LiveFile.from_add(add) for add in adds if add["path"] not in removed])
    dvs = presence_of(storage, [LiveFile.from_add(add) for add in adds], data=False)
    checks = (data, dvs)
    if gone := [path for found in checks for path in found.unusable]:
        raise _conflict(storage, since, f"a vacuum deleted new files before they were committed: {listed(gone)}")
    oldest = min(_times(checks), default=None)
    for mark in running_vacuums(since.vacuums):
        if oldest is not None and oldest < mark.cutoff:
            raise _conflict(
                storage,
                since,
                f"the vacuum that began with version {mark.version} has so short a retention that it may delete the "
                "new files before they are committed",
            )


def _times(checks: Sequence[Presence]) -> list[int]:
    return [found.oldest for found in checks if found.oldest is not None]


def _conflict(storage: Storage, since: Since, what: str) -> ConflictError:
    return ConflictError(
        what,
        table=storage.uri,
        version=since.version,
        done="new files were written, nothing was committed",
        next_step="run again after that vacuum ends; give vacuums a retention longer than any job takes",
    )
