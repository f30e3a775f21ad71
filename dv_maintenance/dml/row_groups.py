"""A condition in Spark SQL as one that row groups can be left out by, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.dml.prune import literal
from dv_maintenance.tables.predicate import And, Compare, IsIn, IsNull, Not, Or, Predicate, Unknown, bind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from dv_maintenance.dml.condition import Condition

__all__ = ["bound_predicate"]

_OPERATORS: Final = {"EQ": "=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def bound_predicate(condition: Condition, schema: pa.Schema, zone: str) -> Predicate:
    """What of ``condition`` can be told from the bounds of columns of ``schema``; the rest is ``Unknown``. ``zone``: as
    for ``prune.files_that_may_match``.
    """
    return Unknown() if condition.tree is None else bind(_Translator(schema, zone).predicate(condition.tree), schema)


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
        value = None if field is None else literal(right, field.type, self._zone)
        if field is None or value is None:
            return Unknown()
        return Compare((field.name,), operator, value.as_py())

    def _among(self, column: Any, nodes: Sequence[Any]) -> Predicate:
        field = self._field(column)
        if field is None:
            return Unknown()
        values = [literal(node, field.type, self._zone) for node in nodes]
        if None in values:
            return Unknown()
        return IsIn((field.name,), tuple(value.as_py() for value in values if value is not None))

    def _field(self, node: Any) -> pa.Field | None:
        if type(node).__name__ != "Column" or len(node.parts) != 1:
            return None
        return self._fields.get(node.name.lower())
