"""Leaf columns with special floats, which filters could miss because of the file's statistics or dictionaries.

NaN: Parquet's writers leave it out of bounds, but in Spark it is greater than every number. Zero: in Spark 0.0 equals
-0.0, but not in parquet-java, which looks a filter's value up in dictionaries (``d = 0``, and ``d <=> -0.0``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.parquet.projection import leaf_count

_Step = Callable[[pa.Array], pa.Array]
# By width: floats, and integers of the same bits, in which negative zero is the minimum.
_WIDTHS = {16: (np.float16, np.int16), 32: (np.float32, np.int32), 64: (np.float64, np.int64)}


@dataclass(slots=True)
class Specials:
    """Leaves with special floats.

    nan : numbers (in Parquet) of the leaves that have a NaN, or whose bounds can't be trusted for another reason.
    zero : numbers of those that have a zero of either sign.
    negative_zero : numbers of those that may have a negative zero.
    """

    nan: set[int] = field(default_factory=set)
    zero: set[int] = field(default_factory=set)
    negative_zero: set[int] = field(default_factory=set)


class SpecialFloats(Specials):
    """Leaves of ``schema`` with special floats in the batches added so far."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__()
        self._floats: list[tuple[int, int, Sequence[_Step]]] = []
        leaf = 0
        for column, each in enumerate(schema):
            self._floats += [(column, leaf + below, steps) for below, steps in _floats(each.type)]
            leaf += leaf_count(each.type)

    def add(self, batch: pa.RecordBatch) -> None:
        for column, leaf, steps in self._floats:
            if leaf in self.nan and leaf in self.negative_zero and leaf in self.zero:
                continue
            array = batch.column(column)
            for step in steps:
                array = step(array)
            if array.null_count == len(array) or not _may_be_special(array):
                continue
            if leaf not in self.nan and _has_nan(array):
                self.nan.add(leaf)
            if leaf not in self.zero and _has_zero(array):
                self.zero.add(leaf)
            if leaf not in self.negative_zero and _has_negative_zero(array):
                self.negative_zero.add(leaf)


def _floats(type: pa.DataType) -> Iterator[tuple[int, Sequence[_Step]]]:
    """The number of each leaf of floats below a type, and the steps to its values in a file: values under null structs
    and lists are not stored.
    """
    inner: list[tuple[pa.DataType, _Step]]
    if isinstance(type, pa.BaseExtensionType):
        inner = [(type.storage_type, lambda array: array.storage)]
    elif types.is_struct(type):
        inner = [(child.type, _Child(at)) for at, child in enumerate(type)]
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


def _may_be_special(array: pa.Array) -> bool:
    """Whether there may be a NaN or a zero, in one pass: the smallest magnitude is one of them if there is."""
    with np.errstate(invalid="ignore"):
        return not np.abs(_values(array, 0)).min() > 0


def _has_nan(array: pa.Array) -> bool:
    values = _values(array, 0)
    with np.errstate(invalid="ignore"):
        # The minimum is NaN if one value is: this takes a third of the time of a test of each value.
        if not np.isnan(values.min()):
            return False
    return not array.null_count or bool(pc.any(pc.is_nan(array)).as_py())


def _has_zero(array: pa.Array) -> bool:
    if not (_values(array, 0) == 0).any():
        return False
    # A null is often stored as a zero.
    return not array.null_count or bool((_values(array.drop_null(), 0) == 0).any())


def _has_negative_zero(array: pa.Array) -> bool:
    values = _values(array, 1)
    return bool(values.min() == np.iinfo(values.dtype).min)


def _values(array: pa.Array, form: int) -> np.ndarray[Any, Any]:
    """The stored values, including those under nulls."""
    width = array.type.bit_width
    return np.frombuffer(array.buffers()[1], _WIDTHS[width][form], len(array), array.offset * width // 8)
