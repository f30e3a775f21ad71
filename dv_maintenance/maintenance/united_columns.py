"""One set of columns for files whose writers chose types on their own, such as pandas, which decides by the values.

A file may have a narrower type than the table: Spark 4, deltalake and polars read integers, floats and decimals of one
scale as wider ones, and fields that a struct lacks as null (each was run). A column without a value has no type, and is
stored as integers: Spark reads it as integers, doubles and dates, and as nothing else. No Spark reads nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import RefusedError

if TYPE_CHECKING:
    from dv_maintenance.tables.work import OutputFile

_OF_NOTHING: Final = pa.int32()
"""The type of a column that has no value in any file, as in Spark."""
_READ_FROM_NOTHING: Final = frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.date32()})


@dataclass(frozen=True, slots=True)
class UnitedColumns:
    """The columns of the table.

    unfit : why a file can't be read with these columns by every reader, by its index. Written again, it can.
    """

    fields: tuple[pa.Field, ...]
    unfit: dict[int, str]


def united_columns(
    table: str, described: Sequence[tuple[pa.Schema, OutputFile]], partitions: Sequence[str]
) -> UnitedColumns:
    """Columns of all files, in order of first appearance. The folders' value wins over a copy in a file.

    Raises
    ------
    RefusedError : a file has two columns of one name, or a column has two types that no common one can hold.
    """
    columns: dict[str, tuple[pa.Field, OutputFile]] = {}
    for schema, file in described:
        if len({name.lower() for name in schema.names}) < len(schema.names):
            raise RefusedError(
                f"{file.uri} has two columns of the same name, ignoring upper and lower case",
                table=table,
                next_step="rename one of them in the file first",
            )
        for field in _own(schema, partitions):
            known, where = columns.setdefault(field.name.lower(), (field, file))
            kind = _common(known.type, field.type)
            if kind is None:
                raise RefusedError(
                    f"column {field.name} is {known.type} in {where.uri} and {field.type} in {file.uri}",
                    table=table,
                    next_step="rewrite one of them with the type of the other",
                )
            columns[field.name.lower()] = known.with_type(kind), where
    fields = {name: field.with_type(_typed(field.type)) for name, (field, _) in columns.items()}
    unfit = {}
    for at, (schema, _) in enumerate(described):
        for field in _own(schema, partitions):
            wanted = fields[field.name.lower()]
            if wanted.name != field.name:
                unfit[at] = f"its column {field.name} is called {wanted.name} in others"
            elif not _readable(field.type, wanted.type):
                unfit[at] = f"its column {field.name} is {field.type} instead of {wanted.type}"
    return UnitedColumns(tuple(fields.values()), unfit)


def _own(schema: pa.Schema, partitions: Sequence[str]) -> list[pa.Field]:
    return [field for field in schema if field.name not in partitions]


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both; ``None`` if there is none."""
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_signed_integer(one) and types.is_signed_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    if types.is_floating(one) and types.is_floating(other):
        return pa.float64()
    if types.is_decimal(one) and types.is_decimal(other) and one.scale == other.scale:
        return max(one, other, key=lambda kind: kind.precision)
    if types.is_timestamp(one) and types.is_timestamp(other) and one.tz == other.tz:
        return pa.timestamp("us", one.tz)
    if types.is_struct(one) and types.is_struct(other):
        return _common_struct(one, other)
    if types.is_list(one) and types.is_list(other):
        element = _common(one.value_type, other.value_type)
        return None if element is None else pa.list_(element)
    if types.is_map(one) and types.is_map(other):
        key, item = _common(one.key_type, other.key_type), _common(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    return None


def _common_struct(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    fields = {field.name: field for field in one}
    for field in other:
        known = fields.setdefault(field.name, field)
        kind = _common(known.type, field.type)
        if kind is None:
            return None
        fields[field.name] = known.with_type(kind)
    return pa.struct(list(fields.values())) if len({name.lower() for name in fields}) == len(fields) else None


def _typed(kind: pa.DataType) -> pa.DataType:
    """The type as tables have it."""
    if types.is_null(kind):
        return _OF_NOTHING
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_typed(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_typed(kind.value_type))
    if types.is_map(kind):
        return pa.map_(_typed(kind.key_type), _typed(kind.item_type))
    return kind


def _readable(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every reader reads a column as ``wanted``, a type that holds its values."""
    if stored == wanted:
        return True
    if types.is_struct(stored):
        return all(_readable(field.type, wanted.field(field.name).type) for field in stored)
    if types.is_list(stored) or types.is_map(stored):
        pairs = [(stored.field(at).type, wanted.field(at).type) for at in range(stored.num_fields)]
        return all(not types.is_null(inner) and _readable(inner, outer) for inner, outer in pairs)
    if types.is_null(stored):
        return wanted in _READ_FROM_NOTHING
    return not types.is_timestamp(stored)
