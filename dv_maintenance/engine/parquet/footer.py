"""Estimates from a Parquet footer, before any data is read: rows per batch, columns with repeated values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BATCH_BYTES = 4 << 20
MAX_BATCH_ROWS = 1 << 16

_WIDTHS = {"BOOLEAN": 1 / 8, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_LENGTH_PREFIX = 4
# Assumed bytes of a dictionary entry of unknown length, and of one so long that its writer omitted the bounds.
_UNKNOWN_VALUE = 64
_LONG_VALUE = 16 << 10
# With fewer values a file is not representative of the column that it will be merged into.
_EVIDENCE = 10_000
_WORTHWHILE = 0.75


def batch_rows(bytes_per_row: float) -> int:
    """Rows of a batch of about BATCH_BYTES decoded bytes; at least one row, however wide."""
    return max(1, min(MAX_BATCH_ROWS, int(BATCH_BYTES / max(bytes_per_row, 1))))


def row_bytes(group: Any, leaves: Iterable[int]) -> float:
    """Estimated decoded bytes per row of a row group's leaf columns.

    The encoded size is a lower bound, as a dictionary can hide any amount. So the width of a value (from its type, or
    from the lengths of the minimum and maximum string) is used if it is larger.
    """
    return sum((_decoded(group.column(leaf)) for leaf in leaves), 0.0) / max(int(group.num_rows), 1)


def _decoded(chunk: Any) -> float:
    width = _plain_width(chunk)
    if width is None and chunk.has_dictionary_page:
        hidden = chunk.is_stats_set and chunk.statistics.num_values
        width = min(_LONG_VALUE, chunk.total_uncompressed_size) if hidden else _UNKNOWN_VALUE
    return max(float(chunk.total_uncompressed_size), (width or 0) * float(chunk.num_values))


def compressed_bytes(group: Any, leaves: Iterable[int]) -> int:
    """Bytes to fetch for a row group's leaf columns."""
    return sum(group.column(leaf).total_compressed_size for leaf in leaves)


def ranges(group: Any, leaves: Iterable[int], buffer_bytes: int, file_bytes: int) -> list[tuple[int, int]]:
    """The ranges (offset, length) of a row group's leaf columns, in the order in which Arrow reads them: whole columns,
    or a buffer of each in turns. None ends after the file, whatever its footer says.

    buffer_bytes : of each column; 0 for whole columns.
    """
    found = ((_begin(chunk), chunk.total_compressed_size) for chunk in map(group.column, leaves))
    chunks = [(begin, min(size, file_bytes - begin)) for begin, size in found if 0 <= begin < file_bytes and size > 0]
    if not buffer_bytes:
        return sorted(chunks)
    parts = [
        (done / size, begin + done, min(buffer_bytes, size - done))
        for begin, size in chunks
        for done in range(0, size, buffer_bytes)
    ]
    return [(at, length) for _, at, length in sorted(parts)]


def _begin(chunk: Any) -> int:
    # Writers without dictionaries set 0 there, or nothing.
    return int(min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset))


def middle(group: Any) -> int:
    """The position in the file of the middle of a row group, in bytes; 0 for one without columns."""
    if not group.num_columns:
        return 0
    begin = _begin(group.column(0))
    size = sum(group.column(leaf).total_compressed_size for leaf in range(group.num_columns))
    return max(0, int(begin + size // 2))


def dictionary_pays(metadata: Any, leaf: int) -> bool:
    """Whether dictionaries make a file's leaf column clearly smaller.

    The footer does not record whether a writer abandoned a dictionary half-way, but the sizes show it. With little data
    the answer is unknown, and a dictionary is worth the attempt.
    """
    chunks = [metadata.row_group(group).column(leaf) for group in range(metadata.num_row_groups)]
    values = sum(chunk.num_values for chunk in chunks)
    if values < _EVIDENCE:
        return True
    if not any(chunk.has_dictionary_page for chunk in chunks):
        return False
    encoded = sum(chunk.total_uncompressed_size for chunk in chunks)
    plain = sum((_plain_width(chunk) or _LENGTH_PREFIX) * _present(chunk) for chunk in chunks)
    return bool(encoded < _WORTHWHILE * plain)


def _plain_width(chunk: Any) -> float | None:
    """Bytes of one value in plain encoding; ``None`` if the footer has no hint."""
    width = _WIDTHS.get(chunk.physical_type)
    if width is not None:
        return width
    if not chunk.is_stats_set or not chunk.statistics.has_min_max:
        return None
    least, greatest = chunk.statistics.min_raw, chunk.statistics.max_raw
    length = (len(least) + len(greatest)) / 2
    return length if chunk.physical_type == "FIXED_LEN_BYTE_ARRAY" else length + _LENGTH_PREFIX


def _present(chunk: Any) -> int:
    nulls = chunk.statistics.null_count if chunk.is_stats_set else None
    return int(chunk.num_values - (nulls or 0))
