"""Which row groups of a file may have a row that fulfils a condition, by the statistics in its footer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyarrow import types

from dv_maintenance.engine.parquet.calendars import may_be_ancient
from dv_maintenance.tables.predicate import Bounds, Column, Predicate, comparable, may_be_true

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.engine.parquet.projection import Projection

_UNKNOWN: Final = Bounds()


def may_hold(group: Any, projection: Projection, predicate: Predicate) -> bool:
    """Whether, by its Parquet metadata, a row group may have a row for which a bound ``predicate`` is true. Deleted
    rows only make that less likely.
    """
    return may_be_true(predicate, _bounds_in(group, projection))


def _bounds_in(group: Any, projection: Projection) -> Callable[[Column], Bounds]:
    def bounds(column: Column) -> Bounds:
        # The dotted path of a struct's leaf may equal the name of a column with a dot in it.
        if len(column) != 1 or "." in column[0] or column[0] not in projection.origins:
            return _UNKNOWN
        leaf = projection.origins[column[0]]
        found = _bounds_of(group.column(leaf), projection.schema.field(column[0]).type)
        return found if leaf not in projection.hybrid else _in_both_calendars(found, group.column(leaf))

    return bounds


def _bounds_of(chunk: Any, type_: pa.DataType) -> Bounds:
    """Bounds of a column chunk. ``type_``: the table's, to which the file's may have been widened since.

    Writers truncate long strings, but outwards, and leave NaN out of the bounds of floats (Parquet: Statistics).
    """
    nans = bool(types.is_floating(type_))
    if not chunk.is_stats_set:
        return Bounds(nans=nans)
    stats = chunk.statistics
    nulls = stats.null_count if stats.has_null_count else None
    return Bounds(
        _bound(stats, "min", type_),
        _bound(stats, "max", type_),
        values=nulls is None or nulls < chunk.num_values,
        nulls=nulls != 0,
        nans=nans,
    )


def _in_both_calendars(bounds: Bounds, chunk: Any) -> Bounds:
    """The bounds only if all values are from the time in which the calendars agree."""
    return replace(bounds, lower=None, upper=None) if may_be_ancient(chunk) else bounds


def _bound(stats: Any, side: str, type_: pa.DataType) -> Any:
    """``None`` if there is no bound, or it does not compare like values of ``type_``: the widening of its type changed
    its form, or it is NaN, not UTF-8, or out of Python's range of dates.
    """
    if not stats.has_min_max:
        return None
    try:
        return comparable(getattr(stats, side), type_)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return None
