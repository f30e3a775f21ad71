"""PySpark's filters as predicates that skip files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dv_maintenance.tables.predicate import (
    And,
    Compare,
    IsIn,
    IsNull,
    Not,
    Predicate,
    StartsWith,
    Unknown,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


def predicate_of(filters: Iterable[Filter]) -> Predicate:
    """The conjunction of ``filters``, in the columns' logical names."""
    return And(tuple(map(_predicate, filters)))


def _predicate(filter: Filter) -> Predicate:
    from pyspark.sql import datasource as spark

    match filter:
        case spark.Not(child):
            return Not(_predicate(child))
        case spark.IsNull(column):
            return IsNull(column)
        case spark.IsNotNull(column):
            return Not(IsNull(column))
        case spark.In(column, values):
            return IsIn(column, tuple(values))
        case spark.StringStartsWith(column, prefix):
            return StartsWith(column, prefix)
        case spark.EqualNullSafe(column, None):
            return IsNull(column)
        case spark.EqualNullSafe(column, value):
            return And((Not(IsNull(column)), Compare(column, "=", value)))
        case spark.EqualTo(column, value):
            return Compare(column, "=", value)
        case spark.LessThan(column, value):
            return Compare(column, "<", value)
        case spark.LessThanOrEqual(column, value):
            return Compare(column, "<=", value)
        case spark.GreaterThan(column, value):
            return Compare(column, ">", value)
        case spark.GreaterThanOrEqual(column, value):
            return Compare(column, ">=", value)
    return Unknown()
