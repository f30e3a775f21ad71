"""A table's schema in Spark's types, and batches in the form that Spark accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dv_maintenance.dml import spark_types
from dv_maintenance.errors import RefusedError, UnsupportedFeatureError
from dv_maintenance.tables.model import LIMITED, logical_type

_UNFIT: Final = frozenset({"nanos", "geo"})

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def spark_schema(schema: pa.Schema) -> StructType:
    """A schema in which every column may be null: NOT NULL is a rule for writers, and an optimizer that trusts it
    returns wrong results if a file violates it. Comments of columns are kept.

    Raises
    ------
    UnsupportedFeatureError : a column has a type that this source can't pass to Spark.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = []
    for own, field in zip(schema, as_sent(schema), strict=True):
        metadata = own.metadata or {}
        kind = _unfit(own)
        try:
            if kind:
                raise UnsupportedFeatureError("", features=(kind,))
            type_ = from_arrow_type(field.type, prefer_timestamp_ntz=True)
        except (PySparkException, UnsupportedFeatureError):
            raise UnsupportedFeatureError(
                f"column {field.name!r} has the type {kind or field.type}, which this source can't pass to Spark",
                features=(kind or str(field.type),),
                next_step="leave the column out with the option 'columns'",
            ) from None
        # Spark pads CHARs, and values compared with them, by the entry of this name.
        entries = {"comment": metadata.get(b"comment"), "__CHAR_VARCHAR_TYPE_STRING": metadata.get(LIMITED)}
        known = {key: value.decode() for key, value in entries.items() if value and b"(n)" not in value}
        fields.append(StructField(field.name, type_, True, known or None))
    return StructType(fields)


def _unfit(field: pa.Field) -> str:
    """The kind of a field, or of one in it, whose values Spark would change; empty if there is none."""
    kind = logical_type(field)
    inside = (_unfit(field.type.field(at)) for at in range(field.type.num_fields))
    return kind if kind in _UNFIT else next(filter(None, inside), "")


def as_sent(schema: pa.Schema) -> pa.Schema:
    """The columns in Arrow types that Spark has, where it has them: UUIDs as text, variants as Spark's, unsigned
    integers as wider ones.
    """
    return pa.schema([_as_sent(field) for field in schema], schema.metadata)


def _as_sent(field: pa.Field) -> pa.Field:
    try:
        return spark_types.spark_schema(pa.schema([field])).field(0)
    except RefusedError:
        return _nullable(field)


def nullable(schema: pa.Schema) -> pa.Schema:
    """The same columns, found in files the same way, nullable at every level except map keys."""
    return pa.schema([_nullable(field) for field in schema], schema.metadata)


def _nullable(field: pa.Field) -> pa.Field:
    return field.with_type(_type(field.type)).with_nullable(True)


def _type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([_nullable(type_.field(at)) for at in range(type_.num_fields)])
    if pa.types.is_list(type_):
        return pa.list_(_nullable(type_.value_field))
    if pa.types.is_map(type_):
        key = type_.key_field.with_type(_type(type_.key_field.type))
        return pa.map_(key, _nullable(type_.item_field))
    return type_
