"""Vacuum a table of any format, and report which files were deleted and which were kept."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dv_maintenance.errors import DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.maintenance.health import iso_timestamp
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.report import Report
from dv_maintenance.storage import absolute_uri
from dv_maintenance.tables import open_table
from dv_maintenance.tables.capabilities import ProtectingTable
from dv_maintenance.tables.find import find_tables
from dv_maintenance.tables.guard import VACUUM_DEFAULTS, VacuumRequest
from dv_maintenance.tracing import span
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.tables.model import ExpiringFiles, VacuumResult
    from dv_maintenance.tables.table import Table

__all__ = ["VacuumReport", "foreseen", "vacuum"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class VacuumReport(Report):
    """The result of a vacuum.

    cutoff : epoch milliseconds.
    retention : milliseconds.
    data_files ... other_files : number of expired files, by kind.
    version_files : expired manifests of versions, in formats that have one per version.
    bytes : total size of the expired files.
    deleted : how many of them were deleted; 0 in a dry run.
    kept : number of files by reason, in plain words.
    paths : the expired files, relative to the table; only in a dry run.
    refused : in a dry run, why a real run would delete nothing.
    protected : each version, stream and clone that was protected, with the number of files that it names; it is listed
        even if none of them had expired.
    quarantine : the folder to which the files were moved instead of being deleted.
    emptied : files of earlier runs that were deleted from the quarantine.
    expiring : data files inside the retention, by the day on which they can go; ``None`` if the table does not record
        it.
    """

    table: str
    format: str
    version_before: int
    version_after: int
    dry_run: bool
    cutoff: int
    retention: int
    data_files: int
    dv_files: int
    change_files: int
    other_files: int
    bytes: int
    deleted: int
    kept: Mapping[str, int]
    paths: tuple[str, ...] | None = None
    index_files: int = 0
    transaction_files: int = 0
    version_files: int = 0
    refused: str | None = None
    protected: tuple[str, ...] = ()
    quarantine: str | None = None
    emptied: int = 0
    expiring: tuple[ExpiringFiles, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "table": self.table,
            "format": self.format,
            "version_before": self.version_before,
            "version_after": self.version_after,
            "dry_run": self.dry_run,
            "cutoff": self.cutoff,
            "retention": self.retention,
            "data_files": self.data_files,
            "dv_files": self.dv_files,
            "change_files": self.change_files,
            "index_files": self.index_files,
            "transaction_files": self.transaction_files,
            "version_files": self.version_files,
            "other_files": self.other_files,
            "bytes": self.bytes,
            "deleted": self.deleted,
            "kept": dict(self.kept),
        }
        if self.protected:
            body["protected"] = list(self.protected)
        if self.refused is not None:
            body["refused"] = self.refused
        if self.quarantine is not None:
            body["quarantine"] = self.quarantine
        if self.emptied:
            body["emptied"] = self.emptied
        if self.expiring is not None:
            body["expiring"] = [
                {"from": iso_timestamp(each.at), "files": each.files, "bytes": each.bytes} for each in self.expiring
            ]
        return body if self.paths is None else {**body, "paths": list(self.paths)}


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
    _log.info("%s: looking for files out of use%s", table.uri, ", a dry run" if request.dry_run else "")
    with span("vacuum", table=table.uri, dry_run=request.dry_run) as traced:
        result = table.vacuum(request)
        files = result.expired.files
        traced.set(version=result.version_after, files=len(files), bytes=sum(max(each.size, 0) for each in files))
    kinds = Counter(file.kind for file in files)
    _log.info("%s: %s expired, %d deleted", table.uri, count(len(files), "file"), result.deleted)
    return VacuumReport(
        table=table.uri,
        format=table.format,
        version_before=result.version_before,
        version_after=result.version_after,
        dry_run=result.dry_run,
        cutoff=result.expired.cutoff,
        retention=result.expired.retention,
        data_files=kinds["data"],
        dv_files=kinds["dv"],
        change_files=kinds["change"],
        other_files=kinds["other"],
        bytes=sum(file.size for file in files),
        deleted=result.deleted,
        kept=result.expired.kept,
        paths=tuple(file.path for file in files) if result.dry_run else None,
        index_files=kinds["index"],
        transaction_files=kinds["transaction"],
        version_files=kinds["manifest"],
        refused=result.refused,
        protected=result.protected,
        quarantine=result.quarantine,
        emptied=result.emptied,
        expiring=result.expired.expiring,
    )


def foreseen(table: Table, request: VacuumRequest, now: int) -> VacuumResult:
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
            f"{table.format} tables have no clones to protect",
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
