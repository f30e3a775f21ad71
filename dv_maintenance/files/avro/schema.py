"""Schemas of Avro files, rebuilt from what is known to be harmless.

Format: Apache Avro 1.11, schema declaration. What a file says of its records need not be trusted: names that refer to
each other may double in size with each, arrays of values that take no bytes go on for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dv_maintenance.errors import DamagedTableError

__all__ = ["Rebuilt", "Wanted", "parse_schema", "projected", "record_of", "spelled", "unknown_texts"]

Wanted = Mapping[str, "Wanted | None"]
"""Names of the fields to read; ``None`` for all of a field, else those of the record (or of the array's records) in it.
What the file does not have is not in the records either.
"""

Rebuilt = dict[str, Any]
"""Like Avro's own notation, but for unions, which are a type with branches, and logical types, which fastavro is not
told of: ``logical``, with ``precision`` and ``scale``.
"""

# The newest writers need about 60.
_MAX_NODES: Final = 4000
_MAX_DEPTH: Final = 32
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def parse_schema(text: bytes) -> Rebuilt:
    """The schema of records that each take at least one byte, as does every value in them. Paimon in Rust writes
    records that might be null, and never are.

    Raises
    ------
    DamagedTableError : with the reason.
    """
    schema = _Schema().rebuilt(_parsed(text), 0)
    branches = schema["branches"] if schema["type"] == "union" else [schema]
    kinds = sorted(each["type"] for each in branches)
    if kinds not in (["record"], ["null", "record"]) or _least_bytes(schema) < 1:
        raise DamagedTableError("its records are none of Paimon's")
    return schema


def record_of(schema: Rebuilt) -> Rebuilt:
    """The record that a schema of :func:`parse_schema` is of."""
    return next(each for each in schema.get("branches", [schema]) if each["type"] == "record")


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedTableError("its schema is no JSON") from None


@dataclass(slots=True)
class _Schema:
    """Rebuilds a schema from the parts of it that matter: no names that refer to each other (each record gets one of
    its own), no logical types, nothing that is endless.
    """

    names: dict[str, Any] = field(default_factory=dict)
    nodes: int = 0

    def rebuilt(self, schema: Any, depth: int) -> Rebuilt:
        self.nodes += 1
        if self.nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise DamagedTableError("its schema is larger or deeper than any of Paimon's")
        if isinstance(schema, list):
            branches = [self.rebuilt(each, depth + 1) for each in schema]
            if any(each["type"] == "union" for each in branches) or not branches:
                raise DamagedTableError("its schema has a union right in a union, or an empty one")
            return {"type": "union", "branches": branches}
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return {"type": schema}
            if schema not in self.names:
                raise DamagedTableError(f"its schema uses the type {schema!r} and does not say what it is")
            # Once more in full. One that refers to itself goes too deep.
            return self.rebuilt(self.names[schema], depth + 1)
        if not isinstance(schema, dict):
            raise DamagedTableError("its schema is none of Avro's")
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
                return {"type": "fixed", "name": f"t{self.nodes}", "size": size}
            case str() if kind in _PRIMITIVES:
                return {"type": kind, **_logical(schema)}
            case str() if kind in self.names:
                return self.rebuilt(kind, depth + 1)
        raise DamagedTableError(f"its schema has a type {kind!r}, which Paimon does not use")

    def _record(self, schema: Rebuilt, depth: int) -> Rebuilt:
        name = f"t{self.nodes}"
        found: list[Rebuilt] = []
        fields = schema.get("fields")
        for each in fields if isinstance(fields, list) else [None]:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise DamagedTableError("its schema has a record whose fields have no names")
            kind = self.rebuilt(each.get("type"), depth + 1)
            if _least_bytes(kind) < 1:
                raise DamagedTableError("its schema has a field of values that take no bytes")
            found.append({"name": each["name"], "type": kind})
        if len({each["name"] for each in found}) < len(found):
            raise DamagedTableError("its schema has a record with two fields of one name")
        return {"type": "record", "name": name, "fields": found}


def _logical(schema: Rebuilt) -> Rebuilt:
    """What a plain value or an array stands for; ``precision`` and ``scale`` of decimals, 0 where there is none."""
    kind = schema.get("logicalType")
    if not isinstance(kind, str):
        return {}
    digits = {name: schema.get(name) for name in ("precision", "scale")}
    return {"logical": kind, **{name: value if type(value) is int else 0 for name, value in digits.items()}}


def _least_bytes(schema: Rebuilt) -> int:
    """The fewest bytes that a value takes, counted up to 1."""
    if schema["type"] == "record":
        return max((_least_bytes(each["type"]) for each in schema["fields"]), default=0)
    return 0 if schema["type"] == "null" else 1


def projected(schema: Rebuilt, wanted: Wanted | None) -> Any:
    """The part of a rebuilt schema that holds the ``wanted`` fields."""
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
    """A rebuilt schema as Avro spells it."""
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
            return schema
    return schema["type"]


def unknown_texts(schema: Rebuilt, known: Wanted) -> list[str]:
    """Fields that are not ``known`` and may hold text: for all that anybody can tell, names of files."""
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
