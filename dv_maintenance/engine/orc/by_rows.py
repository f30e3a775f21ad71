"""What Arrow's library can't read from ORC files or write to them: row by row, with pyorc.

Arrow's timestamps are numbers of nanoseconds in 64 bits, from 1677 to 2262. Its writer stores a negative fraction of a
second before 1970, which other readers take for damage, and loses values of structs in structs and lists next to nulls.
pyorc uses ORC's C++ library as Arrow does, without these. It takes about three times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.orc_library import library
from dv_maintenance.files.orc_shapes import NOT_ORC

if TYPE_CHECKING:
    from types import ModuleType

UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Of a second."""
_NANOS: Final = 1_000_000_000
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


def read_stripe(file: pa.NativeFile, stripe: int, fields: Sequence[int], schema: pa.Schema) -> list[pa.Array]:
    """Columns of a stripe, by their index in the file's Arrow schema. Timestamps that 64 bits of nanoseconds do not
    hold have microseconds.

    Raises
    ------
    DamagedTableError : the stripe is damaged. The error does not name the file.
    RefusedError : such a timestamp has nanoseconds.
    MissingSoftwareError : pyorc is not installed.
    """
    pyorc = library()
    # Columns come in the order of the file.
    ordered = sorted(fields)
    try:
        reader = pyorc.Reader(file, column_indices=ordered, converters=_converters(pyorc))
        columns = [[*column] for column in zip(*reader.read_stripe(stripe), strict=True)]
    except (RuntimeError, UnicodeDecodeError, pyorc.errors.ORCError) as error:
        raise DamagedTableError(f"a stripe can't be decoded: {error}") from error
    except TypeError as error:
        raise RefusedError(f"pyorc does not read maps that have lists or maps in their keys ({error})") from error
    found = {at: _array(values, schema.field(at).type) for at, values in zip(ordered, columns, strict=True)}
    return [found[at] for at in fields]


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
    if types.is_timestamp(kind):
        per = UNITS[kind.unit]
        numbers = array.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        seconds = np.floor_divide(numbers, per)
        fractions = (numbers - seconds * per) * (_NANOS // per)
        found: list[Any] = [*zip(seconds.tolist(), fractions.tolist(), strict=True)]
    elif types.is_date32(kind):
        return array.view(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    elif types.is_decimal(kind):
        words = np.frombuffer(array.buffers()[1], "<i8", 2 * len(array), 16 * array.offset)
        found = [high << 64 | low & (1 << 64) - 1 for low, high in words.reshape(-1, 2).tolist()]
    elif types.is_struct(kind):
        children = [_objects(array.field(at)) for at in range(kind.num_fields)]
        found = [*zip(*children, strict=True)] if children else [()] * len(array)
    elif types.is_map(kind):
        pairs = zip(_ranges(array, array.keys), _ranges(array, array.items), strict=True)
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
    if types.is_map(kind):
        keys = _array([key for value in values for key in value or ()], kind.key_type)
        items = _array([item for value in values for item in (value or {}).values()], kind.item_type)
        named = pa.map_(kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=named, mask=mask)
    if types.is_list(kind):
        inside = _array([each for value in values for each in value or ()], kind.value_type)
        named = pa.list_(kind.value_field.with_type(inside.type))
        return pa.ListArray.from_arrays(_offsets(values), inside, type=named, mask=mask)
    return pa.array(values, kind)


def _offsets(values: list[Any]) -> pa.Array:
    lengths = [0, *(len(value or ()) for value in values)]
    return pa.array(np.cumsum(lengths), pa.int32())


def _timestamps(values: list[Any], kind: pa.TimestampType) -> pa.Array:
    nanos = [None if value is None else value[0] * _NANOS + value[1] for value in values]
    if all(each is None or -(1 << 63) <= each < 1 << 63 for each in nanos):
        return pa.array(nanos, pa.int64()).view(kind)
    if any(each is not None and each % 1000 for each in nanos):
        raise RefusedError("a timestamp before 1677 or after 2262 has nanoseconds, for which Arrow has no type")
    micros = pa.array([None if each is None else each // 1000 for each in nanos], pa.int64())
    return micros.view(pa.timestamp("us", kind.tz))
