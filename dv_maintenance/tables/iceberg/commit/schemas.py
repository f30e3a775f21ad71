"""Avro schemas of manifests and manifest lists that are written: those of the table's own files, completed.

Format: Iceberg specification, Manifests. Files of older format versions lack fields that entries need now. A field that
is unknown here keeps its values, and is null in new entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from dv_maintenance.errors import UnsupportedFeatureError
from dv_maintenance.files.avro.writer import Template

_LONG: Final = ["null", "long"]
_ENTRY: Final = (
    (1, "snapshot_id", _LONG),
    (3, "sequence_number", _LONG),
    (4, "file_sequence_number", _LONG),
)
_FILE_ID: Final = 2
_PARTITION_ID: Final = 102
_FILE: Final = (
    (140, "sort_order_id", ["null", "int"]),
    (142, "first_row_id", _LONG),
    (143, "referenced_data_file", ["null", "string"]),
    (144, "content_offset", _LONG),
    (145, "content_size_in_bytes", _LONG),
)
_CONTENT: Final = (134, "content", "int")
_LIST: Final = (
    (517, "content", "int"),
    (515, "sequence_number", "long"),
    (516, "min_sequence_number", "long"),
    (520, "first_row_id", _LONG),
)
# Format version 1 has no ages and no content (134): its files are data. It requires a block size, and says that any
# value will do.
_ENTRY_1: Final = ((1, "snapshot_id", "long"),)
_FILE_1: Final = ((105, "block_size_in_bytes", "long"),)
_DEFAULTS: Final[Mapping[str, Any]] = {"105": 64 << 20, "134": 0}


def for_manifests(
    template: Template, content: int, format_version: int, spec: tuple[int, str], partition: str
) -> Template:
    """A template for manifests of the format version.

    spec : id and JSON of the partition specification of its entries.
    partition : JSON of the fields of partition values, as the types of columns are now.
    """
    number, fields = spec
    names = {"content": "deletes" if content else "data", "format-version": str(format_version)}
    names |= {"partition-spec-id": str(number), "partition-spec": fields}
    return _with(template, _manifest_schema(template.schema, format_version, partition), names)


def for_lists(template: Template, format_version: int, snapshot: Mapping[str, Any]) -> Template:
    """A template for the list of a snapshot, which is given as the metadata file has it."""
    names = {
        "format-version": str(format_version),
        "snapshot-id": str(snapshot["snapshot-id"]),
        "parent-snapshot-id": str(snapshot.get("parent-snapshot-id", "null")),
        **{each: str(snapshot[each]) for each in ("sequence-number", "first-row-id") if each in snapshot},
    }
    return _with(template, _list_schema(template.schema, format_version), names)


def filled(record: Mapping[str, Any], types: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A record with exactly the fields in ``types``, by id. Raises UnsupportedFeatureError if one must not be null, and
    its value is unknown.
    """
    found = {}
    for number, kind in types.items():
        value = record.get(number, _DEFAULTS.get(number))
        if value is None and not (isinstance(kind, list) and "null" in kind):
            raise UnsupportedFeatureError(
                f"{what} of this table have a field with id {number}, which this release can't fill",
                features=(f"field {number}",),
                next_step="use a newer release of this tool, or the table's own engine",
            )
        found[number] = value
    return found


def _with(template: Template, schema: str, names: Mapping[str, str]) -> Template:
    # Java's own copy of the schema is optional, and no longer right.
    header = {key: value for key, value in template.header if key != "iceberg.schema"}
    header |= {key: value.encode() for key, value in names.items()}
    return Template(schema, template.codec, tuple(header.items()), by_id=True)


@lru_cache(maxsize=32)
def _manifest_schema(text: str, format_version: int, partition: str) -> str:
    schema = json.loads(text)
    _complete(schema["fields"], _ENTRY if format_version > 1 else _ENTRY_1)
    file = next(each["type"] for each in schema["fields"] if each.get("field-id") == _FILE_ID)
    values = next((each["type"] for each in file["fields"] if each.get("field-id") == _PARTITION_ID), None)
    if values is not None:
        _widen(values["fields"], json.loads(partition))
    newer = (_CONTENT, *(each for each in _FILE if format_version > 2 or each[0] < 142))
    _complete(file["fields"], newer if format_version > 1 else _FILE_1)
    return json.dumps(schema, separators=(",", ":"))


@lru_cache(maxsize=32)
def _list_schema(text: str, format_version: int) -> str:
    schema = json.loads(text)
    if format_version > 1:
        _complete(schema["fields"], _LIST if format_version > 2 else _LIST[:-1])
    return json.dumps(schema, separators=(",", ":"))


def _widen(fields: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Give values the types of their columns, which may have grown since the template was written (specification:
    Schema Evolution).
    """
    now = {each["field-id"]: _value(each["type"]) for each in wanted}
    defined: dict[str, Any] = {}
    for each in fields:
        kind = _value(each["type"])
        if isinstance(kind, str) and kind in defined:  # Avro defines a name once, maybe in a field that changes here
            kind = {**defined[kind], "name": f"{kind}_{each['field-id']}"}
        elif isinstance(kind, dict) and kind.get("type") == "fixed":
            defined[kind["name"]] = kind
        grown = now.get(each.get("field-id"))
        if grown is not None and _is_wider(kind, grown):
            kind = grown
        each["type"] = [kind if part != "null" else part for part in each["type"]] if _optional(each) else kind


def _optional(field: dict[str, Any]) -> bool:
    return isinstance(field["type"], list)


def _value(kind: Any) -> Any:
    """The type of a value that is not null."""
    return next((each for each in kind if each != "null"), "null") if isinstance(kind, list) else kind


def _is_wider(old: Any, new: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return bool(old.get("type") == new.get("type") == "fixed" and new["size"] > old["size"])
    return (old, new) in {("int", "long"), ("float", "double")}


def resized(values: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Partition values in ``types``, by id: a decimal has as many bytes as its type."""
    found = {}
    for number, value in values.items():
        kind = _value(types.get(number))
        size = kind.get("size") if isinstance(kind, dict) else None
        if isinstance(value, bytes) and size is not None and len(value) != size:
            value = int.from_bytes(value, "big", signed=True).to_bytes(size, "big", signed=True)
        found[number] = value
    return found


def _complete(fields: list[dict[str, Any]], wanted: tuple[tuple[int, str, Any], ...]) -> None:
    have = {each.get("field-id") for each in fields}
    taken = {each["name"] for each in fields}
    for number, name, kind in wanted:
        if number not in have:
            optional = {"default": None} if isinstance(kind, list) else {}
            fields.append(
                {"name": name if name not in taken else f"f{number}", "type": kind, **optional, "field-id": number}
            )
