"""Classic checkpoints: the whole state of one version in one Parquet file (protocol: Checkpoints)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dv_maintenance.errors import RefusedError
from dv_maintenance.files.arrays import strings
from dv_maintenance.storage import FileExistsAlreadyError, Storage
from dv_maintenance.tables.delta.commit.ratification import check_published
from dv_maintenance.tables.delta.features import check_writable
from dv_maintenance.tables.delta.log.bulk import ADD_TYPES, REMOVE_TYPES
from dv_maintenance.tables.delta.log.pointer import point_to
from dv_maintenance.tables.delta.log.replay import FullState, full_state
from dv_maintenance.tables.delta.log.segment import checkpoint_path, complete_checkpoints
from dv_maintenance.tables.delta.log.strictness import is_object
from dv_maintenance.tables.delta.same_table import check_same_table
from dv_maintenance.tables.delta.snapshot import DeltaSnapshot
from dv_maintenance.tables.delta.vacuum.retention import DEFAULT_RETENTION, RETENTION, interval_millis
from dv_maintenance.units import epoch_millis, parse_count

_BATCH: Final = 65_536  # rows that are spread over the checkpoint's columns at a time
_ROW_GROUP: Final = 262_144

_STRINGS: Final = pa.map_(pa.string(), pa.string())
_NAMES: Final = pa.list_(pa.string())

# Protocol: Checkpoint Schema. One column per kind of action, one row per action; each row has one non-null column.
_COLUMNS: Final[dict[str, pa.StructType]] = {
    "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
    "add": pa.struct([(name, kind) for name, kind in ADD_TYPES.items() if name != "numRecords"]),
    "remove": pa.struct(list(REMOVE_TYPES.items())),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("description", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", _STRINGS)])),
            ("schemaString", pa.string()),
            ("partitionColumns", _NAMES),
            ("configuration", _STRINGS),
            ("createdTime", pa.int64()),
        ]
    ),
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", _NAMES),
            ("writerFeatures", _NAMES),
        ]
    ),
    "domainMetadata": pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
    "checkpointMetadata": pa.struct([("version", pa.int64()), ("tags", _STRINGS)]),
}


def write_checkpoint(
    storage: Storage, snapshot: DeltaSnapshot, *, now: int | None = None, replace: bool = False
) -> None:
    """Write the checkpoint of a snapshot's version, then point ``_last_checkpoint`` to it. An existing one stays unless
    it is damaged (``replace``). Every checkpoint of a version holds the same state.

    Statistics are always written as JSON, whatever ``delta.checkpoint.writeStatsAsJson`` and ``writeStatsAsStruct``
    say: every reader accepts JSON, and no reader may lose the row counts that files with DVs must have. Tombstones
    older than the table's retention are left out. The compressed file is built in memory, so that no reader ever sees
    half of it. ``now``: epoch milliseconds.

    Raises
    ------
    RefusedError : the table protects its checkpoints before a later version (protocol: Checkpoint Protection), or the
        version is not published.
    UnsupportedFeatureError : the table has a feature we don't know, which may add to the checkpoint.
    ConflictError : another table was created there since the snapshot was read.
    DamagedTableError, StorageError : reading the state or writing failed.
    """
    check_writable(storage, snapshot, "log")
    _check_protection(snapshot)
    check_published(storage, snapshot.version)
    if snapshot.segment.checkpoint_version == snapshot.version:
        return
    state = full_state(storage, snapshot)
    cutoff = _cutoff(snapshot, epoch_millis(now))
    path = checkpoint_path(snapshot.version)
    rows, data = _encode(state, snapshot, cutoff)
    check_same_table(storage, snapshot)
    try:
        if replace:
            storage.put(path, data)
        else:
            storage.create(path, data)
    except FileExistsAlreadyError:
        return  # another writer created the same checkpoint in the meantime, and points to it
    check_same_table(storage, snapshot)
    point_to(
        storage,
        complete_checkpoints(storage, snapshot.version),
        {
            "version": snapshot.version,
            "size": rows,
            "sizeInBytes": len(data),
            "numOfAddFiles": state.adds.num_rows,
        },
    )


def _check_protection(snapshot: DeltaSnapshot) -> None:
    if "checkpointProtection" not in snapshot.protocol.features("writer"):
        return
    text = snapshot.metadata.configuration.get("delta.requireCheckpointProtectionBeforeVersion", "0")
    before = parse_count(text)
    if before is None or snapshot.version < before:
        raise RefusedError(
            f"the table allows no new checkpoints before version {text}",
            at=snapshot,
            next_step="write the checkpoint of a newer version",
        )


def _cutoff(snapshot: DeltaSnapshot, now: int) -> int:
    """Tombstones from this time on (epoch milliseconds) are kept; all of them if the retention can't be parsed."""
    try:
        return now - interval_millis(snapshot.metadata.configuration.get(RETENTION, DEFAULT_RETENTION))
    except ValueError:
        return 0


# -- content -----------------------------------------------------------------------------------------------------


def _encode(state: FullState, snapshot: DeltaSnapshot, cutoff: int) -> tuple[int, bytes]:
    """Number of actions, and the Parquet file."""
    v2 = "v2Checkpoint" in snapshot.protocol.features("writer")
    schema = pa.schema([(name, fields) for name, fields in _COLUMNS.items() if v2 or name != "checkpointMetadata"])
    sink = pa.BufferOutputStream()
    count = 0
    with pq.ParquetWriter(
        sink,
        schema,
        compression="snappy",
        # Dictionaries pay off where values repeat; paths and statistics never do.
        use_dictionary=[
            f"{kind}.{name}"
            for kind in ("add", "remove")
            for name in ("partitionValues.key_value.key", "partitionValues.key_value.value")
        ],
        # Nested columns have no use for bounds, and those of `stats` are as long as its values.
        write_statistics=["add.path", "remove.path"],
        store_schema=False,
    ) as writer:
        for kind, actions in _actions(state, snapshot, cutoff):
            if kind in schema.names:
                writer.write_batch(_spread(kind, actions, schema), row_group_size=_ROW_GROUP)
                count += len(actions)
    return count, sink.getvalue().to_pybytes()


def _spread(kind: str, actions: pa.StructArray, schema: pa.Schema) -> pa.RecordBatch:
    columns = [actions if field.name == kind else pa.nulls(len(actions), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _actions(state: FullState, snapshot: DeltaSnapshot, cutoff: int) -> Iterator[tuple[str, pa.StructArray]]:
    small: dict[str, list[dict[str, Any]]] = {
        # Marks the content as following the v2 specification, whatever the file's name (protocol: V2 Spec).
        "checkpointMetadata": [{"version": snapshot.version}],
        "protocol": [state.protocol.to_json()],
        "metaData": [state.metadata.to_json()],
        "txn": [
            {"appId": app, "version": transaction.version, "lastUpdated": transaction.last_updated}
            for app, transaction in state.transactions.items()
        ],
        "domainMetadata": [
            {"domain": domain, "configuration": configuration, "removed": False}
            for domain, configuration in state.domains.items()
        ],
    }
    for kind, bodies in small.items():
        if bodies:
            yield kind, pa.array(bodies, _COLUMNS[kind])
    removes = state.removes
    fresh = removes.filter(pc.greater_equal(pc.fill_null(removes["deletionTimestamp"], 0), cutoff))
    for kind, table in (("remove", fresh), ("add", state.adds)):
        for batch in table.to_batches(max_chunksize=_BATCH):
            yield kind, _as_actions(kind, batch)


def _as_actions(kind: str, batch: pa.RecordBatch) -> pa.StructArray:
    # A checkpoint holds state, not changes: readers of changes must not count its actions.
    columns = {"dataChange": pa.repeat(pa.scalar(False), len(batch))}
    if kind == "add":
        columns |= {"partitionValues": _without_nulls(batch.column("partitionValues")), "stats": _objects(batch)}
    return pa.StructArray.from_arrays(
        [columns[field.name] if field.name in columns else batch.column(field.name) for field in _COLUMNS[kind]],
        fields=list(_COLUMNS[kind]),
    )


def _without_nulls(values: pa.MapArray) -> pa.MapArray:
    """Empty maps for nulls, which a required field may not have."""
    if not values.null_count:
        return values
    known = pa.concat_arrays([values])  # from offset 0
    return pa.MapArray.from_arrays(known.offsets, known.keys, known.items)


def _objects(batch: pa.RecordBatch) -> pa.StringArray:
    """Statistics that are not a JSON object are left out: strict readers fail at them."""
    texts = batch.column("stats")
    values = texts.to_pylist()
    whole = [is_object(each) for each in values]
    return texts if all(whole) else strings([text if fine else None for text, fine in zip(values, whole, strict=True)])
