"""Live rows of Parquet files: row group by row group, in batches of bounded bytes, without the rows that a DV names."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dv_maintenance.engine.faults import reading
from dv_maintenance.engine.parallel import columns_at_once
from dv_maintenance.engine.parquet.calendars import FileCalendar
from dv_maintenance.engine.parquet.dictionaries import check_indices
from dv_maintenance.engine.parquet.exact_int96 import ExactTimes
from dv_maintenance.engine.parquet.footer import batch_rows, compressed_bytes, middle, ranges, row_bytes
from dv_maintenance.engine.parquet.row_groups import may_hold
from dv_maintenance.engine.rows.row_shape import RowShape
from dv_maintenance.engine.span import WHOLE, Span
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.parquet_footer import open_parquet_file
from dv_maintenance.storage.remote_input import RemoteInput

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.codecs import KnownFile
    from dv_maintenance.engine.rows.live_rows import LiveRows
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.predicate import Predicate
    from dv_maintenance.tables.work import ScanTask, SourceFile

# A row group's wanted columns are fetched whole up to this size; beyond it each column is read through a buffer.
_WHOLE_BYTES = 32 << 20
_LEAST_BUFFER = 64 << 10
# From an object store each read is a request. From local disk a larger buffer gains no time.
_MOST_LOCAL_BUFFER = 1 << 20
# Small row groups share requests to an object store.
_REQUEST_BYTES = 16 << 20


class SourceReader:
    """One open source file. All fields are known before any row is read.

    file : its bytes.
    rows : physical rows.
    purged : rows that the DV names.
    size : bytes.
    footer : ``pyarrow.parquet.FileMetaData``.
    projection : onto the task's schema.
    threads : how many threads may decode; see ``rewrite``.
    """

    def __init__(
        self, file: pa.NativeFile, source: SourceFile, task: ScanTask, storage: Storage, footer: Any = None
    ) -> None:
        self._uri = source.uri
        self.file = file
        self.threads: Callable[[], int] = lambda: 1
        parquet = _open(file, footer)
        self.footer: Any = parquet.metadata
        self.rows: int = self.footer.num_rows
        self.size: int = file.size()
        calendar = FileCalendar.of(self.footer, source.uri) if source.spark_keys else None
        self._shape = RowShape(parquet.schema_arrow, self.rows, source, task, storage, calendar=calendar)
        self.projection = self._shape.projection
        self._on_disk = storage.on_disk(source.uri)
        self._buffer = self._buffer_bytes()
        self._parquet = _open(file, self.footer, self._buffer) if self._buffer else parquet
        self._for_rows = self._parquet
        self._exact = ExactTimes(file, self.footer, parquet.schema_arrow, self.projection)
        self._widest = 0.0
        self._expected: set[int] = set()

    @property
    def purged(self) -> int:
        return self._shape.purged

    def batches(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[pa.RecordBatch]:
        """Live rows in file order, of the row groups whose middle is in ``span`` and whose statistics do not exclude
        the bound ``predicate``. The predicate is not applied to rows.
        """
        for live in self.live(span, predicate):
            yield live.batch

    def live(self, span: Span = WHOLE, predicate: Predicate | None = None) -> Iterator[LiveRows]:
        """The ``batches``, with the positions of their rows in the file."""
        for group, first in self._groups(span, predicate):
            yield from self._live_in(group, first)

    def units(self, copied: Callable[[int], bool]) -> Iterator[pa.RecordBatch | int]:
        """The ``batches`` in file order; instead of them the number of each row group that is ``copied``."""
        for group, first in self._groups(WHOLE, None):
            if copied(group):
                yield group
            else:
                for live in self._live_in(group, first):
                    yield live.batch

    def fetch_ahead(self) -> None:
        """Begin to fetch the first row group with live rows, from an object store."""
        with closing(self._groups(WHOLE, None)) as groups:
            next(groups, None)

    def keep_dictionaries(self, leaves: Sequence[int]) -> None:
        """Read these leaves of text as dictionaries. To be called before any row is read."""
        if leaves:
            self._for_rows = _open(self.file, self.footer, self._buffer, leaves)

    def untouched(self, number: int) -> bool:
        """Whether no row of a row group is deleted."""
        return self.live_rows(number) == self._firsts[number + 1] - self._firsts[number]

    def live_rows(self, number: int) -> int:
        """Rows of a row group that are not deleted."""
        first, stop = self._firsts[number : number + 2]
        return stop - first - self._shape.deleted(first, stop)

    def filled(self, numbers: Iterable[int] | None = None) -> bool:
        """Whether the footer proves that row groups, by default all, have a value in all that is NOT NULL."""
        groups = range(self.footer.num_row_groups) if numbers is None else numbers
        required = self._shape.required
        return required is None or required.proven(self.footer, groups, self.projection.origins)

    def values(self, number: int, leaves: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """All rows of some leaves of a row group, as they are stored."""
        metadata = self.footer.row_group(number)
        at_once = batch_rows(row_bytes(metadata, leaves))
        for batch, _ in self._read(self._parquet, number, metadata.num_rows, at_once, leaves):
            assert batch is not None, "leaves were asked for"
            yield batch

    @cached_property
    def _firsts(self) -> list[int]:
        """The position of the first row of each row group."""
        counts = (self.footer.row_group(group).num_rows for group in range(self.footer.num_row_groups))
        return list(accumulate(counts, initial=0))

    def _groups(self, span: Span, predicate: Predicate | None) -> Generator[tuple[int, int], None, None]:
        """The wanted row groups, with the position of the first row of each."""
        wanted = [
            (group, first)
            for group, first in zip(range(self.footer.num_row_groups), self._firsts, strict=False)
            if self._wants(self.footer.row_group(group), first, span, predicate)
        ]
        expected = 0
        for number, each in enumerate(wanted):
            while expected <= number + 1 and expected < len(wanted):
                expected += self._expect([group for group, _ in wanted[expected:]])
            yield each

    def _expect(self, groups: Sequence[int]) -> int:
        """Let an object store's client fetch the first of these row groups, and more of them if they are small; how
        many.
        """
        if not isinstance(self.file, RemoteInput):
            return len(groups)
        found: list[tuple[int, int]] = []
        count = size = 0
        while count < len(groups) and size < _REQUEST_BYTES:
            if (group := groups[count]) not in self._expected:
                self._expected.add(group)
                more = ranges(self.footer.row_group(group), self.projection.leaves, self._buffer, self.size)
                found += more
                size += sum(length for _, length in more)
            count += 1
        self.file.expect(found)
        return count

    def _live_in(self, group: int, first: int) -> Iterator[LiveRows]:
        metadata = self.footer.row_group(group)
        leaves = self.projection.leaves
        stop = first + metadata.num_rows
        # The bytes per row of earlier row groups correct the estimate from the footer.
        expected = max(row_bytes(metadata, leaves), self._widest)
        for batch, rows in self._read(self._for_rows, group, metadata.num_rows, batch_rows(expected), leaves):
            if batch is not None:
                with reading(self._uri):
                    batch = self._exact(batch, group)
                self._widest = max(self._widest, batch.nbytes / rows)
            live = self._shape(batch, rows, first)
            first += rows
            if live is not None:
                yield live
        if first != stop:
            raise DamagedTableError(f"row group {group} of {self._uri} contradicts the row count of its footer")

    def _wants(self, group: Any, first: int, span: Span, predicate: Predicate | None) -> bool:
        if not span.holds(middle(group)) or self._shape.deleted(first, first + group.num_rows) == group.num_rows:
            return False
        return predicate is None or may_hold(group, self.projection, predicate)

    def _read(
        self, parquet: Any, group: int, rows: int, at_once: int, leaves: Sequence[int]
    ) -> Iterator[tuple[pa.RecordBatch | None, int]]:
        if not leaves:
            for first in range(0, rows, at_once):
                yield None, min(at_once, rows - first)
            return
        # By leaf index, as dots in a column's name make paths ambiguous; ParquetFile itself only accepts paths.
        batches = parquet.reader.iter_batches(
            at_once,
            row_groups=[group],
            column_indices=list(leaves),
            # An object store's client may be used by one thread only.
            use_threads=self._on_disk and columns_at_once(self.threads()) > 1,
        )
        while True:
            with reading(self._uri):
                batch = next(batches, None)
                if batch is None:
                    return
                check_indices(batch)
            if batch.num_rows:
                yield batch, batch.num_rows

    def _buffer_bytes(self) -> int:
        """Read-ahead per column; 0 means whole column chunks."""
        leaves = self.projection.leaves
        groups = (self.footer.row_group(group) for group in range(self.footer.num_row_groups))
        if max((compressed_bytes(group, leaves) for group in groups), default=0) <= _WHOLE_BYTES:
            return 0
        most = _MOST_LOCAL_BUFFER if self._on_disk else _WHOLE_BYTES
        return max(_LEAST_BUFFER, min(most, _WHOLE_BYTES // len(leaves)))


@contextmanager
def open_parquet(
    source: SourceFile, task: ScanTask, storage: Storage, known: KnownFile | None = None
) -> Iterator[SourceReader]:
    """Open a Parquet file and its DV. ``known``: if its footer was read before. Raises as :func:`scan` does."""
    with reading(source.uri):
        file = storage.open_input(source.uri, None if known is None else known.size)
    with file:
        with reading(source.uri):
            reader = SourceReader(file, source, task, storage, None if known is None else known.footer)
        yield reader


def _open(file: pa.NativeFile, footer: Any = None, buffer_bytes: int = 0, dictionaries: Sequence[int] = ()) -> Any:
    return open_parquet_file(
        file,
        footer,
        buffer_size=buffer_bytes,
        # Arrow's own read-ahead fetches the whole row group at once, and ignores the buffer size.
        pre_buffer=not buffer_bytes,
        # In nanoseconds INT96 would wrap around outside 1677 to 2262.
        coerce_int96_timestamp_unit="us",
        read_dictionary=list(dictionaries) or None,
    )
