"""Vacuum a table of any format, and report which files were deleted and which were kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.errors import DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.storage import absolute_uri
from dv_maintenance.tables import open_table
from dv_maintenance.tables.capabilities import ProtectingTable
from dv_maintenance.tables.find import find_tables
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tables.registry import title_of
from dv_maintenance.tracing import span
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.tables.reports import VacuumReport
    from dv_maintenance.tables.table import Table

_log = logging.getLogger(__name__)


def vacuum(table: Table, request: VacuumRequest = VACUUM_DEFAULTS) -> VacuumReport:
    """Delete files that no version inside the retention needs.

    Raises
    ------
    UsageError : clones are given for a format without clones.
    RefusedError : the request's guard forbids it, or the retention is below the table's own.
    StorageError : files could not be deleted.
    UnsupportedFeatureError : the table may not be vacuumed.

    Other errors of ``Table.vacuum`` pass through.
    """
    table = _protecting(table, request)
    _log.info("%s: looking for unneeded files%s", table.uri, ", a dry run" if request.dry_run else "")
    with span("vacuum", table=table.uri, dry_run=request.dry_run) as traced:
        result = table.vacuum(request)
        files = result.expired.files
        traced.set(version=result.version_after, files=len(files), bytes=sum(max(each.size, 0) for each in files))
    _log.info("%s: %s expired, %d deleted", table.uri, count(len(files), "file"), result.deleted)
    return result.of(table)


def foreseen(table: Table, request: VacuumRequest, now: int) -> VacuumReport:
    """What a vacuum would find at ``now`` (epoch milliseconds), from the log alone; nothing is listed or deleted.

    Raises the errors of :func:`vacuum`.
    """
    return _protecting(table, request).vacuum(replace(request, dry_run=True, lite=True, now=now))


def _protecting(table: Table, request: VacuumRequest) -> Table:
    """The table, with protection of the files that the request's clones and those found need.

    Raises
    ------
    UsageError : ``clones`` are given for a format without clones.
    RefusedError : a table below ``clones_under`` can't be read; it may be a clone.
    """
    if not request.clones and not request.clones_under:
        return table
    if not isinstance(table, ProtectingTable):
        raise UsageError(
            f"{title_of(table.format)} tables have no clones to protect",
            table=table.uri,
            next_step=Remedy("leave out {}; a longer retention keeps files for other readers", (setting("clones"),)),
        )
    known = {absolute_uri(place) for place in request.clones}
    found = [place for place in _found(table, request.clones_under) if absolute_uri(place) not in known]
    return table.protecting([*request.clones, *found])


def _found(table: Table, folders: Sequence[str]) -> Iterator[str]:
    """Places of the clones below these folders, each once."""
    seen = {table.uri}
    for folder in folders:
        for each in find_tables(folder, table.storage.options):
            place = absolute_uri(f"{folder.rstrip('/')}/{each.path}" if each.path else folder)
            if each.format != table.format or place in seen:
                continue
            seen.add(place)
            other = open_table(place, each.format, table.storage.options)
            try:
                if isinstance(other, ProtectingTable) and other.is_clone():
                    yield place
            except DvMaintenanceError as error:
                raise RefusedError(
                    f"{place}, which may be a clone of it, can't be read: {error.message}",
                    table=table.uri,
                    next_step=Remedy(
                        "repair that table, or name a folder without it as {}", (setting("clones_under"),)
                    ),
                ) from error
