"""New deletion files: their names, kinds and bytes."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.dv.lance import ARRAY, BITMAP, encode
from dv_maintenance.tables.lance.layout import DELETIONS
from dv_maintenance.tables.lance.log.manifest import DeletionFile

if TYPE_CHECKING:
    from dv_maintenance.dv import DeletionVector
    from dv_maintenance.storage import Storage

__all__ = ["described", "new_deletion_file", "write_deletions"]

# Lance's own threshold, for what is deleted in a fragment in all.
_BITMAP_FROM: Final = 5000
_KINDS: Final = {ARRAY: ("array", "arrow"), BITMAP: ("bitmap", "bin")}


def new_deletion_file(fragment: int, version: int, deleted: DeletionVector) -> DeletionFile:
    """For all rows that are deleted in a fragment, made from ``version``, under a name that nobody else takes."""
    codec = ARRAY if len(deleted) < _BITMAP_FROM else BITMAP
    name = f"{fragment}-{version}-{secrets.randbits(64)}.{_KINDS[codec][1]}"
    return DeletionFile(codec, name, version, len(deleted), None)


def write_deletions(storage: Storage, file: DeletionFile, deleted: DeletionVector) -> None:
    """Raises StorageError.

    No put-if-absent: the name is random, and a client that repeats a put whose answer got lost would find its own file
    in the way.
    """
    storage.put(f"{DELETIONS}/{file.name}", encode(file.codec, deleted))


def described(file: DeletionFile) -> dict[str, Any]:
    """As Lance's own JSON of a fragment has it."""
    return {
        "read_version": file.read_version,
        "id": int(file.name.rsplit("-", 1)[1].split(".")[0]),
        "file_type": _KINDS[file.codec][0],
        "num_deleted_rows": file.count,
        "base_id": file.base_id,
    }
