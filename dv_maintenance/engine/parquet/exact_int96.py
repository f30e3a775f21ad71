"""Nanoseconds of timestamps in INT96, as Paimon stores those with more than six digits.

Arrow reads INT96 as microseconds, which cuts digits off, or as nanoseconds, which wrap around outside 1677 to 2262, and
it takes nanoseconds of a day for positive, which they are not before 1970 in Paimon's files. So the bytes are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.parquet.int96 import holds_marked, nanoseconds, with_leaves
from dv_maintenance.engine.parquet.projection import leaf_count
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.parquet_footer import open_parquet_file, with_bytes
from dv_maintenance.remedies import Remedy, setting

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.projection import Projection

_LEAVE_OUT: Final = Remedy("leave the column out with {}, or read the table with its own engine", (setting("columns"),))


class ExactTimes:
    """The columns of one file that are read with nanoseconds. A row group of them is in memory at once. Where the task
    wants their bytes (``int96.marked``), these are what is read: they hold every year.

    columns : the leaves of each, by its position in batches.
    """

    def __init__(self, file: pa.NativeFile, footer: Any, stored: pa.Schema, projection: Projection) -> None:
        self.columns, self._raw = _columns(footer, stored, projection)
        self._stored = stored
        self._opened: Any = None
        if self.columns:
            leaves = [leaf for each in self.columns.values() for leaf in each]
            int96 = [leaf for leaf in leaves if footer.schema.column(leaf).physical_type == "INT96"]
            self._opened = open_parquet_file(file, with_bytes(footer, int96))
        self._group, self._first = -1, 0
        self._arrays: dict[int, pa.Array] = {}

    def __call__(self, batch: pa.RecordBatch, group: int) -> pa.RecordBatch:
        """The next batch of a row group, with nanoseconds.

        Raises
        ------
        RefusedError : names a column with a timestamp that 64 bits of nanoseconds do not hold.
        """
        if group != self._group and self.columns:
            self._group, self._first = group, 0
            self._arrays = {at: self._read(at, batch.schema.field(at)) for at in self.columns}
        for at, whole in self._arrays.items():
            exact = whole.slice(self._first, batch.num_rows)
            batch = batch.set_column(at, pa.field(batch.schema.names[at], exact.type), exact)
        self._first += batch.num_rows
        return batch

    def _read(self, at: int, stored: pa.Field) -> pa.Array:
        table = self._opened.reader.read_row_group(self._group, column_indices=list(self.columns[at]))
        whole = pa.concat_arrays(table.column(0).chunks)
        if at in self._raw:
            return whole
        try:
            return with_leaves(whole, stored.type, _exact)
        except OverflowError as error:
            raise RefusedError(
                f"column {stored.name} holds a timestamp with nanoseconds before 1677 or after 2262, for which Arrow "
                "has no type",
                next_step=_LEAVE_OUT,
            ) from error


def _exact(leaf: pa.Array, stored: pa.DataType) -> pa.Array:
    """Timestamps instead of their bytes. Raises OverflowError."""
    return nanoseconds(leaf) if types.is_timestamp(stored) and types.is_fixed_size_binary(leaf.type) else leaf


def _columns(footer: Any, stored: pa.Schema, projection: Projection) -> tuple[dict[int, tuple[int, ...]], set[int]]:
    """The leaves of each column with nanoseconds, by its position in batches, and those whose bytes are wanted."""
    raw = {field.name for field in projection.schema if holds_marked(field)}
    names = raw | {field.name for field in projection.schema if _holds_nanos(field.type)}
    leaf_of = {
        leaf: name
        for path, leaf in projection.origins.items()
        for name in names
        if (path == name or path.startswith(f"{name}.")) and footer.schema.column(leaf).physical_type == "INT96"
    }
    found, bytes_wanted, first = {}, set(), 0
    if not leaf_of:
        return {}, set()
    for number, field in enumerate(stored):
        leaves = range(first, first := first + leaf_count(field.type))
        if wanted := [leaf for leaf in leaves if leaf in leaf_of]:
            at = projection.fields.index(number)
            found[at] = tuple(leaf for leaf in leaves if leaf in projection.leaves)
            if leaf_of[wanted[0]] in raw:
                bytes_wanted.add(at)
    return found, bytes_wanted


def _holds_nanos(kind: pa.DataType) -> bool:
    if types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(_holds_nanos(kind.field(at).type) for at in range(kind.num_fields))
