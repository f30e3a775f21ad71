"""A snapshot's files as NumPy columns, on which health and plans are computed for a million files at a time.

The columns are read through Arrow's buffers. Arrow compute with Python scalars imports pandas if it is installed,
which costs more than all other work on a small table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import combined, flags, numbers
from dv_maintenance.tables.model import SINCE, Since, Snapshot

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_FACTS: Final = "facts"
_COUNTS: Final = "counts"
_EXACT: Final = 1 << 53
# Arrays of FileFacts in order: views of columns of the files, and others.
_COLUMNS: Final = {"size": "size", "physical": "physical_rows", "deleted": "deleted_rows"}
_OWN: Final = ("partition", "known", "has_dv", "live_bytes")
_ARRAYS: Final = ("partition", "size", "physical", "known", "deleted", "has_dv", "live_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class FileFacts:
    """One entry per live file, in the snapshot's order.

    partition : index into ``partitions``.
    physical : physical rows, 0 where ``known`` is false.
    live_bytes : the share of ``size`` that live rows take, so that a big file with half of its rows deleted counts as
        a small file. All of ``size`` if the row count is unknown.
    """

    partitions: tuple[str, ...]
    partition: Ints
    size: Ints
    physical: Ints
    known: Bools
    deleted: Ints
    has_dv: Bools
    live_bytes: Ints

    def __len__(self) -> int:
        return len(self.size)

    def per_partition(self, values: npt.NDArray[Any]) -> Ints:
        """The sum of integers or truth values over the files of each partition, exactly."""
        partition, number = self.partition, len(self.partitions)
        if not values.all():
            rows = np.flatnonzero(values)
            partition, values = partition[rows], values[rows]
        if values.dtype == np.bool_:
            return np.bincount(partition, minlength=number)
        # Five times faster in floating point, which is exact while no sum can exceed its integers.
        if max(int(values.max(initial=0)), -int(values.min(initial=0))) * len(values) < _EXACT:
            return np.bincount(partition, values, minlength=number).astype(np.int64)
        sums = np.zeros(number, np.int64)
        np.add.at(sums, partition, values)
        return sums

    def of(self, rows: Ints) -> FileFacts:
        """Those of some files."""
        arrays = (getattr(self, name)[rows] for name in _ARRAYS)
        return FileFacts(self.partitions, *arrays)

    def counts(self) -> Ints:
        """A row per partition: files, files with DV, files with unknown rows, physical rows, deleted rows, bytes."""
        everything = np.ones(len(self), np.bool_)
        columns = (everything, self.has_dv, ~self.known, self.physical, self.deleted, self.size)
        return np.stack([self.per_partition(column) for column in columns], axis=1)


def file_facts(snapshot: Snapshot) -> FileFacts:
    """The columns of ``snapshot.files``, computed once.

    Raises
    ------
    DamagedTableError : a negative size or row count, or a DV that names more rows than its file has.
    """
    found: FileFacts | None = snapshot.derived.get(_FACTS)
    if found is None:
        since: Since | None = snapshot.derived.pop(SINCE, None)
        known = None if since is None else _since(snapshot, since)
        if known is None:
            known = _facts(snapshot, snapshot.files), None
        found = snapshot.derived[_FACTS] = known[0]
        if known[1] is not None:
            snapshot.derived[_COUNTS] = known[1]
    return found


def file_counts(snapshot: Snapshot) -> Ints:
    """``FileFacts.counts`` of a snapshot, computed once. Raises as :func:`file_facts`."""
    facts = file_facts(snapshot)
    found: Ints | None = snapshot.derived.get(_COUNTS)
    if found is None:
        found = snapshot.derived[_COUNTS] = facts.counts()
    return found


def _since(snapshot: Snapshot, since: Since) -> tuple[FileFacts, Ints | None] | None:
    """The same from what is known of an earlier snapshot's files, without looking at those that stayed."""
    before: FileFacts | None = since.derived.get(_FACTS)
    if before is None:
        return None
    files, stayed = snapshot.files, len(before) - len(since.gone)
    new = _facts(snapshot, files.slice(stayed))
    if new.partitions[: len(before.partitions)] != before.partitions:
        return None
    arrays = {
        **{name: since.spliced(getattr(before, name), getattr(new, name)) for name in _OWN},
        **{name: ints(files[column]) for name, column in _COLUMNS.items()},
    }
    facts = FileFacts(new.partitions, *(arrays[name] for name in _ARRAYS))
    counts: Ints | None = since.derived.get(_COUNTS)
    if counts is not None:
        gone, counts = before.of(since.gone).counts(), counts.copy()
        counts -= gone
        counts = np.concatenate([counts, np.zeros((len(new.partitions) - len(counts), counts.shape[1]), np.int64)])
        counts += new.counts()
    return facts, counts


def _facts(snapshot: Snapshot, files: pa.Table) -> FileFacts:
    """``files``: all of the snapshot, or some."""
    codes = combined(files["partition"].unify_dictionaries())
    size, deleted = ints(files["size"]), ints(files["deleted_rows"])
    physical, known = ints(files["physical_rows"]), valid(files["physical_rows"])
    # Few files have deleted rows: everything about them is computed for them alone.
    some = np.flatnonzero(deleted)
    more = np.zeros(len(size), np.bool_)
    more[some] = known[some] & (deleted[some] > physical[some])
    if min((int(column.min(initial=0)) for column in (size, deleted, physical)), default=0) < 0 or more.any():
        row = int(((size < 0) | (deleted < 0) | (physical < 0) | more).argmax())
        path, *numbers = (files[name][row].as_py() for name in ("path", "size", "physical_rows", "deleted_rows"))
        raise DamagedTableError(
            "the log lists {} with {} bytes, {} rows, {} of them deleted".format(path, *numbers),
            at=snapshot,
            next_step="compare the log with the file, and restore an earlier version of the table",
        )
    live_bytes = size
    if len(some):
        live_bytes = size.copy()
        rows = some[known[some] & (physical[some] > 0)]
        # Rounded to whole bytes; float64 is exact far beyond any file's size.
        live_bytes[rows] = np.rint(size[rows] * ((physical[rows] - deleted[rows]) / physical[rows]))
    return FileFacts(
        partitions=tuple(codes.dictionary.to_pylist()),
        partition=ints(codes.indices.cast(pa.int64())),
        size=size,
        physical=physical,
        known=known,
        deleted=deleted,
        has_dv=valid(files["dv_id"]),
        live_bytes=live_bytes,
    )


def partition_mask(snapshot: Snapshot, facts: FileFacts, filters: tuple[Mapping[str, str | None], ...]) -> Bools:
    """Which files match one of the filters; without filters, all files.

    Raises
    ------
    UsageError : as :func:`~dv_maintenance.maintenance.planning.selection.select`.
    """
    if not filters:
        return np.ones(len(facts), np.bool_)
    from dv_maintenance.maintenance.planning.selection import select  # `dvm health` chooses no partitions

    return np.array(select(snapshot, facts.partitions, filters).fits, np.bool_)[facts.partition]


def ints(column: pa.ChunkedArray | pa.Array) -> Ints:
    """64-bit integers, nulls as 0."""
    array = combined(column) if isinstance(column, pa.ChunkedArray) else column
    values: Ints = numbers(array)
    return values if array.null_count == 0 else np.where(valid(array), values, 0)


def valid(column: pa.ChunkedArray | pa.Array) -> Bools:
    """Which values are not null."""
    if column.null_count in {0, len(column)}:
        return np.full(len(column), column.null_count == 0)
    mask: Bools = flags(pc.is_valid(column))
    return mask
