"""Annotations of columns that Arrow's writer does not give: UUIDs, variants, and shapes.

Format: parquet.thrift (apache/parquet-format), LogicalType.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyarrow import types

from dv_maintenance.engine.parquet.int96 import is_marked
from dv_maintenance.files.parquet_footer import with_int96
from dv_maintenance.files.thrift_compact import BINARY, I32, STRUCT, Struct, Value, list_of
from dv_maintenance.files.varint import varint, zigzag
from dv_maintenance.tables.model import LOGICAL, SHAPES

if TYPE_CHECKING:
    import pyarrow as pa

_ID: Final = b"PARQUET:field_id"
# FileMetaData, SchemaElement
_SCHEMA, _LOGICAL_TYPE = 2, 10
_BYTE: Final = 3
# UUID, without fields; VARIANT, with the version of its binary form.
_TYPES: Final = {
    b"uuid": Struct({14: Value(STRUCT, Struct({}).encode())}).encode(),
    b"variant": Struct({16: Value(STRUCT, Struct({1: Value(_BYTE, b"\1")}).encode())}).encode(),
}
_GEOMETRY, _GEOGRAPHY = 17, 18
# EdgeInterpolationAlgorithm
# Writers leave these out.
_DEFAULT_REFERENCE, _DEFAULT_EDGES = b"OGC:CRS84", b"spherical"
_EDGES: Final = ("spherical", "vincenty", "thomas", "andoyer", "karney")


def annotated(footer: bytes, schema: pa.Schema) -> bytes:
    """The footer of a file that Arrow wrote with this schema, with the annotations that its fields ask for
    (``model.LOGICAL``, ``model.SHAPES``), and INT96 where they are so marked.
    """
    wanted = [_annotation({} if each is None else each.metadata or {}) for each in _elements(schema)]
    if int96 := leaves_of_int96(schema):
        footer = with_int96(footer, int96)
    if not any(wanted):
        return footer
    file = Struct.parse(footer)
    root, *elements = (Struct.parse(each) for each in file.list(_SCHEMA, STRUCT))
    for element, logical in zip(elements, wanted, strict=True):
        if logical:
            element.replace(_LOGICAL_TYPE, Value(STRUCT, logical))
    file.replace(_SCHEMA, list_of(STRUCT, [each.encode() for each in (root, *elements)]))
    return file.encode()


def leaves_of_shapes(schema: pa.Schema) -> set[int]:
    """The leaves of Parquet's schema that hold shapes, whose bytes have no order."""
    return {at for at, leaf in enumerate(_leaves(schema)) if SHAPES in (leaf.metadata or {})}


def leaves_of_int96(schema: pa.Schema) -> set[int]:
    """The leaves of Parquet's schema that are INT96, see ``int96.marked``. Their bytes have no order either."""
    return {at for at, leaf in enumerate(_leaves(schema)) if is_marked(leaf)}


def _leaves(schema: pa.Schema) -> list[pa.Field]:
    return [each for each in _elements(schema) if each is not None and not types.is_nested(each.type)]


def _elements(fields: Any) -> Iterator[pa.Field | None]:
    """The fields of all levels in the order of Parquet's elements; ``None`` for the repeated level of a list or map."""
    for each in fields:
        yield each
        kind = each.type
        if types.is_struct(kind):
            yield from _elements(kind)
        elif types.is_map(kind):
            yield None
            yield from _elements((kind.key_field, kind.item_field))
        elif types.is_list(kind):
            yield None
            yield from _elements((kind.value_field,))


def _annotation(metadata: Mapping[bytes, bytes]) -> bytes:
    """Empty where Arrow's own is right."""
    if SHAPES in metadata:
        return _of_shapes(metadata[SHAPES])
    return _TYPES[metadata[LOGICAL]] if LOGICAL in metadata and _ID in metadata else b""


def _of_shapes(shapes: bytes) -> bytes:
    edges, _, reference = shapes.partition(b" ")
    fields = {} if reference == _DEFAULT_REFERENCE else {1: Value(BINARY, varint(len(reference)) + reference)}
    if edges not in (b"planar", _DEFAULT_EDGES):
        fields[2] = Value(I32, varint(zigzag(_EDGES.index(edges.decode()))))
    kind = _GEOMETRY if edges == b"planar" else _GEOGRAPHY
    return Struct({kind: Value(STRUCT, Struct(fields).encode())}).encode()
