"""Verbs that only read the log: the health of a table, what a policy would do, its history. None starts an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.maintenance.health import health as measure
from dv_maintenance.service.outcome import Outcome, TableReport
from dv_maintenance.service.reports.health import columns_of, of_health, of_state
from dv_maintenance.tables import open_table

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.service.tables_file import WatchedTable
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.table import Table

__all__ = ["health", "history", "opened", "plan", "report_table"]


def opened(watched: WatchedTable) -> Table:
    """Raises what ``open_table`` raises."""
    return open_table(watched.path, watched.format, watched.storage_options)


def report_table(
    watched: WatchedTable,
    table: Table,
    snapshot: Snapshot,
    last_observed: Callable[[], tuple[int, int] | None] = lambda: None,
) -> TableReport:
    """The table's health. ``last_observed``: version and data version of the newest observation."""
    from dv_maintenance.service.data_version import last_data_version

    data_version = last_data_version(table, last_observed()) if watched.observe else None
    return TableReport(snapshot.version, data_version, of_health(measure(snapshot)), columns_of(snapshot))


def health(table: Table, version: int | None = None) -> Outcome:
    """Files, deletion vectors and rows, in total and by partition. ``version``: ``None``: the newest one."""
    return of_state(measure(table.snapshot(version)))


def plan(table: Table, policy: Policy) -> Outcome:
    """What a policy would do, and why. Raises what ``apply`` would raise before its first rewrite."""
    from dv_maintenance.maintenance.meter.of_table import decide_for
    from dv_maintenance.service.reports.work import of_plan

    snapshot = table.snapshot()
    # A plan that apply would refuse is not worth saving.
    table.check_writable(snapshot, "rewrite")
    made = decide_for(table, snapshot, policy)
    return replace(of_plan(made), report=made.to_json())


def history(table: Table, limit: int | None = None) -> Outcome:
    """Commits, newest first, with what they did to deletion vectors. ``limit``: ``None``: all of them."""
    from dv_maintenance.service.reports.versions import of_history

    return of_history(table.history(limit))
