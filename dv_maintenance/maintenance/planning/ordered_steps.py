"""Steps whose new files hold the rows of many files in a new order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.maintenance.planning.steps import Cost, Effect, PlanInput, PlanStep, Why
from dv_maintenance.units import format_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from dv_maintenance.maintenance.planning.facts import FileFacts, Ints
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import ColumnBounds

NOT_CHOSEN: Final = -1
# One task orders the rows of so many new files, or of so many bytes: more skip better, but keep one worker and its disk
# busy for longer.
_FILES_PER_STEP: Final = 32
BYTES_PER_STEP: Final = 8 << 30


def ordered_steps(
    snapshot: Snapshot,
    facts: FileFacts,
    why: npt.NDArray[np.int8],
    words: Mapping[Why, str],
    names: tuple[str, ...],
    target: int,
    bounds: Mapping[str, ColumnBounds],
    step_bytes: int = BYTES_PER_STEP,
) -> tuple[PlanStep, ...]:
    """Each step has neighbours by the first column.

    why : for each file, a position in ``words``, or NOT_CHOSEN.
    words : what is said of such files.
    names : the columns that make the order.
    step_bytes : live bytes of a step, if they are more than those of 32 new files.
    """
    first = bounds.get(names[0])
    ranks = np.arange(len(facts)) if first is None else _ranks(first.minimum)
    steps: list[PlanStep] = []
    most = max(target * _FILES_PER_STEP, step_bytes)
    for code in sorted(np.unique(facts.partition[why >= 0]).tolist(), key=facts.partitions.__getitem__):
        rows = np.flatnonzero((facts.partition == code) & (why >= 0))
        for share in _shares(rows[np.argsort(ranks[rows], kind="stable")], facts, most):
            steps.append(_step(f"step-{len(steps) + 1}", share, snapshot, facts, why, words, names, target))
    return tuple(steps)


def _ranks(values: pa.ChunkedArray) -> Ints:
    ranks = np.empty(len(values), np.int64)
    ranks[pc.array_sort_indices(values.combine_chunks(), null_placement="at_start").to_numpy()] = np.arange(len(values))
    return ranks


def _shares(rows: Ints, facts: FileFacts, most: int) -> list[Ints]:
    """Consecutive files, in parts of about equal live bytes and at most ``most``."""
    sizes = facts.live_bytes[rows]
    total = int(sizes.sum())
    count = max(1, -(-total // most))
    # By the middle of each file, so that the size of a part is at most half a file off.
    parts = (np.cumsum(sizes) - sizes / 2) * count // max(total, 1)
    return [share for share in np.split(rows, np.flatnonzero(np.diff(parts)) + 1) if len(share)]


def _step(
    identity: str,
    rows: Ints,
    snapshot: Snapshot,
    facts: FileFacts,
    why: npt.NDArray[np.int8],
    words: Mapping[Why, str],
    names: tuple[str, ...],
    target: int,
) -> PlanStep:
    whys: Any = list(words)
    files = snapshot.files.select(["path", "dv_id", "size", "physical_rows", "deleted_rows"]).take(pa.array(rows))
    inputs = tuple(
        PlanInput(**row, why=whys[code]) for row, code in zip(files.to_pylist(), why[rows].tolist(), strict=True)
    )
    live, purged = int(facts.live_bytes[rows].sum()), int(facts.deleted[rows].sum())
    counts = np.bincount(why[rows], minlength=len(words)).tolist()
    parts = ", ".join(f"{count} {text}" for count, text in zip(counts, words.values(), strict=True) if count)
    return PlanStep(
        id=identity,
        action="rewrite",
        partition=facts.partitions[int(facts.partition[rows[0]])],
        reason=f"files: {parts}: {format_size(live)} to order by {', '.join(names)}",
        inputs=inputs,
        expected=Effect(
            files_after=max(1, round(live / target)),
            dvs_removed=int(facts.has_dv[rows].sum()),
            rows_purged=purged,
            live_rows=int(facts.physical[rows].sum()) - purged if bool(facts.known[rows].all()) else None,
            bytes_after=live,
        ),
        cost=Cost(bytes_read=int(facts.size[rows].sum()), bytes_written=live, files_read=len(rows)),
    )
