"""What Arrow's library can't read from ORC files or write to them: row by row, with pyorc.

Arrow's timestamps are numbers of nanoseconds in 64 bits, from 1677 to 2262, and its maps have no null keys. Its writer
stores a negative fraction of a second before 1970, which other readers take for damage, and loses values of structs in
structs and lists next to nulls. pyorc uses ORC's C++ library as Arrow does, without these. It takes about three times
as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.engine.orc.near_epoch import LEAVE_OUT
from dv_maintenance.engine.parquet.int96 import BYTES, from_halves, halves, nanoseconds
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.map_entries import fields_of, is_map, joined, parts_of
from dv_maintenance.files.orc_library import library
from dv_maintenance.files.orc_shapes import NOT_ORC, keys_of

if TYPE_CHECKING:
    from types import ModuleType

_SIMPLE: Final = {
    pa.bool_(): "Boolean",
    pa.int8(): "TinyInt",
    pa.int16(): "SmallInt",
    pa.int32(): "Int",
    pa.int64(): "BigInt",
    pa.float32(): "Float",
    pa.float64(): "Double",
    pa.string(): "String",
    pa.binary(): "Binary",
    pa.date32(): "Date",
}

# Seconds that 64 bits of microseconds hold.
_MOST: Final = (1 << 63) // 1_000_000 - 1


class RowWriter:
    """Writes batches of columns to a file object.

    schema : as it is stored. The metadata of fields becomes attributes of ORC's types.
    codec : as Arrow names it.
    """

    def __init__(self, sink: Any, schema: pa.Schema, codec: str, stripe_size: int, dictionary: float) -> None:
        pyorc = library()
        self.schema = schema
        self._writer: Any = pyorc.Writer(
            sink,
            _struct(pyorc, schema),
            stripe_size=stripe_size,
            compression=pyorc.CompressionKind["NONE" if codec == "uncompressed" else codec.upper()],
            converters=_converters(pyorc),
            dict_key_size_threshold=dictionary,
        )

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Raises RefusedError: a map has a key twice, or maps in a key."""
        for row in zip(*map(_objects, columns), strict=True):
            self._writer.write(row)

    def close(self) -> None:
        self._writer.close()


def read_stripe(file: pa.NativeFile, uri: str, stripe: int, fields: Sequence[int], schema: pa.Schema) -> list[pa.Array]:
    """Columns of a stripe, by their index in the file's Arrow schema, with lists of entries for maps that may have a
    null key. Timestamps that 64 bits of nanoseconds do not hold have microseconds, or else are ``int96.BYTES``.

    Raises
    ------
    DamagedTableError : the stripe is damaged. The error does not name the file.
    RefusedError : a map has keys that pyorc does not tell apart, or 64 bits of microseconds do not hold a timestamp.
    MissingSoftwareError : pyorc is not installed.
    """
    pyorc = library()
    # Columns come in the order of the file.
    ordered = sorted(fields)
    try:
        reader = pyorc.Reader(file, column_indices=ordered, converters=_converters(pyorc))
        part = reader.read_stripe(stripe)
        columns = [[*column] for column in zip(*part, strict=True)]
        keys = sum(part[each].statistics["number_of_values"] for each in keys_of(schema, ordered))
    except (RuntimeError, UnicodeDecodeError, pyorc.errors.ORCError) as error:
        raise DamagedTableError(f"a stripe can't be decoded: {error}") from error
    except TypeError as error:
        raise RefusedError(
            f"pyorc does not read maps that have lists or maps in their keys, as {uri} has ({error})"
        ) from error
    found = {at: _array(values, schema.field(at).type) for at, values in zip(ordered, columns, strict=True)}
    if sum(map(_keys_in, found.values())) != keys:
        raise RefusedError(
            f"a map in {uri} has keys that pyorc does not tell apart, such as 0.0 and -0.0",
            next_step="let the table's own engine do it",
        )
    return [found[at] for at in fields]


def _keys_in(array: pa.Array) -> int:
    """The number of keys that are not null, in all maps of a new array."""
    kind = array.type
    if is_map(kind):
        keys, items = parts_of(array)
        return int(len(keys) - keys.null_count) + _keys_in(keys) + _keys_in(items)
    if types.is_struct(kind):
        return sum(_keys_in(array.field(at)) for at in range(kind.num_fields))
    return _keys_in(array.values) if types.is_list(kind) else 0


def stripe_zones(file: pa.NativeFile) -> frozenset[str]:
    """The time zones in which the stripes were written, whatever the codec. Raises MissingSoftwareError."""
    reader = library().Reader(file)
    return frozenset(str(each.writer_timezone) for each in reader.iter_stripes())


def with_nulls(file: pa.NativeFile, columns: Iterable[int]) -> frozenset[int]:
    """Those of the columns, given by their ids, that have nulls, whatever the codec. Raises MissingSoftwareError."""
    reader = library().Reader(file)
    return frozenset(each for each in columns if reader[each].statistics["has_null"])


# -- types -------------------------------------------------------------------------------------------------------------


def _struct(pyorc: ModuleType, fields: Iterable[pa.Field]) -> Any:
    if any(each.name == "self" for each in fields):
        raise RefusedError("pyorc writes no column that is called self", next_step=NOT_ORC)
    return pyorc.Struct(**{each.name: _described(pyorc, each) for each in fields})


def _described(pyorc: ModuleType, field: pa.Field) -> Any:
    found, metadata = _kind(pyorc, field.type), field.metadata or {}
    found.set_attributes({key.decode(): value.decode() for key, value in metadata.items()})
    return found


def _kind(pyorc: ModuleType, kind: pa.DataType) -> Any:
    if types.is_struct(kind):
        return _struct(pyorc, kind)
    if types.is_map(kind):
        return pyorc.Map(_described(pyorc, kind.key_field), _described(pyorc, kind.item_field))
    if types.is_list(kind):
        return pyorc.Array(_described(pyorc, kind.value_field))
    if types.is_timestamp(kind):
        return pyorc.TimestampInstant() if kind.tz else pyorc.Timestamp()
    if types.is_decimal(kind):
        return pyorc.Decimal(kind.precision, kind.scale)
    return getattr(pyorc, "Binary" if types.is_fixed_size_binary(kind) else _SIMPLE[kind])()


def _converters(pyorc: ModuleType) -> dict[Any, Any]:
    """Python's own types of times lack years, and digits: timestamps are seconds and nanoseconds, dates are days,
    decimals to be written are numbers without a scale.
    """

    class Timestamps(pyorc.converters.ORCConverter):  # type: ignore[misc, name-defined]
        @staticmethod
        def from_orc(seconds: int, nanoseconds: int, timezone: Any) -> tuple[int, int]:
            del timezone
            return seconds, nanoseconds

        @staticmethod
        def to_orc(obj: tuple[int, int], timezone: Any) -> tuple[int, int]:
            del timezone
            return obj

    class Dates(pyorc.converters.ORCConverter):  # type: ignore[misc, name-defined]
        @staticmethod
        def from_orc(days: int) -> int:
            return days

        @staticmethod
        def to_orc(obj: int) -> int:
            return obj

    class Decimals(pyorc.converters.DecimalConverter):  # type: ignore[misc, name-defined]
        @staticmethod
        def to_orc(precision: int, scale: int, obj: int) -> int:
            del precision, scale
            return obj

    kinds = pyorc.TypeKind
    return {
        kinds.TIMESTAMP: Timestamps,
        kinds.TIMESTAMP_INSTANT: Timestamps,
        kinds.DATE: Dates,
        kinds.DECIMAL: Decimals,
    }


# -- values ------------------------------------------------------------------------------------------------------------


def _objects(array: pa.Array) -> list[Any]:
    """The values as pyorc's writer takes them."""
    kind = array.type
    if not len(array):
        return []
    if types.is_timestamp(kind) or kind == BYTES:
        seconds, nanos = halves(array)
        found: list[Any] = [*zip(seconds.tolist(), nanos.tolist(), strict=True)]
    elif types.is_date32(kind):
        return array.view(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    elif types.is_decimal(kind):
        words = np.frombuffer(array.buffers()[1], "<i8", 2 * len(array), 16 * array.offset)
        found = [high << 64 | low & (1 << 64) - 1 for low, high in words.reshape(-1, 2).tolist()]
    elif types.is_struct(kind):
        children = [_objects(array.field(at)) for at in range(kind.num_fields)]
        found = [*zip(*children, strict=True)] if children else [()] * len(array)
    elif is_map(kind):
        pairs = zip(*(_ranges(array, each) for each in parts_of(array)), strict=True)
        found = [_dict(keys, items) for keys, items in pairs]
    elif types.is_list(kind):
        found = [*_ranges(array, array.values)]
    else:
        return array.to_pylist()  # type: ignore[no-any-return]
    if array.null_count:
        found = [value if valid else None for value, valid in zip(found, array.is_valid().to_pylist(), strict=True)]
    return found


def _ranges(array: pa.Array, values: pa.Array) -> Iterator[tuple[Any, ...]]:
    """For each list or map, its part of ``values``, which are those of the whole buffer. A tuple may be a key."""
    ends = array.offsets.to_pylist()
    inside = tuple(_objects(values.slice(ends[0], ends[-1] - ends[0])))
    return (inside[start - ends[0] : stop - ends[0]] for start, stop in pairwise(ends))


def _dict(keys: Sequence[Any], items: Sequence[Any]) -> dict[Any, Any]:
    try:
        found = dict(zip(keys, items, strict=True))
    except TypeError:
        found = {}
    if len(found) < len(keys):
        raise RefusedError("a map has a key twice, or maps in a key, which pyorc does not write", next_step=NOT_ORC)
    return found


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The opposite of ``_objects``: ``kind``, or microseconds instead of nanoseconds."""
    mask = pa.array([value is None for value in values], pa.bool_())
    if types.is_timestamp(kind):
        return _timestamps(values, kind)
    if types.is_date32(kind):
        return pa.array(values, pa.int32()).view(kind)
    if types.is_struct(kind):
        none = (None,) * kind.num_fields
        columns = [*zip(*(none if value is None else value for value in values), strict=True)] or [()] * len(none)
        inner = [_array([*column], each.type) for column, each in zip(columns, kind, strict=True)]
        named = [each.with_type(array.type) for each, array in zip(kind, inner, strict=True)]
        return pa.StructArray.from_arrays(inner, fields=named, mask=mask)
    if is_map(kind):
        key, item = fields_of(kind)
        keys = _array([each for value in values for each in value or ()], key.type)
        items = _array([each for value in values for each in (value or {}).values()], item.type)
        return joined(_offsets(values), keys, items, kind, mask)
    if types.is_list(kind):
        inside = _array([each for value in values for each in value or ()], kind.value_type)
        named = pa.list_(kind.value_field.with_type(inside.type))
        return pa.ListArray.from_arrays(_offsets(values), inside, type=named, mask=mask)
    return pa.array(values, kind)


def _offsets(values: list[Any]) -> pa.Array:
    lengths = [0, *(len(value or ()) for value in values)]
    return pa.array(np.cumsum(lengths), pa.int32())


def _timestamps(values: list[Any], kind: pa.TimestampType) -> pa.Array:
    seconds, nanos = np.array([value or (0, 0) for value in values], np.int64).reshape(-1, 2).T
    if ((seconds > _MOST) | (seconds < -_MOST)).any():
        raise RefusedError(
            "it holds a timestamp more than 292,000 years from now, which 64 bits of microseconds do not hold",
            next_step=LEAVE_OUT,
        )
    found = from_halves(seconds, nanos, pa.array([value and True for value in values], pa.bool_()))
    try:
        return nanoseconds(found, kind.tz)
    except OverflowError:
        if (nanos % 1000).any():
            return found
    micros = pa.array(seconds * 1_000_000 + nanos // 1000, mask=found.is_null().to_numpy(zero_copy_only=False))
    return micros.view(pa.timestamp("us", kind.tz))
