"""Timestamps as Parquet's INT96: the nanoseconds of a day, and its Julian number.

Paimon stores timestamps of more than six digits so, with a negative time of day before 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import types

_STORED: Final = np.dtype([("nanos", "<i8"), ("day", "<i4")])
_EPOCH: Final = 2_440_588  # the Julian day of 1970-01-01
_DAY: Final = 86_400
_SECOND: Final = 1_000_000_000
_MOST: Final = (1 << 63) // _SECOND - 1  # seconds
BYTES: Final = pa.binary(_STORED.itemsize)
"""The values as they are stored."""
_PER_MILLI: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_MARK: Final = {b"parquet.type": b"INT96"}


def nanoseconds(stored: pa.FixedSizeBinaryArray) -> pa.Array:
    """Timestamps from their bytes. Raises OverflowError: 64 bits of nanoseconds do not hold one."""
    count = len(stored)
    values = np.frombuffer(stored.buffers()[1] or b"", _STORED, count, _STORED.itemsize * stored.offset)
    seconds, fraction = np.divmod(values["nanos"], _SECOND)
    seconds = seconds + (values["day"].astype(np.int64) - _EPOCH) * _DAY
    seconds[~stored.is_valid().to_numpy(zero_copy_only=False)] = 0
    if (np.abs(seconds) > _MOST).any():
        raise OverflowError
    buffers = [_validity(stored), pa.py_buffer(seconds * _SECOND + fraction)]
    return pa.Array.from_buffers(pa.timestamp("ns"), count, buffers)


def in_bytes(array: pa.Array) -> pa.Array:
    """The bytes of timestamps, which are theirs already where a reader kept them."""
    return array if array.type == BYTES else as_bytes(array)


def as_bytes(array: pa.TimestampArray) -> pa.Array:
    """The bytes of timestamps of any unit but seconds, as Paimon's writer stores them."""
    count, per_milli = len(array), _PER_MILLI[array.type.unit]
    values = np.frombuffer(array.buffers()[1] or b"", "<i8", count, 8 * array.offset)
    millis, below = np.divmod(values, per_milli)
    below = below * (1_000_000 // per_milli)
    # Towards zero, as Java divides.
    left = np.fmod(millis, _DAY * 1000)
    stored = np.zeros(count, _STORED)
    stored["nanos"], stored["day"] = left * 1_000_000 + below, (millis - left) // (_DAY * 1000) + _EPOCH
    return pa.Array.from_buffers(BYTES, count, [_validity(array), pa.py_buffer(stored)])


def _validity(array: pa.Array) -> pa.Buffer | None:
    return array.is_valid().buffers()[1] if array.null_count else None


def marked(schema: pa.Schema, but: Collection[str] = ()) -> pa.Schema:
    """The schema with bytes for each timestamp of nanoseconds, and a mark that the footer is to say INT96. ``but``: the
    columns to leave as they are.
    """
    return pa.schema([each if each.name in but else _marked(each) for each in schema], schema.metadata)


def _marked(field: pa.Field) -> pa.Field:
    kind = field.type
    if types.is_timestamp(kind):
        return field.with_type(BYTES).with_metadata({**(field.metadata or {}), **_MARK}) if kind.unit == "ns" else field
    if types.is_struct(kind):
        return field.with_type(pa.struct([_marked(each) for each in kind]))
    if types.is_map(kind):
        return field.with_type(pa.map_(_marked(kind.key_field), _marked(kind.item_field)))
    if types.is_list(kind):
        return field.with_type(pa.list_(_marked(kind.value_field)))
    return field


def is_marked(field: pa.Field) -> bool:
    """Whether the footer is to say INT96."""
    return _MARK.items() <= (field.metadata or {}).items()


def holds_marked(field: pa.Field) -> bool:
    """Whether it is marked, or a field nested in it is."""
    return is_marked(field) or any(holds_marked(field.type.field(at)) for at in range(field.type.num_fields))


def stored_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with bytes instead of timestamps of nanoseconds. ``schema``: as it is ``marked``."""
    columns = [
        column if column.type == field.type else with_leaves(column, field.type, _stored)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _stored(leaf: pa.Array, kind: pa.DataType) -> pa.Array:
    return as_bytes(leaf) if types.is_timestamp(leaf.type) and kind == BYTES else leaf


def with_leaves(array: pa.Array, like: pa.DataType, change: Callable[[pa.Array, pa.DataType], pa.Array]) -> pa.Array:
    """The array with its leaves changed; each is passed with its type in ``like``, which is nested in the same way."""
    kind = array.type
    if not (types.is_struct(kind) or types.is_map(kind) or types.is_list(kind)):
        return change(array, like)
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    mask = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        inner = [with_leaves(array.field(at), like.field(at).type, change) for at in range(kind.num_fields)]
        fields = [field.with_type(each.type) for field, each in zip(kind, inner, strict=True)]
        return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
    if types.is_map(kind):
        keys, items = with_leaves(array.keys, like.key_type, change), with_leaves(array.items, like.item_type, change)
        found = pa.map_(kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=found, mask=mask)
    values = with_leaves(array.values, like.value_type, change)
    found = pa.list_(kind.value_field.with_type(values.type))
    return pa.ListArray.from_arrays(array.offsets, values, type=found, mask=mask)
