"""Maps as lists of their entries. Arrow's own type of maps has no null keys, which those of ORC files may have."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyarrow import types

_MARK: Final = {b"dvm:entries": b""}


def as_entries(kind: pa.DataType) -> pa.DataType:
    """The type with a list of entries for each map."""
    if types.is_map(kind):
        key, item = (_in_field(each) for each in (kind.key_field, kind.item_field))
        return pa.list_(pa.field("entries", pa.struct([key.with_nullable(True), item]), metadata=_MARK))
    if types.is_struct(kind):
        return pa.struct([*map(_in_field, kind)])
    return pa.list_(_in_field(kind.value_field)) if types.is_list(kind) else kind


def _in_field(field: pa.Field) -> pa.Field:
    return field.with_type(as_entries(field.type))


def is_entries(kind: pa.DataType) -> bool:
    """Whether it is a list of entries instead of a map."""
    return bool(types.is_list(kind)) and _MARK.items() <= (kind.value_field.metadata or {}).items()


def is_map(kind: pa.DataType) -> bool:
    """Whether it is a map in either form."""
    return bool(types.is_map(kind)) or is_entries(kind)


def holds_maps(kind: pa.DataType) -> bool:
    """Whether it is or contains a map in either form."""
    return is_map(kind) or any(holds_maps(kind.field(at).type) for at in range(kind.num_fields))


def fields_of(kind: pa.DataType) -> tuple[pa.Field, pa.Field]:
    """The key and the value of a map in either form."""
    if types.is_map(kind):
        return kind.key_field, kind.item_field
    return kind.value_type.field(0), kind.value_type.field(1)


def parts_of(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Keys and values of maps in either form, to which their offsets refer."""
    if types.is_map(array.type):
        return array.keys, array.items
    return array.values.field(0), array.values.field(1)


def joined(
    offsets: pa.Array, keys: pa.Array, items: pa.Array, kind: pa.DataType, mask: pa.Array | None = None
) -> pa.Array:
    """Maps in the form of ``kind``, but as lists of entries if a key is null."""
    key, item = (field.with_type(each.type) for field, each in zip(fields_of(kind), (keys, items), strict=True))
    if types.is_map(kind) and not keys.null_count:
        return pa.MapArray.from_arrays(offsets, keys, items, type=pa.map_(key, item), mask=mask)
    fields = [key.with_nullable(True), item]
    found = pa.list_(pa.field("entries", pa.struct(fields), metadata=_MARK))
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([keys, items], fields=fields), found, mask=mask)
