"""Files that a plan leaves alone, by reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import bools, flags, strings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dv_maintenance.maintenance.planning.facts import FileFacts, Ints
    from dv_maintenance.maintenance.planning.steps import PlanStep
    from dv_maintenance.tables.model import Snapshot

EXAMPLES: Final = 5
NO_DV: Final = "no deletion vector"
OUTSIDE: Final = "outside the selected partitions"


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Files that are left unchanged for the same reason; ``examples`` has the first few paths."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    reason: str
    files: int
    size_bytes: int
    deleted_rows: int
    examples: tuple[str, ...]


def left_alone(reason: str, rows: Ints, snapshot: Snapshot, facts: FileFacts, examples: int = EXAMPLES) -> LeftAlone:
    """The files in these rows of the snapshot."""
    return LeftAlone(
        reason=reason,
        files=len(rows),
        size_bytes=int(facts.size[rows].sum()),
        deleted_rows=int(facts.deleted[rows].sum()),
        examples=_first_paths(snapshot, rows, examples) if examples else (),
    )


def barred_inputs(snapshot: Snapshot, facts: FileFacts, steps: Iterable[PlanStep]) -> tuple[LeftAlone, ...]:
    """The inputs of the steps that may not be rewritten at this version."""
    named = flags(
        pc.is_in(snapshot.files["path"], value_set=strings([each.path for step in steps for each in step.inputs]))
    )
    found = ((reason, np.flatnonzero(files & named)) for reason, files in snapshot.barred().items())
    return tuple(left_alone(reason, rows, snapshot, facts) for reason, rows in found if len(rows))


def _first_paths(snapshot: Snapshot, rows: Ints, most: int) -> tuple[str, ...]:
    """The first paths of these files by name, chunk by chunk: often they are nearly all files of a table."""
    mask = np.zeros(snapshot.files.num_rows, np.bool_)
    mask[rows] = True
    first: list[str] = []
    begin = 0
    for chunk in snapshot.files["path"].chunks:
        paths = pa.table({"path": chunk.filter(bools(mask[begin : begin + len(chunk)]))})
        begin += len(chunk)
        if not len(paths):
            continue
        found = pc.select_k_unstable(paths, min(most, len(paths)), sort_keys=[("path", "ascending")])
        first = sorted([*first, *paths["path"].take(found).to_pylist()])[:most]
    return tuple(first)
