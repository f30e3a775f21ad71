"""Columns that an UPDATE or MERGE carries through Spark without a look at their values.

Spark has no times of day and no nanoseconds, and passes no shapes to Python. The values of a changed row that are not
assigned are only moved: Spark gets them as numbers or bytes that mean the same, under names that no expression knows,
and the writer of the new row gives them their type back. A null can be assigned, and a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types

from dv_maintenance.dml.condition import Condition
from dv_maintenance.errors import RefusedError
from dv_maintenance.tables.model import logical_type
from dv_maintenance.tables.rows import unused

if TYPE_CHECKING:
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.rows import RowRules

_NULL = "NULL"


def carried(schema: pa.Schema, taken: Iterable[str] = ()) -> dict[str, str]:
    """The columns that are carried, each with the name that it has in Spark.

    taken : names that these must not have, besides those of the table's columns.
    """
    known = [*schema.names, *taken]
    found: dict[str, str] = {}
    for field in schema:
        if _lacks(field):
            found[field.name] = unused(f"_dvm_carried_{len(found)}", known)
    return found


def carriers(schema: pa.Schema, names: Mapping[str, str] | None = None) -> pa.Schema:
    """The schema as Spark gets it: carried columns in types that hold their values. ``names``: see :func:`carried`."""
    fields = [_carrier(each) if _lacks(each) else each for each in schema]
    return pa.schema([each.with_name((names or {}).get(each.name, each.name)) for each in fields], schema.metadata)


def check_untouched(
    snapshot: Snapshot, columns: Mapping[str, str], texts: Iterable[str], target: str = "", source: str = ""
) -> None:
    """Refuse expressions that name a carried column. What is not understood here finds no such column in Spark.

    target, source : aliases, which may be before a name.

    Raises
    ------
    RefusedError : names the column.
    """
    for sql in texts if columns else ():
        named = {*_named(sql, target.lower(), source.lower())}
        if name := next((each for each in columns if each.lower() in named), None):
            raise RefusedError(
                f"an expression names column {name}, which holds {_what(snapshot.schema.field(name))}: {sql}",
                at=snapshot,
                next_step="leave it out: rows keep what they have there; or use the engine that wrote the table",
            )


def _named(sql: str, target: str, source: str) -> Iterator[str]:
    """Names that may be those of the table's columns, in lower case."""
    from sqlglot import exp

    tree = Condition.parse(sql, ()).tree
    for column in () if tree is None else tree.find_all(exp.Column):
        first, *others = [part.name.lower() for part in column.parts]
        if not others or first not in {target, source}:
            yield first
        elif first == target:
            yield others[0]


def check_assigned(snapshot: Snapshot, rules: RowRules, columns: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Refuse values of carried columns, but for null and a default that the table's rules give as Spark carries it.
    Raises RefusedError: names the column.
    """
    for name in columns:
        sql = values.get(name, _NULL)
        if sql.strip().upper() != _NULL and not (rules.spark_rules and sql == rules.defaults.get(name)):
            raise RefusedError(
                f"column {name} can't be assigned: it holds {_what(snapshot.schema.field(name))}",
                at=snapshot,
                next_step="assign NULL or DEFAULT, leave it out, or use the engine that wrote the table",
            )


def check_rules(snapshot: Snapshot, rules: RowRules, columns: Mapping[str, str]) -> None:
    """Refuse a table whose constraints or generated columns need a carried column. Raises RefusedError."""
    if rules.spark_rules:  # they only ask for nulls
        return
    check_untouched(snapshot, columns, [*rules.checks.values(), *rules.generated.values()])
    for name in columns:
        if name in rules.generated or name in snapshot.partition_columns:
            raise RefusedError(
                f"column {name}, by which rows are partitioned or which the table generates, holds "
                f"{_what(snapshot.schema.field(name))}",
                at=snapshot,
                next_step="use the engine that wrote the table",
            )


def _lacks(field: pa.Field) -> bool:
    kind = field.type
    if logical_type(field) == "geo" or types.is_time(kind) or (types.is_timestamp(kind) and kind.unit == "ns"):
        return True
    return any(_lacks(kind.field(at)) for at in range(kind.num_fields))


def _what(field: pa.Field) -> str:
    """What Spark lacks of it."""
    kind = field.type
    if logical_type(field) == "geo":
        return "shapes"
    if types.is_time(kind):
        return "times of day"
    if types.is_timestamp(kind) and kind.unit == "ns":
        return "nanoseconds"
    return next((found for at in range(kind.num_fields) if (found := _what(kind.field(at)))), "")


def _carrier(field: pa.Field) -> pa.Field:
    kind, logical = field.type, logical_type(field)
    if logical == "geo":
        return pa.field(field.name, pa.binary(), field.nullable)
    if types.is_time(kind) or (types.is_timestamp(kind) and kind.unit == "ns"):
        return pa.field(field.name, pa.int64(), field.nullable)
    if logical:
        return field
    if types.is_struct(kind):
        return field.with_type(pa.struct([_carrier(each) for each in kind]))
    if types.is_map(kind):
        return field.with_type(pa.map_(_carrier(kind.key_field), _carrier(kind.item_field)))
    if types.is_list(kind):
        return field.with_type(pa.list_(_carrier(kind.value_field)))
    return field
