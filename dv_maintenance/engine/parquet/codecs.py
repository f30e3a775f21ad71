"""The compression codec of new Parquet files, where neither the table nor the policy names one: that of the sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dv_maintenance.engine.faults import reading
from dv_maintenance.engine.prefetch import depth, prefetched
from dv_maintenance.files.parquet_footer import read_footer

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import RewriteTask, SourceFile

# Arrow's name in metadata -> ``RewriteTask.compression``. Not LZO, nor the first LZ4, which Arrow calls UNKNOWN:
# readers disagree about their bytes.
_NAMES: Final = {
    "UNCOMPRESSED": "none",
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "ZSTD": "zstd",
    "LZ4": "lz4",
}
_NONE: Final = "none"
# As in Java's writers. Arrow's own default, 9, takes six times the CPU time for 0.4 % fewer bytes.
_LEVELS: Final = {"GZIP": 6}
# To an object store, at once.
_REQUESTS: Final = 4


class KnownFile(NamedTuple):
    """A Parquet file whose footer was read. ``size``: bytes. ``footer``: ``pyarrow.parquet.FileMetaData``."""

    size: int
    footer: Any


def codec_options(codec: str) -> dict[str, Any]:
    """Of Arrow's writer, for a codec by its name there."""
    return {"compression": codec, "compression_level": _LEVELS.get(codec.upper())}


def codec_bytes(footer: Any, groups: Iterable[int]) -> Counter[str]:
    """Compressed bytes of row groups by codec, ``""`` for one that is not written here.

    Column chunks that a writer left uncompressed beside compressed ones don't count: it saw nothing to gain there.
    """
    found: Counter[str] = Counter()
    for number in groups:
        group = footer.row_group(number)
        for leaf in range(group.num_columns):
            chunk = group.column(leaf)
            found[_NAMES.get(chunk.compression, "")] += chunk.total_compressed_size
    if len(found) > 1:
        del found[_NONE]
    return found


def codec_of_sources(task: RewriteTask, storage: Storage) -> tuple[RewriteTask, Mapping[str, KnownFile]]:
    """The task with the codec that most of the compressed bytes of its sources have, if it does not require one.

    Returns the files whose footers this took, too, by URI, so that nobody reads them again. The largest sources come
    first, until the others can't change the result.

    Raises
    ------
    DamagedTableError : a source is missing, or not a Parquet file.
    StorageError : the storage did not answer.
    """
    files: dict[str, KnownFile] = {}
    if task.compression_required or task.format != "parquet":
        return task, files

    @contextmanager
    def opened(source: SourceFile) -> Iterator[Any]:
        with reading(source.uri), storage.open_input(source.uri) as file:
            files[source.uri] = KnownFile(file.size(), read_footer(file))
        yield files[source.uri].footer

    found: Counter[str] = Counter()
    left = sum(source.size for source in task.scan.sources)
    sources = [each for each in sorted(task.scan.sources, key=lambda each: -each.size) if each.format == "parquet"]
    openers = [partial(opened, source) for source in sources]
    with closing(prefetched(openers, depth(storage, sources, _REQUESTS))) as footers:
        for source, footer in zip(sources, footers, strict=False):
            found += codec_bytes(footer, range(footer.num_row_groups))
            left -= source.size
            first, second = (*(size for _, size in found.most_common(2)), 0, 0)[:2]
            if first > second + left:
                break
    codec = found.most_common(1)[0][0] if found else ""
    return replace(task, compression=codec or task.compression), files
