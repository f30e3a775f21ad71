"""Rename manifests from V1 names to V2 names, by which the newest version is found with one request.

Each manifest is copied under its new name, put-if-absent, and then deleted under the old one: a run that was
interrupted leaves both namings, or even both names of one version with the same bytes, and the next run goes on there.
Lance's ``migrate_manifest_paths_v2`` needs an open dataset, which a folder with both namings is refused to be.

This is not safe beside writers, and no reader opens the table until it is done. A writer that still goes by the old
names commits a version under a name of its own, and nothing in Lance keeps two of them from committing the same one.
There is no way to be sure that no writer is active. What is cheap is to look for a commit within the last minute, and
once more when it is done for manifests that came meanwhile.
"""

from __future__ import annotations

import time
from typing import Final

from dv_maintenance.errors import ConflictError, DvMaintenanceError, RefusedError
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.capabilities import RenamedManifests
from dv_maintenance.tables.lance.features import check_readable, check_writer_flags
from dv_maintenance.tables.lance.log.versions import VersionFile, both_namings, read_manifest
from dv_maintenance.tables.parallel import in_parallel

__all__ = ["QUIET", "rename_manifests"]

QUIET: Final = 60_000
"""Milliseconds since the last commit. A writer that commits more seldom is not noticed."""


def rename_manifests(storage: Storage, *, dry_run: bool = False, now: int | None = None) -> RenamedManifests:
    """Give every manifest of the history its V2 name. ``now``: epoch milliseconds, by default the clock.

    Two requests and a read for each manifest. Those of branches are not touched: a branch is a table of its own.

    Raises
    ------
    TableNotFoundError, DamagedTableError : there is no table, or its newest manifest cannot be read.
    UnsupportedFeatureError : it has features that a writer must know.
    RefusedError : a version was committed within the last minute; or two different manifests are of one version.
    ConflictError : somebody committed meanwhile.
    StorageError : says how many were renamed. The next run goes on from there.
    """
    files = both_namings(storage)
    newest = max(files, key=lambda file: file.version)
    manifest = read_manifest(storage, newest)
    check_readable(manifest, storage.uri)
    check_writer_flags(manifest, storage.uri)
    quiet = (time.time_ns() // 1_000_000 if now is None else now) - manifest.timestamp
    if quiet < QUIET:
        raise RefusedError(
            f"version {newest.version} was committed less than a minute ago: somebody is writing, and this is not safe "
            "beside writers",
            table=storage.uri,
            version=newest.version,
            next_step="stop all writers, wait a minute, then run again",
        )
    old = sorted((file for file in files if file.scheme == "V1"), key=lambda file: file.version)
    result = RenamedManifests(newest.version, len(old), len({file.version for file in files} - _versions(old)), dry_run)
    if dry_run or not old:
        return result
    done: list[int] = []

    def rename(file: VersionFile) -> None:
        _rename(storage, file)
        done.append(file.version)

    try:
        for _ in in_parallel(storage, old, rename):
            pass
        came = [file for file in both_namings(storage) if file.scheme == "V1" or file.version > newest.version]
        if came:
            raise ConflictError(
                f"somebody committed version {came[0].version} meanwhile",
                next_step="stop all writers, wait a minute, then run again",
            )
    except DvMaintenanceError as error:
        error.table, error.version = storage.uri, newest.version
        error.done = f"{len(done)} of {len(old)} manifests renamed; others may be there under both names"
        error.next_step = error.next_step or "run again: it goes on with what is left"
        raise
    return result


def _rename(storage: Storage, file: VersionFile) -> None:
    target = VersionFile(file.version, "V2").path
    try:
        data = storage.get(file.path)
    except FileNotFoundError:
        return  # somebody else renames them, or cleans up
    try:
        storage.create(target, data)
    except FileExistsAlreadyError:
        if storage.get(target) != data:
            raise RefusedError(
                f"{file.path} and {target} are different manifests of version {file.version}: two writers committed it",
                next_step="find out which of them is right, put the other one away, then run again",
            ) from None
    storage.delete([file.path])


def _versions(files: list[VersionFile]) -> set[int]:
    return {file.version for file in files}
