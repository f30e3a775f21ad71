"""Arrow's Parquet writer, and a footer that Spark may trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dv_maintenance.engine.nan_leaves import NanLeaves
from dv_maintenance.files.parquet_footer import encoded, framed, without_bounds

__all__ = ["ParquetOutput"]


class ParquetOutput:
    """Writes row groups of ``schema`` to ``sink``, which is left open. ``options``: of Arrow's writer.

    Arrow leaves NaN out of the bounds of floats, and says so only once a file is closed. Spark takes NaN for greater
    than every number, and skips the row groups and pages in whose bounds a filter finds nothing: so columns with NaN
    in a row group must have no bounds there, as parquet-java reads its own (PARQUET-1246). A second footer says that;
    the first one stays in the file as bytes that nobody reads.
    """

    def __init__(self, sink: Any, schema: pa.Schema, **options: Any) -> None:
        self._sink, self._schema = sink, schema
        self._nan: list[set[int]] = []
        self._footers: list[Any] = []
        self._writer = pq.ParquetWriter(sink, schema, metadata_collector=self._footers, **options)

    @property
    def nan_leaves(self) -> set[int]:
        """The leaves that hold a NaN somewhere in the file."""
        return set().union(*self._nan)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """One row group, if there are any rows."""
        table = pa.Table.from_batches(batches, self._schema)
        if not table.num_rows:
            return
        self._writer.write_table(table, row_group_size=table.num_rows)
        nan = NanLeaves(self._schema)
        for batch in batches:
            nan.add(batch)
        self._nan.append(nan.found)

    def bounds_with_nan(self, footer: Any) -> str | None:
        """Which column the file's ``footer``, read back, tells bounds of where there is NaN; ``None``: of none."""
        for number, leaves in enumerate(self._nan):
            for leaf in sorted(leaves):
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
        if self._footers and self.nan_leaves:
            self._sink.write(framed(without_bounds(encoded(self._footers[0]), self._nan)))
