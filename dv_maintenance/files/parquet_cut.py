"""Some rows of a Parquet file as a file of their own, with the same columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from dv_maintenance.errors import DamagedTableError
from dv_maintenance.files.parquet_footer import ARROW_SCHEMA, RENAMED, has_damaged_arrow_schema, open_parquet_file

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 8192
_CODECS: Final = {"UNCOMPRESSED": "none"}


def cut(file: pa.NativeFile, rows: range, of: int, sink: Any) -> None:
    """Write some rows, with the schema, codec and keys of their file. Memory is bounded by a row group.

    of : how many rows the file has.

    Raises
    ------
    DamagedTableError : it has another number of rows.
    pa.ArrowException, OSError, RefusedError : as ``open_parquet_file``.
    """
    import pyarrow.parquet as pq

    source = open_parquet_file(file)
    footer = source.metadata
    codec = footer.row_group(0).column(0).compression if footer.num_row_groups else "UNCOMPRESSED"
    keys = dict(footer.metadata or {})
    # Arrow's own schema says more of types than Parquet's: of lists that they have a fixed length.
    arrow = keys.pop(RENAMED, None)
    if arrow is not None and not has_damaged_arrow_schema(footer):
        keys[ARROW_SCHEMA] = arrow
    schema = source.schema_arrow.remove_metadata()
    # Values of vectors repeat too rarely for dictionaries.
    options = {"compression": _CODECS.get(codec, codec.lower()), "store_schema": False, "use_dictionary": False}
    with pq.ParquetWriter(sink, schema, **options) as writer:
        for batch in batches(source, rows, of):
            writer.write_batch(batch.cast(schema))
        writer.add_key_value_metadata(keys)


def batches(source: Any, rows: range, of: int) -> Iterator[pa.RecordBatch]:
    """Some rows of an open file, in batches that end where those of the same rows of another file do."""
    if source.metadata.num_rows != of:
        raise DamagedTableError(f"it has {source.metadata.num_rows} rows, not {of}")
    first = 0
    for group in range(source.metadata.num_row_groups):
        count = source.metadata.row_group(group).num_rows
        if first < rows.stop and rows.start < first + count:
            at = first
            for batch in source.iter_batches(_ROWS, row_groups=[group]):
                start, stop = max(rows.start - at, 0), min(rows.stop - at, batch.num_rows)
                at += batch.num_rows
                if start < stop:
                    yield batch.slice(start, stop - start)
        first += count
