"""The verb that purges every deletion vector."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from dv_maintenance.maintenance.execution.report import nothing_to_purge
from dv_maintenance.service.reports.work import of_nothing

if TYPE_CHECKING:
    from dv_maintenance.service.engines import EngineOf, OnProgress
    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.tables.table import Table

__all__ = ["purge"]

_log = logging.getLogger(__name__)


def purge(
    table: Table,
    engine: EngineOf,
    partitions: Iterable[Mapping[str, str | None] | str] = (),
    *,
    missing_ok: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> Outcome:
    """Purge every deletion vector, even a single one.

    partitions : only there, as in ``Policy.partitions``.
    missing_ok : accept partitions that no live file has.
    dry_run : only make the plan.

    Raises
    ------
    UsageError : a value does not have the type of its partition column, or a partition has no live file.

    The errors of :func:`apply` pass through.
    """
    chosen, snapshot = list(partitions), None
    if not (chosen or dry_run):
        snapshot = table.snapshot()
        table.check_writable(snapshot, "rewrite")
        nothing = nothing_to_purge(snapshot)
        if nothing is not None:
            _log.info("%s: no file of version %d has a deletion vector", snapshot.table, snapshot.version)
            return of_nothing(nothing)
    from dv_maintenance.service.verbs.rewrites import purge_planned

    return purge_planned(
        table, engine, chosen, missing_ok=missing_ok, dry_run=dry_run, on_progress=on_progress, snapshot=snapshot
    )
