"""Avro schemas of data files and delete files.

Format: Iceberg specification, Appendix A, Avro. Names are those of Iceberg's Java library (``AvroSchemaUtil``), but for
fixed types, which are called by the number of their field, so that none is defined twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.files.avro.names import safe_name
from dv_maintenance.tables.iceberg.log.types import children
from dv_maintenance.tables.iceberg.rows.partitions import decimal_size
from dv_maintenance.tables.model import logical_type
from dv_maintenance.tables.work import AVRO_SCHEMA

_PLAIN: Final = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
    pa.string(): "string",
    pa.binary(): "bytes",
}
_FIELD_ID: Final = b"PARQUET:field_id"


def avro_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of new files, with the schema of their records, see ``work.AVRO_SCHEMA``."""
    text = json.dumps(records_of(schema))
    return schema.with_metadata({**(schema.metadata or {}), AVRO_SCHEMA: text})


def records_of(schema: pa.Schema) -> dict[str, Any]:
    """The schema of records with these columns."""
    return _record("table", schema)


def clashes(fields: Sequence[pa.Field]) -> Iterator[str]:
    """Names of fields that others beside them have in Avro files."""
    names = [safe_name(each.name) for each in fields]
    yield from (each.name for at, each in enumerate(fields) if names[at] in names[:at])
    for each in fields:
        yield from clashes(children(each.type))


def plain_type(kind: pa.DataType, number: int) -> Any:
    """The type of a value that is not nested. ``number``: of its field."""
    if types.is_decimal(kind):
        digits = {"precision": kind.precision, "scale": kind.scale}
        fixed = {"type": "fixed", "name": f"decimal_{number}", "size": decimal_size(kind.precision)}
        return {**fixed, "logicalType": "decimal", **digits}
    if types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": f"fixed_{number}", "size": kind.byte_width}
    if types.is_timestamp(kind):
        unit = "nanos" if kind.unit == "ns" else "micros"
        return {"type": "long", "logicalType": f"timestamp-{unit}", "adjust-to-utc": kind.tz is not None}
    return _PLAIN[kind]


def _record(name: str, fields: Iterable[pa.Field]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_field(each) for each in fields]}


def _field(field: pa.Field) -> dict[str, Any]:
    name, default = safe_name(field.name), {"default": None} if field.nullable else {}
    spelled = {} if name == field.name else {"iceberg-field-name": field.name}
    return {"name": name, "type": _optional(field), **default, **spelled, "field-id": _number(field)}


def _optional(field: pa.Field) -> Any:
    return ["null", _type(field)] if field.nullable else _type(field)


def _type(field: pa.Field) -> Any:
    kind, number, logical = field.type, _number(field), logical_type(field)
    if logical == "variant":
        parts = [{"name": each.name, "type": "bytes"} for each in kind]
        return {"type": "record", "name": f"r{number}", "fields": parts, "logicalType": "variant"}
    if logical == "uuid":
        return {"type": "fixed", "name": f"uuid_{number}", "size": kind.byte_width, "logicalType": "uuid"}
    if types.is_struct(kind):
        return _record(f"r{number}", kind)
    if types.is_list(kind):
        return {"type": "array", "items": _optional(kind.value_field), "element-id": _number(kind.value_field)}
    if types.is_map(kind):
        key, value = kind.key_field, kind.item_field
        ids = _number(key), _number(value)
        if types.is_string(key.type):
            return {"type": "map", "values": _optional(value), "key-id": ids[0], "value-id": ids[1]}
        entry = _record(f"k{ids[0]}_v{ids[1]}", [key.with_name("key"), value.with_name("value")])
        return {"type": "array", "items": entry, "logicalType": "map"}
    return plain_type(kind, number)


def _number(field: pa.Field) -> int:
    return int(field.metadata[_FIELD_ID])
