"""The partitions of an Iceberg table: from the values in manifests to names and constants.

Manifests have values as Avro stores them: dates and times as numbers, decimals as bytes. What they mean follows from
the specification and the type of the source column.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.iceberg.log.metadata import Metadata, SpecField
from dv_maintenance.tables.model import partition_name
from dv_maintenance.tables.partition_spec import SPEC_ID

Place = tuple[int, tuple[Any, ...]]
"""What identifies a partition: its specification, and the values as manifests have them."""

_EPOCH: Final = date(1970, 1, 1)
_NAN: Final = float("nan")  # one object, which equals itself within tuples
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition.

    values : as the manifests have them, one for each field of the specification.
    name : see ``PartitionSpec.partition``.
    constants : values of columns by field id, for identity transforms; see ``work.SourceFile``.
    """

    spec_id: int
    values: tuple[Any, ...]
    name: str
    constants: Mapping[int, Any]

    @property
    def place(self) -> Place:
        return self.spec_id, self.values


@dataclass(slots=True)
class Partitions:
    """All partitions seen so far. The number of a partition never changes.

    specs, types : of the table; types of columns by field id, from all its schemas, the current one's last.
    """

    specs: Mapping[int, tuple[SpecField, ...]]
    types: Mapping[int, pa.DataType]
    found: list[Partition] = field(default_factory=list)
    _codes: dict[Place, int] = field(init=False)

    def __post_init__(self) -> None:
        self._codes = {_key(*each.place): code for code, each in enumerate(self.found)}

    @classmethod
    def of(cls, metadata: Metadata, found: Sequence[Partition] = ()) -> Partitions:
        kinds: dict[int, pa.DataType] = {}
        for schema in sorted(metadata.schemas.values(), key=lambda each: each.id == metadata.current_schema):
            _collect(schema.arrow, kinds)
        return cls(metadata.specs, kinds, list(found))

    def codes(self, spec_id: int, rows: Sequence[Mapping[int, Any]]) -> list[int]:
        """The number of the partition of each entry, given its values by field id. Raises DamagedTableError."""
        fields = self.specs.get(spec_id)
        if fields is None:
            raise DamagedTableError(f"its partition specification {spec_id} does not exist")
        found = []
        for row in rows:
            values = tuple(self._as_now(row.get(each.id), each) for each in fields)
            key = _key(spec_id, values)
            code = self._codes.get(key)
            if code is None:
                code = self._codes[key] = len(self.found)
                self.found.append(self._partition(spec_id, fields, values))
            found.append(code)
        return found

    def _as_now(self, value: Any, each: SpecField) -> Any:
        """A value in the form of the column's present type: in older manifests, a decimal has fewer bytes."""
        if isinstance(value, bytes) and each.transform.partition("[")[0] in {"identity", "truncate"}:
            kind = self.types.get(each.source or -1)
            if kind is not None and types.is_decimal(kind):
                number = int.from_bytes(value, "big", signed=True)
                size = max(decimal_size(kind.precision), number.bit_length() // 8 + 1)
                return number.to_bytes(size, "big", signed=True)
        return _NAN if isinstance(value, float) and value != value else value

    def _partition(self, spec_id: int, fields: Sequence[SpecField], values: tuple[Any, ...]) -> Partition:
        texts: dict[str, str | None] = {SPEC_ID: str(spec_id)} if spec_id else {}
        constants: dict[int, Any] = {}
        for each, value in zip(fields, values, strict=True):
            if each.transform == "void":
                continue
            kind = self.types.get(each.source or -1)
            try:
                texts[each.name] = None if value is None else text_of(value, each.transform.partition("[")[0], kind)
                if each.transform == "identity" and each.source is not None and kind is not None:
                    constants[each.source] = None if value is None else _constant(value, kind)
            except (TypeError, ValueError, OverflowError, AttributeError):
                raise DamagedTableError(f"{value!r} is not a value of the partition field {each.name}") from None
        return Partition(spec_id, values, partition_name(texts), constants)


def _key(spec_id: int, values: tuple[Any, ...]) -> Place:
    """As Iceberg compares partitions: 0.0 and -0.0 are two."""
    return spec_id, tuple(struct.pack(">d", each) if isinstance(each, float) else each for each in values)


def _collect(fields: Any, kinds: dict[int, pa.DataType]) -> None:
    for each in fields:
        number = each.metadata.get(b"PARQUET:field_id")
        if number is not None:
            kinds[int(number)] = each.type
        if types.is_struct(each.type):
            _collect(each.type, kinds)


def text_of(value: Any, transform: str, kind: pa.DataType | None) -> str:
    """The text of a value, as ``partition_values.value_of`` reads it back."""
    match transform:
        case "year":
            return f"{1970 + value:04d}"
        case "month":
            return f"{1970 + value // 12:04d}-{value % 12 + 1:02d}"
        case "day":
            return _day(value)
        case "hour":
            return f"{_day(value // 24)}-{value % 24:02d}"
        case "identity" | "truncate" if kind is not None:
            return _plain(value, kind)
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _plain(value: Any, kind: pa.DataType) -> str:
    if types.is_boolean(kind):
        return "true" if value else "false"
    if types.is_date(kind):
        return _day(value)
    if types.is_time(kind):
        return _clock(value)
    if types.is_timestamp(kind):
        unit = 1_000_000_000 if kind.unit == "ns" else 1_000_000
        days, rest = divmod(value, 86_400 * unit)
        clock = _clock(rest // (unit // 1_000_000))
        more = f"{'' if '.' in clock else '.000000'}{rest % 1000:03d}" if kind.unit == "ns" and rest % 1000 else ""
        return f"{_day(days)} {clock}{more}{'Z' if kind.tz else ''}"
    if types.is_decimal(kind):
        return _decimal(value, kind)
    if types.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return str(UUID(bytes=value))
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return b64encode(value).decode()
    return value if isinstance(value, str) else str(value)


def _constant(value: Any, kind: pa.DataType) -> Any:
    """The value as ``work.SourceFile.constants`` has it."""
    if types.is_decimal(kind):
        return _decimal(value, kind)
    if types.is_floating(kind):
        return str(value)
    return b64encode(value).decode() if isinstance(value, bytes) else value


def decimal_size(precision: int) -> int:
    """The number of bytes in which every decimal of the precision fits."""
    return next(each for each in range(1, 17) if 10**precision - 1 < 1 << 8 * each - 1)


def _decimal(value: bytes, kind: pa.DataType) -> str:
    number = int.from_bytes(value, "big", signed=True)
    digits = str(abs(number)).rjust(kind.scale + 1, "0")
    whole, fraction = (digits[: -kind.scale], digits[-kind.scale :]) if kind.scale else (digits, "")
    return f"{'-' if number < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


def _day(days: int) -> str:
    """Years beyond Python's have the same calendar, 400 years apart."""
    cycles = days // _CYCLE_DAYS - 1 if not -700_000 < days < 2_900_000 else 0
    moved = _EPOCH + timedelta(days=days - cycles * _CYCLE_DAYS)
    return f"{moved.year + cycles * _CYCLE_YEARS:04d}-{moved.month:02d}-{moved.day:02d}"


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{clock}.{fraction:06d}" if fraction else clock
