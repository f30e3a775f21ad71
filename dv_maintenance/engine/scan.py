"""Live rows of the sources of a task, whatever the formats of their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dv_maintenance.engine.file_formats import format_of
from dv_maintenance.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.engine.parquet.codecs import KnownFile
    from dv_maintenance.engine.protocols import Reader
    from dv_maintenance.tables.work import ScanTask, SourceFile


def scan(task: ScanTask, storage_options: Mapping[str, str] | None = None) -> Iterator[pa.RecordBatch]:
    """Live rows of all sources, in order, as batches of ``task.schema``; none of them empty.

    Raises
    ------
    DamagedTableError : a file or DV is missing or damaged, its row count differs from that of the log, or it has a type
        that can't be read as the table's.
    StorageError : the storage did not answer.
    """
    for source in task.sources:
        with open_source(source, task, Storage(source.uri, storage_options)) as reader:
            yield from reader.batches()


@contextmanager
def open_source(
    source: SourceFile, task: ScanTask, storage: Storage, known: KnownFile | None = None
) -> Iterator[Reader]:
    """Open a source and its DV, and check both against each other and the log. ``known``: a Parquet file whose footer
    was read before.

    Raises
    ------
    As :func:`scan`, and RefusedError if a library is missing.
    """
    if known is not None:
        from dv_maintenance.engine.parquet.reader import open_parquet

        with open_parquet(source, task, storage, known) as opened:
            yield opened
        return
    with format_of(source).open()(source, task, storage) as reader:
        yield reader
