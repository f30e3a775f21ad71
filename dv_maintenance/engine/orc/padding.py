"""CHAR of ORC files, which pad it with blanks: their readers strip them, and Arrow's does not know the type.

Where text is padded is a path for each place: names of a column and of fields in it, and ``element``, ``key`` and
``value`` of lists and maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.files.map_entries import is_entries


def stripped(batch: pa.RecordBatch, paths: Iterable[Sequence[str]]) -> pa.RecordBatch:
    """The batch without the blanks; paths of columns that it lacks are ignored."""
    for name, *below in paths:
        at = batch.schema.get_field_index(name)
        if at >= 0:
            batch = batch.set_column(at, name, _stripped(batch.column(at), below))
    return batch


def _stripped(array: pa.Array, path: Sequence[str]) -> pa.Array:
    kind = array.type
    if not path:
        return pc.utf8_rtrim(array, " ")
    first, below = path[0], path[1:]
    mask = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        inner = [array.field(at) for at in range(kind.num_fields)]
        at = kind.get_field_index(first)
        inner[at] = _stripped(inner[at], below)
        return pa.StructArray.from_arrays(inner, fields=list(kind), mask=mask)
    if types.is_map(kind):
        keys = _stripped(array.keys, below) if first == "key" else array.keys
        items = _stripped(array.items, below) if first == "value" else array.items
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    below = path if is_entries(kind) else below
    return pa.ListArray.from_arrays(array.offsets, _stripped(array.values, below), type=kind, mask=mask)
