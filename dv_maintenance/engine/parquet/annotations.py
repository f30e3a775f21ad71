"""Annotations of columns that Arrow's writer does not give: UUIDs and variants.

Format: parquet.thrift (apache/parquet-format), LogicalType.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyarrow import types

from dv_maintenance.files.thrift_compact import STRUCT, Struct, Value, list_of
from dv_maintenance.tables.model import LOGICAL

if TYPE_CHECKING:
    import pyarrow as pa

_ID: Final = b"PARQUET:field_id"
# FileMetaData, SchemaElement
_SCHEMA, _FIELD_ID, _LOGICAL_TYPE = 2, 9, 10
_BYTE: Final = 3
# UUID, without fields; VARIANT, with the version of its binary form.
_TYPES: Final = {
    b"uuid": Struct({14: Value(STRUCT, Struct({}).encode())}).encode(),
    b"variant": Struct({16: Value(STRUCT, Struct({1: Value(_BYTE, b"\1")}).encode())}).encode(),
}


def annotated(footer: bytes, schema: pa.Schema) -> bytes:
    """The footer of a file with this schema, with the annotations that its fields ask for (``model.LOGICAL``)."""
    wanted = dict(_wanted(schema))
    if not wanted:
        return footer
    file = Struct.parse(footer)
    elements = [Struct.parse(each) for each in file.list(_SCHEMA, STRUCT)]
    for element in elements:
        logical = wanted.get(element.integer(_FIELD_ID))
        if logical is not None:
            element.replace(_LOGICAL_TYPE, Value(STRUCT, _TYPES[logical]))
    file.replace(_SCHEMA, list_of(STRUCT, [each.encode() for each in elements]))
    return file.encode()


def _wanted(fields: Any) -> Iterator[tuple[int | None, bytes]]:
    """Field ids of annotated fields at all levels, and their annotations."""
    for each in fields:
        metadata, kind = each.metadata or {}, each.type
        if LOGICAL in metadata:
            if _ID in metadata:
                yield int(metadata[_ID]), metadata[LOGICAL]
        elif types.is_struct(kind):
            yield from _wanted(kind)
        elif types.is_map(kind):
            yield from _wanted((kind.key_field, kind.item_field))
        elif types.is_list(kind):
            yield from _wanted((kind.value_field,))
