"""Columns in Arrow types that Spark supports, with the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import RefusedError

_WIDER: Final = {
    pa.float16(): pa.float32(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_PRECISION: Final = 38


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with every type that Spark lacks replaced by one that holds the same values. Everything may be null:
    Spark would not look for nulls in a NOT NULL column, and the reader, which does, would not be asked.

    Raises
    ------
    RefusedError : a column has a type without such a replacement.
    """
    fields = [field.with_type(_known(field.type, field.name)).with_nullable(True) for field in schema]
    return pa.schema(fields, schema.metadata)


def for_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in the types of ``spark_schema``.

    Raises
    ------
    RefusedError : a value that Spark's type can't hold, such as a time in nanoseconds.
    """
    if batch.schema.equals(schema):
        return batch
    columns = [_cast(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise RefusedError(
            f"column {field.name} has values that Spark's type can't hold: {error}",
            next_step="leave the column out of the condition",
        ) from error


def _known(type_: pa.DataType, name: str) -> pa.DataType:
    def field(inner: pa.Field) -> pa.Field:
        return inner.with_type(_known(inner.type, name)).with_nullable(True)

    nested: dict[Callable[[pa.DataType], bool], Callable[[], pa.DataType]] = {
        types.is_dictionary: lambda: _known(type_.value_type, name),
        types.is_struct: lambda: pa.struct([field(type_.field(at)) for at in range(type_.num_fields)]),
        types.is_map: lambda: pa.map_(field(type_.key_field).with_nullable(False), field(type_.item_field)),
    }
    for is_such, make in nested.items():
        if is_such(type_):
            return make()
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return pa.list_(field(type_.value_field))
    if types.is_fixed_size_binary(type_):
        return pa.binary()
    if types.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if types.is_duration(type_):
        return pa.duration("us")
    if types.is_decimal256(type_) and type_.precision <= _PRECISION:
        return pa.decimal128(type_.precision, type_.scale)
    if types.is_time(type_) or types.is_decimal256(type_) or isinstance(type_, pa.BaseExtensionType):
        raise RefusedError(
            f"column {name} has the type {type_}, which Spark lacks",
            next_step="leave it out of the condition, or delete with the format's own library",
        )
    return _WIDER.get(type_, type_)
