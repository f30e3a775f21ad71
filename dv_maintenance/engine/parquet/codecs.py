"""The compression codec of new Parquet files, where neither the table nor the policy names one: that of the sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.engine.faults import reading
from dv_maintenance.files.parquet_footer import read_footer

if TYPE_CHECKING:
    from dv_maintenance.storage import Storage
    from dv_maintenance.tables.work import RewriteTask

__all__ = ["codec_bytes", "codec_of_sources", "codec_options"]

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


def codec_of_sources(task: RewriteTask, storage: Storage) -> tuple[RewriteTask, Mapping[str, Any]]:
    """The task with the codec that most of the compressed bytes of its sources have, if it does not require one.

    Returns the footers that this took, too, by URI, so that nobody reads them again. The largest sources come first,
    until the others can't change the result.

    Raises
    ------
    DamagedTableError : a source is missing, or not a Parquet file.
    StorageError : the storage did not answer.
    """
    footers: dict[str, Any] = {}
    if task.compression_required or task.format != "parquet":
        return task, footers
    found: Counter[str] = Counter()
    left = sum(source.size for source in task.scan.sources)
    for source in sorted(task.scan.sources, key=lambda each: -each.size):
        if source.format != "parquet":
            continue
        with reading(source.uri), storage.open_input(source.uri) as file:
            footer = footers[source.uri] = read_footer(file)
        found += codec_bytes(footer, range(footer.num_row_groups))
        left -= source.size
        first, second = (*(size for _, size in found.most_common(2)), 0, 0)[:2]
        if first > second + left:
            break
    codec = found.most_common(1)[0][0] if found else ""
    return replace(task, compression=codec or task.compression), footers
