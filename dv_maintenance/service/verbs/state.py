"""Verbs that only read: the health of a table, whether its files exist and are intact, what a policy would do, its
history. None starts an engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.errors import StorageError
from dv_maintenance.maintenance.health import health as measure
from dv_maintenance.service.outcome import Outcome, TableReport
from dv_maintenance.service.reports.fsck import QuickCheck, with_quick_check
from dv_maintenance.service.reports.health import columns_of, of_health, of_state, with_deadlines
from dv_maintenance.tables.registry import title_of
from dv_maintenance.units import epoch_millis

if TYPE_CHECKING:
    from dv_maintenance.maintenance.deadlines import ToErase
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.service.tables_file import TableSettings
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table


def opened(watched: TableSettings) -> Table:
    """Raises what ``open_table`` raises."""
    return watched.open()


def report_table(
    watched: TableSettings,
    table: Table,
    snapshot: Snapshot,
    last_observed: Callable[[], tuple[int, int] | None] = lambda: None,
) -> TableReport:
    """The table's health. ``last_observed``: version and data version of the newest observation."""
    from dv_maintenance.service.data_version import last_data_version

    data_version = last_data_version(table, last_observed()) if watched.observe else None
    state = with_deadlines(of_health(measure(snapshot)), _to_erase(table, snapshot, watched.policy))
    return TableReport(snapshot.version, data_version, state, columns_of(snapshot))


def health(table: Table, version: int | None = None, policy: Policy | None = None) -> Outcome:
    """Files, deletion vectors and rows, in total and by partition, and the deadlines of the policy, if it has any.

    version : ``None``: the newest one. Only that version has deadlines, and only its files are checked.
    """
    snapshot = table.snapshot(version)
    state = of_state(measure(snapshot))
    if version is None:
        state = with_quick_check(state, snapshot.files.num_rows, _quick_check(table, snapshot))
    found = None if policy is None or version is not None else _to_erase(table, snapshot, policy)
    if found is None:
        return state
    return replace(with_deadlines(state, found), report={**state.report, "erasure": found.to_json()})


def quick_check(table: Table) -> Outcome:
    """Whether the newest version can be read: its log, and whether its files exist, unless there are very many. Raises
    the errors of reading the log.
    """
    snapshot = table.snapshot()
    reason = f"{title_of(table.format)} table at version {snapshot.version}"
    return with_quick_check(Outcome(reason), snapshot.files.num_rows, _quick_check(table, snapshot))


def _quick_check(table: Table, snapshot: Snapshot) -> QuickCheck:
    from dv_maintenance.maintenance.fsck import FEW, damage_of

    try:
        return QuickCheck(damage_of(table, snapshot, most=FEW))
    except StorageError as error:
        # The right to read the log is enough for all else.
        return QuickCheck(None, str(error))


def fsck(
    table: Table,
    version: int | None = None,
    *,
    deep: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Whether every file that readers need exists and, with ``deep``, is intact. The outcome's ``damage`` lists the
    faults.
    Raises the errors of ``maintenance.fsck``.
    """
    from dv_maintenance.maintenance.fsck import fsck as check
    from dv_maintenance.service.reports.fsck import of_fsck

    report = check(table, version, deep=deep, on_progress=on_progress)
    return of_fsck(report, old=bool(report.damage) and version is not None and version != table.version())


def plan(table: Table, policy: Policy) -> Outcome:
    """What a policy would do, and why. Raises what ``apply`` would raise before its first rewrite."""
    from dv_maintenance.maintenance.planning.previews import previewed
    from dv_maintenance.maintenance.rewriting import RewriteRequest, requested
    from dv_maintenance.service.reports.work import KEPT_LISTED, of_plan
    from dv_maintenance.service.verbs.rewrites import warn_missing

    snapshot = table.snapshot()
    warn_missing(snapshot, policy)
    made = previewed(table, snapshot, requested(table, snapshot, RewriteRequest(policy), listed=KEPT_LISTED))
    return with_deadlines(replace(of_plan(made), report=made.to_json()), _to_erase(table, snapshot, policy))


def _to_erase(table: Table, snapshot: Snapshot, policy: Policy) -> ToErase | None:
    if policy.erase_within is None:
        return None
    from dv_maintenance.maintenance.deadlines import to_erase

    return to_erase(table, snapshot, policy, now=epoch_millis())


def history(table: Table, limit: int | None = None) -> Outcome:
    """Commits, newest first, with what they did to deletion vectors. ``limit``: ``None``: all of them."""
    from dv_maintenance.service.reports.versions import of_history

    return of_history(table.history(limit))
