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
from dv_maintenance.tables.model import Snapshot

__all__ = ["Bools", "FileFacts", "Ints", "file_facts", "int64s", "partition_mask", "valid"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_FACTS: Final = "facts"
_EXACT: Final = 1 << 53


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
        if values.dtype == np.bool_:
            return np.bincount(partition if values.all() else partition[np.flatnonzero(values)], minlength=number)
        # Five times faster in floating point, which is exact while no sum can exceed its integers.
        if max(int(values.max(initial=0)), -int(values.min(initial=0))) * len(values) < _EXACT:
            return np.bincount(partition, values, minlength=number).astype(np.int64)
        sums = np.zeros(number, np.int64)
        np.add.at(sums, partition, values)
        return sums


def file_facts(snapshot: Snapshot) -> FileFacts:
    """The columns of ``snapshot.files``, computed once.

    Raises
    ------
    DamagedTableError : a negative size or row count, or a DV that names more rows than its file has.
    """
    found: FileFacts | None = snapshot.derived.get(_FACTS)
    if found is None:
        found = snapshot.derived[_FACTS] = _facts(snapshot)
    return found


def _facts(snapshot: Snapshot) -> FileFacts:
    files = snapshot.files
    codes = files["partition"].unify_dictionaries().combine_chunks()
    if isinstance(codes, pa.ChunkedArray):  # no chunks, no dictionary
        codes = pa.DictionaryArray.from_arrays(pa.nulls(0, pa.int32()), pa.nulls(0, pa.string()))
    size, deleted = int64s(files["size"]), int64s(files["deleted_rows"])
    physical, known = int64s(files["physical_rows"]), valid(files["physical_rows"])
    # Few files have deleted rows: everything about them is computed for them alone.
    some = np.flatnonzero(deleted)
    more = np.zeros(len(size), np.bool_)
    more[some] = known[some] & (deleted[some] > physical[some])
    if min((int(column.min(initial=0)) for column in (size, deleted, physical)), default=0) < 0 or more.any():
        row = int(((size < 0) | (deleted < 0) | (physical < 0) | more).argmax())
        path, *numbers = (files[name][row].as_py() for name in ("path", "size", "physical_rows", "deleted_rows"))
        raise DamagedTableError(
            "the log lists {} with {} bytes, {} rows, {} of them deleted".format(path, *numbers),
            table=snapshot.table,
            version=snapshot.version,
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
        partition=int64s(codes.indices.cast(pa.int64())),
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


def int64s(column: pa.ChunkedArray | pa.Array) -> Ints:
    """64-bit integers, nulls as 0."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not len(array):
        return np.zeros(0, np.int64)
    values = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array)]
    return values if array.null_count == 0 else np.where(valid(array), values, 0)


def valid(column: pa.ChunkedArray | pa.Array) -> Bools:
    """Which values are not null."""
    if column.null_count in {0, len(column)}:
        return np.full(len(column), column.null_count == 0)
    mask = pc.is_valid(column).cast(pa.uint8())
    array = mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask
    if not len(array):
        return np.zeros(0, np.bool_)
    return np.frombuffer(array.buffers()[1], np.uint8)[array.offset : array.offset + len(array)].astype(np.bool_)
