"""Files that are always read whole, as skipping a part of them is not worthwhile: ORC, Avro and lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dv_maintenance.engine.faults import reading
from dv_maintenance.engine.file_formats import format_of
from dv_maintenance.engine.parquet.footer import MAX_BATCH_ROWS
from dv_maintenance.engine.rows.live_rows import LiveRows, pieces
from dv_maintenance.engine.rows.row_shape import RowShape
from dv_maintenance.engine.span import WHOLE, Span
from dv_maintenance.errors import DamagedTableError

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.engine.protocols import StoredFile
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import ScanTask, SourceFile


class WholeReader:
    """See ``protocols.Reader``. A file is never split: it belongs to the span that begins with it."""

    def __init__(self, stored: StoredFile, source: SourceFile, task: ScanTask, storage: Storage) -> None:
        self._uri, self.stored = source.uri, stored
        self.rows: int = stored.rows
        self.size: int = source.size
        self._shape = RowShape(stored.schema, stored.rows, source, task, storage)
        stored.check(self._shape.projection.fields)

    @property
    def purged(self) -> int:
        return self._shape.purged

    def batches(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[pa.RecordBatch]:
        """See ``protocols.Reader``."""
        for live in self.live(span, predicate):
            yield live.batch

    def live(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[LiveRows]:
        """See ``protocols.Reader``. Raises as ``scan.scan``, and DamagedTableError if the file has a different number
        of rows than expected.
        """
        del predicate
        if span.start != 0 or self._shape.deleted(0, self.rows) == self.rows:
            return
        first = 0
        for batch, rows in self._read():
            live = self._shape(batch, rows, first) if first + rows <= self.rows else None
            first += rows
            if live is not None:
                yield live
        if first != self.rows:
            raise DamagedTableError(
                f"{self._uri} holds {first} rows or more, not {self.rows}",
                next_step="restore the file, or remove it from the table",
            )

    def _read(self) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        fields = self._shape.projection.fields
        if not fields:
            for first in range(0, self.rows, MAX_BATCH_ROWS):
                yield None, min(MAX_BATCH_ROWS, self.rows - first)
            return
        rows = 0
        for batch in self.stored.batches(fields):
            for piece in pieces(batch):
                yield piece, piece.num_rows
            rows += batch.num_rows
            if rows > self.rows:
                return


@contextmanager
def open_whole(source: SourceFile, task: ScanTask, storage: Storage) -> Iterator[WholeReader]:
    """Open a file by its format. Raises as ``scan.open_source``."""
    known = format_of(source)
    with reading(source.uri, known.title):
        file = storage.open_input(source.uri)
    with file:
        with reading(source.uri, known.title):
            reader = WholeReader(known.open_stored()(file, source, task), source, task, storage)
        yield reader
