"""Adds and removes of JSON commits as columns, without a Python object for each.

Arrow parses lines that have the fields of the protocol and nothing else. All input on which its parser and a careful
reader could differ is left to the caller: other fields, other types, text that is not UTF-8, two actions in a line,
partition values that are null (Arrow does not distinguish them from missing ones).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import bools, flags, int32s, strings
from dv_maintenance.tables.delta.log.actions import Action
from dv_maintenance.tables.delta.log.bulk import ADD_TYPES, REMOVE_TYPES
from dv_maintenance.tables.delta.log.columns import num_records, string_layout, unaligned_words
from dv_maintenance.tables.delta.log.segment import parse_actions

KINDS: Final = ("add", "remove")
_BLOCK: Final = 1 << 20  # bytes that one thread parses; no line may be longer
_SAMPLES: Final = 3
# The fields of the protocol. Maps are structs to Arrow's parser: their keys are learnt from a few lines.
_FIELDS: Final = {
    "add": {name: kind for name, kind in ADD_TYPES.items() if name != "numRecords"},
    "remove": {**REMOVE_TYPES, "tags": ADD_TYPES["tags"], "stats": ADD_TYPES["stats"]},
}
_RARE: Final = {"tags", "baseRowId", "defaultRowCommitVersion", "clusteringProvider", "extendedFileMetadata"}
_ADD, _ADD_BITS = (int.from_bytes(text.ljust(8, b"\0"), "little") for text in (b'{"add":', b"\xff" * 7))
_REMOVE: Final = int.from_bytes(b'{"remove', "little")


@dataclass(frozen=True, slots=True)
class Columns:
    """The actions in some lines of commits.

    bulk : by kind, the wanted columns of its actions in the order of the lines; never empty batches.
    is_add : for each add and remove in the order of the lines, whether it is an add.
    lines : line number of each add and remove, from 0.
    others : all other actions, with their line numbers.
    """

    bulk: Mapping[str, Sequence[pa.RecordBatch]]
    is_add: Any
    lines: Any
    others: Sequence[tuple[int, Action]]


def parse_columns(text: bytes, wanted: Mapping[str, Sequence[str]]) -> Columns | None:
    """The actions of whole lines, without a newline at the end; ``None`` if they must be parsed one by one.

    wanted : columns by kind, from ``bulk.ADD_TYPES`` and ``bulk.REMOVE_TYPES``, ``path`` and ``deletionVector`` among
        them.
    """
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    # If every line begins with `{` and ends with `}`, there are as many values as lines only if each line is one value.
    whole = text[:1] == b"{" and text[-1:] == b"}" and (data[ends - 1] == ord("}")).all()
    # A NUL separates the two halves of a key, so paths must not contain one.
    if not whole or (data[ends + 1] != ord("{")).any() or b"\\u0000" in text or not _is_utf8(text):
        return None
    begins, ends = np.append(0, ends + 1), np.append(ends, len(text))
    # A line of fewer than eight bytes holds no action.
    words = unaligned_words(data)
    first = words[np.minimum(begins, len(words) - 1)] if len(words) else np.zeros(len(begins), np.uint64)
    is_add = first & np.uint64(_ADD_BITS) == np.uint64(_ADD)
    is_bulk = is_add | (first == np.uint64(_REMOVE))
    try:
        others = _others(text, begins, ends, np.flatnonzero(~is_bulk))
        lines = np.flatnonzero(is_bulk)
        is_add = is_add[lines]
        bulk = _bulk(_without(text, begins, ends, is_bulk), is_add, wanted, _samples(text, begins, ends, lines, is_add))
    except (pa.ArrowException, DamagedTableError, _NotHereError, orjson.JSONDecodeError):
        return None
    return Columns(bulk, is_add, lines, others)


class _NotHereError(Exception):
    """Input that is left to the caller."""


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(text)], np.int32)), pa.py_buffer(text)).validate(
            full=True
        )
    except pa.ArrowInvalid:
        return False
    return True


def _others(text: bytes, begins: Any, ends: Any, lines: Any) -> list[tuple[int, Action]]:
    chosen = lines.tolist()
    texts = [text[begins[line] : ends[line]] for line in chosen]
    actions = parse_actions(b"\n".join(texts), where="", table="") if texts else []
    if len(actions) != len(texts) or any(not action.keys().isdisjoint(KINDS) for action in actions):
        raise _NotHereError
    return list(zip(chosen, actions, strict=True))


def _without(text: bytes, begins: Any, ends: Any, keep: Any) -> bytes:
    """The text of the lines to keep."""
    if keep.all():
        return text
    edges = np.flatnonzero(np.diff(np.concatenate([[False], keep, [False]])))
    runs = zip(begins[edges[::2]].tolist(), ends[edges[1::2] - 1].tolist(), strict=True)
    return b"\n".join(text[begin:end] for begin, end in runs)


def _samples(text: bytes, begins: Any, ends: Any, lines: Any, is_add: Any) -> dict[str, list[Any]]:
    """A few bodies of each kind."""
    found = {}
    for kind, some in (("add", lines[is_add]), ("remove", lines[~is_add])):
        chosen = some[np.linspace(0, len(some) - 1, _SAMPLES).astype(int)] if len(some) else some
        found[kind] = [orjson.loads(text[begins[line] : ends[line]]).get(kind) for line in chosen.tolist()]
        if not {dict}.issuperset(map(type, found[kind])):
            raise _NotHereError
    return found


# -- Arrow's parser --------------------------------------------------------------------------------------------------


def _bulk(
    text: bytes, is_add: Any, wanted: Mapping[str, Sequence[str]], samples: Mapping[str, Sequence[Any]]
) -> dict[str, list[pa.RecordBatch]]:
    from pyarrow import json

    found: dict[str, list[pa.RecordBatch]] = {kind: [] for kind in KINDS}
    kinds = [kind for kind in KINDS if samples[kind]]
    if not kinds:
        return found
    schema = pa.schema([(kind, _struct(kind, samples[kind])) for kind in kinds])
    table = json.read_json(
        pa.BufferReader(text),
        json.ReadOptions(block_size=_BLOCK),
        json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    )
    if len(table) != len(is_add):
        raise _NotHereError
    begin = 0
    for batch in table.to_batches():
        adds = is_add[begin : begin + len(batch)]
        begin += len(batch)
        for kind, mask in zip(KINDS, (adds, ~adds), strict=True):
            if kind not in kinds:
                continue
            bodies = batch.column(kind)
            if bodies.null_count != len(batch) - mask.sum() or not flags(bodies.is_valid())[mask].all():
                raise _NotHereError
            if mask.any():
                some = bodies if mask.all() else bodies.filter(bools(mask))
                found[kind].append(_batch(some, kind, wanted[kind]))
    return found


def _struct(kind: str, samples: Sequence[Any]) -> pa.StructType:
    """The fields of one kind, without rare ones that no sample has: each would cost time in every line."""
    present = _keys(samples)
    return pa.struct(
        [
            (name, _type(name, each, samples))
            for name, each in _FIELDS[kind].items()
            if name in present or name not in _RARE
        ]
    )


def _type(name: str, type: pa.DataType, samples: Sequence[Any]) -> pa.DataType:
    if not pa.types.is_map(type):
        return type
    return pa.struct([(key, pa.string()) for key in _keys([body.get(name) for body in samples])])


def _keys(bodies: Sequence[Any]) -> dict[str, None]:
    return {key: None for body in bodies if isinstance(body, dict) for key in body}


def _batch(bodies: pa.StructArray, kind: str, names: Sequence[str]) -> pa.RecordBatch:
    types = {**_FIELDS[kind], "numRecords": ADD_TYPES["numRecords"]}
    present = {field.name for field in bodies.type}
    columns = []
    for name in names:
        source = "stats" if name == "numRecords" else name
        if source not in present:
            columns.append(pa.nulls(len(bodies), types[name]))
        elif name == "numRecords":
            columns.append(num_records(bodies.field(source)))
        else:
            columns.append(_map(bodies.field(name)) if pa.types.is_map(types[name]) else bodies.field(name))
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema([(name, types[name]) for name in names]))
    if not well_formed(batch):
        raise _NotHereError
    return batch


def well_formed(batch: pa.RecordBatch) -> bool:
    """Whether every action has a path, and every descriptor an identity."""
    column = batch.column("path")
    starts, ends, _ = string_layout(column)
    descriptors = batch.column("deletionVector").drop_null()
    nameless = any(descriptors.field(name).null_count for name in ("storageType", "pathOrInlineDv"))
    return not column.null_count and not (starts == ends).any() and not nameless


def _map(values: pa.StructArray) -> pa.MapArray:
    """A map with the same keys in all rows that have one."""
    rows, width = len(values), values.type.num_fields
    if values.null_count == rows:
        return pa.nulls(rows, ADD_TYPES["tags"])
    present = flags(values.is_valid()) if values.null_count else np.ones(rows, bool)
    children = [values.field(at) for at in range(width)]
    if values.null_count:
        children = [child.filter(bools(present)) for child in children]
    if any(child.null_count for child in children):
        raise _NotHereError
    count = int(present.sum())
    names = strings([field.name for field in values.type])
    keys = names.take(int32s(np.tile(np.arange(width), count)))
    items = children[0] if width == 1 else strings([])
    if width > 1:
        # The values of a row must be adjacent.
        items = pa.concat_arrays(children).take(int32s(np.arange(width * count).reshape(width, count).T.ravel()))
    offsets = np.concatenate([[0], np.cumsum(present * width)]).astype(np.int32)
    pairs = pa.StructArray.from_arrays(
        [keys, items], fields=[pa.field("key", pa.string(), False), pa.field("value", pa.string())]
    )
    valid = pa.py_buffer(np.packbits(present, bitorder="little")) if values.null_count else None
    return pa.MapArray.from_buffers(ADD_TYPES["tags"], rows, [valid, pa.py_buffer(offsets)], children=[pairs])
