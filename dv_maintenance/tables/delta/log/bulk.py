"""Adds and removes as Arrow tables: columns, types, keys, and the conversion of JSON bodies to rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import bools, int32s, int64s, null_column, strings
from dv_maintenance.tables.delta.log.columns import maps, num_records

_MAP: Final = pa.map_(pa.string(), pa.string())

# The log's names, in the protocol's order (protocol: Deletion Vector Descriptor Schema).
DV_TYPE: Final = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)

# Protocol: Add File and Remove File. `numRecords` is not a field of an add: it comes from its statistics.
ADD_TYPES: Final[dict[str, pa.DataType]] = {
    "path": pa.string(),
    "partitionValues": _MAP,
    "size": pa.int64(),
    "modificationTime": pa.int64(),
    "dataChange": pa.bool_(),
    "stats": pa.string(),
    "tags": _MAP,
    "deletionVector": DV_TYPE,
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
    "clusteringProvider": pa.string(),
    "numRecords": pa.int64(),
}
REMOVE_TYPES: Final[dict[str, pa.DataType]] = {
    "path": pa.string(),
    "deletionTimestamp": pa.int64(),
    "dataChange": pa.bool_(),
    "extendedFileMetadata": pa.bool_(),
    "partitionValues": _MAP,
    "size": pa.int64(),
    "deletionVector": DV_TYPE,
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int64(),
}
# Some writers repeat the statistics of a file in its remove.
_TYPES: Final = {"add": ADD_TYPES, "remove": {**REMOVE_TYPES, "numRecords": ADD_TYPES["numRecords"]}}
_BAD: Final = (TypeError, OverflowError, UnicodeEncodeError, pa.ArrowInvalid)


def dv_id(descriptor: object) -> str | None:
    """Unique id of the DV in an action's JSON; ``None`` without one. Raises TypeError on a malformed descriptor."""
    if descriptor is None:
        return None
    if not isinstance(descriptor, dict):
        raise TypeError("deletionVector is not an object")
    kind, place, offset = descriptor.get("storageType"), descriptor.get("pathOrInlineDv"), descriptor.get("offset")
    if not (isinstance(kind, str) and isinstance(place, str)) or not (offset is None or type(offset) is int):
        raise TypeError("deletionVector has fields of the wrong type")
    return f"{kind}{place}" if offset is None else f"{kind}{place}@{offset}"


def dv_ids(descriptors: pa.ChunkedArray) -> pa.ChunkedArray:
    """:func:`dv_id` of a column of DV_TYPE."""

    def ids(chunk: pa.StructArray) -> list[pa.Array]:
        if chunk.null_count == len(chunk):
            return list(null_column(len(chunk), pa.string()).chunks)
        kind, place, offset = (pc.struct_field(chunk, name) for name in ("storageType", "pathOrInlineDv", "offset"))
        bare = pc.binary_join_element_wise(kind, place, _scalar(""))
        return [pc.coalesce(pc.binary_join_element_wise(bare, offset.cast(pa.string()), _scalar("@")), bare)]

    return pa.chunked_array([part for chunk in descriptors.chunks for part in ids(chunk)], pa.string())


def _scalar(text: str) -> pa.Scalar:
    return strings([text])[0]


def bulk_table(
    kind: str, bodies: Sequence[Any], where: Sequence[str], columns: Sequence[str], *, table: str
) -> pa.Table:
    """The JSON bodies of ``add`` or ``remove`` actions as rows; ``where`` has the log file of each.

    Raises
    ------
    DamagedTableError : a field has the wrong type; names the file and the field.
    """
    types = _TYPES[kind]
    # Most fields are optional, and looking each up in every body adds up.
    present = set().union(*bodies) if {dict}.issuperset(map(type, bodies)) else {"stats", *columns}
    arrays = []
    for name in columns:
        source = "stats" if name == "numRecords" else name
        if source not in present:
            arrays.append(pa.nulls(len(bodies), types[name]))
            continue
        try:
            values = [body.get(source) for body in bodies]
            absent = values.count(None) == len(values)
            arrays.append(pa.nulls(len(values), types[name]) if absent else _convert(name, types[name])(values))
        except _BAD:
            raise _culprit(kind, name, source, bodies, where, types[name], table) from None
    return pa.Table.from_arrays(arrays, schema=pa.schema([(name, types[name]) for name in columns]))


def _convert(name: str, type: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    if name == "numRecords":
        return lambda values: num_records(strings(values))
    if pa.types.is_map(type):
        return maps
    if pa.types.is_struct(type):
        return _descriptors
    if pa.types.is_boolean(type):
        return _booleans
    return strings if pa.types.is_string(type) else int64s


def _descriptors(values: list[Any]) -> pa.Array:
    # Few of the adds in most commits have DVs: build only those, then spread them out.
    bodies: list[dict[str, Any]] = [value for value in values if value is not None]
    children = []
    for name, kind in [(child.name, child.type) for child in DV_TYPE]:
        parts = [dict.get(body, name) for body in bodies]
        children.append(strings(parts) if pa.types.is_string(kind) else int64s(parts).cast(kind))
    descriptors = pa.StructArray.from_arrays(children, fields=list(DV_TYPE))
    if len(bodies) == len(values):
        return descriptors
    present = np.fromiter((value is not None for value in values), bool, len(values))
    places = int32s(np.cumsum(present) - 1)
    return descriptors.take(pc.if_else(bools(present), places, pa.nulls(len(values), pa.int32())))


def _booleans(values: list[Any]) -> pa.Array:
    if not all(value is None or value is True or value is False for value in values):
        raise TypeError("not a boolean")
    return pa.Array.from_buffers(
        pa.bool_(),
        len(values),
        [
            pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little")),
            pa.py_buffer(np.packbits([value is True for value in values], bitorder="little")),
        ],
    )


def _culprit(
    kind: str, name: str, source: str, bodies: Sequence[Any], where: Sequence[str], type: pa.DataType, table: str
) -> DamagedTableError:
    """Find the first body that cannot be converted: bulk conversion is fast, but does not identify it."""
    convert = _convert(name, type)
    for body, file in zip(bodies, where, strict=True):
        try:
            convert([body.get(source)])
        except _BAD:
            return DamagedTableError(f"{file}: {kind}.{source} has the wrong type", table=table)
    return DamagedTableError(f"{where[0]}: {kind}.{source} is too large", table=table)
