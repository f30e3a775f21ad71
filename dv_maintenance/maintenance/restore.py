"""Restore an older version of a table, and compare the result with that version."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from dv_maintenance.errors import DvMaintenanceError, RefusedError
from dv_maintenance.tables.capabilities import RestorableTable
from dv_maintenance.tables.model import FileKey
from dv_maintenance.tables.registry import title_of

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.reports import RestoreReport
    from dv_maintenance.tables.table import Table


def restore(
    table: Table,
    *,
    version: int | None = None,
    timestamp: int | None = None,
    dry_run: bool = False,
    max_attempts: int = 10,
    vacuums_over: Collection[int] = (),
) -> RestoreReport:
    """Commit the state of an older version.

    version, timestamp : the version to restore, or epoch milliseconds for the newest version at that time.
    dry_run : only report what the restore would change.
    vacuums_over : versions at which vacuums began that are over, although the history does not say so.

    Raises
    ------
    RefusedError : the format has no restore, files of that version do not exist any more, or a vacuum is running.
        Nothing was committed, or the commit was reverted.
    UsageError : the version or time does not exist; or both are given, or neither.
    ConflictError, StorageError, UnsupportedFeatureError : see ``Table.commit``.
    """
    if not isinstance(table, RestorableTable):
        raise RefusedError(
            f"{title_of(table.format)} tables can't be restored by this release",
            table=table.uri,
            next_step="use the engine of the table",
        )
    result = table.restore(
        version=version,
        timestamp=timestamp,
        dry_run=dry_run,
        max_attempts=max_attempts,
        vacuums_over=vacuums_over,
    )
    problems = () if dry_run else _read_back(table, result)
    return replace(result, verified=not problems, problems=problems).of(table)


def _read_back(table: Table, result: RestoreReport) -> tuple[str, ...]:
    try:
        return _differences(table, table.snapshot(result.restored), result.version_after)
    except DvMaintenanceError as error:  # the commit is valid even if it can't be read back
        return (f"version {result.version_after} could not be read back: {error}",)


def _differences(table: Table, wanted: Snapshot, version: int) -> tuple[str, ...]:
    found = table.snapshot(version)
    problems = []
    if _keys(table, found) != _keys(table, wanted):
        problems.append(f"version {version} does not have the files of version {wanted.version}")
    if not found.schema.equals(wanted.schema):
        problems.append(f"version {version} does not have the columns of version {wanted.version}")
    return tuple(problems)


def _keys(table: Table, snapshot: Snapshot) -> set[FileKey]:
    columns = (snapshot.files[name].to_pylist() for name in ("path", "dv_id"))
    return {FileKey(table.path_of(path), dv_id) for path, dv_id in zip(*columns, strict=True)}
