"""Statistics of new data files, and of the partitions in a manifest, in the form of Paimon's manifests.

Format: SimpleStats of Paimon's manifests: minimum and maximum as binary rows, and null counts. If both bounds of a
column are null although it has non-null values, the bounds are unknown, and readers do not skip files by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.tables.paimon.log.binary_row import Moment, decode_row, encode_row
from dv_maintenance.tables.paimon.rows.types import DataType, Field
from dv_maintenance.tables.text_bounds import above
from dv_maintenance.units import parse_count

if TYPE_CHECKING:
    from dv_maintenance.tables.paimon.log.schema import Schema
    from dv_maintenance.tables.work import ColumnStats

# Bounds are known to the microsecond.
_TIMES: Final = frozenset({"TIMESTAMP", "TIMESTAMP_LTZ"})
_MICROS: Final = 6
EMPTY_ROW: Final = encode_row((), ())
NO_STATS: Final = {"_MIN_VALUES": EMPTY_ROW, "_MAX_VALUES": EMPTY_ROW, "_NULL_COUNTS": []}
"""The row without fields."""

BOUNDED: Final = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "DATE", "CHAR", "VARCHAR"}
    | {"TIMESTAMP", "TIMESTAMP_LTZ"}
)
"""Types that have a minimum and a maximum in statistics."""
_NESTED: Final = frozenset({"ARRAY", "MAP", "MULTISET", "ROW", "VARIANT", "VECTOR", "BLOB"})
_MODE: Final = "metadata.stats-mode"
_TRUNCATED: Final = re.compile(r"truncate\((\d{1,6})\)")
_DEFAULT_MODE: Final = "truncate(16)"


def stats_columns(schema: Schema) -> tuple[tuple[str, ...], ...]:
    """The columns for which a rewrite must report statistics, see ``RewriteTask``: those for which the table keeps
    statistics (``metadata.stats-mode``, ``fields.NAME.stats-mode``, ``metadata.stats-keep-first-n-columns``).
    """
    first = parse_count(schema.options.get("metadata.stats-keep-first-n-columns", "-1"))
    chosen = schema.fields[:first]
    return tuple((each.name,) for each in chosen if each.type.root not in _NESTED and _mode(schema, each) != "none")


def _mode(schema: Schema, column: Field) -> str:
    default = schema.options.get(_MODE, _DEFAULT_MODE)
    return schema.options.get(f"fields.{column.name}.stats-mode", default).strip().lower()


def file_stats(schema: Schema, stats: Sequence[ColumnStats]) -> dict[str, Any]:
    """The statistics of all columns of a file that was written with ``schema``. Missing ones are null."""
    known = {each.column[0]: each for each in stats}
    types = [each.type for each in schema.fields]
    least: list[Any] = []
    greatest: list[Any] = []
    nulls: list[int | None] = []
    for field in schema.fields:
        found = known.get(field.name)
        low, high = (None, None) if found is None else _bounds(found, field.type, _mode(schema, field))
        least.append(low)
        greatest.append(high)
        nulls.append(None if found is None else found.null_count)
    # Bounds of all other types are null here, so BIGINT can stand in for these types.
    plain = [each if each.root in BOUNDED else DataType("BIGINT") for each in types]
    return _record(least, greatest, nulls, plain)


def _bounds(stats: ColumnStats, type: DataType, mode: str) -> tuple[Any, Any]:
    """Minimum and maximum; both are ``None`` if either is unknown."""
    exact = type.root not in _TIMES or type.precision <= _MICROS
    if type.root not in BOUNDED or not exact or mode == "counts" or stats.minimum is None or stats.maximum is None:
        return None, None
    least, greatest = _value(stats.minimum, type), _value(stats.maximum, type)
    if not isinstance(least, str) or mode == "full":
        return least, greatest
    match = _TRUNCATED.fullmatch(mode)
    if match is None:
        return None, None
    upper = above(greatest, int(match[1]))
    return (None, None) if upper is None else (least[: int(match[1])], upper)


def _value(value: Any, type: DataType) -> Any:
    """The value in the form that :func:`encode_row` accepts."""
    match type.root:
        case "DECIMAL":
            return Decimal(value)
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            if type.precision <= 3:
                return Moment(value)
            millis, micros = divmod(value, 1000)
            return Moment(millis, micros * 1000)
    return value


def partition_stats(rows: Sequence[bytes], fields: Sequence[Field]) -> dict[str, Any]:
    """The statistics of the partitions of a manifest's entries.

    rows : partition rows in the binary form of manifests.

    Raises
    ------
    DamagedTableError : a row does not fit the partition columns.
    """
    types = [each.type for each in fields]
    decoded = [decode_row(row, types) for row in rows]
    least: list[Any] = []
    greatest: list[Any] = []
    nulls: list[int | None] = []
    for index in range(len(types)):
        values = [row[index] for row in decoded]
        # Python sorts text by code points, the same order as its UTF-8 bytes.
        there = sorted(value for value in values if value is not None)
        nan = any(value != value for value in there)
        least.append(None if nan or not there else there[0])
        greatest.append(None if nan or not there else there[-1])
        nulls.append(len(values) - len(there))
    return _record(least, greatest, nulls, types)


def _record(
    least: Sequence[Any], greatest: Sequence[Any], nulls: Sequence[int | None], types: Sequence[DataType]
) -> dict[str, Any]:
    rows: Mapping[str, bytes] = {"_MIN_VALUES": encode_row(least, types), "_MAX_VALUES": encode_row(greatest, types)}
    return {**rows, "_NULL_COUNTS": list(nulls)}
