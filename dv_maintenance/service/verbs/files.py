"""Verbs that delete, quarantine, undelete, list or rename files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dv_maintenance.service.reports.files import of_manifest, of_rename, of_undelete, of_vacuum
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest

if TYPE_CHECKING:
    from dv_maintenance.service.engines import EngineOf
    from dv_maintenance.service.outcome import Outcome
    from dv_maintenance.tables.table import Table


def vacuum(table: Table, request: VacuumRequest = VACUUM_DEFAULTS) -> Outcome:
    """Delete files that no version inside the retention needs. Raises the errors of ``maintenance.vacuum``."""
    from dv_maintenance.maintenance.vacuum import vacuum as run

    return of_vacuum(run(table, request))


def undelete(table: Table, *, since: int | None = None, until: int | None = None, dry_run: bool = False) -> Outcome:
    """Undelete what vacuums quarantined, from ``since`` to ``until`` (epoch milliseconds). Raises the errors of
    ``maintenance.undelete``.
    """
    from dv_maintenance.maintenance.undelete import undelete as run

    return of_undelete(run(table, since=since, until=until, dry_run=dry_run))


def manifest(table: Table, engine: EngineOf, *, purge_first: bool = True, dry_run: bool = False) -> Outcome:
    """Write symlink manifests. ``purge_first``: purge deletion vectors if there are any, as manifests can't name them.
    Raises the errors of ``maintenance.manifest``.
    """
    from dv_maintenance.maintenance.manifest import plan_manifests, write_manifests

    if dry_run:
        return of_manifest(plan_manifests(table, purge_first=purge_first))
    return of_manifest(write_manifests(table, engine(), purge_first))


def rename_manifests(table: Table, *, dry_run: bool = False) -> Outcome:
    """Give a Lance table's manifests V2 names. Not safe with concurrent writers. Raises the errors of
    ``maintenance.rename_manifests``.
    """
    from dv_maintenance.maintenance.rename_manifests import rename_manifests as run

    return of_rename(run(table, dry_run=dry_run))
