"""From candidates to possible steps: group by partition or sequence, pack into bins.

Everything here works on columns: a healthy table of a million files costs no object per file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import int64s, taken
from dv_maintenance.maintenance.planning.bins import pack, pack_in_order
from dv_maintenance.maintenance.planning.candidates import EMPTY, KEEP, PAID, SMALL, Codes
from dv_maintenance.maintenance.planning.facts import Bools, FileFacts, Ints, ints
from dv_maintenance.maintenance.planning.steps import Action
from dv_maintenance.tables.model import SEQUENCE

if TYPE_CHECKING:
    from dv_maintenance.maintenance.planning.policy import Policy
    from dv_maintenance.tables.model import Snapshot

# The cost of opening one more file or deletion vector, in bytes read: Spark's own figure
# (spark.sql.files.openCostInBytes).
_OPEN_COST = 4 << 20
# A bin may read at most this many times its output. Otherwise one task would get all the almost empty files.
_MAX_READ_PER_WRITTEN = 8
# A file is about as large as others if it is at most 5 % larger than all of them together: appends vary in size.
ABOUT_AS_LARGE = 1.05
# Up to here a file costs about the same however few rows it has, so that nothing is saved by waiting.
_TINY = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A step before it is chosen: ``rows`` are positions in the snapshot's files."""

    action: Action
    rows: Ints
    size: int
    live_bytes: int
    dvs: int
    files_after: int

    @property
    def bytes_read(self) -> int:
        return 0 if self.action == "remove" else self.size

    @property
    def bytes_written(self) -> int:
        return 0 if self.action == "remove" else self.live_bytes

    @property
    def benefit(self) -> float:
        """What queries save per byte that has to be read now: bytes that are no longer read, and files and DVs that are
        no longer opened (at Spark's cost of opening).
        """
        saved = self.size - self.live_bytes + _OPEN_COST * (len(self.rows) + self.dvs - self.files_after)
        return saved / self.bytes_read if self.bytes_read else float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """Possible steps, each with files of one partition, and the candidates that are left alone.

    few : too few small files for a new one.
    large : small files that are larger than all that would join them.
    """

    steps: list[Draft]
    few: Ints
    large: Ints


def draft_steps(snapshot: Snapshot, facts: FileFacts, why: Codes, policy: Policy, target: int) -> Drafts:
    """Pack the candidates into possible steps. ``target``: bytes of a new file."""
    # Files that are in the plan for their size only: alone, they are left as they are.
    merged = why == SMALL
    merged[np.flatnonzero(why == PAID)] = ~facts.has_dv[np.flatnonzero(why == PAID)]
    alone = snapshot.new_files()
    steps: list[Draft] = []
    few, large = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for rows, ordered in _groups(snapshot, facts, why, merged):
        empty, rest = rows[why[rows] == EMPTY], rows[why[rows] != EMPTY]
        at_once = policy.max_files or max(len(empty), 1)
        steps += [_draft("remove", empty[at : at + at_once], facts, 0) for at in range(0, len(empty), at_once)]
        for members in _bins(rest, _weights(facts, rest, policy, target), target, ordered=ordered):
            if len(members) < policy.min_input_files and merged[members].all():
                few.append(members)
                continue
            for kept, together in _tiers(members, facts.live_bytes[members], merged[members], ordered=ordered):
                if not together:
                    large.append(kept)
                elif len(kept) < policy.min_input_files and merged[kept].all():
                    few.append(kept)
                else:
                    live_bytes = int(facts.live_bytes[kept].sum())
                    files_after = max(_files_after(live_bytes, target), 0 if alone is None else int(alone[kept].sum()))
                    steps.append(_draft("rewrite", kept, facts, files_after))
    return Drafts(steps, np.concatenate(few), np.concatenate(large))


def _groups(snapshot: Snapshot, facts: FileFacts, why: Codes, merged: Bools) -> Iterator[tuple[Ints, bool]]:
    """Candidates that may be merged with each other, and whether only with their neighbours."""
    if SEQUENCE.name in snapshot.files.column_names:
        numbers = snapshot.files[SEQUENCE.name].combine_chunks().to_numpy()
        # A file that is removed whole separates its neighbours, since the removal is another commit.
        yield from ((run, True) for run in _runs(numbers, facts, why != KEEP, why == EMPTY))
        return
    units = snapshot.units()
    clustered = np.zeros(len(why), np.bool_) if units is None else (units >= 0) & (why != EMPTY)
    for rows in _by_partition(snapshot, facts, np.where(clustered, KEEP, why)):
        parts = [rows] if units is None else _by_unit(rows, np.where(why[rows] == EMPTY, -1, units[rows]))
        yield from ((part, False) for part in parts)
    if units is not None and (clustered & (why != KEEP)).any():
        # A clustered file with rows to purge keeps its range of values, and so a file of its own.
        yield from (
            (run, True)
            for run in _runs(_places(snapshot, units), facts, clustered & (why != KEEP), merged, alone=~merged)
        )


def _by_unit(rows: Ints, units: Ints) -> list[Ints]:
    """The rows of each unit, in the order of the first ones."""
    _, first, of = np.unique(units, return_index=True, return_inverse=True)
    order = np.argsort(first[of], kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(units[order])) + 1)


def _places(snapshot: Snapshot, units: Ints) -> Ints:
    """A number per file: consecutive ones for neighbours in a unit."""
    names = pc.replace_substring_regex(snapshot.files["path"], "^.*/", "")
    keys = pa.table({"unit": int64s(units), "name": names})
    order = pc.sort_indices(keys, sort_keys=[("unit", "ascending"), ("name", "ascending")])
    places = np.empty(len(units), np.int64)
    places[np.frombuffer(order.buffers()[1], np.uint64)[order.offset :][: len(units)].astype(np.int64)] = np.arange(
        len(units)
    )
    # One is left out between units.
    return places + np.unique(units, return_inverse=True)[1]


def _tiers(rows: Ints, live: Ints, clean: Bools, *, ordered: bool) -> Iterator[tuple[Ints, bool]]:
    """Parts of a bin, and whether the files of a part are to be merged.

    A file without anything to purge joins the others of its bin only if they are together about as large. If it does
    not, and none of the others has anything to purge, all wait. Otherwise each append to a table would rewrite all that
    the appends before it wrote. With it, a byte is rewritten about twice until its file is full, as in a log-structured
    merge tree whose levels double.

    rows : positions of the bin's files, in order.
    live : live bytes of each of them.
    clean : which of them have nothing to purge.
    """
    if not clean.any() or len(rows) == 1:
        yield rows, True
        return
    largest = int(np.where(clean, live, -1).argmax())
    if joins(live[largest], live.sum() - live[largest]):
        yield rows, True
    elif clean.all():
        yield rows, False
    else:
        yield rows[largest : largest + 1], False
        # In an ordered table only neighbours may be merged.
        parts = [slice(0, largest), slice(largest + 1, None)] if ordered else [np.arange(len(rows)) != largest]
        for part in parts:
            if len(rows[part]):
                yield from _tiers(rows[part], live[part], clean[part], ordered=ordered)


def joins(size: float, others: float) -> bool:
    """Whether something of this many bytes is small enough to be written again with those that join it."""
    return size <= max(ABOUT_AS_LARGE * others, _TINY)


def _by_partition(snapshot: Snapshot, facts: FileFacts, why: Codes) -> list[Ints]:
    """Candidates of each partition, by partition name, then oldest first.

    Rows written together stay together, which keeps the bounds of new files narrow. The result does not depend on the
    order in which the log lists the files.
    """
    candidates = positions(why != KEEP)
    if not len(candidates):
        return []
    names = sorted(range(len(facts.partitions)), key=facts.partitions.__getitem__)
    rank = np.empty(len(names), np.int64)
    rank[names] = np.arange(len(names))
    ranks = rank[facts.partition[candidates]]
    modified = ints(snapshot.files["modified"])[candidates]
    order = np.lexsort((modified, ranks))
    same = (np.diff(ranks[order]) == 0) & (np.diff(modified[order]) == 0)
    tied = np.concatenate([same, [False]]) | np.concatenate([[False], same])
    if tied.any():
        order[tied] = _by_name(snapshot, candidates, order[tied], np.cumsum(~np.concatenate([[False], same]))[tied])
    ends = np.flatnonzero(np.diff(ranks[order])) + 1
    return np.split(candidates[order], ends)


def _by_name(snapshot: Snapshot, candidates: Ints, order: Ints, group: Ints) -> Ints:
    """Files that only their names tell apart, in the order of these within each group."""
    names = {name: taken(snapshot.files[name], candidates[order]) for name in ("path", "dv_id")}
    keys = pa.table({"group": int64s(group), **names})
    found = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in ("group", "path", "dv_id")])
    return order[
        np.frombuffer(found.buffers()[1], np.uint64)[found.offset : found.offset + len(found)].astype(np.int64)
    ]


def _runs(numbers: Ints, facts: FileFacts, chosen: Bools, kind: Bools, alone: Bools | None = None) -> list[Ints]:
    """Chosen files that may be merged because each directly follows the one before it, see ``SEQUENCE``, and is of the
    same kind. Those ``alone`` join none.
    """
    candidates = positions(chosen)
    order = np.argsort(numbers[candidates], kind="stable")
    candidates = candidates[order]
    together = np.diff(numbers[candidates]) == 1
    for each in (facts.partition, kind):
        together &= each[candidates][1:] == each[candidates][:-1]
    if alone is not None:
        together &= ~alone[candidates][1:]
    return [run for run in np.split(candidates, np.flatnonzero(~together) + 1) if len(run)]


def _bins(rows: Ints, weights: Ints, target: int, *, ordered: bool) -> Iterator[Ints]:
    if ordered:
        yield from (rows[positions] for positions in pack_in_order(weights.tolist(), target))
        return
    heaviest = np.argsort(-weights, kind="stable")
    for positions in pack(weights[heaviest].tolist(), target):
        yield rows[np.sort(heaviest[positions])]


def _weights(facts: FileFacts, rows: Ints, policy: Policy, target: int) -> Ints:
    """The weight of each file in a bin of ``target``: its live bytes, or more if the bin would otherwise read too much
    or hold more files than a run may replace.
    """
    size = facts.size[rows]
    # Rounded up: a bin within its weights is within the limits.
    weights = np.maximum(facts.live_bytes[rows], -(-size // _MAX_READ_PER_WRITTEN))
    if policy.max_bytes:
        share = np.floor(size * (target / policy.max_bytes)).astype(np.int64) + 1
        weights = np.maximum(weights, np.where(size > 0, share, 0))
    return np.maximum(weights, -(-target // policy.max_files)) if policy.max_files else weights


def _files_after(live_bytes: int, target: int) -> int:
    """A tenth above the target does not justify another file."""
    return max(1, -(-(10 * live_bytes - target) // (10 * target)))


def _draft(action: Action, rows: Ints, facts: FileFacts, files_after: int) -> Draft:
    return Draft(
        action=action,
        rows=rows,
        size=int(facts.size[rows].sum()),
        live_bytes=int(facts.live_bytes[rows].sum()),
        dvs=int(facts.has_dv[rows].sum()),
        files_after=files_after,
    )


def positions(mask: Bools) -> Ints:
    return np.flatnonzero(mask).astype(np.int64)
