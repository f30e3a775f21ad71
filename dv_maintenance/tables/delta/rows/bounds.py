"""Bounds of a column's values in each file, from partition values and statistics, as Arrow columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.files.arrays import int32s, numbers, strings
from dv_maintenance.tables.bounds import columns_of, table_of
from dv_maintenance.tables.columns import field_at, path_of
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


def column_bounds(storage: Storage, snapshot: DeltaSnapshot, columns: Sequence[str]) -> dict[str, ColumnBounds]:
    """See ``RowLevelTable.column_bounds``. A partition value bounds itself; for the limits of statistics, see
    ``skipping``.

    Raises
    ------
    DamagedTableError : the log cannot be trusted.
    """
    partitions = {column.name: column for column in partition_columns(snapshot.metadata)}
    paths = {name: path_of(name, snapshot.schema) for name in dict.fromkeys(columns)}
    wanted = {name: path for name, path in paths.items() if path[0] in snapshot.schema.names}
    bounds = {name: _of_partition(snapshot, partitions[name]) for name in wanted if name in partitions}
    stored = {
        name: StatsColumn.of(path, snapshot.schema)
        for name, path in wanted.items()
        if name not in partitions and _is_bounded(field_at(path, snapshot.schema))
    }
    if stored and snapshot.files.num_rows and not snapshot.duplicate_paths:
        statistics = _statistics(storage, snapshot)
        for name, column in stored.items():
            known = [stats_bounds(stats, column) for stats in statistics]
            bounds[name] = columns_of(table_of(known, column.type), snapshot.files["physical_rows"])
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
        tables.append(table_of(known, column.type).take(int32s(numbers(chunk.indices))))
    return columns_of(pa.concat_tables([table_of([], column.type), *tables]), snapshot.files["physical_rows"])


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
