"""The verb that rewrites what a request says."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dv_maintenance.maintenance.execution.report import nothing_to_purge
from dv_maintenance.maintenance.rewriting import PURGE, RewriteRequest
from dv_maintenance.service.reports.work import of_nothing

if TYPE_CHECKING:
    from dv_maintenance.service.engines import EngineOf, OnProgress
    from dv_maintenance.service.inspection import ReadsNow
    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.tables.table import Table

__all__ = ["PURGE", "RewriteRequest", "rewrite"]

_log = logging.getLogger(__name__)


def rewrite(
    table: Table,
    engine: EngineOf,
    request: RewriteRequest,
    *,
    reads: ReadsNow | None = None,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Plan what the request says, and run the plan.

    reads : finds the reads of the table, for plans by a policy; ``None``: only the policy knows them.
    on_progress : ``None``: progress goes to the log.

    Raises
    ------
    UsageError : a partition or a column is not known to the table, or a chosen partition has no live file.

    The errors of ``maintenance.rewriting.requested`` and ``maintenance.execution.apply`` pass through.
    """
    snapshot = None
    if request == PURGE:
        snapshot = table.snapshot()
        table.check_writable(snapshot, "rewrite")
        nothing = nothing_to_purge(snapshot)
        if nothing is not None:
            _log.info("%s: no file of version %d has a deletion vector", snapshot.table, snapshot.version)
            return of_nothing(nothing)
    from dv_maintenance.service.verbs.rewrites import rewrite_planned

    return rewrite_planned(table, engine, request, reads, on_progress, snapshot)
