"""An Arrow schema as the JSON of a Delta table's schema (protocol: Schema Serialization Format)."""

from __future__ import annotations

from itertools import count
from typing import Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa

from dv_maintenance.errors import UsageError

_PRIMITIVES: Final[dict[pa.DataType, str]] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def schema_string(schema: pa.Schema, *, mapped: bool = False) -> tuple[str, int]:
    """The JSON, and the largest column id in it. With ``mapped``, each field gets an id and a physical name; otherwise
    the largest id is 0.

    Raises
    ------
    UsageError : the schema has a type that Delta does not have.
    """
    ids = count(1)
    body = {"type": "struct", "fields": [_field(field, ids if mapped else None) for field in schema]}
    return orjson.dumps(body).decode(), next(ids) - 1


def _field(field: pa.Field, ids: count[int] | None) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if ids is not None:
        metadata = {
            "delta.columnMapping.id": next(ids),
            "delta.columnMapping.physicalName": f"col-{uuid4()}",
        }
    return {"name": field.name, "type": _type(field.type, ids), "nullable": field.nullable, "metadata": metadata}


def _type(kind: pa.DataType, ids: count[int] | None) -> Any:
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(field, ids) for field in kind]}
    if pa.types.is_list(kind):
        return {
            "type": "array",
            "elementType": _type(kind.value_type, ids),
            "containsNull": kind.value_field.nullable,
        }
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type, ids),
            "valueType": _type(kind.item_type, ids),
            "valueContainsNull": kind.item_field.nullable,
        }
    raise UsageError(f"Delta has no type for {kind}", next_step="cast the column first")
