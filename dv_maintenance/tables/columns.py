"""Columns by name: what a reader asks for, and the names of nested columns, in the same way for every format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from dv_maintenance.errors import UsageError
from dv_maintenance.tables.model import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PART: Final = re.compile(r"`((?:[^`]|``)*)`|([^`.]+)")


def check_columns(columns: Sequence[str], names: Collection[str], snapshot: Snapshot) -> None:
    """Raises UsageError: a column is not among the ``names``, or is named twice."""
    wrong = [name for name in columns if name not in names]
    wrong += [name for name, times in Counter(columns).items() if times > 1]
    if wrong:
        raise UsageError(
            f"no column {wrong[0]!r} in the table" if wrong[0] not in names else f"column {wrong[0]!r} is named twice",
            at=snapshot,
            next_step=f"choose from {', '.join(names)}",
        )


def selected(columns: Sequence[str] | None, snapshot: Snapshot) -> pa.Schema:
    """The schema of these columns, by default of all. Raises UsageError."""
    import pyarrow as pa

    if columns is None:
        return snapshot.schema
    check_columns(columns, snapshot.schema.names, snapshot)
    return pa.schema([snapshot.schema.field(name) for name in columns], snapshot.schema.metadata)


def quoted(path: Sequence[str]) -> str:
    """A column as Spark quotes it.

    >>> quoted(["a", "b c"])
    'a.`b c`'
    """
    return ".".join(name if _PLAIN.fullmatch(name) else _ticked(name) for name in path)


def _ticked(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def text_of(path: Sequence[str], schema: pa.Schema) -> str:
    """One name for a column of the schema, which :func:`path_of` takes apart: a top-level one as it is."""
    text = path[0] if len(path) == 1 else quoted(path)
    return ".".join(map(_ticked, path)) if len(path) > 1 and text in schema.names else text


def path_of(text: str, schema: pa.Schema) -> tuple[str, ...]:
    """The inverse of :func:`text_of`."""
    if text in schema.names:
        return (text,)
    return tuple(ticked.replace("``", "`") or plain for ticked, plain in _PART.findall(text)) or (text,)


def field_at(path: Sequence[str], schema: pa.Schema) -> pa.Field:
    """A column, or a field of one. Raises KeyError if there is none."""
    field = schema.field(path[0])
    for name in path[1:]:
        field = field.type.field(name)
    return field
