"""Which row groups of a source are copied as they are, and what must still be read of them.

Copied are row groups that no deletion vector (DV) touches and that are large enough, where their bytes mean the same in
the new file: same physical schema (``layout``), known writer, codec, calendar, no encryption. All others are decoded.

What the new file promises holds for copied row groups, too: no bounds for NaN, no dictionary that hides a zero, exact
statistics in the table's log. Where a footer does not prove it, the values of that column are read, and only those.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyarrow import types

from dv_maintenance.engine.faults import reading
from dv_maintenance.engine.parquet.calendars import may_be_ancient
from dv_maintenance.engine.parquet.copier import CopySource
from dv_maintenance.engine.parquet.layout import Layouts
from dv_maintenance.engine.parquet.projection import leaf_count
from dv_maintenance.engine.parquet.special_floats import SpecialFloats, Specials
from dv_maintenance.engine.stats import ChunkStats, has_order, locate
from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.parquet_footer import footer_bytes
from dv_maintenance.files.parquet_groups import Footer
from dv_maintenance.files.thrift_compact import ThriftError

if TYPE_CHECKING:
    import pyarrow as pa

    from dv_maintenance.engine.parquet.layout import Layout
    from dv_maintenance.engine.parquet.reader import SourceReader
    from dv_maintenance.engine.stats import Column, StatsCollector
    from dv_maintenance.files.parquet_groups import Group
    from dv_maintenance.tables.work import RewriteTask, SourceFile

# A row group is worth copying from this size on. Readers fetch a column chunk at a time: below 64 KiB the request costs
# more than the bytes, above they read such row groups as fast as large ones. Repetitive columns take few bytes for
# many rows, so that the number of rows counts, too: Spark and DuckDB work on batches of a few thousand.
_LARGE_CHUNK: Final = 64 << 10
_LARGE_ROWS: Final = 100_000

# Writers whose footers are known to be right, from the version on that repaired what readers work around by name:
# parquet-java bounds with NaN (PARQUET-1246), text (PARQUET-251), delta encoding (PARQUET-246); Arrow the flag of
# compression in pages of version 2 (PARQUET-1850, ARROW-10353).
_JAVA: Final = re.compile(r"parquet-mr version (\d+)\.(\d+)\.")
_ARROW: Final = re.compile(r"parquet-cpp-arrow version (\d+)\.")
_FIRST_JAVA: Final = (1, 10)
_FIRST_ARROW: Final = 4
_RUST: Final = ("parquet-rs version ", "delta-rs version ")
_OTHERS: Final = ("DuckDB version ", "Polars")
# Arrow's name of a codec in metadata, if it differs from that in its writer's options.
_NAMES: Final = {"NONE": "UNCOMPRESSED"}
# LZO and the first LZ4 (CompressionCodec in parquet.thrift): readers disagree about their bytes.
_ILL_DEFINED: Final = frozenset({3, 5})
_FLOATS: Final = ("FLOAT", "DOUBLE")


def is_large(group: Any, target_bytes: int) -> bool:
    """Whether a row group (Parquet metadata) is large enough to be kept as one, and fits into a new file."""
    size = sum(group.column(leaf).total_compressed_size for leaf in range(group.num_columns))
    enough = group.num_rows >= _LARGE_ROWS or size >= _LARGE_CHUNK * group.num_columns
    return bool(enough and size <= target_bytes)


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """A row group to be copied.

    source : its file.
    number : in its file.
    metadata : of its file, as Arrow reads it.
    specials : the special floats in it.
    nulls : of lists and maps with statistics.
    by_value : statistics of leaves that its metadata does not give exactly.
    """

    source: CopySource
    uri: str
    number: int
    group: Group
    metadata: Any
    layout: Layout
    specials: Specials
    nulls: Sequence[tuple[Column, int]]
    by_value: dict[int, ChunkStats]

    @property
    def name(self) -> str:
        return f"row group {self.number} of {self.uri}"


@dataclass(frozen=True, slots=True)
class Writer:
    """Of a file, by its ``created_by``.

    java : whether bounds of floats prove that there is no NaN.
    counts : whether it counts nulls below null parents and empty lists, as the specification wants.
    signs_zeros : whether a lower bound of zero is -0.0 and an upper one 0.0, as the specification wants.
    """

    java: bool
    counts: bool
    signs_zeros: bool

    @classmethod
    def of(cls, created_by: str) -> Writer | None:
        """``None`` if its footers are not known to be right."""
        if (java := _JAVA.match(created_by)) is not None:
            return (
                cls(java=True, counts=True, signs_zeros=True) if tuple(map(int, java.groups())) >= _FIRST_JAVA else None
            )
        if (arrow := _ARROW.match(created_by)) is not None:
            return cls(java=False, counts=True, signs_zeros=True) if int(arrow[1]) >= _FIRST_ARROW else None
        if created_by.startswith(_RUST):
            return cls(java=False, counts=False, signs_zeros=True)
        return cls(java=False, counts=False, signs_zeros=False) if created_by.startswith(_OTHERS) else None


class Surgeon:
    """Decides for the sources of one task. ``schema``: of the new files; ``codec``: theirs, by Arrow's name."""

    def __init__(self, task: RewriteTask, schema: pa.Schema, codec: str) -> None:
        self._task, self._schema, self._codec = task, schema, codec
        self._layouts: Layouts | None = None

    @property
    def layouts(self) -> Layouts:
        if self._layouts is None:
            self._layouts = Layouts(self._schema)
        return self._layouts

    def examine(self, source: SourceFile, reader: SourceReader) -> Copies | None:
        """The row groups of an open source that may be copied; ``None`` if there are none.

        Raises
        ------
        DamagedTableError : its footer is damaged.
        """
        if self._task.order_by or source.details or source.row_defaults:
            return None
        numbers = {group for group in range(reader.footer.num_row_groups) if self._may_copy(reader, group)}
        if not numbers:
            return None
        with reading(source.uri):
            data = footer_bytes(reader.file)
        if data is None:
            return None
        try:
            footer = Footer(data, reader.size)
            writer = Writer.of(footer.created_by)
            if writer is None or footer.encrypted or not footer.has_orders:
                return None
            if any(part.codec in _ILL_DEFINED for part in footer.group(min(numbers)).parts):
                return None
            layout = self.layouts.of(footer, reader.footer)
        except ThriftError as error:
            raise _damaged(source.uri, error) from error
        if layout is None or not self._in_place(reader):
            return None
        canonical = layout is self.layouts.canonical
        copied = CopySource(reader.file)
        return Copies(source.uri, reader, footer, writer, layout, canonical, frozenset(numbers), copied)

    def _may_copy(self, reader: SourceReader, number: int) -> bool:
        group = reader.footer.row_group(number)
        if not group.num_rows or not is_large(group, self._task.target_bytes) or not reader.untouched(number):
            return False
        if not reader.filled([number]):  # decoded, every row is checked
            return False
        chunks = [group.column(leaf) for leaf in range(group.num_columns)]
        if self._task.compression_required and any(chunk.compression != self._wanted for chunk in chunks):
            return False
        return not any(may_be_ancient(chunks[leaf]) for leaf in reader.projection.hybrid)

    @cached_property
    def _wanted(self) -> str:
        return _NAMES.get(self._codec, self._codec)

    def _in_place(self, reader: SourceReader) -> bool:
        """Whether each leaf of the schema is the file's leaf at the same place, and none is left over."""
        count = sum(leaf_count(each.type) for each in self._schema)
        leaves = list(range(count))
        return list(reader.projection.origins.values()) == leaves and reader.footer.num_columns == count


@dataclass(slots=True)
class Copies:
    """The row groups of one source that may be copied into a file of its ``layout``. ``canonical``: whether that is the
    layout of our own files.
    """

    uri: str
    reader: SourceReader
    footer: Footer
    writer: Writer
    layout: Layout
    canonical: bool
    numbers: frozenset[int]
    source: CopySource

    def prepare(self, number: int, stats: StatsCollector) -> GroupCopy:
        """Read what must be known of a row group. ``stats``: what is asked of the columns.

        Raises
        ------
        DamagedTableError : its metadata or the values read are damaged.
        """
        metadata = self.reader.footer.row_group(number)
        try:
            group = self.footer.group(number)
        except ThriftError as error:
            raise _damaged(self.uri, error) from error
        specials, probed = self._floats(metadata)
        lists = [
            column for column in stats.columns if types.is_nested(column.type) and self._may_be_null(column, metadata)
        ]
        by_value = {
            column.leaf: ChunkStats(column.type)
            for column in stats.columns
            if not types.is_nested(column.type) and not self._known(column, metadata, group)
        }
        cheapest = [_cheapest(column, metadata) for column in lists]
        leaves = sorted({*probed, *by_value, *cheapest})
        nulls = [0] * len(lists)
        named = {column.leaf: column for column in stats.columns}
        if leaves:
            found: SpecialFloats | None = None
            for batch in self.reader.values(number, leaves):
                found = SpecialFloats(batch.schema) if found is None else found
                found.add(batch)
                for index, column in enumerate(lists):
                    nulls[index] += locate(batch.schema, column.name).pick(batch).null_count
                for leaf, chunk in by_value.items():
                    chunk.add(locate(batch.schema, named[leaf].name).pick(batch))
            assert found is not None, "a row group with rows has a batch"
            specials.nan |= {leaves[leaf] for leaf in found.nan}
            specials.zero |= {leaves[leaf] for leaf in found.zero}
            specials.negative_zero |= {leaves[leaf] for leaf in found.negative_zero}
        if not self.writer.signs_zeros:
            # A bound of zero may have the wrong sign, in the page index, too.
            specials.nan |= specials.zero
        return GroupCopy(
            self.source,
            self.uri,
            number,
            group,
            metadata,
            self.layout,
            specials,
            list(zip(lists, nulls, strict=True)),
            by_value,
        )

    def _floats(self, metadata: Any) -> tuple[Specials, list[int]]:
        """What the metadata says of special floats, and the leaves of which it does not say enough."""
        specials = Specials()
        unknown = []
        for leaf in range(metadata.num_columns):
            chunk = metadata.column(leaf)
            if chunk.physical_type not in _FLOATS and not _is_half(self.reader.footer, leaf):
                continue
            stats = chunk.statistics if chunk.is_stats_set else None
            if stats is not None and stats.has_null_count and stats.null_count == chunk.num_values:
                continue
            if not self.writer.java or chunk.physical_type not in _FLOATS:
                unknown.append(leaf)
            elif stats is None or not stats.has_min_max:
                specials.nan.add(leaf)
                specials.zero.add(leaf)
                specials.negative_zero.add(leaf)
            elif 0.0 in (stats.min, stats.max):
                unknown.append(leaf)
            elif stats.min < 0 < stats.max:
                specials.zero.add(leaf)
                specials.negative_zero.add(leaf)
        return specials, unknown

    def _may_be_null(self, column: Column, metadata: Any) -> bool:
        """Whether a list or map may be null, by its metadata."""
        chunk = metadata.column(column.leaf)
        stats = chunk.statistics if chunk.is_stats_set else None
        return not (self.writer.counts and stats is not None and stats.has_null_count and stats.null_count == 0)

    def _known(self, column: Column, metadata: Any, group: Group) -> bool:
        """Whether the metadata has the statistics of a leaf as we report them."""
        chunk = metadata.column(column.leaf)
        stats = chunk.statistics if chunk.is_stats_set else None
        if stats is None or not stats.has_null_count or (chunk.physical_type == "INT96" and has_order(column.type)):
            return False
        return group.parts[column.leaf].exact and (self.writer.counts or len(column.name) == 1)


def _cheapest(column: Column, metadata: Any) -> int:
    """The leaf below a list or map with the fewest bytes: any of them shows which lists are null."""
    leaves = range(column.leaf, column.leaf + leaf_count(column.type))
    return min(leaves, key=lambda leaf: int(metadata.column(leaf).total_compressed_size))


def _is_half(footer: Any, leaf: int) -> bool:
    return bool(footer.schema.column(leaf).logical_type.type == "FLOAT16")


def _damaged(uri: str, error: Exception) -> DamagedTableError:
    return DamagedTableError(f"{uri} is damaged: {error}", next_step="restore the file, or remove it from the table")
