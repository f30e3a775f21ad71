"""Paimon's data types, as schema files spell them, and their Arrow types.

Format: data types of Paimon's schema specification. A plain type is text (``DECIMAL(10, 2) NOT NULL``). A nested type
is an object with its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.tables.model import LOGICAL

_PLAIN: Final = re.compile(
    r"(?P<root>[A-Z_]+)\s*(\(\s*(?P<first>\d{1,10})\s*(,\s*(?P<second>\d{1,3})\s*)?\))?"
    r"(?P<zone>\s+WITH\s+LOCAL\s+TIME\s+ZONE|\s+WITHOUT\s+TIME\s+ZONE)?(?P<required>\s+NOT\s+NULL)?"
)
_SYNONYMS: Final = {"INTEGER": "INT", "STRING": "VARCHAR", "BYTES": "VARBINARY", "DEC": "DECIMAL", "NUMERIC": "DECIMAL"}
_MAX_DEPTH: Final = 64
_MAX_DIGITS: Final = 38
_MAX_LENGTH: Final = 2**31
_DEFAULT_PRECISION: Final = {"DECIMAL": 10, "TIMESTAMP": 6, "TIMESTAMP_LTZ": 6} | {
    **dict.fromkeys(["CHAR", "VARCHAR", "BINARY", "VARBINARY"], 1),
    **dict.fromkeys(["STRING", "BYTES"], _MAX_LENGTH - 1),
}
_SIMPLE: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    # Milliseconds of the day, whatever the precision.
    "TIME": pa.time32("ms"),
    "CHAR": pa.string(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "BLOB": pa.large_binary(),
    "VARIANT": pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)]),
}


@dataclass(frozen=True, slots=True)
class DataType:
    """A data type.

    root : its name without synonyms; TIMESTAMP_LTZ for a timestamp with a local time zone.
    precision : digits of a number or of the fraction of a second, the length of a vector, or the greatest length of
        text or bytes.
    scale : digits after the point.
    parts : of a nested type: the element, key and value, or the fields of a row.
    """

    root: str
    nullable: bool = True
    precision: int = 0
    scale: int = 0
    parts: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """A column or a field of a row. ``id`` is -1 if it has none, as in arrays and maps."""

    id: int
    name: str
    type: DataType


def parse_field(body: Any, depth: int = 0) -> Field:
    """Parse a field of a schema file or of a ROW.

    Raises
    ------
    DamagedTableError : it is not a valid field.
    UnsupportedFeatureError : its type is unknown.
    """
    if not isinstance(body, dict) or type(body.get("id")) is not int or not isinstance(body.get("name"), str):
        raise DamagedTableError("a field has no id or no name")
    return Field(body["id"], body["name"], parse_type(body.get("type"), depth))


def parse_type(body: Any, depth: int = 0) -> DataType:
    """Parse a type of a schema file. Raises as :func:`parse_field`."""
    if depth > _MAX_DEPTH:
        raise DamagedTableError(f"types are nested more than {_MAX_DEPTH} deep")
    if isinstance(body, str):
        return _plain(body)
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        raise DamagedTableError(f"{str(body)[:100]!r} is not a type")
    # pypaimon 2.0 wrote the parts into it, too: MAP<STRING NOT NULL, BIGINT>. Paimon goes by how it begins.
    text = body["type"].strip()
    root, nullable = re.split("[ <]", text, maxsplit=1)[0], not text.endswith("NOT NULL")
    match root:
        case "ARRAY" | "MULTISET":
            parts = [Field(-1, "element", parse_type(body.get("element"), depth + 1))]
        case "VECTOR":
            length = body.get("length")
            if type(length) is not int or not 0 < length < _MAX_LENGTH:
                raise DamagedTableError("a VECTOR has no length")
            element = Field(-1, "element", parse_type(body.get("element"), depth + 1))
            return DataType(root, nullable, length, parts=(element,))
        case "MAP":
            parts = [Field(-1, name, parse_type(body.get(name), depth + 1)) for name in ("key", "value")]
        case "ROW":
            fields = body.get("fields")
            if not isinstance(fields, list):
                raise DamagedTableError("a ROW has no fields")
            parts = [parse_field(each, depth + 1) for each in fields]
        case _:
            raise _unknown(body["type"])
    return DataType(root, nullable, parts=tuple(parts))


def _plain(text: str) -> DataType:
    match = _PLAIN.fullmatch(text.strip()) if len(text) < 200 else None
    if match is None:
        raise _unknown(text)
    root = _SYNONYMS.get(match["root"], match["root"])
    if root == "TIMESTAMP" and "LOCAL" in (match["zone"] or ""):
        root = "TIMESTAMP_LTZ"
    if root not in _SIMPLE and root not in _DEFAULT_PRECISION:
        raise _unknown(text)
    named = match["root"] if match["root"] in _DEFAULT_PRECISION else root
    precision = int(match["first"]) if match["first"] else _DEFAULT_PRECISION.get(named, 0)
    scale = int(match["second"] or 0)
    if root == "DECIMAL" and not (0 < precision <= _MAX_DIGITS and scale <= precision):
        raise DamagedTableError(f"{text!r} is not a type")
    return DataType(root, match["required"] is None, precision, scale)


def _unknown(text: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the table has a column of the type {text[:100]!r}, which this release does not know",
        features=(f"type {text[:100]}",),
        next_step="use a newer release of this tool, or Paimon itself",
    )


def spelled(type: DataType) -> str:
    """The type for messages: ``DECIMAL(10, 2)``, ``ARRAY<INT>``."""
    if type.parts:
        return f"{type.root}<{', '.join(spelled(part.type) for part in type.parts)}>"
    if type.root not in _DEFAULT_PRECISION:
        return type.root
    longest = {"VARCHAR": "STRING", "VARBINARY": "BYTES"} if type.precision == _MAX_LENGTH - 1 else {}
    scale = f", {type.scale}" if type.root == "DECIMAL" else ""
    return longest.get(type.root) or f"{type.root}({type.precision}{scale})"


def parts_of(type: DataType) -> Iterator[DataType]:
    """A type and all types nested in it."""
    yield type
    for part in type.parts:
        yield from parts_of(part.type)


def holds(type: DataType, root: str) -> bool:
    """Whether it is of that root, or a type nested in it is."""
    return any(each.root == root for each in parts_of(type))


def arrow_type(type: DataType) -> pa.DataType:
    """The Arrow type that holds every value. Timestamps with a local time zone are in UTC, other ones have no zone."""
    if type.root in _SIMPLE:
        return _SIMPLE[type.root]
    match type.root:
        case "DECIMAL":
            return pa.decimal128(type.precision, type.scale)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            unit = "ms" if type.precision <= 3 else "us" if type.precision <= 6 else "ns"
            return pa.timestamp(unit, "UTC" if type.root == "TIMESTAMP_LTZ" else None)
        case "ARRAY" | "VECTOR":  # files hold vectors as arrays
            return pa.list_(arrow_field(type.parts[0]))
        case "MULTISET":
            return pa.map_(arrow_type(type.parts[0].type), pa.field("value", pa.int32(), nullable=False))
        case "MAP":
            return pa.map_(arrow_type(type.parts[0].type), arrow_field(type.parts[1]))
    return pa.struct([arrow_field(each) for each in type.parts])


def arrow_field(field: Field) -> pa.Field:
    metadata = {LOGICAL: b"variant"} if field.type.root == "VARIANT" else None
    return pa.field(field.name, arrow_type(field.type), nullable=field.type.nullable, metadata=metadata)
