"""Partition values of a Delta log: the text that is stored, and constants for a reader.

Files are in one partition here only if their stored text is the same. Writers spell one value in several ways, and the
meaning of a text may depend on the reader: delta-spark reads a timestamp without a zone in the session's zone
(``spark.databricks.delta.write.utcTimestampPartitionValues`` = false writes such timestamps). Rewritten files keep the
text, so two texts are never merged into one. An empty string is null (protocol: Partition Value Serialization).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import int32s, numbers, strings
from dv_maintenance.tables.delta.log.columns import string_layout
from dv_maintenance.tables.model import NULL_PARTITION, partition_name
from dv_maintenance.tables.partition_values import sql_type

if TYPE_CHECKING:
    from dv_maintenance.tables.delta.log.actions import Metadata


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER = re.compile(r"[+-]?\d+")
_YEAR = re.compile(r"[+-]?\d{4,6}(?=-)")
_PLAIN_DATE = re.compile(r"[+-]?\d{4,6}-\d{1,2}-\d{1,2}")
# A time of day with seconds; a T only before a zone.
_PLAIN_TIME = re.compile(r"[+-]?\d{4,6}-\d\d-\d\d(?: [\d:]{8}(?:\.\d+)?|[ T][\d:]{8}(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d))")
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
# The Gregorian calendar repeats every 400 years. Spark's range of years exceeds Python's.
_CYCLE = timedelta(days=146_097)
# Python's default context has 28 digits, a DECIMAL up to 38.
_EXACT = Context(prec=76)


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """``name`` as users see it, ``key`` as ``partitionValues`` spells it (the physical name), ``type`` logical."""

    name: str
    key: str
    type: pa.DataType


def partition_columns(metadata: Metadata) -> tuple[PartitionColumn, ...]:
    """The table's partition columns, in partition order. Raises as ``schema.arrow_schema``."""
    from dv_maintenance.tables.delta.rows.schema import arrow_schema, physical_name

    if not metadata.partition_columns:
        return ()
    schema = arrow_schema(metadata)
    fields = [schema.field(name) for name in metadata.partition_columns]
    return tuple(PartitionColumn(field.name, physical_name(field), field.type) for field in fields)


def is_local_time(raw: str | None, type: pa.DataType) -> bool:
    """Whether a value is a timestamp without a zone in a column of instants, so that the instant depends on the
    session of each reader. Raises DamagedTableError if ``raw`` is not a value of ``type``.
    """
    if not (raw and pt.is_timestamp(type) and type.tz is not None):
        return False
    _parse(raw, type)
    return datetime.fromisoformat(_in_pythons_years(raw)[0]).tzinfo is None


def constant(raw: str | None, type: pa.DataType) -> Any:
    """The value in the form of ``SourceFile.constants``. Local times, see :func:`is_local_time`, are taken as UTC.
    Raises DamagedTableError if ``raw`` is not a value of ``type``.
    """
    value = _parse(raw, type)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return _float_text(value) if isinstance(value, float | np.floating) else value


def constants(
    partition_values: Mapping[str, str | None] | Iterable[tuple[str, str | None]], columns: Iterable[PartitionColumn]
) -> dict[str, Any]:
    """Constants of one file by logical column name; a value that the file does not name is null."""
    values = dict(partition_values)
    return {column.name: _of(column, values.get(column.key), constant) for column in columns}


def partition_names(
    partition_values: pa.ChunkedArray, columns: tuple[PartitionColumn, ...], paths: pa.ChunkedArray | None = None
) -> pa.ChunkedArray:
    """``model.partition_name`` of each file, made from the stored text, as dictionary<int32, string>. The work is per
    distinct text, not per file. A value that a file does not name is null.

    Raises
    ------
    DamagedTableError : a value does not fit its column; names the file if ``paths`` are given.
    """
    rows = len(partition_values)
    # Combined code of all columns so far, kept dense so that any number of columns fits 64 bits.
    codes = np.zeros(rows, np.int64)
    names: list[dict[str, str | None]] = [{}]
    for column in columns:
        column_codes, values = _encode(partition_values, column, paths)
        codes = codes * len(values) + column_codes
        dense = range(len(values))  # with one name so far the codes are dense as they are
        if len(names) > 1:
            found, codes = np.unique(codes, return_inverse=True)
            dense = found.tolist()
        names = [{**names[code // len(values)], column.name: values[code % len(values)]} for code in dense]
    if not rows:
        names = []
    dictionary = pa.DictionaryArray.from_arrays(int32s(codes), strings([partition_name(name) for name in names]))
    return pa.chunked_array([dictionary])


def _encode(
    partition_values: pa.ChunkedArray, column: PartitionColumn, paths: pa.ChunkedArray | None
) -> tuple[Any, list[str | None]]:
    """A code per file, and the stored text of each code."""
    chunks = [_values(chunk, column.key) for chunk in partition_values.chunks]
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode(null_encoding="encode")
    texts: list[str | None] = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
    if not texts:
        return np.zeros(len(partition_values), np.int64), [None]
    codes = np.concatenate([numbers(chunk.indices) for chunk in encoded.chunks])
    for code, text in enumerate(texts):
        try:
            _of(column, text, _parse)
        except DamagedTableError as error:
            file = "" if paths is None else f"{paths[int(np.argmax(codes == code))].as_py()}: "
            raise DamagedTableError(file + error.message, next_step=error.next_step) from None
    return codes.astype(np.int64), texts


def _values(values: pa.MapArray, key: str) -> pa.Array:
    """The raw value of one key per row."""
    rows, keys = len(values), values.keys
    # Nearly always, all files have the same keys in the same order. Values are then found by position.
    width = len(keys) // rows if rows else 0
    if values.null_count == 0 and width and _uniform(values, width):
        names = keys.slice(0, width).to_pylist()
        if key in names:
            at = np.arange(names.index(key), rows * width, width)
            return values.items if width == 1 else values.items.take(int32s(at))
    return pc.map_lookup(values, strings([key])[0], "last")


def _uniform(values: pa.MapArray, width: int) -> bool:
    """Whether each row has the same ``width`` keys in the same order."""
    entries = numbers(values.offsets)
    keys = values.keys
    if len(keys) != len(values) * width or not (np.diff(entries) == width).all():
        return False
    starts, ends, data = string_layout(keys)
    lengths = (ends - starts).reshape(-1, width)
    first = data[starts[0] : ends[width - 1]].tobytes()
    return bool((lengths == lengths[0]).all()) and data[starts[0] : ends[-1]].tobytes() == first * len(values)


def _of(column: PartitionColumn, raw: str | None, convert: Any) -> Any:
    try:
        return convert(raw, column.type)
    except DamagedTableError as error:
        message = f"partition column {column.name!r}: {error.message}"
        raise DamagedTableError(message, next_step=error.next_step) from None


def _parse(raw: str | None, type: pa.DataType) -> Any:
    """A Python value: bool, int, float, Decimal, bytes or str. Dates are days, timestamps microseconds since 1970."""
    if raw is None or raw == "" or pt.is_null(type):
        return None
    try:
        return _parse_typed(raw, type)
    except (ValueError, OverflowError, InvalidOperation):
        raise DamagedTableError(
            f"{raw!r} is not a partition value of type {sql_type(type)}",
            next_step="let the engine that wrote the file commit it again with a right value, such as null for "
            f"{NULL_PARTITION}",
        ) from None


def spelling_of(type: pa.DataType) -> Callable[[str], bool] | None:
    """Whether a valid value is spelled as the protocol says, so that every reader understands it; ``None``: any is."""
    if pt.is_decimal(type):
        return lambda raw: Decimal(raw).as_tuple().exponent == -type.scale
    if pt.is_date(type):
        return lambda raw: _PLAIN_DATE.fullmatch(raw) is not None
    return (lambda raw: _PLAIN_TIME.fullmatch(raw) is not None) if pt.is_timestamp(type) else None


def _parse_typed(raw: str, type: pa.DataType) -> Any:
    if pt.is_string(type) or pt.is_large_string(type):
        return raw
    if pt.is_binary(type) or pt.is_large_binary(type):
        return raw.encode()
    if pt.is_boolean(type):
        return {"true": True, "false": False}[raw.lower()] if raw.lower() in {"true", "false"} else _fail()
    if pt.is_integer(type):
        value = int(raw) if _INTEGER.fullmatch(raw) else _fail()
        return value if -(1 << type.bit_width - 1) <= value < 1 << type.bit_width - 1 else _fail()
    if pt.is_floating(type):
        return np.float32(raw) if type.bit_width == 32 else float(raw)
    if pt.is_decimal(type):
        return _decimal(raw, type)
    if pt.is_date(type):
        text, cycles = _in_pythons_years(raw)
        match = _DATE.match(text)
        day = date(*map(int, match.groups())) if match else _fail()
        return (day - _EPOCH.date()).days + cycles * _CYCLE.days
    if pt.is_timestamp(type):
        text, cycles = _in_pythons_years(raw)
        moment = datetime.fromisoformat(text)
        # See is_local_time. Without a session, the zone is UTC.
        aware = moment if moment.tzinfo and type.tz is not None else moment.replace(tzinfo=UTC)
        micros: int = (aware - _EPOCH + cycles * _CYCLE) // timedelta(microseconds=1)
        return micros if -(1 << 63) <= micros < 1 << 63 else _fail()
    return _fail()


def _in_pythons_years(raw: str) -> tuple[str, int]:
    """A date or timestamp, moved by whole calendar cycles into the years 2000 to 2399, and the number of cycles."""
    match = _YEAR.match(raw) or _fail()
    year = int(match[0])
    cycles = (year - 2000) // 400
    return f"{year - 400 * cycles:04d}{raw[len(match[0]) :]}", cycles


def _decimal(raw: str, type: pa.DataType) -> Decimal:
    value = Decimal(raw)
    if not value.is_finite() or value.adjusted() >= type.precision - type.scale:
        return _fail()
    exact = value.quantize(Decimal(1).scaleb(-type.scale), context=_EXACT)
    return exact if exact == value else _fail()


def _float_text(value: Any) -> str:
    """The shortest digits that read back as the same number; special values as Java spells them."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(value)


def _fail() -> NoReturn:
    raise ValueError
