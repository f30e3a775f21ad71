"""Live adds as the ``files`` table of a snapshot, checked so that every layer above may rely on them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.arrays import bools, combined, int32s, int64s, integer, null_column, numbers
from dv_maintenance.tables.delta.log.actions import Metadata
from dv_maintenance.tables.delta.log.bulk import DV_TYPE, dv_ids
from dv_maintenance.tables.delta.rows.partitions import partition_columns, partition_names
from dv_maintenance.tables.model import FILES_SCHEMA

# `dv` in `files`: the descriptor from the log; null without a DV.
DV_STRUCT: Final = pa.struct(
    [
        ("storage_type", pa.string()),
        ("path_or_inline", pa.string()),
        ("offset", pa.int32()),
        ("size", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_MAP: Final = pa.map_(pa.string(), pa.string())

FILES: Final = pa.schema(
    [
        *FILES_SCHEMA,
        pa.field("partition_values", _MAP),  # raw, keyed by physical names
        pa.field("dv", DV_STRUCT),
        pa.field("tags", _MAP),
        pa.field("base_row_id", pa.int64()),
        pa.field("default_row_commit_version", pa.int64()),
        pa.field("clustering_provider", pa.string()),
    ]
)

# The columns of adds that files_table() needs.
ADD_COLUMNS: Final = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "numRecords",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
    "clusteringProvider",
)

_UNKNOWN: Final = pa.nulls(1, pa.int64())[0]
_STORAGE_TYPES: Final = frozenset({"u", "p", "i"})
_MANY: Final = 5


def files_table(adds: pa.Table, metadata: Metadata) -> pa.Table:
    """One row per live file, schema ``FILES``, from adds with ``ADD_COLUMNS``.

    Raises
    ------
    DamagedTableError : a file has no size or modification time, a DV contradicts its file, or a value does not fit its
        partition column.
    """
    _refuse(adds, adds["modificationTime"].is_null(), "has no modificationTime")
    deleted = deleted_rows(adds)
    columns = {
        "path": adds["path"],
        "partition": partition_names(adds["partitionValues"], partition_columns(metadata), adds["path"]),
        # One chunk each, so that computations on them need no copy.
        "size": pa.chunked_array([combined(sizes(adds))]),
        "physical_rows": pa.chunked_array([possible_rows(combined(adds["numRecords"]), combined(deleted))]),
        "deleted_rows": deleted,
        "dv_id": dv_ids(adds["deletionVector"]),
        "modified": pa.chunked_array([combined(adds["modificationTime"])]),
        "partition_values": adds["partitionValues"],
        "dv": dv_column(adds["deletionVector"]),
        "tags": adds["tags"],
        "base_row_id": adds["baseRowId"],
        "default_row_commit_version": adds["defaultRowCommitVersion"],
        "clustering_provider": adds["clusteringProvider"],
    }
    return pa.Table.from_arrays([columns[name] for name in FILES.names], schema=FILES)


def unchecked_files(adds: pa.Table) -> pa.Table:
    """The rows of :func:`files_table` as far as a ``remove`` needs them, whatever the adds say: without partitions and
    row counts. Missing numbers are 0.
    """
    nothing, rows = pa.scalar(0, pa.int64()), len(adds)
    columns = {
        **{field.name: null_column(rows, field.type) for field in FILES},
        "path": adds["path"],
        "partition": partition_names(adds["partitionValues"], ()),
        "size": pc.fill_null(adds["size"], nothing),
        "deleted_rows": pc.fill_null(null_column(rows, pa.int64()), nothing),
        "dv_id": dv_ids(adds["deletionVector"]),
        "modified": pc.fill_null(adds["modificationTime"], nothing),
        "partition_values": adds["partitionValues"],
        "dv": _filled(dv_column(adds["deletionVector"])),
        "tags": adds["tags"],
        "base_row_id": adds["baseRowId"],
        "default_row_commit_version": adds["defaultRowCommitVersion"],
        "clustering_provider": adds["clusteringProvider"],
    }
    return pa.Table.from_arrays([columns[name] for name in FILES.names], schema=FILES)


def _filled(descriptors: pa.ChunkedArray) -> pa.ChunkedArray:
    """With 0 for a missing size or cardinality: other readers refuse a ``remove`` without them."""
    zeros = {"size": 0, "cardinality": 0}
    found = [
        None if each is None else {name: zeros.get(name) if value is None else value for name, value in each.items()}
        for each in descriptors.to_pylist()
    ]
    return pa.chunked_array([pa.array(found, DV_STRUCT)])


def possible_rows(rows: pa.ChunkedArray | pa.Array, deleted: pa.ChunkedArray | pa.Array) -> Any:
    """Row counts; null where they can't be right. Some writers leave -1, or count only what is visible."""
    wrong = pc.less(rows, deleted)
    return pc.if_else(wrong, _UNKNOWN, rows) if pc.any(wrong).as_py() else rows


def dv_column(descriptors: pa.ChunkedArray) -> pa.ChunkedArray:
    """The log's descriptors under our names."""

    def rename(chunk: pa.StructArray) -> list[pa.StructArray]:
        if chunk.null_count == len(chunk):
            return list(null_column(len(chunk), DV_STRUCT).chunks)
        children = [chunk.field(at) for at in range(len(DV_TYPE))]
        return [pa.StructArray.from_arrays(children, fields=list(DV_STRUCT), mask=chunk.is_null())]

    return pa.chunked_array([part for chunk in descriptors.chunks for part in rename(chunk)], DV_STRUCT)


def duplicate_paths(path: pa.ChunkedArray, prints: Any) -> tuple[str, ...]:
    """Some of the data files that are live more than once; empty if there are none. ``prints``: its fingerprints.

    A path may be live only once, whatever its DVs (protocol: Action Reconciliation).
    """
    # Equal paths have equal fingerprints, and sorting numbers is several times faster than hashing strings.
    ordered = np.sort(prints)
    shared = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(shared):
        return ()
    counts = path.filter(bools(np.isin(prints, shared))).value_counts()
    often = np.flatnonzero(numbers(counts.field("counts")) > 1)[:_MANY]
    return tuple(counts.field("values").take(int32s(often)).to_pylist())


def sizes(adds: pa.Table) -> pa.ChunkedArray:
    """Bytes of each file. Raises DamagedTableError if a size is missing or negative."""
    _refuse(adds, adds["size"].is_null(), "has no size")
    _refuse(adds, bools(_numbers(adds["size"]) < 0), "has a negative size")
    return adds["size"]


def deleted_rows(adds: pa.Table) -> pa.ChunkedArray:
    """Cardinality of each file's DV, 0 without one. Raises DamagedTableError if a descriptor is invalid."""
    descriptors = adds["deletionVector"]
    zeros = int64s(np.zeros(len(adds), np.int64))
    if descriptors.null_count == len(adds):
        return pa.chunked_array([zeros])
    with_dv = adds.filter(descriptors.is_valid())
    parts = {child.name: pc.struct_field(with_dv["deletionVector"], child.name) for child in DV_TYPE}
    for name in ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality"):
        _refuse(with_dv, parts[name].is_null(), f"has a deletion vector without {name}")
    for name in ("sizeInBytes", "cardinality", "offset"):
        negative = pc.less(parts[name].cast(pa.int64()), integer(0))
        _refuse(with_dv, negative, f"has a deletion vector with a negative {name}")
    for kind in set(parts["storageType"].unique().to_pylist()) - _STORAGE_TYPES:
        unknown = pc.equal(parts["storageType"], kind)
        _refuse(with_dv, unknown, f"has a deletion vector of the unknown storage type {kind!r}")
    return pc.coalesce(pc.struct_field(descriptors, "cardinality"), zeros)


def _refuse(adds: pa.Table, bad: pa.ChunkedArray | pa.Array, problem: str) -> None:
    """Raise if ``bad`` is true anywhere, naming the first such file."""
    if not pc.any(bad).as_py():
        return
    raise DamagedTableError(f"data file {adds['path'].filter(bad)[0].as_py()} {problem}")


def _numbers(column: pa.ChunkedArray) -> Any:
    return np.concatenate([numbers(chunk) for chunk in column.chunks] or [np.zeros(0, np.int64)])
