"""What UPDATE and MERGE assign: columns, fields of structs, and DEFAULT.

A field is set as delta-spark and Iceberg set it: its struct is built again, with the present values of the other
fields. So a struct that was null is one with nulls in the other fields afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dv_maintenance.dml.names import alike, parts_of, quoted
from dv_maintenance.errors import RefusedError, UsageError
from dv_maintenance.tables.model import Snapshot
from dv_maintenance.tables.rows import RowRules

_Tree = dict[str, Any]
"""By name, the SQL of a column or field, or the tree of the fields in it."""


def assignments(
    snapshot: Snapshot, rules: RowRules, given: Mapping[str, str], *, target: str = "", fields: bool = True
) -> dict[str, str]:
    """The SQL of each column that ``given`` assigns, or one of whose fields it assigns, under the table's spelling.

    target : the table's alias, which may be before a name.
    fields : whether fields of structs may be assigned.

    Raises
    ------
    UsageError : a column or field does not exist, or is assigned twice.
    RefusedError : the table computes the column itself, or assignment to it is not supported.
    """
    tree: _Tree = {}
    for name, sql in given.items():
        path = _path(name, snapshot.schema, target)
        if not path or (len(path) > 1 and not fields) or not _added(tree, path, sql):
            raise UsageError(
                f"column {name!r} does not exist or is assigned twice",
                at=snapshot,
                next_step=f"choose from {', '.join(snapshot.schema.names)}"
                f"{', or a field of a struct among them' if fields else ''}",
            )
    _check_assignable(snapshot, rules, tree)
    return {
        name: _struct(snapshot.schema.field(name).type, value, (*filter(None, (target,)), name))
        if isinstance(value, dict)
        else rules.defaults.get(name, "NULL")
        if value.strip().upper() == "DEFAULT" and not alike("default", snapshot.schema.names)
        else value
        for name, value in tree.items()
    }


def _path(text: str, schema: pa.Schema, target: str) -> list[str]:
    """The column, then the fields inside it, as the table spells them. Empty if there is no such column or field."""
    parts = parts_of(text)
    for whole in (text, *(parts if len(parts) == 1 else ())):
        if len(names := alike(whole, schema.names)) == 1:
            return names
    if target and len(parts) > 1 and parts[0].lower() == target.lower():
        parts = parts[1:]
    found: list[str] = []
    within: Any = schema
    for part in parts:
        if not isinstance(within, pa.Schema) and not pa.types.is_struct(within):
            return []
        names = alike(part, [each.name for each in within])
        if len(names) != 1:
            return []
        found.append(names[0])
        within = within.field(names[0]).type
    return found


def _added(tree: _Tree, path: list[str], sql: str) -> bool:
    """Whether neither the path, nor what is above it, nor anything below it has been assigned."""
    *above, last = path
    for each in above:
        below: Any = tree.setdefault(each, {})
        if not isinstance(below, dict):
            return False
        tree = below
    if last in tree:
        return False
    tree[last] = sql
    return True


def _struct(kind: pa.StructType, tree: _Tree, place: tuple[str, ...]) -> str:
    """The SQL of the struct at ``place`` with the fields of ``tree``."""
    parts = []
    for field in kind:
        here, value = (*place, field.name), tree.get(field.name)
        literal = field.name.replace("\\", "\\\\").replace("'", "\\'")
        kept = quoted(*here) if value is None else value
        inner = _struct(field.type, value, here) if isinstance(value, dict) else kept
        parts.append(f"'{literal}', {inner}")
    return f"named_struct({', '.join(parts)})"


def _check_assignable(snapshot: Snapshot, rules: RowRules, tree: _Tree) -> None:
    reasons = {
        **dict.fromkeys(rules.generated, "the table generates it"),
        **dict.fromkeys(rules.identity, "the table numbers it (identity column)"),
        **rules.fixed,
    }
    for column in tree:
        reason = next((why for name, why in reasons.items() if column in (name, name.split(".")[0])), None)
        if reason:
            raise RefusedError(
                f"column {column} can't be assigned: {reason}",
                at=snapshot,
                next_step="leave it out, or use the engine that wrote the table",
            )
