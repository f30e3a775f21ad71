"""The versions of a Lance table and the paths of their manifests.

Format: manifest naming schemes of Lance's transaction specification. V2 names count down from 2^64 - 1 in twenty
digits, so the newest sorts first; V1 names are the plain number. Detached versions (prefix ``d``) are not part of the
history.

``latest_version_hint.json`` is not read: it may be outdated, a local folder is listed faster than the hint is read, and
most object stores have no hint, since they list the newest V2 name first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dv_maintenance.errors import DamagedTableError, DvMaintenanceError, RefusedError, UsageError
from dv_maintenance.remedies import Remedy, run
from dv_maintenance.storage import FileInfo, Storage, stamp_of
from dv_maintenance.tables.lance.log.manifest import Manifest, parse_manifest
from dv_maintenance.tables.not_found import not_found
from dv_maintenance.tables.table import Probe

VERSIONS: Final = "_versions"
_V1: Final = re.compile(r"([0-9]{1,19})\.manifest")
_V2: Final = re.compile(r"([0-9]{20})\.manifest")
_DETACHED_NAME: Final = re.compile(r"d([0-9]{1,20})\.manifest")
_TOP: Final = (1 << 64) - 1
_DETACHED: Final = 1 << 63
# The newest manifest is never cleaned up, but it may be superseded before it is read.
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class VersionFile:
    """The manifest file of a version.

    scheme : naming scheme, V1 or V2.
    path : relative to the table's root.
    """

    version: int
    scheme: str

    @property
    def path(self) -> str:
        return f"{VERSIONS}/{manifest_name(self.version, self.scheme)}"


def manifest_name(version: int, scheme: str) -> str:
    """The name of a version's manifest.

    >>> manifest_name(7, "V2")
    '18446744073709551608.manifest'
    """
    return f"{version}.manifest" if scheme == "V1" else f"{_TOP - version:020d}.manifest"


def latest_version(storage: Storage, known: int | None = None) -> int:
    """The newest version, from one listing: the whole folder on local disk, one page of an object store with V2 names.

    known : of no use. The version after it may have been cleaned up, so a missing next number proves nothing.

    Raises
    ------
    TableNotFoundError : the table has no versions.
    RefusedError : the manifests have both naming schemes.
    DamagedTableError : the folder of versions has no manifest.
    """
    del known
    return _newest(storage)[0].version


def probe(storage: Storage, known: int | None = None) -> Probe:
    """As :func:`latest_version`, with the stamp of its manifest: in an object store from the same request."""
    del known
    file, info = _newest(storage)
    return Probe(file.version, stamp_of(info or storage.head(file.path)))


def stamp(storage: Storage, version: int) -> str | None:
    """The stamp of a version's manifest; ``None`` if it was cleaned up. Raises StorageError."""
    paths = (VersionFile(version, scheme).path for scheme in ("V2", "V1"))
    return next((stamp_of(found) for path in paths if (found := storage.info(path)) is not None), None)


def all_versions(storage: Storage) -> list[VersionFile]:
    """Every version that still exists, oldest first. Raises as :func:`latest_version`."""
    return versions_among(storage, storage.names(VERSIONS))


def versions_among(storage: Storage, names: Iterable[str]) -> list[VersionFile]:
    """The versions among the file ``names`` in the folder of versions, oldest first. Raises as
    :func:`latest_version`.
    """
    return sorted(_versions(storage, names), key=lambda file: file.version)


def detached_names(names: Iterable[str]) -> list[str]:
    """The names of manifests of detached versions. These are outside the history and read by number only."""
    return sorted(name for name in names if _DETACHED_NAME.fullmatch(name))


def load_manifest(storage: Storage, version: int | None = None) -> tuple[VersionFile, Manifest]:
    """The manifest of a version, the newest by default: one listing and one read.

    Raises
    ------
    TableNotFoundError : the table has no versions.
    UsageError : the version does not exist; lists the existing ones.
    RefusedError : the manifests have both naming schemes.
    DamagedTableError : names the manifest.
    """
    for _ in range(_ATTEMPTS):
        newest, _ = _newest(storage)
        file = newest if version is None else VersionFile(version, newest.scheme)
        try:
            if 0 < file.version <= newest.version:
                return file, read_manifest(storage, file)
        except FileNotFoundError:
            pass
        if version is not None:
            raise UsageError(
                f"there is no version {version} (cleaned up, or never committed)",
                table=storage.uri,
                next_step=f"use one of the versions {_ranges(all_versions(storage))}",
            )
    raise DamagedTableError(
        f"{file.path} is listed but cannot be read",
        table=storage.uri,
        version=file.version,
        next_step="run again; if the error persists, check the permissions and the storage",
    )


def read_manifest(storage: Storage, file: VersionFile) -> Manifest:
    """Read the manifest of a version. Raises FileNotFoundError, or DamagedTableError that names the manifest."""
    data = storage.get(file.path)
    with naming_manifest(storage, file.path, file.version):
        manifest = parse_manifest(data, file.path)
        if manifest.version != file.version:
            raise DamagedTableError(f"it holds version {manifest.version}, not {file.version}")
    return manifest


def read_detached(storage: Storage, path: str) -> Manifest:
    """The manifest of a detached version. Raises as :func:`read_manifest`."""
    data = storage.get(path)
    match = _DETACHED_NAME.fullmatch(path.rpartition("/")[2])
    version = int(match[1]) if match else 0
    with naming_manifest(storage, path, version):
        manifest = parse_manifest(data, path, detached=True)
        if manifest.version != version:
            raise DamagedTableError(f"it holds version {manifest.version}, not {version}")
    return manifest


@contextmanager
def naming_manifest(storage: Storage, path: str, version: int) -> Iterator[None]:
    """Add the table, the version and the manifest's path to errors about its contents."""
    try:
        yield
    except DvMaintenanceError as error:
        if error.table is not None:
            raise
        if not isinstance(error, DamagedTableError):
            error.table, error.version = storage.uri, version
            raise
        raise DamagedTableError(
            f"{path}: {error.message}",
            table=storage.uri,
            version=version,
            next_step="restore the file from a backup, or read an older version",
        ) from None


def _newest(storage: Storage) -> tuple[VersionFile, FileInfo | None]:
    """The newest version, and what the listing says of its manifest."""
    files, complete = storage.first_files(VERSIONS)
    found = _versions(storage, files)
    # The newest V2 name sorts first. V1 names do not sort by version, and some stores list in no order.
    if not complete and (found[0].scheme == "V1" or _lists_in_no_order(storage)):
        found = all_versions(storage)
    newest = max(found, key=lambda file: file.version)
    return newest, files.get(newest.path[len(VERSIONS) + 1 :])


def _lists_in_no_order(storage: Storage) -> bool:
    """Whether this is an S3 directory bucket, which its name shows."""
    return storage.uri.startswith("s3://") and storage.uri[5:].split("/", 1)[0].endswith("--x-s3")


def both_namings(storage: Storage) -> list[VersionFile]:
    """Every manifest of the history, of either naming scheme, unordered. Raises as :func:`latest_version`, but accepts
    both naming schemes at once.
    """
    return _found(storage, storage.names(VERSIONS))


def _versions(storage: Storage, names: Iterable[str]) -> list[VersionFile]:
    found = _found(storage, names)
    if len({file.scheme for file in found}) > 1:
        raise RefusedError(
            "its manifests have both naming schemes (V1 and V2), so the newest version is ambiguous",
            table=storage.uri,
            next_step=Remedy(
                "stop all writers, then finish the renaming with {}", (run("rename-manifests", storage.uri),)
            ),
        )
    return found


def _found(storage: Storage, names: Iterable[str]) -> list[VersionFile]:
    names = list(names)
    if not names:
        raise not_found(storage, format="lance")
    found = [file for file in map(version_file, names) if file]
    if not found:
        raise DamagedTableError(
            f"{VERSIONS} holds no manifest",
            table=storage.uri,
            next_step="check the path; restore the manifests from a backup if they were deleted",
        )
    return found


def version_file(name: str) -> VersionFile | None:
    """The version of a manifest's name in the folder of versions, ``None`` if it is not part of the history."""
    if match := _V2.fullmatch(name):
        file = VersionFile(_TOP - int(match[1]), "V2")
    elif match := _V1.fullmatch(name):
        file = VersionFile(int(match[1]), "V1")
    else:
        return None
    return file if 0 < file.version < _DETACHED else None


def _ranges(files: list[VersionFile]) -> str:
    """Versions for people: ``2, 5 to 9``."""
    parts: list[list[int]] = []
    for file in files:
        if parts and parts[-1][1] == file.version - 1:
            parts[-1][1] = file.version
        else:
            parts.append([file.version, file.version])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in parts)
