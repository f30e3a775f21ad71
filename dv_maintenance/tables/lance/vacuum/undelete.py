"""Restore files of a Lance table from its quarantine. A restored manifest restores its version.

A manifest is restored only if the history has a gap for its version, the table still has its naming scheme, and every
file that it names exists. Other files are restored first, then manifests, newest first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import ConflictError, DvMaintenanceError
from dv_maintenance.tables.lance.layout import DATA, DELETIONS
from dv_maintenance.tables.lance.log.history import manifests
from dv_maintenance.tables.lance.log.manifest import Manifest, parse_fragment
from dv_maintenance.tables.lance.log.versions import VERSIONS, VersionFile, all_versions, read_manifest, version_file
from dv_maintenance.tables.lance.vacuum.files import FOLDERS, INDICES
from dv_maintenance.units import count

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.quarantine import Restored

NAMING: Final = "the table's manifests now have another naming scheme"
NEWER: Final = "of a version that the table does not have yet: the table was recreated"
LACKING: Final = "of a version whose files are gone"
UNREADABLE: Final = "of a version whose manifest can't be read"


@dataclass(frozen=True, slots=True)
class LanceUndeleteRules:
    """See ``quarantine.UndeleteRules``."""

    storage: Storage

    def kept(self, restored: Restored) -> Mapping[str, str]:
        newest = all_versions(self.storage)[-1]
        there = {info.path for folder in FOLDERS for info in self.storage.list(folder)} | restored.places.keys()
        found = {}
        for path in restored.places:
            file = _version(path)
            reason = None if file is None else _reason(restored, file, newest, there)
            if reason is not None:
                found[path] = reason
        return found

    def order(self, path: str) -> tuple[int, int]:
        file = _version(path)
        return (0, 0) if file is None else (1, -file.version)

    def settle(self, paths: Sequence[str]) -> None:
        """Check that the restored versions have all their files, unless a vacuum has deleted the version again. Raises
        ConflictError.
        """
        files = [file for path in paths if (file := _version(path)) is not None]
        if not files:
            return
        there = {info.path for folder in FOLDERS for info in self.storage.list(folder)}
        # A vacuum may delete a manifest at any time, even one that was just listed. Its version is then gone, too.
        for manifest in manifests(self.storage, [file for file in files if file.path in there], 1):
            if not _has_all(manifest, there):
                raise ConflictError(
                    f"version {manifest.version} was restored, but a concurrent vacuum deleted some of its files",
                    table=self.storage.uri,
                    version=manifest.version,
                    done=f"restored {count(len(paths), 'file')}",
                    next_step="let the next vacuum delete that version again; do not run vacuum during undelete",
                )


def _version(path: str) -> VersionFile | None:
    folder, _, name = path.rpartition("/")
    return version_file(name) if folder == VERSIONS else None


def _reason(restored: Restored, file: VersionFile, newest: VersionFile, there: Collection[str]) -> str | None:
    if file.scheme != newest.scheme:
        return NAMING
    if file.version >= newest.version:
        return NEWER
    try:
        return None if _has_all(read_manifest(restored, file), there) else LACKING
    except (DvMaintenanceError, FileNotFoundError):
        return UNREADABLE


def _has_all(manifest: Manifest, there: Collection[str]) -> bool:
    indices = {path.split("/")[1] for path in there if path.startswith(f"{INDICES}/")}
    wanted = {str(index.uuid) for index in manifest.indices() if index.base_id is None}
    return wanted <= indices and all(path in there for path in _own_files(manifest))


def _own_files(manifest: Manifest) -> Iterator[str]:
    """Data and deletion files in the table's own folder."""
    for record in manifest.fragment_records:
        fragment = parse_fragment(record)
        yield from (f"{DATA}/{file.path}" for file in fragment.files if file.base_id is None)
        if fragment.deletion is not None and fragment.deletion.base_id is None:
            yield f"{DELETIONS}/{fragment.deletion.name}"
