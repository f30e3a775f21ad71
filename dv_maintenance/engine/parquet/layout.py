"""Physical schemas: which row groups of other files can stand in a new file beside those that are encoded here.

A source qualifies if its schema is one that our writer has for the table's columns: same types, annotations, nesting,
order. Three things may differ, as the writer has options for them: required columns, timestamps in INT96, decimals as
byte arrays. Names of the repeated levels of lists and maps differ between writers and mean nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from dv_maintenance.engine.parquet.annotations import annotated
from dv_maintenance.files.parquet_footer import encoded, open_parquet_file, parsed
from dv_maintenance.files.parquet_groups import Footer, written_by
from dv_maintenance.files.thrift_compact import BINARY, Struct, ThriftError, Value, binary, list_of
from dv_maintenance.files.varint import varint

# SchemaElement
_TYPE, _LENGTH, _REPETITION, _NAME, _CHILDREN, _CONVERTED, _FIELD_ID, _LOGICAL = 1, 2, 3, 4, 5, 6, 9, 10
_REQUIRED: Final = 0
_FIXED: Final = 7
# ConvertedType and the field of LogicalType, of groups.
_GROUPS: Final = {1: "map", 3: "list"}
_LOGICAL_GROUPS: Final = {2: "map", 3: "list"}
# As in Thrift: no real schema is nested so deep.
_DEPTH: Final = 100
_NO_MEANING: Final = ("is_from_converted_type", "force_set_converted_type")
_PLAIN_INTEGERS: Final = ({"bitWidth": 64, "isSigned": True}, {"bitWidth": 32, "isSigned": True})


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A physical schema.

    schema : to be encoded; a column is nullable if it is optional in the file.
    options : of Arrow's writer.
    template : a footer without row groups, with the ``created_by`` of new files.
    paths : the path of each leaf as its metadata has it.
    required : whether the file has a required column outside of maps' keys and variants.
    int96 : whether timestamps are INT96.
    """

    schema: pa.Schema
    options: dict[str, Any]
    template: bytes
    paths: tuple[Value, ...]
    required: bool
    int96: bool


class Layouts:
    """The layouts of one task. ``schema``: of new files, as ``Layouts.canonical`` has it."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.canonical = canonical(schema)
        self._known: dict[tuple[bytes, str], Layout | None] = {}

    def of(self, footer: Footer, metadata: Any) -> Layout | None:
        """The layout of a file; ``None`` if our writer has none that is equal. Raises ThriftError if it is damaged."""
        key = (footer.schema_data, footer.created_by)
        if key not in self._known:
            found = self._find(footer, metadata)
            # Spark converts INT96 to the session's zone if the setting int96TimestampConversion says so, and only in
            # files that parquet-java did not write.
            if found is not None and found.int96:
                found = replace(found, template=written_by(found.template, footer.created_by))
            self._known[key] = found
        return self._known[key]

    def _find(self, footer: Footer, metadata: Any) -> Layout | None:
        wanted = _shape(footer, metadata)
        elements = iter(footer.schema[1:])
        try:
            fields = [_like(field, elements) for field in self._schema]
        except (StopIteration, _OtherShapeError):
            return None
        schema = pa.schema(fields, self._schema.metadata)
        columns = range(metadata.num_columns)
        physical = {metadata.schema.column(leaf).physical_type for leaf in columns}
        with_ids = any(_FIELD_ID in element.fields for element in Footer(self.canonical.template, 0).schema)
        for int96 in (True, False) if "INT96" in physical and encodes_far_instants() else (False,):
            for integers in (True, False):
                found = _layout(schema, self._schema, int96=int96, integers=integers)
                made = Footer(found.template, 0)
                if _same(_shape(made, parsed(found.template)), wanted, with_ids=with_ids):
                    equal = all(schema.field(index).equals(self._schema.field(index)) for index in range(len(schema)))
                    return self.canonical if equal and not int96 and integers else found
        return None


class _OtherShapeError(Exception):
    pass


def canonical(schema: pa.Schema) -> Layout:
    """The layout of new files."""
    return _layout(schema, schema, int96=False, integers=True)


def _layout(schema: pa.Schema, optional: pa.Schema, *, int96: bool, integers: bool) -> Layout:
    options = {"store_schema": False, "store_decimal_as_integer": integers, "use_deprecated_int96_timestamps": int96}
    footers: list[Any] = []
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, metadata_collector=footers, **options):
        pass
    template = annotated(encoded(footers[0]), schema)
    return Layout(schema, options, template, leaf_paths(template), not schema.equals(optional), int96)


@cache
def encodes_far_instants() -> bool:
    """Whether Arrow's writer keeps timestamps before 1677 and after 2262 as INT96. Older releases wrap them around."""
    far = pa.table({"t": pa.array([-(1 << 54)], pa.timestamp("us"))})
    sink = pa.BufferOutputStream()
    pq.write_table(far, sink, use_deprecated_int96_timestamps=True)
    with open_parquet_file(pa.BufferReader(sink.getvalue()), coerce_int96_timestamp_unit="us") as file:
        return bool(file.read().equals(far))


def leaf_paths(template: bytes) -> tuple[Value, ...]:
    """The encoded ``path_in_schema`` of each leaf of a footer's schema."""
    return tuple(_path(path) for _, path in _walk(Footer(template, 0)) if path)


def _path(names: tuple[bytes, ...]) -> Value:
    return list_of(BINARY, [varint(len(name)) + name for name in names])


def _walk(footer: Footer) -> Iterator[tuple[Struct, tuple[bytes, ...]]]:
    """Each element below the root; for a leaf with its path, for a group with none."""
    elements = iter(footer.schema)
    next(elements)
    # The paths of open groups, and how many children each still lacks.
    opened: list[tuple[tuple[bytes, ...], int]] = []
    for element in elements:
        while opened and not opened[-1][1]:
            opened.pop()
        above: tuple[bytes, ...] = ()
        if opened:
            above, left = opened[-1]
            opened[-1] = (above, left - 1)
        if _NAME not in element.fields:
            raise ThriftError("an element of the schema has no name")
        path = (*above, binary(element.fields[_NAME]))
        children = element.integer(_CHILDREN) or 0
        if children:
            opened.append((path, children))
            yield element, ()
        else:
            yield element, path


def _like(field: pa.Field, elements: Iterator[Struct]) -> pa.Field:
    """The field, and all below, nullable where the elements of a file are optional."""
    element = next(elements)
    kind = field.type
    if types.is_struct(kind):
        if element.integer(_CHILDREN) != kind.num_fields:
            raise _OtherShapeError
        kind = pa.struct([_like(child, elements) for child in kind])
    elif types.is_list(kind):
        _repeated(element, elements, 1)
        kind = pa.list_(_like(kind.value_field, elements))
    elif types.is_map(kind):
        _repeated(element, elements, 2)
        key = _like(kind.key_field, elements).with_nullable(False)
        kind = pa.map_(key, _like(kind.item_field, elements))
    elif _CHILDREN in element.fields:
        raise _OtherShapeError
    return field.with_type(kind).with_nullable(element.integer(_REPETITION) != _REQUIRED)


def _repeated(element: Struct, elements: Iterator[Struct], children: int) -> None:
    if element.integer(_CHILDREN) != 1 or next(elements).integer(_CHILDREN) != children:
        raise _OtherShapeError


@dataclass(frozen=True, slots=True)
class _Element:
    """What makes two elements of schemas equal. ``name``: ``None`` where it means nothing."""

    name: bytes | None
    repetition: int | None
    children: int
    type: int | None
    length: int | None
    meaning: Any
    id: int | None


def _shape(footer: Footer, metadata: Any) -> list[_Element]:
    """All elements below the root. Raises ThriftError."""
    found = []
    leaf = 0
    for element, path in _walk(footer):
        children = element.integer(_CHILDREN) or 0
        kind = element.integer(_TYPE)
        if path:
            meaning: Any = _meaning(metadata.schema.column(leaf))
            leaf += 1
        else:
            meaning = _group(element)
        found.append(
            _Element(
                binary(element.fields[_NAME]),
                element.integer(_REPETITION),
                children,
                kind,
                element.integer(_LENGTH) if kind == _FIXED else None,
                meaning,
                element.integer(_FIELD_ID),
            )
        )
    return _without_level_names(found)


def _without_level_names(elements: list[_Element]) -> list[_Element]:
    found = list(elements)

    def walk(index: int, *, free: bool, depth: int = 0) -> int:
        """The index after the element and all below it."""
        if depth > _DEPTH or index >= len(found):
            raise ThriftError("the schema is nested too deep, or its end is missing")
        element = found[index]
        if free:
            found[index] = replace(element, name=None)
        after = index + 1
        for _ in range(element.children):
            # The repeated level below a list or map, and its children.
            below = element.meaning in ("list", "map") or (free and element.meaning == "level")
            if element.meaning in ("list", "map"):
                found[after] = replace(found[after], meaning="level")
            after = walk(after, free=below, depth=depth + 1)
        return after

    index = 0
    while index < len(found):
        index = walk(index, free=False)
    return found


def _group(element: Struct) -> str | None:
    logical = element.struct(_LOGICAL)
    if logical is not None and len(logical.fields) == 1:
        (id_,) = logical.fields
        return _LOGICAL_GROUPS.get(id_, f"logical {id_}")
    converted = element.integer(_CONVERTED)
    return None if converted is None else _GROUPS.get(converted)


def _meaning(column: Any) -> Any:
    found = json.loads(column.logical_type.to_json())
    for key in _NO_MEANING:
        found.pop(key, None)
    if found.get("Type") == "Int" and {key: found[key] for key in ("bitWidth", "isSigned")} in _PLAIN_INTEGERS:
        return {"Type": "None"}
    return found


def _same(ours: list[_Element], theirs: list[_Element], *, with_ids: bool) -> bool:
    if not with_ids:
        ours, theirs = ([replace(each, id=None) for each in shape] for shape in (ours, theirs))
    return ours == theirs
