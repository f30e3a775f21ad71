"""Update indices after a rewrite, so that searches stay complete and fast."""

from __future__ import annotations

from functools import partial, reduce
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.dv import DeletionVector
from dv_maintenance.errors import DvMaintenanceError
from dv_maintenance.files.lance_library import lance_errors, open_dataset
from dv_maintenance.tables.lance.features import STABLE_ROW_IDS
from dv_maintenance.tables.lance.log.versions import load_manifest
from dv_maintenance.tables.lance.rows.files import covered_fragments

if TYPE_CHECKING:
    from collections.abc import Callable

    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.lance.log.manifest import Manifest

    _Step = Callable[[Any, list[str]], None]

_VECTOR: Final = "VectorIndexDetails"
# Their searches return the best rows only. If these are deleted ones, rows that a search should return are missing.
_RANKED: Final = ("InvertedIndexDetails", "MinHashLshIndexDetails")
# Details of an index that do not describe how it was built.
_DERIVED: Final = frozenset({"signature_version"})
# Parts of a vector index, from which on they are retrained as one: a search reads each of them.
_SEGMENTS: Final = 10
# Lance's internal indices; no search uses them.
SYSTEM: Final = frozenset({"__lance_frag_reuse", "__lance_mem_wal"})


def update_indices(storage: Storage) -> tuple[str, ...]:
    """Extend the indices of the newest version to the fragments that they do not cover.

    An index that covers all of them is left as it is: Lance's commit has moved its entries to the new rows, and merging
    it again would only cost a vector index recall (IVF_PQ: 0.92 became 0.86). For the same reason the uncovered rows of
    a vector index become a segment of their own; when there are many, all are retrained as one.

    A table with stable row ids differs: indices still hold the ids of deleted rows, and these displace rows that a
    ranked search should return. Its vector indices are retrained. Lance does not retrain indices for full-text and
    similarity searches, so they are created again, with their parameters.

    Returns the problems. The table is correct despite them; searches are slower, or a ranked search returns too few
    rows.
    """
    try:
        _, manifest = load_manifest(storage)
        todo = _todo(manifest)
    except DvMaintenanceError as error:
        return (f"the indices were not checked: {error.message}",)
    problems = []
    for names, do in todo:
        try:
            with lance_errors(f"optimising the indices {', '.join(names)}", table=storage.uri):
                do(open_dataset(storage), names)
        except DvMaintenanceError as error:
            problems.append(f"the indices {', '.join(names)} were not optimised: {error.message}")
    return tuple(problems)


def _todo(manifest: Manifest) -> list[tuple[list[str], _Step]]:
    """Names of the indices that need something, and what."""
    indices = [index for index in manifest.indices() if index.name not in SYSTEM]
    live = DeletionVector.from_positions([each.id for each in manifest.fragments()] if indices else [])
    stable = bool(manifest.reader_flags & STABLE_ROW_IDS)
    merged, separate, retrained, created = list[str](), list[str](), list[str](), list[str]()
    for name, found in groupby(sorted(indices, key=attrgetter("name")), attrgetter("name")):
        segments = list(found)
        covered = reduce(DeletionVector.union, map(covered_fragments, segments))
        vector = any(each.kind.endswith(_VECTOR) for each in segments)
        if stable and (vector or any(each.kind.endswith(_RANKED) for each in segments)):
            (retrained if vector else created).append(name)
        elif live.difference(covered):
            (merged if not vector else separate if len(segments) < _SEGMENTS else retrained).append(name)
    todo: list[tuple[list[str], _Step]] = [
        (merged, _optimize),
        (separate, partial(_optimize, num_indices_to_merge=0)),
        (retrained, partial(_optimize, retrain=True)),
        (created, _create_again),
    ]
    return [(names, do) for names, do in todo if names]


def _optimize(dataset: Any, names: list[str], **options: Any) -> None:
    dataset.optimize.optimize_indices(index_names=names, **options)


def _create_again(dataset: Any, names: list[str]) -> None:
    from lance.indices import IndexConfig

    for each in dataset.describe_indices():
        if each.name in names:
            parameters = {key: value for key, value in each.details.items() if key not in _DERIVED}
            config = IndexConfig(each.index_type.lower(), parameters)
            dataset.create_scalar_index(each.field_names[0], config, name=each.name, replace=True)
