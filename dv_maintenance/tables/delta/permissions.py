"""What the catalog of a table permits (protocol: Catalog-managed tables, Maintenance operations).

A table whose catalog ratifies its commits may be read and changed by anyone with the rights. Maintenance needs the
catalog's permission, except for checkpoints. Some maintenance no catalog can permit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import NotPermittedError, RefusedError
from dv_maintenance.tables.delta.log.ratified import RatifiedStorage

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

# Operation -> the catalog's name for it, and ours for people.
_NEEDS: Final = {
    "rewrite": ("DATA_REORGANIZATION", "rewriting its files"),
    "vacuum": ("DATA_CLEANUP", "deleting its unneeded files, or moving them"),
    "clean_log": ("METADATA_CLEANUP", "deleting its old log files"),
}
_NEVER: Final = {
    "manifest": "symlink manifests would show versions that its catalog has not ratified, or hide those that it has",
    "downgrade": "its catalog requires deletion vectors, and the features that a downgrade removes",
    "convert": "its catalog made it, and has to make its first version",
    "engine-sql": "delta-spark maintains no such table, whatever the catalog permits",
}


def check_permitted(storage: Storage, operation: str, *, ask: bool = False) -> None:
    """Refuse maintenance that the catalog did not permit when it was last asked. ``ask``: ask it now.

    Raises
    ------
    NotPermittedError : names the operation, the catalog, what it permits, and who can change it.
    RefusedError : no catalog can permit it. StorageError.
    """
    if not isinstance(storage, RatifiedStorage):
        return
    name = storage.catalog.name
    if why := _NEVER.get(operation):
        raise RefusedError(
            f"{operation} leaves {name} alone: {why}",
            table=storage.uri,
            next_step="leave it to the engines of its catalog",
        )
    if operation not in _NEEDS:
        return
    if ask:
        storage.latest()
    needed, what = _NEEDS[operation]
    allowed = storage.known.allowed
    if needed in allowed:
        return
    rest = f"it permits {', '.join(sorted(allowed))}" if allowed else "it permits no maintenance but checkpoints"
    raise NotPermittedError(
        f"the catalog of {name} does not permit {needed}, which {what} needs: {rest}",
        table=storage.uri,
        next_step=f"ask the owner of the table, or the administrator of {name.partition('.')[0]}, to permit it",
    )
