"""Statistics of a finished file, combined from its own footer.

The Parquet writer has already compared every value, so combining its column chunks costs nothing. Two facts come from
the rows instead: NaN, which Parquet leaves out of its bounds although readers compare it (``special_floats``), and
nulls of lists and maps, which the statistics of a leaf below them do not distinguish from empty ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.parquet.projection import leaf_count
from dv_maintenance.errors import UsageError
from dv_maintenance.tables.work import ColumnStats

# Bytes: longer text has no bounds, as with Parquet's writer.
_LONGEST: Final = 4096
_MAX_DIGITS: Final = 38


class StatsCollector:
    """Statistics of one file's leaf columns: :meth:`add` each written batch, then :meth:`fold` the footer.

    Raises
    ------
    UsageError : a column is not in the schema, or is a struct.
    """

    def __init__(self, schema: pa.Schema, columns: Iterable[tuple[str, ...]]) -> None:
        self._columns = [locate(schema, column) for column in columns]
        self._nulls = {column.name: 0 for column in self._columns if types.is_nested(column.type)}

    def add(self, batch: pa.RecordBatch) -> None:
        for column in self._columns:
            if column.name in self._nulls:
                self._nulls[column.name] += column.pick(batch).null_count

    @property
    def columns(self) -> Sequence[Column]:
        return self._columns

    def add_nulls(self, column: Column, count: int) -> None:
        """Count nulls of a list or map column in rows that were not added."""
        self._nulls[column.name] += count

    def fold(
        self,
        footer: Any,
        nan: Collection[int],
        negative_zero: Collection[int] = (),
        by_value: Mapping[tuple[int, int], ChunkStats] = MappingProxyType({}),
    ) -> tuple[ColumnStats, ...]:
        """The statistics of the whole file, of those columns that have some.

        footer : ``pyarrow.parquet.FileMetaData`` of the file that has all added batches.
        nan : leaves that have or may have NaN. They get no bounds.
        negative_zero : leaves that may have -0.0. A footer does not distinguish the two zeros, and engines answer MIN
            and MAX from statistics: a leaf whose bound may be -0.0 gets no bounds.
        by_value : by row group and leaf, statistics to use instead of those in the footer.
        """
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        found = []
        for column in self._columns:
            if column.name in self._nulls:
                found.append(ColumnStats(column.name, self._nulls[column.name]))
                continue
            chunks = [
                by_value.get((number, column.leaf)) or group.column(column.leaf).statistics
                for number, group in enumerate(groups)
            ]
            # Arrow before 22 reads no statistics of shapes.
            if any(chunk is None for chunk in chunks):
                continue
            least, greatest = (None, None) if column.leaf in nan else _bounds(chunks, column.type)
            if column.leaf in negative_zero and 0.0 in (least, greatest):
                least = greatest = None
            found.append(ColumnStats(column.name, sum(chunk.null_count for chunk in chunks), least, greatest))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Column:
    """A leaf column.

    name : path from the top down.
    indices : child positions from the top down.
    leaf : index of its first leaf in Parquet.
    """

    name: tuple[str, ...]
    indices: tuple[int, ...]
    leaf: int
    type: pa.DataType

    def pick(self, batch: pa.RecordBatch) -> pa.Array:
        """The column's values, null if one of the parents is null."""
        array = batch.column(self.indices[0])
        return pc.struct_field(array, list(self.indices[1:])) if len(self.indices) > 1 else array


class ChunkStats:
    """Statistics of one column chunk, from its values: :meth:`add` all of them. With the attributes of
    ``pyarrow.parquet.Statistics`` that are used here.
    """

    def __init__(self, type: pa.DataType) -> None:
        self._type = type
        self._ordered = has_order(type)
        self.null_count = self.num_values = 0
        self.min_raw: Any = None
        self.max_raw: Any = None

    @property
    def has_min_max(self) -> bool:
        return self._ordered and self.min_raw is not None

    def add(self, array: pa.Array) -> None:
        self.null_count += array.null_count
        self.num_values += len(array) - array.null_count
        if not self._ordered or array.null_count == len(array):
            return
        if types.is_date(self._type) or types.is_timestamp(self._type):
            array = array.view(pa.int32() if types.is_date32(self._type) else pa.int64())
        elif types.is_string(self._type):
            array = array.cast(pa.binary())  # other writers do store other encodings in strings
        both = pc.min_max(array)
        least, greatest = (_raw(both[side].as_py(), self._type) for side in ("min", "max"))
        if isinstance(least, bytes) and max(len(least), len(greatest)) > _LONGEST:
            self._ordered = False
            return
        self.min_raw = least if self.min_raw is None else min(self.min_raw, least)
        self.max_raw = greatest if self.max_raw is None else max(self.max_raw, greatest)


def _raw(value: Any, type: pa.DataType) -> Any:
    """As in a footer: decimals unscaled."""
    return int(value.scaleb(type.scale, Context(prec=_MAX_DIGITS))) if isinstance(value, Decimal) else value


def locate(schema: pa.Schema, name: tuple[str, ...]) -> Column:
    """The leaf column of that name. Raises UsageError as :class:`StatsCollector`."""
    indices: list[int] = []
    leaf = 0
    fields = list(schema)
    found: pa.DataType | None = None
    for part in name:
        index = next((index for index, field in enumerate(fields) if field.name == part), None)
        if index is None:
            raise UsageError(f"statistics are requested for column {'.'.join(name)}, which is not in the schema")
        indices.append(index)
        leaf += sum(leaf_count(field.type) for field in fields[:index])
        found = fields[index].type
        fields = list(found) if types.is_struct(found) else []
    if found is None or types.is_struct(found):
        raise UsageError(f"statistics are requested for {'.'.join(name) or 'no column'}, which is not a leaf column")
    return Column(name, tuple(indices), leaf, found)


def _bounds(chunks: Sequence[Any], type: pa.DataType) -> tuple[Any, Any]:
    """Minimum and maximum of all row groups as JSON; ``None`` if a row group with values has none.

    Arrow omits the bounds of long strings instead of truncating them, so existing bounds are exact.
    """
    filled = [chunk for chunk in chunks if chunk.num_values]
    if not filled or not has_order(type) or not all(chunk.has_min_max for chunk in filled):
        return None, None
    least = _json(min(_order(chunk.min_raw, type) for chunk in filled), type)
    greatest = _json(max(_order(chunk.max_raw, type) for chunk in filled), type)
    return least, greatest


def has_order(type: pa.DataType) -> bool:
    """Whether the values of a column of the type have a minimum and a maximum."""
    return bool(
        types.is_boolean(type)
        or types.is_signed_integer(type)
        or types.is_floating(type)
        or types.is_decimal(type)
        or types.is_date(type)
        or types.is_timestamp(type)
        or types.is_string(type)
        or types.is_large_string(type)
    )


def _order(raw: Any, type: pa.DataType) -> Any:
    """A physical value in a form that Python orders as Parquet does: text by its bytes, decimals by unscaled value."""
    if types.is_decimal(type) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _json(value: Any, type: pa.DataType) -> Any:
    if types.is_decimal(type):
        return _decimal_text(value, type.scale)
    if types.is_floating(type):
        # JSON has no infinity.
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value


def _decimal_text(unscaled: int, scale: int) -> str:
    digits = str(abs(unscaled)).rjust(max(scale, 0) + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale > 0 else digits + "0" * -scale
    return f"-{text}" if unscaled < 0 else text
