"""Arrow's Parquet writer, and a footer that Spark may trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.engine.parquet.odd_floats import OddFloats
from dv_maintenance.files.parquet_footer import encoded, framed, without_claims

__all__ = ["ParquetOutput"]

_FIXED: Final = "FIXED_LEN_BYTE_ARRAY"


class ParquetOutput:
    """Writes row groups of ``schema`` to ``sink``, which is left open. ``options``: of Arrow's writer.

    Arrow leaves NaN out of the bounds of floats, and says so only once a file is closed. Spark takes NaN for greater
    than every number, and skips the row groups and pages in whose bounds a filter finds nothing: so columns with NaN
    in a row group must have no bounds there, as parquet-java reads its own (PARQUET-1246). And where a dictionary has
    -0.0, parquet-java must not take it for all that there is: it finds no 0.0 in it, which to Spark is the same number.
    The same holds for decimals of more than 18 digits: Paimon looks for the fewest bytes that one has, and they are
    stored in a fixed length (parquet-java writes no dictionaries of these). A second footer says that; the first one
    stays in the file as bytes that nobody reads.
    """

    def __init__(self, sink: Any, schema: pa.Schema, **options: Any) -> None:
        self._sink, self._schema = sink, schema
        self._odd: list[OddFloats] = []
        self._footers: list[Any] = []
        self._writer = pq.ParquetWriter(sink, schema, metadata_collector=self._footers, **options)

    @property
    def nan_leaves(self) -> set[int]:
        """The leaves that hold a NaN somewhere in the file."""
        return set().union(*(odd.nan for odd in self._odd))

    @property
    def negative_zero_leaves(self) -> set[int]:
        """The leaves that may hold a -0.0 somewhere in the file."""
        return set().union(*(odd.negative_zero for odd in self._odd))

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """One row group, if there are any rows."""
        table = pa.Table.from_batches(batches, self._schema)
        if not table.num_rows:
            return
        self._writer.write_table(table, row_group_size=table.num_rows)
        odd = OddFloats(self._schema)
        for batch in batches:
            odd.add(batch)
        self._odd.append(odd)

    def bounds_with_nan(self, footer: Any) -> str | None:
        """The column with NaN for which the ``footer``, read back, has bounds; ``None`` if there is none."""
        for number, odd in enumerate(self._odd):
            for leaf in sorted(odd.nan):
                chunk = footer.row_group(number).column(leaf)
                if chunk.statistics is not None and chunk.statistics.has_min_max:
                    return str(chunk.path_in_schema)
        return None

    def close(self, keys: Mapping[bytes, bytes] | None = None) -> None:
        """Write the footer, with these ``keys``. An output that failed is closed, too: left open, Arrow's writer would
        write its footer into a closed sink when collected.
        """
        if keys:
            self._writer.add_key_value_metadata(keys)
        try:
            self._writer.close()
        finally:
            # What can't be closed would be tried again when it is collected, by whoever is at work then.
            self._writer.is_open = False
        for footer in self._footers:
            nan = [odd.nan for odd in self._odd]
            fixed = {leaf for leaf in range(footer.num_columns) if footer.schema.column(leaf).physical_type == _FIXED}
            open_ended = [
                {leaf for leaf in odd.negative_zero | fixed if footer.row_group(group).column(leaf).has_dictionary_page}
                for group, odd in enumerate(self._odd)
            ]
            if any(nan) or any(open_ended):
                self._sink.write(framed(without_claims(encoded(footer), nan, open_ended)))
