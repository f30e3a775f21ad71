"""One rewrite task: a pure function of storage, the same on Spark, locally and in a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dv_maintenance.engine.file_formats import checker_of, rewriter_of
from dv_maintenance.engine.parquet.calendars import CalendarKeys, readers_use_keys
from dv_maintenance.engine.parquet.codecs import codec_of_sources
from dv_maintenance.engine.parquet.footer import BATCH_BYTES, compressed_bytes
from dv_maintenance.engine.parquet.int96 import marked
from dv_maintenance.engine.parquet.reader import SourceReader
from dv_maintenance.engine.prefetch import depth, prefetched, read_ahead
from dv_maintenance.engine.rows.ordering import Ordering
from dv_maintenance.engine.scan import open_source
from dv_maintenance.engine.writer import RollingWriter, as_optional
from dv_maintenance.errors import RefusedError, RetryableError, VerificationError
from dv_maintenance.files.map_entries import as_entries
from dv_maintenance.storage import Storage
from dv_maintenance.tables.work import RewriteResult, RewriteTask

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.codecs import KnownFile
    from dv_maintenance.engine.parquet.row_group_copy import Copies
    from dv_maintenance.engine.protocols import Reader
    from dv_maintenance.engine.rows_so_far import OnRows
    from dv_maintenance.tables.work import ScanTask, SourceFile

    _Write = Callable[[pa.RecordBatch, Any, Mapping[str, int]], None]

_ATTEMPTS = 3
_PAUSE_SECONDS = 1.0


def rewrite(
    task: RewriteTask,
    storage_options: Mapping[str, str] | None = None,
    on_rows: OnRows | None = None,
    threads: Callable[[], int] = lambda: 1,
) -> RewriteResult:
    """Stream the live rows of the sources, in their order or the one that the task requests, into new files below
    ``task.output_uri``. Fragments of a Lance table: see ``lance.rewrite.rewrite_fragments``, also for its errors.

    Memory holds one row group at most, whatever the size of the files; to order rows, local disk holds all of them.
    Of files in object stores, up to 32 MiB of the current and of the next one wait in memory, too.
    Every call writes new files. After a failure it deletes them, as far as the storage allows.

    on_rows : called with the live rows read so far, after each batch; not for fragments of a Lance table.
    threads : how many threads the task may use, asked again and again. With two, one decodes the rest of a source while
        the other encodes, and memory holds one more row group. With more, both work on several columns at a time, and
        memory also holds an encoded row group.

    Raises
    ------
    DamagedTableError : a source or its DV is missing or damaged, or contradicts the log.
    VerificationError : rows were lost or duplicated, or a stored file differs from what was written.
    StorageError : the storage did not answer.
    RefusedError : the compression codec is unknown, or rows to be ordered have dates of two calendars.
    """
    if (by_library := rewriter_of(task)) is not None:
        return by_library(task, storage_options)
    started = time.perf_counter()
    storage = Storage(task.output_uri, storage_options)
    schema = _read_schema(task)
    scan = replace(task.scan, schema=schema)
    rows: list[int] = []
    purged: list[int] = []
    bytes_read = live = groups = groups_copied = bytes_copied = 0
    task, known = codec_of_sources(task, storage)
    writer = RollingWriter(task, schema.remove_metadata(), storage, threads)
    try:
        with _sink(task, scan, writer, storage) as write, closing(_opened(scan, storage, known)) as readers:
            for source, reader in zip(scan.sources, readers, strict=True):
                footer, origins = _encodings(reader)
                groups += 0 if footer is None else footer.num_row_groups
                copies = writer.examine(source, reader)
                with closing(_units(reader, writer, copies, threads)) as units:
                    for unit in units:
                        if isinstance(unit, int):
                            assert copies is not None, "a row group to be copied is one of them"
                            group = footer.row_group(unit)
                            writer.copy(copies, unit, footer, origins)
                            live += group.num_rows
                            groups_copied += 1
                            bytes_copied += compressed_bytes(group, range(group.num_columns))
                        else:
                            write(unit, footer, origins)
                            live += unit.num_rows
                        if on_rows is not None:
                            on_rows(live)
                rows.append(reader.rows)
                purged.append(reader.purged)
                bytes_read += reader.size
        outputs = writer.close()
        written = sum(output.rows for output in outputs)
        if sum(rows) != written + sum(purged):
            raise VerificationError(
                f"task {task.id} read {sum(rows)} rows, purged {sum(purged)} and wrote {written}",
                done="nothing was committed",
            )
    except BaseException:
        writer.discard()
        raise
    return RewriteResult(
        task_id=task.id,
        outputs=outputs,
        rows_read=sum(rows),
        rows_written=written,
        rows_purged=sum(purged),
        bytes_read=bytes_read,
        seconds=time.perf_counter() - started,
        source_rows=tuple(rows),
        source_purged=tuple(purged),
        details={"row_groups": groups, "row_groups_copied": groups_copied, "bytes_copied": bytes_copied},
    )


def _read_schema(task: RewriteTask) -> pa.Schema:
    """The columns in the form in which they are read, which the writer takes."""
    schema = as_optional(task.scan.schema)
    if task.int96_nanoseconds and task.format in {"parquet", "orc"}:
        # As bytes, which hold every year, unless they are compared, or given by the table.
        constants = {name for source in task.scan.sources for name in source.constants}
        schema = marked(schema, but={*constants, *(path[0] for path in task.order_by)})
    if task.format == "orc":  # whose maps may have null keys
        schema = pa.schema([each.with_type(as_entries(each.type)) for each in schema], schema.metadata)
    return schema


def _opened(scan: ScanTask, storage: Storage, known: Mapping[str, KnownFile]) -> Generator[Reader, None, None]:
    """Each source in turn, open until the next one is asked for. Those in object stores are opened one ahead."""

    @contextmanager
    def opened(source: SourceFile) -> Iterator[Reader]:
        with open_source(source, scan, storage, known.get(source.uri)) as reader:
            if isinstance(reader, SourceReader):
                reader.fetch_ahead()
            yield reader

    return prefetched([partial(opened, source) for source in scan.sources], depth(storage, scan.sources, 1))


def _units(
    reader: Reader, writer: RollingWriter, copies: Copies | None, threads: Callable[[], int]
) -> Generator[pa.RecordBatch | int, None, None]:
    """The live rows of a source in its order; instead of them the number of each row group to be copied."""
    if isinstance(reader, SourceReader):
        reader.threads = threads
    if copies is None or not isinstance(reader, SourceReader):
        batches = reader.batches()
        for batch in batches:
            yield batch
            if threads() > 1:
                yield from read_ahead(batches)
    else:
        # Copying reads the same file, which only one thread may use.
        yield from reader.units(lambda number: number in copies.numbers and writer.takes(copies))


def _encodings(reader: Reader) -> tuple[Any, Mapping[str, int]]:
    """What a writer needs from a source, see ``RollingWriter.write``."""
    return (reader.footer, reader.projection.origins) if isinstance(reader, SourceReader) else (None, {})


@contextmanager
def _sink(task: RewriteTask, scan: ScanTask, writer: RollingWriter, storage: Storage) -> Iterator[_Write]:
    """A function that passes rows to the writer, in the order that the task requests, if any."""
    if not task.order_by:
        yield writer.write
        return
    like: dict[CalendarKeys, tuple[Any, Mapping[str, int]]] = {}
    seen: Any = None
    with Ordering.of(scan, task.order_by, storage) as ordering:

        def write(batch: pa.RecordBatch, footer: Any, origins: Mapping[str, int]) -> None:
            nonlocal seen
            if footer is None or footer is not seen:
                seen = footer
                like.setdefault(CalendarKeys.of(footer, origins.values()), (footer, origins))
                if CalendarKeys.PROLEPTIC in like and CalendarKeys.ABSENT in like and readers_use_keys(scan):
                    raise _two_calendars(task)
            ordering.add(batch)

        yield write
        # Small compared with a file, so that files end close to their target size.
        for batch in ordering.batches(min(BATCH_BYTES, task.target_bytes // 8)):
            # Every file has rows of all sources. So any of them can give the encodings; the calendar keys are those of
            # a source with old dates.
            strictest = (CalendarKeys.ABSENT, CalendarKeys.PROLEPTIC, CalendarKeys.IRRELEVANT)
            writer.write(batch, *next(like[keys] for keys in strictest if keys in like))


def _two_calendars(task: RewriteTask) -> RefusedError:
    return RefusedError(
        f"files to be ordered in {task.output_uri} hold dates before 1582 or timestamps before 1900, and only some of "
        "them name the calendar: Spark reads the others by the settings of its session, so they can't share new files",
        next_step="let Spark rewrite the files without org.apache.spark.version in their footers, or order the table "
        "with its own engine",
    )


def check_sources(task: RewriteTask, storage_options: Mapping[str, str] | None = None) -> None:
    """Open every source. Raises what :func:`rewrite` raises before it reads rows."""
    if (by_library := checker_of(task)) is not None:
        by_library(task, storage_options)
        return
    storage = Storage(task.output_uri, storage_options)
    schema = _read_schema(task)
    scan = replace(task.scan, schema=schema)
    task, known = codec_of_sources(task, storage)
    RollingWriter(task, schema.remove_metadata(), storage)
    with closing(_opened(scan, storage, known)) as readers:
        keys = {CalendarKeys.of(footer, origins.values()) for footer, origins in map(_encodings, readers)}
    if task.order_by and keys >= {CalendarKeys.PROLEPTIC, CalendarKeys.ABSENT} and readers_use_keys(scan):
        raise _two_calendars(task)


def rewrite_retrying(
    task: RewriteTask,
    storage_options: Mapping[str, str] | None = None,
    on_rows: OnRows | None = None,
    threads: Callable[[], int] = lambda: 1,
) -> RewriteResult:
    """:func:`rewrite`, repeated from the start if the storage failed (after the retries of its client)."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return rewrite(task, storage_options, on_rows, threads)
        except RetryableError:
            time.sleep(_PAUSE_SECONDS * attempt)
    return rewrite(task, storage_options, on_rows, threads)
