"""Records of Avro data files as Arrow batches.

Format: Avro 1.11, logical types, as in Paimon's AvroSchemaConverter and Iceberg's specification, Appendix A. A nullable
type is a union of null and the type.
Bytes, shorts and ints are ints. Decimals are the big-endian bytes of the unscaled number. Times are milliseconds of the
day. Timestamps are milliseconds or microseconds, and called local if they have a time zone, the reverse of Avro's
meaning: a column's type decides. A map whose keys are not text is an array of records of a key and a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.avro.container import Record
from dv_maintenance.files.avro.schema import Rebuilt
from dv_maintenance.remedies import Remedy, setting

_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.null(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms"),
    ("long", "timestamp-micros"): pa.timestamp("us"),
    ("long", "timestamp-nanos"): pa.timestamp("ns"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_MAX_DIGITS: Final = 38
_LEAVE_OUT: Final = Remedy("leave the column out with {}, or read the table with its own engine", (setting("columns"),))
_FIELD_ID: Final = "PARQUET:field_id"


def stored_schema(schema: Rebuilt) -> pa.Schema:
    """The Arrow schema of a file's records, from the schema that ``schema.parse_schema`` returns.

    Raises
    ------
    DamagedTableError : a type that no known writer writes.
    """
    return pa.schema(_fields(schema))


def _fields(schema: Rebuilt) -> list[pa.Field]:
    """The fields of a record, with their ids where Iceberg's writers record them."""
    return [
        pa.field(each["name"], _type(each["type"]), metadata={_FIELD_ID: str(each["id"])} if "id" in each else None)
        for each in schema["fields"]
    ]


def _type(schema: Rebuilt) -> pa.DataType:
    match kind := schema["type"]:
        case "union":
            some = [each for each in schema["branches"] if each["type"] != "null"]
            if len(some) != 1 or len(schema["branches"]) > 2:
                raise DamagedTableError("its schema has a union of more than null and one type")
            return _type(some[0])
        case "record":
            return pa.struct(_fields(schema))
        case "array":
            items = schema["items"]
            if schema.get("logical") == "map" and _names(items) == ["key", "value"]:
                key, value = (_type(each["type"]) for each in items["fields"])
                return pa.map_(key, value)
            return pa.list_(_type(items))
        case "map":
            return pa.map_(pa.string(), _type(schema["values"]))
        case "fixed" if schema.get("logical") != "decimal":
            return pa.binary(schema["size"])
    if kind in {"bytes", "fixed"} and schema.get("logical") == "decimal":
        precision, scale = schema["precision"], schema["scale"]
        if not 0 <= scale <= precision <= _MAX_DIGITS or not precision:
            raise DamagedTableError(f"its schema has a decimal of {precision} digits, {scale} of them after the point")
        return pa.decimal128(precision, scale)
    return _LOGICAL.get((kind, schema.get("logical", "")), _PLAIN[kind])


def _names(schema: Rebuilt) -> list[str]:
    return [each["name"] for each in schema["fields"]] if schema["type"] == "record" else []


def record_batch(records: Sequence[Record], schema: pa.Schema) -> pa.RecordBatch:
    """The records as a batch of ``schema``: some fields of the file's ``stored_schema``.

    Raises
    ------
    DamagedTableError : a value does not fit its type.
    RefusedError : Arrow has no type for a value.
    """
    try:
        columns = [_array([record[field.name] for record in records], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DamagedTableError(f"its records have a value that does not fit its type: {error}") from error


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    if types.is_temporal(type_):
        return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    if types.is_decimal(type_):
        return _decimals(values, type_)
    if types.is_struct(type_):
        return _structs(values, type_)
    if types.is_map(type_):
        entries = [
            entry
            for value in values
            if value is not None
            for entry in (
                value.items() if isinstance(value, dict) else ((each["key"], each["value"]) for each in value)
            )
        ]
        keys = _array([key for key, _ in entries], type_.key_type)
        if keys.null_count:
            raise RefusedError("it holds maps with a null key, for which Arrow has no type", next_step=_LEAVE_OUT)
        items = _array([item for _, item in entries], type_.item_type)
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=type_, mask=_mask(values))
    if types.is_list(type_):
        elements = _array([each for value in values if value is not None for each in value], type_.value_type)
        return pa.ListArray.from_arrays(_offsets(values), elements, type=type_, mask=_mask(values))
    return pa.array(values, type_)


def _structs(values: list[Any], type_: pa.DataType) -> pa.StructArray:
    fields = list(type_)
    children = [
        _array([None if value is None else value[field.name] for value in values], field.type) for field in fields
    ]
    mask = _mask(values)
    if not fields:
        return pa.array([None if value is None else {} for value in values], type_)
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _decimals(values: list[Any], type_: pa.DataType) -> pa.Array:
    """From big-endian bytes. Python's own decimals would round to the digits of their context."""
    limit = 10**type_.precision
    raw = bytearray()
    for value in values:
        number = 0 if value is None else int.from_bytes(value, "big", signed=True)
        if not -limit < number < limit:
            raise ValueError(f"a decimal of more than {type_.precision} digits")
        raw += number.to_bytes(16, "little", signed=True)
    valid = None
    if any(value is None for value in values):
        valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type_, len(values), [valid, pa.py_buffer(bytes(raw))])


def _offsets(values: list[Any]) -> pa.Array:
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return pa.array(ends).cast(pa.int32())


def _mask(values: list[Any]) -> pa.Array | None:
    missing = [value is None for value in values]
    return pa.array(missing, pa.bool_()) if any(missing) else None
