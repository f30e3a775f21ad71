"""Arrow's Parquet writer, with a footer that is correct for Spark's filters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.engine.parquet.annotations import annotated, leaves_of_int96, leaves_of_shapes
from dv_maintenance.engine.parquet.copier import CopySource, copy_group
from dv_maintenance.engine.parquet.dictionaries import all_dictionaries, decoded, merged
from dv_maintenance.engine.parquet.layout import canonical
from dv_maintenance.engine.parquet.special_floats import SpecialFloats
from dv_maintenance.files.parquet_footer import MAGIC, encoded, framed, parsed, with_int96, without_claims
from dv_maintenance.files.parquet_groups import Footer, composed

if TYPE_CHECKING:
    from dv_maintenance.engine.parquet.copier import CopiedGroup
    from dv_maintenance.engine.parquet.layout import Layout
    from dv_maintenance.engine.parquet.row_group_copy import GroupCopy
    from dv_maintenance.engine.parquet.special_floats import Specials
    from dv_maintenance.files.parquet_groups import Group

_FIXED: Final = "FIXED_LEN_BYTE_ARRAY"
_BYTES: Final = "BYTE_ARRAY"
_PAGE_BYTES: Final = 1 << 20
_LEAST_BATCH: Final = 1 << 10
_MOST_BATCH: Final = 1 << 14
# Shares of a row group for each thread, so that none waits long for the largest column.
_SHARES: Final = 4


class ParquetOutput:
    """Writes row groups to ``sink``, which remains open: rows of ``schema``, and row groups of other files.

    layout : of the file, if it is not that of ``schema`` and ``options``.
    bytes_have_order : see ``RewriteTask``; row groups that are copied keep what their own writer claimed.
    options : of Arrow's writer.

    Arrow leaves NaN out of the bounds of floats, and its bounds are known only once a file is closed. In Spark NaN is
    greater than every number, and Spark skips the row groups and pages whose bounds exclude a filter's value. So a
    column with NaN in a row group must have no bounds there, as in parquet-java (PARQUET-1246).

    If a dictionary has a zero, parquet-java must not take it for complete: it finds no 0.0 in one with -0.0, nor -0.0
    (``d <=> -0.0``) in one with 0.0, and in Spark they are the same number. The same holds for decimals of more than 18
    digits: Paimon looks a value up by its shortest bytes, but the stored length is fixed (parquet-java writes no
    dictionaries for these).

    A second footer corrects this, and joins what was encoded here with what was copied. The first one remains in the
    file as unused bytes.
    """

    def __init__(
        self,
        sink: Any,
        schema: pa.Schema,
        layout: Layout | None = None,
        *,
        bytes_have_order: bool = True,
        **options: Any,
    ) -> None:
        self._sink = sink
        self._bytes_have_order = bytes_have_order
        self._required = layout is not None and layout.required
        self._layout = layout
        self._schema = schema if layout is None else layout.schema
        self._options = options if layout is None else {**options, **layout.options}
        self._floats: list[Specials] = []
        # The footer that Arrow wrote, for the row groups before the first one that was copied or encoded apart, and the
        # metadata of each one since then.
        self._parts: list[Any] = []
        self._copied: set[int] = set()
        self._footers: list[Any] = []
        self._writer: Any = None
        # The columns that are written as dictionaries, by their positions; Arrow's writer wants the same all the time.
        self._dictionaries: set[int] | None = None

    @property
    def groups(self) -> int:
        """Row groups so far."""
        return len(self._floats)

    @property
    def nan_leaves(self) -> set[int]:
        """The leaves that have a NaN somewhere in the file."""
        return set().union(*(floats.nan for floats in self._floats))

    @property
    def negative_zero_leaves(self) -> set[int]:
        """The leaves that may have a -0.0 somewhere in the file."""
        return set().union(*(floats.negative_zero for floats in self._floats))

    def write(self, batches: list[pa.RecordBatch], threads: int = 1) -> None:
        """One row group, if there are any rows. Batches may have columns of text as dictionaries.

        threads : encode that many columns at a time. Memory then holds the encoded row group, too.
        """
        table = self._table(batches)
        if not table.num_rows:
            return
        if self._parts or threads > 1:
            self._encode_apart(table, threads)
        else:
            if self._writer is None:
                self._begin(table)
            self._writer.write_table(table, row_group_size=table.num_rows)
        floats = SpecialFloats(self._schema)
        for batch in batches:
            floats.add(batch)
        self._floats.append(floats)

    def _table(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """The rows for Arrow's writer, which wants the same schema for all row groups."""
        if not batches:
            return self._schema.empty_table()
        parts = [[batch.column(index) for batch in batches] for index in range(len(self._schema))]
        if self._dictionaries is None:
            kept = {at for at, part in enumerate(parts) if all_dictionaries(part)}
            self._dictionaries = set() if self._required else kept
        columns = [
            merged(part) if at in self._dictionaries else pa.chunked_array([decoded(each) for each in part])
            for at, part in enumerate(parts)
        ]
        if self._required:
            return pa.Table.from_arrays(columns, self._schema.names).cast(self._schema)
        schema = self._schema
        for at in self._dictionaries:
            schema = schema.set(at, schema.field(at).with_type(columns[at].type))
        return pa.Table.from_arrays(columns, schema=schema)

    def copy(self, wanted: GroupCopy) -> CopiedGroup:
        """Append a row group of another file with the same layout.

        Raises
        ------
        DamagedTableError : its pages contradict its metadata, or a checksum.
        """
        self._layout = wanted.layout
        found = self._append([(wanted.source, wanted.group)], wanted.name)
        self._copied.add(len(self._floats))
        self._floats.append(wanted.specials)
        return found

    def _append(self, pieces: Sequence[tuple[CopySource, Group]], name: str) -> CopiedGroup:
        self._end()
        if not self._parts:
            self._sink.write(MAGIC)
        found = copy_group(pieces, self._own_layout().paths, self._sink, name)
        self._parts.append(found.data)
        return found

    def _own_layout(self) -> Layout:
        if self._layout is None:
            self._layout = canonical(self._schema)
        return self._layout

    def bounds_with_nan(self, footer: Any) -> str | None:
        """The column with NaN for which the ``footer``, read back, has bounds; ``None`` if there is none."""
        for number, floats in enumerate(self._floats):
            for leaf in sorted(floats.nan):
                chunk = footer.row_group(number).column(leaf)
                if chunk.statistics is not None and chunk.statistics.has_min_max:
                    return str(chunk.path_in_schema)
        return None

    def close(self, keys: Mapping[bytes, bytes] | None = None) -> None:
        """Write the footer, with these ``keys``. To be called after a failure, too: an open writer of Arrow would write
        its footer into a closed sink when it is collected.
        """
        if self._writer is None and not self._parts:
            self._begin()
        by_arrow = not self._parts
        int96 = leaves_of_int96(self._schema)
        if by_arrow and keys:
            self._writer.add_key_value_metadata(keys)
        self._end()
        if by_arrow:
            footer = self._parts[0]
            written = encoded(footer)
            stored = annotated(written, self._schema)
            by_arrow = stored is written
        else:
            stored = composed(self._own_layout().template, self._groups(), keys or {})
            stored = with_int96(stored, int96) if int96 else stored
            footer = parsed(stored)
        shapes = leaves_of_shapes(self._schema) | int96
        unordered = [
            shapes if group in self._copied else shapes | self._unordered(footer) for group in range(self.groups)
        ]
        unbounded = [floats.nan | more for floats, more in zip(self._floats, unordered, strict=True)]
        open_ended = [found | more for found, more in zip(self._open_ended(footer), unordered, strict=True)]
        if any(unbounded) or any(open_ended):
            stored = without_claims(stored, unbounded, open_ended)
        elif by_arrow:
            return
        self._sink.write(framed(stored))

    def _groups(self) -> Iterator[bytes]:
        """The metadata of all row groups."""
        for part in self._parts:
            if isinstance(part, bytes):
                yield part
            else:
                yield from Footer(encoded(part), self._sink.tell()).groups

    def _open_ended(self, footer: Any) -> list[set[int]]:
        """The columns of each row group whose dictionaries must not be taken for complete."""
        fixed = {leaf for leaf in range(footer.num_columns) if footer.schema.column(leaf).physical_type == _FIXED}
        return [
            {
                leaf
                for leaf in floats.zero | fixed
                # Some writers have dictionaries without saying so.
                if group in self._copied or footer.row_group(group).column(leaf).has_dictionary_page
            }
            for group, floats in enumerate(self._floats)
        ]

    def _unordered(self, footer: Any) -> set[int]:
        """The columns of plain bytes, if readers differ about their order."""
        if self._bytes_have_order:
            return set()
        columns = [footer.schema.column(leaf) for leaf in range(footer.num_columns)]
        return {
            leaf
            for leaf, column in enumerate(columns)
            if column.physical_type == _BYTES and column.logical_type.type == "NONE"
        }

    def _begin(self, table: pa.Table | None = None) -> None:
        schema, options = (self._schema, self._options) if table is None else (table.schema, self._options_for(table))
        self._writer = pq.ParquetWriter(self._sink, schema, metadata_collector=self._footers, **options)

    def _options_for(self, table: pa.Table) -> dict[str, Any]:
        if not self._dictionaries:
            return self._options
        # For each batch Arrow compares all values of a dictionary. It ends pages after batches, so that those of wide
        # rows must be short.
        rows = _PAGE_BYTES * table.num_rows // max(table.nbytes, 1)
        return {**self._options, "write_batch_size": max(_LEAST_BATCH, min(_MOST_BATCH, rows))}

    def _encode_apart(self, table: pa.Table, threads: int) -> None:
        """One row group in memory, and from there to the sink: Arrow only writes to the beginning of a file, and one
        column after the other.
        """
        options = self._options_for(table)

        def encode(columns: range) -> tuple[CopySource, Group]:
            part = table.select(list(columns))
            sink = pa.BufferOutputStream()
            footers: list[Any] = []
            with pq.ParquetWriter(sink, part.schema, metadata_collector=footers, **options) as writer:
                writer.write_table(part, row_group_size=part.num_rows)
            data = pa.BufferReader(sink.getvalue())
            return CopySource(data), Footer(encoded(footers[0]), data.size()).group(0)

        shares = _shares([column.nbytes for column in table.columns], threads)
        if len(shares) == 1:
            pieces = [encode(*shares)]
        else:
            with ThreadPoolExecutor(threads) as pool:
                pieces = list(pool.map(encode, shares))
        self._append(pieces, "a new row group")

    def _end(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        try:
            writer.close()
        finally:
            # Otherwise a writer that could not be closed would try again when it is collected, in unrelated code.
            writer.is_open = False
        self._parts += self._footers


def _shares(sizes: Sequence[int], threads: int) -> list[range]:
    """Consecutive columns that one thread encodes at a time. ``sizes``: bytes of each column."""
    if threads == 1 or len(sizes) < 2:
        return [range(len(sizes))]
    least = sum(sizes) / (_SHARES * threads)
    shares: list[range] = []
    start = size = 0
    for column, more in enumerate(sizes, 1):
        size += more
        if size >= least or column == len(sizes):
            shares.append(range(start, column))
            start, size = column, 0
    return shares
