"""Arrow's Parquet writer, with a footer that is correct for Spark's filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.engine.parquet.special_floats import SpecialFloats
from dv_maintenance.files.parquet_footer import encoded, framed, without_claims

__all__ = ["ParquetOutput"]

_FIXED: Final = "FIXED_LEN_BYTE_ARRAY"


class ParquetOutput:
    """Writes row groups of ``schema`` to ``sink``, which remains open. ``options``: of Arrow's writer.

    Arrow leaves NaN out of the bounds of floats, and its bounds are known only once a file is closed. In Spark NaN is
    greater than every number, and Spark skips the row groups and pages whose bounds exclude a filter's value. So a
    column with NaN in a row group must have no bounds there, as in parquet-java (PARQUET-1246).

    If a dictionary has a zero, parquet-java must not take it for complete: it finds no 0.0 in one with -0.0, nor -0.0
    (``d <=> -0.0``) in one with 0.0, and in Spark they are the same number. The same holds for decimals of more than 18
    digits: Paimon looks a value up by its shortest bytes, but the stored length is fixed (parquet-java writes no
    dictionaries for these).

    A second footer corrects this. The first one remains in the file as unused bytes.
    """

    def __init__(self, sink: Any, schema: pa.Schema, **options: Any) -> None:
        self._sink, self._schema = sink, schema
        self._floats: list[SpecialFloats] = []
        self._footers: list[Any] = []
        self._writer = pq.ParquetWriter(sink, schema, metadata_collector=self._footers, **options)

    @property
    def nan_leaves(self) -> set[int]:
        """The leaves that have a NaN somewhere in the file."""
        return set().union(*(floats.nan for floats in self._floats))

    @property
    def negative_zero_leaves(self) -> set[int]:
        """The leaves that may have a -0.0 somewhere in the file."""
        return set().union(*(floats.negative_zero for floats in self._floats))

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """One row group, if there are any rows."""
        table = pa.Table.from_batches(batches, self._schema)
        if not table.num_rows:
            return
        self._writer.write_table(table, row_group_size=table.num_rows)
        floats = SpecialFloats(self._schema)
        for batch in batches:
            floats.add(batch)
        self._floats.append(floats)

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
        if keys:
            self._writer.add_key_value_metadata(keys)
        try:
            self._writer.close()
        finally:
            # Otherwise a writer that could not be closed would try again when it is collected, in unrelated code.
            self._writer.is_open = False
        for footer in self._footers:
            nan = [floats.nan for floats in self._floats]
            fixed = {leaf for leaf in range(footer.num_columns) if footer.schema.column(leaf).physical_type == _FIXED}
            open_ended = [
                {leaf for leaf in floats.zero | fixed if footer.row_group(group).column(leaf).has_dictionary_page}
                for group, floats in enumerate(self._floats)
            ]
            if any(nan) or any(open_ended):
                self._sink.write(framed(without_claims(encoded(footer), nan, open_ended)))
