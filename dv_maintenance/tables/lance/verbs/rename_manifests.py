"""Rename manifests from V1 to V2 names. With V2 names, one request finds the newest version.

Each manifest is copied to its new name (put-if-absent), and then deleted under its old name. An interrupted run leaves
both naming schemes, possibly both names of one version with the same bytes; the next run continues from there. Lance's
``migrate_manifest_paths_v2`` produces the same names, but cannot continue an interrupted run: it needs an open
dataset, and Lance refuses to open a folder with both naming schemes (seen with pylance 14). It also does not notice a
commit within the last minute.

Renaming is not safe while writers are active, and no reader can open the table until it has finished. A writer that
still uses the old names commits a version under its V1 name, and Lance does not prevent another writer from committing
the same version under its V2 name. No check proves that no writer is active. Two cheap checks are made: the run is
refused after a commit within the last minute, and it ends with a search for manifests that were committed concurrently.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from dv_maintenance.errors import ConflictError, DvMaintenanceError, RefusedError
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.lance.features import check_readable, check_writer_flags
from dv_maintenance.tables.lance.log.versions import VersionFile, both_namings, read_manifest
from dv_maintenance.tables.parallel import in_parallel
from dv_maintenance.tables.reports import RenameReport
from dv_maintenance.units import epoch_millis

QUIET: Final = 60_000
"""Required milliseconds since the last commit. A writer that commits less often is not detected."""


def rename_manifests(storage: Storage, *, dry_run: bool = False, now: int | None = None) -> RenameReport:
    """Rename every manifest of the history to its V2 name.

    now : epoch milliseconds, by default the clock.

    Costs two requests and a read for each manifest. Manifests of branches are not renamed: a branch is a table of its
    own.

    Raises
    ------
    TableNotFoundError, DamagedTableError : the table does not exist, or its newest manifest cannot be read.
    UnsupportedFeatureError : the table has writer features that are unknown here.
    RefusedError : a version was committed within the last minute; or one version has two different manifests.
    ConflictError : another writer committed concurrently.
    StorageError : says how many were renamed. The next run continues from there.
    """
    files = both_namings(storage)
    newest = max(files, key=lambda file: file.version)
    manifest = read_manifest(storage, newest)
    check_readable(manifest, storage.uri)
    check_writer_flags(manifest, storage.uri)
    quiet = epoch_millis(now) - manifest.timestamp
    if quiet < QUIET:
        raise RefusedError(
            f"version {newest.version} was committed less than a minute ago: a writer may be active, and renaming "
            "is not safe then",
            table=storage.uri,
            version=newest.version,
            next_step="stop all writers, wait a minute, then run again",
        )
    old = sorted((file for file in files if file.scheme == "V1"), key=lambda file: file.version)
    result = RenameReport(newest.version, len(old), len({file.version for file in files} - _versions(old)), dry_run)
    if not old:
        return result
    storage.check_target(old[0].path)
    renamed = {file.version for file in files if file.scheme == "V2"}
    for file in old:
        if file.version in renamed:
            with suppress(FileNotFoundError):  # renamed or cleaned up concurrently
                _check_same(storage, file)
    if dry_run:
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
                f"another writer committed version {came[0].version} during the renaming",
                next_step="stop all writers, wait a minute, then run again",
            )
    except DvMaintenanceError as error:
        error.table, error.version = storage.uri, newest.version
        error.done = f"{len(done)} of {len(old)} manifests renamed; others may exist under both names"
        error.next_step = error.next_step or "run again: the next run renames the rest"
        raise
    return result


def _check_same(storage: Storage, file: VersionFile) -> None:
    """Raise RefusedError if a version has two different manifests."""
    target = VersionFile(file.version, "V2").path
    if storage.get(target) != storage.get(file.path):
        raise RefusedError(
            f"{file.path} and {target} are different manifests of version {file.version}: two writers committed it",
            table=storage.uri,
            next_step="find out which of them is right, move the other one out of the table, then run again",
        )


def _rename(storage: Storage, file: VersionFile) -> None:
    target = VersionFile(file.version, "V2").path
    try:
        data = storage.get(file.path)
    except FileNotFoundError:
        return  # renamed or cleaned up concurrently
    try:
        storage.create(target, data)
    except FileExistsAlreadyError:
        _check_same(storage, file)
    storage.delete([file.path])


def _versions(files: list[VersionFile]) -> set[int]:
    return {file.version for file in files}
