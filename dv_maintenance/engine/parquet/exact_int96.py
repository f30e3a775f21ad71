"""Nanoseconds of timestamps in INT96, as Paimon stores those with more than six digits.

Arrow reads INT96 as microseconds, which cuts digits off, or as nanoseconds, which wrap around outside 1677 to 2262, and
it takes nanoseconds of a day for positive, which they are not before 1970 in Paimon's files. So the bytes are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.parquet.projection import leaf_count
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.parquet_footer import open_parquet_file, with_bytes
from dv_maintenance.remedies import Remedy, setting

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.projection import Projection

_LEAVE_OUT: Final = Remedy("leave the column out with {}, or read the table with its own engine", (setting("columns"),))
_STORED: Final = np.dtype([("nanos", "<i8"), ("day", "<i4")])
_EPOCH: Final = 2_440_588  # the Julian day of 1970-01-01
_DAY: Final = 86_400
_SECOND: Final = 1_000_000_000
_MOST: Final = (1 << 63) // _SECOND - 1  # seconds


class ExactTimes:
    """The columns of one file that are read with nanoseconds. A row group of them is in memory at once.

    columns : the leaves of each, by its position in batches.
    """

    def __init__(self, file: pa.NativeFile, footer: Any, stored: pa.Schema, projection: Projection) -> None:
        self.columns = _columns(footer, stored, projection)
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
            self._arrays = {at: self._read(batch.schema.field(at), leaves) for at, leaves in self.columns.items()}
        for at, whole in self._arrays.items():
            exact = whole.slice(self._first, batch.num_rows)
            batch = batch.set_column(at, pa.field(batch.schema.names[at], exact.type), exact)
        self._first += batch.num_rows
        return batch

    def _read(self, stored: pa.Field, leaves: Sequence[int]) -> pa.Array:
        table = self._opened.reader.read_row_group(self._group, column_indices=list(leaves))
        try:
            return _exact(pa.concat_arrays(table.column(0).chunks), stored.type)
        except OverflowError as error:
            raise RefusedError(
                f"column {stored.name} holds a timestamp with nanoseconds before 1677 or after 2262, for which Arrow "
                "has no type",
                next_step=_LEAVE_OUT,
            ) from error


def _exact(array: pa.Array, stored: pa.DataType) -> pa.Array:
    """The array with timestamps instead of their bytes. ``stored``: its type with timestamps of any unit."""
    kind, mask = array.type, array.is_null() if array.null_count else None
    if types.is_timestamp(stored):
        return _nanoseconds(array) if types.is_fixed_size_binary(kind) else array
    if types.is_struct(kind):
        inner = [_exact(array.field(at), stored.field(at).type) for at in range(kind.num_fields)]
        fields = [field.with_type(each.type) for field, each in zip(kind, inner, strict=True)]
        return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
    if types.is_map(kind):
        keys, items = _exact(array.keys, stored.key_type), _exact(array.items, stored.item_type)
        found = pa.map_(kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=found, mask=mask)
    if types.is_list(kind):
        values = _exact(array.values, stored.value_type)
        found = pa.list_(kind.value_field.with_type(values.type))
        return pa.ListArray.from_arrays(array.offsets, values, type=found, mask=mask)
    return array


def _nanoseconds(array: pa.FixedSizeBinaryArray) -> pa.Array:
    """Raises OverflowError: one is out of range."""
    count = len(array)
    stored = np.frombuffer(array.buffers()[1] or b"", _STORED, count, _STORED.itemsize * array.offset)
    seconds, fraction = np.divmod(stored["nanos"], _SECOND)
    seconds = seconds + (stored["day"].astype(np.int64) - _EPOCH) * _DAY
    seconds[~array.is_valid().to_numpy(zero_copy_only=False)] = 0
    if (np.abs(seconds) > _MOST).any():
        raise OverflowError
    validity = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(pa.timestamp("ns"), count, [validity, pa.py_buffer(seconds * _SECOND + fraction)])


def _columns(footer: Any, stored: pa.Schema, projection: Projection) -> dict[int, tuple[int, ...]]:
    names = [field.name for field in projection.schema if _holds_nanos(field.type)]
    if not names:
        return {}
    wanted = {
        leaf
        for path, leaf in projection.origins.items()
        if any(path == name or path.startswith(f"{name}.") for name in names)
        and footer.schema.column(leaf).physical_type == "INT96"
    }
    found, first = {}, 0
    for number, field in enumerate(stored):
        leaves = range(first, first := first + leaf_count(field.type))
        if wanted.intersection(leaves):
            read = tuple(leaf for leaf in leaves if leaf in projection.leaves)
            found[projection.fields.index(number)] = read
    return found


def _holds_nanos(kind: pa.DataType) -> bool:
    if types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(_holds_nanos(kind.field(at).type) for at in range(kind.num_fields))
