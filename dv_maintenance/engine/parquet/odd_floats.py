"""Which leaf columns hold floats that a file's own account of them hides from filters.

NaN: Parquet's writers leave it out of their bounds, and Spark takes it for greater than every number. Negative zero:
Spark takes it for zero, and parquet-java, which looks a filter's value up in dictionaries, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.parquet.projection import leaf_count

__all__ = ["OddFloats"]

_Step = Callable[[pa.Array], pa.Array]
# By width: floats, and integers of the same bits, whose least value negative zero is then.
_WIDTHS = {16: (np.float16, np.int16), 32: (np.float32, np.int32), 64: (np.float64, np.int64)}


class OddFloats:
    """Of the batches :meth:`add`-ed so far: leaves of ``schema``, by their numbers in Parquet, that have a NaN, and
    those that may have a negative zero.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.nan: set[int] = set()
        self.negative_zero: set[int] = set()
        self._floats: list[tuple[int, int, Sequence[_Step]]] = []
        leaf = 0
        for column, field in enumerate(schema):
            self._floats += [(column, leaf + below, steps) for below, steps in _floats(field.type)]
            leaf += leaf_count(field.type)

    def add(self, batch: pa.RecordBatch) -> None:
        for column, leaf, steps in self._floats:
            if leaf in self.nan and leaf in self.negative_zero:
                continue
            array = batch.column(column)
            for step in steps:
                array = step(array)
            if array.null_count == len(array):
                continue
            if leaf not in self.nan and _has_nan(array):
                self.nan.add(leaf)
            if leaf not in self.negative_zero and _has_negative_zero(array):
                self.negative_zero.add(leaf)


def _floats(type: pa.DataType) -> Iterator[tuple[int, Sequence[_Step]]]:
    """Number of each leaf of floats below a type, and how to come by those of its values that a file has: what null
    structs and lists hide is not among them.
    """
    inner: list[tuple[pa.DataType, _Step]]
    if isinstance(type, pa.BaseExtensionType):
        inner = [(type.storage_type, lambda array: array.storage)]
    elif types.is_struct(type):
        inner = [(field.type, _Child(at)) for at, field in enumerate(type)]
    elif types.is_map(type):
        entries = pa.struct([("key", type.key_type), ("value", type.item_type)])
        # Only a list can be flattened, and a map is one.
        inner = [(entries, lambda array: array.cast(pa.list_(array.type.field(0))).flatten())]
    elif types.is_nested(type):
        inner = [(type.value_type, lambda array: array.flatten())]
    else:
        if types.is_floating(type):
            yield 0, ()
        return
    first = 0
    for each, step in inner:
        for leaf, steps in _floats(each):
            yield first + leaf, (step, *steps)
        first += leaf_count(each)


class _Child:
    def __init__(self, at: int) -> None:
        self._at = at

    def __call__(self, array: pa.StructArray) -> pa.Array:
        return pc.struct_field(array, [self._at]) if array.null_count else array.field(self._at)


def _has_nan(array: pa.Array) -> bool:
    values = _values(array, 0)
    with np.errstate(invalid="ignore"):
        # The least of all is NaN where one is: a third of the time that it takes to ask each.
        if not np.isnan(values.min()):
            return False
    return not array.null_count or bool(pc.any(pc.is_nan(array)).as_py())


def _has_negative_zero(array: pa.Array) -> bool:
    values = _values(array, 1)
    return bool(values.min() == np.iinfo(values.dtype).min)


def _values(array: pa.Array, form: int) -> np.ndarray[Any, Any]:
    """What is stored, also where that is null."""
    width = array.type.bit_width
    return np.frombuffer(array.buffers()[1], _WIDTHS[width][form], len(array), array.offset * width // 8)
