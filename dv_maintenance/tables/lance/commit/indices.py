"""Update indices after a rewrite, so that searches stay complete and fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.files.lance_library import lance_errors, open_dataset
from dv_maintenance.tables.lance.features import STABLE_ROW_IDS
from dv_maintenance.tables.lance.log.versions import load_manifest

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.lance.log.manifest import Manifest

__all__ = ["SYSTEM", "update_indices"]

_VECTOR: Final = "VectorIndexDetails"
# Lance's internal indices; no search uses them.
SYSTEM: Final = frozenset({"__lance_frag_reuse", "__lance_mem_wal"})


def update_indices(storage: Storage) -> tuple[str, ...]:
    """Extend the indices of the newest version to the fragments that they do not cover.

    A vector index of a table with stable row ids is retrained instead: it still holds the ids of deleted rows, and
    these displace rows that a search should return.

    Returns the problems. The table is correct despite them; searches are slower, or a vector search returns too few
    rows.
    """
    try:
        _, manifest = load_manifest(storage)
        retrain, rest = _names(manifest)
    except DvMaintenanceError as error:
        return (f"the indices were not checked: {error.message}",)
    problems = []
    for names, options in ((rest, {}), (retrain, {"retrain": True})):
        if names:
            try:
                _optimize(storage, names, options)
            except DvMaintenanceError as error:
                problems.append(f"the indices {', '.join(names)} were not optimised: {error.message}")
    return tuple(problems)


def _names(manifest: Manifest) -> tuple[list[str], list[str]]:
    """Names of the indices to retrain, and of all other indices."""
    stable = bool(manifest.reader_flags & STABLE_ROW_IDS)
    indices = [index for index in manifest.indices() if index.name not in SYSTEM]
    retrain = sorted({index.name for index in indices if stable and index.kind.endswith(_VECTOR)})
    return retrain, sorted({index.name for index in indices} - set(retrain))


def _optimize(storage: Storage, names: list[str], options: dict[str, Any]) -> None:
    with lance_errors(f"optimising the indices {', '.join(names)}", table=storage.uri):
        open_dataset(storage).optimize.optimize_indices(index_names=names, **options)
