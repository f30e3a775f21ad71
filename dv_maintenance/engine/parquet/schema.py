"""Columns, rows and statistics of a Parquet file that is not in a table yet, from its footer alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.faults import reading
from dv_maintenance.engine.parquet.calendars import CalendarKeys
from dv_maintenance.engine.parquet.projection import leaf_count
from dv_maintenance.engine.stats import StatsCollector
from dv_maintenance.errors import RefusedError
from dv_maintenance.files.parquet_footer import open_parquet_file
from dv_maintenance.tables.work import ColumnStats, OutputFile

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage

_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


def describe(storage: Storage, path: str) -> tuple[pa.Schema, OutputFile]:
    """The file's schema as tables have them, every field nullable, and the file.

    Layouts that only Arrow distinguishes are one type; a time in INT96 is an instant, as Spark writes it. Nanoseconds,
    and null as the type of a column without a value, are kept: tables have neither.

    Raises
    ------
    DamagedTableError : it is not a Parquet file.
    StorageError : the storage did not answer.
    RefusedError : a column has a type that tables don't have; names the column.
    """
    uri = storage.uri_of(path)
    with reading(uri), storage.open_input(path) as source:
        file = open_parquet_file(source, coerce_int96_timestamp_unit="us")
        footer, stored = file.metadata, file.schema_arrow
        schema = pa.schema(_Normal(uri, footer).fields(stored))
        info = storage.head(path)
        return schema, OutputFile(uri, info.size, footer.num_rows, info.modified, _stats(stored, footer))


class _Normal:
    def __init__(self, uri: str, footer: Any) -> None:
        self.uri = uri
        self.footer = footer
        self.leaf = 0  # leaves are numbered depth first, as Parquet stores them

    def fields(self, stored: Any) -> list[pa.Field]:
        return [pa.field(field.name, self.type(field.type, field.name)) for field in stored]

    def type(self, kind: pa.DataType, column: str) -> pa.DataType:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if types.is_struct(kind):
            return pa.struct([pa.field(each.name, self.type(each.type, f"{column}.{each.name}")) for each in kind])
        if types.is_map(kind):
            key = self.type(kind.key_type, f"{column}.key")
            return pa.map_(key, self.type(kind.item_type, f"{column}.value"))
        if types.is_nested(kind):
            return pa.list_(self.type(kind.value_type, f"{column}.element"))
        leaf, self.leaf = self.leaf, self.leaf + leaf_count(kind)
        found = self.plain(kind.value_type if types.is_dictionary(kind) else kind, leaf)
        if found is None:
            raise RefusedError(
                f"column {column} of {self.uri} has the type {kind}, which tables don't have",
                next_step="rewrite the files with another type",
            )
        return found

    def plain(self, kind: pa.DataType, leaf: int) -> pa.DataType | None:
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            return pa.string()
        if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
            return pa.binary()
        if types.is_fixed_size_binary(kind):
            return pa.binary()
        if types.is_timestamp(kind):
            int96 = self.footer.schema.column(leaf).physical_type == "INT96"
            return pa.timestamp("ns" if kind.unit == "ns" else "us", "UTC" if kind.tz or int96 else None)
        if types.is_decimal(kind):
            return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 and kind.scale >= 0 else None
        known = types.is_signed_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
        if known or types.is_boolean(kind) or types.is_date32(kind) or types.is_null(kind):
            return kind
        return _UNSIGNED.get(kind)


def _stats(schema: pa.Schema, footer: Any) -> tuple[ColumnStats, ...]:
    """Statistics of the leaves for which the footer is sufficient.

    Omitted are lists and maps, as a footer does not distinguish null from empty ones, and the bounds of floats (NaN is
    missing), of timestamps in other units than ours, and of dates and timestamps that differ between calendars.
    """
    found = []
    for name, leaf, kind in leaves_of(schema):
        chunks = [footer.row_group(group).column(leaf).statistics for group in range(footer.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        (stats,) = StatsCollector(schema, [name]).fold(footer, {leaf} if types.is_floating(kind) else ())
        vague = types.is_timestamp(kind) and kind.unit != "us"
        vague = vague or CalendarKeys.of(footer, [leaf]) is not CalendarKeys.IRRELEVANT
        found.append(ColumnStats(name, stats.null_count) if vague else stats)
    return tuple(found)


def leaves_of(schema: pa.Schema) -> Iterator[tuple[tuple[str, ...], int, pa.DataType]]:
    """Path, number and type of each leaf outside lists and maps."""

    def walk(fields: Any, parent: tuple[str, ...], first: int) -> Iterator[tuple[tuple[str, ...], int, pa.DataType]]:
        for field in fields:
            path = (*parent, field.name)
            if types.is_struct(field.type):
                yield from walk(field.type, path, first)
            elif not types.is_nested(field.type) and not isinstance(field.type, pa.BaseExtensionType):
                yield path, first, field.type
            first += leaf_count(field.type)

    yield from walk(schema, (), 0)
