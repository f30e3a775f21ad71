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

# Lance's own threshold: deleted rows of a fragment in total.
_BITMAP_FROM: Final = 5000
_KINDS: Final = {ARRAY: ("array", "arrow"), BITMAP: ("bitmap", "bin")}


def new_deletion_file(fragment: int, version: int, deleted: DeletionVector) -> DeletionFile:
    """The metadata of a deletion file with all deleted rows of a fragment, based on ``version``. The name is random."""
    codec = ARRAY if len(deleted) < _BITMAP_FROM else BITMAP
    name = f"{fragment}-{version}-{secrets.randbits(64)}.{_KINDS[codec][1]}"
    return DeletionFile(codec, name, version, len(deleted), None)


def write_deletions(storage: Storage, file: DeletionFile, deleted: DeletionVector) -> None:
    """Write a deletion file. Raises StorageError.

    This is a plain put, not put-if-absent: the name is random, and a client that retries a put after a lost response
    would collide with its own file.
    """
    storage.put(f"{DELETIONS}/{file.name}", encode(file.codec, deleted))


def described(file: DeletionFile) -> dict[str, Any]:
    """The fields of a deletion file, named as in Lance's own JSON for a fragment."""
    return {
        "read_version": file.read_version,
        "id": int(file.name.rsplit("-", 1)[1].split(".")[0]),
        "file_type": _KINDS[file.codec][0],
        "num_deleted_rows": file.count,
        "base_id": file.base_id,
    }
