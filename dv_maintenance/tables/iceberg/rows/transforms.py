"""Partitions of new rows: the transforms of partition specifications, applied to columns.

Format: Iceberg specification, Partition Transforms; Appendix B, 32-bit Hash Requirements. Values are those that
manifests have: dates and times as numbers, decimals as bytes.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.tables.iceberg.commit.values import unscaled
from dv_maintenance.tables.iceberg.log.metadata import Metadata, SpecField
from dv_maintenance.tables.iceberg.rows.partitions import decimal_size, text_of
from dv_maintenance.tables.model import hive_folder

_PERIODS: Final = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
_BYTES: Final = (types.is_binary, types.is_fixed_size_binary, types.is_decimal)
_Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """Implements ``rows.Partitioner`` for the specification of new files. A name is JSON.

    sources : for each field, where its source column is: positions of the column and of nested fields; empty where
        there is none.
    types : of the source columns.
    """

    fields: tuple[SpecField, ...]
    sources: tuple[tuple[int, ...], ...]
    types: tuple[pa.DataType, ...]

    @classmethod
    def of(cls, metadata: Metadata, schema: pa.Schema | None = None) -> NewPartitions:
        """``schema``: the columns that the files store, unless they are all of the table."""
        fields = metadata.specs[metadata.default_spec]
        schema = metadata.schemas[metadata.current_schema].arrow if schema is None else schema
        found = [_place(schema, each.source, ()) or ((), pa.null()) for each in fields]
        return cls(fields, tuple(place for place, _ in found), tuple(kind for _, kind in found))

    def unknown(self) -> str:
        """The first transform that is unknown here; "" if there is none."""
        for each, place in zip(self.fields, self.sources, strict=True):
            name = each.transform.partition("[")[0]
            if name != "void" and (not place or name not in {"identity", "bucket", "truncate", *_PERIODS}):
                return each.transform
        return ""

    def names(self, batch: pa.RecordBatch) -> list[str]:
        if not self.fields:
            return [""] * batch.num_rows
        columns = []
        for each, place in zip(self.fields, self.sources, strict=True):
            if each.transform == "void" or not place:  # of an unknown type
                columns.append([None] * batch.num_rows)
                continue
            column = batch.column(place[0])
            columns.append(transformed(each.transform, pc.struct_field(column, place[1:]) if place[1:] else column))
        # Floats are compared as they are written: -0.0 is another partition than 0.0, and NaN is one.
        return [json.dumps(row, default=_base64, separators=(",", ":")) for row in zip(*columns, strict=True)]

    def values(self, name: str) -> tuple[Any, ...]:
        """The values of a name."""
        found = json.loads(name) if name else []
        return tuple(
            b64decode(value) if value is not None and _has_bytes(each.transform, kind) else value
            for each, kind, value in zip(self.fields, self.types, found, strict=True)
        )

    def folder(self, name: str) -> str:
        """As Iceberg's writers name it. Nothing reads values from it."""
        texts = {
            each.name: None if value is None else text_of(value, each.transform.partition("[")[0], kind)
            for each, kind, value in zip(self.fields, self.types, self.values(name), strict=True)
            if each.transform != "void"
        }
        return hive_folder(texts)


def _place(fields: Any, number: int | None, above: tuple[int, ...]) -> tuple[tuple[int, ...], pa.DataType] | None:
    for at, each in enumerate(fields):
        if each.metadata[b"PARQUET:field_id"] == str(number).encode():
            return (*above, at), each.type
        if types.is_struct(each.type) and (found := _place(each.type, number, (*above, at))):
            return found
    return None


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _has_bytes(transform: str, kind: pa.DataType) -> bool:
    return transform.startswith(("identity", "truncate")) and any(check(kind) for check in _BYTES)


def transformed(transform: str, column: pa.Array) -> list[Any]:
    """The partition values of a column; nulls stay nulls."""
    found = iter(_of_values(transform, column.drop_null()))
    return [next(found) if is_valid else None for is_valid in column.is_valid().to_pylist()]


def _of_values(transform: str, values: pa.Array) -> Sequence[Any]:
    name, _, width = transform.partition("[")
    if name in _PERIODS:
        periods: list[int] = _numbers(values).astype(_unit(values)).astype(f"M8[{_PERIODS[name]}]").astype(int).tolist()
        return periods
    if name == "bucket":
        return [each % int(width[:-1]) for each in _hashes(values)]
    return _truncated(values, int(width[:-1])) if name == "truncate" else _plain(values)


def _numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    kind = values.type
    if types.is_date(kind):
        values = values.cast(pa.int32())
    found: npt.NDArray[np.int64] = values.cast(pa.int64()).to_numpy()
    return found


def _unit(values: pa.Array) -> str:
    return "M8[D]" if types.is_date(values.type) else f"M8[{values.type.unit}]"


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_temporal(kind))


def _unscaled(values: pa.Array) -> list[int]:
    scale = values.type.scale
    return [int(each.scaleb(scale)) for each in values.to_pylist()]


def _fixed(values: Sequence[int], precision: int) -> list[bytes]:
    size = decimal_size(precision)
    return [each.to_bytes(size, "big", signed=True) for each in values]


def _plain(values: pa.Array) -> Sequence[Any]:
    if _is_number(values.type):
        return _numbers(values).tolist()  # type: ignore[no-any-return]
    if types.is_decimal(values.type):
        return _fixed(_unscaled(values), values.type.precision)
    return values.to_pylist()  # type: ignore[no-any-return]


def _truncated(values: pa.Array, width: int) -> Sequence[Any]:
    if _is_number(values.type):
        numbers = _numbers(values)
        # Below the smallest number of the type it wraps, as in Iceberg's own.
        kind = np.int32 if values.type.bit_width == 32 else np.int64
        return (numbers - numbers % width).astype(kind).tolist()  # type: ignore[no-any-return]
    if types.is_decimal(values.type):
        return _fixed([each - each % width for each in _unscaled(values)], values.type.precision)
    return [each[:width] for each in values.to_pylist()]


# -- hashes ------------------------------------------------------------------------------------------------------------


def _hashes(values: pa.Array) -> list[int]:
    """Murmur3 of each value, without its sign."""
    if _is_number(values.type):
        numbers = _numbers(values)
        if types.is_timestamp(values.type) and values.type.unit == "ns":
            numbers = numbers // 1000  # of an instant, whatever its precision
        return _murmur3(numbers.astype("<i8").view(np.uint8).reshape(len(numbers), 8))
    if types.is_decimal(values.type):
        stored = [unscaled(each) for each in _unscaled(values)]
    else:
        stored = [each.encode() if isinstance(each, str) else each for each in values.to_pylist()]
    by_length: dict[int, list[int]] = defaultdict(list)
    for at, each in enumerate(stored):
        by_length[len(each)].append(at)
    found = [0] * len(stored)
    for length, places in by_length.items():
        joined = np.frombuffer(b"".join(stored[at] for at in places), np.uint8).reshape(len(places), length)
        for at, number in zip(places, _murmur3(joined), strict=True):
            found[at] = number
    return found


def _murmur3(rows: npt.NDArray[np.uint8]) -> list[int]:
    """The 32-bit variant with seed 0, of rows of one length."""
    count, length = rows.shape
    whole = length - length % 4
    padded = np.zeros((count, whole + 4), np.uint8)
    padded[:, :length] = rows
    words = padded.view("<u4")
    found = np.zeros(count, np.uint32)
    for at in range(whole // 4):
        found = _rotated(found ^ _scrambled(words[:, at]), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    if whole < length:
        found ^= _scrambled(words[:, -1])
    found ^= np.uint32(length)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ (found >> np.uint32(shift))) * np.uint32(factor)
    found ^= found >> np.uint32(16)
    return (found & np.uint32(0x7FFFFFFF)).tolist()  # type: ignore[no-any-return]


def _scrambled(words: _Words) -> _Words:
    return _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(words: _Words, bits: int) -> _Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))
