"""Schemas of Avro files, rebuilt from their harmless parts.

Format: Apache Avro 1.11, schema declaration. The schema in a file is untrusted: with names that refer to each other its
size may double with each name, and arrays of values that take no bytes never end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError

Wanted = Mapping[str, "Wanted | None"]
"""Names of the fields to read. The value is ``None`` for a whole field, or the wanted fields of the record (or of the
array's records) in it. Fields that the file lacks are missing from the records.
"""

Rebuilt = dict[str, Any]
"""Avro's own notation, with three exceptions. Unions are a type with branches. Logical types are hidden from fastavro
under ``logical``, with ``precision`` and ``scale``. Fields have the ``id`` that Iceberg gives them as ``field-id``.
"""

# The newest writers need about 60.
_MAX_NODES: Final = 4000
_MAX_DEPTH: Final = 32
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def parse_schema(text: bytes, *, by_id: bool = False) -> Rebuilt:
    """The schema of records that take at least one byte, as does every value in an array or a map. Paimon in Rust
    declares its records as nullable, but writes no null.

    by_id : whether fields are called by their ids, such as ``500``, where they have one: names in Iceberg's manifests
        are free.

    Raises
    ------
    DamagedTableError : has the reason.
    """
    schema = _Schema(by_id).rebuilt(_parsed(text), 0)
    branches = schema["branches"] if schema["type"] == "union" else [schema]
    kinds = sorted(each["type"] for each in branches)
    if kinds not in (["record"], ["null", "record"]) or _least_bytes(schema) < 1:
        raise DamagedTableError("its records are not those of a manifest or a data file")
    return schema


def record_of(schema: Rebuilt) -> Rebuilt:
    """The record in a schema of :func:`parse_schema`."""
    return next(each for each in schema.get("branches", [schema]) if each["type"] == "record")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedTableError("its schema is not JSON") from None


@dataclass(slots=True)
class _Schema:
    """Rebuilds a schema from its relevant parts, without references by name (each record gets a unique name), without
    logical types, and without anything endless.
    """

    by_id: bool = False
    names: dict[str, Any] = field(default_factory=dict)
    nodes: int = 0

    def rebuilt(self, schema: Any, depth: int) -> Rebuilt:
        self.nodes += 1
        if self.nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise DamagedTableError("its schema is larger or deeper than any known writer's")
        if isinstance(schema, list):
            branches = [self.rebuilt(each, depth + 1) for each in schema]
            if any(each["type"] == "union" for each in branches) or not branches:
                raise DamagedTableError("its schema has a union directly in a union, or an empty one")
            return {"type": "union", "branches": branches}
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return {"type": schema}
            if schema not in self.names:
                raise DamagedTableError(f"its schema uses the type {schema!r} without defining it")
            # Expanded again. A type that refers to itself exceeds the depth.
            return self.rebuilt(self.names[schema], depth + 1)
        if not isinstance(schema, dict):
            raise DamagedTableError("its schema is not an Avro schema")
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            return self.rebuilt(kind, depth + 1)
        if isinstance(name := schema.get("name"), str):
            self.names[name] = schema
            if isinstance(space := schema.get("namespace"), str):
                self.names[f"{space}.{name}"] = schema
        match kind:
            case "record":
                return self._record(schema, depth)
            case "array" | "map":
                inner = "items" if kind == "array" else "values"
                items = self.rebuilt(schema.get(inner), depth + 1)
                if _least_bytes(items) < 1:
                    raise DamagedTableError(f"its schema has an {kind} of values that take no bytes")
                return {"type": kind, inner: items, **_logical(schema)}
            case "fixed" if isinstance(size := schema.get("size"), int) and 0 < size < 1 << 20:
                return {"type": "fixed", "name": f"t{self.nodes}", "size": size, **_logical(schema)}
            case str() if kind in _PRIMITIVES:
                return {"type": kind, **_logical(schema)}
            case str() if kind in self.names:
                return self.rebuilt(kind, depth + 1)
        raise DamagedTableError(f"its schema has a type {kind!r}, which no known writer uses")

    def _record(self, schema: Rebuilt, depth: int) -> Rebuilt:
        name = f"t{self.nodes}"
        found: list[Rebuilt] = []
        fields = schema.get("fields")
        for each in fields if isinstance(fields, list) else [None]:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise DamagedTableError("its schema has a record whose fields have no names")
            kind = self.rebuilt(each.get("type"), depth + 1)
            # A record may have no fields: the partition of a file without one. Iceberg stores columns of unknown type.
            if kind["type"] not in {"record", "null"} and _least_bytes(kind) < 1:
                raise DamagedTableError("its schema has a field of values that take no bytes")
            number = each.get("field-id")
            known = {"id": number} if type(number) is int else {}
            found.append({"name": str(number) if self.by_id and known else each["name"], "type": kind, **known})
        if len({each["name"] for each in found}) < len(found):
            raise DamagedTableError("its schema has a record with two fields of one name")
        return {"type": "record", "name": name, "fields": found}


def _logical(schema: Rebuilt) -> Rebuilt:
    """The logical type of a plain value or an array; for decimals also ``precision`` and ``scale``, 0 if missing."""
    kind = schema.get("logicalType")
    if not isinstance(kind, str):
        return {}
    digits = {name: schema.get(name) for name in ("precision", "scale")}
    return {"logical": kind, **{name: value if type(value) is int else 0 for name, value in digits.items()}}


def _least_bytes(schema: Rebuilt) -> int:
    """The minimum number of bytes of a value, at most 1."""
    if schema["type"] == "record":
        return max((_least_bytes(each["type"]) for each in schema["fields"]), default=0)
    return 0 if schema["type"] == "null" else 1


def projected(schema: Rebuilt, wanted: Wanted | None) -> Any:
    """The part of a rebuilt schema with the ``wanted`` fields."""
    if wanted is None:
        return spelled(schema)
    match schema["type"]:
        case "union":
            return [projected(each, wanted) for each in schema["branches"]]
        case "array":
            return {"type": "array", "items": projected(schema["items"], wanted)}
        case "record":
            fields = [
                {"name": each["name"], "type": projected(each["type"], wanted[each["name"]])}
                for each in schema["fields"]
                if each["name"] in wanted
            ]
            return {"type": "record", "name": schema["name"], "fields": fields}
    return spelled(schema)


def spelled(schema: Rebuilt) -> Any:
    """A rebuilt schema in Avro's own notation."""
    match schema["type"]:
        case "union":
            return [spelled(each) for each in schema["branches"]]
        case "record":
            fields = [{"name": each["name"], "type": spelled(each["type"])} for each in schema["fields"]]
            return {**schema, "fields": fields}
        case "array":
            return {"type": "array", "items": spelled(schema["items"])}
        case "map":
            return {"type": "map", "values": spelled(schema["values"])}
        case "fixed":
            return {name: schema[name] for name in ("type", "name", "size")}
    return schema["type"]


def unknown_texts(schema: Rebuilt, known: Wanted) -> list[str]:
    """Fields that are not ``known`` and may hold text, which may be names of files."""
    match schema["type"]:
        case "union":
            return [name for each in schema["branches"] for name in unknown_texts(each, known)]
        case "array":
            return unknown_texts(schema["items"], known)
        case "record":
            found = []
            for each in schema["fields"]:
                below = known.get(each["name"])
                if each["name"] not in known:
                    found += [each["name"]] if _holds_text(each["type"]) else []
                elif below is not None:
                    found += unknown_texts(each["type"], below)
            return found
    return []


def _holds_text(schema: Rebuilt) -> bool:
    match schema["type"]:
        case "union":
            return any(_holds_text(each) for each in schema["branches"])
        case "array":
            return _holds_text(schema["items"])
        case "record":
            return any(_holds_text(each["type"]) for each in schema["fields"])
    return schema["type"] not in {"null", "boolean", "int", "long", "float", "double"}
