"""Columns that are NOT NULL, and rows without a value in one of them.

Engines believe the schema: Spark answers ``IS NULL`` and ``count`` without looking, and fails on rows that it reads.
Such rows come from writers that add a NOT NULL column to a table with rows, or make a column NOT NULL unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from dv_maintenance.errors import MissingValueError
from dv_maintenance.tables.model import REQUIRED


@dataclass(frozen=True, slots=True)
class _Field:
    """``at``: position in its parent. ``stored``: its name in a Parquet schema. ``shown``: its path for messages.
    ``required``: it is NOT NULL. ``inside``: the fields in it that are, or have such fields inside.
    """

    at: int
    name: str
    stored: str
    shown: str
    required: bool
    inside: tuple[_Field, ...]


@dataclass(frozen=True, slots=True)
class Required:
    """What must not be null in a schema: ``columns``, or fields inside them."""

    columns: tuple[_Field, ...]

    @classmethod
    def of(cls, schema: pa.Schema) -> Required | None:
        """``None`` if everything may be null."""
        found = _required(((at, field.name, field.name, field) for at, field in enumerate(schema)), "")
        return cls(found) if found else None

    @property
    def names(self) -> list[str]:
        """The columns, by name."""
        return [column.name for column in self.columns]

    def check_columns(self, lacking: Collection[str], uri: str) -> None:
        """Raise MissingValueError if a NOT NULL column is one of those that the file is ``lacking``."""
        for column in self.columns:
            if column.required and column.name in lacking:
                raise MissingValueError(column.shown, f"{uri} does not have it")

    def check(
        self, batch: pa.RecordBatch, uri: str, error: Callable[[str, str], MissingValueError] = MissingValueError
    ) -> None:
        """Raise MissingValueError if a value is missing in these rows."""
        for column in self.columns:
            if found := _missing(batch.column(column.at), column):
                raise error(found, f"{uri} has rows in which it is null")

    def proven(self, footer: Any, groups: Iterable[int], origins: Mapping[str, int]) -> bool:
        """Whether the footer of a Parquet file proves that no value is missing, not even in deleted rows. ``origins``:
        see ``Projection``.
        """
        chosen = [footer.row_group(number) for number in groups]
        full = [
            f"{path}."
            for path, leaf in origins.items()
            if footer.schema.column(leaf).max_definition_level == 0
            or all(_without_nulls(group.column(leaf)) for group in chosen)
        ]
        # A value in each row below a field is one of the field, too. A dot in a name makes paths ambiguous.
        paths = list(_paths(self.columns))
        return None not in paths and all(any(leaf.startswith(f"{path}.") for leaf in full) for path in paths)


def _required(fields: Iterable[tuple[int, str, str, pa.Field]], parent: str) -> tuple[_Field, ...]:
    found = []
    for at, name, stored, field in fields:
        marked = (field.metadata or {}).get(REQUIRED)
        required, path = marked is not None or not field.nullable, f"{parent}{name}"
        inside = _required(_children(field.type), f"{path}.")
        if required or inside:
            found.append(_Field(at, name, stored, marked.decode() if marked else path, required, inside))
    return tuple(found)


def _children(kind: pa.DataType) -> Iterator[tuple[int, str, str, pa.Field]]:
    if types.is_struct(kind):
        yield from ((at, field.name, field.name, field) for at, field in enumerate(kind))
    elif types.is_map(kind):  # its keys are never null
        yield 1, "value", "key_value.value", kind.item_field
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield 0, "element", "list.element", kind.value_field


def _paths(fields: Iterable[_Field], parent: str = "") -> Iterator[str | None]:
    """Paths in a Parquet schema of what is NOT NULL; ``None`` for one that is not unique."""
    for field in fields:
        path = f"{parent}{field.stored}"
        if "." in field.name:
            yield None
        elif field.required:
            yield path
        yield from _paths(field.inside, f"{path}.")


def _without_nulls(chunk: Any) -> bool:
    stats = chunk.statistics if chunk.is_stats_set else None
    return stats is not None and stats.has_null_count and stats.null_count == 0


def _missing(array: pa.Array, field: _Field) -> str | None:
    """The path of the first field with a missing value. ``array``: without what is in parents that are null."""
    if field.required and array.null_count:
        return field.shown
    if field.inside and array.null_count:
        array = array.filter(array.is_valid())
    found = (_missing(_inside(array, child.at), child) for child in field.inside)
    return next(filter(None, found), None)


def _inside(array: pa.Array, at: int) -> pa.Array:
    if types.is_struct(array.type):
        return array.field(at)
    if types.is_map(array.type):
        start, stop = (array.offsets[end].as_py() for end in (0, -1))
        return array.items.slice(start, stop - start)
    return array.flatten()
