"""Whether a table is still the one that was read, or another was created at its place meanwhile.

A job that rebuilds a table (drop, create, insert) often ends at the same version number. What was decided for the
old table must not reach the new one: its commits would name files that are not there, and its checkpoints would hide
the new rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import ConflictError
from dv_maintenance.tables.delta.load import load_snapshot
from dv_maintenance.tables.delta.log.ratified import RatifiedStorage
from dv_maintenance.tables.delta.log.segment import commit_path

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_SECOND: Final = 1000  # some stores list milliseconds, but say only seconds of a single object


def check_same_table(storage: Storage, known: DeltaSnapshot) -> None:
    """To be called right before a file is written to the log or deleted from it.

    A commit file never changes, so one look at that of the version tells nearly always. Where it was cleaned up, or
    copied back from a backup, the ids of the tables decide. Of a table in a catalog, the catalog tells.

    Raises
    ------
    ConflictError : it is another table. The errors of reading a table pass through.
    """
    if isinstance(storage, RatifiedStorage):
        return
    read, found = known.segment, storage.info(commit_path(known.version))
    seconds = read.modified // _SECOND * _SECOND
    if found is not None and found.size == read.size and found.modified in (read.modified, seconds):
        return
    if load_snapshot(storage).metadata.id != known.metadata.id:
        raise ConflictError(
            f"the table was dropped and another one was created here after version {known.version} was read",
            table=storage.uri,
            version=known.version,
            done="nothing was committed",
            next_step="run again: it begins with the table that is there now",
        )
