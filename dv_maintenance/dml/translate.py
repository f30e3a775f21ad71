"""A condition in Spark SQL as one that files and row groups can be left out by, without Spark.

Comparisons are of a top-level column with a literal whose type is the column's own, since Spark's casts between types
are Spark's to know.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from dv_maintenance.tables.predicate import And, Compare, IsIn, IsNull, Not, Or, Predicate, Unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dv_maintenance.dml.condition import Condition

__all__ = ["predicate_of"]

_OPERATORS: Final = {"EQ": "=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def predicate_of(condition: Condition, schema: pa.Schema, zone: str) -> Predicate:
    """What of ``condition`` can be told from the bounds of columns of ``schema``; the rest is ``Unknown``. ``zone``:
    the session's time zone, in which Spark reads timestamps that name none.
    """
    return Unknown() if condition.tree is None else _Translator(schema, zone).predicate(condition.tree)


class _Translator:
    def __init__(self, schema: pa.Schema, zone: str) -> None:
        self._fields = {field.name.lower(): field for field in schema}
        self._zone = zone

    def predicate(self, node: Any) -> Predicate:
        kind = type(node).__name__
        if kind == "Paren":
            return self.predicate(node.this)
        if kind == "Not":
            return Not(self.predicate(node.this))
        if kind in ("And", "Or"):
            return (And if kind == "And" else Or)((self.predicate(node.left), self.predicate(node.right)))
        if kind == "Boolean":
            return And(()) if node.this else Or(())
        if kind == "NEQ":
            return Not(self._comparison("=", node.left, node.right))
        if kind in _OPERATORS:
            return self._comparison(_OPERATORS[kind], node.left, node.right)
        if kind == "Between":
            low, high = node.args["low"], node.args["high"]
            return And((self._comparison(">=", node.this, low), self._comparison("<=", node.this, high)))
        if kind == "In" and node.expressions and not node.args.get("query"):
            return self._among(node.this, node.expressions)
        if kind == "Is" and type(node.expression).__name__ == "Null":
            field = self._field(node.this)
            return Unknown() if field is None else IsNull((field.name,))
        return Unknown()

    def _comparison(self, operator: Any, left: Any, right: Any) -> Predicate:
        if type(right).__name__ == "Column" and type(left).__name__ != "Column":
            left, right, operator = right, left, _MIRRORED[operator]
        field = self._field(left)
        value = None if field is None else _literal(right, field.type, self._zone)
        if field is None or value is None:
            return Unknown()
        return Compare((field.name,), operator, value.as_py())

    def _among(self, column: Any, nodes: Sequence[Any]) -> Predicate:
        field = self._field(column)
        if field is None:
            return Unknown()
        values = [_literal(node, field.type, self._zone) for node in nodes]
        if None in values:
            return Unknown()
        return IsIn((field.name,), tuple(value.as_py() for value in values if value is not None))

    def _field(self, node: Any) -> pa.Field | None:
        if type(node).__name__ != "Column" or len(node.parts) != 1:
            return None
        return self._fields.get(node.name.lower())


def _literal(node: Any, kind: pa.DataType, zone: str) -> pa.Scalar | None:
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
