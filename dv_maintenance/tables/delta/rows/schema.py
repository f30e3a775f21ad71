"""The table's schema as Arrow: under the names that users see, and as data files hold it.

A Delta schema is JSON in the log (protocol: Schema Serialization Format), so nothing about it is taken for granted.
Violations of the format are reported as damage. Types that newer formats may have added are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.tables.model import DELTA_TYPE, LIMITED, REQUIRED, SHAPES, shapes_of

if TYPE_CHECKING:
    from dv_maintenance.tables.delta.log.actions import Metadata

_SOURCE: Final = b"dvm:source"
_FIELD_ID: Final = b"PARQUET:field_id"
_COMMENT: Final = b"comment"

# Maximum nesting of types. Spark's own limits are far lower; the limit of Python's stack is not far above.
_MAX_DEPTH: Final = 100

_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
    "null": pa.null(),
}

# As delta-rs spells them. Spark has no such types, and writers truncate their bounds.
_NANOS: Final = {"timestamp_nanos": pa.timestamp("ns", tz="UTC"), "timestamp_nanos_ntz": pa.timestamp("ns")}

# Spark refuses to read a variant whose parts are not required.
_VARIANT: Final = pa.struct(
    [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)]
)


def column_mapping_mode(metadata: Metadata) -> str:
    """``none``, ``name`` or ``id`` (protocol: Column Mapping).

    Raises
    ------
    RefusedError : the table has an unknown mode.
    """
    mode = metadata.configuration.get("delta.columnMapping.mode", "none").lower()
    if mode not in {"none", "name", "id"}:
        raise RefusedError(f"unknown column mapping mode {mode!r}")
    return mode


def arrow_schema(metadata: Metadata, *, any_null: bool = False) -> pa.Schema:
    """The schema under logical names, partition columns included, in the table's order; void columns are ``null``.

    Under column mapping every field, nested ones too, carries its physical name as ``dvm:source`` and its id as
    ``PARQUET:field_id``; elements, keys and values do so if the table gives them ids (IcebergCompat). A column's
    comment is in ``comment``, and its CHAR or VARCHAR type in ``model.LIMITED``.

    any_null : everything but map keys may be null, as rows of older versions than this schema's may be.

    Raises
    ------
    DamagedTableError : the schema is malformed, or lacks a partition column.
    RefusedError : the schema has a type that we don't know.
    """
    schema = _convert(metadata.schema_string, column_mapping_mode(metadata) != "none", False, any_null)
    for name in metadata.partition_columns:
        if name not in schema.names:
            raise DamagedTableError(f"the partition column {name!r} is not in the table's schema")
        if delta_kind(schema.field(name)) == "nanos":
            raise RefusedError(f"the partition column {name!r} holds nanoseconds, which this release does not read")
    return schema


def physical_schema(metadata: Metadata, *, partitions: bool = False) -> pa.Schema:
    """The schema of a data file: physical names and field ids, no void columns; with ``partitions``, also the partition
    columns.

    Everything but map keys is nullable, as in the files that Spark writes. What is NOT NULL is marked as ``REQUIRED``.

    Raises
    ------
    As :func:`arrow_schema`.
    """
    left_out = set() if partitions else set(partition_physical_names(metadata).values())
    schema = _convert(metadata.schema_string, column_mapping_mode(metadata) != "none", True, True)
    return pa.schema([field for field in schema if field.name not in left_out])


def physical_name(field: pa.Field) -> str:
    """The name that data files, statistics and partition values use for a field of :func:`arrow_schema`."""
    source = (field.metadata or {}).get(_SOURCE)
    return str(field.name) if source is None else source.decode()


def partition_physical_names(metadata: Metadata) -> dict[str, str]:
    """Logical to physical name of each partition column, in partition order."""
    schema = arrow_schema(metadata)
    return {name: physical_name(schema.field(name)) for name in metadata.partition_columns}


def delta_kind(field: pa.Field) -> str | None:
    """``variant``, ``udt``, ``collated``, ``nanos`` or ``geo``: what Arrow's type does not show, or Spark lacks."""
    kind = (field.metadata or {}).get(DELTA_TYPE)
    return None if kind is None else kind.decode()


def is_void(type: pa.DataType) -> bool:
    """Whether Parquet cannot store the type: void, lists and structs of nothing else, maps with a void key or value."""
    if pa.types.is_struct(type):
        return all(is_void(field.type) for field in type)
    if pa.types.is_list(type):
        return is_void(type.value_type)
    if pa.types.is_map(type):
        return is_void(type.key_type) or is_void(type.item_type)
    return bool(pa.types.is_null(type))


@lru_cache(maxsize=16)
def _convert(schema_string: str, mapped: bool, physical: bool, any_null: bool) -> pa.Schema:
    try:
        body = orjson.loads(schema_string)
    except (orjson.JSONDecodeError, TypeError) as error:
        raise DamagedTableError(f"the table's schema is not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("type") != "struct":
        raise DamagedTableError("the table's schema is not a struct")
    return pa.schema(_Converter(mapped, physical, any_null).fields(body, "", 0))


@dataclass(frozen=True, slots=True)
class _Arrow:
    """A converted type; ``kind`` as :func:`delta_kind`, ``shapes`` as ``model.SHAPES``."""

    type: pa.DataType
    kind: str | None = None
    shapes: str | None = None

    def field(
        self,
        name: str,
        *,
        nullable: bool,
        field_id: int | None = None,
        source: str | None = None,
        comment: str | None = None,
        limited: str | None = None,
        required: str | None = None,
    ) -> pa.Field:
        metadata = {}
        if source is not None:
            metadata[_SOURCE] = source.encode()
        if field_id is not None:
            metadata[_FIELD_ID] = str(field_id).encode()
        if self.kind is not None:
            metadata[DELTA_TYPE] = self.kind.encode()
        if self.shapes is not None:
            metadata[SHAPES] = self.shapes.encode(errors="replace")
        if comment:
            metadata[_COMMENT] = comment.encode(errors="replace")
        if limited:
            metadata[LIMITED] = limited.encode(errors="replace")
        if required is not None:
            metadata[REQUIRED] = required.encode(errors="replace")
        # Arrow's null type must be nullable.
        return pa.field(name, self.type, nullable=nullable or pa.types.is_null(self.type), metadata=metadata or None)


@dataclass(frozen=True, slots=True)
class _Mapping:
    """A field's name and id in data files. ``nested_ids``: ids of the elements, keys and values in it, by path."""

    name: str
    id: int | None = None
    nested_ids: Mapping[str, Any] = field(default_factory=dict)


def _mapping(metadata: dict[str, Any], column: str) -> _Mapping:
    name = metadata.get("delta.columnMapping.physicalName")
    if not isinstance(name, str) or not name:
        raise _damaged(column, "no physical name, though the table maps columns")
    nested_ids = metadata.get("delta.columnMapping.nested.ids") or {}
    if not isinstance(nested_ids, dict):
        raise _damaged(column, "the nested field ids are not an object")
    return _Mapping(name, _id(metadata.get("delta.columnMapping.id"), column), nested_ids)


@dataclass(frozen=True, slots=True)
class _Inside:
    """The place of a type: ``column`` for messages, ``path`` for its id in the ``ids`` of the nearest field above."""

    column: str
    ids: Mapping[str, Any]
    path: str
    depth: int

    def below(self, part: str) -> _Inside:
        return _Inside(f"{self.column}.{part}", self.ids, f"{self.path}.{part}", self.depth + 1)

    def field_id(self) -> int | None:
        return None if self.path not in self.ids else _id(self.ids[self.path], self.column)


@dataclass(frozen=True, slots=True)
class _Converter:
    mapped: bool
    physical: bool
    any_null: bool

    def fields(self, body: dict[str, Any], column: str, depth: int) -> list[pa.Field]:
        fields = body.get("fields")
        if not isinstance(fields, list):
            raise _damaged(column, "a struct without a list of fields")
        converted = [self.field(item, column, depth) for item in fields]
        # Logical and physical names are separate: after a rename, one field's name may be the physical name of another.
        for names in (Counter(found.name for found in converted), Counter(map(physical_name, converted))):
            name, count = max(names.items(), key=itemgetter(1), default=("", 0))
            if count > 1:
                raise _damaged(column, f"two fields are named {name!r}")
        return [found for found in converted if not (self.physical and is_void(found.type))]

    def field(self, body: Any, parent: str, depth: int) -> pa.Field:
        name = body.get("name") if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise _damaged(parent, "a field without a name")
        column = f"{parent}.{name}" if parent else name
        metadata, nullable = body.get("metadata", {}), body.get("nullable", True)
        if not isinstance(metadata, dict) or not isinstance(nullable, bool):
            raise _damaged(column, "'metadata' must be an object and 'nullable' a boolean")
        mapping = _mapping(metadata, column) if self.mapped else _Mapping(name)
        arrow = self.type(body.get("type"), _Inside(column, mapping.nested_ids, mapping.name, depth))
        if arrow.type == pa.string() and "__COLLATIONS" in metadata:
            arrow = _Arrow(arrow.type, "collated")
        may_be_null, required = nullable or self.any_null, column if self.physical and not nullable else None
        if self.physical:
            return arrow.field(mapping.name, nullable=may_be_null, required=required, field_id=mapping.id)
        comment, limited = metadata.get("comment"), metadata.get("__CHAR_VARCHAR_TYPE_STRING")
        return arrow.field(
            name,
            nullable=may_be_null,
            field_id=mapping.id,
            source=mapping.name if self.mapped else None,
            comment=comment if isinstance(comment, str) else None,
            limited=limited.lower() if isinstance(limited, str) else None,
        )

    def type(self, body: Any, inside: _Inside) -> _Arrow:
        if inside.depth > _MAX_DEPTH:
            raise _damaged(inside.column, f"types nested more than {_MAX_DEPTH} deep")
        if isinstance(body, str):
            return _primitive(body, inside.column)
        if not isinstance(body, dict):
            raise _damaged(inside.column, "a type that is neither a name nor an object")
        match body.get("type"):
            case "struct":
                return _Arrow(pa.struct(self.fields(body, inside.column, inside.depth + 1)))
            case "array":
                return _Arrow(pa.list_(self.part("element", body.get("elementType"), body.get("containsNull"), inside)))
            case "map":
                key = self.part("key", body.get("keyType"), False, inside)
                value = self.part("value", body.get("valueType"), body.get("valueContainsNull"), inside)
                return _Arrow(pa.map_(key, value))
            case "udt":
                stored = self.type(body.get("sqlType"), replace(inside, depth=inside.depth + 1))
                return _Arrow(stored.type, "udt")
            case kind:
                raise RefusedError(f"column {inside.column} has the unknown type {kind!r}")

    def part(self, name: str, body: Any, nullable: Any, inside: _Inside) -> pa.Field:
        """An element, key or value, under the name that Parquet prescribes for it."""
        here = inside.below(name)
        if nullable is None:
            nullable = True
        if not isinstance(nullable, bool):
            raise _damaged(here.column, "whether it may be null is not a boolean")
        return self.type(body, here).field(
            name,
            nullable=name != "key" and (nullable or self.any_null),
            required=here.column if name != "key" and self.physical and not nullable else None,
            field_id=here.field_id(),
        )


def _primitive(name: str, column: str) -> _Arrow:
    if name == "variant":
        return _Arrow(_VARIANT, "variant")
    if name in _PRIMITIVES:
        return _Arrow(_PRIMITIVES[name])
    if name in _NANOS:
        return _Arrow(_NANOS[name], "nanos")
    if (shapes := shapes_of(name)) is not None:
        return _Arrow(pa.binary(), "geo", shapes)
    decimal = re.fullmatch(r"decimal\(\s*(\d{1,3})\s*,\s*(-?\d{1,3})\s*\)", name)
    if decimal is None:
        raise RefusedError(f"column {column} has the unknown type {name!r}")
    precision, scale = int(decimal[1]), int(decimal[2])
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise _damaged(column, f"{name} is out of bounds")
    return _Arrow(pa.decimal128(precision, scale))


def _id(value: Any, column: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise _damaged(column, f"{value!r} is not a field id")
    return value


def _damaged(column: str, reason: str) -> DamagedTableError:
    place = f"column {column} of the table's schema" if column else "the table's schema"
    return DamagedTableError(f"{place}: {reason}")
