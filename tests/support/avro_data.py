"""Avro data files for tests, with the schemas that Paimon's writers give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro

from dv_maintenance.tables.paimon.rows.types import DataType, Field, parse_type

_INTS = {"BOOLEAN": "boolean", "TINYINT": "int", "SMALLINT": "int", "INT": "int", "BIGINT": "long"}
_OTHERS = {"FLOAT": "float", "DOUBLE": "double", "CHAR": "string", "VARCHAR": "string"}
_BYTES = {"BINARY": "bytes", "VARBINARY": "bytes"}
_PLAIN = {**_INTS, **_OTHERS, **_BYTES}


def avro_type(type_: DataType, name: str = "record") -> Any:
    kind = _required(type_, name)
    return ["null", kind] if type_.nullable else kind


def _required(type_: DataType, name: str) -> Any:
    if type_.root in _PLAIN:
        return _PLAIN[type_.root]
    match type_.root:
        case "DECIMAL":
            digits = {"precision": type_.precision, "scale": type_.scale}
            return {"type": "bytes", "logicalType": "decimal", **digits}
        case "DATE":
            return {"type": "int", "logicalType": "date"}
        case "TIME":
            return {"type": "int", "logicalType": "time-millis"}
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            unit = "millis" if type_.precision <= 3 else "micros"
            local = "local-" if type_.root == "TIMESTAMP_LTZ" else ""
            return {"type": "long", "logicalType": f"{local}timestamp-{unit}"}
        case "ARRAY":
            return {"type": "array", "items": avro_type(type_.parts[0].type, name)}
        case "ROW":
            return _record(type_.parts, name)
    key, value = type_.parts[0], type_.parts[1] if type_.root == "MAP" else Field(-1, "value", parse_type("INT"))
    if key.type.root in {"CHAR", "VARCHAR"}:
        return {"type": "map", "values": avro_type(value.type, name)}
    entry = _record((Field(-1, "key", key.type), Field(-1, "value", value.type)), name)
    return {"type": "array", "items": entry, "logicalType": "map"}


def _record(fields: Sequence[Field], name: str) -> Any:
    found = [{"name": each.name, "type": avro_type(each.type, f"{name}_{each.name}")} for each in fields]
    return {"type": "record", "name": name, "fields": found}


def avro_writer(columns: Mapping[str, Any], **options: Any) -> Callable[[Any, Path], None]:
    """Writes what ``paimon_writer`` gives it; ``options``: of fastavro's writer."""
    kinds = {"_SEQUENCE_NUMBER": parse_type("BIGINT"), "_VALUE_KIND": parse_type("TINYINT")}

    def field(name: str) -> Field:
        if name in kinds:
            return Field(-1, name, kinds[name])
        return Field(-1, name, parse_type(columns[name.removeprefix("_KEY_")]))

    def write(table: Any, path: Path) -> None:
        fields = [field(name) for name in table.column_names]
        schema = _record(fields, "org.apache.paimon.avro.generated.record")
        rows = [
            {each.name: plain(row[each.name], each.type) for each in fields}
            for row in table.to_pylist(maps_as_pydicts=None)
        ]
        with path.open("wb") as file:
            fastavro.writer(file, schema, rows, **options)

    return write


def plain(value: Any, type_: DataType) -> Any:
    """A value of Arrow's as fastavro wants it."""
    if value is None:
        return None
    match type_.root:
        case "ARRAY":
            return [plain(each, type_.parts[0].type) for each in value]
        case "ROW":
            return {each.name: plain(value[each.name], each.type) for each in type_.parts}
        case "MAP" | "MULTISET":
            key, item = type_.parts[0].type, type_.parts[1].type if type_.root == "MAP" else parse_type("INT")
            pairs = [(plain(each, key), plain(other, item)) for each, other in value]
            if key.root in {"CHAR", "VARCHAR"}:
                return dict(pairs)
            return [{"key": each, "value": other} for each, other in pairs]
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            # As a plain number: local timestamps are none to fastavro otherwise.
            zone = UTC if value.tzinfo else None
            micros = (value - datetime(1970, 1, 1, tzinfo=zone)) // timedelta(microseconds=1)
            return micros // 1000 if type_.precision <= 3 else micros
    return value
