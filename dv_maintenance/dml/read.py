"""The live rows for which a condition in Spark SQL is true.

Spark decides which rows these are, as for a DELETE, and says where they are (or this process, see ``in_process``). This
process then reads them from the files, so that every type reads as it does without a condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.dml.catalyst import demanded_by, shape
from dv_maintenance.dml.condition import Condition
from dv_maintenance.dml.in_process import columns_in, positions_here, predicate_here
from dv_maintenance.dml.operation import row_level, session_of
from dv_maintenance.dml.prune import files_that_may_match
from dv_maintenance.dml.rows import live_rows, positions, some_column, spark_errors
from dv_maintenance.dml.session_time import scan_tasks
from dv_maintenance.dml.shapes import shapes_in
from dv_maintenance.tables.predicate import bind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dv_maintenance.dv import DeletionVector
    from dv_maintenance.engine import Engine
    from dv_maintenance.tables.model import Snapshot
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.rows import RowLevelTable
    from dv_maintenance.tables.table import Table
    from dv_maintenance.tables.work import ScanTask


def matching_rows(
    table: Table,
    engine: SparkSession | Engine,
    condition: str,
    snapshot: Snapshot,
    schema: pa.Schema,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a snapshot as batches of ``schema``, some of the table's columns in any order.

    limit : at most this many rows, chosen arbitrarily; by default all.

    Raises
    ------
    UsageError : Spark does not understand the condition.
    RefusedError : conditions on tables of this format are not supported.
    DamagedTableError, StorageError : a file that had to be read is damaged or unreadable.
    """
    target = row_level(table)
    here = predicate_here(engine, target, snapshot, condition)
    if here is not None:
        return _rows_here(target, here, snapshot, schema, limit)
    parsed = Condition.parse(condition, snapshot.schema.names)
    session = session_of(engine)
    named = pa.schema([snapshot.schema.field(name) for name in parsed.columns])
    shapes = shapes_in(session, snapshot, [condition])
    with spark_errors(snapshot.schema.names):
        predicate = demanded_by(shapes.shown(shape(session, named)).where(condition))
    chosen = files_that_may_match(target, snapshot, predicate)
    # A condition that names no column (rand() < 0.5) needs one to count the rows.
    names = parsed.columns or some_column(chosen.schema)
    tasks = scan_tasks(session, target, chosen, names)
    of_names = pa.schema([chosen.schema.field(name) for name in names])
    with spark_errors():
        bound = bind(predicate, of_names)
        live = live_rows(session, tasks, shapes.bytes_in(of_names), table.storage.options, bound)
        matching = shapes.shown(live.rows).where(condition)
        if limit is not None:
            matching = matching.limit(limit)
    found = positions(matching, live.file, live.row)[0] if tasks else {}
    # The same files in the same order, with the columns that were asked for.
    to_read = scan_tasks(session, target, chosen, schema.names)
    return _rows(to_read, found, schema, table.storage.options)


def _rows_here(
    table: RowLevelTable, predicate: Predicate, snapshot: Snapshot, schema: pa.Schema, limit: int | None
) -> Iterator[pa.RecordBatch]:
    chosen = files_that_may_match(table, snapshot, predicate)
    named = columns_in(predicate, snapshot.schema).names or some_column(chosen.schema)
    options = table.storage.options
    left = 2**63 - 1 if limit is None else limit
    for searched, read in zip(table.scan_tasks(chosen, named), table.scan_tasks(chosen, schema.names), strict=True):
        if not left:
            return
        for batch in _rows([read], {0: positions_here(searched, predicate, options)}, schema, options):
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return


def _rows(
    tasks: Sequence[ScanTask], found: Mapping[int, DeletionVector], schema: pa.Schema, options: Mapping[str, str] | None
) -> Iterator[pa.RecordBatch]:
    """Read while the batches are consumed; none of them is empty."""
    from dv_maintenance.engine.scan import open_source
    from dv_maintenance.storage import Storage

    for file, wanted in sorted(found.items()):
        (source,) = tasks[file].sources
        with open_source(source, tasks[file], Storage(source.uri, options)) as reader:
            for live in reader.live():
                places = live.positions()
                mask = _is_in(places, wanted)
                if mask is not None:
                    batch = live.batch.filter(mask)
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _is_in(places: pa.Int64Array, wanted: DeletionVector) -> pa.BooleanArray | None:
    """Which of these ascending positions are wanted; ``None`` if none of them is."""
    import numpy as np

    if not len(places):
        return None
    first, last = places[0].as_py(), places[-1].as_py()
    positions = np.asarray(wanted.positions(first, last + 1))
    if not len(positions):
        return None
    bits = np.packbits(np.isin(np.asarray(places), positions, assume_unique=True), bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(places), [None, pa.py_buffer(bits)])
