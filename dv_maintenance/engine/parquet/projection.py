"""From the schema of one Parquet file to the schema of the table: which leaves to read, and how to convert them.

A file keeps the schema with which it was written. Its columns are found by field id or by name at every level. Missing
columns are read as null, columns that the table no longer has are not read, and narrower types are widened. The two
schemas decide all of this, before any data is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.parquet.calendars import FileCalendar
from dv_maintenance.engine.parquet.int96 import BYTES, holds_marked, in_bytes
from dv_maintenance.engine.parquet.widening import Convert, same, widening
from dv_maintenance.engine.rows.values import scalar_of
from dv_maintenance.errors import DamagedTableError, RefusedError
from dv_maintenance.files.map_entries import fields_of, is_entries, is_map, joined, parts_of
from dv_maintenance.files.variants import TYPED, MalformedVariantError, can_be_put_together, put_together
from dv_maintenance.remedies import Remedy, setting
from dv_maintenance.tables.work import DEFAULT, NAMES

# Parquet's and Avro's, as Arrow and this package name it, and ORC's.
_FIELD_ID = b"PARQUET:field_id"
_ORC_ID = b"iceberg.id"
_SOURCE_NAME = b"dvm:source"
_MATCH = b"dvm:match"
# What to do about values for which Arrow has no type.
_NO_TYPE = Remedy("leave the column out with {}, or read the table with its own engine", (setting("columns"),))

# The two fields of a stored variant. If there is a typed value as well, it alone holds a part of the variant.
_VARIANT = {"value", "metadata"}


@dataclass(frozen=True, slots=True)
class Projection:
    """How batches of one file become batches of ``schema``.

    leaves : indexes of the Parquet leaf columns to read, ascending; batches must have exactly these.
    fields : indexes of the file's columns that these leaves belong to, ascending.
    origins : index of the file's leaf for each leaf of ``schema`` that the file stores, by its dotted path in a Parquet
        schema.
    hybrid : the file's leaves whose values are in another calendar than the table's.
    lacking : columns of ``schema`` that the file does not have, and that are null in all rows for this reason.
    """

    schema: pa.Schema
    leaves: tuple[int, ...]
    fields: tuple[int, ...]
    origins: Mapping[str, int]
    hybrid: frozenset[int]
    lacking: frozenset[str]
    # Per field of `schema`: position in the batch read and what to do with it, or the one value of all rows.
    _columns: tuple[tuple[int, Convert] | pa.Scalar, ...]

    @classmethod
    def build(
        cls,
        stored: pa.Schema,
        schema: pa.Schema,
        *,
        match_by: str,
        constants: Mapping[str, Any],
        file: str,
        found_by: pa.Schema | None = None,
        calendar: FileCalendar | None = None,
    ) -> Projection:
        """Match the schemas of a file and a task.

        stored : Arrow schema of all the file's leaves.
        schema : the wanted schema.
        found_by : schema whose field metadata identifies the columns in files, if not ``schema`` itself.
        calendar : of the file's dates and timestamps, if it is not the table's.

        Raises
        ------
        DamagedTableError : a type can't be widened, a name or id occurs twice, or required ids are missing. Names
            ``file`` and the column.
        RefusedError : a variant that is shredded into types that no variant has; or a file without ids, whose columns
            ``work.NAMES`` does not name.
        """
        wanted = [field for field in schema if field.name not in constants]
        if found_by is not None:
            wanted = [_found_as(field, found_by.field(field.name)) for field in wanted]
        names: Mapping[str, Sequence[str]] | None = None
        if match_by == "id" and wanted and not any(_field_id(field) for field in stored):
            names = _names(schema, file)
        binder = _Binder(match_by, file, calendar, names, stores_times=any(map(holds_marked, schema)))
        children = binder.children(list(stored), wanted, first_leaf=0, path=())
        positions = {index: position for position, index in enumerate(children.read)}
        found = [None if child is None else (positions[child[0]], child[1]) for child in children.found]
        by_name = {field.name: child for field, child in zip(wanted, found, strict=True)}
        columns: list[tuple[int, Convert] | pa.Scalar] = []
        for field in schema:
            child = by_name.get(field.name)
            if child is None:
                constant = constants.get(field.name) if field.name in constants else _default(field)
                columns.append(scalar_of(constant, field.type, field.name))
            else:
                columns.append(child)
        leaves = tuple(children.leaves)
        lacking = frozenset(
            name for name, child in by_name.items() if child is None and _default(schema.field(name)) is None
        )
        return cls(schema, leaves, children.read, binder.origins, frozenset(binder.hybrid), lacking, tuple(columns))

    @property
    def as_stored(self) -> list[str]:
        """The columns of ``schema`` whose values are those of the file, without a conversion."""
        pairs = zip(self.schema.names, self._columns, strict=True)
        return [name for name, column in pairs if isinstance(column, tuple) and column[1] is same]

    def __call__(self, batch: pa.RecordBatch | None, rows: int) -> pa.RecordBatch:
        """``rows`` rows of ``schema``; a column that was read as a dictionary remains one. ``batch`` may be ``None`` if
        no column is read.
        """
        arrays = []
        for field, column in zip(self.schema, self._columns, strict=True):
            if isinstance(column, pa.Scalar):
                arrays.append(pa.repeat(column, rows) if column.is_valid else pa.nulls(rows, field.type))
            else:
                assert batch is not None, "a column is read from nothing"
                position, convert = column
                arrays.append(convert(batch.column(position)))
        schema = self.schema
        for index, array in enumerate(arrays):
            if types.is_dictionary(array.type):
                schema = schema.set(index, schema.field(index).with_type(array.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True)
class _Children:
    """The children of a column that are read.

    found : for each wanted field, the index of the stored one and its conversion; ``None`` if the file lacks the field.
    leaves : leaves to read for them, ascending.
    read : indexes of the stored fields that these leaves belong to, ascending.
    """

    found: tuple[tuple[int, Convert] | None, ...]
    leaves: list[int]
    read: tuple[int, ...]


class _Binder:
    """Walks the two schemas together. Leaves are numbered depth first, as Parquet stores them."""

    def __init__(
        self,
        match_by: str,
        file: str,
        calendar: FileCalendar | None,
        names: Mapping[str, Sequence[str]] | None = None,
        *,
        stores_times: bool = False,
    ) -> None:
        self.match_by = match_by
        self.names = names
        self.file = file
        self.calendar = calendar
        self.stores_times = stores_times  # whether bytes that are wanted may be those of timestamps
        self.origins: dict[str, int] = {}
        self.hybrid: set[int] = set()

    def children(
        self, stored: Sequence[pa.Field], wanted: Sequence[pa.Field], *, first_leaf: int, path: tuple[str, ...]
    ) -> _Children:
        starts = [first_leaf]
        for field in stored:
            starts.append(starts[-1] + leaf_count(field.type))
        matches = self._match(stored, wanted, path)
        found: list[tuple[int, Convert] | None] = []
        leaves: set[int] = set()
        for field, index in zip(wanted, matches, strict=True):
            if index is None:
                found.append(None)
                continue
            convert, own = self._bind(stored[index].type, field.type, starts[index], (*path, field.name))
            found.append((index, convert))
            leaves.update(own)
        return _Children(tuple(found), sorted(leaves), tuple(sorted({index for index in matches if index is not None})))

    def _match(self, stored: Sequence[pa.Field], wanted: Sequence[pa.Field], path: tuple[str, ...]) -> list[int | None]:
        """Index of each wanted field among the stored ones."""
        by_id = self.match_by == "id" and self.names is None
        known: dict[str, list[int]] = {}
        folded: dict[str, list[int]] = {}
        for index, field in enumerate(stored):
            key = _field_id(field) if by_id else field.name
            known.setdefault(key, []).append(index)
            folded.setdefault(key.lower(), []).append(index)
        matches: list[int | None] = []
        for field in wanted:
            if by_id and (field.metadata or {}).get(_MATCH) == b"name":
                named = (index for index, each in enumerate(stored) if each.name == source_name(field))
                matches.append(next(named, None))
                continue
            key = _field_id(field) if by_id else source_name(field)
            if self.names is not None:
                known_as = self.names.get(_field_id(field), ())
                key = next((each for each in known_as if each in known), None) or "\0"
            column = ".".join((*path, field.name))
            if not key:
                raise DamagedTableError(f"column {column} has no field id, but the table finds its columns by them")
            # To Spark, names that differ only in case are one column: reading it as null would lose its values.
            hits = known.get(key) or folded.get(key.lower(), [])
            if len(hits) > 1:
                raise DamagedTableError(f"{self.file} has more than one column {column}")
            matches.append(hits[0] if hits else None)
        return matches

    def _bind(
        self, stored: pa.DataType, wanted: pa.DataType, first: int, path: tuple[str, ...]
    ) -> tuple[Convert, list[int]]:
        """Conversion of one column and the leaves to read for it."""
        if isinstance(stored, pa.BaseExtensionType):
            convert, leaves = self._bind(stored.storage_type, wanted, first, path)
            return (lambda array: convert(array.storage)), leaves
        if types.is_struct(wanted) and types.is_struct(stored):
            return self._bind_struct(stored, wanted, first, path)
        if is_map(wanted) and is_map(stored):
            return self._bind_map(stored, wanted, first, path)
        if types.is_list(wanted) and _is_list(stored):
            element = (*path, "list", "element")
            convert, leaves = self._bind(stored.value_type, wanted.value_type, first, element)
            return (same if stored == wanted and convert is same else _list_of(convert, wanted)), leaves
        if self.stores_times and types.is_timestamp(stored) and wanted == BYTES:
            leaf: Convert | None = in_bytes
        else:
            leaf = None if types.is_nested(stored) and stored != wanted else widening(stored, wanted)
        if leaf is None:
            raise self._mismatch(path, stored, wanted)
        if not types.is_nested(stored):
            self.origins[".".join(path)] = first
            if self.calendar is not None and (moved := self.calendar.conversion(first, stored, wanted)) is not None:
                self.hybrid.add(first)
                leaf = moved
        return self._checked(leaf, path, stored, wanted), list(range(first, first + leaf_count(stored)))

    def _bind_struct(
        self, stored: pa.DataType, wanted: pa.DataType, first: int, path: tuple[str, ...]
    ) -> tuple[Convert, list[int]]:
        if set(wanted.names) == _VARIANT and TYPED in stored.names:
            return self._bind_shredded(stored, wanted, first, path)
        if len(set(stored.names)) < stored.num_fields:
            raise DamagedTableError(f"column {'.'.join(path)} of {self.file} has two fields of one name")
        children = self.children(list(stored), list(wanted), first_leaf=first, path=path)
        # Without a child to read, any leaf shows which structs are null.
        leaves = children.leaves or [first]
        in_place = [(index, same) for index in range(stored.num_fields)]
        if stored == wanted and list(children.found) == in_place:
            return same, leaves
        fields = list(wanted)
        missing = [_missing(field) for field in fields]
        # By name: which of the others are read depends on the reader, and on who else wants the column.
        found = [None if child is None else (stored[child[0]].name, child[1]) for child in children.found]

        def convert(array: pa.StructArray) -> pa.StructArray:
            arrays = [
                missing[at](len(array)) if child is None else child[1](array.field(child[0]))
                for at, child in enumerate(found)
            ]
            return pa.StructArray.from_arrays(arrays, fields=fields, mask=_mask(array))

        return convert, leaves

    def _bind_shredded(
        self, stored: pa.StructType, wanted: pa.StructType, first: int, path: tuple[str, ...]
    ) -> tuple[Convert, list[int]]:
        column = f"column {'.'.join(path)} of {self.file}"
        # Writers of variants are younger than the other calendar.
        if self.calendar is not None or not can_be_put_together(stored):
            raise RefusedError(
                f"{column} holds shredded variants of type {stored}, which can't be put together here",
                next_step="use Spark 4.1 or newer for this table",
            )

        def convert(array: pa.StructArray) -> pa.StructArray:
            try:
                return put_together(array, list(wanted))
            except MalformedVariantError as error:
                raise DamagedTableError(f"{column} holds damaged shredded variants: {error}") from error

        return convert, list(range(first, first + leaf_count(stored)))

    def _bind_map(
        self, stored: pa.DataType, wanted: pa.DataType, first: int, path: tuple[str, ...]
    ) -> tuple[Convert, list[int]]:
        if types.is_map(wanted) and is_entries(stored):
            raise RefusedError(
                f"column {path[0]} of {self.file} holds maps with a null key, for which Arrow has no type",
                next_step=_NO_TYPE,
            )
        (old_key, old_item), (new_key, new_item) = fields_of(stored), fields_of(wanted)
        key, key_leaves = self._bind(old_key.type, new_key.type, first, (*path, "key_value", "key"))
        after = first + leaf_count(old_key.type)
        item, item_leaves = self._bind(old_item.type, new_item.type, after, (*path, "key_value", "value"))
        leaves = key_leaves + item_leaves
        if stored == wanted and key is same and item is same:
            return same, leaves

        def convert(array: pa.Array) -> pa.Array:
            if not len(array):
                return pa.nulls(0, wanted)
            offsets, start, length = _rebased(array)
            keys, items = (each.slice(start, length) for each in parts_of(array))
            return joined(offsets, key(keys), item(items), wanted, _mask(array))

        return convert, leaves

    def _checked(self, leaf: Convert, path: tuple[str, ...], stored: pa.DataType, wanted: pa.DataType) -> Convert:
        if leaf is same:
            return same

        def convert(array: pa.Array) -> pa.Array:
            try:
                return leaf(array)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise self._mismatch(path, stored, wanted, f": {error}") from error

        return convert

    def _mismatch(
        self, path: tuple[str, ...], stored: pa.DataType, wanted: pa.DataType, why: str = ""
    ) -> DamagedTableError:
        return DamagedTableError(
            f"column {'.'.join(path)} of {self.file} has the type {stored}, which cannot be read as {wanted}{why}",
            next_step="compare the file's schema with the table's; the file may belong to another table",
        )


def _list_of(element: Convert, wanted: pa.DataType) -> Convert:
    def convert(array: pa.Array) -> pa.ListArray:
        if not len(array):
            return pa.nulls(0, wanted)
        if not types.is_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        offsets, start, length = _rebased(array)
        return pa.ListArray.from_arrays(
            offsets, element(array.values.slice(start, length)), type=wanted, mask=_mask(array)
        )

    return convert


def _rebased(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Offsets from zero, and start and stop of the child values that they refer to.

    A sliced list array shares its parent's offsets and values; Arrow takes a validity mask only with offsets of their
    own.
    """
    offsets = array.offsets
    start, stop = offsets[0].as_py(), offsets[-1].as_py()
    if start or offsets.offset:
        offsets = pc.subtract(offsets, offsets[0])
    return offsets, start, stop - start


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _is_list(type: pa.DataType) -> bool:
    return bool(
        types.is_list(type)
        or types.is_large_list(type)
        or types.is_fixed_size_list(type)
        or types.is_list_view(type)
        or types.is_large_list_view(type)
    )


def leaf_count(type: pa.DataType) -> int:
    """Parquet leaf columns below an Arrow type."""
    if isinstance(type, pa.BaseExtensionType):
        return leaf_count(type.storage_type)
    if types.is_struct(type):
        return sum(leaf_count(field.type) for field in type)
    if types.is_map(type):
        return leaf_count(type.key_type) + leaf_count(type.item_type)
    if _is_list(type):
        return leaf_count(type.value_type)
    return 1


def _found_as(field: pa.Field, like: pa.Field) -> pa.Field:
    """The field, with the metadata of one of the same shape."""
    shape = field.type
    if types.is_struct(shape):
        shape = pa.struct([_found_as(child, like.type.field(child.name)) for child in shape])
    return pa.field(field.name, shape, field.nullable, like.metadata)


def _field_id(field: pa.Field) -> str:
    metadata = field.metadata or {}
    return str((metadata.get(_FIELD_ID) or metadata.get(_ORC_ID, b"")).decode())


def _names(schema: pa.Schema, file: str) -> Mapping[str, Sequence[str]]:
    """Names of fields by their ids, for a file without ids. Raises as ``Projection.build``."""
    text = (schema.metadata or {}).get(NAMES)
    if text is None:
        raise DamagedTableError(f"{file} has no Parquet field ids, but the table finds its columns by them")
    names: Mapping[str, Sequence[str]] = json.loads(text)
    if not names:
        raise RefusedError(
            f"{file} has no field ids, like files that a table took in from elsewhere, and the table does not say "
            "which columns its names mean",
            next_step="set schema.name-mapping.default with the table's engine, or read the table with it",
        )
    return names


def _default(field: pa.Field) -> Any:
    """What a field is in files that lack it, as JSON."""
    text = (field.metadata or {}).get(DEFAULT)
    return None if text is None else json.loads(text)


def _missing(field: pa.Field) -> Callable[[int], pa.Array]:
    """The values of a field that the file lacks, as many as asked for."""
    value = scalar_of(_default(field), field.type, field.name)
    return lambda count: pa.repeat(value, count) if value.is_valid else pa.nulls(count, field.type)


def source_name(field: pa.Field) -> str:
    """The name of a wanted column or field in the file."""
    name = (field.metadata or {}).get(_SOURCE_NAME)
    return str(field.name if name is None else name.decode())
