"""Paths of the files that a manifest names.

Format: the base path system of Lance's storage layout. A file without a base is in a folder of the table. A file with a
base is in the same folder of another table (shallow clones, branches), or directly in a folder of files.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.storage import Storage, absolute_uri
from dv_maintenance.tables.lance.log.manifest import DataFile, DeletionFile, Index, Manifest

DATA: Final = "data"
DELETIONS: Final = "_deletions"
_INDICES: Final = "_indices"
# Two fragments may name the same first data file, for example if an append of fragments was repeated.
_OF_FRAGMENT: Final = "#fragment-"
_SUFFIX: Final = re.compile(rf"{_OF_FRAGMENT}\d+\Z")
_WRITTEN: Final = (DATA, DELETIONS, "_versions", "_transactions", _INDICES, "_blobs")


def check_folders(storage: Storage) -> None:
    """Lance's library writes and deletes through links; we don't. Raises RefusedError if a folder is a link."""
    for folder in _WRITTEN:
        storage.check_target(f"{folder}/new")


def data_path(storage: Storage, manifest: Manifest, file: DataFile) -> str:
    """Path of a data file for ``storage``. Raises DamagedTableError if its base is unknown."""
    return _path(storage, manifest, DATA, file.path, file.base_id)


def path_of_fragment(path: str, fragment: int) -> str:
    """The path in a snapshot's ``files`` of a fragment whose first data file is that of other fragments, too."""
    return f"{path}{_OF_FRAGMENT}{fragment}"


def stored_path(name: str) -> str:
    """The path of a fragment's first data file for ``storage``, from its path in a snapshot's ``files``."""
    return _SUFFIX.sub("", name)


def deletion_path(storage: Storage, manifest: Manifest, file: DeletionFile) -> str:
    """Path of a deletion file for ``storage``. Raises as :func:`data_path`."""
    return _path(storage, manifest, DELETIONS, file.name, file.base_id)


def index_path(storage: Storage, manifest: Manifest, index: Index) -> str:
    """Path of the folder of an index for ``storage``. Raises as :func:`data_path`."""
    return _path(storage, manifest, _INDICES, index.uuid, index.base_id)


def _path(storage: Storage, manifest: Manifest, folder: str, name: str, base_id: int | None) -> str:
    if base_id is None:
        return f"{folder}/{name}"
    base = manifest.base_paths.get(base_id)
    if base is None or not base.path:
        raise DamagedTableError(
            f"{folder}/{name} is in base path {base_id}, which the manifest does not name",
            table=storage.uri,
            version=manifest.version,
            next_step="add the base path again with the tool that wrote the table",
        )
    place = f"{base.path.rstrip('/')}/{folder}" if base.is_root else base.path.rstrip("/")
    # One spelling per file: a path below the table becomes relative again.
    return storage.path_of_uri(f"{absolute_uri(place)}/{quote(name)}")
