"""Columns in Arrow types that Spark supports, with the same values, and back. UUIDs are text, see ``uuids``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.dml import uuids
from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.model import logical_type

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
    uuids.KIND: pa.string(),
}
# As pyspark.sql.pandas.types.to_arrow_type has it: the mark is how Spark knows it.
VARIANT: Final = pa.struct(
    [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {b"variant": b"true"})]
)
"""A variant in Spark."""
_PARTS: Final = {(each.name, each.type, each.nullable) for each in VARIANT}

_PRECISION: Final = 38


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with every type that Spark lacks replaced by one that holds the same values. Everything may be null:
    Spark would not look for nulls in a NOT NULL column, and the reader, which does, would not be asked.

    Raises
    ------
    RefusedError : a column has a type without such a replacement.
    """
    fields = [field.with_type(_known(field, field.name)).with_nullable(True) for field in schema]
    return pa.schema(fields, schema.metadata)


def value_type(field: pa.Field) -> pa.DataType:
    """The type of a column's values, where its Arrow type alone may not show it: ``uuids.KIND``, ``VARIANT``."""
    return {"uuid": uuids.KIND, "variant": VARIANT}.get(logical_type(field), field.type)


def for_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in the types of ``spark_schema``.

    Raises
    ------
    RefusedError : a value that Spark's type can't hold, such as a time in nanoseconds.
    """
    if batch.schema.equals(schema):
        return batch
    columns = [_for_spark(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _for_spark(column: pa.Array, field: pa.Field) -> pa.Array:
    problem = f"column {field.name} has values that Spark's type can't hold"
    return stored_as(column, field, problem, "leave the column out of the condition")


def stored_as(column: pa.Array, field: pa.Field, problem: str, next_step: str) -> pa.Array:
    """The column in the type of ``field``. Raises RefusedError with the ``problem`` if it can't hold a value."""
    try:
        return retyped(column, field.type)
    except pa.ArrowInvalid as error:
        raise RefusedError(f"{problem}: {error}", next_step=next_step) from error


def retyped(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An array in Spark's types in those of the files, or the other way: nested fields with their names there.

    Raises
    ------
    pyarrow.ArrowInvalid : a value that the type can't hold.
    """
    kind = array.type
    if types.is_struct(wanted) and types.is_struct(kind):
        mask = array.is_null() if array.null_count else None
        if _is_variant(wanted):
            # Spark leaves the parts of a null out; in files they are required.
            inner = [array.field(each.name).cast(each.type).fill_null(b"") for each in wanted]
        else:
            given = [*range(kind.num_fields)]
            if len(given) > wanted.num_fields:  # files do not store what has an unknown type
                given = [at for at in given if not types.is_null(kind.field(at).type)]
            inner = [retyped(array.field(at), each.type) for at, each in zip(given, wanted, strict=True)]
        return pa.StructArray.from_arrays(inner, fields=list(wanted), mask=mask)
    if types.is_list(wanted) and types.is_list(kind):
        rebuild = partial(pa.ListArray.from_arrays, type=wanted)
        return _with_nulls(array, rebuild, [retyped(array.values, wanted.value_type)])
    if types.is_map(wanted) and types.is_map(kind):
        parts = [retyped(array.keys, wanted.key_type), retyped(array.items, wanted.item_type)]
        return _with_nulls(array, partial(pa.MapArray.from_arrays, type=wanted), parts)
    if kind == wanted:
        return array
    if kind == uuids.STORED and types.is_string(wanted):
        return uuids.texts_of(array)
    if types.is_string(kind) and wanted == uuids.STORED:
        return uuids.stored_of(array)
    return array.cast(wanted)


def _is_variant(kind: pa.DataType) -> bool:
    """Of types in Spark or in files, where nothing but a variant has required fields."""
    return {(each.name, each.type, each.nullable) for each in kind} == _PARTS


def _with_nulls(array: pa.Array, rebuild: Callable[..., pa.Array], parts: list[pa.Array]) -> pa.Array:
    """A list or map array rebuilt with nulls. ``parts``: its values, or keys and items, of the whole buffer."""
    offsets = array.offsets
    if array.null_count:
        nulls = pa.concat_arrays([array.is_null(), pa.array([False])])
        offsets = pc.if_else(nulls, pa.scalar(None, offsets.type), offsets)
    return rebuild(offsets, *parts)


def _known(field: pa.Field, column: str) -> pa.DataType:
    """``column``: the name to report."""
    match logical_type(field):
        case "variant":
            return VARIANT
        case "uuid":
            return pa.string()
    type_ = field.type

    def within(inner: pa.Field) -> pa.Field:
        return inner.with_type(_known(inner, column)).with_nullable(True)

    nested: dict[Callable[[pa.DataType], bool], Callable[[], pa.DataType]] = {
        types.is_dictionary: lambda: _known(pa.field(column, type_.value_type), column),
        types.is_struct: lambda: pa.struct([within(type_.field(at)) for at in range(type_.num_fields)]),
        types.is_map: lambda: pa.map_(within(type_.key_field).with_nullable(False), within(type_.item_field)),
    }
    for is_such, make in nested.items():
        if is_such(type_):
            return make()
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return pa.list_(within(type_.value_field))
    if types.is_fixed_size_binary(type_):
        return pa.binary()
    if types.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if types.is_duration(type_):
        return pa.duration("us")
    if types.is_decimal256(type_) and type_.precision <= _PRECISION:
        return pa.decimal128(type_.precision, type_.scale)
    if type_ in _WIDER:
        return _WIDER[type_]
    if types.is_time(type_) or types.is_decimal256(type_) or isinstance(type_, pa.BaseExtensionType):
        raise RefusedError(
            f"column {column} has the type {type_}, which Spark lacks",
            next_step="leave it out of the condition, or delete with the format's own library",
        )
    return type_
