"""Live rows of Parquet files: row group by row group, in batches of bounded bytes, without the rows that a DV names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dv_maintenance.engine.faults import reading
from dv_maintenance.engine.parquet.calendars import FileCalendar
from dv_maintenance.engine.parquet.footer import batch_rows, compressed_bytes, middle, row_bytes
from dv_maintenance.engine.parquet.row_groups import may_hold
from dv_maintenance.engine.protocols import WHOLE, Span
from dv_maintenance.engine.rows.row_shape import RowShape
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.parquet_footer import open_parquet_file

if TYPE_CHECKING:
    from dv_maintenance.engine.rows.live_rows import LiveRows
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import ScanTask, SourceFile

__all__ = ["SourceReader", "open_parquet"]

# A row group's wanted columns are fetched whole up to this size; beyond it each column is read through a buffer.
_WHOLE_BYTES = 32 << 20
_LEAST_BUFFER = 64 << 10


class SourceReader:
    """One open source file. All fields are known before any row is read.

    rows : physical rows.
    purged : rows that the DV names.
    size : bytes.
    footer : ``pyarrow.parquet.FileMetaData``.
    projection : onto the task's schema.
    """

    def __init__(self, file: pa.NativeFile, source: SourceFile, task: ScanTask, storage: Storage) -> None:
        self._uri = source.uri
        parquet = _open(file)
        self.footer: Any = parquet.metadata
        self.rows: int = self.footer.num_rows
        self.size: int = file.size()
        calendar = FileCalendar.of(self.footer, source.uri) if source.spark_keys else None
        self._shape = RowShape(parquet.schema_arrow, self.rows, source, task, storage, calendar=calendar)
        self.projection = self._shape.projection
        self.purged: int = self._shape.purged
        buffer_bytes = self._buffer_bytes()
        self._parquet = _open(file, self.footer, buffer_bytes) if buffer_bytes else parquet

    def batches(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[pa.RecordBatch]:
        """Live rows in file order, of the row groups whose middle is in ``span`` and whose statistics do not exclude
        the bound ``predicate``. The predicate is not applied to rows.
        """
        for live in self.live(span, predicate):
            yield live.batch

    def live(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[LiveRows]:
        """The ``batches``, with the positions of their rows in the file."""
        first = 0
        widest = 0.0
        for group in range(self.footer.num_row_groups):
            metadata = self.footer.row_group(group)
            stop = first + metadata.num_rows
            if self._wants(metadata, first, span, predicate):
                # The bytes per row of earlier row groups correct the estimate from the footer.
                expected = max(row_bytes(metadata, self.projection.leaves), widest)
                for batch, rows in self._read(group, metadata.num_rows, batch_rows(expected)):
                    if batch is not None:
                        widest = max(widest, batch.nbytes / rows)
                    live = self._shape(batch, rows, first)
                    first += rows
                    if live is not None:
                        yield live
                if first != stop:
                    raise DamagedTableError(f"row group {group} of {self._uri} contradicts the row count of its footer")
            first = stop

    def _wants(self, group: Any, first: int, span: Span, predicate: Predicate | None) -> bool:
        if not span.holds(middle(group)) or self._shape.deleted(first, first + group.num_rows) == group.num_rows:
            return False
        return predicate is None or may_hold(group, self.projection, predicate)

    def _read(self, group: int, rows: int, at_once: int) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        leaves = self.projection.leaves
        if not leaves:
            for first in range(0, rows, at_once):
                yield None, min(at_once, rows - first)
            return
        # By leaf index, as dots in a column's name make paths ambiguous; ParquetFile itself only accepts paths.
        batches = self._parquet.reader.iter_batches(
            at_once, row_groups=[group], column_indices=list(leaves), use_threads=False
        )
        while True:
            with reading(self._uri):
                batch = next(batches, None)
            if batch is None:
                return
            if batch.num_rows:
                yield batch, batch.num_rows

    def _buffer_bytes(self) -> int:
        """Read-ahead per column; 0 means whole column chunks."""
        leaves = self.projection.leaves
        groups = (self.footer.row_group(group) for group in range(self.footer.num_row_groups))
        if max((compressed_bytes(group, leaves) for group in groups), default=0) <= _WHOLE_BYTES:
            return 0
        return max(_LEAST_BUFFER, _WHOLE_BYTES // len(leaves))


@contextmanager
def open_parquet(source: SourceFile, task: ScanTask, storage: Storage) -> Iterator[SourceReader]:
    """Open a Parquet file and its DV. Raises as :func:`scan` does."""
    with reading(source.uri):
        file = storage.open_input(source.uri)
    with file:
        with reading(source.uri):
            reader = SourceReader(file, source, task, storage)
        yield reader


def _open(file: pa.NativeFile, footer: Any = None, buffer_bytes: int = 0) -> Any:
    return open_parquet_file(
        file,
        footer,
        buffer_size=buffer_bytes,
        # Arrow's own read-ahead fetches the whole row group at once, and ignores the buffer size.
        pre_buffer=not buffer_bytes,
        # In nanoseconds INT96 would wrap around outside 1677 to 2262.
        coerce_int96_timestamp_unit="us",
    )
