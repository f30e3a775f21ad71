"""What Arrow's ORC writer does not store as it is, and what to do then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.files.map_entries import fields_of, is_map

NOT_ORC: Final = (
    "let the table's own engine do it, or let new files be Parquet (file.format of Paimon's tables, "
    "write.format.default of Iceberg's)"
)
"""What to do instead of writing ORC files here."""


def is_lossy(type: pa.DataType, in_struct: bool = False, in_list: bool = False) -> bool:
    """Whether a struct is inside both a struct and a list or map, in either order: such values are lost next to
    nulls. A struct without fields can't be written at all.
    """
    if types.is_struct(type):
        return (
            (in_struct and in_list) or not type.num_fields or any(is_lossy(field.type, True, in_list) for field in type)
        )
    return any(is_lossy(each, in_struct, True) for each in inner(type))


def keys_of(schema: pa.Schema, fields: Collection[int]) -> dict[int, int]:
    """The keys of maps in these columns of a file: to which column each belongs, by its id in the file."""
    found: dict[int, int] = {}
    number = 1  # 0 is the row itself; then each column comes before its parts
    for at, field in enumerate(schema):
        parts = [*_is_key(field.type)]
        if at in fields:
            found |= {number + below: at for below, key in enumerate(parts) if key}
        number += len(parts)
    return found


def _is_key(type: pa.DataType, *, key: bool = False) -> Iterator[bool]:
    """For a type and each of its parts, in the order of their ids in a file, whether it is the key of a map."""
    yield key
    for at, each in enumerate(inner(type)):
        yield from _is_key(each, key=is_map(type) and not at)


def holds(type: pa.DataType, check: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one inside it, is of a kind."""
    return check(type) or any(holds(each, check) for each in inner(type))


def inner(type: pa.DataType) -> list[pa.DataType]:
    """The types directly inside a type."""
    if is_map(type):
        return [each.type for each in fields_of(type)]
    return [type.field(index).type for index in range(type.num_fields)]
