"""Columns that an UPDATE or MERGE carries through Spark without a look at their values.

Spark has no times of day and no nanoseconds, and passes no shapes to Python. The values of a changed row that are not
assigned are only moved: Spark gets them as numbers or bytes that mean the same, under names that no expression knows,
and the writer of the new row gives them their type back. A null can be assigned, and a default. What expressions can
do with shapes is in ``shapes``.
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


def unseen(schema: pa.Schema, columns: Mapping[str, str]) -> dict[str, str]:
    """Of carried columns, those that no expression can name in any session: all but those of shapes alone."""
    return {name: carrier for name, carrier in columns.items() if not only_shapes(schema.field(name))}


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
        if name := touched(sql, columns, target, source):
            raise refused(snapshot, name, sql)


def touched(sql: str, columns: Iterable[str], target: str = "", source: str = "") -> str | None:
    """One of the ``columns`` that an expression names, as far as it is understood here."""
    named = {*_named(sql, target.lower(), source.lower())}
    return next((each for each in columns if each.lower() in named), None)


def refused(snapshot: Snapshot, name: str, sql: str, why: str = "", next_step: str = "") -> RefusedError:
    """An expression names a carried column."""
    return RefusedError(
        f"an expression names column {name}, which holds {_what(snapshot.schema.field(name))}{why}: {sql}",
        at=snapshot,
        next_step=next_step or "leave it out: rows keep what they have there; or use the engine that wrote the table",
    )


def refused_value(snapshot: Snapshot, name: str, why: str = "", next_step: str = "") -> RefusedError:
    """A carried column gets a new value."""
    return RefusedError(
        f"column {name} can't be assigned: it holds {_what(snapshot.schema.field(name))}{why}",
        at=snapshot,
        next_step=next_step or "assign NULL or DEFAULT, leave it out, or use the engine that wrote the table",
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


def assigned(rules: RowRules, columns: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """The carried columns with a new value, but for null and a default that the table's rules give as Spark carries
    it.
    """

    def is_new(name: str) -> bool:
        sql = values.get(name, _NULL)
        return sql.strip().upper() != _NULL and not (rules.spark_rules and sql == rules.defaults.get(name))

    return [*filter(is_new, columns)]


def check_assigned(snapshot: Snapshot, rules: RowRules, columns: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Refuse values of carried columns, see :func:`assigned`. Raises RefusedError: names the column."""
    for name in assigned(rules, columns, values):
        raise refused_value(snapshot, name)


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


def holds_shapes(field: pa.Field) -> bool:
    """Whether shapes are in the column, at any depth."""
    kind = field.type
    return logical_type(field) == "geo" or any(holds_shapes(kind.field(at)) for at in range(kind.num_fields))


def only_shapes(field: pa.Field) -> bool:
    """Whether the column is carried for the shapes in it alone."""

    def others(field: pa.Field) -> bool:
        if logical_type(field) == "geo":
            return False
        kind = field.type
        return any(others(kind.field(at)) for at in range(kind.num_fields)) if kind.num_fields else _lacks(field)

    return holds_shapes(field) and not others(field)


def _what(field: pa.Field) -> str:
    """What Spark lacks of it."""
    return " and ".join(dict.fromkeys(_kinds(field)))


def _kinds(field: pa.Field) -> Iterator[str]:
    kind = field.type
    if logical_type(field) == "geo":
        yield "shapes"
    elif types.is_time(kind):
        yield "times of day"
    elif types.is_timestamp(kind) and kind.unit == "ns":
        yield "nanoseconds"
    for at in range(kind.num_fields):
        yield from _kinds(kind.field(at))


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
