"""Timestamps as Parquet's INT96: the nanoseconds of a day, and its Julian number.

Paimon stores timestamps of more than six digits so, with a negative time of day before 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.files.map_entries import fields_of, is_map, joined, parts_of

_STORED: Final = np.dtype([("nanos", "<i8"), ("day", "<i4")])
_EPOCH: Final = 2_440_588  # the Julian day of 1970-01-01
_DAY: Final = 86_400
_SECOND: Final = 1_000_000_000
_MOST: Final = (1 << 63) // _SECOND - 1  # seconds
BYTES: Final = pa.binary(_STORED.itemsize)
"""The values as they are stored."""
UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": _SECOND}
"""Of a second."""
_MARK: Final = {b"parquet.type": b"INT96"}
_ZONE: Final = b"dvm:zone"


def halves(array: pa.Array) -> tuple[Any, Any]:
    """Seconds since 1970, rounded down, and the nanoseconds above them: of timestamps, or of their bytes. What lies
    under a null is 0.
    """
    if array.type == BYTES:
        width = _STORED.itemsize
        stored = np.frombuffer(array.buffers()[1] or b"", _STORED, len(array), width * array.offset)
        more, nanos = np.divmod(stored["nanos"], _SECOND)
        seconds = more + (stored["day"].astype(np.int64) - _EPOCH) * _DAY
    else:
        per = UNITS[array.type.unit]
        seconds, nanos = np.divmod(np.frombuffer(array.buffers()[1] or b"", "<i8", len(array), 8 * array.offset), per)
        nanos = nanos * (_SECOND // per)
    if array.null_count:
        null = ~array.is_valid().to_numpy(zero_copy_only=False)
        seconds[null] = nanos[null] = 0
    return seconds, nanos


def from_halves(seconds: Any, nanos: Any, like: pa.Array) -> pa.Array:
    """The bytes of timestamps, see :func:`halves`, as Paimon's writer stores them. ``like``: has the same nulls."""
    millis, below = seconds * 1000 + nanos // 1_000_000, nanos % 1_000_000
    # Towards zero, as Java divides.
    left = np.fmod(millis, _DAY * 1000)
    stored = np.zeros(len(like), _STORED)
    stored["nanos"], stored["day"] = left * 1_000_000 + below, (millis - left) // (_DAY * 1000) + _EPOCH
    return pa.Array.from_buffers(BYTES, len(like), [_validity(like), pa.py_buffer(stored)])


def nanoseconds(stored: pa.FixedSizeBinaryArray, zone: str | None = None) -> pa.Array:
    """Timestamps from their bytes. Raises OverflowError: 64 bits of nanoseconds do not hold one."""
    seconds, nanos = halves(stored)
    if (np.abs(seconds) > _MOST).any():
        raise OverflowError
    buffers = [_validity(stored), pa.py_buffer(seconds * _SECOND + nanos)]
    return pa.Array.from_buffers(pa.timestamp("ns", zone), len(stored), buffers)


def in_bytes(array: pa.Array) -> pa.Array:
    """The bytes of timestamps, or bytes that a reader kept, as Paimon's writer stores them."""
    return from_halves(*halves(array), array)


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
        if kind.unit != "ns":
            return field
        zone = {_ZONE: kind.tz.encode()} if kind.tz else {}
        return field.with_type(BYTES).with_metadata({**(field.metadata or {}), **_MARK, **zone})
    if types.is_struct(kind):
        return field.with_type(pa.struct([_marked(each) for each in kind]))
    if types.is_map(kind):
        return field.with_type(pa.map_(_marked(kind.key_field), _marked(kind.item_field)))
    if types.is_list(kind):
        return field.with_type(pa.list_(_marked(kind.value_field)))
    return field


def unmarked(field: pa.Field) -> pa.Field:
    """A field, as it was before it was marked, maps in either form included."""
    kind, metadata = field.type, dict(field.metadata or {})
    if is_marked(field):
        zone = metadata.pop(_ZONE, b"").decode() or None
        rest = {key: value for key, value in metadata.items() if key not in _MARK}
        return field.with_type(pa.timestamp("ns", zone)).with_metadata(rest or None)
    if types.is_struct(kind):
        return field.with_type(pa.struct([*map(unmarked, kind)]))
    if types.is_map(kind):
        return field.with_type(pa.map_(unmarked(kind.key_field), unmarked(kind.item_field)))
    return field.with_type(pa.list_(unmarked(kind.value_field))) if types.is_list(kind) else field


def marks_of(field: pa.Field) -> dict[bytes, bytes]:
    """The part of a field's metadata that marks it."""
    return {key: value for key, value in (field.metadata or {}).items() if key in _MARK or key == _ZONE}


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
    return in_bytes(leaf) if types.is_timestamp(leaf.type) and kind == BYTES else leaf


def with_leaves(array: pa.Array, like: pa.DataType, change: Callable[[pa.Array, pa.DataType], pa.Array]) -> pa.Array:
    """The array with its leaves changed; each is passed with its type in ``like``, which is nested in the same way.
    Maps get the form that they have there, but a null key makes them lists of entries.
    """
    kind = array.type
    # A struct without fields would lose its length, too.
    if not kind.num_fields or not (types.is_struct(kind) or types.is_map(kind) or types.is_list(kind)):
        return change(array, like)
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    mask = array.is_null() if array.null_count else None
    if types.is_struct(kind):
        inner = [with_leaves(array.field(at), like.field(at).type, change) for at in range(kind.num_fields)]
        fields = [field.with_type(each.type) for field, each in zip(kind, inner, strict=True)]
        return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
    if is_map(kind):
        below = zip(parts_of(array), fields_of(like), strict=True)
        keys, items = (with_leaves(each, field.type, change) for each, field in below)
        return joined(array.offsets, keys, items, like, mask)
    values = with_leaves(array.values, like.value_type, change)
    found = pa.list_(kind.value_field.with_type(values.type))
    return pa.ListArray.from_arrays(array.offsets, values, type=found, mask=mask)
