"""Avro schemas of data files, as Paimon's Java library makes them (``AvroSchemaConverter``)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from dv_maintenance.files.avro.names import is_name
from dv_maintenance.tables.paimon.rows.types import DataType, Field

_PLAIN: Final = {
    "BOOLEAN": "boolean",
    **dict.fromkeys(["TINYINT", "SMALLINT", "INT"], "int"),
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    **dict.fromkeys(["CHAR", "VARCHAR"], "string"),
    **dict.fromkeys(["BINARY", "VARBINARY", "BLOB"], "bytes"),
    "DATE": {"type": "int", "logicalType": "date"},
    "TIME": {"type": "int", "logicalType": "time-millis"},
}
_TEXT: Final = ("CHAR", "VARCHAR")
_COUNT: Final = DataType("INT")


def records_of(fields: Iterable[Field]) -> str:
    """The schema of records with these columns, as JSON."""
    return json.dumps({**_record(fields, "record", set()), "namespace": "org.apache.paimon.avro.generated"})


def odd_names(fields: Iterable[Field]) -> Iterator[str]:
    """Names that Avro files can't have. Paimon writes names as they are, and fails."""
    for each in fields:
        if not is_name(each.name):
            yield each.name
        yield from odd_names(each.type.parts)


def _record(fields: Iterable[Field], name: str, used: set[str]) -> dict[str, Any]:
    """``used``: names of records before, as none may be defined twice."""
    while name in used:
        name += "_"
    used.add(name)
    return {"type": "record", "name": name, "fields": [_field(each, f"{name}_{each.name}", used) for each in fields]}


def _field(field: Field, name: str, used: set[str]) -> dict[str, Any]:
    default = {"default": None} if field.type.nullable else {}
    return {"name": field.name, "type": _type(field.type, name, used), **default}


def _type(type: DataType, name: str, used: set[str]) -> Any:
    """``name``: of records in it."""
    found = _required(type, name, used)
    return ["null", found] if type.nullable else found


def _required(type: DataType, name: str, used: set[str]) -> Any:
    match type.root:
        case "DECIMAL":
            return {"type": "bytes", "logicalType": "decimal", "precision": type.precision, "scale": type.scale}
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            unit = "millis" if type.precision <= 3 else "micros"
            local = "local-" if type.root == "TIMESTAMP_LTZ" else ""
            return {"type": "long", "logicalType": f"{local}timestamp-{unit}"}
        case "ARRAY" | "VECTOR":
            return {"type": "array", "items": _type(type.parts[0].type, name, used)}
        case "ROW":
            return _record(type.parts, name, used)
        case "MAP" | "MULTISET":
            key, value = type.parts[0].type, type.parts[1].type if type.root == "MAP" else _COUNT
            if key.root in _TEXT:
                return {"type": "map", "values": _type(value, name, used)}
            pair = [Field(-1, "key", replace(key, nullable=False)), Field(-1, "value", value)]
            return {"type": "array", "items": _record(pair, name, used), "logicalType": "map"}
    return _PLAIN[type.root]
