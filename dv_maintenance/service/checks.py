"""The checks of a watched table: which ones it has, and what they found."""

from __future__ import annotations

from collections.abc import Iterable

from dv_maintenance.maintenance.checks import CHECKS, ERASE_WITHIN, READABLE, Finding, check_table
from dv_maintenance.service.tables_file import WatchedTable
from dv_maintenance.tables import open_table
from dv_maintenance.tables.registry import known_format

__all__ = ["CHECKS", "READABLE", "Finding", "check", "check_names"]


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
