"""The Arrow schema of a Lance table.

Format: the Field message of Lance's file.proto. Parents come before their children. Each field has the id of its
parent, -1 at the top level. ``logical_type`` is Lance's own notation of Arrow types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from dv_maintenance.errors import DamagedTableError, UnsupportedFeatureError
from dv_maintenance.files.protobuf import BYTES, VARINT, Shape, parse

_FIELD: Final[Shape] = {2: BYTES, 3: VARINT, 4: VARINT, 5: BYTES, 6: VARINT, 9: BYTES, 10: BYTES}
_EXTENSION: Final = "ARROW:extension:name"
_EXTENSION_METADATA: Final = "ARROW:extension:metadata"
# Types that name the storage form of a value; a reader gets text (JSON) or bytes (blob).
_JSON: Final = "json"
_BLOB: Final = "lance.blob.v2"
_MAX_DEPTH: Final = 200
_MAX_TYPE: Final = 1000  # characters

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "blob": pa.large_binary(),
    # Stored in a binary form; read as text.
    "json": pa.string(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    "duration:s": pa.duration("s"),
    "duration:ms": pa.duration("ms"),
    "duration:us": pa.duration("us"),
    "duration:ns": pa.duration("ns"),
}
_DECIMAL: Final = re.compile(r"decimal:(128|256):([0-9]{1,3}):(-?[0-9]{1,3})")
_TIMESTAMP: Final = re.compile(r"timestamp:(s|ms|us|ns):(.+)")
_FIXED_BINARY: Final = re.compile(r"fixed_size_binary:([0-9]{1,9})")
_FIXED_LIST: Final = re.compile(r"fixed_size_list:(.+):([0-9]{1,9})")
_DICTIONARY: Final = re.compile(r"dict:(.+):(u?int(?:8|16|32|64)):(?:true|false)")
_BFLOAT16: Final = "lance.bfloat16"


@dataclass(slots=True)
class LanceField:
    """A column or a part of one."""

    id: int
    name: str
    type: str
    nullable: bool
    metadata: dict[str, str]
    children: list[LanceField] = field(default_factory=list)


def lance_fields(records: Iterable[bytes]) -> list[LanceField]:
    """The top-level columns with their nested fields.

    Raises
    ------
    DamagedTableError : the parent of a field is missing, or the nesting is too deep.
    """
    top: list[LanceField] = []
    seen: dict[int, tuple[LanceField, int]] = {}
    for record in records:
        body = parse(record, _FIELD)
        metadata = {key: value.decode(errors="replace") for key, value in body.mapping(10).items()}
        if body.data(9):
            metadata[_EXTENSION] = body.text(9)
        each = LanceField(body.sint(3), body.text(2), body.text(5), bool(body.uint(6)), metadata)
        parent, depth = body.sint(4), 0
        if parent == -1:
            top.append(each)
        elif parent in seen:
            above, depth = seen[parent]
            above.children.append(each)
        else:
            raise DamagedTableError(f"column {each.name!r} is part of field {parent}, which is not listed before it")
        if depth >= _MAX_DEPTH:
            raise DamagedTableError(f"column {each.name!r} is nested more than {_MAX_DEPTH} levels deep")
        # In old tables an id may occur twice; the first occurrence counts.
        seen.setdefault(each.id, (each, depth + 1))
    return top


def is_blob(each: LanceField) -> bool:
    """Whether a field is a blob column of version 2, whose rows hold descriptors."""
    return each.metadata.get(_EXTENSION) == _BLOB


def arrow_schema(fields: Iterable[LanceField], metadata: Mapping[str, bytes]) -> pa.Schema:
    """The Arrow schema of columns. Raises DamagedTableError, UnsupportedFeatureError (an unknown type)."""
    pairs = {key.encode(): value for key, value in metadata.items()}
    return pa.schema([_field(each) for each in fields], metadata=pairs or None)


def _field(each: LanceField) -> pa.Field:
    if len(each.type) > _MAX_TYPE:
        raise DamagedTableError(f"column {each.name!r} has a type of {len(each.type)} characters")
    try:
        kind = _nested(each) or _leaf(each.type)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise DamagedTableError(f"column {each.name!r} has the type {each.type!r}: {error}") from None
    metadata = each.metadata
    if each.type == _JSON or is_blob(each):
        metadata = {key: value for key, value in metadata.items() if key not in {_EXTENSION, _EXTENSION_METADATA}}
    return pa.field(each.name, kind, each.nullable, metadata=metadata or None)


def _nested(each: LanceField) -> pa.DataType | None:
    """The type of a field with child fields, ``None`` for a leaf. A blob is read as its bytes, not as its location."""
    kind = each.type
    if is_blob(each):
        return pa.large_binary()
    if kind == "struct":
        return pa.struct([_field(child) for child in each.children])
    struct_size = re.fullmatch(r"fixed_size_list:struct:([0-9]{1,9})", kind)
    if not struct_size and kind not in {"list", "list.struct", "large_list", "large_list.struct", "map"}:
        return None
    if len(each.children) != 1:
        raise DamagedTableError(f"column {each.name!r} is a {kind} of {len(each.children)} fields, not one")
    item = _field(each.children[0])
    if struct_size:
        return pa.list_(item, int(struct_size[1]))
    if kind == "map":
        if not pa.types.is_struct(item.type) or item.type.num_fields != 2:
            raise DamagedTableError(f"column {each.name!r} is a map of {item.type}, not of keys and values")
        return pa.map_(item.type.field(0), item.type.field(1))
    return pa.large_list(item) if kind.startswith("large_") else pa.list_(item)


def _leaf(kind: str) -> pa.DataType:
    if known := _TYPES.get(kind):
        return known
    if match := _TIMESTAMP.fullmatch(kind):
        return pa.timestamp(match[1], None if match[2] == "-" else match[2])
    if match := _DECIMAL.fullmatch(kind):
        make = pa.decimal128 if match[1] == "128" else pa.decimal256
        return make(int(match[2]), int(match[3]))
    if match := _FIXED_BINARY.fullmatch(kind):
        return pa.binary(int(match[1]))
    if match := _FIXED_LIST.fullmatch(kind):
        return pa.list_(_item(match[1]), int(match[2]))
    if match := _DICTIONARY.fullmatch(kind):
        return pa.dictionary(_leaf(match[2]), _leaf(match[1]))
    raise UnsupportedFeatureError(
        f"the table has a column of the unsupported type {kind!r}",
        features=(f"type {kind}",),
        next_step="use a newer release of this tool",
    )


def _item(kind: str) -> pa.Field:
    if kind == _BFLOAT16:
        return pa.field("item", pa.binary(2), metadata={_EXTENSION: _BFLOAT16, "ARROW:extension:metadata": ""})
    return pa.field("item", _leaf(kind))
