"""Which files a condition can be true in, by partition values and statistics (data skipping).

A file is left out only where what is known of it rules the condition out; everything that is not understood keeps it.
Comparisons are of a top-level column with a literal whose type is the column's own, since Spark's casts between
types are Spark's to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from dv_maintenance.dml.condition import Condition
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import ColumnBounds, RowLevelTable

__all__ = ["files_in_range", "files_that_may_match", "literal"]

_NEGATED: Final = {"EQ": "NEQ", "NEQ": "EQ", "LT": "GTE", "GTE": "LT", "GT": "LTE", "LTE": "GT"}
_MIRRORED: Final = {"EQ": "EQ", "NEQ": "NEQ", "LT": "GT", "GT": "LT", "LTE": "GTE", "GTE": "LTE"}

# True where a file may hold such rows.
_Mask = Any


def files_that_may_match(table: RowLevelTable, snapshot: Snapshot, condition: Condition, zone: str) -> Snapshot:
    """The snapshot with only those files in it that the condition may be true in. ``zone``: the session's time zone, in
    which Spark reads timestamps that name none.
    """
    if condition.tree is None or not condition.columns:
        return snapshot
    bounds = table.column_bounds(snapshot, condition.columns)
    pruner = _Pruner({name.lower(): each for name, each in bounds.items()}, snapshot.files, zone)
    return _only(snapshot, pruner.possible(condition.tree, True))


def files_in_range(table: RowLevelTable, snapshot: Snapshot, column: str, values: pa.Array) -> Snapshot:
    """The snapshot with only those files in it that may hold one of ``values`` in ``column``.

    ``values``: sorted, without nulls, of the column's type (any order of magnitude: the work per file is logarithmic).
    """
    bounds = table.column_bounds(snapshot, [column]).get(column)
    if bounds is None:
        return snapshot
    if not len(values):
        return _only(snapshot, np.zeros(snapshot.files.num_rows, bool))
    low, high = values[0], values[-1]
    mask = _true(pc.less_equal(bounds.minimum, high)) & _true(pc.greater_equal(bounds.maximum, low))
    if pa.types.is_integer(values.type):
        # The first value that is not below the minimum must not be above the maximum.
        numbers = values.to_numpy(zero_copy_only=False)
        least = pc.fill_null(bounds.minimum, low).to_numpy()
        at = np.searchsorted(numbers, least)
        found = pa.array(numbers[np.minimum(at, len(numbers) - 1)], values.type)
        mask &= (at < len(numbers)) & _true(pc.greater_equal(bounds.maximum.combine_chunks(), found))
    return _only(snapshot, mask)


def _only(snapshot: Snapshot, mask: _Mask) -> Snapshot:
    from dataclasses import replace

    return replace(snapshot, files=snapshot.files.filter(pa.array(mask, pa.bool_())))


def _true(mask: pa.ChunkedArray) -> _Mask:
    """Not known counts as true."""
    return np.asarray(pc.fill_null(mask, True).to_numpy(zero_copy_only=False), bool)


@dataclass(frozen=True, slots=True)
class _Pruner:
    bounds: Mapping[str, ColumnBounds]
    files: pa.Table
    zone: str

    def possible(self, node: Any, wanted: bool) -> _Mask:
        """Files in which the condition may come out as ``wanted`` (null is neither) for some row."""
        kind = type(node).__name__
        if kind == "Paren":
            return self.possible(node.this, wanted)
        if kind == "Not":
            return self.possible(node.this, not wanted)
        if kind in ("And", "Or"):
            sides = self.possible(node.left, wanted), self.possible(node.right, wanted)
            return sides[0] & sides[1] if (kind == "And") == wanted else sides[0] | sides[1]
        if kind in _NEGATED:
            return self._comparison(kind if wanted else _NEGATED[kind], node.left, node.right)
        if kind == "Between":
            low, high = ("GTE", "LTE") if wanted else ("LT", "GT")
            sides = (
                self._comparison(low, node.this, node.args["low"]),
                self._comparison(high, node.this, node.args["high"]),
            )
            return sides[0] & sides[1] if wanted else sides[0] | sides[1]
        if kind == "In" and wanted and node.expressions and not node.args.get("query"):
            return reduce(np.logical_or, (self._comparison("EQ", node.this, each) for each in node.expressions))
        if kind == "Is" and type(node.expression).__name__ == "Null":
            return self._nulls(node.this, wanted)
        if kind == "Boolean":
            return self._all(bool(node.this) == wanted)
        return self._all(True)

    def _comparison(self, operator: str, left: Any, right: Any) -> _Mask:
        if type(right).__name__ == "Column" and type(left).__name__ != "Column":
            left, right, operator = right, left, _MIRRORED[operator]
        bounds = self._column(left)
        value = None if bounds is None else literal(right, bounds.minimum.type, self.zone)
        if bounds is None or value is None:
            return self._all(True)
        least, greatest = bounds.minimum, bounds.maximum
        masks: dict[str, Callable[[], _Mask]] = {
            "EQ": lambda: _true(pc.less_equal(least, value)) & _true(pc.greater_equal(greatest, value)),
            "NEQ": lambda: ~(_known(pc.equal(least, value)) & _known(pc.equal(greatest, value))),
            "LT": lambda: _true(pc.less(least, value)),
            "LTE": lambda: _true(pc.less_equal(least, value)),
            "GT": lambda: _true(pc.greater(greatest, value)),
            "GTE": lambda: _true(pc.greater_equal(greatest, value)),
        }
        # Compared with null, nothing is true or false.
        return masks[operator]() & ~self._all_null(bounds)

    def _nulls(self, column: Any, wanted: bool) -> _Mask:
        bounds = self._column(column)
        if bounds is None:
            return self._all(True)
        return _true(pc.greater(bounds.nulls, 0)) if wanted else ~self._all_null(bounds)

    def _all_null(self, bounds: ColumnBounds) -> _Mask:
        return _known(pc.equal(bounds.nulls.combine_chunks(), self.files["physical_rows"].combine_chunks()))

    def _column(self, node: Any) -> ColumnBounds | None:
        if type(node).__name__ != "Column" or len(node.parts) != 1:
            return None
        return self.bounds.get(node.name.lower())

    def _all(self, value: bool) -> _Mask:
        return np.full(self.files.num_rows, value)


def _known(mask: pa.ChunkedArray) -> _Mask:
    """Not known counts as false."""
    return np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), bool)


def literal(node: Any, kind: pa.DataType, zone: str) -> pa.Scalar | None:
    """A literal as a value to compare a column of type ``kind`` with, if that is how Spark compares them."""
    name = type(node).__name__
    if name == "Neg" and type(node.this).__name__ == "Literal" and not node.this.is_string:
        return _number(f"-{node.this.this}", kind)
    if name == "Cast" and type(node.this).__name__ == "Literal" and node.this.is_string:
        to = node.args["to"].this.name
        fits = (to == "DATE" and pa.types.is_date(kind)) or (to == "TIMESTAMPTZ" and _has_zone(kind))
        return _text(node.this.this, kind, zone) if fits else None
    if name != "Literal":
        return None
    return _text(node.this, kind, zone) if node.is_string else _number(node.this, kind)


def _has_zone(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _number(text: str, kind: pa.DataType) -> pa.Scalar | None:
    try:
        if pa.types.is_integer(kind):
            return pa.scalar(int(text), pa.int64())
        if pa.types.is_float64(kind) or pa.types.is_float32(kind):
            return pa.scalar(float(text), pa.float64())
    except (ValueError, OverflowError, pa.ArrowInvalid):
        return None
    return None


def _text(text: str, kind: pa.DataType, zone: str) -> pa.Scalar | None:
    try:
        if pa.types.is_string(kind):
            return pa.scalar(text, pa.string())
        if pa.types.is_date(kind) and len(text) == len("2026-01-01"):
            return pa.scalar(date.fromisoformat(text), kind)
        if _has_zone(kind):
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo else when.replace(tzinfo=ZoneInfo(zone))
            return pa.scalar(when.astimezone(UTC), kind)
    except (ValueError, OverflowError, KeyError, OSError):
        return None
    return None
