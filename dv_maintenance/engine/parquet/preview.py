"""What a rewrite task will do with the row groups of its sources, from footers and deletion vectors alone; and from a
sample, what their size will be in another codec.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.engine.faults import reading
from dv_maintenance.engine.parquet.codecs import codec_bytes, codec_of_sources, codec_options
from dv_maintenance.engine.parquet.footer import compressed_bytes, dictionary_pays
from dv_maintenance.engine.parquet.reader import SourceReader, open_parquet
from dv_maintenance.engine.parquet.writer import ParquetFiles
from dv_maintenance.engine.prefetch import depth, prefetched
from dv_maintenance.engine.scan import open_source
from dv_maintenance.engine.writer import as_optional
from dv_maintenance.storage import Storage

if TYPE_CHECKING:
    from dv_maintenance.tables.work import RewriteTask, SourceFile

# Columns of a sample. The largest ones decide the size of a file; each takes a request or more from an object store.
_COLUMNS: Final = 16
_BYTES: Final = 2 << 20
# To an object store, at once.
_REQUESTS: Final = 8


@dataclass(frozen=True, slots=True)
class Recoded:
    """What the sources have in another codec than the new files, and is not copied.

    size : compressed bytes of its live rows.
    source, group : the row group that has most of them.
    """

    codec: str
    size: int
    source: SourceFile
    group: int


@dataclass(frozen=True, slots=True)
class Preview:
    """Row groups of all sources.

    copied, bytes_copied : those that are copied, and their compressed bytes.
    codec : of the new files.
    recoded : what has another one now.
    """

    groups: int
    copied: int
    bytes_copied: int
    codec: str
    recoded: tuple[Recoded, ...] = ()


def preview(task: RewriteTask, storage_options: Mapping[str, str] | None = None) -> Preview | None:
    """``None`` if a source is not a Parquet file. Opens every source, and reads no rows.

    It expects that one layout fits all sources, as it does unless several writers took turns: then fewer are copied.

    Raises
    ------
    As ``rewrite`` before it reads rows.
    """
    if task.format != "parquet" or any(source.format != "parquet" for source in task.scan.sources):
        return None
    storage = Storage(task.output_uri, storage_options)
    schema = as_optional(task.scan.schema)
    scan = replace(task.scan, schema=schema)
    task, known = codec_of_sources(task, storage)
    files = ParquetFiles(task, schema.remove_metadata(), storage)
    groups = copied = size = 0
    recoded: dict[str, list[Recoded]] = {}
    openers = [partial(open_source, source, scan, storage, known.get(source.uri)) for source in scan.sources]
    with closing(prefetched(openers, depth(storage, scan.sources, _REQUESTS))) as readers:
        for source, reader in zip(scan.sources, readers, strict=True):
            if not isinstance(reader, SourceReader):
                return None
            groups += reader.footer.num_row_groups
            copies = files.examine(source, reader)
            numbers = copies.numbers if copies is not None else frozenset()
            for number in range(reader.footer.num_row_groups):
                group = reader.footer.row_group(number)
                if number in numbers:
                    copied, size = copied + 1, size + compressed_bytes(group, range(group.num_columns))
                    continue
                share = reader.live_rows(number) / max(group.num_rows, 1)
                for codec, stored in codec_bytes(reader.footer, [number]).items():
                    if codec and codec != task.compression and stored * share >= 1:
                        recoded.setdefault(codec, []).append(Recoded(codec, round(stored * share), source, number))
    found = tuple(
        replace(max(each, key=lambda one: one.size), size=sum(one.size for one in each)) for each in recoded.values()
    )
    return Preview(groups, copied, size, task.compression, found)


def sampled_ratio(
    task: RewriteTask, recoded: Recoded, codec: str, storage_options: Mapping[str, str] | None = None
) -> float:
    """Bytes in a codec per byte in that of the sources: the first rows of a row group, encoded in both. Reads a few MiB
    of its largest columns.

    Raises
    ------
    DamagedTableError : the source is missing or damaged.
    StorageError : the storage did not answer.
    """
    storage = Storage(task.output_uri, storage_options)
    scan = replace(task.scan, schema=as_optional(task.scan.schema))
    with reading(recoded.source.uri), open_parquet(recoded.source, scan, storage) as reader:
        group = reader.footer.row_group(recoded.group)
        sizes = {leaf: group.column(leaf).total_compressed_size for leaf in range(group.num_columns)}
        leaves = sorted(sorted(sizes, key=lambda leaf: -sizes[leaf])[:_COLUMNS])
        dictionaries = [group.column(leaf).path_in_schema for leaf in leaves if dictionary_pays(reader.footer, leaf)]
        rows = next(reader.values(recoded.group, leaves))
    rows = rows.slice(0, max(1, rows.num_rows * _BYTES // max(rows.nbytes, _BYTES)))
    return _encoded(rows, codec, dictionaries) / max(_encoded(rows, recoded.codec, dictionaries), 1)


def _encoded(rows: pa.RecordBatch, codec: str, dictionaries: list[str]) -> int:
    """Compressed bytes of the rows."""
    footers: list[Any] = []
    with pq.ParquetWriter(
        pa.BufferOutputStream(),
        rows.schema,
        use_dictionary=dictionaries or False,
        metadata_collector=footers,
        **codec_options(codec),
    ) as writer:
        writer.write_batch(rows)
    group = footers[0].row_group(0)
    return compressed_bytes(group, range(group.num_columns))
