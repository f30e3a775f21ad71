"""Decide which live files may hold a row that satisfies a condition, from partition values and statistics.

Many tools write statistics, so only a few facts can be relied on (protocol: Per-file Statistics). A bound need not be
exact: strings are cut off, timestamps are cut to milliseconds, their offsets to minutes, floats may have the digits of
a narrower type, and the rows that reached the bound may be deleted. A maximum of floats says nothing about NaN:
Parquet's own statistics ignore NaN, and Spark treats it as the greatest number. A bound that is missing, or not of its
column's type, is unknown.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.files.arrays import bools, int32s, numbers
from dv_maintenance.tables.delta.log.replay import replay
from dv_maintenance.tables.delta.rows.partitions import constant, is_local_time, partition_columns
from dv_maintenance.tables.delta.rows.schema import delta_kind, physical_name
from dv_maintenance.tables.predicate import (
    Bounds,
    Column,
    Predicate,
    bind,
    columns_of,
    comparable,
    exactly,
    may_be_true,
)

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_UNBOUNDED: Final = Bounds()
_BATCH: Final = 65_536  # statistics that are Python objects at the same time
# Half of what a float32 may be off by, and more than any shortest text of one is.
_FLOAT_SLACK: Final = 2.0**-23
_MILLISECOND: Final = 1000
_MINUTE: Final = 60_000_000
# Since then no time zone has an offset with seconds. Spark's statistics have those of older times without them.
_WHOLE_MINUTES: Final = 1973
# The character that older writers append to a truncated maximum. Some characters sort after it.
_OLD_TIE_BREAKER: Final = "\ufffd"
_SURROGATES: Final = range(0xD800, 0xE000)


def may_match(storage: Storage, snapshot: DeltaSnapshot, predicate: Predicate) -> pa.BooleanArray:
    """One value per row of ``snapshot.files``: ``False`` if no live row of the file satisfies ``predicate``.

    Partition values are tested first. Statistics are read only if the predicate has other columns and files are left.

    Raises
    ------
    DamagedTableError, StorageError : as reading the snapshot does.
    """
    bound = bind(predicate, snapshot.schema, lambda field: delta_kind(field) is not None)
    wanted = sorted(set(columns_of(bound)))
    stored = [
        StatsColumn.of(column, snapshot.schema) for column in wanted if column[0] not in snapshot.partition_columns
    ]
    codes, by_partition = _partition_bounds(snapshot, wanted)
    possible = [may_be_true(bound, _lookup(known)) for known in by_partition]
    kept = np.array(possible, np.bool_)[codes]
    # A file that is live twice has statistics for each of its DVs, so its path does not identify them.
    if stored and kept.any() and not snapshot.duplicate_paths:
        left = np.flatnonzero(kept)
        for row, text in zip(left.tolist(), _statistics(storage, snapshot, left), strict=True):
            stats = parsed(text)
            known = {column.column: stats_bounds(stats, column) for column in stored}
            kept[row] = may_be_true(bound, _lookup({**by_partition[codes[row]], **known}))
    return bools(kept)


def _lookup(known: Mapping[Column, Bounds]) -> Callable[[Column], Bounds]:
    return lambda column: known.get(column, _UNBOUNDED)


# -- partition values --------------------------------------------------------------------------------------------


def _partition_bounds(snapshot: DeltaSnapshot, wanted: list[Column]) -> tuple[Any, list[dict[Column, Bounds]]]:
    """A code per file, and for each code the bounds that its partition gives for the wanted columns."""
    columns = [column for column in partition_columns(snapshot.metadata) if (column.name,) in wanted]
    files = snapshot.files
    if not columns or not files.num_rows:
        return np.zeros(files.num_rows, np.int64), [{}]
    encoded = files["partition"].unify_dictionaries()
    codes = np.concatenate([numbers(chunk.indices) for chunk in encoded.chunks])
    found, first, dense = np.unique(codes, return_index=True, return_inverse=True)
    values = files["partition_values"].take(int32s(first))
    return dense, [
        {
            (column.name,): partition_bounds(dict(values[at].as_py() or ()).get(column.key), column.type)
            for column in columns
        }
        for at in range(len(found))
    ]


def partition_bounds(raw: str | None, type_: pa.DataType) -> Bounds:
    """Bounds from a raw partition value. Raises DamagedTableError if ``raw`` is not a value of the type."""
    if is_local_time(raw, type_):
        return Bounds(nulls=False)
    value = constant(raw, type_)
    if value is not None and types.is_decimal(type_):
        value = Decimal(value)
    elif value is not None and types.is_floating(type_):
        value = float(value)
    elif value is not None and types.is_binary(type_):
        value = b64decode(value)
    return exactly(value)


# -- statistics --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatsColumn:
    """A column that may have statistics: ``column`` in logical names, ``path`` in the names that statistics use."""

    column: Column
    path: tuple[str, ...]
    type: pa.DataType

    @classmethod
    def of(cls, column: Column, schema: pa.Schema) -> Self:
        field = schema.field(column[0])
        path = [physical_name(field)]
        for name in column[1:]:
            field = field.type.field(name)
            path.append(physical_name(field))
        return cls(column, tuple(path), field.type)


def stats_bounds(stats: Mapping[str, Any], column: StatsColumn) -> Bounds:
    """The bounds of a column in the file's live rows, from the parsed ``stats`` of an ``add``.

    ``nullCount`` includes rows that were deleted later, so it is conclusive only if no row or every row is null. That
    holds for tight and for wide bounds (protocol: Per-file Statistics).
    """
    rows, nulls = stats.get("numRecords"), _at(stats.get("nullCount"), column.path)
    counted = type(nulls) is int
    return Bounds(
        lower=_bound(_at(stats.get("minValues"), column.path), column.type, -1),
        upper=_bound(_at(stats.get("maxValues"), column.path), column.type, +1),
        values=not (counted and type(rows) is int and nulls >= rows),
        nulls=not (counted and nulls == 0),
        nans=bool(types.is_floating(column.type)),
    )


def _statistics(storage: Storage, snapshot: DeltaSnapshot, rows: Any) -> Iterator[str | None]:
    """The JSON of the statistics of these rows of ``snapshot.files``."""
    adds = replay(storage, snapshot.segment, adds=("path", "stats")).adds
    # By path, because a log read twice may list its files in a different order.
    chosen = pc.index_in(snapshot.files["path"].take(int32s(rows)), value_set=adds["path"])
    for start in range(0, len(chosen), _BATCH):
        yield from adds["stats"].take(chosen.slice(start, _BATCH)).to_pylist()


def parsed(text: str | None) -> Mapping[str, Any]:
    """The parsed statistics of an ``add``; empty if they are missing or malformed."""
    try:
        stats = orjson.loads(text or "null")
    except orjson.JSONDecodeError:
        return {}
    return stats if isinstance(stats, dict) else {}


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _bound(value: Any, type_: pa.DataType, side: int) -> Any:
    """A bound in comparable form (``predicate.comparable``), at or outside the values that it bounds; ``None`` if the
    value is not usable.

    ``side``: -1 for a minimum, +1 for a maximum.
    """
    try:
        if types.is_integer(type_):
            return value if type(value) is int else None
        if types.is_floating(type_) or types.is_decimal(type_):
            return _number(value, type_, side)
        if not isinstance(value, str):
            return None
        if types.is_string(type_):
            return _longest(value) if side > 0 and value.endswith(_OLD_TIE_BREAKER) else value
        if types.is_date(type_):
            return comparable(date.fromisoformat(value), type_)
        if types.is_timestamp(type_):
            moment = datetime.fromisoformat(value)
            cut = moment.tzinfo is not None and value[-1:] != "Z" and moment.year < _WHOLE_MINUTES
            return comparable(moment, type_) + side * (_MINUTE if cut else _MILLISECOND)
    except (TypeError, ValueError, OverflowError, InvalidOperation):
        # Years beyond Python's dates, NaN and infinities, or a zone where none belongs: not a bound.
        return None
    return None


def _number(value: Any, type_: pa.DataType, side: int) -> Any:
    if isinstance(value, str) and types.is_decimal(type_):
        return comparable(Decimal(value), type_)
    if type(value) is int:
        return comparable(value, type_)
    if type(value) is not float:
        return None
    # JSON numbers with a fraction were parsed to a double here, and were perhaps written from a float32.
    outside = value + side * abs(value) * _FLOAT_SLACK
    return comparable(Decimal(outside) if types.is_decimal(type_) else outside, type_)


def _longest(text: str) -> str | None:
    """A string that sorts after all strings with the prefix ``text[:-1]``; ``None`` if there is none."""
    kept = text[:-1]
    while kept:
        following = ord(kept[-1]) + 1
        if following <= 0x10FFFF:
            return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
        kept = kept[:-1]
    return None
