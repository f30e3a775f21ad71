"""Rows that several files hold together, each file some of the columns: read in parallel, and joined by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dv_maintenance.engine.protocols import Reader
from dv_maintenance.engine.rows.live_rows import LiveRows
from dv_maintenance.engine.span import WHOLE, Span
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.tables.work import ScanTask, SourceFile

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.predicate import Predicate


@dataclass(frozen=True, slots=True)
class SideBySide:
    """See ``protocols.Reader``. Never split: everything belongs to the span that begins with the file. Memory is
    bounded by a batch of each part.
    """

    uri: str
    parts: Sequence[Reader]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        return self.parts[0].rows

    @property
    def purged(self) -> int:
        return self.parts[0].purged

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def batches(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[pa.RecordBatch]:
        """See ``protocols.Reader``."""
        for live in self.live(span, predicate):
            yield live.batch

    def live(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[LiveRows]:
        """See ``protocols.Reader``. No part skips rows by itself, as the others would not. Raises as ``scan.scan``."""
        del predicate
        if span.start != 0:
            return
        streams = [part.live() for part in self.parts]
        heads = [next(stream, None) for stream in streams]
        at = [0] * len(streams)  # rows of each batch that are done
        while any(heads):
            present = [live for live in heads if live is not None]
            if len(present) < len(heads):
                raise DamagedTableError(
                    f"the files that hold the rows of {self.uri} together have different numbers of rows",
                    next_step="restore the files, or an older version of the table",
                )
            count = min(live.batch.num_rows - done for live, done in zip(present, at, strict=True))
            slices = [live.batch.slice(done, count) for live, done in zip(present, at, strict=True)]
            places = present[0].positions().slice(at[0], count)
            yield LiveRows(self._together(slices), present[0].first, present[0].rows, None, places)
            for number, live in enumerate(present):
                at[number] += count
                if at[number] == live.batch.num_rows:
                    heads[number], at[number] = next(streams[number], None), 0

    def _together(self, slices: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        columns = {name: batch.column(name) for batch in slices for name in batch.schema.names}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def parts_of(source: SourceFile) -> tuple[SourceFile, ...]:
    """The files that hold the rows of a source: itself, unless its ``format`` is ``parts``. Then ``details["parts"]``
    has them as JSON. The schema of each names the columns to read from it; all share ``dv`` and ``rows``.
    """
    return tuple(map(SourceFile.from_json, source.details["parts"])) if source.format == "parts" else (source,)


@contextmanager
def open_parts(source: SourceFile, task: ScanTask, storage: Storage) -> Iterator[SideBySide]:
    """Open the files that hold the rows of ``source``; each is checked. Raises as ``scan.open_source``."""

    def task_of(part: SourceFile) -> ScanTask:
        own: pa.Schema = part.schema
        return ScanTask(
            (part,), pa.schema([task.schema.field(name) for name in own.names], own.metadata), task.match_by
        )

    from dv_maintenance.engine.scan import open_source

    with ExitStack() as opened:
        parts = [opened.enter_context(open_source(part, task_of(part), storage)) for part in parts_of(source)]
        yield SideBySide(source.uri, parts, task.schema)
