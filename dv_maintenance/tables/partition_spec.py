"""Partition specifications: from which columns, and how, the partition of a file follows.

Names of transforms and the texts of their values are those of Apache Iceberg's specification, Partition Transforms.
Formats that partition by columns have one specification, of identities. Where a table's specification has changed, each
file keeps the one that it was written with, and nothing may merge files of two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from dv_maintenance.tables.model import parse_partition, partition_name
from dv_maintenance.tables.partition_values import Kind, days_of, value_of
from dv_maintenance.tables.predicate import Bounds, exactly

SPEC_ID: Final = "spec_id"
"""In names of partitions, the number of the specification. Names of the first one, 0, leave it out, so that they do not
change when a table gets its second.
"""

_HOUR: Final = 3_600_000_000  # microseconds
_DAY: Final = 24 * _HOUR
# Transform -> the microsecond since 1970 at which a period begins, from its number.
_BEGIN: Final[dict[str, Callable[[int], int]]] = {
    "year": lambda number: days_of(1970 + number, 1, 1) * _DAY,
    "month": lambda number: days_of(1970 + number // 12, number % 12 + 1, 1) * _DAY,
    "day": lambda number: number * _DAY,
    "hour": lambda number: number * _HOUR,
}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One value of each partition.

    name : as names of partitions have it.
    source : the column that it is derived from.
    transform : ``identity``, ``bucket[N]``, ``truncate[W]``, ``year``, ``month``, ``day``, ``hour``, ``void``, or one
        that is unknown here, whose values are texts.
    """

    name: str
    source: str
    transform: str = "identity"

    def __str__(self) -> str:
        """The field as people read it, such as ``ts_day: day(ts)``."""
        if self.transform == "identity":
            return self.name
        return f"{self.name}: {self.transform}({self.source})"

    def kind(self, schema: pa.Schema) -> Kind:
        """What its texts mean, see ``partition_values``. A column that ``schema`` lacks holds text."""
        at = schema.get_field_index(self.source)
        type_ = pa.string() if at < 0 else schema.field(at).type
        match self._function:
            case "identity" | "truncate":
                return type_
            case "bucket":
                return pa.int32()
            case "day":
                return pa.date32()
            case "year" | "month" | "hour" as period:
                return period
        return pa.string()

    def bounds(self, text: str | None, schema: pa.Schema) -> Bounds:
        """What a value of this field says about the values of its source column in the files of that partition."""
        if text is None:
            return Bounds(values=False)
        unknown, known = Bounds(nulls=False, nans=True), self.kind(schema)
        type_ = schema.field(self.source).type
        value: Any
        try:
            value = value_of(text, known)
        except ValueError:
            return unknown
        if begin := _BEGIN.get(self._function):
            unit = _DAY if types.is_date(type_) else 1
            # Iceberg up to 0.10 counted periods before 1970 from the wrong end: theirs are one too high.
            first = value - 1 if value <= 0 and (self._function, unit) != ("day", _DAY) else value
            return Bounds(begin(first) // unit, begin(value + 1) // unit - 1, nulls=False)
        if self._function not in {"identity", "truncate"} or types.is_binary(type_) or types.is_time(type_):
            return unknown
        if self._function == "truncate":
            return _truncated(value, int(self.transform.partition("[")[2].rstrip("]")), type_)
        return exactly(value // 1000 if types.is_timestamp(type_) else float("nan") if value == "NaN" else value)

    @property
    def _function(self) -> str:
        return self.transform.partition("[")[0]


def _truncated(value: Any, width: int, type: pa.DataType) -> Bounds:
    """Bounds of values that ``truncate[width]`` maps to this one: a prefix of text, or the lower end of a range."""
    if types.is_string(type):
        return Bounds(value, None, nulls=False) if len(value) >= width else exactly(value)
    last = value + Decimal(width - 1).scaleb(-type.scale) if types.is_decimal(type) else value + width - 1
    if types.is_integer(type) and last >= 1 << type.bit_width - 1:
        return Bounds(nulls=False)  # the smallest integers, too: their ranges begin below what the type has, and wrap
    return Bounds(value, last, nulls=False)


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """One specification of a table, by its number. Without fields, files are not partitioned."""

    id: int
    fields: tuple[PartitionField, ...]

    def partition(self, values: Sequence[str | None]) -> str:
        """The name of the partition with these values, one for each field. Fields that are always null are left out.

        >>> by_columns("region")[0].partition(["eu"])
        'region=eu'
        >>> PartitionSpec(1, (PartitionField("ts_day", "ts", "day"),)).partition(["2026-11-20"])
        'spec_id=1/ts_day=2026-11-20'
        """
        number: dict[str, str | None] = {SPEC_ID: str(self.id)} if self.id else {}
        texts = zip(self.fields, values, strict=True)
        return partition_name(number | {each.name: text for each, text in texts if each.transform != "void"})


def fields_of(specs: Sequence[PartitionSpec]) -> dict[str, PartitionField]:
    """The fields that names of partitions may have, by name: those of all specifications, and where there are several,
    ``SPEC_ID``. Texts of a field with several meanings are compared as texts.
    """
    found: dict[str, PartitionField] = {}
    if len(specs) > 1:
        found[SPEC_ID] = PartitionField(SPEC_ID, SPEC_ID)
    for field in (field for spec in specs for field in spec.fields if field.transform != "void"):
        known = found.setdefault(field.name, field)
        if (known.source, known.transform) != (field.source, field.transform):
            found[field.name] = PartitionField(field.name, "", "mixed")
    return found


def values_in(values: Mapping[str, str | None], fields: Sequence[str]) -> tuple[str | None, ...] | None:
    """The values of these fields in a partition, given all its values by name; ``None`` if its specification lacks
    one of them.
    """
    values = values if SPEC_ID in values else {SPEC_ID: "0", **values}
    return tuple(values[name] for name in fields) if all(name in values for name in fields) else None


def only(specs: Sequence[PartitionSpec], name: str) -> dict[str, str | None]:
    """The filter that selects this partition and no other, given its name."""
    values = parse_partition(name)
    return values if len(specs) == 1 or SPEC_ID in values else {SPEC_ID: "0", **values}


def by_columns(*columns: str) -> tuple[PartitionSpec]:
    """The specifications of a table that is partitioned by columns."""
    return (PartitionSpec(0, tuple(PartitionField(name, name) for name in columns)),)
