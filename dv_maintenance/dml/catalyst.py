"""Spark's analysis of a condition, as a predicate by which files and row groups can be skipped.

Spark's own analyzer and optimizer read the condition, with the session's settings (ANSI, case, time zone, quoting,
types of literals) and every cast that Spark inserts. Only comparisons of a column with a literal of exactly its type
are used. Everything else is ``Unknown``. Spark Connect shows no plans, so there every condition is ``Unknown``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dv_maintenance.dml.padding import as_in_catalog
from dv_maintenance.dml.spark_types import spark_schema
from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.predicate import (
    And,
    Compare,
    IsIn,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    StartsWith,
    Unknown,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from dv_maintenance.tables.model import Snapshot

_OPERATORS: Final[Mapping[str, Operator]] = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_MIRRORED: Final[Mapping[Operator, Operator]] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NO_ROWS: Final = Or(())
# The maximum number of nodes that are inspected in a plan's conditions: each costs some calls into the JVM.
_MAX_NODES: Final = 400
_SEPARATOR: Final = "\x00"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def shape(session: SparkSession, schema: pa.Schema) -> DataFrame:
    """An empty DataFrame with the columns of ``schema`` as in ``rows.live_rows``, used to plan conditions.

    Raises
    ------
    RefusedError : Spark does not know the type of a column.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    types = from_arrow_schema(spark_schema(schema), prefer_timestamp_ntz=True)
    return as_in_catalog(session.range(1).mapInArrow(_no_rows_of_the_table, types), schema)


def _no_rows_of_the_table(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.slice(0, 0) for batch in batches)


def predicate_of(session: SparkSession, schema: pa.Schema, sql: str) -> Predicate:
    """The part of a condition that can be decided from the bounds of columns of ``schema``.

    Raises
    ------
    Spark's errors if it does not understand the condition or can't compute a part of it, and the errors of ``shape``.
    """
    return demanded_by(shape(session, schema).where(sql))


def demanded_by(rows: DataFrame) -> Predicate:
    """The predicate that rows of a ``shape`` must fulfil to affect a query over it. Raises Spark's errors."""
    query = _query(rows)
    if query is None:
        return Unknown()
    plan = query.optimizedPlan()
    if _name(plan) == "LocalRelation":
        return _NO_ROWS if plan.data().isEmpty() else Unknown()
    found = _of_plan(plan)
    return Unknown() if found is None else And(tuple(found))


def check_condition(rows: DataFrame, snapshot: Snapshot, sql: str, *, subqueries: bool = False) -> bool:
    """Whether a condition certainly gives equal results for equal rows. Spark Connect does not say.

    rows : a query that filters or joins by the condition, last of all.
    subqueries : whether the table's engine takes them there. It takes nothing random.

    Raises
    ------
    RefusedError : the table's engine refuses the condition.
    """
    query = _query(rows)
    if query is None:
        return False
    if not subqueries and not query.analyzed().subqueries().isEmpty():
        what = f"a condition has a subquery, which the table's engine refuses: {sql}"
        raise _refused(snapshot, what, "write the rows that it finds to a table, and merge or delete by that")
    _check_repeatable(query.analyzed(), snapshot, [sql])
    return True


def check_values(rows: DataFrame, snapshot: Snapshot, values: Mapping[str, str]) -> None:
    """Refuse values that differ from run to run. ``rows``: what the values may name. Raises RefusedError."""
    from pyspark.sql import functions as f

    query = _query(rows.select(*map(f.expr, values.values())))
    if query is not None:
        _check_repeatable(query.analyzed(), snapshot, [*values.values()])


def _check_repeatable(plan: Any, snapshot: Snapshot, texts: Sequence[str]) -> None:
    expressions = plan.expressions()
    for at in range(min(expressions.size(), len(texts))):
        if not expressions.apply(at).deterministic():
            what = f"an expression is not deterministic, which the table's engine refuses: {texts[at]}"
            raise _refused(snapshot, what, "write its results to a table, and merge or delete by that")


def _refused(snapshot: Snapshot, what: str, next_step: str) -> RefusedError:
    return RefusedError(what, at=snapshot, next_step=next_step)


def _query(rows: DataFrame) -> Any:
    frame = getattr(rows, "_jdf", None)  # PySpark has no public API for a plan
    return None if frame is None else frame.queryExecution()


def _of_plan(plan: Any) -> list[Predicate] | None:
    """Conditions directly on the shape; ``None``: this part of the plan does not contain the shape."""
    name = _name(plan)
    if name == "MapInArrow":
        return [] if plan.functionExpr().name() == _no_rows_of_the_table.__name__ else None
    children = plan.children()
    for at in range(children.size()):
        found = _of_plan(children.apply(at))
        if found is None:
            continue
        leaf = _leaf(children.apply(at))
        return [*found, _Translator.of(leaf).predicate(plan.condition())] if name == "Filter" and leaf else found
    return None


def _leaf(plan: Any) -> Any:
    """The shape, if there are only conditions on top of it."""
    while _name(plan) == "Filter":
        plan = plan.child()
    return plan if _name(plan) == "MapInArrow" else None


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


@dataclass(slots=True)
class _Translator:
    """``columns`` by their Spark expression id."""

    columns: Mapping[int, str]
    nodes: int = field(default=0)

    @classmethod
    def of(cls, leaf: Any) -> _Translator:
        output = leaf.output()
        attributes = [output.apply(at) for at in range(output.size())]
        return cls({each.exprId().id(): each.name() for each in attributes})

    def predicate(self, node: Any) -> Predicate:
        self.nodes += 1
        name = _name(node)
        if self.nodes > _MAX_NODES:
            return Unknown()
        if name in ("And", "Or"):
            return (And if name == "And" else Or)((self.predicate(node.left()), self.predicate(node.right())))
        if name == "Not":
            return Not(self.predicate(node.child()))
        if name in ("IsNull", "IsNotNull"):
            column = self._column(node.child())
            if column is None:
                return Unknown()
            return IsNull((column,)) if name == "IsNull" else Not(IsNull((column,)))
        if name in _OPERATORS or name == "EqualNullSafe":
            return self._comparison(name, node.left(), node.right())
        if name in ("In", "InSet"):
            return self._among(name, node)
        if name == "StartsWith":
            return self._prefix(node)
        if name == "Literal":
            value = node.value()
            return And(()) if value is True else _NO_ROWS if value is False else Unknown()
        column = self._column(node)
        return Unknown() if column is None else Compare((column,), "=", True)

    def _comparison(self, name: str, left: Any, right: Any) -> Predicate:
        operator: Operator = _OPERATORS.get(name, "=")
        if _name(left) == "Literal":
            left, right, operator = right, left, _MIRRORED[operator]
        column = self._column(left)
        value = None if column is None else _literal(right, _type(left))
        if column is None or value is None:
            return Unknown()
        compared = Compare((column,), operator, value)
        return And((Not(IsNull((column,))), compared)) if name == "EqualNullSafe" else compared

    def _among(self, name: str, node: Any) -> Predicate:
        tested = node.child() if name == "InSet" else node.value()
        column = self._column(tested)
        if column is None:
            return Unknown()
        kind = _type(tested)
        if name == "InSet":
            values = _members(node.hset(), kind)
        else:
            among = node.list()
            self.nodes += among.size()
            if self.nodes > _MAX_NODES:
                return Unknown()
            values = [_literal(among.apply(at), kind) for at in range(among.size())]
        return Unknown() if values is None or None in values else IsIn((column,), tuple(values))

    def _prefix(self, node: Any) -> Predicate:
        column = self._column(node.left())
        prefix = None if column is None else _literal(node.right(), _type(node.left()))
        return StartsWith((column,), prefix) if column is not None and isinstance(prefix, str) else Unknown()

    def _column(self, node: Any) -> str | None:
        return self.columns.get(node.exprId().id()) if _name(node) == "AttributeReference" else None


def _type(node: Any) -> str:
    return str(node.dataType().catalogString())


def _literal(node: Any, kind: str) -> Any:
    """The value of a literal of exactly this type; ``None`` if the node is not such a literal, or is null."""
    if _name(node) != "Literal" or _type(node) != kind or (value := node.value()) is None:
        return None
    return value if isinstance(value, bytes | bool) else _value(str(value), kind)


def _members(values: Any, kind: str) -> list[Any] | None:
    """The elements of a set in the JVM, read in one call."""
    if kind in ("binary", "boolean") or values.contains(None):
        return None
    texts = values.mkString(_SEPARATOR).split(_SEPARATOR)
    return [_value(text, kind) for text in texts] if len(texts) == values.size() else None


def _value(text: str, kind: str) -> Any:
    """From Catalyst's internal value as Java writes it, in the form that ``predicate.comparable`` takes."""
    try:
        if kind in ("tinyint", "smallint", "int", "bigint"):
            return int(text)
        if kind == "double":
            return float(text)
        if kind == "float":
            return float(np.float32(text))
        if kind.startswith("decimal("):
            return Decimal(text)
        if kind == "string":
            return None if "\ufffd" in text else text  # may replace bytes that are not valid text
        if kind == "date":
            return date(1970, 1, 1) + timedelta(days=int(text))
        if kind in ("timestamp", "timestamp_ntz"):
            moment = _EPOCH + timedelta(microseconds=int(text))
            return moment if kind == "timestamp" else moment.replace(tzinfo=None)
    except (ValueError, ArithmeticError):
        pass
    return None
