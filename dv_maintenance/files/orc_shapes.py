"""What Arrow's ORC writer does not store as it is, and what to do then."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyarrow import types

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


def inner(type: pa.DataType) -> list[pa.DataType]:
    """The types directly inside a type."""
    if types.is_map(type):
        return [type.key_type, type.item_type]
    return [type.field(index).type for index in range(type.num_fields)]
