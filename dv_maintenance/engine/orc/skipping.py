"""Values by which readers of ORC files skip rows that they should read.

ORC's Java library, in Spark and elsewhere, skips groups of rows by the bounds that the file has of them. It compares

* text by UTF-16 instead of UTF-8: characters from U+10000 on, such as emoji, come before those from U+E000 on;
* -0.0 as less than 0.0, which SQL takes for equal (a filter that says -0.0 stays wrong, as it is in every ORC file);
* dates as ``java.sql.Date``, which has the Julian calendar before 1582-10-15, and timestamps likewise.

Which rows are lost depends on the bounds, so a rewrite would change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.parquet.int96 import BYTES, UNITS, halves

# A year in which nothing depends on the calendar, even if a date in a filter is off by ten days.
_FIRST_DAY: Final = (date(1583, 1, 1) - date(1970, 1, 1)).days
# The first bytes of characters from U+E000 and from U+10000 on.
_HIGH, _SUPPLEMENTARY = 0xEE, 0xF0


class Misleading:
    """Whether the values of one file mislead its readers: :meth:`add` all of them."""

    def __init__(self) -> None:
        self.found = False
        self._scripts: dict[tuple[int, ...], set[bool]] = {}

    def add(self, columns: list[pa.Array]) -> None:
        for at, column in enumerate(columns):
            for path, values in _bounded(column, (at,)):
                self.found = self.found or self._misleads(path, values)

    def _misleads(self, path: tuple[int, ...], values: pa.Array) -> bool:
        if not types.is_string(values.type):
            return _is_misleading(values)
        begins, scripts = _high_characters(values)
        known = self._scripts.setdefault(path, set())
        known |= scripts
        return begins or len(known) > 1


def _bounded(array: pa.Array, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], pa.Array]]:
    """Columns by which filters may skip: those that are not in lists or maps."""
    if types.is_struct(array.type):
        for at in range(array.type.num_fields):
            yield from _bounded(array.field(at), (*path, at))
    elif not types.is_nested(array.type):
        yield path, array


def _is_misleading(values: pa.Array) -> bool:
    kind = values.type
    if types.is_date32(kind):
        wrong = pc.less(values.view(pa.int32()), _FIRST_DAY)
    elif kind == BYTES:  # of timestamps
        return bool((halves(values)[0] < _FIRST_DAY * 86_400).any())
    elif types.is_timestamp(kind) and kind.unit != "ns":  # which begins in 1677
        wrong = pc.less(values.view(pa.int64()), _FIRST_DAY * 86_400 * UNITS[kind.unit])
    elif types.is_float32(kind):
        wrong = pc.equal(values.view(pa.int32()), -(1 << 31))
    elif types.is_float64(kind):
        wrong = pc.equal(values.view(pa.int64()), -(1 << 63))
    else:
        return False
    return bool(pc.any(wrong).as_py())


def _high_characters(values: pa.Array) -> tuple[bool, set[bool]]:
    """Whether a value begins with a character from U+E000 on, and their kinds, ``True`` for those from U+10000 on.

    Bytes of values under a null may count as well.
    """
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return False, set()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    text = np.frombuffer(data, np.uint8)
    inside = text[ends[0] : ends[-1]]
    if not len(inside) or (highest := int(inside.max())) < _HIGH:
        return False, set()
    kinds = {True} if highest >= _SUPPLEMENTARY else set()
    if ((inside >= _HIGH) & (inside < _SUPPLEMENTARY)).any():
        kinds.add(False)
    starts = ends[:-1][ends[1:] > ends[:-1]]
    return bool((text[starts] >= _HIGH).any()), kinds
