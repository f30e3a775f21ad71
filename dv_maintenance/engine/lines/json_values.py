"""Values of rows in lines of JSON, as Paimon reads them: plain ones are texts, which is how it writes them. Numbers and
booleans that others wrote stand for the texts that Jackson would make of them.

Source: JsonFileReader of Paimon 1.4.2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dv_maintenance.engine.lines.texts import OddTextError, array_of, unread, values_of


class _Integer(str):
    """The text of a number without fraction and exponent."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        return super().__new__(cls, "0" if text == "-0" else text)


class _Double(str):
    """The text of another number. Jackson reads it as a double, and spells it as Java does."""

    __slots__ = ()


def _not_json(text: str) -> Any:
    raise ValueError(text)


_DECODER: Final = json.JSONDecoder(parse_int=_Integer, parse_float=_Double, parse_constant=_not_json)
# No two of them are of the same number.
_KEY: Final = r"^(0|-?[1-9]\d*)$"


class OddValueError(Exception):
    """Paimon may read something else, or nothing.

    row : its position.
    name : of its column, or of a field within it.
    found : what is there.
    """

    def __init__(self, row: int, name: str, found: Any) -> None:
        super().__init__(row, name, found)
        self.row, self.name, self.found = row, name, found


def why_not(type_: pa.DataType) -> str | None:
    """Why values of this type are not read; ``None`` if they are."""
    if types.is_struct(type_):
        return next(filter(None, (why_not(each.type) for each in type_)), None)
    if types.is_list(type_):
        return why_not(type_.value_type)
    if types.is_map(type_):
        if not (types.is_string(type_.key_type) or types.is_signed_integer(type_.key_type)):
            return f"maps with keys of the type {type_.key_type}"
        return why_not(type_.item_type)
    return unread(type_)


def rows_of(lines: Sequence[str], fields: Sequence[pa.Field]) -> list[pa.Array]:
    """These columns of the rows, each in a line.

    Raises
    ------
    OddValueError : of the first value of a column that is not read.
    """
    nodes = []
    for row, line in enumerate(lines):
        try:
            node = _DECODER.decode(line)
        except (ValueError, RecursionError):
            node = None
        if not isinstance(node, dict):
            raise OddValueError(row, "", line)
        nodes.append(node)
    rows = np.arange(len(nodes))
    return [_column([each.get(field.name) for each in nodes], rows, field) for field in fields]


def _column(nodes: list[Any], rows: Any, field: pa.Field) -> pa.Array:
    """``rows``: those of the nodes."""
    type_ = field.type
    if types.is_struct(type_):
        _check(nodes, rows, field, dict)
        children = [
            _column([None if node is None else node.get(each.name) for node in nodes], rows, each) for each in type_
        ]
        mask = pa.array([node is None for node in nodes], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=[*type_], mask=mask) if children else pa.array(nodes, type_)
    if types.is_list(type_) or types.is_map(type_):
        _check(nodes, rows, field, dict if types.is_map(type_) else list)
        lengths = [0 if node is None else len(node) for node in nodes]
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        mask, inner = pa.array([node is None for node in nodes], pa.bool_()), np.repeat(rows, lengths)
        full = [node for node in nodes if node]
        if types.is_list(type_):
            items = _column([item for node in full for item in node], inner, type_.value_field)
            return pa.ListArray.from_arrays(offsets, items, type=type_, mask=mask)
        keys = _keys([key for node in full for key in node], inner, type_.key_field)
        items = _column([item for node in full for item in node.values()], inner, type_.item_field)
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=mask)
    return _plain([_text(node, rows[at], field) for at, node in enumerate(nodes)], rows, field)


def _check(nodes: list[Any], rows: Any, field: pa.Field, kind: type) -> None:
    for at, node in enumerate(nodes):
        if not (node is None or isinstance(node, kind)):
            raise OddValueError(int(rows[at]), field.name, node)


def _text(node: Any, row: int, field: pa.Field) -> str | None:
    if isinstance(node, bool):
        return str(node).lower()
    if isinstance(node, dict | list) or (isinstance(node, _Double) and not types.is_float64(field.type)):
        raise OddValueError(int(row), field.name, node)
    return cast("str | None", node)


def _keys(keys: list[str], rows: Any, field: pa.Field) -> pa.Array:
    texts = _plain(keys, rows, field.with_type(pa.string()))
    if not types.is_string(field.type):
        matched = pc.match_substring_regex(texts, _KEY)
        if (at := pc.index(matched, False).as_py()) >= 0:
            raise OddValueError(int(rows[at]), field.name, keys[at])
    return _plain(keys, rows, field)


def _plain(texts: Sequence[str | None], rows: Any, field: pa.Field) -> pa.Array:
    try:
        return values_of(array_of(texts), field)
    except OddTextError as odd:
        raise OddValueError(int(rows[odd.at]), field.name, texts[odd.at]) from None
