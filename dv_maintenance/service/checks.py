"""The checks of a watched table: which ones it has, and what they found.

Those that need only the log are evaluated by every look at a changed table and by every run that maintained it, so
that their results are never older than the last of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from dv_maintenance.maintenance.checks import (
    CHECKS,
    ERASE_WITHIN,
    READABLE,
    Finding,
    Known,
    check_snapshot,
    check_table,
)
from dv_maintenance.service.tables_file import WatchedTable
from dv_maintenance.tables import open_table
from dv_maintenance.tables.registry import known_format

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.service.inspection import Seen
    from dv_maintenance.tables.model import OldestDv, Snapshot
    from dv_maintenance.tables.table import Table

__all__ = ["CHECKS", "READABLE", "Finding", "Looks", "check", "check_names", "check_opened"]


def check_names(watched: WatchedTable) -> list[str]:
    """The checks of a table, in the order of ``CHECKS``: the one for manifests only if the table has that job, the one
    for deletion files unless its format is known to have checksums, the one for deadlines only if the policy has one.
    """
    without = {"manifest_lag"} if "manifest" not in watched.jobs else set()
    known = known_format(watched.format)
    without |= {"deletion_files"} if known is not None and known.dv_checksums else set()
    without |= {ERASE_WITHIN} if watched.policy.erase_within is None else set()
    return [name for name in CHECKS if name not in without]


def check(watched: WatchedTable, names: Iterable[str]) -> list[Finding]:
    """The findings of these checks by the limits of the table's policy; the log is read once. If the table can't be
    read, see ``maintenance.checks.check_table``.
    """
    return check_table(
        lambda: open_table(watched.path, watched.format, watched.storage_options), watched.policy, checks=names
    )


def check_opened(watched: WatchedTable, table: Table, *, search: bool) -> list[Finding]:
    """The findings of the checks that need only the log, at the newest version. ``search``: for expired files, too.
    Raises the errors of reading the table.
    """
    snapshot = table.snapshot()
    known = None if search else Known(lambda: table.oldest_dv(snapshot))
    return check_snapshot(table, snapshot, watched.policy, checks=check_names(watched), known=known)


class Looks:
    """Checks of one table at each look, with what the last one found out. Not for several threads at a time.

    The age of the oldest deletion vector (DV) is the only answer that needs older commits. A look asks for it again
    only if a file lost its DV since the last one: other DVs are younger.
    """

    def __init__(self) -> None:
        self._files: pa.ChunkedArray | None = None
        self._oldest: OldestDv | None = None

    def findings(self, watched: WatchedTable, table: Table, seen: Seen, now: int) -> list[Finding]:
        """The findings of the checks that need only the log, for the version of ``seen``, which must have one."""
        snapshot = seen.snapshot
        assert snapshot is not None
        known = Known(lambda: self._oldest_dv(table, snapshot), seen.expired)
        return check_snapshot(table, snapshot, watched.policy, checks=check_names(watched), now=now, known=known)

    def _oldest_dv(self, table: Table, snapshot: Snapshot) -> OldestDv | None:
        files = snapshot.files["path"].filter(pc.is_valid(snapshot.files["dv_id"]))
        last = self._files
        if not last or not pc.all(pc.is_in(last, value_set=files.combine_chunks())).as_py():
            self._oldest = table.oldest_dv(snapshot)
        self._files = files
        return self._oldest
