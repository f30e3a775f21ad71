"""Iceberg's types and schemas as the metadata spells them, and their Arrow types.

Format: Iceberg specification, Appendix C (schemas as JSON) and Appendix D (single values as JSON).
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.tables.model import LOGICAL, SHAPES, logical_type, shapes_of
from dv_maintenance.tables.work import DEFAULT

ROW_ID: Final = "_row_id"
LAST_UPDATED: Final = "_last_updated_sequence_number"

_FIELD_ID: Final = "PARQUET:field_id"
_MAX_DEPTH: Final = 64
_SIMPLE: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
    "unknown": pa.null(),
    # Its two parts have no field ids.
    "variant": pa.struct([pa.field(name, pa.binary(), False, {"dvm:match": "name"}) for name in ("metadata", "value")]),
}
_LOGICAL: Final = ("uuid", "variant")
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_FIXED: Final = re.compile(r"fixed\[\s*(\d{1,9})\s*\]")

LINEAGE: Final = pa.schema(
    [
        pa.field(ROW_ID, pa.int64(), metadata={_FIELD_ID: "2147483540"}),
        pa.field(LAST_UPDATED, pa.int64(), metadata={_FIELD_ID: "2147483539"}),
    ]
)
"""The columns of row lineage: a row's id, and the sequence number of the commit that wrote its values."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema of a table.

    arrow : its columns, with field ids and initial defaults in the fields' metadata.
    names : dotted names by field id, those of nested fields too.
    """

    id: int
    arrow: pa.Schema
    names: Mapping[int, str]

    def path_to(self, number: int) -> pa.Field | None:
        """The column that has this field id, or of whose structs a field has it: then without all other fields, and by
        the dotted name.
        """
        found = _only(self.arrow, str(number).encode())
        return None if found is None else found.with_name(self.names[number])


def _only(fields: Iterable[pa.Field], number: bytes) -> pa.Field | None:
    for each in fields:
        if each.metadata[_FIELD_ID.encode()] == number:
            return each
        if pa.types.is_struct(each.type) and not logical_type(each) and (inner := _only(each.type, number)):
            return each.with_type(pa.struct([inner]))
    return None


def plain(schema: pa.Schema) -> pa.Schema:
    """The schema as users see it, without field ids and defaults, but with what Arrow's types do not show."""
    return pa.schema([_without_metadata(each) for each in schema])


def _without_metadata(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_without_metadata(each) for each in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_without_metadata(kind.key_field), _without_metadata(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_without_metadata(kind.value_field))
    metadata = field.metadata or {}
    kept = {key: metadata[key] for key in (LOGICAL, SHAPES) if key in metadata}
    return pa.field(field.name, kind, field.nullable, kept or None)


def without_unknown(field: pa.Field) -> pa.Field | None:
    """The field as files store it, which is without all that has an unknown type; ``None`` if nothing would be left,
    or its lists or maps have an unknown type, which can't be stored.
    """
    kind, inside = field.type, children(field.type)
    if pa.types.is_null(kind):
        return None
    if not inside:
        return field
    left = [each for each in map(without_unknown, inside) if each is not None]
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(left)) if left else None
    if len(left) < len(inside):
        return None
    return field.with_type(pa.map_(*left) if pa.types.is_map(kind) else pa.list_(*left))


def children(kind: pa.DataType) -> list[pa.Field]:
    """The fields directly inside a type."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else list(kind) if pa.types.is_struct(kind) else []


def parse_schema(body: Any) -> Schema:
    """Parse a schema of a metadata file.

    Raises
    ------
    DamagedTableError : it is not a valid schema.
    UnsupportedFeatureError : it has an unknown type.
    """
    if not isinstance(body, dict) or not isinstance(body.get("fields"), list):
        raise DamagedTableError("a schema has no fields")
    names: dict[int, str] = {}
    fields = [_field(each, names, "", 0) for each in body["fields"]]
    if len({each.name for each in fields}) < len(fields):
        raise DamagedTableError("a schema has two columns of one name")
    number = body.get("schema-id", 0)
    if type(number) is not int:
        raise DamagedTableError("the id of a schema is not a number")
    return Schema(number, pa.schema(fields), names)


def _field(body: Any, names: dict[int, str], parent: str, depth: int) -> pa.Field:
    if not isinstance(body, dict) or type(body.get("id")) is not int or not isinstance(body.get("name"), str):
        raise DamagedTableError("a field of a schema has no id or no name")
    name = f"{parent}.{body['name']}" if parent else body["name"]
    kind = _type(body.get("type"), names, name, depth)
    required, default = body.get("required") is True, body.get("initial-default")
    return _numbered(body["name"], kind, body["type"], body["id"], names, name, required, default)


def _numbered(
    name: str,
    kind: pa.DataType,
    text: Any,
    number: Any,
    names: dict[int, str],
    path: str,
    required: bool,
    default: Any = None,
) -> pa.Field:
    """``text``: the type as the schema has it."""
    if type(number) is not int or number in names:
        raise DamagedTableError(f"field {path} of a schema has no id of its own")
    names[number] = path
    metadata = {_FIELD_ID: str(number)}
    if text in _LOGICAL:
        metadata[LOGICAL.decode()] = text
    if isinstance(text, str) and (shapes := shapes_of(text)):
        metadata |= {LOGICAL.decode(): "geo", SHAPES.decode(): shapes}
    if default is not None:
        metadata[DEFAULT.decode()] = _default(default, kind, path)
    return pa.field(name, kind, not required, metadata)


def _type(body: Any, names: dict[int, str], path: str, depth: int) -> pa.DataType:
    if depth > _MAX_DEPTH:
        raise DamagedTableError(f"column {path} is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(body, str):
        return _plain(body, path)
    kind = body.get("type") if isinstance(body, dict) else None
    if kind == "struct" and isinstance(body.get("fields"), list):
        return pa.struct([_field(each, names, path, depth + 1) for each in body["fields"]])
    if kind == "list":
        element = _type(body.get("element"), names, f"{path}.element", depth + 1)
        required = body.get("element-required") is True
        return pa.list_(
            _numbered("element", element, body["element"], body.get("element-id"), names, f"{path}.element", required)
        )
    if kind == "map":
        key = _type(body.get("key"), names, f"{path}.key", depth + 1)
        value = _type(body.get("value"), names, f"{path}.value", depth + 1)
        required = body.get("value-required") is True
        return pa.map_(
            _numbered("key", key, body["key"], body.get("key-id"), names, f"{path}.key", required=True),
            _numbered("value", value, body["value"], body.get("value-id"), names, f"{path}.value", required),
        )
    raise DamagedTableError(f"column {path} of a schema has no valid type")


def _plain(text: str, path: str) -> pa.DataType:
    if text in _SIMPLE:
        return _SIMPLE[text]
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2])
        if 0 < precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
        raise DamagedTableError(f"column {path} has the type {text}: no decimal has so many digits")
    if (match := _FIXED.fullmatch(text)) and 0 < int(match[1]) < 1 << 20:
        return pa.binary(int(match[1]))
    if shapes_of(text):
        return pa.binary()
    raise UnsupportedFeatureError(
        f"column {path} has the type {text}, which this release does not know",
        features=(f"type {text}",),
        next_step="use a newer release of this tool, or the engine that wrote the table",
    )


def _default(value: Any, kind: pa.DataType, path: str) -> str:
    """An initial default as ``work.DEFAULT`` has it. Raises DamagedTableError, UnsupportedFeatureError."""
    try:
        return json.dumps(constant(value, kind))
    except (TypeError, ValueError, OverflowError):
        raise DamagedTableError(f"the initial default {value!r} of column {path} is not a value of its type") from None
    except NotImplementedError:
        raise UnsupportedFeatureError(
            f"column {path} has an initial default of type {kind}, which this release can't fill in",
            features=("initial default of a nested type",),
            next_step="read the table with its own engine",
        ) from None


def constant(value: Any, kind: pa.DataType) -> Any:
    """From the JSON of single values to that of ``SourceFile.constants``."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        if type(value) is not (bool if pa.types.is_boolean(kind) else int):
            raise TypeError
        return value
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else _wrong()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return str(value)
    if pa.types.is_date(kind):
        return (date.fromisoformat(value) - date(1970, 1, 1)).days
    if pa.types.is_time(kind):
        at = time.fromisoformat(value)
        return ((at.hour * 60 + at.minute) * 60 + at.second) * 1_000_000 + at.microsecond
    if pa.types.is_timestamp(kind):
        return _moment(value, kind)
    if pa.types.is_fixed_size_binary(kind) and "-" in value:
        return b64encode(UUID(value).bytes).decode()
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return b64encode(bytes.fromhex(value)).decode()
    raise NotImplementedError


def _moment(text: str, kind: pa.DataType) -> int:
    """Units of the type since the epoch."""
    match = re.fullmatch(r"(.{19})(?:\.(\d{1,9}))?(Z|[+-]\d{2}:\d{2})?", text)
    if match is None:
        raise ValueError(text)
    seconds = datetime.fromisoformat(match[1] + (match[3] or "+00:00").replace("Z", "+00:00")) - datetime(
        1970, 1, 1, tzinfo=UTC
    )
    whole = (seconds.days * 86_400 + seconds.seconds) * 1_000_000_000 + int((match[2] or "").ljust(9, "0") or 0)
    return whole if kind.unit == "ns" else whole // 1000


def _wrong() -> Any:
    raise TypeError
