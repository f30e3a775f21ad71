"""Orders any number of rows in bounded memory: rows are distributed to buckets on local disk, and buckets are sorted
one by one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dv_maintenance.engine.parquet.footer import MAX_BATCH_ROWS
from dv_maintenance.engine.rows.curve import Curve, arrow_numbers
from dv_maintenance.engine.scan import open_source
from dv_maintenance.files.arrays import combined

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import ScanTask

BUCKET_BYTES = 64 << 20
# Files are open side by side.
_MAX_BUCKETS = 256
# Estimated decoded bytes per encoded byte; the size of buckets need not be exact.
_DECODED = 4
_SAMPLE_ROWS = 1 << 20
# A bucket of so many times its intended size consists of equal places: it need not be sorted, and would not fit in
# memory.
_SKEWED = 8
_PLACE = "place on the curve"


Path = tuple[str, ...]
"""A top-level column, or a field of a struct in one."""


def _keys(rows: pa.RecordBatch | pa.Table, columns: Sequence[Path]) -> pa.Table:
    """The values of the columns, named by their position. A field of a null struct is null."""
    found = [rows.column(top) if not rest else pc.struct_field(rows.column(top), rest) for top, *rest in columns]
    return pa.Table.from_arrays(found, names=[str(at) for at in range(len(columns))])


def _every(batch: pa.RecordBatch, step: int) -> pa.RecordBatch:
    return batch if step == 1 else batch.take(arrow_numbers(np.arange(0, batch.num_rows, step)))


class Ordering:
    """Takes batches in any order, and returns their rows by place on the curve, rows of equal places by the columns'
    values.

    Memory holds one bucket; a temporary folder holds all rows, decoded.
    """

    @classmethod
    def of(cls, task: ScanTask, columns: Sequence[Path], storage: Storage) -> Self:
        """For the live rows of the task's sources. Reads only ``columns``, once. Raises as ``scan.scan``."""
        tops = dict.fromkeys(path[0] for path in columns)
        keys = replace(task, schema=pa.schema([task.schema.field(name) for name in tops]))
        step = max(1, sum(source.rows or 0 for source in task.sources) // _SAMPLE_ROWS)
        parts = [_keys(keys.schema.empty_table(), columns)]
        for source in task.sources:
            with open_source(source, keys, storage) as reader:
                parts += [_keys(_every(batch, step), columns) for batch in reader.batches()]
        sample = pa.concat_tables(parts)
        curve = Curve.of_sample(sample)
        places = np.sort(curve.places([column.combine_chunks() for column in sample.columns]))
        return cls(task.schema, columns, curve, places, sum(source.size for source in task.sources))

    def __init__(
        self, schema: pa.Schema, columns: Sequence[Path], curve: Curve, sample: Any, encoded_bytes: int
    ) -> None:
        self._schema = schema
        self._columns = tuple(columns)
        self._curve = curve
        buckets = min(_MAX_BUCKETS, max(1, _DECODED * encoded_bytes // BUCKET_BYTES))
        at = np.arange(1, buckets) * len(sample) // buckets
        self._bounds = np.unique(sample[at]) if len(sample) else sample
        self._stack = ExitStack()
        self._folder = ""
        self._writers: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dv-maintenance-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Distribute the rows of a batch of the schema."""
        places = self._curve.places([combined(each) for each in _keys(batch, self._columns).columns])
        batch = batch.append_column(_PLACE, arrow_numbers(places))
        buckets: Any = np.searchsorted(self._bounds, places, side="right")
        order = np.argsort(buckets, kind="stable")
        shared = batch.take(arrow_numbers(order))
        starts = np.flatnonzero(np.diff(buckets[order], prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            self._write(int(buckets[order[start]]), shared.slice(start, stop - start))

    def batches(self, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """All rows in order, as batches of the schema, of about ``most_bytes`` or less."""
        for writer in self._writers.values():
            writer.close()
        for bucket in sorted(self._writers):
            path = self._path(bucket)
            with pa.OSFile(path) as file, pa.ipc.open_stream(file) as reader:
                if self._bytes[bucket] > _SKEWED * BUCKET_BYTES:
                    parts: Iterator[pa.RecordBatch] = iter(reader)
                else:
                    table = self._sorted(reader.read_all())
                    at_once = min(MAX_BATCH_ROWS, max(1, most_bytes * table.num_rows // max(table.nbytes, 1)))
                    parts = iter(table.to_batches(at_once))
                for part in parts:
                    yield part.select(self._schema.names)
            os.unlink(path)

    def _sorted(self, table: pa.Table) -> pa.Table:
        keys = _keys(table, self._columns).add_column(0, _PLACE, table[_PLACE])
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
        return table.combine_chunks().take(order)

    def _write(self, bucket: int, batch: pa.RecordBatch) -> None:
        if bucket not in self._writers:
            sink = self._stack.enter_context(pa.OSFile(self._path(bucket), "wb"))
            schema = self._schema.append(pa.field(_PLACE, pa.uint64()))
            self._writers[bucket] = self._stack.enter_context(pa.ipc.new_stream(sink, schema))
            self._bytes[bucket] = 0
        self._writers[bucket].write_batch(batch)
        self._bytes[bucket] += batch.nbytes

    def _path(self, bucket: int) -> str:
        return os.path.join(self._folder, f"{bucket}.arrows")
