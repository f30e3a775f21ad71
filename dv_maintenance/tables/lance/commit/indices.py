"""Indices behind a rewrite: what they have to be told, so that searches find all they should, and fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.files.lance_library import lance_errors, open_dataset
from dv_maintenance.tables.lance.features import STABLE_ROW_IDS
from dv_maintenance.tables.lance.log.versions import load_manifest

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.lance.log.manifest import Manifest

__all__ = ["keep_up"]

_VECTOR: Final = "VectorIndexDetails"
# Of Lance itself: not to search in.
_SYSTEM: Final = frozenset({"__lance_frag_reuse", "__lance_mem_wal"})


def keep_up(storage: Storage) -> tuple[str, ...]:
    """Bring the indices of the newest version up to it: what they do not cover is added. A vector index of a table with
    stable row ids is retrained instead: it still has the ids of rows that are gone, and they take the places of rows
    that a search should return. Returns what went wrong: the table is right without, only slower to search, or with too
    few results of a vector search.
    """
    try:
        _, manifest = load_manifest(storage)
        retrain, rest = _names(manifest)
    except DvMaintenanceError as error:
        return (f"the indices were not looked at: {error.message}",)
    problems = []
    for names, options in ((rest, {}), (retrain, {"retrain": True})):
        if names:
            try:
                _optimize(storage, names, options)
            except DvMaintenanceError as error:
                problems.append(f"the indices {', '.join(names)} were not optimised: {error.message}")
    return tuple(problems)


def _names(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Indices to retrain, and the others."""
    stable = bool(manifest.reader_flags & STABLE_ROW_IDS)
    indices = [index for index in manifest.indices() if index.name not in _SYSTEM]
    retrain = sorted({index.name for index in indices if stable and index.kind.endswith(_VECTOR)})
    return retrain, sorted({index.name for index in indices} - set(retrain))


def _optimize(storage: Storage, names: list[str], options: dict[str, Any]) -> None:
    with lance_errors(f"optimising the indices {', '.join(names)}", table=storage.uri):
        open_dataset(storage).optimize.optimize_indices(index_names=names, **options)
