"""Reconcile a checkpoint and the commits after it into the state of one version (protocol: Action Reconciliation).

A logical file is (path, DV id), and the newest action about it wins. Commits are few and become a dict; a checkpoint
may hold a million files and stays in Arrow: one membership test on the path finds the few that commits touched, and
only those are compared by their full key.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.files.arrays import bools, flags, integer, null_column, taken
from dv_maintenance.files.arrays import numbers as flat
from dv_maintenance.storage import Storage
from dv_maintenance.tables.delta.log.actions import Metadata, Protocol, Transaction
from dv_maintenance.tables.delta.log.bulk import ADD_TYPES, REMOVE_TYPES, dv_ids
from dv_maintenance.tables.delta.log.checkpoint import Checkpoint, read_checkpoint
from dv_maintenance.tables.delta.log.fingerprints import among, fingerprints
from dv_maintenance.tables.delta.log.segment import CommitFile, LogSegment, read_commits
from dv_maintenance.tables.delta.log.tail import Keys, Newer, Tail, key_strings

if TYPE_CHECKING:
    from dv_maintenance.tables.delta.snapshot import DeltaSnapshot

_ALL_ADD: Final = tuple(name for name in ADD_TYPES if name != "numRecords")
_ALL_REMOVE: Final = tuple(REMOVE_TYPES)
# Average bytes per commit from which columns are faster. In many small commits, later actions supersede most others; a
# dict of the latest actions converts only those to columns.
BULK: int = 1 << 18
# After a checkpoint, smaller commits become columns, too: few of their actions are superseded, and Arrow parses them
# without Python's lock while the checkpoint is decoded.
_BULK_AFTER_CHECKPOINT: Final = 1 / 16
# After this many batches, the memory that they no longer use goes back to the system.
_RELEASED: Final = 16
TOMBSTONE_COLUMNS: Final = ("path", "deletionVector", "deletionTimestamp", "size", "dataChange")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One version. ``adds`` and ``removes`` have the requested columns, under the log's own names; protocol and
    metadata are ``None`` if the log has none.
    """

    protocol: Protocol | None
    metadata: Metadata | None
    domains: Mapping[str, str]  # without removed ones
    transactions: Mapping[str, Transaction]
    adds: pa.Table
    removes: pa.Table
    prints: Any  # fingerprints of the paths of ``adds``


@dataclass(frozen=True, slots=True, kw_only=True)
class FullState:
    """Everything that a checkpoint of one version holds.

    ``adds`` has the columns path, partitionValues, size, modificationTime, dataChange, stats (JSON), tags,
    deletionVector, baseRowId, defaultRowCommitVersion, clusteringProvider; ``removes`` has path, deletionTimestamp,
    dataChange, extendedFileMetadata, partitionValues, size, deletionVector, baseRowId, defaultRowCommitVersion.
    ``removes`` still includes expired tombstones.
    """

    protocol: Protocol
    metadata: Metadata
    domains: Mapping[str, str]
    transactions: Mapping[str, Transaction]
    adds: pa.Table
    removes: pa.Table


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause garbage collection. Parsed JSON has no cycles, yet the collector walks all of it repeatedly, which takes a
    fifth of a replay's time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def tombstones(storage: Storage, snapshot: DeltaSnapshot) -> pa.Table:
    """Removes that this version still holds, see :func:`tombstone_table`. Raises DamagedTableError."""
    return tombstone_table(replay(storage, snapshot.segment, removes=TOMBSTONE_COLUMNS).removes)


def tombstone_table(removes: pa.Table) -> pa.Table:
    """Removes of a state, expired or not, one row per logical file. ``removes`` must have ``TOMBSTONE_COLUMNS``.

    Columns: ``path`` (raw), ``dv_id``, ``dv`` (as in ``DeltaSnapshot.files``), ``deletion_timestamp`` (epoch
    milliseconds; 0, so long expired, if the log has none), ``size`` (null if unknown), ``data_change``.
    """
    from dv_maintenance.tables.delta.rows.files import dv_column

    when = removes["deletionTimestamp"]
    return pa.table(
        {
            "path": removes["path"],
            "dv_id": dv_ids(removes["deletionVector"]),
            "dv": dv_column(removes["deletionVector"]),
            "deletion_timestamp": pc.fill_null(when, integer(0)),
            "size": removes["size"],
            "data_change": removes["dataChange"],
        }
    )


def full_state(storage: Storage, snapshot: DeltaSnapshot) -> FullState:
    """All that a checkpoint of the snapshot's version must hold. Raises DamagedTableError."""
    state = replay(storage, snapshot.segment, adds=_ALL_ADD, removes=_ALL_REMOVE)
    return FullState(
        protocol=snapshot.protocol,
        metadata=snapshot.metadata,
        domains=state.domains,
        transactions=state.transactions,
        adds=state.adds.filter(bools(first_of_each(state.adds))),
        removes=state.removes,
    )


def first_of_each(adds: pa.Table) -> Any:
    """A mask of the first add of each logical file. A checkpoint may name one twice; Spark reads it once."""
    keys = key_strings(adds["path"], dv_ids(adds["deletionVector"]))
    codes = pa.chunked_array(keys).combine_chunks().dictionary_encode().indices
    _, firsts = np.unique(flat(codes), return_index=True)
    mask = np.zeros(len(adds), bool)
    mask[firsts] = True
    return mask


@no_collection()
def replay(storage: Storage, segment: LogSegment, *, adds: Sequence[str] = (), removes: Sequence[str] = ()) -> State:
    """The state of a segment, with these columns of its live adds and of its tombstones.

    Raises
    ------
    DamagedTableError : names the file that cannot be trusted.
    """
    columns = {
        kind: tuple(dict.fromkeys(("path", "deletionVector", *names)))
        for kind, names in (("add", adds), ("remove", removes))
        if names
    }
    paths = [file.path for file in segment.checkpoint_files]
    # Parquet is decoded outside Python's lock, most JSON inside it: in parallel they take little longer than one.
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_checkpoint, storage, paths, columns) if paths else None
        newer = _newer(storage, segment.commits, adds, removes, keyed=bool(paths))
        checkpoint = reading.result() if reading else Checkpoint()
    base = Tail(storage.uri)
    base.read(checkpoint.actions, f"checkpoint {segment.checkpoint_version}")
    domains = {**base.domains, **newer.domains}
    live, prints = _merge(checkpoint.bulk["add"], newer.adds, newer.prints, newer.keys)
    return State(
        protocol=newer.protocol or base.protocol,
        metadata=newer.metadata or base.metadata,
        domains={name: value for name, value in domains.items() if value is not None},
        transactions={**base.transactions, **newer.transactions},
        adds=live,
        removes=_merge(checkpoint.bulk["remove"], newer.removes, None, newer.keys)[0],
        prints=prints,
    )


def _newer(
    storage: Storage, commits: Sequence[CommitFile], adds: Sequence[str], removes: Sequence[str], *, keyed: bool
) -> Newer:
    enough = BULK * (_BULK_AFTER_CHECKPOINT if keyed else 1)
    if commits and sum(file.size for file in commits) >= enough * len(commits):
        from dv_maintenance.tables.delta.log.bulk_tail import bulk_tail

        found = bulk_tail(storage, commits, adds, removes, keyed=keyed)
        if found is not None:
            return found
    tail = Tail(storage.uri)
    for file, actions in read_commits(storage, commits):
        tail.read(actions, file.path)
    return tail.newer(adds, removes, keyed=keyed)


def _merge(old: list[pa.Table], newer: pa.Table, newer_prints: Any, touched: Keys | None) -> tuple[pa.Table, Any]:
    """The checkpoint's rows that no commit touched, followed by the commits' rows, and the fingerprints of their paths.
    Without ``newer_prints``, the fingerprints cover the checkpoint's rows only.

    Empties ``old``: each of its batches is released as soon as its surviving rows are copied.
    """
    tables, prints = [], [np.zeros(0, np.uint64)]
    while old:
        table = old.pop(0)
        schema, batches = table.schema, table.to_batches()
        numbers = fingerprints(table["path"])
        keep = _surviving(table, numbers, touched)
        del table
        if keep is not None:
            numbers, batches = numbers[keep], _filtered(batches, keep)
        prints.append(numbers)
        tables.append(_conform(pa.Table.from_batches(batches, schema), newer.schema))
    if newer_prints is not None:
        prints.append(newer_prints)
    return pa.concat_tables([*tables, newer]), np.concatenate(prints)


def _filtered(batches: list[pa.RecordBatch], keep: Any) -> list[pa.RecordBatch]:
    """The rows to keep. Empties ``batches``."""
    found, begin = [], 0
    batches.reverse()
    while batches:
        batch = batches.pop()
        mask = keep[begin : begin + len(batch)]
        begin += len(batch)
        found.append(batch if mask.all() else batch.filter(bools(mask)))
        if len(found) % _RELEASED == 0:
            # This thread can't reuse memory that other threads allocated.
            del batch
            pa.default_memory_pool().release_unused()
    return found


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The schema's columns. A column that a checkpoint left out, because it is null throughout, becomes nulls."""
    present = set(table.column_names)
    columns = [table[each.name] if each.name in present else null_column(len(table), each.type) for each in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _surviving(old: pa.Table, prints: Any, touched: Keys | None) -> Any:
    """A mask of the rows that hold an action whose key is not in ``touched``; ``None`` if all rows do.

    prints : fingerprints of the paths.
    """
    path = old["path"]
    keep = flags(path.is_valid()).copy() if path.null_count else None
    hits = np.zeros(0, np.int64) if touched is None else among(prints, touched.prints)
    if touched is not None and len(hits):
        with_dv = "deletionVector" in old.column_names
        none = null_column(len(hits), pa.string())
        ids = dv_ids(pa.chunked_array([taken(old["deletionVector"], hits)])) if with_dv else none
        dead = flags(pc.is_in(key_strings(pa.chunked_array([taken(path, hits)]), ids), value_set=touched.keys))
        keep = np.ones(len(old), bool) if keep is None else keep
        keep[hits[dead]] = False
    return keep
