"""Bounds of a column's values in each file, from partition values and statistics, as Arrow columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.tables.delta.log.columns import bools, int32s, int64s, numbers, strings
from dv_maintenance.tables.delta.log.replay import replay
from dv_maintenance.tables.delta.rows.partitions import is_local_time, partition_columns
from dv_maintenance.tables.delta.rows.schema import delta_kind
from dv_maintenance.tables.delta.rows.skipping import StatsColumn, parsed, partition_bounds, stats_bounds
from dv_maintenance.tables.model import parse_partition
from dv_maintenance.tables.rows import ColumnBounds

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.rows.partitions import PartitionColumn
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
    from dv_maintenance.tables.predicate import Bounds

__all__ = ["column_bounds", "local_times"]


def column_bounds(storage: Storage, snapshot: DeltaSnapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
    """See ``RowLevelTable.column_bounds``. A partition value bounds itself; for the limits of statistics, see
    ``skipping``.

    Raises
    ------
    DamagedTableError : the log cannot be trusted.
    """
    partitions = {column.name: column for column in partition_columns(snapshot.metadata)}
    wanted = [name for name in dict.fromkeys(columns) if name in snapshot.schema.names]
    bounds = {name: _of_partition(snapshot, partitions[name]) for name in wanted if name in partitions}
    stored = [
        StatsColumn.of((name,), snapshot.schema)
        for name in wanted
        if name not in partitions and _is_bounded(snapshot.schema.field(name))
    ]
    if stored and snapshot.files.num_rows and not snapshot.duplicate_paths:
        statistics = _statistics(storage, snapshot)
        for column in stored:
            known = [stats_bounds(stats, column) for stats in statistics]
            bounds[column.column[0]] = _column_bounds(_table(known, column.type), snapshot)
    return bounds


def local_times(snapshot: DeltaSnapshot, columns: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """See ``SkippingTable.local_times``. Raises as :func:`column_bounds`."""
    found = {}
    for column in partition_columns(snapshot.metadata):
        if column.name not in columns or not (types.is_timestamp(column.type) and column.type.tz is not None):
            continue
        chunks = []
        for chunk in snapshot.files["partition"].chunks:
            raw = [parse_partition(each)[column.name] for each in chunk.dictionary.to_pylist()]
            texts = strings([each if is_local_time(each, column.type) else None for each in raw])
            chunks.append(texts.take(int32s(numbers(chunk.indices))))
        known = pa.chunked_array(chunks, pa.string())
        if known.null_count < len(known):
            found[column.name] = known
    return found


def _of_partition(snapshot: DeltaSnapshot, column: PartitionColumn) -> ColumnBounds:
    """From the stored values in the files' partition names: work per partition, not per file."""
    tables: list[pa.Table] = []
    for chunk in snapshot.files["partition"].chunks:
        raw = [parse_partition(each)[column.name] for each in chunk.dictionary.to_pylist()]
        known = [partition_bounds(each, column.type) for each in raw]
        tables.append(_table(known, column.type).take(int32s(numbers(chunk.indices))))
    return _column_bounds(pa.concat_tables([_table([], column.type), *tables]), snapshot)


def _statistics(storage: Storage, snapshot: DeltaSnapshot) -> list[Mapping[str, Any]]:
    """Parsed statistics of each file, in the order of ``snapshot.files``; empty for a file without any."""
    adds = replay(storage, snapshot.segment, adds=("path", "stats")).adds
    # Only files that the snapshot still lists: it may have been narrowed.
    chosen = pc.index_in(snapshot.files["path"], value_set=adds["path"])
    return [parsed(text) for text in adds["stats"].take(chosen).to_pylist()]


def _is_bounded(field: pa.Field) -> bool:
    type_ = field.type
    return delta_kind(field) is None and bool(
        types.is_integer(type_)
        or types.is_floating(type_)
        or types.is_decimal(type_)
        or types.is_string(type_)
        or types.is_date(type_)
        or types.is_timestamp(type_)
        or types.is_boolean(type_)
        or types.is_binary(type_)
    )


def _table(known: Sequence[Bounds], type_: pa.DataType) -> pa.Table:
    return pa.table(
        {
            "minimum": _array([each.lower for each in known], type_, "ROUND_FLOOR"),
            # To Spark, NaN is greater than any number, and no writer records which files have NaN.
            "maximum": _array([None if each.nans else each.upper for each in known], type_, "ROUND_CEILING"),
            "all_null": bools(np.array([not each.values for each in known], bool)),
            "none_null": bools(np.array([not each.nulls for each in known], bool)),
        }
    )


def _column_bounds(known: pa.Table, snapshot: DeltaSnapshot) -> ColumnBounds:
    zero, unknown = pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())
    some = pc.if_else(known["none_null"], zero, unknown)
    nulls = pc.if_else(known["all_null"], snapshot.files["physical_rows"], some)
    return ColumnBounds(known["minimum"], known["maximum"], nulls)


def _array(values: Sequence[Any], type_: pa.DataType, rounding: str) -> pa.Array:
    """An array of values in the form of ``predicate.comparable``. A value that the type cannot hold is not a bound.
    Floats become doubles, because rounding to a float32 could move a bound inside the range that it must cover.
    """
    if types.is_string(type_):
        return strings(values)
    if types.is_integer(type_) or types.is_date(type_):
        least, greatest = -(1 << type_.bit_width - 1), (1 << type_.bit_width - 1) - 1
        fitting = int64s([value if value is not None and least <= value <= greatest else None for value in values])
        return fitting.cast(pa.int32()).view(type_) if types.is_date(type_) else fitting.cast(type_)
    if types.is_timestamp(type_):
        return int64s(values).view(type_)
    if types.is_decimal(type_):
        return pa.array([_rounded(value, type_, rounding) for value in values], type_)
    return pa.array(values, pa.float64() if types.is_floating(type_) else type_)


def _rounded(value: Decimal | int | None, type_: pa.DataType, rounding: str) -> Decimal | None:
    if value is None:
        return None
    try:
        return Context(type_.precision, rounding).quantize(Decimal(value), Decimal(1).scaleb(-type_.scale))
    except InvalidOperation:  # more digits than the type has
        return None
