"""One rewrite task: a pure function of storage, the same on Spark, locally and in a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dv_maintenance.engine.file_formats import rewriter_of
from dv_maintenance.engine.parquet.calendars import Mark, heeds_keys
from dv_maintenance.engine.parquet.footer import BATCH_BYTES
from dv_maintenance.engine.parquet.reader import SourceReader
from dv_maintenance.engine.rows.ordering import Ordering
from dv_maintenance.engine.scan import open_source
from dv_maintenance.engine.writer import RollingWriter, as_optional
from dv_maintenance.errors import RefusedError, RetryableError, VerificationError
from dv_maintenance.storage import Storage
from dv_maintenance.tables.work import RewriteResult, RewriteTask

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.engine.protocols import Reader
    from dv_maintenance.tables.work import ScanTask

    _Write = Callable[[pa.RecordBatch, Any, Mapping[str, int]], None]

__all__ = ["rewrite", "rewrite_retrying"]

_ATTEMPTS = 3
_PAUSE_SECONDS = 1.0


def rewrite(task: RewriteTask, storage_options: Mapping[str, str] | None = None) -> RewriteResult:
    """Stream the live rows of the sources, in their order or the one that the task wants, into new files below
    ``task.output_uri``. Fragments of a Lance table: see ``lance_rewrite.rewrite_fragments``, also for what it raises.

    Holds one row group at most, whatever the size of the files; to order rows, local disk holds them all. Every call
    writes files of its own; when it fails it has deleted them again, as far as the storage lets it.

    Raises
    ------
    DamagedTableError : a source or its DV is missing, damaged or not what the log says.
    VerificationError : rows got lost or doubled on the way, or a file did not arrive as written.
    StorageError : the storage did not answer.
    RefusedError : the compression codec is unknown, or dates of two calendars are to be put in one order.
    """
    if (by_library := rewriter_of(task)) is not None:
        return by_library(task, storage_options)
    started = time.perf_counter()
    storage = Storage(task.output_uri, storage_options)
    schema = as_optional(task.scan.schema)
    scan = replace(task.scan, schema=schema)
    rows: list[int] = []
    purged: list[int] = []
    bytes_read = 0
    writer = RollingWriter(task, schema.remove_metadata(), storage)
    try:
        with _sink(task, scan, writer, storage) as write:
            for source in scan.sources:
                with open_source(source, scan, storage) as reader:
                    footer, origins = _encodings(reader)
                    for batch in reader.batches():
                        write(batch, footer, origins)
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
    )


def _encodings(reader: Reader) -> tuple[Any, Mapping[str, int]]:
    """What a writer wants to know of a file, see ``RollingWriter.write``."""
    return (reader.footer, reader.projection.origins) if isinstance(reader, SourceReader) else (None, {})


@contextmanager
def _sink(task: RewriteTask, scan: ScanTask, writer: RollingWriter, storage: Storage) -> Iterator[_Write]:
    """The writer, behind what puts the rows in order where the task wants one."""
    if not task.order_by:
        yield writer.write
        return
    like: dict[Mark, tuple[Any, Mapping[str, int]]] = {}
    seen: Any = None
    with Ordering.of(scan, task.order_by, storage) as ordering:

        def write(batch: pa.RecordBatch, footer: Any, origins: Mapping[str, int]) -> None:
            nonlocal seen
            if footer is None or footer is not seen:
                seen = footer
                like.setdefault(Mark.of(footer, origins.values()), (footer, origins))
                if Mark.SAID in like and Mark.UNSAID in like and heeds_keys(scan):
                    raise _two_calendars(task)
            ordering.add(batch)

        yield write
        # Small against a file, so that files end where they should.
        for batch in ordering.batches(min(BATCH_BYTES, task.target_bytes // 8)):
            # Rows of all sources are in every file: any source says as much of encodings, and the one whose dates are
            # old says what calendar they are in.
            writer.write(batch, *next(like[mark] for mark in (Mark.UNSAID, Mark.SAID, Mark.NONE) if mark in like))


def _two_calendars(task: RewriteTask) -> RefusedError:
    return RefusedError(
        f"files to be ordered in {task.output_uri} hold dates before 1582 or timestamps before 1900, and only some of "
        "them say in which calendar: Spark takes the others as its session is set to, so they can't share new files",
        next_step="let Spark rewrite the files without org.apache.spark.version in their footers, or order the table "
        "with its own engine",
    )


def rewrite_retrying(task: RewriteTask, storage_options: Mapping[str, str] | None = None) -> RewriteResult:
    """:func:`rewrite`, tried again from the start where the storage failed (its client has retried by then)."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return rewrite(task, storage_options)
        except RetryableError:
            time.sleep(_PAUSE_SECONDS * attempt)
    return rewrite(task, storage_options)
