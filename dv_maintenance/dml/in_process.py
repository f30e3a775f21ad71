"""Conditions that this process evaluates as Spark does, and the rows for which they are true.

They are a small part of Spark SQL whose meaning hangs neither on a session's settings nor on how Spark types literals:
columns compared with literals of their own kind, IN, BETWEEN, IS NULL, and AND, OR and NOT of these. Times are left to
Spark, because they need a time zone, and so are floats, because Arrow compares NaN by other rules, and CHARs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.dml import uuids
from dv_maintenance.dml.names import alike
from dv_maintenance.dml.padding import char_length
from dv_maintenance.dml.prune import files_that_may_match
from dv_maintenance.dml.rows import no_column, numbered_rows
from dv_maintenance.dv import DeletionVector
from dv_maintenance.engine.auto import IN_PROCESS, AutoEngine
from dv_maintenance.engine.cores import default_threads
from dv_maintenance.engine.local import LocalEngine
from dv_maintenance.engine.rows.filtering import NotHereError, evaluate
from dv_maintenance.errors import UsageError
from dv_maintenance.tables.model import logical_type
from dv_maintenance.tables.predicate import And, Compare, IsIn, IsNull, Not, Operator, Or, Predicate, bind, columns_of
from dv_maintenance.tables.rows import unused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import RowLevelTable
    from dv_maintenance.tables.work import ScanTask

_UNDERSTOOD: Final = (
    "it knows columns of integers, decimals, text, UUIDs, dates and booleans, compared with literals by =, <>, <, <=, "
    ">, >=, IN, BETWEEN and IS NULL, and AND, OR and NOT of these"
)

# What Spark's parser may read differently: other quotes, escapes, comments, parameters, a lone !, a second statement.
_ODD: Final = re.compile(r"""["\\$;{@:]|--|/\*|!(?!=)""")
_CASES: Final = "spark.sql.caseSensitive"
_INTEGER: Final = re.compile(r"[0-9]{1,18}")
_DECIMAL: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class _OtherError(Exception):
    """A condition, or a part of one, that needs Spark."""


def predicate_here(
    engine: SparkSession | Engine, table: RowLevelTable, snapshot: Snapshot, sql: str
) -> Predicate | None:
    """The condition, bound to the snapshot's columns, if it is to be evaluated in this process; ``None``: by Spark.

    ``LocalEngine`` has no Spark. Otherwise a condition that does not need Spark does without it where there is little
    to read: one job of a warm session takes longer than 10 million rows do here.

    Raises
    ------
    UsageError : there is no Spark to evaluate it; a column does not exist.
    """
    if isinstance(engine, LocalEngine):
        predicate = exact_predicate(sql, snapshot.schema)
        if predicate is None:
            raise UsageError(
                f"the {engine.name} engine can't evaluate this condition: {_UNDERSTOOD}",
                at=snapshot,
                next_step="run this verb on the Spark engine, or write the condition with these",
            )
        return predicate
    predicate = exact_predicate(sql, snapshot.schema)
    if predicate is None or (_tells_cases_apart(engine) and not _spelt_alike(sql, snapshot.schema.names)):
        return None
    files = files_that_may_match(table, snapshot, predicate).files
    limit = engine.in_process if isinstance(engine, AutoEngine) else IN_PROCESS
    return predicate if (pc.sum(files["size"]).as_py() or 0) <= limit else None


def _tells_cases_apart(engine: SparkSession | Engine) -> bool:
    """Whether names of another case are other names to Spark. Of an engine without a session, what it will start with
    decides.
    """
    from dv_maintenance.engine.spark import SparkEngine

    engine = engine.spark if isinstance(engine, AutoEngine) else engine
    if isinstance(engine, SparkEngine):
        found = engine.setting(_CASES)
    else:
        conf = getattr(engine, "conf", None)  # a session's
        found = None if conf is None else conf.get(_CASES)
    return found is not None and found.lower() == "true"


def _spelt_alike(sql: str, names: Collection[str]) -> bool:
    """Whether a condition that ``exact_predicate`` knows spells all columns as the table does."""
    import sqlglot

    tree = sqlglot.parse_one(sql, dialect="spark")
    return {each.name for each in tree.find_all(sqlglot.exp.Column)} <= {*names}


def exact_predicate(sql: str, schema: pa.Schema) -> Predicate | None:
    """The condition, bound to the columns of ``schema``; ``None`` if only Spark can evaluate it.

    Raises
    ------
    UsageError : it names a column that does not exist.
    """
    import sqlglot

    if _ODD.search(sql):
        return None
    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except (sqlglot.errors.SqlglotError, RecursionError):
        return None
    with suppress(_OtherError, NotHereError, RecursionError):
        predicate = bind(_predicate(tree, schema), pa.schema([_comparable(field) for field in schema]))
        evaluate(pa.RecordBatch.from_pylist([], columns_in(predicate, schema)), predicate)
        return predicate
    return None


def _comparable(field: pa.Field) -> pa.Field:
    """UUIDs compare as their bytes do. Bounds of files are bound to the table's own types, by which they do not."""
    return field.with_type(pa.binary()) if logical_type(field) == "uuid" else field


def columns_in(predicate: Predicate, schema: pa.Schema) -> pa.Schema:
    """The columns of ``schema`` that a bound predicate names."""
    named = {column[0] for column in columns_of(predicate)}
    return pa.schema([field for field in schema if field.name in named])


def true_for(rows: pa.RecordBatch, predicate: Predicate) -> pa.RecordBatch:
    """The rows for which a predicate of ``predicate_here`` is true."""
    return rows.filter(evaluate(rows, predicate))


def positions_here(task: ScanTask, predicate: Predicate, options: Mapping[str, str] | None) -> DeletionVector:
    """Positions of the live rows of the task's only source for which a predicate of ``predicate_here`` is true.

    Raises
    ------
    DamagedTableError, StorageError : see ``rows.numbered_rows``.
    """
    names = unused("_dvm_file", task.schema.names), unused("_dvm_row", task.schema.names)
    batches = numbered_rows(0, task, dict(options or {}), predicate, names=names)
    found = [np.asarray(true_for(batch, predicate).column(1)) for batch in batches]
    return DeletionVector.from_positions(np.concatenate([np.empty(0, np.int64), *found]))


def all_positions_here(
    tasks: Sequence[ScanTask], predicate: Predicate, options: Mapping[str, str] | None
) -> dict[int, DeletionVector]:
    """``positions_here`` by the index of the task, for those with such rows."""
    with ThreadPoolExecutor(default_threads()) as pool:
        found = pool.map(lambda task: positions_here(task, predicate, options), tasks)
        return {at: dv for at, dv in enumerate(found) if len(dv)}


# -- from the syntax tree ----------------------------------------------------------------------------------------------


def _predicate(node: Any, schema: pa.Schema) -> Predicate:
    from sqlglot import exp

    operators: Mapping[type, Operator] = {exp.EQ: "=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
    mirrored: Mapping[Operator, Operator] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
    kind = type(node)
    if kind is exp.Paren:
        return _predicate(node.this, schema)
    if kind in (exp.And, exp.Or):
        parts = _predicate(node.left, schema), _predicate(node.right, schema)
        return And(parts) if kind is exp.And else Or(parts)
    if kind is exp.Not:
        return Not(_predicate(node.this, schema))
    if kind is exp.Boolean:
        return And(()) if node.this else Or(())
    if kind is exp.Column:
        field = _column(node, schema)
        if not types.is_boolean(field.type):
            raise _OtherError
        return Compare((field.name,), "=", True)
    if kind is exp.NEQ:
        return Not(_predicate(exp.EQ(this=node.left, expression=node.right), schema))
    if kind in operators:
        operator = operators[kind]
        if type(node.left) is exp.Column:
            field, value = _column(node.left, schema), node.right
        else:
            field, value, operator = _column(node.right, schema), node.left, mirrored[operator]
        return Compare((field.name,), operator, _literal(value, field))
    if kind is exp.Between and not node.args.get("symmetric"):
        field = _column(node.this, schema)
        ends: Sequence[tuple[Operator, Any]] = ((">=", node.args["low"]), ("<=", node.args["high"]))
        return And(tuple(Compare((field.name,), operator, _literal(end, field)) for operator, end in ends))
    if kind is exp.In and set(node.args) <= {"this", "expressions"} and node.expressions:
        field = _column(node.this, schema)
        return IsIn((field.name,), tuple(_literal(each, field) for each in node.expressions))
    if kind is exp.Is and type(node.expression) is exp.Null:
        return IsNull((_column(node.this, schema).name,))
    raise _OtherError


def _column(node: Any, schema: pa.Schema) -> pa.Field:
    from sqlglot import exp

    if type(node) is not exp.Column or len(node.parts) != 1:
        raise _OtherError
    found = alike(node.name, schema.names)
    if not found:
        raise no_column(node.name, schema.names)
    if len(found) > 1:
        raise _OtherError
    return schema.field(found[0])


def _literal(node: Any, field: pa.Field) -> Any:
    """The value of a literal that Spark compares with the column's values without changing either."""
    from sqlglot import exp

    minus = type(node) is exp.Neg
    node = node.this if minus else node
    if types.is_boolean(field.type) and type(node) is exp.Boolean and not minus:
        return bool(node.this)
    if types.is_date(field.type) and type(node) is exp.Cast and node.to.this is exp.DataType.Type.DATE:
        node = node.this
    if type(node) is not exp.Literal:
        raise _OtherError
    text = str(node.this)
    if node.is_string:
        if minus or "'" in text:
            raise _OtherError
        if types.is_date(field.type) and _DATE.fullmatch(text):
            with suppress(ValueError):
                return date.fromisoformat(text)
        if types.is_string(field.type) and char_length(field) is None:
            return text
        if logical_type(field) == "uuid":
            with suppress(ValueError):
                if uuids.canonical(text) == text:  # Spark compares texts
                    return UUID(text).bytes
    elif types.is_integer(field.type) and _INTEGER.fullmatch(text):
        return -int(text) if minus else int(text)
    elif types.is_decimal(field.type) and _DECIMAL.fullmatch(text):
        return -Decimal(text) if minus else Decimal(text)
    raise _OtherError
